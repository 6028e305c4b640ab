//! What can go wrong in the engine, grouped by what the caller can do about it.

use std::error::Error as StdError;

use object_store::Error as StoreError;

/// An error of the engine itself; errors of the origin stay [`object_store::Error`].
///
/// Through the [`object_store::ObjectStore`] trait it travels as the source of a
/// [`object_store::Error::Generic`]; [`EngineError::find`] gets it back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// Not enough memory was free before the admission deadline. Try again later.
    #[error(
        "{operation} {object}: no memory within the admission deadline of {waited_s} s; try again, or raise the memory limit"
    )]
    SlowDown {
        /// What was being done.
        operation: &'static str,
        /// The object it was done to.
        object: String,
        /// The deadline that passed, in seconds.
        waited_s: u64,
    },
    /// The object changed while it was read, more often than we start over. Read it again.
    #[error("read {object}: the object changed while it was read; read it again")]
    VersionChanged {
        /// The object.
        object: String,
    },
    /// The origin could not be reached or kept failing until the retry deadline.
    #[error("{operation} {object}: the origin failed until the retry deadline: {source}")]
    OriginUnavailable {
        /// What was being done.
        operation: &'static str,
        /// The object it was done to.
        object: String,
        /// The last failure.
        source: Box<dyn StdError + Send + Sync>,
    },
    /// The origin answered something other than what it was asked for.
    #[error("{object}: the origin's answer is not what was asked for: {detail}")]
    BadAnswer {
        /// The object.
        object: String,
        /// What was wrong.
        detail: String,
    },
    /// A body was longer or shorter than announced. Nothing was stored.
    #[error(
        "write {object}: the body has {got} bytes, {expected} were announced; nothing was stored"
    )]
    LengthMismatch {
        /// The object.
        object: String,
        /// Announced length in bytes.
        expected: u64,
        /// Bytes that came (at least, when the body was cut off for being too long).
        got: u64,
    },
    /// The body has more parts than an upload may have.
    #[error(
        "write {object}: the body needs more than {limit_parts} parts; announce its length, or raise the chunk size"
    )]
    TooManyParts {
        /// The object.
        object: String,
        /// The most parts an upload may have.
        limit_parts: u16,
    },
    /// A part named at completion was not uploaded, or was replaced since. Nothing was stored.
    #[error(
        "complete upload of {object}: part {number} is unknown or was replaced; upload it again"
    )]
    InvalidPart {
        /// The object.
        object: String,
        /// The part's number.
        number: u16,
    },
    /// The store does not know the upload's session (any more), and no object proves that it ended well. Upload it again.
    #[error(
        "upload of {object}: the store does not know the session any more, and no object there is what was sent; upload it again"
    )]
    UploadLost {
        /// The object.
        object: String,
    },
    /// The bucket is only read.
    #[error("{operation} {object}: the bucket is only read: {reason}")]
    ReadOnly {
        /// What was refused.
        operation: &'static str,
        /// The object it was to be done to.
        object: String,
        /// Why, and what to do about it.
        reason: &'static str,
    },
    /// What the store says of the upload contradicts what was sent. Repeating would not help.
    #[error("upload of {object}: {detail}; upload it again")]
    UploadDamaged {
        /// The object.
        object: String,
        /// The contradiction.
        detail: String,
    },
    /// The journal of uploads failed.
    #[error(transparent)]
    Journal(#[from] crate::upload::journal::JournalError),
    /// The store's answer to the end of an upload was lost. An object of this length is there, but without a checksum that would
    /// prove it to be what was sent. Look at it.
    #[error(
        "upload of {object}: the answer to its end was lost; an object of {length} bytes is there, without a checksum to prove \
         it; compare it with the source (CRC32C {crc32c:08x}), or upload it again"
    )]
    UploadUnproven {
        /// The object.
        object: String,
        /// Bytes that were sent.
        length: u64,
        /// Their CRC32C.
        crc32c: u32,
    },
    /// What was given to an upload does not have the checksum its caller announced. Nothing was completed.
    #[error(
        "upload of {object}: its bytes have CRC32C {got:08x}, {expected:08x} was announced; nothing was completed, read the \
         source again"
    )]
    ChecksumMismatch {
        /// The object.
        object: String,
        /// As announced.
        expected: u32,
        /// Of what came.
        got: u32,
    },
    /// The bytes are no upload token, or not of this version. Nothing was begun.
    #[error("restore an upload: the token cannot be read: {reason}; begin the upload again")]
    InvalidToken {
        /// What is wrong with it.
        reason: String,
    },
    /// The upload has ended, or is ending; it takes no more.
    #[error("upload of {object}: it was {how} already; begin another")]
    UploadEnded {
        /// The object.
        object: String,
        /// Finished or aborted.
        how: &'static str,
    },
    /// An upload cannot be taken over: its source is another now. Upload it again.
    #[error(
        "upload of {object}: {} changed since it began: {difference}; upload it again, and drop this one: bywash uploads abort",
        path.display()
    )]
    SourceChanged {
        /// The object.
        object: String,
        /// The file.
        path: std::path::PathBuf,
        /// What is different, in words.
        difference: String,
    },
    /// An upload cannot be taken over: its bytes cannot be read again.
    #[error(
        "upload of {object}: {reason}; upload it again, and drop this one: bywash uploads abort"
    )]
    SourceLost {
        /// The object.
        object: String,
        /// Why.
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
    /// A bucket of that name exists.
    #[error("bucket {0} exists already")]
    BucketExists(String),
    /// No bucket of that name.
    #[error("no bucket {0}; create it, or mount it at start")]
    NoSuchBucket(String),
    /// The bucket still has objects.
    #[error("bucket {0} is not empty; delete its objects first")]
    BucketNotEmpty(String),
    /// The name breaks the rules for bucket names.
    #[error("bucket name {name:?} is not valid: {reason}")]
    InvalidBucketName {
        /// The name.
        name: String,
        /// The rule it breaks.
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
        /// Why, and what is allowed.
        reason: String,
    },
    /// The origin's address cannot be used.
    #[error(transparent)]
    Url(#[from] crate::origin::OriginUrlError),
    /// The origin could not be opened.
    #[error("cannot open the origin of bucket {bucket}: {source}")]
    Origin {
        /// The bucket.
        bucket: String,
        /// Why.
        source: Box<dyn StdError + Send + Sync>,
    },
    /// The file system failed under the root folder.
    #[error("bucket {bucket}: {source}")]
    Io {
        /// The bucket.
        bucket: String,
        /// Why.
        source: std::io::Error,
    },
}

impl EngineError {
    /// The engine's error inside `error`, if it is one.
    #[must_use]
    pub fn find(error: &StoreError) -> Option<&Self> {
        let mut next: Option<&(dyn StdError + 'static)> = Some(error);
        while let Some(current) = next {
            if let Some(found) = current.downcast_ref::<Self>() {
                return Some(found);
            }
            next = current.source();
        }
        None
    }
}

impl From<EngineError> for StoreError {
    fn from(error: EngineError) -> Self {
        Self::Generic {
            store: "Bywash",
            source: Box::new(error),
        }
    }
}
