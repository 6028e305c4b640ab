//! The error of every call.

use std::fmt;
use std::io;

use crate::message::{ErrorCode, Failure};
use crate::wire::WireError;

/// Reason of a failed call: the action that the caller can take ([`Self::code`]), and a text that
/// names object, operation and next step.
#[derive(Debug)]
pub struct Error {
    code: ErrorCode,
    message: String,
    source: Option<io::Error>,
}

/// Result of a call.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Creates an error.
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            source: None,
        }
    }

    /// Creates the error of a broken connection.
    pub(crate) fn connection(message: impl Into<String>, source: io::Error) -> Self {
        Self {
            code: ErrorCode::Connection,
            message: message.into(),
            source: Some(source),
        }
    }

    /// Creates the error of a call whose arguments are wrong, for interfaces of other languages.
    #[must_use]
    pub fn invalid_argument(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidArgument, message)
    }

    /// The action that the caller can take.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        self.code
    }

    /// Whether the server sent it as its reply, so that the connection is at the end of the call.
    pub(crate) fn is_reply(&self) -> bool {
        !matches!(
            self.code,
            ErrorCode::Connection | ErrorCode::Deadline | ErrorCode::Protocol | ErrorCode::Io
        )
    }

    /// Whether the same call may succeed later.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(
            self.code,
            ErrorCode::SlowDown
                | ErrorCode::Deadline
                | ErrorCode::Unavailable
                | ErrorCode::VersionChanged
                | ErrorCode::Connection
        )
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        Self::new(failure.code, failure.message)
    }
}

impl From<WireError> for Error {
    fn from(error: WireError) -> Self {
        let message = format!(
            "the server sent something else than its protocol: {error}; install the same release of client and server"
        );
        Self::new(ErrorCode::Protocol, message)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Some(source) => write!(f, "{}: {source}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match error.code {
            ErrorCode::NotFound | ErrorCode::NoSuchBucket => io::ErrorKind::NotFound,
            ErrorCode::AlreadyExists => io::ErrorKind::AlreadyExists,
            ErrorCode::PermissionDenied => io::ErrorKind::PermissionDenied,
            ErrorCode::InvalidArgument | ErrorCode::InvalidRange => io::ErrorKind::InvalidInput,
            ErrorCode::Unsupported => io::ErrorKind::Unsupported,
            ErrorCode::Deadline => io::ErrorKind::TimedOut,
            ErrorCode::Connection => io::ErrorKind::ConnectionAborted,
            _ => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}
