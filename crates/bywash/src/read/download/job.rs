//! Workers of one download: each takes part after part, claims the missing bytes and fetches them.

use std::ops::Range;
use std::sync::Arc;

use bywash_mem::{FreezeError, Segments, WriteAtBuffer, WriteAtError, WriteClaim};
use futures::StreamExt;
use object_store::path::Path;
use object_store::{Error, Result};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::bucket::Shared;
use crate::error::EngineError;
use crate::read::is_version_change;
use crate::read::ranged::{self, Body};
use crate::read::shared_error::{from_load_error, load_error};
use crate::retry::{Retries, is_transient, stalled, unavailable};
use crate::versions::{SharedFile, Version};

/// State shared by the workers of one download.
#[derive(Debug)]
pub(super) struct DownloadJob {
    bucket: Arc<Shared>,
    version: Arc<Version>,
    /// Holds the version's open file.
    _file: Arc<SharedFile>,
    buffer: WriteAtBuffer,
    /// Range of the object; offset 0 of the buffer is its start.
    range: Range<u64>,
    part_size: u64,
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
        bucket: &Arc<Shared>,
        version: Arc<Version>,
        buffer: &WriteAtBuffer,
        range: &Range<u64>,
        part_size: u64,
    ) -> Arc<Self> {
        Arc::new(Self {
            bucket: Arc::clone(bucket),
            _file: version.file(),
            version,
            buffer: buffer.clone(),
            range: range.clone(),
            part_size,
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

    /// Records a complete part. After the last one the buffer is closed, which ends its followers even if no caller
    /// takes the segments.
    fn done(&self, part: &Range<u64>) -> Result<()> {
        let missing = {
            let mut parts = self.parts.lock();
            parts.missing -= part.end - part.start;
            parts.missing
        };
        if missing == 0 {
            let length = self.range.end - self.range.start;
            close(&self.buffer, &self.version.meta.location, length)?;
            self.bucket.counters.bytes(length);
        }
        Ok(())
    }

    /// Loads part after part; `body` is that of the first, already begun.
    pub(super) async fn work(self: Arc<Self>, part: Option<Range<u64>>, mut body: Option<Body>) {
        let all = async {
            let mut next = part;
            while let Some(part) = next {
                self.load(part.clone(), body.take()).await?;
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
        if is_version_change(&error) {
            self.bucket.versions.forget(&self.version);
        }
        tracing::debug!(object = %self.version.meta.location, %error, "download failed");
        self.buffer.fail(load_error(Arc::new(error)));
        self.failed.cancel();
    }

    /// Loads the missing bytes of a part, and retries from the byte reached.
    async fn load(&self, part: Range<u64>, mut body: Option<Body>) -> Result<()> {
        let base = self.range.start;
        let mut retries = Retries::new(self.bucket.engine.retry);
        loop {
            let claimed = self.buffer.claim(part.start - base..part.end - base);
            let Some(claim) =
                claimed.map_err(|error| from_buffer(&self.version.meta.location, error))?
            else {
                return Ok(());
            };
            let error = match self.fetch(claim, body.take(), &mut retries).await {
                Ok(Received::All) => continue,
                Ok(Received::More) => {
                    let detail = "the response is longer than the range requested".to_owned();
                    return Err(ranged::bad_response(&self.version, detail));
                }
                Err(error) => ranged::classify(&self.version, error),
            };
            // Without a validator, further bytes may be of another version.
            if !is_transient(&error) || !self.version.cacheable() {
                return Err(error);
            }
            tracing::debug!(object = %self.version.meta.location, %error, "download failed, continuing at the byte reached");
            if !retries.back_off().await {
                return Err(unavailable("download", &self.version.meta.location, error));
            }
        }
    }

    /// Sends one ranged GET for one claim. Bytes that arrived before a failure stay.
    async fn fetch(
        &self,
        claim: WriteClaim,
        body: Option<Body>,
        retries: &mut Retries,
    ) -> Result<Received> {
        let base = self.range.start;
        let claimed = claim.range();
        let mut permit = None;
        let body = match body {
            // A response that has begun takes no permit: its request is in flight.
            Some(body) => body,
            None => {
                permit = self.bucket.fetch_permits.acquire().await.ok();
                let wanted = base + claimed.start..base + claimed.end;
                ranged::get(&self.bucket, &self.version, wanted).await?
            }
        };
        let received = self.receive(claim, body, retries).await;
        drop(permit);
        received
    }

    async fn receive(
        &self,
        mut claim: WriteClaim,
        mut body: Body,
        retries: &mut Retries,
    ) -> Result<Received> {
        let policy = self.bucket.engine.retry;
        loop {
            let next = tokio::time::timeout(policy.stall, body.next()).await;
            let piece = match next {
                // All bytes are here: the end of the connection no longer matters.
                Ok(None | Some(Err(_))) | Err(_) if claim.remaining() == 0 => {
                    return Ok(Received::All);
                }
                Ok(None) => {
                    let detail = format!("the body ended {} bytes early", claim.remaining());
                    return Err(ranged::bad_response(&self.version, detail));
                }
                Err(_) => return Err(stalled(policy)),
                Ok(Some(piece)) => piece?,
            };
            self.bucket.counters.origin_bytes(piece.len() as u64);
            if piece.len() as u64 > claim.remaining() {
                return Ok(Received::More);
            }
            claim.write(&piece);
            retries.progress();
        }
    }
}

/// Ways in which a response ends without an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Received {
    /// At the last byte requested.
    All,
    /// It is longer than requested.
    More,
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
