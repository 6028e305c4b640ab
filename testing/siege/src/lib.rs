//! The siege: attacks a real `bywash serve` in a memory control group, reproducibly from a seed, and judges its
//! behaviour.
//!
//! A [`cases::Case`] starts a server through [`field::Field`] and attacks it. Meanwhile [`watch`] samples memory,
//! descriptors and threads and runs a probe client. All responses of a case go into a [`record::Record`], from which
//! [`judge::judge`] derives findings. A case without findings has passed.

#![forbid(unsafe_code)]
#![allow(
    missing_docs,
    missing_debug_implementations,
    reason = "a test tool: fields are named for what they hold, and nothing prints its parts"
)]

pub mod cases;
pub mod ceiling;
pub mod client;
pub mod field;
pub mod group;
pub mod judge;
pub mod machine;
pub mod process;
pub mod record;
pub mod report;
pub mod watch;

use std::fmt;

/// A case could not run, or the server did something no case accepts.
#[derive(Debug)]
pub struct Trouble(pub String);

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<std::io::Error> for Trouble {
    fn from(error: std::io::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<String> for Trouble {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<&str> for Trouble {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}
