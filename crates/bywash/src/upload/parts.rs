//! A session over the parts of an origin without sessions of its own.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bywash_store::{
    Chunk, CompleteOptions, CompleteRequest, ContentDigest, Finished, MAX_PARTS, Origin,
    OriginError, SessionStatus, SessionToken, StoredRange, UploadSession, UploadedPart,
};
use futures::StreamExt;
use object_store::path::Path;
use object_store::{Error, PutMode, Result};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::RetryPolicy;
use crate::error::EngineError;
use crate::progress::send_watched;

/// A part acknowledged by the origin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredPart {
    pub(super) e_tag: String,
    pub(super) range: Range<u64>,
    pub(super) crc32c: u32,
}

/// An upload in numbered parts. The origin cannot list them, so they are remembered here.
#[derive(Debug)]
pub(super) struct PartsSession {
    origin: Arc<dyn Origin>,
    path: Path,
    id: String,
    mode: PutMode,
    /// Its stall limit applies to each request.
    retry: RetryPolicy,
    /// Acknowledged parts, by number.
    stored: Mutex<BTreeMap<u16, StoredPart>>,
}

impl PartsSession {
    pub(super) fn new(
        origin: &Arc<dyn Origin>,
        path: &Path,
        id: String,
        mode: PutMode,
        retry: RetryPolicy,
        stored: BTreeMap<u16, StoredPart>,
    ) -> Self {
        Self {
            origin: Arc::clone(origin),
            path: path.clone(),
            id,
            mode,
            retry,
            stored: Mutex::new(stored),
        }
    }

    /// The acknowledged parts, by number.
    pub(super) fn stored(&self) -> BTreeMap<u16, StoredPart> {
        self.stored.lock().clone()
    }

    fn lost(&self) -> Error {
        OriginError::upload_lost(&self.path)
    }

    /// Distinguishes an unknown upload, which is lost, from an absent object.
    fn gone(&self, error: Error) -> Error {
        match error {
            Error::NotFound { .. } => self.lost(),
            error => error,
        }
    }
}

#[async_trait]
impl UploadSession for PartsSession {
    fn token(&self) -> SessionToken {
        SessionToken(self.id.clone())
    }

    async fn send(&self, chunk: &Chunk) -> Result<u64> {
        let number = u16::try_from(chunk.index + 1).ok();
        let number = number.filter(|number| *number <= MAX_PARTS);
        let number = number.ok_or_else(|| EngineError::TooManyParts {
            object: self.path.to_string(),
            limit_parts: MAX_PARTS,
        })?;
        let pieces: Vec<_> = chunk.pieces.iter().cloned().map(Ok).collect();
        let body = futures::stream::iter(pieces).boxed();
        let mut retry = self.retry;
        if self.origin.capabilities().gathers_parts {
            retry.stall = retry.limit(chunk.length());
        }
        let sending = send_watched(retry, body, |body| {
            self.origin
                .put_part(&self.path, &self.id, number, chunk.length(), body)
        });
        let e_tag = sending.await.map_err(|error| self.gone(error))?;
        let part = StoredPart {
            e_tag,
            range: chunk.range(),
            crc32c: chunk.crc32c,
        };
        self.stored.lock().insert(number, part);
        Ok(chunk.range().end)
    }

    async fn status(&self) -> Result<SessionStatus> {
        let stored = self.stored.lock();
        let stored = stored.values().map(|part| StoredRange {
            range: part.range.clone(),
            digest: Some(ContentDigest::Crc32c(part.crc32c)),
        });
        Ok(SessionStatus::Open(stored.collect()))
    }

    async fn finish(&self, ending: &CompleteRequest) -> Result<Finished> {
        let parts: Vec<_> = {
            let stored = self.stored.lock();
            let end = stored.values().try_fold(0, |end, part| {
                (part.range.start == end).then_some(part.range.end)
            });
            if end != Some(ending.length) {
                return Err(OriginError::upload_damaged(
                    &self.path,
                    format!("its parts are not its {} bytes", ending.length),
                ));
            }
            let parts = stored.iter().map(|(number, part)| UploadedPart {
                number: *number,
                e_tag: part.e_tag.clone(),
            });
            parts.collect()
        };
        let options = CompleteOptions {
            mode: self.mode.clone(),
            attributes: ending.attributes.clone(),
        };
        let ended = self
            .origin
            .complete_upload(&self.path, &self.id, &parts, options);
        let put = ended.await.map_err(|error| self.gone(error))?;
        Ok(Finished {
            e_tag: put.e_tag,
            version: put.version,
            ..Finished::default()
        })
    }

    async fn abort(&self) -> Result<()> {
        match self.origin.abort_upload(&self.path, &self.id).await {
            Err(Error::NotFound { .. }) => Ok(()),
            answer => answer,
        }
    }
}
