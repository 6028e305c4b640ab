//! Errors, by the action that a caller can take.

use std::path::PathBuf;

/// Error of the series engine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SeriesError {
    /// The object store failed. No acknowledged row is lost; retry.
    #[error("the series store failed at {operation}")]
    Store {
        /// The operation and the object.
        operation: String,
        /// Error of the store.
        #[source]
        source: object_store::Error,
    },
    /// The options contradict each other.
    #[error("the series options cannot be used: {0}")]
    Options(&'static str),
    /// The name of a source or metric is too long. Nothing was stored.
    #[error(
        "the {what}'s name has {bytes} bytes; at most {} are stored: use a shorter one",
        crate::MAX_NAME
    )]
    NameTooLong {
        /// `source` or `metric`.
        what: &'static str,
        /// Its length.
        bytes: usize,
    },
    /// There is no memory for a new series. Known series are not affected. Writes by name wait for it instead, see
    /// [`Self::WriteStalled`].
    #[error(
        "no memory for a new series: names take at most {limit} bytes, and {series} series are in memory; raise memtable_bytes or the memory budget (--memory of a server), or use fewer names"
    )]
    TooManySeries {
        /// Number of known series.
        series: usize,
        /// Max bytes of names.
        limit: u64,
    },
    /// The series of the handle has left memory: it had no row there for [`crate::SeriesOptions::idle_names`], or not lately
    /// while names were many. Its rows are in files. Nothing of it was stored; get its handle again by its names.
    #[error(
        "the series of this handle has left memory, having had no rows; get its handle again by its names"
    )]
    Departed,
    /// The handle belongs to another database.
    #[error("there is no series {0}; a handle is valid only in the database that returned it")]
    UnknownHandle(u32),
    /// Memory or log stayed full for the whole write timeout, also for the names of new series. The first `stored` rows of the batch are stored, and any of
    /// the others. A row that is written again replaces itself.
    #[error("memory or log still full after {waited:?}{}: the first {stored} rows of the batch are stored; write all others again later", parenthesized(.cause.as_deref()))]
    WriteStalled {
        /// Leading rows of the batch that are stored.
        stored: usize,
        /// How long the writer waited.
        waited: std::time::Duration,
        /// Error of the last flush, if it failed; else, for a new series, how many use the memory.
        cause: Option<String>,
    },
    /// A file operation on the log failed.
    #[error("cannot {operation} {}: {source}", path.display())]
    Log {
        /// The operation.
        operation: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The error of the file system.
        #[source]
        source: std::io::Error,
    },
    /// A write or sync of the log failed, so that it is unknown which bytes are on disk. All further writes fail.
    /// Repair the disk, open the database again, and repeat the writes that were not acknowledged.
    #[error(
        "the log has failed ({cause}) and accepts no more rows; repair the disk, then open the database again"
    )]
    LogFailed {
        /// The error of the file system.
        cause: String,
    },
    /// The log has invalid bytes before valid frames, which no crash causes. Nothing was changed.
    #[error(
        "the log is damaged in segment {segment} at byte {offset} ({detail}), and valid frames follow; nothing was changed: open with salvage to skip the unreadable part"
    )]
    DamagedLog {
        /// Number of the segment.
        segment: u64,
        /// Offset of the damage.
        offset: u64,
        /// Description of the invalid part.
        detail: &'static str,
    },
    /// A newer version of this program wrote the log.
    #[error("the log {} has format {format}; use a newer program", path.display())]
    NewerLog {
        /// The segment.
        path: PathBuf,
        /// Its format.
        format: u32,
    },
    /// The database is already open, in this or another process.
    #[error("the log {} is in use; close the database that uses it first", path.display())]
    Locked {
        /// The folder of the log.
        path: PathBuf,
    },
    /// The background thread could not be started.
    #[error("the thread of a series database could not be started: {0}")]
    Thread(#[source] std::io::Error),
    /// The database was closed.
    #[error("the series database is closed; open it again")]
    Closed,
    /// The query is invalid.
    #[error("the series cannot be queried: {0}")]
    Query(&'static str),
    /// The result exceeds the limit on points.
    #[error("the result has more than {max} points; query fewer series, less time or longer steps")]
    TooManyPoints {
        /// Max points of the result.
        max: usize,
    },
    /// The query selects more series than one may have.
    #[error("the query selects more than {max} series; select fewer, or less time")]
    TooManySelected {
        /// Max series of a query.
        max: usize,
    },
    /// The memory budget does not have the memory for the result now. Retry later, or read less at
    /// once.
    #[error(
        "no memory for {bytes} more bytes of a read of series; send it again later, select fewer series or less time, or raise the \
         memory budget (--memory of a server)"
    )]
    NoMemory {
        /// Bytes that were not available.
        bytes: u64,
    },
    /// A file or the manifest is damaged. None of its rows are returned; other files are not affected.
    #[error(
        "{object} in the series store is damaged: {reason}; restore it, or move it away to continue without its rows"
    )]
    DamagedFile {
        /// The object.
        object: String,
        /// Description of the mismatch.
        reason: String,
    },
    /// A data file that the manifest names is not in the store.
    #[error(
        "{object} is missing from the series store; restore it to read its rows, or have the reader open the store again if its \
         writer has merged it"
    )]
    MissingFile {
        /// The object.
        object: String,
    },
    /// Another process opened the store for writing. Nothing more is written here. Rows that were not flushed are still in
    /// this process' log, and are flushed when it opens the store again.
    #[error("another process writes to the series store; stop one of them, then open it again")]
    AnotherWriter,
    /// The log's rows are not in this store's files, as far as the store knows: they belong to another store, or to this one
    /// more than eight writers ago. Nothing was changed.
    #[error(
        "the log {} has rows of another series store, or of this one long ago; open it with its own store, or move it away to continue without its rows",
        path.display()
    )]
    ForeignLog {
        /// The folder of the log.
        path: PathBuf,
    },
    /// There is nothing to read: the store has no manifest.
    #[error("there is no series database: the store has no manifest; check the place")]
    NoDatabase,
    /// The store has no conditional puts, or ignores their conditions, so two writers could overwrite each other's manifests.
    #[error(
        "the series store has no conditional puts, or ignores their conditions; use a folder of Bywash, S3, Google's store or \
         Azure"
    )]
    NoConditionalPut,
    /// A newer program wrote the store.
    #[error(
        "the series store has format {format}, which this program does not know; use a newer one"
    )]
    NewerFormat {
        /// Format of the manifest.
        format: u32,
    },
    /// The store has partitions of another width.
    #[error("the series store has partitions of {stored} ns; open it with that partition width")]
    PartitionWidthMismatch {
        /// Partition width of the store, in nanoseconds.
        stored: i64,
    },
    /// Rows could not be encoded as Parquet. They are still in memory and in the log.
    #[error("rows could not be written as Parquet")]
    Encode(#[from] parquet::errors::ParquetError),
}

impl SeriesError {
    /// Text of the error with the texts of its causes.
    #[must_use]
    pub fn with_causes(&self) -> String {
        let mut text = self.to_string();
        let mut source = std::error::Error::source(self);
        while let Some(cause) = source {
            let of_cause = cause.to_string();
            // Some errors repeat their cause.
            if !text.contains(&of_cause) {
                text = format!("{text}: {of_cause}");
            }
            source = cause.source();
        }
        text
    }

    /// Counts rows that were stored before the rows of this error.
    pub(crate) fn after_rows(mut self, rows: usize) -> Self {
        if let Self::WriteStalled { stored, .. } = &mut self {
            *stored += rows;
        }
        self
    }
}

fn parenthesized(cause: Option<&str>) -> String {
    cause.map_or_else(String::new, |cause| format!(" ({cause})"))
}
