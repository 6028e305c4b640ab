//! Time at which the bytes of a write come into memory.

use std::fmt;
use std::str::FromStr;

/// Time at which the bytes of a write come into memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WriteCache {
    /// At the first read, from the origin.
    #[default]
    OnRead,
    /// When the origin has confirmed the write, also of an upload in several chunks: as much from its start as fits a quarter of
    /// the memory. Each such write costs a HEAD, which it waits for at most a second. Not the parts of a multipart upload.
    OnWrite,
}

impl fmt::Display for WriteCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OnRead => "on-read",
            Self::OnWrite => "on-write",
        })
    }
}

impl FromStr for WriteCache {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "on-read" => Ok(Self::OnRead),
            "on-write" => Ok(Self::OnWrite),
            other => Err(format!("{other:?} is not known; write on-read or on-write")),
        }
    }
}
