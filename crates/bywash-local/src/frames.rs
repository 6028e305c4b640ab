//! Frames on a socket: requests in, replies and data out.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use bywash::{Engine, Reservation, Share};
use bywash_client::limits::MAX_DATA_BYTES;
use bywash_client::message::{FrameHead, HEAD_BYTES, Kind, Reply, put_data, put_frame};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Interest};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use crate::door::LocalTimes;
use crate::limits::{MAX_FREE_MESSAGE_BYTES, MESSAGE_FACTOR, READ_BYTES};

/// Bytes of replies that are sent together.
const REPLY_BYTES: usize = 64 << 10;
/// Data up to this length is sent with the replies around it.
const JOINED_BYTES: usize = 16 << 10;

/// The receiving half of a connection.
#[derive(Debug)]
pub(crate) struct Incoming {
    socket: BufReader<OwnedReadHalf>,
    /// Maximum time of a message, and between two pieces of data.
    time: Duration,
}

/// A received payload with its charge.
#[derive(Debug)]
pub(crate) struct Payload {
    pub(crate) bytes: Bytes,
    _charge: Option<Reservation>,
}

/// Why a payload was not read.
#[derive(Debug)]
pub(crate) enum PayloadError {
    /// The connection cannot continue.
    Io(io::Error),
    /// There is no memory for it; its bytes were skipped.
    NoMemory,
}

impl From<io::Error> for PayloadError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl Incoming {
    pub(crate) fn new(socket: OwnedReadHalf, times: LocalTimes) -> Self {
        Self {
            socket: BufReader::with_capacity(READ_BYTES, socket),
            time: times.message,
        }
    }

    /// Waits for the head of the next frame. `None` if the client has closed the connection.
    pub(crate) async fn head(&mut self) -> io::Result<Option<FrameHead>> {
        if self.socket.fill_buf().await?.is_empty() {
            return Ok(None);
        }
        let mut head = [0; HEAD_BYTES];
        in_time(self.time, self.socket.read_exact(&mut head)).await?;
        let head = FrameHead::decode(head);
        head.map(Some)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// Reads the payload of a request. A long one is charged before it is read.
    pub(crate) async fn payload(
        &mut self,
        head: FrameHead,
        engine: &Engine,
    ) -> Result<Payload, PayloadError> {
        let len = head.len as usize;
        let charge = if len > MAX_FREE_MESSAGE_BYTES {
            let bytes = len as u64 * MESSAGE_FACTOR;
            let Some(charge) = engine.try_reserve(Share::Download, bytes) else {
                self.skip(len).await?;
                return Err(PayloadError::NoMemory);
            };
            Some(charge)
        } else {
            None
        };
        Ok(Payload {
            bytes: self.read(len).await?,
            _charge: charge,
        })
    }

    /// Waits for the next of `left` bytes of data; [`Self::taken`] takes them.
    pub(crate) async fn some(&mut self, left: usize) -> io::Result<&[u8]> {
        let bytes = in_time(self.time, self.socket.fill_buf()).await?;
        if bytes.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(&bytes[..bytes.len().min(left)])
    }

    /// Takes bytes that [`Self::some`] has returned.
    pub(crate) fn taken(&mut self, count: usize) {
        self.socket.consume(count);
    }

    async fn read(&mut self, len: usize) -> io::Result<Bytes> {
        let mut bytes = BytesMut::zeroed(len);
        in_time(self.time, self.socket.read_exact(&mut bytes)).await?;
        Ok(bytes.freeze())
    }

    async fn skip(&mut self, len: usize) -> io::Result<()> {
        let mut left = len;
        while left > 0 {
            let skipped = self.some(left).await?.len();
            self.taken(skipped);
            left -= skipped;
        }
        Ok(())
    }

    /// Completes when the client has closed the connection while a request of it is in progress.
    pub(crate) async fn closed(&mut self) {
        match self.socket.fill_buf().await {
            // The next message: it is read later.
            Ok(bytes) if !bytes.is_empty() => std::future::pending().await,
            _ => {}
        }
    }
}

async fn in_time<T>(limit: Duration, read: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let read = timeout(limit, read).await;
    read.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// The sending half of a connection.
#[derive(Debug)]
pub(crate) struct Outgoing {
    socket: OwnedWriteHalf,
    bytes: Vec<u8>,
    times: LocalTimes,
    /// Number of the request that replies belong to.
    pub(crate) request: u32,
}

impl Outgoing {
    pub(crate) fn new(socket: OwnedWriteHalf, times: LocalTimes) -> Self {
        Self {
            socket,
            bytes: Vec::new(),
            times,
            request: 0,
        }
    }

    /// Queues a reply for the next flush.
    pub(crate) fn put(&mut self, reply: &Reply) {
        put_frame(Kind::Reply, self.request, reply, &mut self.bytes);
    }

    /// Queues a reply, and flushes if many bytes are queued.
    pub(crate) async fn reply(&mut self, reply: &Reply) -> io::Result<()> {
        self.put(reply);
        self.flush_if_long().await
    }

    /// Sends data of an object.
    pub(crate) async fn data(&mut self, data: &[u8]) -> io::Result<()> {
        for data in data.chunks(MAX_DATA_BYTES) {
            if data.len() <= JOINED_BYTES {
                put_data(self.request, data, &mut self.bytes);
                self.flush_if_long().await?;
                continue;
            }
            let head = FrameHead {
                len: data.len() as u32,
                request: self.request,
                kind: Kind::Data,
            };
            self.bytes.extend_from_slice(&head.encode());
            self.flush().await?;
            self.send(data).await?;
        }
        Ok(())
    }

    async fn flush_if_long(&mut self) -> io::Result<()> {
        if self.bytes.len() >= REPLY_BYTES {
            self.flush().await?;
        }
        Ok(())
    }

    /// Sends the queued bytes.
    pub(crate) async fn flush(&mut self) -> io::Result<()> {
        if self.bytes.is_empty() {
            return Ok(());
        }
        let mut bytes = std::mem::take(&mut self.bytes);
        let sent = self.send(&bytes).await;
        bytes.clear();
        // A long reply's memory is not kept for the next.
        bytes.shrink_to(REPLY_BYTES);
        self.bytes = bytes;
        sent
    }

    /// Sends all of `bytes`. Fails if the client takes nothing for [`LocalTimes::reply_stall`].
    async fn send(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let sent = in_time(self.times.reply_stall, self.socket.write(bytes)).await?;
            bytes = &bytes[sent..];
        }
        Ok(())
    }

    /// Sends the queued bytes, and a descriptor with the first ones.
    pub(crate) async fn flush_with(&mut self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        let socket = self.socket.as_ref();
        let bytes = &self.bytes;
        let sent = socket.async_io(Interest::WRITABLE, || {
            let descriptors = [descriptor];
            let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            control.push(SendAncillaryMessage::ScmRights(&descriptors));
            let parts = [io::IoSlice::new(bytes)];
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            sendmsg(socket.as_fd(), &parts, &mut control, flags).map_err(io::Error::from)
        });
        let sent = in_time(self.times.message, sent).await?;
        self.bytes.drain(..sent);
        self.flush().await
    }
}
