//! Failures of verbs and their exit codes.

use std::error::Error as StdError;
use std::fmt::Display;
use std::io;
use std::process::ExitCode;

use bywash::StatusError;
use http::StatusCode;
use object_store::client::{HttpError, HttpErrorKind};
use object_store::{Error as StoreError, PutMode};
use serde::Deserialize;

use crate::escape::{plain_json, plain_message};

/// In the URL of a request for the credentials of a cloud instance, the client's last resort.
const METADATA_REQUEST: &str = "/latest/api/token";

/// Hint after a rejected authentication.
const DENIED_HINT: &str = "; check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (`bywash env` prints those of a local server)";

/// In a message of Bywash's server when a bucket is read-only: other keys would not help, and the message explains
/// itself.
const READ_ONLY: &str = "the bucket is read-only";

/// Codes of S3 and Azure for credentials that are not accepted, regardless of the status.
const DENIED_CODES: [&str; 6] = [
    "SignatureDoesNotMatch",
    "InvalidAccessKeyId",
    "ExpiredToken",
    "InvalidToken",
    "AuthorizationFailure",
    "AuthenticationFailed",
];

/// Codes of S3 for content with another digest than its request or its key has, or of more bytes than an object may have.
const CONTENT_CODES: [&str; 3] = ["XAmzContentSHA256Mismatch", "BadDigest", "EntityTooLarge"];

/// Whether the store refuses the content of a write for good.
fn is_content_refused(error: &StoreError) -> bool {
    let refused = StatusError::find(error).filter(|found| found.status == StatusCode::BAD_REQUEST);
    refused.is_some_and(|found| CONTENT_CODES.iter().any(|code| found.detail.contains(code)))
}

/// Whether a condition of a write does not hold.
fn is_unmet(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::AlreadyExists { .. } | StoreError::Precondition { .. }
    )
}

/// Kinds of failures that scripts distinguish; the number is the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The reader of standard output closed it: ends the verb without a failure.
    ReaderGone = 0,
    Failed = 1,
    Usage = 2,
    NotFound = 3,
    Denied = 4,
    Unreachable = 5,
    Interrupted = 130,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::ReaderGone => "reader-gone",
            Self::Failed => "failed",
            Self::Usage => "usage",
            Self::NotFound => "not-found",
            Self::Denied => "denied",
            Self::Unreachable => "unreachable",
            Self::Interrupted => "interrupted",
        }
    }
}

/// A failed verb: its kind, and a message with object, operation and next step.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) kind: Kind,
    pub(crate) message: String,
    /// Whether the same write fails again: a condition does not hold, or its content is refused.
    pub(crate) is_final: bool,
}

impl Failure {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            is_final: false,
        }
    }

    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::new(Kind::Failed, message)
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Kind::Usage, message)
    }

    pub(crate) fn interrupted() -> Self {
        Self::new(Kind::Interrupted, "interrupted")
    }

    /// A file system error during `what`.
    pub(crate) fn io(what: impl Display, error: &io::Error) -> Self {
        let kind = match error.kind() {
            io::ErrorKind::NotFound => Kind::NotFound,
            io::ErrorKind::PermissionDenied => Kind::Denied,
            _ => Kind::Failed,
        };
        Self::new(kind, format!("{what}: {error}"))
    }

    /// An object store error during `what`.
    pub(crate) fn store(what: impl Display, error: &StoreError) -> Self {
        let text = error.to_string();
        let document = ErrorDocument::find(&text);
        let code = document.as_ref().map_or("", |document| &document.code);
        let kind = match (error, code) {
            (StoreError::NotFound { .. }, _) | (_, "NoSuchBucket" | "NoSuchKey") => Kind::NotFound,
            (StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. }, _)
            | (_, "AccessDenied") => Kind::Denied,
            // Listings and bulk deletes return errors without a status.
            (_, code) if DENIED_CODES.contains(&code) => Kind::Denied,
            _ if DENIED_CODES
                .iter()
                .any(|code| text.contains(&format!(" {code}: "))) =>
            {
                Kind::Denied
            }
            _ if text.contains(METADATA_REQUEST) => Kind::Denied,
            _ if is_unreachable(error) => Kind::Unreachable,
            _ => Kind::Failed,
        };
        let stated = || document.as_ref().map(ErrorDocument::reason);
        let reason = match error {
            StoreError::AlreadyExists { .. } => {
                "it exists already; leave --create-only out to replace it".to_owned()
            }
            StoreError::Precondition { .. } => "it changed meanwhile; try again".to_owned(),
            StoreError::NotFound { .. } => stated()
                .or_else(|| stated_absence(error))
                .unwrap_or_else(|| "it does not exist".to_owned()),
            // The text of these variants repeats their cause: show the store's own message.
            StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => stated()
                .or_else(|| root_cause(error))
                .unwrap_or_else(|| text.clone()),
            _ if text.contains(METADATA_REQUEST) => stated().unwrap_or_else(|| {
                "no credentials: neither AWS_ACCESS_KEY_ID is set nor a profile in ~/.aws, and this machine has none of its own"
                    .to_owned()
            }),
            _ => stated().unwrap_or_else(|| match root_cause(error) {
                Some(cause) if !text.contains(&cause) => format!("{text}: {cause}"),
                _ => text.clone(),
            }),
        };
        let what = what.to_string();
        let hint = hint(kind, &what, &text);
        Self {
            is_final: is_unmet(error) || is_content_refused(error),
            ..Self::new(kind, format!("{what}: {reason}{hint}"))
        }
    }

    /// An error of a write to `url` with the condition of `mode`. A failed condition that `mode` does not have is of the destination's
    /// signed address.
    pub(crate) fn write(url: &str, mode: &PutMode, error: &StoreError) -> Self {
        let what = format!("cannot write {url}");
        if !is_unmet(error) || *mode != PutMode::Overwrite {
            return Self::store(what, error);
        }
        let reason = "the condition in its signed address or in --header does not hold: the object is there already, or was changed; \
                      have an address signed for another key or without the condition";
        Self {
            is_final: true,
            ..Self::failed(format!("{what}: {reason}"))
        }
    }

    /// An error response of an S3 endpoint to `what`.
    pub(crate) fn response(what: &str, status: StatusCode, body: &str) -> Self {
        let (kind, hint) = match status.as_u16() {
            401 | 403 => (Kind::Denied, hint(Kind::Denied, what, body)),
            404 => (Kind::NotFound, ""),
            _ => (Kind::Failed, ""),
        };
        let document = ErrorDocument::find(body);
        let reason = document.map_or_else(|| status.to_string(), |document| document.reason());
        Self::new(kind, format!("{what}: {reason}{hint}"))
    }

    /// Reports the failure on standard error and returns the exit code.
    pub(crate) fn report(&self, json: bool) -> ExitCode {
        if self.kind == Kind::ReaderGone {
            return ExitCode::SUCCESS;
        }
        if json {
            let error = serde_json::json!({"kind": self.kind.name(), "message": self.message});
            eprintln!(
                "{}",
                plain_json(serde_json::json!({ "error": error }).to_string())
            );
        } else {
            eprintln!("bywash: {}", plain_message(&self.message));
        }
        ExitCode::from(self.kind as u8)
    }
}

/// The store's own words about something that does not exist: a bucket, for instance.
fn stated_absence(error: &StoreError) -> Option<String> {
    let detail = &StatusError::find(error)?.detail;
    let at = detail.find("NoSuch")?;
    Some(detail[at..].to_owned())
}

/// A hint for the kind of address in `what`; `text` is the store's message.
fn hint(kind: Kind, what: &str, text: &str) -> &'static str {
    let is = |scheme: &str| what.contains(scheme);
    match kind {
        Kind::Denied if text.contains(READ_ONLY) => "",
        Kind::Denied if is("gs://") => "; check GOOGLE_APPLICATION_CREDENTIALS",
        Kind::Denied if is("az://") => {
            "; check AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"
        }
        Kind::Denied if is("http://") || is("https://") => {
            "; check the name, password or query of the address"
        }
        Kind::Denied => DENIED_HINT,
        Kind::Unreachable if is("gs://") => {
            "; check STORAGE_EMULATOR_HOST, and that the server runs"
        }
        Kind::Unreachable if is("az://") => {
            "; check the account's name or AZURE_STORAGE_ENDPOINT, and that the server runs"
        }
        Kind::Unreachable if is("http://") || is("https://") => {
            "; check the address, and that the server runs"
        }
        Kind::Unreachable => "; check --endpoint or AWS_ENDPOINT_URL, and that the server runs",
        _ => "",
    }
}

/// The innermost error: outer ones of the HTTP client omit, for example, the fault of a
/// certificate.
fn root_cause(error: &StoreError) -> Option<String> {
    let mut cause = StdError::source(error)?;
    while let Some(next) = cause.source() {
        cause = next;
    }
    Some(cause.to_string())
}

/// Whether no connection to the endpoint could be made.
fn is_unreachable(error: &StoreError) -> bool {
    let mut next: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(current) = next {
        if let Some(http) = current.downcast_ref::<HttpError>() {
            return matches!(http.kind(), HttpErrorKind::Connect | HttpErrorKind::Timeout);
        }
        next = current.source();
    }
    false
}

/// The document of an error of S3 or Azure.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ErrorDocument {
    code: String,
    message: Option<String>,
}

impl ErrorDocument {
    /// Parses the document in `text`, which may begin with words about the request.
    fn find(text: &str) -> Option<Self> {
        let start = text.find("<?xml").or_else(|| text.find("<Error"))?;
        let document: Self = quick_xml::de::from_str(&text[start..]).ok()?;
        (!document.code.is_empty()).then_some(document)
    }

    fn reason(&self) -> String {
        match self.message.as_deref() {
            Some(message) if !message.is_empty() => format!("{}: {message}", self.code),
            _ => self.code.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_whose_content_is_refused_fails_again_and_one_with_expired_keys_may_not() {
        let refused = |detail: &str| {
            let error = StatusError::new(StatusCode::BAD_REQUEST, detail);
            let error = error.of("S3", "key");
            Failure::write("s3://b/key", &PutMode::Overwrite, &error).is_final
        };
        assert!(refused(
            "complete upload of key: XAmzContentSHA256Mismatch: the bytes have SHA-256 a"
        ));
        assert!(!refused(
            "complete upload of key: ExpiredToken: have new ones"
        ));
        assert!(!refused(
            "complete upload of key: RequestTimeout: send it again"
        ));
    }

    #[test]
    fn s3_error_is_shown_with_code_and_message() {
        let text = "Server returned non-2xx status code: 403 Forbidden: <?xml version=\"1.0\"?><Error><Code>InvalidAccessKeyId</Code><Message>no &quot;such&quot; key &amp; none</Message></Error>";
        let reason = |text| ErrorDocument::find(text).map(|document| document.reason());
        assert_eq!(
            reason(text).as_deref(),
            Some("InvalidAccessKeyId: no \"such\" key & none")
        );
        assert_eq!(
            reason("<Error><Code>SlowDown</Code><Message/></Error>").as_deref(),
            Some("SlowDown")
        );
        for none in ["connection refused", "<Error></Error>", "<Error><Code>cut"] {
            assert_eq!(reason(none), None, "{none}");
        }
    }

    #[test]
    fn kinds_follow_the_error() {
        let gone = StoreError::NotFound {
            path: "k".to_owned(),
            source: "404".into(),
        };
        let failure = Failure::store("cannot read s3://b/k", &gone);
        assert_eq!(failure.kind, Kind::NotFound);
        assert_eq!(failure.message, "cannot read s3://b/k: it does not exist");
        let denied = StoreError::PermissionDenied {
            path: "k".to_owned(),
            source: "403".into(),
        };
        assert_eq!(Failure::store("x", &denied).kind, Kind::Denied);
        let refused = StoreError::Generic {
            store: "S3",
            source: Box::new(HttpError::new(
                HttpErrorKind::Connect,
                io::Error::other("refused"),
            )),
        };
        assert_eq!(Failure::store("x", &refused).kind, Kind::Unreachable);
    }
}
