//! Outcome of a read: how it was served, and which version.

use std::fmt;

/// Whether a read was served from memory, by the first 64 of its blocks: it begins before it has looked up more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheOutcome {
    /// All blocks were in memory.
    Hit,
    /// No block was in memory.
    Miss,
    /// Some blocks were in memory.
    Partial,
}

impl CacheOutcome {
    /// Returns its name in headers, logs and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Miss => "miss",
            Self::Partial => "partial",
        }
    }
}

impl fmt::Display for CacheOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Cache outcome and version of a read; an extension of its [`object_store::GetResult`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadInfo {
    /// Whether the blocks were in memory when the read began.
    pub outcome: CacheOutcome,
    /// The version read: the origin's ETag, or a substitute for it.
    pub version: String,
    /// Number of tags that the store keeps of the object, as of the response that described the version; 0 if the
    /// store has none, or does not state their number.
    pub tags: u32,
    /// Whether the version was not confirmed in time because the origin fails; see [`crate::BucketOptions::stale_if_error`].
    pub stale: bool,
}
