//! Errors of stores, grouped by the remedies that the caller has.

use std::error::Error as StdError;

use http::StatusCode;
use object_store::path::Path;
use object_store::{Error, Result};

use crate::digest::ContentDigest;

/// An error of a store that [`object_store::Error`] has no variant for.
///
/// Through the [`object_store::ObjectStore`] trait it travels as the source of a [`object_store::Error::Generic`];
/// [`OriginError::find`] extracts it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OriginError {
    /// The origin could not be reached, or kept failing until the retry deadline.
    #[error("{operation} {object}: the origin failed until the retry deadline: {source}")]
    OriginUnavailable {
        /// The operation.
        operation: &'static str,
        /// The object it was done to.
        object: String,
        /// The last failure.
        source: Box<dyn StdError + Send + Sync>,
    },
    /// The origin's response does not match the request.
    #[error("{object}: the origin's response does not match the request: {detail}")]
    BadResponse {
        /// The object.
        object: String,
        /// The mismatch.
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
        /// Bytes received; a lower bound if the body was cut off for being too long.
        got: u64,
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
    /// The store refused a tag of the object: its rules for tags are stricter than the protocol. Nothing was changed.
    #[error("tag {object}: the store refuses a tag: {reason}; change the tag, or leave it out")]
    InvalidTag {
        /// The object.
        object: String,
        /// The store's reason.
        reason: String,
    },
    /// The store no longer knows the upload's session, and no object proves that the upload was completed. Upload it
    /// again.
    #[error(
        "upload of {object}: the store no longer knows the session, and no object there matches the bytes sent; upload it again"
    )]
    UploadLost {
        /// The object.
        object: String,
    },
    /// A signed address does not allow a request that the upload needs, or one request that cannot be repeated has failed.
    #[error("upload of {object}: {reason}")]
    SignedAddress {
        /// The object.
        object: String,
        /// The reason, and the remedy.
        reason: String,
    },
    /// A file of the store next to the object is damaged. Repeating would not help.
    #[error(
        "{operation} {object}: the file {file} in its folder is damaged ({reason}); restore it, or delete it"
    )]
    DamagedSideFile {
        /// The operation.
        operation: &'static str,
        /// The object.
        object: String,
        /// The file, relative to the folder of the bucket.
        file: String,
        /// The damage.
        reason: String,
    },
    /// The bucket is read-only.
    #[error("{operation} {object}: the bucket is read-only: {reason}")]
    ReadOnly {
        /// The refused operation.
        operation: &'static str,
        /// The object of the operation.
        object: String,
        /// The reason, and the remedy.
        reason: &'static str,
    },
    /// The store's response about the upload contradicts the requests sent. Repeating would not help.
    #[error("upload of {object}: {detail}; upload it again")]
    UploadDamaged {
        /// The object.
        object: String,
        /// The contradiction.
        detail: String,
    },
    /// The parts of an upload do not have the digest that their object must have. No object exists, and the upload stays.
    #[error(
        "complete upload of {object}: its parts have {got}, and {expected} was expected; send the parts again"
    )]
    WrongDigest {
        /// The object.
        object: String,
        /// The digest that it must have.
        expected: ContentDigest,
        /// The digest of its parts.
        got: ContentDigest,
    },
    /// The upload has ended or is ending; it accepts no more bytes.
    #[error("upload of {object}: it is already {how}; begin a new upload")]
    UploadEnded {
        /// The object.
        object: String,
        /// `finished`, `aborted`, or `ended` for either.
        how: &'static str,
    },
}

impl OriginError {
    /// Returns the store's error inside `error`, if there is one.
    #[must_use]
    pub fn find(error: &Error) -> Option<&Self> {
        source_of(error)
    }

    /// The error of a response that does not match its request; see [`Self::BadResponse`].
    pub fn bad_response(object: impl ToString, detail: impl Into<String>) -> Error {
        let (object, detail) = (object.to_string(), detail.into());
        Self::BadResponse { object, detail }.into()
    }

    /// Compares the digest of the parts of an upload with the one that their object must have.
    ///
    /// # Errors
    /// [`Self::WrongDigest`].
    pub(crate) fn compare(
        object: &Path,
        expected: ContentDigest,
        got: ContentDigest,
    ) -> Result<()> {
        if got == expected {
            return Ok(());
        }
        let object = object.to_string();
        Err(Self::WrongDigest {
            object,
            expected,
            got,
        }
        .into())
    }

    /// The error of a session that the store does not know; see [`Self::UploadLost`].
    pub fn upload_lost(object: impl ToString) -> Error {
        let object = object.to_string();
        Self::UploadLost { object }.into()
    }

    /// The error of an upload that a response contradicts; see [`Self::UploadDamaged`].
    pub fn upload_damaged(object: impl ToString, detail: impl Into<String>) -> Error {
        let (object, detail) = (object.to_string(), detail.into());
        Self::UploadDamaged { object, detail }.into()
    }

    /// Whether the origin could not be reached, or failed until the retry deadline: the outcome of a write is unknown.
    #[must_use]
    pub fn is_unavailable(error: &Error) -> bool {
        matches!(Self::find(error), Some(Self::OriginUnavailable { .. }))
    }
}

/// Source of an error of object_store: a text, or an error.
type Source = Box<dyn StdError + Send + Sync>;

/// An error of a kind of store, which the retry policy takes for transient unless its source is final.
pub(crate) fn generic_error(store: &'static str, source: impl Into<Source>) -> Error {
    let source = source.into();
    Error::Generic { store, source }
}

pub(crate) fn not_supported_error(source: impl Into<Source>) -> Error {
    let source = source.into();
    Error::NotSupported { source }
}

pub(crate) fn precondition_error(path: impl ToString, source: impl Into<Source>) -> Error {
    let (path, source) = (path.to_string(), source.into());
    Error::Precondition { path, source }
}

pub(crate) fn not_found_error(path: impl ToString, source: impl Into<Source>) -> Error {
    let (path, source) = (path.to_string(), source.into());
    Error::NotFound { path, source }
}

/// Returns `error` and its sources, the outermost first.
pub fn sources(error: &Error) -> impl Iterator<Item = &(dyn StdError + 'static)> {
    let first: &(dyn StdError + 'static) = error;
    std::iter::successors(Some(first), |&error| error.source())
}

/// Returns the error of type `E` inside `error`, if there is one.
pub fn source_of<E: StdError + 'static>(error: &Error) -> Option<&E> {
    sources(error).find_map(|source| source.downcast_ref())
}

/// A conditional write that the store refused for another one in progress: it did nothing. May succeed later.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct WriteConflict(pub(crate) String);

/// The text is not the URL of a known origin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "origin {text:?}: {reason}; write file:///folder, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, https://host/folder or memory://"
)]
pub struct OriginUrlError {
    pub(crate) text: String,
    pub(crate) reason: String,
}

/// An origin's response with an unsuccessful HTTP status.
///
/// Source of an [`object_store::Error`]; [`StatusError::find`] extracts it. Not in those errors of object_store's own
/// clients that have a variant for the status, as `NotFound`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("status {status}: {detail}")]
pub struct StatusError {
    /// The status.
    pub status: StatusCode,
    /// The operation, and the server's reason.
    pub detail: String,
}

impl StatusError {
    /// Creates the error; `detail` must contain no secret.
    pub fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            status,
            detail: detail.into(),
        }
    }

    /// Returns the status error inside `error`, if there is one.
    #[must_use]
    pub fn find(error: &Error) -> Option<&Self> {
        source_of(error)
    }

    /// Returns the error for `object` of a `store`: of the variant for its status, if there is one.
    #[must_use]
    pub fn of(self, store: &'static str, object: &str) -> Error {
        let (status, path) = (self.status, object.to_owned());
        let source = Box::new(self);
        match status {
            StatusCode::NOT_FOUND | StatusCode::GONE => Error::NotFound { path, source },
            StatusCode::NOT_MODIFIED => Error::NotModified { path, source },
            StatusCode::PRECONDITION_FAILED => Error::Precondition { path, source },
            StatusCode::UNAUTHORIZED => Error::Unauthenticated { path, source },
            StatusCode::FORBIDDEN => Error::PermissionDenied { path, source },
            _ => Error::Generic { store, source },
        }
    }
}

impl From<OriginError> for Error {
    fn from(error: OriginError) -> Self {
        Self::Generic {
            store: "Bywash",
            source: Box::new(error),
        }
    }
}
