//! The workers of one download: each takes part after part, claims what is missing of it, and fetches that.

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

/// What the workers of one download share.
#[derive(Debug)]
pub(super) struct Job {
    bucket: Arc<Shared>,
    version: Arc<Version>,
    /// Keeps the version's open file.
    _file: Arc<SharedFile>,
    buffer: WriteAtBuffer,
    /// Of the object; the buffer's byte 0 is its start.
    range: Range<u64>,
    shard_size: u64,
    parts: Mutex<Parts>,
    /// Ends the other workers when one has failed.
    failed: CancellationToken,
}

#[derive(Debug)]
struct Parts {
    /// What no worker has taken on yet.
    left: Range<u64>,
    /// Bytes not here yet of what was taken on and what was not.
    missing: u64,
}

impl Job {
    pub(super) fn new(
        bucket: &Arc<Shared>,
        version: Arc<Version>,
        buffer: &WriteAtBuffer,
        range: &Range<u64>,
        shard_size: u64,
    ) -> Arc<Self> {
        Arc::new(Self {
            bucket: Arc::clone(bucket),
            _file: version.file(),
            version,
            buffer: buffer.clone(),
            range: range.clone(),
            shard_size,
            parts: Mutex::new(Parts {
                left: range.clone(),
                missing: range.end - range.start,
            }),
            failed: CancellationToken::new(),
        })
    }

    pub(super) fn next_part(&self) -> Option<Range<u64>> {
        let left = &mut self.parts.lock().left;
        let end = left.end.min(left.start.saturating_add(self.shard_size));
        let part = left.start..end;
        left.start = end;
        (!part.is_empty()).then_some(part)
    }

    /// A part is here. With the last one the buffer is closed: its followers end, if nobody asks for the segments.
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

    /// Loads part after part; `body` is the first one's, already begun.
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
            // In this order, so that a seeded run repeats.
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

    /// Loads what is missing of a part, again and again from the byte reached.
    async fn load(&self, part: Range<u64>, mut body: Option<Body>) -> Result<()> {
        let base = self.range.start;
        let mut retries = Retries::new(self.bucket.engine.retry);
        loop {
            let claimed = self.buffer.claim(part.start - base..part.end - base);
            let Some(shard) =
                claimed.map_err(|error| from_buffer(&self.version.meta.location, error))?
            else {
                return Ok(());
            };
            let error = match self.fetch(shard, body.take(), &mut retries).await {
                Ok(Received::All) => continue,
                Ok(Received::More) => {
                    let detail = "it sends more than it was asked for".to_owned();
                    return Err(ranged::bad_answer(&self.version, detail));
                }
                Err(error) => ranged::classify(&self.version, error),
            };
            // Without a validator, what comes next may be of another version.
            if !is_transient(&error) || !self.version.cacheable() {
                return Err(error);
            }
            tracing::debug!(object = %self.version.meta.location, %error, "download failed, continuing at the byte reached");
            if !retries.again().await {
                return Err(unavailable("download", &self.version.meta.location, error));
            }
        }
    }

    /// One ranged GET for one claim. What has arrived when it fails stays.
    async fn fetch(
        &self,
        shard: WriteClaim,
        body: Option<Body>,
        retries: &mut Retries,
    ) -> Result<Received> {
        let base = self.range.start;
        let claimed = shard.range();
        let mut turn = None;
        let body = match body {
            // An answer already begun takes no turn: its request is in flight.
            Some(body) => body,
            None => {
                turn = self.bucket.shard_turns.acquire().await.ok();
                let wanted = base + claimed.start..base + claimed.end;
                ranged::ask(&self.bucket, &self.version, wanted).await?
            }
        };
        let received = self.receive(shard, body, retries).await;
        drop(turn);
        received
    }

    async fn receive(
        &self,
        mut shard: WriteClaim,
        mut body: Body,
        retries: &mut Retries,
    ) -> Result<Received> {
        let policy = self.bucket.engine.retry;
        loop {
            let next = tokio::time::timeout(policy.stall, body.next()).await;
            let piece = match next {
                // All is here: whatever becomes of the connection now is no loss.
                Ok(None | Some(Err(_))) | Err(_) if shard.remaining() == 0 => {
                    return Ok(Received::All);
                }
                Ok(None) => {
                    let detail = format!("the body ended {} bytes early", shard.remaining());
                    return Err(ranged::bad_answer(&self.version, detail));
                }
                Err(_) => return Err(stalled(policy)),
                Ok(Some(piece)) => piece?,
            };
            self.bucket.counters.origin_bytes(piece.len() as u64);
            if piece.len() as u64 > shard.remaining() {
                return Ok(Received::More);
            }
            shard.write(&piece);
            retries.progress();
        }
    }
}

/// How an answer ended that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Received {
    /// With the last byte asked for.
    All,
    /// It went on, so its length is not what it said.
    More,
}

/// All of the buffer's bytes, if they are there.
pub(super) fn close(buffer: &WriteAtBuffer, path: &Path, length: u64) -> Result<Segments> {
    buffer.freeze(length).map_err(|error| match error {
        FreezeError::Ended(error) => from_buffer(path, error),
        incomplete => EngineError::BadAnswer {
            object: path.to_string(),
            detail: incomplete.to_string(),
        }
        .into(),
    })
}

/// The error of a download whose buffer ended, or refused.
fn from_buffer(path: &Path, error: WriteAtError) -> Error {
    match error {
        WriteAtError::Failed(error) => from_load_error(&error),
        other => EngineError::BadAnswer {
            object: path.to_string(),
            detail: other.to_string(),
        }
        .into(),
    }
}
