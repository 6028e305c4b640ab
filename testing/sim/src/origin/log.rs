//! What the origin was asked, and what it answered.

use std::ops::Range;

use object_store::GetRange;
use object_store::path::Path;
use tokio::time::Instant;

use crate::fault::Fault;

/// What a request asked the origin to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Operation {
    Get,
    Head,
    List,
    Put,
    Delete,
    Copy,
    CreateUpload,
    PutPart,
    CompleteUpload,
    AbortUpload,
}

/// One request the origin got.
#[derive(Debug, Clone)]
pub struct Request {
    /// When it came.
    pub at: Instant,
    /// The same in the order of events.
    pub tick: u64,
    /// What it was.
    pub operation: Operation,
    /// The object; of a list, the prefix.
    pub path: Path,
    /// The range asked for.
    pub asked: Option<GetRange>,
    /// Whether it named a version it must be (`If-Match`, `If-Unmodified-Since`).
    pub pinned: bool,
    /// Number of the version that was answered.
    pub version: Option<u64>,
    /// The whole length of that version.
    pub size: u64,
    /// The range that was answered.
    pub answered: Option<Range<u64>>,
    /// Bytes of body sent so far.
    pub sent: u64,
    /// Whether the body was sent to its end, as the origin saw it.
    pub ended: bool,
    /// What went wrong.
    pub faults: Vec<Fault>,
}

impl Request {
    /// Whether it asked for object data.
    #[must_use]
    pub fn is_data(&self) -> bool {
        self.operation == Operation::Get
    }

    /// All of it in one line, with the time since `begun`.
    #[must_use]
    pub fn line(&self, begun: Instant) -> String {
        let Self {
            at,
            tick,
            operation,
            path,
            asked,
            pinned,
            version,
            answered,
            sent,
            ended,
            faults,
            size: _,
        } = self;
        format!(
            "{:>10.3} s, tick {tick:>4}: {operation:?} {path} {asked:?}{}: version {version:?}, {answered:?}, sent {sent}{} {faults:?}",
            at.duration_since(begun).as_secs_f64(),
            if *pinned { " pinned" } else { "" },
            if *ended { "" } else { " of it" },
        )
    }
}
