//! The upload writer: accepts bytes in any pieces, collects chunks, and keeps each until the store has it.

mod begin;
mod end;
mod flow;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use bywash_store::{ChunkRule, ENCRYPTION, Finished, OriginError};
use object_store::path::Path;
use object_store::{Attributes, Error, PutResult, Result};

use super::driver::Driver;
use super::journal_writer::JournalWriter;
use super::part_buffer::PartBuffer;
use super::session_client::SessionClient;
use super::token::UploadToken;
use super::window::Window;
use super::{ChunkPlan, UploadOptions, UploadResult};
use crate::bucket::Bucket;
use crate::content_check::WrittenDigest;
use crate::error::EngineError;
use crate::frame_buffer::FrameBuffer;
use crate::written_blocks::WrittenBlocks;
use end::UploadState;

/// An upload in progress, written from front to back.
///
/// An object of at most one chunk is one atomic put. A longer one is sent by a session of the store. Each chunk is
/// kept here until the store has acknowledged it; after a failure the writer requests the status and sends the rest.
/// The object becomes visible when [`Self::finish`] succeeds, not before. Memory: one chunk, allocated when bytes
/// first have to wait.
///
/// Dropping it neither finishes nor aborts: the session stays at the store, for a process that has its
/// [`UploadToken`].
pub struct Upload {
    bucket: Bucket,
    path: Path,
    pub(super) options: UploadOptions,
    /// Attributes that became known after the session was opened.
    late: Attributes,
    plan: ChunkPlan,
    /// Bytes of the chunks after the one being filled, if they are to have another length.
    next_chunk: Option<u64>,
    driver: Option<Driver>,
    part: PartBuffer,
    /// Whether the buffer was reserved for all chunks: this upload waits for no other memory.
    is_reserved: bool,
    /// Full chunks in flight, if they go in parallel.
    window: Window,
    /// Accepted, but not in a chunk yet: non-empty only after a failure.
    pending: VecDeque<Bytes>,
    /// Number of bytes accepted.
    accepted: u64,
    buffers: u64,
    /// An empty vector for the next chunk's pieces.
    pieces: Vec<Bytes>,
    /// Its entry in the journal.
    pub(super) journaled: Option<JournalWriter>,
    /// Blocks of the sent bytes, if they are to be kept and all bytes pass here.
    written: Option<WrittenBlocks>,
    /// Comparison of the accepted bytes with the digest in the key.
    content: Option<Box<WrittenDigest>>,
    state: UploadState,
}

impl fmt::Debug for Upload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upload")
            .field("path", &self.path)
            .field("accepted", &self.accepted)
            .field("acknowledged", &self.acknowledged())
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl Bucket {
    /// Begins an upload. Sends a request only if `options` announce more than one chunk.
    ///
    /// # Errors
    /// [`EngineError::InvalidSetting`] if the store takes no chunk or object of this length; otherwise as any request.
    pub async fn upload(&self, path: &Path, mut options: UploadOptions) -> Result<Upload> {
        self.shared().counters.request();
        options.attributes.remove(&ENCRYPTION);
        let content = WrittenDigest::of_write(self.shared(), path)?;
        let plan = self.chunk_plan(&options)?;
        let mut upload = Upload::new(self, path, options, plan);
        upload.content = content;
        let chunk = plan.length_of(0);
        if upload.options.length.is_some_and(|length| length > chunk) {
            upload.open().await?;
        }
        Ok(upload)
    }

    /// Returns the plan of an upload with these options.
    fn chunk_plan(&self, options: &UploadOptions) -> Result<ChunkPlan> {
        let rule = self.chunk_rule();
        // Relaxed: any recent size is as good.
        let chunk_size = || self.shared().engine.chunk_size.load(Relaxed);
        let chunk = options.chunk.unwrap_or_else(chunk_size);
        ChunkPlan::new(&rule, chunk, options.chunk.is_some(), options.length).map_err(wrong_chunk)
    }

    /// Returns the length of a chunk of an upload with these options.
    pub(crate) fn chunk_bytes(&self, options: &UploadOptions) -> Result<u64> {
        Ok(self.chunk_plan(options)?.length_of(0))
    }

    /// Returns the store's rule for the chunks of an upload.
    fn chunk_rule(&self) -> ChunkRule {
        self.shared().origin.capabilities().chunk_rule
    }

    /// Continues an upload captured by [`Upload::capture`], here or in another process. Continue writing at
    /// [`Upload::position`]. Sends no request: the status is requested when there is something to send.
    ///
    /// # Errors
    /// [`OriginError::UploadLost`] if this kind of store cannot continue the session; [`EngineError::NeedsWholeWrite`] if the key has the
    /// object's digest and bytes were sent, which this process has not seen.
    pub async fn restore_upload(&self, token: &UploadToken) -> Result<Upload> {
        self.shared().counters.request();
        let mut content = WrittenDigest::of_write(self.shared(), &token.path)?;
        if token.acknowledged > 0 {
            self.shared().refuse_parts(&token.path)?;
        }
        if let Some(content) = &mut content {
            content.update(&token.waiting);
        }
        let plan = match token.session {
            Some(_) => token.plan,
            None => self.chunk_plan(&token.options)?,
        };
        let mut upload = Upload::new(self, &token.path, token.options.clone(), plan);
        if let Some(session) = &token.session {
            let origin = &self.shared().origin;
            let options = upload.session_options();
            let resumed = origin
                .resume_session(&token.path, &options, session)
                .await?;
            let client = SessionClient::new(self, &token.path, Arc::from(resumed));
            let driver = Driver::taken_over(client, token.acknowledged, token.crc32c);
            upload.driver = Some(driver);
        }
        upload.content = content;
        upload.part = PartBuffer::at(&upload.plan, token.acknowledged, token.options.length);
        upload.accepted = token.acknowledged + token.waiting.len() as u64;
        if !token.waiting.is_empty() {
            upload.pending.push_back(token.waiting.clone());
        }
        Ok(upload)
    }
}

fn wrong_chunk(reason: String) -> Error {
    EngineError::InvalidSetting {
        setting: "chunk",
        reason,
    }
    .into()
}

impl Upload {
    fn new(bucket: &Bucket, path: &Path, options: UploadOptions, plan: ChunkPlan) -> Self {
        Self {
            bucket: bucket.clone(),
            path: path.clone(),
            part: PartBuffer::at(&plan, 0, options.length),
            options,
            is_reserved: false,
            late: Attributes::new(),
            window: Window::default(),
            plan,
            next_chunk: None,
            driver: None,
            pending: VecDeque::new(),
            accepted: 0,
            buffers: 0,
            pieces: Vec::new(),
            journaled: None,
            written: None,
            content: None,
            state: UploadState::Open,
        }
    }

    /// Gives the upload the buffer of its chunks, before its first byte. It waits for no other memory then.
    pub(crate) fn fill_into(&mut self, buffer: FrameBuffer) {
        self.buffers += 1;
        self.is_reserved = true;
        self.part.move_to(buffer);
    }

    /// Its id in the journal, while it is journaled and in progress.
    #[must_use]
    pub fn journal_id(&self) -> Option<&str> {
        self.journaled.as_ref().map(|journaled| &*journaled.id)
    }

    /// The number of bytes accepted so far: the offset of the next byte in the object.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.accepted
    }

    /// The number of bytes known to be at the store; the upload continues there after any failure.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.driver.as_ref().map_or(0, |driver| driver.acknowledged)
    }

    /// Accepts `bytes`, and sends the chunks they fill. Whole chunks are sent without a copy; only bytes that
    /// must wait for more are copied.
    ///
    /// The bytes are accepted in any case. After an error, continue with an empty write, with [`Self::finish`] or
    /// with [`Self::capture`]; likewise after this future was dropped.
    ///
    /// # Errors
    /// [`OriginError::OriginUnavailable`] if the store failed until the retry deadline, [`EngineError::SlowDown`]
    /// without memory; both are transient. [`OriginError::UploadLost`] and [`OriginError::UploadDamaged`] are not.
    /// [`OriginError::LengthMismatch`] if there are more bytes than announced.
    pub async fn write(&mut self, bytes: Bytes) -> Result<()> {
        self.check_open()?;
        if !bytes.is_empty() {
            self.accepted += bytes.len() as u64;
            if let Some(content) = &mut self.content {
                content.update(&bytes);
            }
            self.pending.push_back(bytes);
        }
        let driven = self.drive().await;
        self.forget_if_over(driven).await
    }

    /// Completes the upload: the object becomes visible. Succeeds only if the store confirmed the object; length and
    /// checksum are compared where the store reports them. May be called again after an error, and after its future
    /// was dropped, which does not cancel it.
    ///
    /// # Errors
    /// As [`Self::write`]; `AlreadyExists` or `Precondition` if the mode forbids it; [`EngineError::UploadUnproven`]
    /// if the response was lost and the store has no checksum; [`EngineError::ChecksumMismatch`].
    pub async fn finish(&mut self) -> Result<UploadResult> {
        if let UploadState::Finished(result) = &self.state {
            return Ok(result.as_ref().clone());
        }
        let finished = self.complete().await;
        let finished = self.forget_if_over(finished).await?;
        let put = PutResult {
            e_tag: finished.e_tag,
            version: finished.version,
            extensions: Default::default(),
        };
        let stats = self.driver.as_ref().map(|driver| driver.stats);
        let result = UploadResult {
            put,
            length: self.accepted,
            crc32c: finished.crc32c.unwrap_or_default(),
            sent_bytes: stats.map_or(self.accepted, |stats| stats.sent),
            resent_bytes: stats.map_or(0, |stats| stats.resent),
            buffers: self.buffers,
        };
        self.window.clear().await;
        self.part.buffer = None;
        self.part.tail = None;
        self.state = UploadState::Finished(Box::new(result.clone()));
        Ok(result)
    }

    /// Sends the rest, and waits for the completion.
    async fn complete(&mut self) -> Result<Finished> {
        if !matches!(self.state, UploadState::Completing(_)) {
            self.check_open()?;
            self.drive().await?;
            if self.bucket.shared().origin.capabilities().needs_session {
                self.open().await?;
            }
            if let Some(driver) = &mut self.driver {
                self.window.drain(driver).await?;
            }
            self.begin_end()?;
        }
        self.ended().await
    }

    /// Removes the journal's entry of an upload that has failed and cannot be continued.
    async fn forget_if_over<T>(&mut self, result: Result<T>) -> Result<T> {
        let driver = self.driver.as_ref();
        if result.is_err()
            && driver.is_some_and(|driver| driver.client.is_over())
            && let Some(mut journaled) = self.journaled.take()
        {
            journaled.remove().await?;
        }
        result
    }

    /// Aborts the upload and deletes its bytes at the store.
    ///
    /// # Errors
    /// [`OriginError::UploadEnded`] if it has finished, even just now; otherwise as any request.
    pub async fn abort(&mut self) -> Result<()> {
        if matches!(self.state, UploadState::Completing(_)) && self.ended().await.is_ok() {
            return Err(self.ended_error("finished"));
        }
        match self.state {
            UploadState::Aborted => return Ok(()),
            UploadState::Finished(_) => return Err(self.ended_error("finished")),
            UploadState::Open | UploadState::Completing(_) => {}
        }
        self.window.clear().await;
        if let Some(driver) = &self.driver {
            driver.client.abort().await?;
        }
        if let Some(journaled) = &mut self.journaled {
            journaled.remove().await?;
        }
        self.part.buffer = None;
        self.written = None;
        self.pending.clear();
        self.state = UploadState::Aborted;
        Ok(())
    }

    /// All that another process needs to continue, with the bytes not acknowledged. No I/O. May contain a
    /// secret of the store.
    #[must_use]
    pub fn capture(&self) -> UploadToken {
        let first = self.window.offset().unwrap_or(self.part.offset);
        let driver = self.driver.as_ref();
        let acknowledged = driver.map_or(first, |driver| driver.acknowledged);
        let mut waiting = Vec::new();
        let mut skip = (acknowledged - first) as usize;
        let rest = self.pending.iter().map(AsRef::as_ref);
        let chunks = self.window.slices().chain(self.part.slices());
        for slice in chunks.chain(rest) {
            let begin = skip.min(slice.len());
            waiting.extend_from_slice(&slice[begin..]);
            skip -= begin;
        }
        let session = self.driver.as_ref().map(|driver| &driver.client);
        UploadToken {
            path: self.path.clone(),
            options: self.options.clone(),
            plan: self.plan,
            session: session.map(|client| client.session().token()),
            acknowledged,
            crc32c: self.driver.as_ref().map_or(0, |driver| driver.crc32c),
            waiting: waiting.into(),
        }
    }

    /// Adds attributes. With an open session they are given to the store at the end, which may ignore them; see
    /// [`bywash_store::Capabilities::takes_late_attributes`].
    pub fn add_attributes(&mut self, late: &Attributes) {
        let attributes = match &self.driver {
            None => &mut self.options.attributes,
            Some(_) => &mut self.late,
        };
        for (name, value) in late {
            attributes.insert(name.clone(), value.clone());
        }
    }

    /// Changes the length of the chunks that follow, as memory or line change. A chunk that has bytes keeps its
    /// length, and so does one that another process had begun. An odd length is rounded down to the store's unit, but
    /// not below its minimum.
    ///
    /// # Errors
    /// [`EngineError::InvalidSetting`] if the store takes no such chunk, or if the upload is sent in parts and is journaled:
    /// another process finds stored parts by their length.
    pub fn set_chunk(&mut self, bytes: u64) -> Result<()> {
        self.check_open()?;
        let rule = self.bucket.chunk_rule();
        if rule.parallel && self.options.journal.is_some() {
            return Err(wrong_chunk(
                "an upload in parts that is in the journal keeps their length; begin it without a journal".to_owned(),
            ));
        }
        let next = match self.part.length {
            0 => (self.part.index, self.part.offset),
            _ => (self.part.index + 1, self.part.end),
        };
        ChunkPlan::changed_from(&rule, next, bytes, self.options.length).map_err(wrong_chunk)?;
        self.options.chunk = Some(bytes);
        self.next_chunk = Some(bytes);
        self.change_chunk();
        Ok(())
    }

    /// Shortens the chunks that follow to `max` bytes, if they are longer. They stay as they are if the store or the journal allows no
    /// others.
    pub fn shorten_chunks(&mut self, max: u64) {
        if self.plan.length_of(self.part.index) > max
            && let Err(error) = self.set_chunk(max)
        {
            tracing::debug!(%error, "chunks of an upload keep their length");
        }
    }

    fn ended_error(&self, how: &'static str) -> Error {
        OriginError::UploadEnded {
            object: self.path.to_string(),
            how,
        }
        .into()
    }

    fn check_open(&self) -> Result<()> {
        match self.state {
            UploadState::Open => Ok(()),
            UploadState::Completing(_) | UploadState::Finished(_) => {
                Err(self.ended_error("finished"))
            }
            UploadState::Aborted => Err(self.ended_error("aborted")),
        }
    }
}
