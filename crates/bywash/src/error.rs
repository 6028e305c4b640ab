//! Errors of the engine, grouped by the remedies that the caller has.

use std::error::Error as StdError;

use bywash_mem::LimitError;
use bywash_store::{ContentDigest, OriginError, OriginUrlError, sources};
use object_store::Error;

/// An error of the engine itself; errors of the origin stay [`object_store::Error`].
///
/// Through the [`object_store::ObjectStore`] trait it travels as the source of a [`object_store::Error::Generic`];
/// [`EngineError::find`] extracts it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// Not enough memory was free before the admission deadline. Try again later.
    #[error(
        "{operation} {object}: no memory within the admission deadline of {waited_s} s; try again, or raise the memory limit"
    )]
    SlowDown {
        /// The operation.
        operation: &'static str,
        /// The object it was done to.
        object: String,
        /// The deadline that passed, in seconds.
        waited_s: u64,
    },
    /// The write is stored, but no node has confirmed that the others no longer return the replaced version, and a bucket's window is
    /// longer than a client is kept waiting. Try again later.
    #[error(
        "write {object}: it is stored, but other nodes may return the replaced version; no node confirmed within {waited_s} s that they \
         do not; try again"
    )]
    WriteUnconfirmed {
        /// The object.
        object: String,
        /// Time waited, in seconds.
        waited_s: u64,
    },
    /// A pass over all blocks of the disk tier is running already.
    #[error("verify the disk tier: another pass is running; wait until it ends")]
    DiskVerifying,
    /// The object changed while it was read, more often than the read starts over. Read it again.
    #[error("read {object}: the object changed while it was read; read it again")]
    VersionChanged {
        /// The object.
        object: String,
    },
    /// The object is larger than the memory that downloads may have.
    #[error(
        "download {object}: its {length} bytes do not fit the memory: {reason}; download it to a file, read it as a stream, or raise the \
         memory limit"
    )]
    ExceedsMemory {
        /// The object.
        object: String,
        /// Bytes requested of it.
        length: u64,
        /// The value that would fit.
        reason: String,
    },
    /// A listing has an entry that it cannot list, and the bucket's settings make that an error.
    #[error(
        "list {bucket}: the entry {entry} cannot be listed: {reason}; mend it at the origin, or list the others by unlistable = \"leave-out\" of \
         the bucket"
    )]
    Unlistable {
        /// The bucket.
        bucket: String,
        /// The entry.
        entry: String,
        /// The reason.
        reason: String,
    },
    /// The bytes of an object do not have its digest: the one that the caller gave, or else the one that the store
    /// states. They are no longer in memory, and were requested a second time if none had been returned.
    #[error(
        "read {object}: the bytes have {got}, and {expected} is expected; compare the object with its source, or upload it again"
    )]
    DigestMismatch {
        /// The object.
        object: String,
        /// Its digest.
        expected: ContentDigest,
        /// Digest of the bytes received.
        got: ContentDigest,
    },
    /// The body has more parts than an upload may have.
    #[error(
        "write {object}: the body needs more than {limit_parts} parts; announce its length, or raise the chunk size"
    )]
    TooManyParts {
        /// The object.
        object: String,
        /// Maximum parts of an upload.
        limit_parts: u16,
    },
    /// The journal of uploads failed.
    #[error(transparent)]
    Journal(#[from] crate::upload::journal::JournalError),
    /// The response to the completion of an upload was lost. An object of this length exists, but has no checksum
    /// that would prove it to be the one uploaded. Compare it.
    #[error(
        "upload of {object}: the response to its completion was lost; an object of {length} bytes exists, without a checksum to verify \
         it; compare it with the source (CRC32C {crc32c:08x}), or upload it again"
    )]
    UploadUnproven {
        /// The object.
        object: String,
        /// Bytes sent.
        length: u64,
        /// Their CRC32C.
        crc32c: u32,
    },
    /// A conditional write had no response, and nothing at the origin shows how it ended.
    #[error(
        "write {object}: the origin's response was lost, and nothing there shows whether the write was applied: if it was, a repetition \
         fails the condition; read the object and compare it before writing again: {failure}"
    )]
    WriteUnproven {
        /// The object.
        object: String,
        /// The last failure. Not the error's source, which would be mistaken for the outcome.
        failure: Box<dyn StdError + Send + Sync>,
    },
    /// The bytes of an upload do not have the checksum that the caller announced. Nothing was completed.
    #[error(
        "upload of {object}: its bytes have CRC32C {got:08x}, but {expected:08x} was announced; nothing was completed; read the \
         source again"
    )]
    ChecksumMismatch {
        /// The object.
        object: String,
        /// Announced CRC32C.
        expected: u32,
        /// CRC32C of the bytes received.
        got: u32,
    },
    /// The key of a write has no digest, in a bucket whose keys have the digests of their objects. Nothing was written.
    #[error(
        "write {object}: the key does not have the SHA-256 of the object where its bucket expects it (digest-in-key); write it by its digest"
    )]
    KeyWithoutDigest {
        /// The object.
        object: String,
    },
    /// The bytes of a write do not have the digest in the key. No object exists.
    #[error(
        "write {object}: the bytes have {got}, and the key has {expected}; nothing was written; read the source again, or correct the key"
    )]
    WrongContent {
        /// The object.
        object: String,
        /// The digest in the key.
        expected: ContentDigest,
        /// Digest of the bytes received.
        got: ContentDigest,
    },
    /// A write in parts, or under another key, in a bucket whose keys have the digests of their objects. Nothing was written.
    #[error(
        "write {object}: its bucket compares each object with the digest in its key, so the object is written whole and in order: by one PUT, \
         or one resumable upload, to its own key"
    )]
    NeedsWholeWrite {
        /// The object.
        object: String,
    },
    /// The bytes are not an upload token of this version. Nothing was begun.
    #[error("restore an upload: the token cannot be read: {reason}; begin the upload again")]
    InvalidToken {
        /// The mistake in them.
        reason: String,
    },
    /// An upload cannot be taken over because its source has changed. Upload it again.
    #[error(
        "upload of {object}: {} changed since it began: {difference}; upload it again, and drop this one: bywash uploads abort",
        path.display()
    )]
    SourceChanged {
        /// The object.
        object: String,
        /// The file.
        path: std::path::PathBuf,
        /// The difference, in words.
        difference: String,
    },
    /// An upload cannot be taken over because its bytes cannot be read again.
    #[error(
        "upload of {object}: {reason}; upload it again, and drop this one: bywash uploads abort"
    )]
    SourceLost {
        /// The object.
        object: String,
        /// The reason.
        reason: String,
    },
    /// The range begins at or beyond the object's end.
    #[error("read {object}: the range begins beyond the object's {length} bytes")]
    RangeNotSatisfiable {
        /// The object.
        object: String,
        /// Its length in bytes.
        length: u64,
    },
    /// A bucket of that name exists already.
    #[error("bucket {0} exists already")]
    BucketExists(String),
    /// There is no bucket of that name.
    #[error("no bucket {0}; create it, or mount it at start")]
    NoSuchBucket(String),
    /// The bucket still contains objects.
    #[error("bucket {0} is not empty; delete its objects first")]
    BucketNotEmpty(String),
    /// The name breaks the rules for bucket names.
    #[error("bucket name {name:?} is not valid: {reason}")]
    InvalidBucketName {
        /// The name.
        name: String,
        /// The broken rule.
        reason: &'static str,
    },
    /// Buckets cannot be created or deleted: the engine has no root folder.
    #[error("bucket {0} cannot be created or deleted here: the server has a fixed set of buckets")]
    NoRoot(String),
    /// A setting is out of its range.
    #[error("setting {setting}: {reason}")]
    InvalidSetting {
        /// The setting.
        setting: &'static str,
        /// The reason, and the allowed values.
        reason: String,
    },
    /// The memory limit was not changed.
    #[error(transparent)]
    MemoryLimit(#[from] LimitError),
    /// The origin's address cannot be used.
    #[error(transparent)]
    Url(#[from] OriginUrlError),
    /// The origin could not be opened.
    #[error("cannot open the origin of bucket {bucket}: {source}")]
    Origin {
        /// The bucket.
        bucket: String,
        /// The reason.
        source: Box<dyn StdError + Send + Sync>,
    },
    /// The file system failed during a download to a file. The file is as it was before.
    #[error("download of {object} to {}: {source}; the file is as it was before", path.display())]
    File {
        /// The object.
        object: String,
        /// The file.
        path: std::path::PathBuf,
        /// The last failure.
        source: std::io::Error,
    },
    /// The file system failed under the root folder.
    #[error("bucket {bucket}: {source}")]
    Io {
        /// The bucket.
        bucket: String,
        /// The reason.
        source: std::io::Error,
    },
}

impl EngineError {
    /// Returns the engine's error inside `error`, if there is one; not one inside an error of the origin, which another engine may have
    /// caused.
    #[must_use]
    pub fn find(error: &Error) -> Option<&Self> {
        let mut sources = sources(error).take_while(|source| !source.is::<OriginError>());
        sources.find_map(|source| source.downcast_ref())
    }
}

impl From<EngineError> for Error {
    fn from(error: EngineError) -> Self {
        Self::Generic {
            store: "Bywash",
            source: Box::new(error),
        }
    }
}
