//! Requests to a session: counted, with time limits, their failures classified.

use std::future::Future;
use std::sync::Arc;

use bywash_store::{
    Chunk, ChunkRule, CompleteRequest, ContentDigest, Finished, OriginError, SessionStatus,
    StoredRange, UploadSession,
};
use object_store::path::Path;
use object_store::{Error, Result};

use crate::RetryPolicy;
use crate::bucket::Bucket;
use crate::error::EngineError;
use crate::retry::{Retries, stalled, unavailable, with_retries};

/// A session, and the bucket that counts its requests.
#[derive(Debug, Clone)]
pub(super) struct SessionClient {
    bucket: Bucket,
    pub(super) path: Path,
    session: Arc<dyn UploadSession>,
    /// The session knows the stored ranges without a request.
    tracks_parts: bool,
    pub(super) rule: ChunkRule,
}

impl SessionClient {
    pub(super) fn new(bucket: &Bucket, path: &Path, session: Arc<dyn UploadSession>) -> Self {
        Self {
            bucket: bucket.clone(),
            path: path.clone(),
            rule: bucket.shared().origin.capabilities().chunk_rule,
            session,
            tracks_parts: false,
        }
    }

    /// Marks a session over parts, which knows the stored ranges without a request.
    pub(super) fn tracking_parts(self) -> Self {
        Self {
            tracks_parts: true,
            rule: self.bucket.shared().origin.capabilities().part_rule,
            ..self
        }
    }

    pub(super) fn session(&self) -> &Arc<dyn UploadSession> {
        &self.session
    }

    fn policy(&self) -> RetryPolicy {
        self.bucket.shared().engine.retry
    }

    /// Makes one attempt, limited to the stall limit and the time that `bytes` take at the minimum throughput.
    async fn attempt<T>(
        &self,
        policy: RetryPolicy,
        bytes: u64,
        request: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.bucket.shared().counters.origin_request();
        let limit = policy.limit(bytes);
        let result = tokio::time::timeout(limit, request).await;
        result.unwrap_or_else(|_| Err(stalled(policy)))
    }

    pub(super) async fn send(&self, chunk: &Chunk) -> Result<u64> {
        let request = self.session.send(chunk);
        self.attempt(self.policy(), chunk.length(), request).await
    }

    pub(super) async fn status(&self) -> Result<SessionStatus> {
        if self.tracks_parts {
            return self.session.status().await;
        }
        self.attempt(self.policy(), 0, self.session.status()).await
    }

    /// Completes the session. May take long: the store may have to join parts.
    pub(super) async fn finish(&self, request: &CompleteRequest) -> Result<Finished> {
        let policy = self.policy().with_server_work();
        let bytes = request.tail.as_ref().map_or(0, Chunk::length);
        self.attempt(policy, bytes, self.session.finish(request))
            .await
    }

    /// Aborts the session at the store.
    pub(super) async fn abort(&self) -> Result<()> {
        let shared = self.bucket.shared();
        with_retries(shared.retry(), "abort upload of", &self.path, || {
            shared.counters.origin_request();
            self.session.abort()
        })
        .await
    }

    pub(super) fn retries(&self) -> Retries {
        Retries::new(self.bucket.shared().retry())
    }

    pub(super) fn damaged(&self, detail: String) -> Error {
        OriginError::UploadDamaged {
            object: self.path.to_string(),
            detail,
        }
        .into()
    }

    pub(super) fn lost(&self) -> Error {
        OriginError::UploadLost {
            object: self.path.to_string(),
        }
        .into()
    }

    pub(super) fn retries_exhausted(&self, source: Error) -> Error {
        unavailable("upload of", &self.path, source)
    }

    pub(super) async fn stat(&self) -> Result<Option<Finished>> {
        let shared = self.bucket.shared();
        with_retries(shared.retry(), "look for", &self.path, || {
            shared.counters.origin_request();
            shared.origin.stat(&self.path)
        })
        .await
    }

    /// Checks whether a lost session became the object: only the store's own checksum proves it.
    pub(super) async fn head(&self, length: u64, crc32c: u32) -> Result<Finished> {
        match self.stat().await? {
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

    pub(super) fn ended_early(&self) -> Error {
        self.damaged("the session has ended before all was sent".to_owned())
    }

    pub(super) fn stored_too_much(&self, stored: u64, sent: u64) -> Error {
        self.damaged(format!(
            "the store claims to keep {stored} bytes, {sent} were sent"
        ))
    }
}

/// Bytes sent in requests.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct TransferStats {
    /// Offset below which all bytes were sent at least once.
    pub(super) reached: u64,
    /// Bytes sent, repetitions included.
    pub(super) sent: u64,
    /// Bytes that had been sent before.
    pub(super) resent: u64,
}

impl TransferStats {
    pub(super) fn add(&mut self, more: &Self) {
        self.sent += more.sent;
        self.resent += more.resent;
    }

    pub(super) fn count_sent(&mut self, range: &std::ops::Range<u64>) {
        self.sent += range.end - range.start;
        self.resent += self.reached.min(range.end).saturating_sub(range.start);
        self.reached = self.reached.max(range.end);
    }
}

/// Returns whether a stored range is this chunk, by the store's own digest: only then it is not sent again.
pub(super) fn matches(stored: &StoredRange, chunk: &Chunk) -> bool {
    stored.range == chunk.range()
        && match stored.digest {
            Some(ContentDigest::Crc32c(crc)) => crc == chunk.crc32c,
            Some(stored) => stored.same_of(&chunk.pieces) == stored,
            None => false,
        }
}

pub(super) fn accepted_nothing(chunk: &Chunk) -> Error {
    let text = format!("the store took none of {} bytes", chunk.length());
    Error::Generic {
        store: "Bywash",
        source: text.into(),
    }
}
