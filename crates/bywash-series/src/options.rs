//! Settings of a database.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::SeriesError;
use crate::partition::PartitionWidth;

/// When an append returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ack {
    /// When the rows are in memory. The log is written some tenths of a second later: a killed process loses those
    /// rows.
    Memory,
    /// When the operating system has the log: a killed process loses nothing, a power failure may.
    #[default]
    Written,
    /// When the log is on disk. Concurrent writers share one sync.
    Synced,
}

/// Encoding of values in files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Profile {
    /// Readable by all Parquet readers.
    #[default]
    Portable,
    /// Smaller; needs readers that support BYTE_STREAM_SPLIT.
    Compact,
}

/// Which rows are kept. Files are dropped whole, and only if all of their rows may go.
#[derive(Debug, Clone, Copy, Default)]
pub struct Retention {
    /// Max age of rows by the clock, not by the newest row.
    pub age: Option<Duration>,
    /// Max bytes of all files; the oldest are dropped first.
    pub bytes: Option<u64>,
}

/// Source of the current time.
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
    /// Duration of a partition, at least a microsecond: rows of one partition are flushed together. Must not change
    /// for a store that has files.
    pub partition_width: Duration,
    /// Out-of-order window: how long after its end a partition stays in memory for late rows.
    pub out_of_order_window: Duration,
    /// When an append returns.
    pub ack: Ack,
    /// Whether there is a log. Without one, a crash loses the rows that were not flushed.
    pub log: bool,
    /// Max bytes of the log, which bounds the replay at open. Writers wait at this size; flushes begin at half of it.
    pub wal_bytes: u64,
    /// Size of a log segment. A batch is split if its frame does not fit.
    pub segment_bytes: u64,
    /// Max bytes of rows and names in memory; names take at most three quarters. `None`: a quarter
    /// of the budget's limit. Flushes begin at half of the memory that names leave. A flush copies
    /// the rows of one partition. An open reads all of the log, regardless of the limit.
    pub memtable_bytes: Option<u64>,
    /// How long a series without rows in memory stays known. Then its names leave memory, and handles of it are no longer valid
    /// ([`crate::SeriesError::Departed`]); its rows are found in their files. Sooner once names use half of
    /// `memtable_bytes`.
    pub idle_names: Duration,
    /// Max time that one call, or all calls of a [`crate::WriteBatch`], wait for memory or log before [`crate::SeriesError::WriteStalled`].
    pub write_timeout: Duration,
    /// Whether the store may be another's: a log without ids, of an older build, is then refused instead of taken for the one whose
    /// rows the files have.
    pub shared_store: bool,
    /// Whether to open a damaged log without its unreadable parts. They are counted and set aside, not deleted.
    pub salvage: bool,
    /// Encoding of files.
    pub profile: Profile,
    /// Which rows are kept.
    pub retention: Retention,
    /// Clock for the end of partitions and for retention.
    pub clock: Arc<dyn Clock>,
}

impl Default for SeriesOptions {
    fn default() -> Self {
        Self {
            partition_width: Duration::from_secs(2 * 60 * 60),
            out_of_order_window: Duration::from_secs(10 * 60),
            ack: Ack::default(),
            log: true,
            wal_bytes: 1 << 30,
            segment_bytes: 64 << 20,
            memtable_bytes: None,
            idle_names: Duration::from_secs(2 * 60 * 60),
            write_timeout: Duration::from_secs(30),
            shared_store: false,
            salvage: false,
            profile: Profile::default(),
            retention: Retention::default(),
            clock: Arc::new(SystemClock),
        }
    }
}

/// Min size of a segment: a few of the largest frames.
const MIN_SEGMENT_BYTES: u64 = 512 << 10;
/// Min number of segments in a full log, so that a flush at half of it frees some.
const MIN_SEGMENTS: u64 = 4;

impl SeriesOptions {
    /// Validates the settings and returns the partition width.
    pub(crate) fn validate(&self) -> Result<PartitionWidth, SeriesError> {
        if self.segment_bytes < MIN_SEGMENT_BYTES {
            return Err(SeriesError::Options("segment_bytes is below 512 KiB"));
        }
        if self.wal_bytes / MIN_SEGMENTS < self.segment_bytes {
            return Err(SeriesError::Options(
                "wal_bytes is below four times segment_bytes",
            ));
        }
        PartitionWidth::new(self.partition_width).ok_or(SeriesError::Options(
            "partition_width is below a microsecond or above 292 years",
        ))
    }
}
