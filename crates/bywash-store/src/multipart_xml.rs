//! Multipart uploads by S3's protocol, which Google's XML API also uses: bodies of requests, and the outcome of
//! responses. No I/O.

use chrono::{DateTime, Utc};
use http::StatusCode;
use object_store::path::Path;
use object_store::{Error, Result};
use serde::{Deserialize, Serialize};

use super::http_client::Response;
use super::interface::{ListedPart, ListedParts, UploadedPart};
use crate::error::{OriginError, StatusError, WriteConflict, generic_error};
use crate::session::Finished;

/// S3's and Azure's document of an error.
#[derive(Debug, Deserialize)]
pub(super) struct ErrorDocument {
    #[serde(rename = "Code")]
    pub(super) code: String,
    #[serde(rename = "Message", default)]
    pub(super) message: String,
}

impl ErrorDocument {
    /// Parses a body, which may begin with spaces or a byte order mark; `None` if it is something else, as a proxy's
    /// page.
    pub(super) fn parse(body: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(body);
        quick_xml::de::from_str(text.trim_start_matches('\u{feff}').trim_start()).ok()
    }
}

/// A part, as the request that completes an upload names it.
#[derive(Debug, Serialize)]
#[serde(rename = "Part")]
pub(super) struct PartElement<'a> {
    #[serde(rename = "ETag")]
    pub(super) e_tag: &'a str,
    #[serde(rename = "ChecksumCRC32C", skip_serializing_if = "Option::is_none")]
    pub(super) crc32c: Option<&'a str>,
    #[serde(rename = "PartNumber")]
    pub(super) number: u64,
}

impl<'a> From<&'a UploadedPart> for PartElement<'a> {
    fn from(part: &'a UploadedPart) -> Self {
        Self {
            e_tag: &part.e_tag,
            crc32c: None,
            number: part.number.into(),
        }
    }
}

#[derive(Debug, Serialize)]
#[serde(rename = "CompleteMultipartUpload")]
struct CompleteElement<'a> {
    #[serde(rename = "Part")]
    parts: Vec<PartElement<'a>>,
}

/// Returns the body of a request that completes an upload.
pub(super) fn complete_body<'a>(parts: impl Iterator<Item = PartElement<'a>>) -> String {
    let request = CompleteElement {
        parts: parts.collect(),
    };
    quick_xml::se::to_string(&request).expect("numbers and texts are XML")
}

/// Without an ETag the body is something else: an error with another root, or a proxy's page.
#[derive(Debug, Deserialize)]
struct CompleteDocument {
    #[serde(rename = "ETag")]
    e_tag: String,
    #[serde(rename = "ChecksumCRC32C")]
    crc32c: Option<String>,
}

/// Outcome of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum MultipartOutcome {
    /// The object was created. With the CRC32C that the store computed, of the object or of its parts' checksums.
    Finished(Finished, Option<String>),
    /// The store does not know the upload.
    Gone,
    /// A part differs from the one expected.
    PartMismatch,
    /// The bytes do not match the checksum sent with them.
    Damaged(String),
    /// The store refused a tag.
    InvalidTag(String),
    /// Refused, as another write of the object was in progress; transient.
    Conflict(String),
    /// Transient, with any status.
    Transient(String),
    /// Refused with this reason; the status decides.
    Refused(String),
}

impl MultipartOutcome {
    /// Returns the outcome of a response that is not the expected one.
    pub(super) fn of_failure(response: &Response) -> Self {
        let Some(ErrorDocument { code, message }) = ErrorDocument::parse(&response.body) else {
            // A 404 alone does not distinguish a missing bucket from an upload that has ended.
            return if response.status.is_success() || response.status == StatusCode::NOT_FOUND {
                Self::Transient("a response that cannot be read".to_owned())
            } else {
                Self::Refused(String::new())
            };
        };
        let reason = format!("{code}: {message}");
        match code.as_str() {
            "NoSuchUpload" => Self::Gone,
            "InvalidPart" | "InvalidPartOrder" => Self::PartMismatch,
            INVALID_TAG => Self::InvalidTag(message),
            "BadDigest" | "XAmzContentChecksumMismatch" => Self::Damaged(reason),
            "ConditionalRequestConflict" => Self::Conflict(reason),
            // A truncated body, or an upload being ended by another request.
            "IncompleteBody" | "OperationAborted" => Self::Transient(reason),
            _ if response.status.is_success() => Self::Transient(reason),
            _ => Self::Refused(reason),
        }
    }

    /// Returns the outcome of a completion. The response may be 200 with an error, since it begins before the work is
    /// done. Spaces may precede the document, by which the store keeps the connection alive.
    pub(super) fn of_completion(response: &Response) -> Self {
        let text = String::from_utf8_lossy(&response.body);
        let parsed: Result<CompleteDocument, _> = quick_xml::de::from_str(text.trim_start());
        let Some(done) = parsed.ok().filter(|_| response.status.is_success()) else {
            return Self::of_failure(response);
        };
        let version = ["x-amz-version-id", "x-goog-generation"]
            .into_iter()
            .find_map(|name| response.header(name));
        let finished = Finished {
            e_tag: Some(done.e_tag),
            version: version.map(str::to_owned),
            ..Finished::default()
        };
        Self::Finished(finished, done.crc32c)
    }

    /// The error of an upload that the store does not know.
    pub(super) fn gone(store: &'static str, operation: &str, path: &Path) -> Error {
        let detail = format!("{operation} {path}: no such upload");
        StatusError::new(StatusCode::NOT_FOUND, detail).of(store, path.as_ref())
    }

    /// Returns the error of a failed request for `path`. `is_create`: the object must not exist, so that a failed
    /// precondition means that it does.
    pub(super) fn into_error(
        self,
        (store, operation): (&'static str, &str),
        path: &Path,
        response: &Response,
        is_create: bool,
    ) -> Error {
        let transient =
            |reason: &str| generic_error(store, format!("{operation} {path}: {reason}"));
        match self {
            Self::Refused(reason) => {
                match response.error(store, operation, path.as_ref(), &reason) {
                    Error::Precondition { path, source } if is_create => {
                        Error::AlreadyExists { path, source }
                    }
                    error => error,
                }
            }
            Self::Gone => Self::gone(store, operation, path),
            Self::Conflict(reason) => generic_error(
                store,
                WriteConflict(format!("{operation} {path}: {reason}")),
            ),
            // Of a part: the bytes were damaged in transit, and are sent again.
            Self::Transient(reason) | Self::Damaged(reason) => transient(&reason),
            Self::PartMismatch => transient("a part is not the one that was listed"),
            Self::InvalidTag(reason) => tag_error(path, reason),
            Self::Finished(..) => transient("an unexpected response"),
        }
    }
}

/// S3's code of a refused tag.
const INVALID_TAG: &str = "InvalidTag";

fn tag_error(path: &Path, reason: String) -> Error {
    OriginError::InvalidTag {
        object: path.to_string(),
        reason,
    }
    .into()
}

/// Returns the error for a refused tag, if `error` of object_store's client is one.
pub(super) fn invalid_tag(path: &Path, error: &Error) -> Option<Error> {
    let refused = StatusError::find(error)?;
    let found = ErrorDocument::parse(refused.detail.as_bytes())?;
    (found.code == INVALID_TAG).then(|| tag_error(path, found.message))
}

/// The ETag of a part that was sent.
pub(super) fn part_e_tag(response: &Response) -> Result<String, MultipartOutcome> {
    if !response.status.is_success() {
        return Err(MultipartOutcome::of_failure(response));
    }
    let e_tag = response.header("etag").map(str::to_owned);
    e_tag.ok_or_else(|| MultipartOutcome::Transient("the response has no ETag".to_owned()))
}

/// Parts on a page of a list: S3's own maximum.
pub(super) const PARTS_PER_PAGE: usize = 1000;

/// A part at the store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Part {
    #[serde(rename = "PartNumber")]
    pub(super) number: u64,
    #[serde(rename = "Size")]
    pub(super) size: u64,
    #[serde(rename = "ETag")]
    pub(super) e_tag: String,
    #[serde(rename = "ChecksumCRC32C")]
    pub(super) crc32c: Option<String>,
    /// Left out of tokens.
    #[serde(rename = "LastModified", skip_serializing)]
    pub(super) modified: Option<String>,
}

/// One page of a list of parts.
#[derive(Debug, Deserialize)]
pub(super) struct PartsPage {
    /// Required, to distinguish an empty list of parts from another document.
    #[serde(rename = "UploadId")]
    _upload: String,
    #[serde(rename = "IsTruncated", default)]
    truncated: bool,
    #[serde(rename = "NextPartNumberMarker")]
    next: Option<String>,
    #[serde(rename = "Part", default)]
    pub(super) parts: Vec<Part>,
}

impl PartsPage {
    pub(super) fn parse(body: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(body).map_err(|error| error.to_string())?;
        quick_xml::de::from_str(text).map_err(|error| error.to_string())
    }

    /// The marker of the next page.
    pub(super) fn next(&self) -> Option<&str> {
        self.next.as_deref().filter(|_| self.truncated)
    }

    /// Its parts as a client of the upload sees them, at most `max` numbers above `after`.
    pub(super) fn listed(self, after: u16, max: usize) -> Result<ListedParts, String> {
        let time = |text: &str| DateTime::parse_from_rfc3339(text).ok();
        let parts = self.parts.into_iter().map(|part| {
            Ok(ListedPart {
                number: u16::try_from(part.number)
                    .map_err(|_| format!("{} is the number of no part", part.number))?,
                e_tag: part.e_tag,
                size: part.size,
                modified: part
                    .modified
                    .as_deref()
                    .and_then(time)
                    .map(|time| time.with_timezone(&Utc)),
            })
        });
        let parts = parts.collect::<Result<_, String>>()?;
        Ok(ListedParts::page(parts, after, max, self.truncated))
    }
}
