//! Bytes for another node of the cluster: from memory, the disk tier or the origin, never from a third node.
//!
//! Nothing here waits for another node, so two nodes that each take the other for an owner cannot wait for each other:
//! - a load for another node asks only the origin, and takes its memory only if that is free at once;
//! - a load of this node's own that waits for another node, or for memory, is not waited for: the response ends as soon as it does.
//!   An earlier wait of a load is not visible here: for memory, up to the admission deadline. So each byte of another load is
//!   waited for during the stall limit at most.

use std::ops::Range;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use bywash_mem::{BlockReader, FlightError, Load, OwnedPin, PinScope, Share};
use chrono::DateTime;
use futures::{StreamExt, stream};
use object_store::{Error, ObjectMeta, Result};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::ownership;
use super::plan::{self, Found};
use super::range_fetch::RangeFetch;
use super::shared_error::from_load_error;
use crate::bucket::Bucket;
use crate::cluster::{PeerBody, PeerRead, PeerReadError};
use crate::retry::stalled;
use crate::shared::BucketShared;
use crate::versions::Version;

/// Attempts at one block after abandoned loads.
const ATTEMPTS: u32 = 10;

impl Bucket {
    /// Returns bytes for another node of the cluster. Asks neither another node nor the authority. `peek`: only if all bytes are
    /// in memory now. The stream may fail at any byte: the other node then continues at the origin.
    ///
    /// # Errors
    /// [`PeerReadError`]; the other node then asks the origin.
    pub fn serve_peer(&self, wanted: &PeerRead, peek: bool) -> Result<PeerBody, PeerReadError> {
        let bucket = self.shared();
        let range = wanted.range.clone();
        if wanted.bucket != bucket.name || range.start >= range.end || range.end > wanted.size {
            return Err(PeerReadError::Absent);
        }
        let version = version_of(bucket, wanted, peek).ok_or(PeerReadError::Absent)?;
        let size = bucket.block_size;
        let first = (range.start / size) as u32;
        let blocks = first..range.end.div_ceil(size) as u32;
        let pool = &bucket.engine.pool;
        if peek
            && !blocks
                .clone()
                .all(|block| pool.contains(version.key(block)))
        {
            return Err(PeerReadError::Absent);
        }
        if pool.is_loading(version.key(first)) && bucket.peer_waits.cover(version.id(), &range) {
            return Err(PeerReadError::Busy);
        }
        let counts = bucket.engine.demand.as_ref().filter(|_| !peek);
        let rate = counts.and_then(|demand| {
            let counted = blocks.map(|block| demand.count(version.key(block)));
            counted.min()
        });
        let rate = rate.unwrap_or(0);
        let served = Served {
            pins: pool.pin_scope(),
            bucket: Arc::clone(bucket),
            version,
            at: range.start,
            end: range.end,
            peek,
            following: None,
            cancel: CancellationToken::new().drop_guard(),
        };
        let body = stream::try_unfold(served, |mut served| async move {
            let bytes = served.next().await?;
            Ok(bytes.map(|bytes| (bytes, served)))
        });
        let bytes = body.boxed();
        Ok(PeerBody { rate, bytes })
    }
}

/// Returns the version that another node names: a known one, or one that is known by its name only from now on. `None` if this node
/// knows that it was replaced.
fn version_of(bucket: &BucketShared, wanted: &PeerRead, peek: bool) -> Option<Arc<Version>> {
    let path = &wanted.path;
    let current = bucket
        .cluster
        .as_ref()?
        .versions
        .current(&bucket.name, path.as_ref());
    let is_wanted = |meta: &ObjectMeta| {
        meta.e_tag.as_deref() == Some(&wanted.e_tag) && meta.size == wanted.size
    };
    if current.is_some_and(|now| !now.is_some_and(|now| is_wanted(&now.meta))) {
        return None;
    }
    let known = bucket.versions.get(path, None).map(|(version, _)| version);
    let known = known.filter(|known| known.strong_etag().is_some() && is_wanted(&known.meta));
    if known.is_some() || peek || wanted.e_tag.is_empty() || wanted.e_tag.starts_with("W/") {
        return known;
    }
    let meta = ObjectMeta {
        location: path.clone(),
        last_modified: DateTime::UNIX_EPOCH,
        size: wanted.size,
        e_tag: Some(wanted.e_tag.clone()),
        version: None,
    };
    bucket.versions.record_partial(meta, wanted.age)
}

/// A response to another node. Dropping it cancels its loads.
struct Served {
    bucket: Arc<BucketShared>,
    version: Arc<Version>,
    pins: PinScope,
    at: u64,
    end: u64,
    peek: bool,
    /// A load that contains the byte `at`, and whether it is this response's own.
    following: Option<(BlockReader, bool)>,
    cancel: DropGuard,
}

impl Served {
    /// Returns the next bytes, at most to the end of one block.
    async fn next(&mut self) -> Result<Option<Bytes>> {
        let size = self.bucket.block_size;
        for _ in 0..ATTEMPTS {
            if self.at >= self.end {
                return Ok(None);
            }
            let block = (self.at / size) as u32;
            let offset = (self.at % size) as usize;
            let wanted = (self.end - self.at).min(size - offset as u64) as usize;
            if let Some((reader, own)) = &mut self.following {
                let followed =
                    follow(&self.bucket, &self.version, reader, *own, wanted, self.at).await;
                match followed {
                    Ok(Some(bytes)) => return Ok(Some(self.sent(bytes))),
                    Ok(None) | Err(FollowError::Abandoned) => self.following = None,
                    Err(FollowError::Failed(error)) => return Err(error),
                }
                continue;
            }
            match plan::find(
                &self.bucket,
                &self.version,
                &self.pins,
                block,
                offset,
                false,
            ) {
                Found::Resident(pin) => {
                    let found = ownership::asked_for(&self.bucket, &self.version, pin, self.peek);
                    let Some(pin) = found else {
                        continue;
                    };
                    let bytes = part(pin, offset..offset + wanted);
                    return Ok(Some(self.sent(bytes)));
                }
                // Evicted since it was found.
                _ if self.peek => return Err(busy(&self.version)),
                Found::Loading(reader) => self.following = Some((reader, false)),
                Found::Absent(load, reader) => {
                    self.load(load)?;
                    self.following = Some((reader, true));
                }
            }
        }
        Err(busy(&self.version))
    }

    /// Loads a block and its absent neighbours in the range, as far as there is free memory.
    fn load(&self, mut load: Load) -> Result<()> {
        let bucket = &self.bucket;
        let block = load.key().block;
        let length = self.version.block_len(block, bucket.block_size);
        let pool = &bucket.engine.pool;
        let frame = |length| pool.try_frames(Share::Download, length, 1, 1)?.pop();
        // Without memory the load is given up, and a read that has joined it claims the block.
        load.attach(frame(length).ok_or_else(|| busy(&self.version))?, length);
        let end = self.end.div_ceil(bucket.block_size) as u32;
        let end = end.min(block.saturating_add(bucket.max_fetch_blocks()));
        let mut loads = vec![load];
        loads.extend(plan::claim_run(
            bucket,
            &self.version,
            block + 1..end,
            frame,
        ));
        let (bucket, version) = (Arc::clone(bucket), Arc::clone(&self.version));
        let cancel = self.cancel.token().clone();
        RangeFetch::new(bucket, version, loads, cancel)
            .only_from_origin()
            .spawn();
        Ok(())
    }

    fn sent(&mut self, bytes: Bytes) -> Bytes {
        self.at += bytes.len() as u64;
        self.bucket.counters.peer_served(bytes.len() as u64);
        bytes
    }
}

/// Reason why a load could not be followed.
enum FollowError {
    /// It was given up: the block is to be looked up again.
    Abandoned,
    Failed(Error),
}

/// Returns the next bytes of a load, at most `wanted`. A load of another read is followed only while it does not wait for another
/// node.
async fn follow(
    bucket: &BucketShared,
    version: &Version,
    reader: &mut BlockReader,
    own: bool,
    wanted: usize,
    at: u64,
) -> Result<Option<Bytes>, FollowError> {
    let next = async {
        match reader.next(wanted).await {
            Ok(bytes) => Ok(bytes.map(Bytes::from_owner)),
            Err(FlightError::Abandoned) => Err(FollowError::Abandoned),
            Err(FlightError::Failed(error)) => Err(FollowError::Failed(from_load_error(&error))),
        }
    };
    if own {
        return next.await;
    }
    let range = at..at + wanted as u64;
    tokio::select! {
        biased;
        bytes = tokio::time::timeout(bucket.engine.retry.stall, next) => {
            bytes.unwrap_or_else(|_| Err(FollowError::Failed(stalled(bucket.engine.retry))))
        }
        () = bucket.peer_waits.until_cover(version.id(), &range) => {
            Err(FollowError::Failed(busy(version)))
        }
    }
}

fn part(pin: OwnedPin, range: Range<usize>) -> Bytes {
    let mut bytes = Bytes::from_owner(pin);
    bytes.truncate(range.end);
    bytes.advance(range.start);
    bytes
}

fn busy(version: &Version) -> Error {
    Error::Generic {
        store: "Bywash",
        source: format!("serve {}: {}", version.meta.location, PeerReadError::Busy).into(),
    }
}
