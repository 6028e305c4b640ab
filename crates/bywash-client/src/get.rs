//! Reads: one message for any number of objects and ranges.

use std::ops::Range;
use std::os::fd::BorrowedFd;

use crate::bucket::{Bucket, Metadata};
use crate::client::Client;
use crate::connection::{Connection, Frame, unexpected};
use crate::error::{Error, Result};
use crate::limits::DEFAULT_INLINE_BYTES;
use crate::message::{Bounds, ByteRange, Bytes, ErrorCode, Get, GetObject, Leased, Reply, Request};
use crate::view::{Lease, View};

/// Options of a read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GetOptions {
    /// Fails with [`ErrorCode::Precondition`] unless the object has this ETag.
    pub if_match: Option<String>,
    /// Fails with [`ErrorCode::NotModified`] if the object has this ETag.
    pub if_none_match: Option<String>,
    /// Reads this version, where the origin keeps several.
    pub version: Option<String>,
    /// Objects with fewer bytes in all their ranges are copied instead of leased; `None`: below 16 KiB. `u32::MAX`: all are copied.
    pub inline_bytes: Option<u32>,
}

/// An object, or a range of one.
#[derive(Debug)]
pub struct Object {
    /// The version that was read.
    pub metadata: Metadata,
    /// Range of the object that `bytes` are.
    pub range: Range<u64>,
    /// Whether all of it was in the server's memory.
    pub hit: bool,
    /// The bytes.
    pub bytes: View,
}

/// Ranges of one version of an object.
#[derive(Debug)]
pub struct Ranges {
    /// The version that was read.
    pub metadata: Metadata,
    /// Whether all ranges were in the server's memory.
    pub hit: bool,
    /// First byte of each range in the object, and its bytes, in the order of the request.
    pub ranges: Vec<(u64, View)>,
}

impl Ranges {
    /// Returns the one range of a read of one.
    ///
    /// # Errors
    /// [`ErrorCode::Protocol`] if there is no range.
    pub fn into_object(mut self) -> Result<Object> {
        let (start, bytes) = self.ranges.pop().ok_or_else(unexpected)?;
        Ok(Object {
            range: start..start + bytes.len() as u64,
            metadata: self.metadata,
            hit: self.hit,
            bytes,
        })
    }
}

/// Ranges of one object of [`Client::get_many`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangesOf<'a> {
    /// Name of the bucket.
    pub bucket: &'a str,
    /// The key.
    pub key: &'a str,
    /// The ranges; none: the whole object.
    pub ranges: &'a [ByteRange],
}

/// Range from `start` to before `end`.
#[must_use]
pub fn byte_range(range: Range<u64>) -> ByteRange {
    ByteRange::Bounded(Bounds {
        start: range.start,
        end: range.end,
    })
}

impl Client {
    /// Reads ranges of many objects by one message. The result has one element for each object, in order.
    ///
    /// # Errors
    /// Of the whole message: as [`Client::connect`]; [`ErrorCode::Limit`] above 10,000 ranges.
    pub fn get_many(
        &self,
        objects: &[RangesOf<'_>],
        options: &GetOptions,
    ) -> Result<Vec<Result<Ranges>>> {
        self.again_if_broken(|| self.begin_get(objects, options)?.wait())
    }

    /// As [`Self::get_many`] for event loops: sends the request, and returns a handle that receives
    /// the reply without waiting.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn begin_get(&self, objects: &[RangesOf<'_>], options: &GetOptions) -> Result<PendingGet> {
        let keys = objects.iter().map(|object| object.key.to_owned()).collect();
        let object = |of: &RangesOf<'_>| GetObject {
            bucket: of.bucket.to_owned(),
            key: of.key.to_owned(),
            conditions: options.conditions(),
            ranges: if of.ranges.is_empty() {
                vec![ByteRange::Whole(())]
            } else {
                of.ranges.to_vec()
            },
        };
        let mut connection = self.connection()?;
        connection.start(self.deadline())?;
        let copied = connection.link().map().is_none();
        connection.queue(&Request::Get(Get {
            objects: objects.iter().map(object).collect(),
            inline_bytes: if copied {
                u32::MAX
            } else {
                options.inline_bytes.unwrap_or(DEFAULT_INLINE_BYTES)
            },
            deadline_ms: self.deadline_ms(),
        }));
        connection.try_flush()?;
        Ok(PendingGet {
            client: self.clone(),
            connection: Some(connection),
            keys,
            results: Vec::new(),
            receiving: None,
        })
    }
}

/// A read whose reply has not arrived yet. Dropping it cancels the read.
#[derive(Debug)]
pub struct PendingGet {
    client: Client,
    /// `None` at the end.
    connection: Option<Connection>,
    keys: Vec<String>,
    results: Vec<Result<Ranges>>,
    /// The object whose data arrives.
    receiving: Option<Receiving>,
}

/// An object whose data arrives.
#[derive(Debug)]
struct Receiving {
    ranges: Ranges,
    /// Ranges that have no buffer yet, last first.
    missing: Vec<Bounds>,
    /// The range that arrives: its start, its bytes, and the number received.
    current: Option<(u64, Vec<u8>, usize)>,
    /// Bytes left of the frame.
    frame: usize,
}

impl PendingGet {
    /// Descriptor that becomes readable, or writable while [`Self::has_unsent`], when [`Self::poll`] has something to do.
    ///
    /// # Errors
    /// [`ErrorCode::Connection`] after the end.
    pub fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        let connection = self.connection.as_ref().ok_or_else(ended)?;
        Ok(connection.descriptor())
    }

    /// Whether a part of the request waits for the socket.
    #[must_use]
    pub fn has_unsent(&self) -> bool {
        self.connection.as_ref().is_some_and(Connection::has_unsent)
    }

    /// Has the reply arrive within this time from now.
    pub(crate) fn extend(&mut self, time: std::time::Duration) {
        if let Some(connection) = &mut self.connection {
            connection.extend(time);
        }
    }

    /// Takes the bytes that have arrived. Returns the results when all are there, once. Never
    /// waits.
    ///
    /// # Errors
    /// As [`Client::get_many`].
    pub fn poll(&mut self) -> Result<Option<Vec<Result<Ranges>>>> {
        let mut connection = self.connection.take().ok_or_else(ended)?;
        match self.advance(&mut connection) {
            Ok(false) => {
                self.connection = Some(connection);
                Ok(None)
            }
            Ok(true) => {
                self.client.end(connection);
                Ok(Some(std::mem::take(&mut self.results)))
            }
            Err(error) if error.is_reply() => {
                self.client.end(connection);
                Err(error)
            }
            Err(error) => {
                connection.stop();
                Err(error)
            }
        }
    }

    /// Waits for the results.
    ///
    /// # Errors
    /// As [`Client::get_many`].
    pub fn wait(mut self) -> Result<Vec<Result<Ranges>>> {
        loop {
            if let Some(results) = self.poll()? {
                return Ok(results);
            }
            let connection = self.connection.as_ref().ok_or_else(ended)?;
            connection.wait_for_more()?;
        }
    }

    /// Takes the bytes that have arrived. Returns whether all have.
    fn advance(&mut self, connection: &mut Connection) -> Result<bool> {
        if !connection.try_flush()? {
            return Ok(false);
        }
        loop {
            if let Some(receiving) = &mut self.receiving {
                if !receiving.advance(connection)? {
                    return Ok(false);
                }
                if receiving.is_complete()
                    && let Some(receiving) = self.receiving.take()
                {
                    self.add(Ok(receiving.ranges))?;
                    continue;
                }
            }
            match connection.try_next()? {
                None => return Ok(false),
                Some(Frame::Data(len)) => match &mut self.receiving {
                    Some(receiving) => receiving.frame = len,
                    None => return Err(unexpected()),
                },
                Some(Frame::Reply(reply)) => {
                    if self.take_reply(connection, reply)? {
                        return Ok(true);
                    }
                }
            }
        }
    }

    /// Returns whether it was the last reply.
    fn take_reply(&mut self, connection: &Connection, reply: Reply) -> Result<bool> {
        match reply {
            // Also in place of the rest of its data.
            Reply::Failed(failure) => {
                self.receiving = None;
                self.add(Err(failure.into()))?;
            }
            Reply::Error(failure) => return Err(failure.into()),
            _ if self.receiving.is_some() => return Err(unexpected()),
            Reply::Leased(leased) => {
                let ranges = leased_ranges(connection, leased)?;
                self.add(Ok(ranges))?;
            }
            Reply::Bytes(bytes) => self.receiving = Some(Receiving::new(bytes)),
            Reply::Done(()) if self.results.len() == self.keys.len() => return Ok(true),
            _ => return Err(unexpected()),
        }
        Ok(false)
    }

    fn add(&mut self, mut result: Result<Ranges>) -> Result<()> {
        let key = self.keys.get(self.results.len()).ok_or_else(unexpected)?;
        if let Ok(ranges) = &mut result {
            ranges.metadata.key.clone_from(key);
        }
        self.results.push(result);
        Ok(())
    }
}

fn ended() -> Error {
    Error::new(ErrorCode::Connection, "this read has ended; begin another")
}

fn leased_ranges(connection: &Connection, leased: Leased) -> Result<Ranges> {
    let lease = Lease::new(connection.link(), leased.lease).ok_or_else(unexpected)?;
    let ranges = leased.ranges.iter().map(|range| {
        let view = View::leased(&lease, &range.parts).ok_or_else(unexpected)?;
        Ok((range.start, view))
    });
    Ok(Ranges {
        ranges: ranges.collect::<Result<_>>()?,
        metadata: leased.object.into(),
        hit: leased.hit,
    })
}

impl Receiving {
    fn new(bytes: Bytes) -> Self {
        let mut missing = bytes.ranges;
        missing.reverse();
        Self {
            ranges: Ranges {
                metadata: bytes.object.into(),
                hit: bytes.hit,
                ranges: Vec::with_capacity(missing.len()),
            },
            missing,
            current: None,
            frame: 0,
        }
    }

    fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.current.is_none()
    }

    /// Takes bytes of the frame that have arrived. Returns whether another frame is needed, or none.
    fn advance(&mut self, connection: &mut Connection) -> Result<bool> {
        loop {
            let Some((start, mut bytes, filled)) = self.next_range()? else {
                return if self.frame == 0 {
                    Ok(true)
                } else {
                    Err(unexpected())
                };
            };
            if filled == bytes.len() {
                self.ranges.ranges.push((start, View::received(bytes)));
                continue;
            }
            let wanted = self.frame.min(bytes.len() - filled);
            let count = if wanted == 0 {
                0
            } else {
                connection.try_read_data(&mut bytes[filled..filled + wanted])?
            };
            self.frame -= count;
            self.current = Some((start, bytes, filled + count));
            if count == 0 {
                return Ok(self.frame == 0);
            }
        }
    }

    /// Takes the range that arrives, or begins the next one.
    fn next_range(&mut self) -> Result<Option<(u64, Vec<u8>, usize)>> {
        if let Some(current) = self.current.take() {
            return Ok(Some(current));
        }
        let Some(Bounds { start, end }) = self.missing.pop() else {
            return Ok(None);
        };
        let len = end
            .checked_sub(start)
            .and_then(|len| usize::try_from(len).ok());
        let len = len.ok_or_else(unexpected)?;
        Ok(Some((start, vec![0; len], 0)))
    }
}

/// Reads one range.
pub(crate) fn one(
    bucket: &Bucket,
    key: &str,
    range: ByteRange,
    options: &GetOptions,
) -> Result<Object> {
    of_object(bucket, key, &[range], options)?.into_object()
}

/// Reads ranges of one object.
pub(crate) fn of_object(
    bucket: &Bucket,
    key: &str,
    ranges: &[ByteRange],
    options: &GetOptions,
) -> Result<Ranges> {
    let object = RangesOf {
        bucket: bucket.name(),
        key,
        ranges,
    };
    let results = bucket.client().get_many(&[object], options)?;
    results.into_iter().next().ok_or_else(unexpected)?
}

/// Reads a range into the caller's memory.
pub(crate) fn into(
    bucket: &Bucket,
    key: &str,
    start: u64,
    target: &mut [u8],
    options: &GetOptions,
) -> Result<Metadata> {
    if target.is_empty() {
        return bucket.head(key, options);
    }
    let range = byte_range(start..start + target.len() as u64);
    let object = one(bucket, key, range, options)?;
    if object.bytes.len() < target.len() {
        let message = format!(
            "{key}: {} bytes from {start} on are not there, the object has {}; read up to its end",
            target.len(),
            object.metadata.size
        );
        return Err(Error::new(ErrorCode::InvalidRange, message));
    }
    object.bytes.copy_to(target);
    Ok(object.metadata)
}
