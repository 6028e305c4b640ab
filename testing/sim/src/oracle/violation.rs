//! Violations and their messages.

use std::fmt;

/// Violated guarantee of the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the messages describe them")]
pub enum Violation {
    Torn {
        what: String,
        first: u64,
        second: u64,
        at: u64,
    },
    Stale {
        what: String,
        version: u64,
        visible: Vec<Option<u64>>,
    },
    Unknown {
        what: String,
    },
    WrongResponse {
        what: String,
        detail: String,
    },
    WrongError {
        what: String,
        error: String,
    },
    Hung {
        what: String,
    },
    FalseAcknowledgement {
        path: String,
    },
    Budget {
        detail: String,
    },
    FinalState {
        detail: String,
    },
    Panic {
        detail: String,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Torn {
                what,
                first,
                second,
                at,
            } => {
                write!(
                    f,
                    "TORN {what}: version {first} up to byte {at} of the object, then version {second}"
                )
            }
            Self::Stale {
                what,
                version,
                visible,
            } => {
                write!(
                    f,
                    "STALE {what}: version {version}, visible are {visible:?}"
                )
            }
            Self::Unknown { what } => write!(f, "UNKNOWN BYTES {what}: bytes of no version"),
            Self::WrongResponse { what, detail } => write!(f, "WRONG RESPONSE {what}: {detail}"),
            Self::WrongError { what, error } => {
                write!(f, "WRONG ERROR {what}: no cause for: {error}")
            }
            Self::Hung { what } => write!(f, "HUNG {what}"),
            Self::Budget { detail } => write!(f, "BUDGET {detail}"),
            Self::FinalState { detail } => write!(f, "FINAL STATE {detail}"),
            Self::Panic { detail } => write!(f, "PANIC {detail}"),
            Self::FalseAcknowledgement { path } => {
                write!(f, "FALSE ACKNOWLEDGEMENT of a write to {path}")
            }
        }
    }
}
