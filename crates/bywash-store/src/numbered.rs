//! Parts of uploads that a client numbers: their types, and the errors common to all stores.

use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{Attributes, PutMode, Result};

use crate::digest::ContentDigest;

/// Bytes of one part, in order. An error in the stream means that the part must not be stored.
pub type PartBody = BoxStream<'static, Result<Bytes>>;

/// One uploaded part, as named in the request that completes an upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadedPart {
    /// 1 to 10,000, chosen by the client.
    pub number: u16,
    /// The ETag that [`crate::UploadSession::put`] returned for it.
    pub e_tag: String,
}

/// A part of an open upload, as its store lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedPart {
    /// 1 to 10,000, chosen by the client.
    pub number: u16,
    /// The ETag that [`crate::UploadSession::put`] returned for it.
    pub e_tag: String,
    /// Its bytes.
    pub size: u64,
    /// When it was stored, if the store states that.
    pub modified: Option<DateTime<Utc>>,
}

/// One page of the parts of an open upload, by ascending numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListedParts {
    /// The parts. A store that keeps a part next to its replacement lists both.
    pub parts: Vec<ListedPart>,
    /// Whether parts with higher numbers follow.
    pub more: bool,
}

impl ListedParts {
    /// Returns the page of the `max` first numbers above `after`.
    pub(super) fn page(mut parts: Vec<ListedPart>, after: u16, max: usize, more: bool) -> Self {
        parts.retain(|part| part.number > after);
        parts.sort_by_key(|part| part.number);
        let mut numbers = 0;
        let mut last = None;
        let end = parts.iter().position(|part| {
            numbers += usize::from(last != Some(part.number));
            last = Some(part.number);
            numbers > max
        });
        let cut = end.is_some();
        parts.truncate(end.unwrap_or(parts.len()));
        Self {
            parts,
            more: more || cut,
        }
    }
}

/// How an upload in parts is completed.
#[derive(Debug, Clone, Default)]
pub struct CompleteOptions {
    /// Replace, create only, or replace a known version only. Checked when the object becomes visible.
    pub mode: PutMode,
    /// Attributes that are known only now. Stores that take them only when the upload begins ignore them;
    /// [`crate::Capabilities::takes_late_attributes`] returns which.
    pub attributes: Attributes,
    /// See [`crate::CompleteRequest::digest`].
    pub digest: Option<ContentDigest>,
}

impl From<PutMode> for CompleteOptions {
    fn from(mode: PutMode) -> Self {
        Self {
            mode,
            ..Self::default()
        }
    }
}

/// Returns the error of an origin without `operation`.
pub(crate) fn lacks(kind: &str, operation: &str) -> object_store::Error {
    object_store::Error::NotImplemented {
        operation: operation.to_owned(),
        implementer: kind.to_owned(),
    }
}

/// Returns the error for a body of another length than announced; its part is not stored.
pub fn body_length_error(path: &Path, expected: u64, got: u64) -> object_store::Error {
    crate::error::OriginError::LengthMismatch {
        object: path.to_string(),
        expected,
        got,
    }
    .into()
}

/// Returns the error for a part named at completion that was not uploaded, or was replaced since.
pub(crate) fn invalid_part(path: &Path, part: &UploadedPart) -> object_store::Error {
    crate::error::OriginError::InvalidPart {
        object: path.to_string(),
        number: part.number,
    }
    .into()
}
