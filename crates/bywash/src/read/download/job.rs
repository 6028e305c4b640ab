//! Workers of one download: each takes part after part, claims the missing bytes and fetches them.

use std::ops::Range;
use std::sync::Arc;

use bywash_mem::{FreezeError, Segments, WriteAtBuffer, WriteAtError, WriteClaim};
use object_store::path::Path;
use object_store::{Error, GetResult, Result};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::content_digest::ContentDigest;
use crate::error::EngineError;
use crate::read::digest_check::{DigestCheck, requested_digest};
use crate::read::fetch::{Sink, fetch};
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
        part_size: u64,
        verified: bool,
    ) -> Arc<Self> {
        Arc::new(Self {
            bucket: Arc::clone(bucket),
            _file: version.file(),
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
        let length = self.length();
        close(&self.buffer, &self.version.meta.location, length)?;
        self.bucket.counters.bytes(length);
        Ok(())
    }

    fn length(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Digests the bytes in order as they arrive, in whatever order the parts end. Closes the buffer if all of them have
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

    /// Loads part after part; `first` is the response to the first of them, if it has begun.
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
        self.buffer.fail(load_error(Arc::new(error)));
        self.failed.cancel();
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
            if first.is_none() && self.copy_resident(&mut sink).await? {
                continue;
            }
            fetch(&self.bucket, &self.version, "download", &mut sink, first).await?;
        }
    }

    /// Copies blocks that are in memory, up to the first one that is not. Returns whether nothing is missing then.
    async fn copy_resident(&self, sink: &mut PartSink<'_>) -> Result<bool> {
        let (pool, size) = (&self.bucket.engine.pool, self.bucket.block_size);
        loop {
            let Range { start, end } = sink.missing();
            if start >= end {
                return Ok(true);
            }
            {
                let Some(pin) = pool.peek(self.version.key((start / size) as u32)) else {
                    return Ok(false);
                };
                let block = &pin[(start % size) as usize..];
                let length = block.len().min((end - start) as usize);
                sink.write(&block[..length])?;
            }
            self.bucket.counters.body(1, 0);
            tokio::task::yield_now().await;
        }
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
        incomplete => EngineError::BadResponse {
            object: path.to_string(),
            detail: incomplete.to_string(),
        }
        .into(),
    })
}

/// Converts the error of a buffer that ended or refused a claim.
fn from_buffer(path: &Path, error: WriteAtError) -> Error {
    match error {
        WriteAtError::Failed(error) => from_load_error(&error),
        other => EngineError::BadResponse {
            object: path.to_string(),
            detail: other.to_string(),
        }
        .into(),
    }
}
