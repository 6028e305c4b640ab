//! Log of the requests to the origin and of its responses.

use std::ops::Range;

use object_store::GetRange;
use object_store::path::Path;
use tokio::time::Instant;

use crate::fault::Fault;

/// Operation of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names are those of the store's operations")]
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

/// One request to the origin.
#[derive(Debug, Clone)]
pub struct Request {
    /// Time of arrival.
    pub at: Instant,
    /// Position in the order of events.
    pub tick: u64,
    /// The operation.
    pub operation: Operation,
    /// The object, or the prefix of a list.
    pub path: Path,
    /// The requested range.
    pub requested: Option<GetRange>,
    /// Whether it had a precondition on the version (`If-Match`, `If-Unmodified-Since`).
    pub pinned: bool,
    /// Number of the version in the response.
    pub version: Option<u64>,
    /// Length of that version, in bytes.
    pub size: u64,
    /// Range in the response.
    pub sent_range: Option<Range<u64>>,
    /// Bytes of the body sent so far.
    pub sent: u64,
    /// Whether the origin sent the whole body.
    pub complete: bool,
    /// Faults of the request.
    pub faults: Vec<Fault>,
}

impl Request {
    /// Returns whether the request reads object data.
    #[must_use]
    pub fn is_data(&self) -> bool {
        self.operation == Operation::Get
    }

    /// Formats the request as one line, with the time since `begun`.
    #[must_use]
    pub fn line(&self, begun: Instant) -> String {
        let Self {
            at,
            tick,
            operation,
            path,
            requested,
            pinned,
            version,
            sent_range,
            sent,
            complete,
            faults,
            size: _,
        } = self;
        format!(
            "{:>10.3} s, tick {tick:>4}: {operation:?} {path} {requested:?}{}: version {version:?}, {sent_range:?}, sent {sent}{} {faults:?}",
            at.duration_since(begun).as_secs_f64(),
            if *pinned { " pinned" } else { "" },
            if *complete { "" } else { " of it" },
        )
    }
}
