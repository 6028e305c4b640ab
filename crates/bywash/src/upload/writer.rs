//! The writer: takes bytes in any pieces, gathers them to chunks, and keeps each until the store has it.

mod begin;
mod end;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use bywash_mem::Share;
use object_store::path::Path;
use object_store::{Attributes, Error, PutMode, PutResult, Result, TagSet};

use super::ChunkPlan;
use super::buffer::{Buffer, frames_for};
use super::driver::{Driver, Link};
use super::filling::Filling;
use super::journaled::{Journaled, Journaling};
use super::parts::PartsSession;
use super::token::UploadToken;
use super::window::Window;
use crate::bucket::Bucket;
use crate::error::EngineError;
use crate::origin::body_length_error;
use end::State;

/// How an object is uploaded.
#[derive(Debug, Clone)]
pub struct UploadOptions {
    /// Create only, replace a known version only, or replace. Checked when the object becomes visible.
    pub mode: PutMode,
    /// Content headers and user metadata.
    pub attributes: Attributes,
    /// Tags of the object. An upload with tags cannot be taken over by another process.
    pub tags: TagSet,
    /// The exact number of bytes to come, if known. Another number is an error, and nothing is completed.
    pub length: Option<u64>,
    /// CRC32C of all bytes to come, if known. Another one is an error, and nothing is completed.
    pub crc32c: Option<u32>,
    /// Bytes of a chunk. Default: the engine's, fitted to the store. A length that breaks the store's rule is an error.
    pub chunk: Option<u64>,
    /// Writes the upload down in the engine's journal, if it has one, so that another process can go on after a crash. Not for
    /// stores without sessions, and not for an upload of at most one chunk.
    pub journal: Option<Journaling>,
    /// Chunks on their way at once, where the store takes them side by side. Default 1. With more, each that is on its way keeps a
    /// chunk of memory, beside the one that is being filled.
    pub parallel: usize,
}

impl Default for UploadOptions {
    fn default() -> Self {
        Self {
            mode: PutMode::default(),
            attributes: Attributes::default(),
            tags: TagSet::default(),
            length: None,
            crc32c: None,
            chunk: None,
            journal: None,
            parallel: 1,
        }
    }
}

/// A finished upload.
#[derive(Debug, Clone)]
pub struct UploadResult {
    /// The object's ETag and version, as the store gave them.
    pub put: PutResult,
    /// Bytes of the object.
    pub length: u64,
    /// CRC32C of the object.
    pub crc32c: u32,
    /// Bytes given to requests of this writer, each time counted.
    pub sent_bytes: u64,
    /// Those of them that had been sent before.
    pub resent_bytes: u64,
    /// Buffers taken from the engine's memory: none if no bytes had to wait, one if it served all chunks.
    pub buffers: u64,
}

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
        upload.filling = Filling::at(&upload.plan, token.acknowledged);
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
            options,
            filling: Filling::at(&plan, 0),
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
            session: session.map(|link| link.session().token()),
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

    /// Puts what was taken into chunks, and sends those that are full when more comes.
    async fn drive(&mut self) -> Result<()> {
        if let Some(length) = self.options.length
            && self.taken > length
        {
            return Err(body_length_error(&self.path, length, self.taken));
        }
        loop {
            let room = self.filling.room();
            let more = self.rest.iter().any(|bytes| !bytes.is_empty());
            // The last chunk of an upload waits for the end, which may take it along; side by side it need not.
            if room == 0 && (more || self.side_by_side()) {
                self.flush().await?;
                continue;
            }
            let Some(next) = self.rest.front_mut() else {
                return Ok(());
            };
            if next.is_empty() {
                self.rest.pop_front();
            } else if next.len() as u64 >= room && self.filling.whole.is_none() {
                let slice = next.split_to(room as usize);
                self.filling.complete_with(slice);
            } else {
                self.ready_buffer().await?;
                let next = self.rest.front_mut().expect("there was one before waiting");
                let copied = self.filling.copy_in(next);
                // What is empty goes at once: it would hold on to the caller's memory.
                *next = if copied == next.len() {
                    Bytes::new()
                } else {
                    next.slice(copied..)
                };
            }
        }
    }

    fn side_by_side(&self) -> bool {
        let driver = self.driver.as_ref();
        self.options.parallel > 1 && driver.is_some_and(|driver| driver.link.rule.parallel)
    }

    /// Sends the chunk that is full.
    async fn flush(&mut self) -> Result<()> {
        self.open().await?;
        if self.filling.room() > 0 {
            // The store wants longer chunks than was thought.
            return Ok(());
        }
        self.check_chunks()?;
        let side_by_side = self.side_by_side();
        let driver = self.driver.as_mut().expect("it was opened above");
        let before = driver.acknowledged;
        if side_by_side {
            driver.ask().await?;
        }
        if side_by_side && !driver.proving {
            while self.window.len() >= self.options.parallel {
                self.window.land(driver).await?;
            }
            let next = self.filling.next(&self.plan, self.window.spare());
            let full = std::mem::replace(&mut self.filling, next);
            self.window.send(full, driver);
        } else {
            let pieces = std::mem::take(&mut self.pieces);
            let mut chunk = self.filling.chunk(driver.acknowledged, pieces);
            driver.deliver(&mut chunk).await?;
            self.pieces = chunk.pieces;
            self.filling.advance(&self.plan);
        }
        if let Some(journaled) = &mut self.journaled
            && driver.acknowledged > before
        {
            // Gets to the disk while the next chunk is on its way.
            journaled
                .acknowledged(driver.acknowledged, driver.crc32c)
                .await?;
        }
        Ok(())
    }

    /// Whether the store takes the chunk that is being filled.
    fn check_chunks(&self) -> Result<()> {
        match self.plan.chunks() {
            Some(most) if self.filling.index >= most => Err(self.too_many_chunks()),
            _ => Ok(()),
        }
    }

    fn too_many_chunks(&self) -> Error {
        let limit = self.plan.chunks().unwrap_or(u64::MAX);
        EngineError::TooManyParts {
            object: self.path.to_string(),
            limit_parts: u16::try_from(limit).unwrap_or(u16::MAX),
        }
        .into()
    }

    /// Sees to a buffer for what must wait. It holds the whole chunk from the beginning: who holds memory never waits for more.
    async fn ready_buffer(&mut self) -> Result<()> {
        let capacity = self.capacity();
        if self.filling.buffer_is_ready(capacity) {
            return Ok(());
        }
        if self.filling.length == 0 {
            // Some of it is still lent, or it is too small. Nobody is waited for.
            self.filling.buffer = None;
            // Who holds memory never waits for more, but for its own to come back.
            while self.window.len() > 0 {
                if let Some(buffer) = self.try_buffer(capacity) {
                    self.filling.move_to(buffer);
                    return Ok(());
                }
                let driver = self.driver.as_mut().expect("chunks are on their way");
                self.window.land(driver).await?;
                while let Some(buffer) = self.window.spare() {
                    self.filling.buffer = Some(buffer);
                    if self.filling.buffer_is_ready(capacity) {
                        return Ok(());
                    }
                    self.filling.buffer = None;
                }
            }
        }
        let (length, count) = frames_for(capacity);
        let engine = &self.bucket.shared().engine;
        let frames = engine
            .frames(Share::Upload, length, count, "upload", &self.path)
            .await?;
        self.buffers += 1;
        self.filling.move_to(Buffer::new(frames));
        Ok(())
    }

    /// Copies of `bytes` what has room without waiting; `None` if room must be made.
    pub(super) fn copy_now(&mut self, bytes: &[u8]) -> Result<Option<usize>> {
        self.check_open()?;
        if let Some(length) = self.options.length
            && self.taken + bytes.len() as u64 > length
        {
            let got = self.taken + bytes.len() as u64;
            return Err(body_length_error(&self.path, length, got));
        }
        if !self.rest.is_empty() || !self.filling.buffer_is_ready(self.capacity()) {
            return Ok(None);
        }
        let copied = self.filling.copy_in(bytes);
        self.taken += copied as u64;
        Ok(Some(copied).filter(|copied| *copied > 0))
    }

    /// Makes room for bytes to copy, which come.
    pub(super) async fn make_room(&mut self) -> Result<()> {
        self.drive().await?;
        while self.filling.room() == 0 {
            self.flush().await?;
        }
        self.ready_buffer().await
    }

    /// Bytes that the buffer of this chunk shall hold.
    fn capacity(&self) -> u64 {
        let chunk = self.filling.end - self.filling.offset;
        let known = self.options.length;
        known.map_or(chunk, |length| chunk.min(length - self.filling.offset))
    }

    /// A buffer, if its memory is free now.
    fn try_buffer(&mut self, capacity: u64) -> Option<Buffer> {
        let (length, count) = frames_for(capacity);
        let pool = &self.bucket.shared().engine.pool;
        let frames = pool.try_frames(Share::Upload, length, count, count)?;
        self.buffers += 1;
        Some(Buffer::new(frames))
    }
}

fn invalid_chunk(reason: String) -> Error {
    EngineError::InvalidSetting {
        setting: "chunk",
        reason,
    }
    .into()
}
