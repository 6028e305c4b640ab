//! Upload sessions: the interface of a store that accepts chunks, reports its bytes, and completes an object.
//!
//! A session makes one attempt a call and never retries: the writer owns retries. It calls [`UploadSession::status`]
//! before it sends anything again after a failure. A session over a network fails a call when no byte moves for a
//! while; slow transfers may take any time.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures::StreamExt;
use object_store::path::Path;
use object_store::{Attributes, Extensions, PutMode, PutResult, Result, TagSet};

use crate::digest::ContentDigest;
use crate::limits::{MAX_PART_BYTES, MAX_PARTS};
use crate::numbered::{CompleteOptions, ListedParts, PartBody, UploadedPart, lacks};

/// Default time without any response or byte after which a request has failed.
pub const DEFAULT_STALL: Duration = Duration::from_secs(20);

/// A store's rule for chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkRule {
    /// Every chunk but the last is a multiple of this many bytes.
    pub granule: u64,
    /// Minimum bytes of a chunk, except the last.
    pub min: u64,
    /// Maximum bytes of a chunk.
    pub max: u64,
    /// Maximum chunks of an upload, if the store limits them.
    pub max_chunks: Option<u64>,
    /// Whether chunks may be in flight in parallel and arrive in any order. Otherwise they go one at a time, in
    /// order, and the store may keep any prefix of one.
    pub parallel: bool,
}

impl ChunkRule {
    /// Rule for numbered parts without other limits.
    pub const PARTS: Self = Self {
        granule: 1,
        min: 1,
        max: MAX_PART_BYTES,
        max_chunks: Some(MAX_PARTS as u64),
        parallel: true,
    };

    /// Returns how many chunks of an upload may be in flight if `wanted` are.
    #[must_use]
    pub fn window(&self, wanted: usize) -> usize {
        if self.parallel { wanted.max(1) } else { 1 }
    }
}

/// Options of a session, known when it is opened.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionOptions {
    /// Create only, replace a known version only, or replace. Checked at the latest when the object becomes visible.
    pub mode: PutMode,
    /// Content headers and user metadata of the object.
    pub attributes: Attributes,
    /// Tags of the object, for a store that keeps tags.
    pub tags: TagSet,
    /// A client numbers the parts, which have no place in the object before [`CompleteRequest::parts`] names them. The token is then the
    /// upload's id at the store, and the caller limits the time of each request.
    pub numbered: bool,
    /// The object's length in bytes, if known.
    pub length: Option<u64>,
    /// No other process will continue it: a store may remove it once the process that opened it has died.
    pub transient: bool,
    /// Time without a byte sent or received after which a request of the session has failed; the retry policy's
    /// unless set. A property of the process: a journal does not keep it.
    pub stall: Duration,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            mode: PutMode::default(),
            attributes: Attributes::default(),
            tags: TagSet::default(),
            numbered: false,
            length: None,
            transient: false,
            stall: DEFAULT_STALL,
        }
    }
}

/// Identifies a session, so that another process can continue it. May be a bearer capability, so it is never
/// displayed.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionToken(pub String);

impl fmt::Debug for SessionToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionToken(secret)")
    }
}

/// A chunk to be sent to the store.
#[derive(Debug, Clone)]
pub struct Chunk {
    /// Position of the chunk among the upload's chunks, from 0. Index and boundaries are the same in every process,
    /// so numbered parts can be matched.
    pub index: u64,
    /// Offset of its first byte in the object. In stores that take chunks in order it may lie within the chunk, after
    /// the part already stored.
    pub offset: u64,
    /// Its bytes, without empty pieces; sent without a copy.
    pub pieces: Vec<Bytes>,
    /// CRC32C of these bytes.
    pub crc32c: u32,
}

impl Chunk {
    /// Its length in bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.len() as u64).sum()
    }

    /// Its range in the object.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.length()
    }
}

/// A part on its way to the store.
#[derive(Debug)]
pub struct SessionPart {
    /// 1 or more: the index of a chunk plus one, or the number that a client chose.
    pub number: u64,
    /// Its place in the object; `None` of a part that a client numbers.
    pub place: Option<PartPlace>,
    /// Exact length in bytes.
    pub length: u64,
    /// Its bytes.
    pub source: PartSource,
}

/// Place of a chunk in its object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartPlace {
    /// Offset of its first byte.
    pub offset: u64,
    /// CRC32C of its bytes.
    pub crc32c: u32,
}

/// Where the bytes of a part are.
pub enum PartSource {
    /// In memory; without empty pieces, sent without a copy.
    Pieces(Vec<Bytes>),
    /// They arrive while they are sent. If the stream fails or has another length, no part is stored (an earlier part of that number may
    /// stay) and the error is returned.
    Stream(PartBody),
    /// In a version of the object itself, which the store copies. `Precondition` if the object has another version, `NotImplemented` if the
    /// store makes no such copies.
    Copy {
        /// ETag of the version.
        e_tag: String,
        /// The bytes; not empty.
        range: Range<u64>,
    },
}

impl fmt::Debug for PartSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pieces(_) => "Pieces",
            Self::Stream(_) => "Stream",
            Self::Copy { .. } => "Copy",
        })
    }
}

impl PartSource {
    /// Converts the bytes into a stream.
    ///
    /// # Errors
    /// If they are to be copied by the store.
    pub fn into_body(self) -> Result<PartBody> {
        match self {
            Self::Pieces(pieces) => Ok(futures::stream::iter(pieces.into_iter().map(Ok)).boxed()),
            Self::Stream(body) => Ok(body),
            Self::Copy { .. } => Err(lacks("this store", "copies of parts")),
        }
    }
}

impl SessionPart {
    /// Converts a part with a place back into its chunk.
    ///
    /// # Errors
    /// If a client numbers the part, or its bytes are not in memory.
    pub fn into_chunk(self) -> Result<Chunk> {
        let (Some(place), PartSource::Pieces(pieces)) = (self.place, self.source) else {
            return Err(lacks("this store", "uploads in numbered parts"));
        };
        Ok(Chunk {
            index: self.number.saturating_sub(1),
            offset: place.offset,
            pieces,
            crc32c: place.crc32c,
        })
    }
}

impl From<&Chunk> for SessionPart {
    fn from(chunk: &Chunk) -> Self {
        Self {
            number: chunk.index + 1,
            place: Some(PartPlace {
                offset: chunk.offset,
                crc32c: chunk.crc32c,
            }),
            length: chunk.length(),
            source: PartSource::Pieces(chunk.pieces.clone()),
        }
    }
}

/// Acknowledgement of a part by its store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PartReceipt {
    /// The offset below which the store has all bytes of the chunk: its end, or less where the store may keep a prefix. 0 of a part
    /// without a place.
    pub end: u64,
    /// ETag of the part; empty where chunks go in order.
    pub e_tag: String,
}

impl PartReceipt {
    /// The receipt of a chunk whose bytes below `end` the store has.
    #[must_use]
    pub fn to(end: u64) -> Self {
        Self {
            end,
            e_tag: String::new(),
        }
    }
}

/// Request to complete an upload.
#[derive(Debug, Clone, Default)]
pub struct CompleteRequest {
    /// Length of the whole object in bytes.
    pub length: u64,
    /// CRC32C of the whole object.
    pub crc32c: u32,
    /// The last chunk, if not sent yet. Only where chunks go in order: the store takes it with the completion, in one
    /// request.
    pub tail: Option<Chunk>,
    /// The parts of the object in their order, if a client numbered them. The fields above say nothing then.
    pub parts: Option<Vec<UploadedPart>>,
    /// Digest that the object of these parts must have: compared before the object exists, by a store that
    /// [`Capabilities::compares_parts`].
    ///
    /// [`Capabilities::compares_parts`]: crate::Capabilities::compares_parts
    pub digest: Option<ContentDigest>,
    /// Attributes that were not known when the session was opened; see [`Capabilities::takes_late_attributes`].
    ///
    /// [`Capabilities::takes_late_attributes`]: crate::Capabilities::takes_late_attributes
    pub attributes: Attributes,
}

impl CompleteRequest {
    /// The options of the completion of numbered parts.
    pub(crate) fn options(&self, mode: &PutMode) -> CompleteOptions {
        CompleteOptions {
            mode: mode.clone(),
            attributes: self.attributes.clone(),
            digest: self.digest,
        }
    }
}

/// The object that a session became.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Finished {
    /// The ETag, as returned by the store.
    pub e_tag: Option<String>,
    /// Version id or generation.
    pub version: Option<String>,
    /// Length of the object in bytes, if the store reported it.
    pub length: Option<u64>,
    /// CRC32C of the object, if the store reported it.
    pub crc32c: Option<u32>,
}

impl From<Finished> for PutResult {
    fn from(finished: Finished) -> Self {
        Self {
            e_tag: finished.e_tag,
            version: finished.version,
            extensions: Extensions::new(),
        }
    }
}

impl From<PutResult> for Finished {
    fn from(put: PutResult) -> Self {
        Self {
            e_tag: put.e_tag,
            version: put.version,
            ..Self::default()
        }
    }
}

/// A range of bytes that a store has for a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRange {
    /// The range in the object.
    pub range: Range<u64>,
    /// Digest of the range, if the store reports one; compared with the source before a takeover skips it.
    pub digest: Option<ContentDigest>,
}

/// Status of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionStatus {
    /// Accepts chunks. The stored ranges, in ascending order, without overlap; where chunks go in order, one range
    /// from 0 or none.
    Open(Vec<StoredRange>),
    /// Completed: it became an object.
    Finished(Finished),
    /// Unknown to the store: it expired, was aborted, or ended without a trace. The object may exist all the same.
    Gone,
}

/// A session that was neither finished nor aborted, as listed by its store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenSession {
    /// Token to take it over with.
    pub token: SessionToken,
    /// The object it would have become.
    pub object: Path,
    /// Maximum bytes that the store has of it, if reported.
    pub bytes: Option<u64>,
    /// Time of the last write to it, or else of its opening.
    pub modified: DateTime<Utc>,
}

/// A session that was just opened or taken over.
pub type NewSession = Box<dyn UploadSession>;

/// One upload at a store.
///
/// Cancelled by dropping a future. The store may have processed the request all the same; [`Self::status`] returns
/// the outcome. Dropping the session leaves it at the store.
#[async_trait]
pub trait UploadSession: fmt::Debug + Send + Sync {
    /// The token, with the digests of acknowledged chunks that the store does not list: a process that takes over has no bytes to
    /// compare. A journal has it as it was before the first chunk.
    fn token(&self) -> SessionToken;

    /// Whether another process can continue it by [`Self::token`]. One that cannot is not journaled, and knows its status without a request.
    fn can_be_continued(&self) -> bool {
        true
    }

    /// Whether the store may have chunks of an earlier process, though the session was just opened. The writer
    /// then requests the status before it sends anything.
    fn may_have_chunks(&self) -> bool {
        false
    }

    /// Sends one part.
    ///
    /// # Errors
    /// [`crate::OriginError::UploadLost`] if the store does not know the session, `NotFound` if it does not know the upload of numbered
    /// parts; [`crate::OriginError::UploadDamaged`] if its response contradicts the requests sent (never repeated); otherwise as any
    /// request.
    async fn put(&self, part: SessionPart) -> Result<PartReceipt>;

    /// Lists the parts of an upload of numbered parts with numbers above `after`, at most `max` numbers. An unknown upload is `NotFound`
    /// where [`Capabilities::knows_uploads`].
    ///
    /// [`Capabilities::knows_uploads`]: crate::Capabilities::knows_uploads
    async fn parts(&self, _after: u16, _max: usize) -> Result<ListedParts> {
        Err(lacks("this store", "lists of parts"))
    }

    /// Requests the status of the session.
    async fn status(&self) -> Result<SessionStatus>;

    /// Completes the upload: the object becomes visible in one step. Succeeds only if the store confirmed the object;
    /// does not check length or checksum itself.
    ///
    /// # Errors
    /// `Precondition` or `AlreadyExists` if the mode forbids it; the session's bytes stay at the store until it is
    /// aborted. Of numbered parts: [`crate::OriginError::InvalidPart`] for an unknown part or a wrong ETag, `NotFound` for an unknown
    /// upload, [`crate::OriginError::WrongDigest`] for bytes with another digest; the upload stays.
    async fn finish(&self, ending: &CompleteRequest) -> Result<Finished>;

    /// Aborts the session and deletes its bytes. An unknown session is no error; an unknown upload of numbered parts is `NotFound`.
    async fn abort(&self) -> Result<()>;
}
