//! Sessions of stores that know an upload by its numbered parts alone: each chunk is a part, and the session remembers the acknowledged chunks.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use async_trait::async_trait;
use object_store::path::Path;
use object_store::{Error, PutResult, Result};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::interface::{CompleteOptions, ListedParts, PartBody, UploadedPart, lacks};
use super::session::{
    CompleteRequest, Finished, NewSession, PartReceipt, SessionOptions, SessionPart, SessionStatus,
    SessionToken, StoredRange, UploadSession,
};
use crate::digest::ContentDigest;
use crate::error::{OriginError, generic_error};
use crate::limits::MAX_PARTS;

/// Requests about the numbered parts of an upload. An unknown upload is `NotFound`.
#[async_trait]
pub trait PartStore: fmt::Debug + Send + Sync + 'static {
    /// The body of a part is taken whole before it is sent, which then shows no progress: no stall limit applies.
    const GATHERS: bool = false;

    /// Stores one part of exactly `length` bytes, replacing an earlier one of the same number, and returns its ETag.
    async fn put_part(
        &self,
        path: &Path,
        upload: &str,
        number: u16,
        length: u64,
        body: PartBody,
    ) -> Result<String>;

    /// See [`UploadSession::parts`].
    async fn uploaded_parts(
        &self,
        _path: &Path,
        _upload: &str,
        _after: u16,
        _max: usize,
    ) -> Result<ListedParts> {
        Err(lacks("this store", "lists of parts"))
    }

    /// Has the object of `parts`, in this order, become visible in one step. The mode is checked then.
    async fn complete_upload(
        &self,
        path: &Path,
        upload: &str,
        parts: &[UploadedPart],
        options: CompleteOptions,
    ) -> Result<PutResult>;

    /// Removes an upload and its parts.
    async fn abort_upload(&self, path: &Path, upload: &str) -> Result<()>;
}

/// A chunk that the store has acknowledged as a part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RememberedPart {
    e_tag: String,
    range: Range<u64>,
    crc32c: u32,
}

/// Acknowledged chunks, by the numbers of their parts.
pub type RememberedParts = BTreeMap<u16, RememberedPart>;

/// Begins the tokens of chunks that were sent as parts.
const TOKEN: &str = "parts ";

/// Token of an upload with these acknowledged chunks.
#[must_use]
pub fn parts_token(upload: &str, parts: &RememberedParts) -> SessionToken {
    let parts = serde_json::to_string(parts).expect("numbers and texts are JSON");
    SessionToken(format!("{TOKEN}{upload}\n{parts}"))
}

/// Splits a token made by [`parts_token`] into the upload and its acknowledged chunks.
#[must_use]
pub fn parts_of_token(token: &SessionToken) -> Option<(&str, RememberedParts)> {
    let (upload, parts) = token.0.strip_prefix(TOKEN)?.rsplit_once('\n')?;
    Some((upload, serde_json::from_str(parts).ok()?))
}

/// An upload of `S` in numbered parts.
#[derive(Debug)]
pub struct PartsSession<S> {
    store: S,
    path: Path,
    upload: String,
    options: SessionOptions,
    /// Acknowledged chunks; none if a client numbers the parts.
    stored: Mutex<RememberedParts>,
}

impl<S: PartStore> PartsSession<S> {
    /// The session of an upload that was begun just now.
    pub fn begun(store: S, path: &Path, options: &SessionOptions, upload: String) -> NewSession {
        Box::new(Self::new(store, path, options, upload))
    }

    fn new(store: S, path: &Path, options: &SessionOptions, upload: String) -> Self {
        Self {
            store,
            path: path.clone(),
            upload,
            options: options.clone(),
            stored: Mutex::default(),
        }
    }

    /// Takes over the session that has this token.
    ///
    /// # Errors
    /// [`OriginError::UploadLost`] if it is no token of such a session.
    pub fn resume(
        store: S,
        path: &Path,
        options: &SessionOptions,
        token: &SessionToken,
    ) -> Result<NewSession> {
        if options.numbered {
            return Ok(Self::begun(store, path, options, token.0.clone()));
        }
        let (upload, stored) =
            parts_of_token(token).ok_or_else(|| OriginError::upload_lost(path))?;
        let session = Self::new(store, path, options, upload.to_owned());
        *session.stored.lock() = stored;
        Ok(Box::new(session))
    }

    /// Limits the time of a request with a chunk, which is in memory.
    async fn limited<T>(&self, sent: impl Future<Output = Result<T>>) -> Result<T> {
        if self.options.numbered || S::GATHERS {
            return sent.await;
        }
        let stall = self.options.stall;
        let limited = tokio::time::timeout(stall, sent).await;
        limited.unwrap_or_else(|_| {
            let text = format!("no byte moved for {} ms", stall.as_millis());
            Err(generic_error("Bywash", text))
        })
    }

    /// Distinguishes an unknown upload, which is lost, from an absent object.
    fn gone(&self, error: Error) -> Error {
        match error {
            Error::NotFound { .. } if !self.options.numbered => {
                OriginError::upload_lost(&self.path)
            }
            error => error,
        }
    }

    /// The parts of the object of `length` bytes.
    fn whole(&self, length: u64) -> Result<Vec<UploadedPart>> {
        let stored = self.stored.lock();
        let end = stored.values().try_fold(0, |end, part| {
            (part.range.start == end).then_some(part.range.end)
        });
        if end != Some(length) {
            let detail = format!("its parts are not its {length} bytes");
            return Err(OriginError::upload_damaged(&self.path, detail));
        }
        let parts = stored.iter().map(|(number, part)| UploadedPart {
            number: *number,
            e_tag: part.e_tag.clone(),
        });
        Ok(parts.collect())
    }
}

#[async_trait]
impl<S: PartStore> UploadSession for PartsSession<S> {
    fn token(&self) -> SessionToken {
        if self.options.numbered {
            SessionToken(self.upload.clone())
        } else {
            parts_token(&self.upload, &self.stored.lock())
        }
    }

    /// A journal does not have the parts, which this kind of store does not list by their place.
    fn can_be_continued(&self) -> bool {
        false
    }

    async fn put(&self, part: SessionPart) -> Result<PartReceipt> {
        let (length, place) = (part.length, part.place);
        let number = u16::try_from(part.number).ok();
        let number = number.filter(|number| (1..=MAX_PARTS).contains(number));
        let number = number.ok_or_else(|| {
            let text = format!("{}: parts have numbers from 1 to {MAX_PARTS}", self.path);
            generic_error("Bywash", text)
        })?;
        let body = part.source.into_body()?;
        let sent = self
            .store
            .put_part(&self.path, &self.upload, number, length, body);
        let e_tag = self.limited(sent).await.map_err(|error| self.gone(error))?;
        let Some(place) = place else {
            return Ok(PartReceipt { end: 0, e_tag });
        };
        let end = place.offset + length;
        let part = RememberedPart {
            e_tag: e_tag.clone(),
            range: place.offset..end,
            crc32c: place.crc32c,
        };
        self.stored.lock().insert(number, part);
        Ok(PartReceipt { end, e_tag })
    }

    async fn parts(&self, after: u16, max: usize) -> Result<ListedParts> {
        self.store
            .uploaded_parts(&self.path, &self.upload, after, max)
            .await
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
        let parts = match &ending.parts {
            Some(parts) => parts.clone(),
            None => self.whole(ending.length)?,
        };
        let options = ending.options(&self.options.mode);
        let ended = self
            .store
            .complete_upload(&self.path, &self.upload, &parts, options);
        Ok(ended.await.map_err(|error| self.gone(error))?.into())
    }

    async fn abort(&self) -> Result<()> {
        match self.store.abort_upload(&self.path, &self.upload).await {
            Err(Error::NotFound { .. }) if !self.options.numbered => Ok(()),
            result => result,
        }
    }
}
