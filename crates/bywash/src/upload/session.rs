//! What a writer asks of a store: a session that takes chunks, says what it keeps, and ends in an object.
//!
//! A session makes one attempt a call and never waits to try again: the writer owns retries, and asks
//! [`UploadSession::status`] before it sends anything again after a failure. A session over a network fails a call by
//! itself when nothing moves, so a call that moves bytes slowly may take as long as it takes.

use std::fmt;
use std::ops::Range;

use async_trait::async_trait;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use object_store::path::Path;
use object_store::{Attributes, PutMode, Result};

/// How a store wants its chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkRule {
    /// Bytes; every chunk but the last is a multiple of it.
    pub granule: u64,
    /// The fewest bytes of a chunk, but for the last.
    pub least: u64,
    /// The most bytes of a chunk.
    pub most: u64,
    /// The most chunks of an upload, where the store counts them.
    pub chunks: Option<u64>,
    /// Chunks may be on their way side by side and arrive in any order; otherwise one at a time, in order, and the store
    /// may keep any prefix of one.
    pub parallel: bool,
}

/// What is known when a session is opened.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SessionOptions {
    /// Create only, replace a known version only, or replace. Checked when the object becomes visible, at the latest.
    pub mode: PutMode,
    /// Content headers and user metadata of the object.
    pub attributes: Attributes,
    /// The object's length in bytes, if known.
    pub length: Option<u64>,
    /// No process is to go on with it: a store may drop it once the process that opened it is dead.
    pub transient: bool,
}

/// What another process needs to go on with a session. May hold a bearer capability, so it is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionToken(pub String);

impl fmt::Debug for SessionToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionToken(secret)")
    }
}

/// Bytes of an upload on their way to the store.
#[derive(Debug, Clone)]
pub struct Chunk {
    /// The position of the chunk among the upload's chunks, from 0. The same bytes have the same index and boundaries in
    /// every process, so a store that numbers parts can be asked for them.
    pub index: u64,
    /// Where its first byte is in the object. In stores that take chunks in order it may lie within the chunk of that
    /// index: what was kept of it is not sent again.
    pub offset: u64,
    /// Its bytes, never empty pieces; sent as they are, without a copy.
    pub pieces: Vec<Bytes>,
    /// CRC32C of these bytes.
    pub crc32c: u32,
}

impl Chunk {
    /// Bytes in all.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.len() as u64).sum()
    }

    /// Where its bytes lie in the object.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.length()
    }
}

/// How an upload ends.
#[derive(Debug, Clone)]
pub struct Ending {
    /// Bytes of the whole object.
    pub length: u64,
    /// CRC32C of the whole object.
    pub crc32c: u32,
    /// The chunk that is not sent yet. Only where chunks go in order: the store takes it with the end, in one request.
    pub tail: Option<Chunk>,
}

/// The object a session became.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Finished {
    /// As the store gave it.
    pub e_tag: Option<String>,
    /// Version id or generation.
    pub version: Option<String>,
    /// Bytes of the object, where the store said it.
    pub length: Option<u64>,
    /// CRC32C of the object, where the store said it.
    pub crc32c: Option<u32>,
}

/// How a store vouches for bytes it keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Digest {
    /// CRC32C of the range.
    Crc32c(u32),
    /// MD5 of the range.
    Md5([u8; 16]),
}

/// Bytes a store keeps for a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// Where they lie in the object.
    pub range: Range<u64>,
    /// What they hash to, if the store says; compared with the source before a takeover skips them.
    pub digest: Option<Digest>,
}

/// What became of a session so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionStatus {
    /// It takes chunks. What it keeps, in ascending order, without overlap; chunks in order have one range from 0, or none.
    Open(Vec<Kept>),
    /// It became an object.
    Finished(Finished),
    /// The store does not know it: it expired, was aborted, or ended without a trace. The object may be there all the same.
    Gone,
}

/// A session that neither finished nor was aborted, as its store lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenSession {
    /// What to take it over with.
    pub token: SessionToken,
    /// The object it would have become.
    pub object: Path,
    /// Bytes the store keeps of it, at most, where the store says it.
    pub bytes: Option<u64>,
    /// When it was last written to, or else opened.
    pub modified: DateTime<Utc>,
}

/// One upload at a store.
///
/// Cancel by dropping a future: the store may have carried out the request all the same, which [`Self::status`] tells.
/// Dropping the session leaves it at the store.
#[async_trait]
pub trait UploadSession: fmt::Debug + Send + Sync {
    /// The same in every call.
    fn rule(&self) -> ChunkRule;

    /// The same in every call; written to the journal before the first chunk is sent.
    fn token(&self) -> SessionToken;

    /// A token as [`Self::token`], and with it what the store said of the chunks it acknowledged, where it can be held to that:
    /// whoever takes over has no bytes to compare.
    fn token_now(&self) -> SessionToken {
        self.token()
    }

    /// Sends one chunk. Returns the offset below which the store keeps all of this chunk's bytes: its end, or less where
    /// the store may keep a prefix.
    ///
    /// # Errors
    /// [`crate::EngineError::UploadLost`] if the store does not know the session (any more),
    /// [`crate::EngineError::UploadDamaged`] if its answer contradicts what was sent (never repeated); otherwise as any request.
    async fn send(&self, chunk: &Chunk) -> Result<u64>;

    /// Asks what became of the session.
    async fn status(&self) -> Result<SessionStatus>;

    /// Makes the object visible, in one step. Succeeds only when the store said that the object is there; checks no length
    /// or checksum itself.
    ///
    /// # Errors
    /// `Precondition` or `AlreadyExists` if the mode forbids it; the session's bytes stay at the store until it is aborted.
    async fn finish(&self, ending: &Ending) -> Result<Finished>;

    /// Drops the session and its bytes. A session the store does not know is no error.
    async fn abort(&self) -> Result<()>;
}
