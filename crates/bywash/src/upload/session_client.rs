//! Requests to a session: counted, with time limits, their failures classified.

use std::future::Future;
use std::sync::Arc;

use bywash_store::{
    Chunk, ChunkRule, CompleteRequest, ContentDigest, Finished, OriginError, PartReceipt,
    SessionStatus, StoredRange, UploadSession,
};
use object_store::path::Path;
use object_store::{Error, Result};

use super::comparison::ObjectComparison;
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
    pub(super) rule: ChunkRule,
    /// Comparison with the object, of an upload that was begun elsewhere: an earlier run may have completed it.
    comparison: Option<Arc<ObjectComparison>>,
}

impl SessionClient {
    pub(super) fn new(bucket: &Bucket, path: &Path, session: Arc<dyn UploadSession>) -> Self {
        let origin = &bucket.shared().origin;
        let is_elsewhere = !origin.capabilities().begins_sessions;
        Self {
            bucket: bucket.clone(),
            path: path.clone(),
            rule: origin.capabilities().chunk_rule,
            session,
            comparison: is_elsewhere.then(|| Arc::new(ObjectComparison::new())),
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

    /// Sends a chunk, or compares it if the upload has ended.
    pub(super) async fn send(&self, chunk: &Chunk) -> Result<u64> {
        if !self.is_comparing() {
            let request = self.session.put(chunk.into());
            let sent = self.attempt(self.policy(), chunk.length(), request).await;
            match sent {
                Ok(PartReceipt { end, .. }) => {
                    if let Some(comparison) = &self.comparison {
                        comparison.note_parts();
                    }
                    return Ok(end);
                }
                Err(error) if !is_lost(&error) || !self.compare_instead().await? => {
                    return Err(self.ended_elsewhere(error));
                }
                Err(_) => {}
            }
        }
        let pieces = chunk.pieces.clone();
        let md5 = ContentDigest::Md5([0; 16]);
        let digest = tokio::task::spawn_blocking(move || md5.same_of(&pieces)).await?;
        if let (Some(comparison), ContentDigest::Md5(md5)) = (&self.comparison, digest) {
            comparison.add(chunk.index, (md5, chunk.length()));
        }
        Ok(chunk.range().end)
    }

    pub(super) async fn status(&self) -> Result<SessionStatus> {
        if !self.session.can_be_continued() {
            return self.session.status().await;
        }
        if self.is_comparing() {
            return Ok(SessionStatus::Open(Vec::new()));
        }
        let status = self
            .attempt(self.policy(), 0, self.session.status())
            .await?;
        match (&status, &self.comparison) {
            (SessionStatus::Open(stored), Some(comparison)) if !stored.is_empty() => {
                comparison.note_parts();
            }
            (SessionStatus::Gone, Some(_)) => {
                if self.compare_instead().await? {
                    return Ok(SessionStatus::Open(Vec::new()));
                }
                return Err(self.ended_elsewhere(self.lost()));
            }
            _ => {}
        }
        Ok(status)
    }

    /// Completes the session. May take long: the store may have to join parts.
    pub(super) async fn finish(&self, request: &CompleteRequest) -> Result<Finished> {
        if !self.is_comparing() {
            let policy = self.policy().with_server_work();
            let bytes = request.tail.as_ref().map_or(0, Chunk::length);
            let finish = self.session.finish(request);
            match self.attempt(policy, bytes, finish).await {
                Err(error) if is_lost(&error) && self.compare_instead().await? => {}
                finished => return finished.map_err(|error| self.ended_elsewhere(error)),
            }
        }
        let comparison = self.comparison.as_ref();
        let proven = comparison.and_then(|comparison| comparison.proven(request.length));
        proven.ok_or_else(|| self.ended_elsewhere(self.lost()))
    }

    /// Whether the upload has ended, and its chunks are compared with the object.
    pub(super) fn is_comparing(&self) -> bool {
        let comparison = self.comparison.as_ref();
        comparison.is_some_and(|comparison| comparison.has_begun())
    }

    /// Whether an upload that was begun elsewhere has ended, and nothing proves that it became the object. It cannot be continued.
    pub(super) fn is_over(&self) -> bool {
        let comparison = self.comparison.as_ref();
        comparison.is_some_and(|comparison| comparison.has_failed())
    }

    /// Compares chunks with the object from now on, if an upload that the store does not know was begun elsewhere and there is an object.
    async fn compare_instead(&self) -> Result<bool> {
        match &self.comparison {
            Some(comparison) => Ok(comparison.begin(self.stat().await?)),
            None => Ok(false),
        }
    }

    /// Explains why an upload that was begun elsewhere is lost; returns other errors as they are.
    fn ended_elsewhere(&self, error: Error) -> Error {
        if self.is_over() && is_lost(&error) {
            ended_elsewhere(self.path.to_string())
        } else {
            error
        }
    }

    /// Aborts the session at the store.
    pub(super) async fn abort(&self) -> Result<()> {
        if self.is_over() {
            return Ok(());
        }
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
        OriginError::upload_damaged(&self.path, detail)
    }

    pub(super) fn lost(&self) -> Error {
        OriginError::upload_lost(&self.path)
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

fn is_lost(error: &Error) -> bool {
    matches!(
        OriginError::find(error),
        Some(OriginError::UploadLost { .. })
    )
}

/// The error of an upload that was begun elsewhere and has ended, if nothing proves that it became the object.
pub(super) fn ended_elsewhere(object: String) -> Error {
    OriginError::SignedAddress {
        object,
        reason: "the store has no such upload any more: another run has completed or aborted it, or it has expired, and nothing proves \
                 that the source is the object. Its entry was removed, as what was signed for it begins no other. If the object is not there, \
                 or is another one, have addresses signed: bywash presign"
            .to_owned(),
    }
    .into()
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
