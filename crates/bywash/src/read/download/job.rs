//! Workers of one download: each takes part after part, claims the missing bytes and fetches them.

use std::ops::Range;
use std::sync::Arc;

use bywash_mem::{
    BlockOptions, Claim, FreezeError, Keep, OwnedPin, Segments, WriteAtBuffer, WriteAtError,
    WriteClaim,
};
use bywash_store::{ContentDigest, OriginError};
use object_store::path::Path;
use object_store::{Error, GetResult, Result};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::block_kind::BlockKind;
use crate::disk::DiskVersion;
use crate::read::digest_check::{DigestCheck, requested_digest};
use crate::read::fetch::{Sink, fetch};
use crate::read::ownership::is_foreign;
use crate::read::plan;
use crate::read::ranged;
use crate::read::shared_error::{from_load_error, load_error};
use crate::shared::BucketShared;
use crate::versions::{SharedFile, Version};

/// State shared by the workers of one download.
#[derive(Debug)]
pub(super) struct DownloadJob {
    bucket: Arc<BucketShared>,
    version: Arc<Version>,
    /// Holds the version's open file.
    _file: Arc<SharedFile>,
    buffer: WriteAtBuffer,
    /// Range of the object; offset 0 of the buffer is its start.
    range: Range<u64>,
    part_size: u64,
    /// The bytes are compared with a digest before the buffer is closed.
    verified: bool,
    /// Whole blocks of the range stay in memory.
    cached: bool,
    /// The version on the disk tier.
    stored: Option<Arc<DiskVersion>>,
    parts: Mutex<PartsLeft>,
    /// Stops the other workers when one has failed.
    failed: CancellationToken,
}

#[derive(Debug)]
struct PartsLeft {
    /// Bytes that no worker has taken yet.
    unclaimed: Range<u64>,
    /// Bytes not received yet, taken by a worker or not.
    missing: u64,
}

impl DownloadJob {
    pub(super) fn new(
        bucket: &Arc<BucketShared>,
        version: Arc<Version>,
        buffer: &WriteAtBuffer,
        range: &Range<u64>,
        (part_size, verified, cached): (u64, bool, bool),
    ) -> Arc<Self> {
        let stored = bucket.disk_version(&version);
        Arc::new(Self {
            bucket: Arc::clone(bucket),
            _file: version.file(),
            stored: stored.map(|(_, stored)| stored),
            cached,
            version,
            buffer: buffer.clone(),
            range: range.clone(),
            part_size,
            verified,
            parts: Mutex::new(PartsLeft {
                unclaimed: range.clone(),
                missing: range.end - range.start,
            }),
            failed: CancellationToken::new(),
        })
    }

    /// The token that is cancelled at a failure.
    pub(super) fn failed(&self) -> &CancellationToken {
        &self.failed
    }

    /// Waits for the workers. After it the buffer has ended in any case, also if the future is dropped before its first poll.
    pub(super) fn run(self: Arc<Self>, mut workers: JoinSet<()>) -> impl Future<Output = ()> {
        let unfinished = CancelOnDrop(Some(Arc::clone(&self)));
        async move {
            while let Some(ended) = workers.join_next().await {
                if let Err(source) = ended {
                    self.fail(Error::JoinError { source });
                }
            }
            let closed = close(&self.buffer, &self.version.meta.location, self.length());
            if let Err(error) = closed {
                self.fail(error);
            }
            unfinished.ended();
        }
    }

    pub(super) fn next_part(&self) -> Option<Range<u64>> {
        let unclaimed = &mut self.parts.lock().unclaimed;
        let end = unclaimed
            .end
            .min(unclaimed.start.saturating_add(self.part_size));
        let part = unclaimed.start..end;
        unclaimed.start = end;
        (!part.is_empty()).then_some(part)
    }

    /// Records a complete part. After the last one the buffer is closed, unless its digest is to be compared first.
    fn done(&self, part: &Range<u64>) -> Result<()> {
        let missing = {
            let mut parts = self.parts.lock();
            parts.missing -= part.end - part.start;
            parts.missing
        };
        if missing > 0 || self.verified {
            return Ok(());
        }
        self.close()
    }

    /// Closes the complete buffer, which ends its followers even if no caller takes the segments.
    fn close(&self) -> Result<()> {
        if self.cached && self.version.cacheable() {
            self.publish();
        }
        let length = self.length();
        close(&self.buffer, &self.version.meta.location, length)?;
        self.bucket.counters.bytes(length);
        Ok(())
    }

    /// Makes whole blocks of the complete buffer resident, in the frames where they are, and has the disk tier keep them.
    fn publish(&self) {
        let (size, version) = (self.bucket.block_size, &self.version);
        // The frames begin where the range does.
        if !self.range.start.is_multiple_of(size) {
            return;
        }
        let to_end = self.range.end == version.meta.size;
        let end = if to_end {
            version.blocks(size)
        } else {
            (self.range.end / size) as u32
        };
        let blocks = (self.range.start / size) as u32..end;
        let kind = BlockKind::of_read(version, size, &blocks, to_end);
        let engine = &self.bucket.engine;
        let disk = engine.disk.as_ref().zip(self.stored.as_ref());
        for block in blocks {
            let key = version.key(block);
            let length = version.block_len(block, size);
            let is_foreign = is_foreign(&self.bucket, version, block);
            // The download holds its blocks, so none could make room for the next.
            if is_foreign && !engine.foreign.has_room(&engine.pool, length) {
                continue;
            }
            let Claim::Vacant(mut load) = engine.pool.claim(key) else {
                continue;
            };
            let offset = u64::from(block) * size - self.range.start;
            let Ok(Some(bytes)) = self.buffer.slice(offset, length) else {
                return;
            };
            let disk = disk.filter(|_| !is_foreign);
            load.set_options(match disk {
                _ if is_foreign => engine.foreign.options(0),
                Some(_) => BlockOptions {
                    keep: Keep::Spill,
                    ..kind.options()
                },
                None => kind.options(),
            });
            version.cost.block();
            drop(load.publish_slice(bytes));
            if is_foreign {
                engine.foreign.add(&engine.pool, key);
            }
            if let Some((disk, stored)) = disk {
                disk.keep(stored, key, length);
            }
        }
    }

    fn length(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Digests the bytes in order as they arrive, in any order of the parts. Closes the buffer if all bytes have
    /// the digest `given`, or else the one that the store states, if it states one; else fails it.
    pub(super) async fn verify(self: Arc<Self>, given: Option<ContentDigest>) {
        let expected = match given {
            None => requested_digest(&self.bucket, &self.version).await,
            given => given,
        };
        let mut check = expected.map(DigestCheck::new);
        let mut reader = self.buffer.reader(0);
        while reader.offset() < self.length() {
            match (reader.next(usize::MAX).await, &mut check) {
                (Ok(Some(bytes)), Some(check)) => check.update(bytes.as_ref()).await,
                (Ok(Some(_)), None) => {}
                // The download failed, or was dropped.
                _ => return,
            }
            tokio::task::yield_now().await;
        }
        let compared = check.map_or(Ok(()), |check| {
            check.compare_version(&self.bucket, &self.version)
        });
        if let Err(error) = compared.and_then(|()| self.close()) {
            self.fail(error);
        }
    }

    /// Loads part after part; `first` is the response to the first part, if it has begun.
    pub(super) async fn work(
        self: Arc<Self>,
        part: Option<Range<u64>>,
        mut first: Option<GetResult>,
    ) {
        let all = async {
            let mut next = part;
            while let Some(part) = next {
                self.load(part.clone(), first.take()).await?;
                self.done(&part)?;
                next = self.next_part();
            }
            Ok::<_, Error>(())
        };
        let ended = tokio::select! {
            // Biased, so that a seeded simulation repeats.
            biased;
            () = self.failed.cancelled() => return,
            ended = all => ended,
        };
        if let Err(error) = ended {
            self.fail(error);
        }
    }

    fn fail(&self, error: Error) {
        tracing::debug!(object = %self.version.meta.location, %error, "download failed");
        // Before the callers wake: one that tries again must not join this download.
        self.failed.cancel();
        self.buffer.fail(load_error(Arc::new(error)));
    }

    /// Loads the missing bytes of a part.
    async fn load(&self, part: Range<u64>, mut first: Option<GetResult>) -> Result<()> {
        let base = self.range.start;
        let path = &self.version.meta.location;
        loop {
            let claimed = self.buffer.claim(part.start - base..part.end - base);
            let Some(claim) = claimed.map_err(|error| from_buffer(path, error))? else {
                return Ok(());
            };
            let mut sink = PartSink {
                version: &self.version,
                base,
                claim,
            };
            let first = first.take();
            if first.is_none() && self.copy_cached(&mut sink).await? {
                continue;
            }
            fetch(&self.bucket, &self.version, "download", &mut sink, first).await?;
        }
    }

    /// Copies blocks that are in memory or on the disk tier, up to the first one that is neither. Returns whether nothing
    /// is missing then.
    async fn copy_cached(&self, sink: &mut PartSink<'_>) -> Result<bool> {
        let (pool, size) = (&self.bucket.engine.pool, self.bucket.block_size);
        loop {
            let Range { start, end } = sink.missing();
            if start >= end {
                return Ok(true);
            }
            let block = (start / size) as u32;
            let mut copy = |bytes: &[u8]| {
                let bytes = &bytes[(start % size) as usize..];
                sink.write(&bytes[..bytes.len().min((end - start) as usize)])
            };
            let resident = pool.peek(self.version.key(block)).map(|pin| copy(&pin));
            match resident {
                Some(copied) => {
                    copied?;
                    self.bucket.counters.body(1, 0);
                }
                None => match self.load_from_disk(block).await {
                    Some(pin) => copy(&pin).map(|_| ())?,
                    None => return Ok(false),
                },
            }
            tokio::task::yield_now().await;
        }
    }

    async fn load_from_disk(&self, block: u32) -> Option<OwnedPin> {
        plan::load_from_disk(&self.bucket, &self.version, self.stored.as_ref(), block).await
    }
}

/// Destination of a fetch of claimed bytes of the buffer.
struct PartSink<'a> {
    version: &'a Version,
    /// Offset of the buffer's start in the object.
    base: u64,
    claim: WriteClaim,
}

impl Sink for PartSink<'_> {
    const ENDS_RESPONSE: bool = true;

    fn missing(&self) -> Range<u64> {
        let end = self.base + self.claim.range().end;
        end - self.claim.remaining()..end
    }

    fn write(&mut self, bytes: &[u8]) -> Result<bool> {
        match self.claim.write(bytes) {
            written if written < bytes.len() => Err(ranged::too_long(self.version)),
            _ => Ok(self.claim.remaining() == 0),
        }
    }
}

/// Freezes the buffer and returns its bytes, if all are there.
pub(super) fn close(buffer: &WriteAtBuffer, path: &Path, length: u64) -> Result<Segments> {
    buffer.freeze(length).map_err(|error| match error {
        FreezeError::Ended(error) => from_buffer(path, error),
        incomplete => OriginError::bad_response(path, incomplete.to_string()),
    })
}

/// Ends the download of a task that is dropped before its end, as by the shutdown of its runtime: callers on others wait for it.
struct CancelOnDrop(Option<Arc<DownloadJob>>);

impl CancelOnDrop {
    fn ended(mut self) {
        self.0 = None;
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if let Some(job) = &self.0 {
            job.failed.cancel();
            job.buffer.cancel();
        }
    }
}

/// Converts the error of a buffer that ended or refused a claim.
fn from_buffer(path: &Path, error: WriteAtError) -> Error {
    match error {
        WriteAtError::Failed(error) => from_load_error(&error),
        other => OriginError::bad_response(path, other.to_string()),
    }
}
