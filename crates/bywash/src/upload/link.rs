//! Requests to a session: counted, limited in time, and what their failures mean.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use object_store::path::Path;
use object_store::{Error, Result};

use super::checksum::md5 as md5_of;
use super::{Chunk, ChunkRule, Digest, Ending, Finished, Kept, SessionStatus, UploadSession};
use crate::bucket::Bucket;
use crate::error::EngineError;
use crate::retry::{Retries, is_transient, stalled, unavailable, with_retries};
use crate::write::SLOWEST_PUT_BYTES_PER_S;

/// A session, and whom its requests are counted for.
#[derive(Debug, Clone)]
pub(super) struct Link {
    bucket: Bucket,
    pub(super) path: Path,
    session: Arc<dyn UploadSession>,
    /// The session knows what is kept without a request.
    remembers: bool,
    pub(super) rule: ChunkRule,
}

impl Link {
    pub(super) fn new(bucket: &Bucket, path: &Path, session: Arc<dyn UploadSession>) -> Self {
        Self {
            bucket: bucket.clone(),
            path: path.clone(),
            rule: session.rule(),
            session,
            remembers: false,
        }
    }

    /// A session over parts, which knows what is kept without a request.
    pub(super) fn remembering(self) -> Self {
        Self {
            remembers: true,
            ..self
        }
    }

    pub(super) fn session(&self) -> &Arc<dyn UploadSession> {
        &self.session
    }

    /// One attempt, given up when it takes longer than `bytes` on the slowest line we bear with.
    async fn attempt<T>(&self, bytes: u64, request: impl Future<Output = Result<T>>) -> Result<T> {
        let shared = self.bucket.shared();
        shared.counters.origin_request();
        let policy = shared.engine.retry;
        let limit = policy.stall + Duration::from_secs(bytes / SLOWEST_PUT_BYTES_PER_S);
        let answer = tokio::time::timeout(limit, request).await;
        answer.unwrap_or_else(|_| Err(stalled(policy)))
    }

    pub(super) async fn send(&self, chunk: &Chunk) -> Result<u64> {
        self.attempt(chunk.length(), self.session.send(chunk)).await
    }

    pub(super) async fn status(&self) -> Result<SessionStatus> {
        if self.remembers {
            return self.session.status().await;
        }
        self.attempt(0, self.session.status()).await
    }

    /// May keep the store at work for long: it may join what it has.
    pub(super) async fn finish(&self, ending: &Ending) -> Result<Finished> {
        let shared = self.bucket.shared();
        shared.counters.origin_request();
        let policy = shared.engine.retry.with_server_work();
        let bytes = ending.tail.as_ref().map_or(0, Chunk::length);
        let limit = policy.stall + Duration::from_secs(bytes / SLOWEST_PUT_BYTES_PER_S);
        let answer = tokio::time::timeout(limit, self.session.finish(ending)).await;
        answer.unwrap_or_else(|_| Err(stalled(policy)))
    }

    /// Drops the session at the store.
    pub(super) async fn abort(&self) -> Result<()> {
        let policy = self.bucket.shared().engine.retry;
        with_retries(policy, "abort upload of", &self.path, || {
            self.bucket.shared().counters.origin_request();
            self.session.abort()
        })
        .await
    }

    pub(super) fn retries(&self) -> Retries {
        Retries::new(self.bucket.shared().engine.retry)
    }

    pub(super) fn damaged(&self, detail: String) -> Error {
        EngineError::UploadDamaged {
            object: self.path.to_string(),
            detail,
        }
        .into()
    }

    pub(super) fn lost(&self) -> Error {
        EngineError::UploadLost {
            object: self.path.to_string(),
        }
        .into()
    }

    pub(super) fn gave_up(&self, source: Error) -> Error {
        unavailable("upload of", &self.path, source)
    }

    pub(super) async fn stored(&self) -> Result<Option<Finished>> {
        let shared = self.bucket.shared();
        with_retries(shared.engine.retry, "look for", &self.path, || {
            shared.counters.origin_request();
            shared.origin.stored(&self.path)
        })
        .await
    }

    /// The session is gone. Its object may be there all the same: only the store's own checksum proves it.
    pub(super) async fn look(&self, length: u64, crc32c: u32) -> Result<Finished> {
        match self.stored().await? {
            Some(found) if found.length == Some(length) => match found.crc32c {
                Some(crc) if crc == crc32c => Ok(found),
                Some(_) => Err(self.lost()),
                None => Err(EngineError::UploadUnproven {
                    object: self.path.to_string(),
                    length,
                    crc32c,
                }
                .into()),
            },
            _ => Err(self.lost()),
        }
    }

    /// Sends a chunk of a store that takes them side by side, until it is kept whole. What was sent goes to `tally`.
    pub(super) async fn deliver_whole(&self, chunk: &Chunk, tally: &mut Tally) -> Result<()> {
        let mut retries = self.retries();
        let mut unsure = tally.reached > chunk.offset;
        loop {
            let failure = match self.attempt_whole(chunk, tally, &mut unsure).await {
                Ok(true) => return Ok(()),
                Ok(false) => kept_nothing(chunk),
                Err(error) if !is_transient(&error) => return Err(error),
                Err(error) => error,
            };
            unsure = true;
            if !retries.again().await {
                return Err(self.gave_up(failure));
            }
        }
    }

    /// Whether the store keeps all of the chunk now.
    async fn attempt_whole(
        &self,
        chunk: &Chunk,
        tally: &mut Tally,
        unsure: &mut bool,
    ) -> Result<bool> {
        let range = chunk.range();
        if *unsure {
            let kept = match self.status().await? {
                SessionStatus::Open(kept) => kept,
                SessionStatus::Finished(_) => return Err(self.ended_early()),
                SessionStatus::Gone => return Err(self.lost()),
            };
            if kept.iter().any(|kept| vouches(kept, chunk)) {
                return Ok(true);
            }
            *unsure = false;
        }
        tally.sending(&range);
        let end = self.send(chunk).await?;
        if end > range.end {
            return Err(self.kept_too_much(end, range.end));
        }
        Ok(end == range.end)
    }

    pub(super) fn ended_early(&self) -> Error {
        self.damaged("the session has ended before all was sent".to_owned())
    }

    pub(super) fn kept_too_much(&self, kept: u64, sent: u64) -> Error {
        self.damaged(format!(
            "the store claims to keep {kept} bytes, {sent} were sent"
        ))
    }
}

/// Bytes given to requests.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tally {
    /// Offset below which all was sent at least once.
    pub(super) reached: u64,
    /// Bytes sent, each time counted.
    pub(super) sent: u64,
    /// Those of them that had been sent before.
    pub(super) resent: u64,
}

impl Tally {
    pub(super) fn add(&mut self, more: &Self) {
        self.sent += more.sent;
        self.resent += more.resent;
    }

    pub(super) fn sending(&mut self, range: &std::ops::Range<u64>) {
        self.sent += range.end - range.start;
        self.resent += self.reached.min(range.end).saturating_sub(range.start);
        self.reached = self.reached.max(range.end);
    }
}

/// Whether what the store keeps is this chunk, by its own word for the bytes: only then it is not sent again.
pub(super) fn vouches(kept: &Kept, chunk: &Chunk) -> bool {
    kept.range == chunk.range()
        && match kept.digest {
            Some(Digest::Crc32c(crc)) => crc == chunk.crc32c,
            Some(Digest::Md5(md5)) => md5 == md5_of(&chunk.pieces),
            None => false,
        }
}

pub(super) fn kept_nothing(chunk: &Chunk) -> Error {
    let text = format!("the store took none of {} bytes", chunk.length());
    Error::Generic {
        store: "Bywash",
        source: text.into(),
    }
}
