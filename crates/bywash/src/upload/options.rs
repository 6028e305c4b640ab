//! Options and result of an upload.

use object_store::{Attributes, PutMode, PutResult, TagSet};

use super::journal::SourceIdentity;

/// Options of an upload.
#[derive(Debug, Clone)]
pub struct UploadOptions {
    /// Create only, replace a known version only, or replace. Checked when the object becomes visible.
    pub mode: PutMode,
    /// Content headers and user metadata.
    pub attributes: Attributes,
    /// Tags of the object. An upload with tags cannot be taken over by another process.
    pub tags: TagSet,
    /// Exact number of bytes to come, if known. Any other number is an error, and nothing is completed.
    pub length: Option<u64>,
    /// CRC32C of all bytes to come, if known. Any other value is an error, and nothing is completed.
    pub crc32c: Option<u32>,
    /// Bytes of a chunk, rounded down to the store's unit, but not below its minimum. Default: the engine's, rounded
    /// up to the store's rule. [`crate::Upload::set_chunk`] changes it between chunks.
    pub chunk: Option<u64>,
    /// Journals the upload, if the engine has a journal, so that another process can continue it after a crash. Not
    /// for stores without sessions or with sessions that cannot be continued, and not for an upload of at most one
    /// chunk that is one put.
    pub journal: Option<JournalOptions>,
    /// Chunks in flight, where the store accepts them in parallel. Default 1. With more, each chunk in flight keeps a
    /// chunk of memory, in addition to the one being filled.
    pub parallel: usize,
    /// No other process will continue it: a folder removes its bytes once this process has died.
    pub transient: bool,
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
            transient: false,
        }
    }
}

/// Result of a finished upload.
#[derive(Debug, Clone)]
pub struct UploadResult {
    /// The object's ETag and version, as returned by the store.
    pub put: PutResult,
    /// Bytes of the object.
    pub length: u64,
    /// CRC32C of the object.
    pub crc32c: u32,
    /// Bytes sent in requests of this writer, repetitions included.
    pub sent_bytes: u64,
    /// Bytes that had been sent before.
    pub resent_bytes: u64,
    /// Buffers allocated: none if no bytes had to wait, one if it served all chunks.
    pub buffers: u64,
}

/// Journal settings of an upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalOptions {
    /// The object's URL, without secrets.
    pub url: String,
    /// The origin's endpoint, if the URL does not contain it.
    pub endpoint: Option<String>,
    /// The file the bytes come from; `None` if they cannot be read again.
    pub source: Option<SourceIdentity>,
}
