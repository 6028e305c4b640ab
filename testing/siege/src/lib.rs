//! Load and fault tests of a real `bywash serve` in a memory control group, reproducible from a seed, with judges of its
//! behaviour.
//!
//! A [`cases::Case`] starts a server through [`context::CaseContext`] and attacks it. Meanwhile [`watch`] samples memory,
//! descriptors and threads and runs a probe client. All responses of a case go into a [`record::Record`], from which
//! [`judge::judge`] derives findings. A case without findings has passed.
//!
//! [`cluster`] starts several servers that act as one, and judges each read and write by an oracle.

#![forbid(unsafe_code)]
#![allow(
    missing_docs,
    missing_debug_implementations,
    reason = "a test tool: names of fields describe them, and nothing prints them"
)]

pub mod cases;
pub mod ceiling;
pub mod client;
pub mod cluster;
pub mod context;
pub mod judge;
pub mod machine;
pub mod process;
pub mod record;
pub mod report;
mod tunnel;
pub mod watch;

use std::fmt;

/// Error of a case: it could not run, or the server failed in a way that no case accepts.
#[derive(Debug)]
pub struct CaseError(pub String);

impl fmt::Display for CaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<std::io::Error> for CaseError {
    fn from(error: std::io::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<String> for CaseError {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<&str> for CaseError {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}
