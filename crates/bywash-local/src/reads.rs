//! Reads of many objects and ranges: leases where possible, else bytes in the reply.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use bywash::{Bucket, Lease, LeasedRead, PieceByPiece, ReadInfo, Reservation, Share};
use bywash_client::limits::{MAX_GET_OBJECTS, MAX_GET_RANGES};
use bywash_client::message::{
    Bounds, ByteRange, Bytes as BytesReply, Conditions, ErrorCode, Failure, Get, GetObject, Leased,
    LeasedRange, Part, Reply,
};
use bywash_gateway::RequestRecord;
use bywash_gateway::objects::{ObjectOperation, check_etags, is_hit};
use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, GetResult, ObjectMeta, ObjectStore, ObjectStoreExt};
use tokio::time::{Instant, timeout_at};

use crate::connection::deadline;
use crate::door::Door;
use crate::failure::{failure, from_object};
use crate::frames::Outgoing;
use crate::leases::Leases;
use crate::limits::{LEASE_BLOCK_BYTES, LEASE_BYTES, LEASE_RANGE_BYTES, MAX_OBJECTS_AT_ONCE};
use crate::operations::{bucket, late, object_info};
use crate::record;
use crate::stats::add;

/// Reads of one connection.
pub(crate) struct Reader {
    door: Arc<Door>,
    leases: Arc<Leases>,
    /// Number of the last lease.
    number: u32,
}

/// Result of an object's read, before anything of it is sent.
enum ObjectRead {
    Leased(Lease, Reservation),
    /// The body of the one range, or of the first.
    Copied(Box<Target>, Box<GetResult>),
}

/// A valid read of an object.
struct Target {
    bucket: Bucket,
    path: Path,
    object: GetObject,
    options: GetOptions,
}

impl Target {
    fn doing(&self) -> ObjectOperation<'_> {
        ObjectOperation {
            operation: "read",
            bucket: &self.object.bucket,
            key: &self.object.key,
        }
    }

    fn failed(&self, error: &object_store::Error) -> Failure {
        from_object(self.doing().error(error))
    }

    fn late(&self) -> Failure {
        late("read", &self.object.bucket, &self.object.key)
    }

    /// Ranges of a request for several.
    fn bounds(&self) -> Vec<Range<u64>> {
        let bounds = self.object.ranges.iter().filter_map(|range| match range {
            ByteRange::Bounded(Bounds { start, end }) => Some(*start..*end),
            _ => None,
        });
        bounds.collect()
    }

    /// Options for one of the ranges.
    fn of_range(&self, range: Option<GetRange>) -> GetOptions {
        let mut options = self.options.clone();
        options.range = range;
        options.extensions.insert(PieceByPiece);
        options
    }

    /// Number of bytes in all ranges, if they are known without the object.
    fn wanted_bytes(&self) -> Option<u64> {
        let of_range = |range: &ByteRange| match range {
            ByteRange::Bounded(Bounds { start, end }) => Some(end - start),
            ByteRange::Last(bytes) => Some(*bytes),
            ByteRange::Whole(()) | ByteRange::From(_) => None,
        };
        let wanted = self.object.ranges.iter().map(of_range);
        wanted.sum()
    }
}

/// Converts a range. `None`: the whole object.
fn get_range(range: &ByteRange) -> Option<GetRange> {
    match range {
        ByteRange::Whole(()) => None,
        ByteRange::Bounded(Bounds { start, end }) => Some(GetRange::Bounded(*start..*end)),
        ByteRange::From(start) => Some(GetRange::Offset(*start)),
        ByteRange::Last(bytes) => Some(GetRange::Suffix(*bytes)),
    }
}

impl Reader {
    pub(crate) fn new(door: &Arc<Door>, leases: &Arc<Leases>) -> Self {
        Self {
            door: Arc::clone(door),
            leases: Arc::clone(leases),
            number: 0,
        }
    }

    /// Reads all objects of a request, in order.
    pub(crate) async fn get(&mut self, get: Get, out: &mut Outgoing) -> io::Result<()> {
        let deadline = deadline(get.deadline_ms);
        let ranges: usize = get.objects.iter().map(|object| object.ranges.len()).sum();
        if get.objects.len() > MAX_GET_OBJECTS || ranges > MAX_GET_RANGES {
            let message = format!(
                "read {} objects with {ranges} ranges: a request has at most {MAX_GET_OBJECTS} and {MAX_GET_RANGES}; send several",
                get.objects.len()
            );
            out.put(&Reply::Error(failure(ErrorCode::Limit, message)));
            return Ok(());
        }
        let (door, leases) = (Arc::clone(&self.door), Arc::clone(&self.leases));
        let inline = u64::from(get.inline_bytes);
        let reads = get.objects.into_iter().map(|object| {
            let (door, leases) = (Arc::clone(&door), Arc::clone(&leases));
            async move {
                let record = record::read(&door, &object.bucket, &object.key);
                let read = read(&door, &leases, object, inline, deadline).await;
                (record, read)
            }
        });
        let mut reads = stream::iter(reads).buffered(MAX_OBJECTS_AT_ONCE);
        while let Some((mut record, read)) = reads.next().await {
            let sent = match read {
                Ok(ObjectRead::Leased(lease, charge)) => {
                    record.begin_response();
                    record.note_cache(lease.info().outcome);
                    record.count_sent(lease_bytes(&lease));
                    Ok(self.lease(lease, charge, out).await?)
                }
                Ok(ObjectRead::Copied(target, first)) => {
                    record.begin_response();
                    if let Some(info) = first.extensions.get::<ReadInfo>() {
                        record.note_cache(info.outcome);
                    }
                    let copy = self.copy(&target, *first, &mut record, deadline, out);
                    copy.await?
                }
                Err(failure) => Err(failure),
            };
            record.end();
            if let Err(failure) = sent {
                record::fail(&mut record, &failure);
                add(&self.door.counters.failures, 1);
                out.reply(&Reply::Failed(failure)).await?;
            }
        }
        out.put(&Reply::Done(()));
        Ok(())
    }

    /// Sends a lease, which the connection holds from now on.
    async fn lease(
        &mut self,
        lease: Lease,
        charge: Reservation,
        out: &mut Outgoing,
    ) -> io::Result<()> {
        self.number = self.number.wrapping_add(1);
        let ranges = lease.ranges().iter().map(|range| LeasedRange {
            start: range.start,
            parts: lease
                .parts(range)
                .map(|part| Part {
                    offset: part.offset,
                    len: part.len,
                })
                .collect(),
        });
        let reply = Reply::Leased(Leased {
            lease: self.number,
            object: object_info("", lease.meta()),
            hit: is_hit(Some(&lease.info())),
            ranges: ranges.collect(),
        });
        let bytes = lease.ranges().iter().map(|range| range.end - range.start);
        add(&self.door.counters.shared_bytes, bytes.sum());
        self.leases.hold(self.number, lease, charge);
        out.reply(&reply).await
    }

    /// Sends the bytes of an object's ranges. The inner error is of this object alone.
    async fn copy(
        &self,
        target: &Target,
        first: GetResult,
        record: &mut RequestRecord,
        deadline: Instant,
        out: &mut Outgoing,
    ) -> io::Result<Result<(), Failure>> {
        let size = first.meta.size;
        let ranges = match target.object.ranges.as_slice() {
            [_] => vec![first.range.clone()],
            _ => target.bounds(),
        };
        if let Some(beyond) = ranges.iter().find(|range| range.start >= size.max(1)) {
            let message = format!(
                "read {}/{}: the range begins at {}, beyond the object's {size} bytes",
                target.object.bucket, target.object.key, beyond.start
            );
            return Ok(Err(failure(ErrorCode::InvalidRange, message)));
        }
        let bounds = ranges.iter().map(|range| Bounds {
            start: range.start,
            end: range.end.min(size),
        });
        let head = Reply::Bytes(BytesReply {
            object: object_info("", &first.meta),
            hit: is_hit(first.extensions.get::<ReadInfo>()),
            ranges: bounds.collect(),
        });
        let etag = first.meta.e_tag.clone();
        out.reply(&head).await?;
        let sent = self.send_body(target, first, record, deadline, out);
        if let Err(failure) = sent.await? {
            return Ok(Err(failure));
        }
        for range in ranges.into_iter().skip(1) {
            let mut options = target.of_range(Some(GetRange::Bounded(range)));
            options.if_match.clone_from(&etag);
            let next = timeout_at(deadline, target.bucket.get_opts(&target.path, options)).await;
            let next = match next {
                Ok(Ok(next)) => next,
                Ok(Err(object_store::Error::Precondition { .. })) => {
                    return Ok(Err(changed(target)));
                }
                Ok(Err(error)) => return Ok(Err(target.failed(&error))),
                Err(_) => return Ok(Err(target.late())),
            };
            let sent = self.send_body(target, next, record, deadline, out);
            if let Err(failure) = sent.await? {
                return Ok(Err(failure));
            }
        }
        Ok(Ok(()))
    }

    async fn send_body(
        &self,
        target: &Target,
        read: GetResult,
        record: &mut RequestRecord,
        deadline: Instant,
        out: &mut Outgoing,
    ) -> io::Result<Result<(), Failure>> {
        let mut body = read.into_stream();
        loop {
            match timeout_at(deadline, body.try_next()).await {
                Ok(Ok(Some(bytes))) => {
                    out.data(&bytes).await?;
                    record.count_sent(bytes.len() as u64);
                    add(&self.door.counters.copied_bytes, bytes.len() as u64);
                }
                Ok(Ok(None)) => return Ok(Ok(())),
                Ok(Err(error)) => return Ok(Err(target.failed(&error))),
                Err(_) => return Ok(Err(target.late())),
            }
        }
    }
}

fn changed(target: &Target) -> Failure {
    let message = format!(
        "read {}/{}: the object changed between two of its ranges; read it again",
        target.object.bucket, target.object.key
    );
    failure(ErrorCode::VersionChanged, message)
}

/// Reads an object's ranges, up to the first byte of the copied ranges.
async fn read(
    door: &Door,
    leases: &Leases,
    object: GetObject,
    inline: u64,
    deadline: Instant,
) -> Result<ObjectRead, Failure> {
    let target = target(door, object)?;
    let read = async {
        let target = conditional(target).await?;
        lease_or_copy(door, leases, target, inline).await
    };
    match timeout_at(deadline, read).await {
        Ok(read) => read,
        Err(_) => Err(failure(
            ErrorCode::Deadline,
            "read: the deadline of the request passed before the object's bytes were there; give a longer one",
        )),
    }
}

fn target(door: &Door, object: GetObject) -> Result<Target, Failure> {
    let bucket = bucket(door, &object.bucket)?;
    let doing = ObjectOperation {
        operation: "read",
        bucket: &object.bucket,
        key: &object.key,
    };
    let path = doing.stored_path(&bucket).map_err(from_object)?;
    let wrong = |range: &&ByteRange| match range {
        ByteRange::Bounded(Bounds { start, end }) => start >= end,
        _ => object.ranges.len() > 1,
    };
    if object.ranges.is_empty() || object.ranges.iter().any(|range| wrong(&range)) {
        let message = format!(
            "read {}/{}: a request has one range, or several that each have a first and a later last byte",
            object.bucket, object.key
        );
        return Err(failure(ErrorCode::InvalidArgument, message));
    }
    let options = GetOptions {
        version: object.conditions.version.clone(),
        ..GetOptions::default()
    };
    Ok(Target {
        bucket,
        path,
        object,
        options,
    })
}

/// Checks the conditions of a read, and binds it to the version that meets them.
async fn conditional(mut target: Target) -> Result<Target, Failure> {
    let Conditions {
        if_match,
        if_none_match,
        version,
    } = &target.object.conditions;
    if version.is_some() || (if_match.is_none() && if_none_match.is_none()) {
        return Ok(target);
    }
    let found = target.bucket.head(&target.path).await;
    let meta: ObjectMeta = found.map_err(|error| target.failed(&error))?;
    check_etags(
        &target.doing(),
        &meta,
        if_match.as_deref(),
        if_none_match.as_deref(),
    )
    .map_err(from_object)?;
    target.options.if_match = meta.e_tag;
    Ok(target)
}

async fn lease_or_copy(
    door: &Door,
    leases: &Leases,
    target: Target,
    inline: u64,
) -> Result<ObjectRead, Failure> {
    let small = target.wanted_bytes().is_some_and(|bytes| bytes < inline);
    if !small && inline < u64::from(u32::MAX) && leases.has_room() {
        if target.object.ranges.len() > 1 {
            let bounds = target.bounds();
            let lease = target
                .bucket
                .lease_ranges(&target.path, &bounds, &target.options);
            let lease = lease.await.map_err(|error| target.failed(&error))?;
            if let Some((lease, charge)) = lease.and_then(|lease| charged(door, lease)) {
                return Ok(ObjectRead::Leased(lease, charge));
            }
        } else {
            let mut options = target.options.clone();
            options.range = get_range(&target.object.ranges[0]);
            let read = target.bucket.lease(&target.path, options).await;
            match read.map_err(|error| target.failed(&error))? {
                LeasedRead::Lease(lease) if lease_bytes(&lease) < inline => {}
                LeasedRead::Lease(lease) => {
                    if let Some((lease, charge)) = charged(door, lease) {
                        return Ok(ObjectRead::Leased(lease, charge));
                    }
                }
                LeasedRead::Body(body) => {
                    add(&door.counters.refused, 1);
                    return Ok(ObjectRead::Copied(Box::new(target), Box::new(body)));
                }
            }
        }
        add(&door.counters.refused, 1);
    }
    let options = target.of_range(get_range(&target.object.ranges[0]));
    let read = target.bucket.get_opts(&target.path, options).await;
    let read = read.map_err(|error| target.failed(&error))?;
    Ok(ObjectRead::Copied(Box::new(target), Box::new(read)))
}

fn lease_bytes(lease: &Lease) -> u64 {
    let bytes = lease.ranges().iter().map(|range| range.end - range.start);
    bytes.sum()
}

/// Charges the bookkeeping of a lease. `None` if there is no memory for it: the lease ends.
fn charged(door: &Door, lease: Lease) -> Option<(Lease, Reservation)> {
    let bytes = LEASE_BYTES
        + lease.blocks() as u64 * LEASE_BLOCK_BYTES
        + lease.ranges().len() as u64 * LEASE_RANGE_BYTES;
    let charge = door.engine.try_reserve(Share::Download, bytes)?;
    Some((lease, charge))
}
