//! The writer: takes bytes in any pieces, gathers them to chunks, and keeps each until the store has it.

mod begin;
mod end;
mod flow;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{Attributes, Error, PutResult, Result};

use super::driver::Driver;
use super::filling::Filling;
use super::journaled::Journaled;
use super::link::Link;
use super::parts::PartsSession;
use super::token::UploadToken;
use super::window::Window;
use super::{ChunkPlan, UploadOptions, UploadResult};
use crate::bucket::Bucket;
use crate::error::EngineError;
use end::State;

/// An object on its way to a store, written from front to back.
///
/// At most one chunk in all is one atomic put. More go through a session of the store: each chunk is kept here until the store
/// has acknowledged it, and after a failure the store is asked what it keeps and gets the rest. The object is visible when
/// [`Self::finish`] succeeded, not before. Memory: one chunk, taken when bytes must wait for the first time.
///
/// Dropping it neither finishes nor aborts: the session stays at the store for whoever has its [`UploadToken`].
pub struct Upload {
    bucket: Bucket,
    path: Path,
    pub(super) options: UploadOptions,
    /// Of the wanted chunk length until the store's rule is known.
    plan: ChunkPlan,
    driver: Option<Driver>,
    /// The session, if it is one over parts.
    parts: Option<Arc<PartsSession>>,
    filling: Filling,
    /// Full chunks on their way, if they go side by side.
    window: Window,
    /// Taken, but not in a chunk yet: more than nothing only after a failure.
    rest: VecDeque<Bytes>,
    /// Bytes taken.
    taken: u64,
    buffers: u64,
    /// An empty vector for the next chunk's pieces.
    pieces: Vec<Bytes>,
    /// Its entry in the journal.
    pub(super) journaled: Option<Journaled>,
    state: State,
}

impl fmt::Debug for Upload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upload")
            .field("path", &self.path)
            .field("taken", &self.taken)
            .field("acknowledged", &self.acknowledged())
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl Bucket {
    /// Begins an upload. Sends a request only if `options` say that there is more than one chunk to come.
    ///
    /// # Errors
    /// [`EngineError::InvalidSetting`] if the chunk or the length break the store's rule, which is known when the session is
    /// opened; otherwise as any request.
    pub async fn upload(&self, path: &Path, options: UploadOptions) -> Result<Upload> {
        self.shared().counters.request();
        let chunk = options.chunk.unwrap_or(self.shared().engine.chunk_size);
        if chunk == 0 {
            return Err(invalid_chunk("0 bytes; at least 1 is needed".to_owned()));
        }
        let mut upload = Upload::new(self, path, options, ChunkPlan::fixed(chunk));
        if upload.options.length.is_some_and(|length| length > chunk) {
            upload.open().await?;
        }
        Ok(upload)
    }

    /// Goes on with an upload that [`Upload::capture`] described, here or in another process. Write on from
    /// [`Upload::position`]. Sends no request: the store is asked when there is something to send.
    ///
    /// # Errors
    /// [`EngineError::UploadLost`] if this kind of store cannot go on with the session.
    pub async fn restore_upload(&self, token: &UploadToken) -> Result<Upload> {
        self.shared().counters.request();
        let mut upload = Upload::new(self, &token.path, token.options.clone(), token.plan);
        if let Some(session) = &token.session {
            let origin = &self.shared().origin;
            let options = upload.session_options();
            let resumed = match token.parts.as_ref() {
                Some(_) => None,
                None => {
                    origin
                        .resume_session(&token.path, &options, session)
                        .await?
                }
            };
            let link = match resumed {
                Some(session) => Link::new(self, &token.path, Arc::from(session)),
                None => upload.over_parts(session.0.clone(), token.parts.clone()),
            };
            let driver = Driver::taken_over(link, token.acknowledged, token.crc32c);
            upload.driver = Some(driver);
        }
        upload.filling = Filling::at(&upload.plan, token.acknowledged, token.options.length);
        upload.taken = token.acknowledged + token.waiting.len() as u64;
        if !token.waiting.is_empty() {
            upload.rest.push_back(token.waiting.clone());
        }
        Ok(upload)
    }
}

impl Upload {
    fn new(bucket: &Bucket, path: &Path, options: UploadOptions, plan: ChunkPlan) -> Self {
        Self {
            bucket: bucket.clone(),
            path: path.clone(),
            filling: Filling::at(&plan, 0, options.length),
            options,
            window: Window::default(),
            plan,
            driver: None,
            parts: None,
            rest: VecDeque::new(),
            taken: 0,
            buffers: 0,
            pieces: Vec::new(),
            journaled: None,
            state: State::Open,
        }
    }

    /// Bytes taken so far: where the next ones belong in the object.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.taken
    }

    /// Bytes the store keeps, as far as known; the upload continues there whatever happens.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.driver.as_ref().map_or(0, |driver| driver.acknowledged)
    }

    /// Takes `bytes`, and sends what fills chunks. Whole chunks are sent as they are; only what must wait for more is copied.
    ///
    /// The bytes are taken in any case. After an error go on with an empty write, with [`Self::finish`] or with
    /// [`Self::capture`]; the same holds when this future was dropped.
    ///
    /// # Errors
    /// [`EngineError::OriginUnavailable`] when the store kept failing until the retry deadline, [`EngineError::SlowDown`] when there
    /// was no memory; both may pass. [`EngineError::UploadLost`] and [`EngineError::UploadDamaged`] do not.
    /// [`EngineError::LengthMismatch`] if there are more bytes than announced.
    pub async fn write(&mut self, bytes: Bytes) -> Result<()> {
        self.check_open()?;
        if !bytes.is_empty() {
            self.taken += bytes.len() as u64;
            self.rest.push_back(bytes);
        }
        self.drive().await
    }

    /// Makes the object visible and says what became of it. Succeeds only if the store said that it is there; its length and
    /// checksum are compared where the store says them. May be called again after an error, and after its future was dropped,
    /// which does not stop it.
    ///
    /// # Errors
    /// As [`Self::write`]; `AlreadyExists` or `Precondition` if the mode forbids it; [`EngineError::UploadUnproven`] if the answer
    /// was lost and the store has no checksum; [`EngineError::ChecksumMismatch`].
    pub async fn finish(&mut self) -> Result<UploadResult> {
        if let State::Finished(result) = &self.state {
            return Ok(result.as_ref().clone());
        }
        if !matches!(self.state, State::Ending(_)) {
            self.check_open()?;
            self.drive().await?;
            if let Some(driver) = &mut self.driver {
                self.window.drain(driver).await?;
            }
            self.begin_end()?;
        }
        let finished = self.ended().await?;
        let put = PutResult {
            e_tag: finished.e_tag,
            version: finished.version,
            extensions: Default::default(),
        };
        let tally = self.driver.as_ref().map(|driver| driver.tally);
        let result = UploadResult {
            put,
            length: self.taken,
            crc32c: finished.crc32c.unwrap_or_default(),
            sent_bytes: tally.map_or(self.taken, |tally| tally.sent),
            resent_bytes: tally.map_or(0, |tally| tally.resent),
            buffers: self.buffers,
        };
        self.window.clear().await;
        self.filling.buffer = None;
        self.filling.whole = None;
        self.state = State::Finished(Box::new(result.clone()));
        Ok(result)
    }

    /// Drops what the store keeps of it.
    ///
    /// # Errors
    /// [`EngineError::UploadEnded`] if it has finished, also just now; otherwise as any request.
    pub async fn abort(&mut self) -> Result<()> {
        if matches!(self.state, State::Ending(_)) && self.ended().await.is_ok() {
            return Err(self.ended_error("finished"));
        }
        match self.state {
            State::Aborted => return Ok(()),
            State::Finished(_) => return Err(self.ended_error("finished")),
            State::Open | State::Ending(_) => {}
        }
        self.window.clear().await;
        if let Some(driver) = &self.driver {
            driver.link.abort().await?;
        }
        if let Some(journaled) = &mut self.journaled {
            journaled.remove().await?;
        }
        self.filling.buffer = None;
        self.rest.clear();
        self.state = State::Aborted;
        Ok(())
    }

    /// Everything another process needs to go on, the bytes that wait included. No I/O. It may hold a secret of the store.
    #[must_use]
    pub fn capture(&self) -> UploadToken {
        let first = self.window.offset().unwrap_or(self.filling.offset);
        let driver = self.driver.as_ref();
        let acknowledged = driver.map_or(first, |driver| driver.acknowledged);
        let mut waiting = Vec::new();
        let mut skip = (acknowledged - first) as usize;
        let rest = self.rest.iter().map(AsRef::as_ref);
        let chunks = self.window.slices().chain(self.filling.slices());
        for slice in chunks.chain(rest) {
            let begin = skip.min(slice.len());
            waiting.extend_from_slice(&slice[begin..]);
            skip -= begin;
        }
        let session = self.driver.as_ref().map(|driver| &driver.link);
        UploadToken {
            path: self.path.clone(),
            options: self.options.clone(),
            plan: self.plan,
            session: session.map(|link| link.session().token_now()),
            parts: self.parts.as_ref().map(|parts| parts.kept()),
            acknowledged,
            crc32c: self.driver.as_ref().map_or(0, |driver| driver.crc32c),
            waiting: waiting.into(),
        }
    }

    /// Whether all of it so far is in one chunk that nobody has sent.
    pub(crate) fn is_small(&self) -> bool {
        self.driver.is_none()
    }

    /// Adds attributes, for an upload that [`Self::is_small`].
    pub(crate) fn add_attributes(&mut self, late: &Attributes) {
        for (name, value) in late {
            let attributes = &mut self.options.attributes;
            attributes.insert(name.clone(), value.clone());
        }
    }

    fn ended_error(&self, how: &'static str) -> Error {
        EngineError::UploadEnded {
            object: self.path.to_string(),
            how,
        }
        .into()
    }

    fn check_open(&self) -> Result<()> {
        match self.state {
            State::Open => Ok(()),
            State::Ending(_) | State::Finished(_) => Err(self.ended_error("finished")),
            State::Aborted => Err(self.ended_error("aborted")),
        }
    }
}

fn invalid_chunk(reason: String) -> Error {
    EngineError::InvalidSetting {
        setting: "chunk",
        reason,
    }
    .into()
}
