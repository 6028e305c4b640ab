//! How an object is uploaded, and what came of it.

use object_store::{Attributes, PutMode, PutResult, TagSet};

use super::journaled::Journaling;

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
    /// No process is to go on with it: a folder drops what it has of it once this process is dead.
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
