//! What can be wrong, in words.

use std::fmt;

/// A promise that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum Violation {
    Torn {
        what: String,
        first: u64,
        second: u64,
        at: u64,
    },
    Stale {
        what: String,
        saw: u64,
        allowed: Vec<Option<u64>>,
    },
    Invented {
        what: String,
    },
    WrongAnswer {
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
    End {
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
            Self::Stale { what, saw, allowed } => {
                write!(f, "STALE {what}: saw version {saw}, might see {allowed:?}")
            }
            Self::Invented { what } => write!(f, "INVENTED {what}: bytes of no version"),
            Self::WrongAnswer { what, detail } => write!(f, "WRONG ANSWER {what}: {detail}"),
            Self::WrongError { what, error } => {
                write!(f, "WRONG ERROR {what}: nothing excuses: {error}")
            }
            Self::Hung { what } => write!(f, "HUNG {what}"),
            Self::Budget { detail } => write!(f, "BUDGET {detail}"),
            Self::End { detail } => write!(f, "AT THE END {detail}"),
            Self::Panic { detail } => write!(f, "PANIC {detail}"),
            Self::FalseAcknowledgement { path } => {
                write!(f, "FALSE ACKNOWLEDGEMENT of a write to {path}")
            }
        }
    }
}
