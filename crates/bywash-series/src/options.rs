//! What a database is opened with.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::SeriesError;
use crate::span::Span;

/// When an append returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ack {
    /// When the rows are in memory. The log is written behind, some tenths of a second later: a killed process loses those.
    Memory,
    /// When the log has been handed to the operating system: a killed process loses nothing, a power cut may.
    #[default]
    Written,
    /// When the log is on disk. Writers share one sync.
    Synced,
}

/// How values are encoded in files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Profile {
    /// What every reader of Parquet reads.
    #[default]
    Portable,
    /// Smaller, for readers that know the encoding BYTE_STREAM_SPLIT.
    Compact,
}

/// What is kept. Files go whole, and never before all their rows may.
#[derive(Debug, Clone, Copy, Default)]
pub struct Retention {
    /// Rows older than this may go, counted from the clock and not from the newest row.
    pub age: Option<Duration>,
    /// The oldest files go while all together are larger, in bytes.
    pub bytes: Option<u64>,
}

/// Tells the time.
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// Nanoseconds since the Unix epoch.
    fn now(&self) -> i64;
}

/// The system's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> i64 {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
    }
}

/// Settings of a [`crate::SeriesDb`].
#[derive(Debug, Clone)]
pub struct SeriesOptions {
    /// The time a partition spans, at least a microsecond: rows of one partition are sealed together. Never change it for a
    /// store that has files.
    pub span: Duration,
    /// How long after its end a partition stays in memory for rows that come late.
    pub lateness: Duration,
    /// When an append returns.
    pub ack: Ack,
    /// Whether there is a log at all. Without one a crash loses what was not sealed.
    pub log: bool,
    /// The most bytes of log, so that what a start replays is bounded. Writers wait at it, and seals begin at half of it.
    pub wal_bytes: u64,
    /// The size of one file of the log. A batch is split where its frame would not fit.
    pub segment_bytes: u64,
    /// The most bytes of rows and names in memory; `None`: a quarter of the budget's limit. Seals begin at half of what names leave of
    /// it, and copy a partition's rows while they write it.
    pub head_bytes: Option<u64>,
    /// The longest a writer waits for memory or log before it gets [`crate::SeriesError::NoRoom`].
    pub patience: Duration,
    /// Whether to go on with what can be read of a damaged log. What cannot is counted and set aside, not removed.
    pub salvage: bool,
    /// How files are encoded.
    pub profile: Profile,
    /// What is kept.
    pub retention: Retention,
    /// Tells when a partition is over and what is too old.
    pub clock: Arc<dyn Clock>,
}

impl Default for SeriesOptions {
    fn default() -> Self {
        Self {
            span: Duration::from_secs(2 * 60 * 60),
            lateness: Duration::from_secs(10 * 60),
            ack: Ack::default(),
            log: true,
            wal_bytes: 1 << 30,
            segment_bytes: 64 << 20,
            head_bytes: None,
            patience: Duration::from_secs(30),
            salvage: false,
            profile: Profile::default(),
            retention: Retention::default(),
            clock: Arc::new(SystemClock),
        }
    }
}

/// The smallest segment: a few of the largest frames.
const LEAST_SEGMENT: u64 = 512 << 10;
/// How many segments a log must be able to hold, so that sealing at half of it empties some.
const LEAST_SEGMENTS: u64 = 4;

impl SeriesOptions {
    /// The length of partitions, if all of it can be used.
    pub(crate) fn check(&self) -> Result<Span, SeriesError> {
        if self.segment_bytes < LEAST_SEGMENT {
            return Err(SeriesError::Options("segment_bytes is below 512 KiB"));
        }
        if self.wal_bytes / LEAST_SEGMENTS < self.segment_bytes {
            return Err(SeriesError::Options(
                "wal_bytes is below four times segment_bytes",
            ));
        }
        Span::new(self.span).ok_or(SeriesError::Options(
            "span is below a microsecond or above 292 years",
        ))
    }
}
