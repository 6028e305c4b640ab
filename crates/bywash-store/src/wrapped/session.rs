//! An upload as one stream of parts, in their order: [`MultipartUpload`].
//!
//! It cannot send a part again, so an upload with a part that failed is lost; the store's own client retries.

use std::sync::Arc;

use async_trait::async_trait;
use object_store::path::Path;
use object_store::{Error, MultipartUpload, PutPayload, Result, UploadPart};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::lending::{Lending, Loan};
use crate::error::OriginError;
use crate::session::{
    Chunk, CompleteRequest, Finished, PartReceipt, SessionPart, SessionStatus, SessionToken,
    StoredRange, UploadSession,
};

/// A session over an upload of the store, which ends with this process.
#[derive(Debug)]
pub(super) struct OrderedSession {
    path: Path,
    lending: Arc<Lending>,
    state: Mutex<UploadState>,
    /// Notified when a part was given to the store, and when one failed.
    turns: Notify,
}

#[derive(Debug)]
struct UploadState {
    /// `None` while and after it is completed or aborted.
    upload: Option<Box<dyn MultipartUpload>>,
    /// Index of the next chunk: the store takes parts in their order.
    next: u64,
    /// Bytes of the parts that the store has acknowledged.
    acknowledged: u64,
    /// Whether a part failed, or was given up before it ended.
    is_broken: bool,
}

/// A part in flight. Breaks the session unless it succeeds.
struct PartInFlight<'a> {
    session: &'a OrderedSession,
    acknowledged: Option<u64>,
}

impl Drop for PartInFlight<'_> {
    fn drop(&mut self) {
        let mut state = self.session.state.lock();
        match self.acknowledged {
            Some(length) => state.acknowledged += length,
            None => {
                state.is_broken = true;
                drop(state);
                self.session.turns.notify_waiters();
            }
        }
    }
}

impl OrderedSession {
    pub(super) fn new(
        path: &Path,
        upload: Box<dyn MultipartUpload>,
        lending: Arc<Lending>,
    ) -> Self {
        Self {
            path: path.clone(),
            lending,
            state: Mutex::new(UploadState {
                upload: Some(upload),
                next: 0,
                acknowledged: 0,
                is_broken: false,
            }),
            turns: Notify::new(),
        }
    }

    fn lost(&self) -> Error {
        OriginError::upload_lost(&self.path)
    }

    /// Returns the error of a request that cannot be repeated.
    fn lasting(&self, operation: &'static str, error: Error) -> Error {
        match error {
            Error::Generic { .. } => OriginError::OriginUnavailable {
                operation,
                object: self.path.to_string(),
                source: Box::new(error),
            }
            .into(),
            error => error,
        }
    }

    /// Waits until the parts before this one were given to the store.
    async fn turn_of(&self, index: u64) -> Result<()> {
        loop {
            // Made before the look, so that no notification after it is missed.
            let turn = self.turns.notified();
            {
                let state = self.state.lock();
                if state.is_broken || state.next > index {
                    return Err(self.lost());
                }
                if state.next == index {
                    return Ok(());
                }
            }
            turn.await;
        }
    }

    /// Gives a part to the store once those before it were given. Returns the request that sends it.
    async fn begin_part(&self, chunk: &Chunk) -> Result<(UploadPart, Loan<'_>)> {
        self.turn_of(chunk.index).await?;
        let payload = chunk.pieces.iter().cloned().collect::<PutPayload>();
        // After the wait: the first loan is waited for by the others.
        let (payload, loan) = self.lending.lend(&payload).await;
        let mut state = self.state.lock();
        if state.is_broken || state.next != chunk.index {
            return Err(self.lost());
        }
        let upload = state.upload.as_mut().ok_or_else(|| self.lost())?;
        let sending = upload.put_part(payload);
        state.next += 1;
        drop(state);
        self.turns.notify_waiters();
        Ok((sending, loan))
    }

    /// Takes the upload out, whose bytes must be the first `length` of the object.
    fn take_whole(&self, length: u64) -> Result<Box<dyn MultipartUpload>> {
        let mut state = self.state.lock();
        if state.is_broken {
            return Err(self.lost());
        }
        if state.acknowledged != length {
            let detail = format!("its parts are not its {length} bytes");
            let object = self.path.to_string();
            return Err(OriginError::upload_damaged(object, detail));
        }
        state.upload.take().ok_or_else(|| self.lost())
    }
}

#[async_trait]
impl UploadSession for OrderedSession {
    /// Empty: no other process can continue it.
    fn token(&self) -> SessionToken {
        SessionToken(String::new())
    }

    fn can_be_continued(&self) -> bool {
        false
    }

    async fn put(&self, part: SessionPart) -> Result<PartReceipt> {
        let chunk = part.into_chunk()?;
        let (sending, loan) = self.begin_part(&chunk).await?;
        let mut part = PartInFlight {
            session: self,
            acknowledged: None,
        };
        sending
            .await
            .map_err(|error| self.lasting("upload a part of", error))?;
        part.acknowledged = Some(chunk.length());
        loan.acknowledged();
        Ok(PartReceipt::to(chunk.range().end))
    }

    async fn status(&self) -> Result<SessionStatus> {
        let state = self.state.lock();
        if state.is_broken || state.upload.is_none() {
            return Ok(SessionStatus::Gone);
        }
        let stored = StoredRange {
            range: 0..state.acknowledged,
            digest: None,
        };
        let stored = Some(stored).filter(|stored| stored.range.end > 0);
        Ok(SessionStatus::Open(stored.into_iter().collect()))
    }

    async fn finish(&self, ending: &CompleteRequest) -> Result<Finished> {
        let mut upload = self.take_whole(ending.length)?;
        let put = upload
            .complete()
            .await
            .map_err(|error| self.lasting("complete upload of", error))?;
        Ok(Finished {
            e_tag: put.e_tag,
            version: put.version,
            ..Finished::default()
        })
    }

    async fn abort(&self) -> Result<()> {
        let upload = self.state.lock().upload.take();
        let Some(mut upload) = upload else {
            return Ok(());
        };
        match upload.abort().await {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => {
                self.state.lock().upload = Some(upload);
                Err(error)
            }
        }
    }
}
