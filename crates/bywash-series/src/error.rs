//! Errors, by what the caller can do.

use std::path::PathBuf;

/// Why the engine did not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SeriesError {
    /// The storage below failed. Nothing acknowledged is lost; try again.
    #[error("the series store failed at {doing}")]
    Store {
        /// The operation and the object.
        doing: String,
        /// What the store said.
        #[source]
        source: object_store::Error,
    },
    /// The options contradict themselves.
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
    /// A new series found no memory. Known ones are not concerned.
    #[error(
        "no memory for a new series beside {series} in {limit} bytes; raise head_bytes or the memory budget, or use fewer names"
    )]
    TooManySeries {
        /// Series there are.
        series: usize,
        /// What rows and names may take, in bytes.
        limit: u64,
    },
    /// The handle is of another database.
    #[error("there is no series {0}; a handle is of use only to the database that gave it")]
    UnknownHandle(u32),
    /// Memory or log were full for as long as a writer waits. Of a batch, the first `stored` rows are stored.
    #[error("no room for more rows after {waited:?}{}: {stored} rows of the batch are stored; write the rest again later", because(.cause.as_deref()))]
    NoRoom {
        /// Rows of the batch that are stored.
        stored: usize,
        /// How long the writer waited.
        waited: std::time::Duration,
        /// Why the last attempt to seal failed, if it did.
        cause: Option<String>,
    },
    /// The file system failed at the log.
    #[error("cannot {doing} {}: {source}", path.display())]
    Log {
        /// What was being done.
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A write or a sync of the log failed, so nobody knows what of it is on disk. Nothing is stored any more: open the database
    /// again when the disk is well, and write again what was not acknowledged.
    #[error(
        "the log has failed ({cause}) and takes no more rows; mend the disk, then open the database again"
    )]
    LogFailed {
        /// What the file system said.
        cause: String,
    },
    /// Bytes of the log that no crash leaves behind, with whole frames after them. Nothing was changed.
    #[error(
        "the log is damaged in segment {segment} at byte {offset} ({detail}), and whole frames follow; nothing was changed: open with salvage to go on without what cannot be read"
    )]
    DamagedLog {
        /// The number of the file.
        segment: u64,
        /// Where in it.
        offset: u64,
        /// What is wrong there.
        detail: &'static str,
    },
    /// A newer version of this program wrote the log.
    #[error("the log {} has format {format}; go on with a newer program", path.display())]
    NewerLog {
        /// The file.
        path: PathBuf,
        /// Its format.
        format: u32,
    },
    /// The rows of the log need more memory than the database may take.
    #[error(
        "the rows of the log do not fit {limit} bytes of memory; raise head_bytes or the memory budget, and open again"
    )]
    LogTooLarge {
        /// What rows and names may take, in bytes.
        limit: u64,
    },
    /// Another process, or this one, has the database open.
    #[error("the log {} is in use; close the database that uses it first", path.display())]
    Locked {
        /// The folder of the log.
        path: PathBuf,
    },
    /// The thread that keeps house could not be started.
    #[error("the system starts no thread for a series database: {0}")]
    Thread(#[source] std::io::Error),
    /// The database was closed.
    #[error("the series database is closed; open it again")]
    Closed,
    /// The question makes no sense.
    #[error("the series cannot be queried: {0}")]
    Query(&'static str),
    /// The answer would be larger than was asked for.
    #[error(
        "the answer has more than {most} points; ask for fewer series, less time or longer steps"
    )]
    TooManyPoints {
        /// The most points there may be.
        most: usize,
    },
    /// What a file or the manifest says of itself is not true. Nothing of it is returned; the other files are well.
    #[error(
        "{object} in the series store is damaged: {reason}; restore it, or move it away to go on without its rows"
    )]
    DamagedFile {
        /// The object.
        object: String,
        /// What does not match.
        reason: String,
    },
    /// Another process has opened the store to write. Rows not sealed yet are still in this one's log.
    #[error("another process writes to the series store; stop one of them, then open it again")]
    AnotherWriter,
    /// The store cannot replace an object on condition, so two writers could undo each other's work.
    #[error(
        "the series store has no conditional puts; use a folder of Bywash, S3, Google's store or Azure"
    )]
    NoConditionalPut,
    /// The store was written by a newer program.
    #[error(
        "the series store has format {format}, which this program does not know; use a newer one"
    )]
    NewerFormat {
        /// What the manifest says.
        format: u32,
    },
    /// The store's partitions have another length.
    #[error("the series store has partitions of {stored} ns; open it with that span")]
    OtherSpan {
        /// Theirs, in nanoseconds.
        stored: i64,
    },
    /// Rows could not be made a Parquet file. They are still in memory and in the log.
    #[error("rows could not be written as Parquet")]
    Encode(#[from] parquet::errors::ParquetError),
}

fn because(cause: Option<&str>) -> String {
    cause.map_or_else(String::new, |cause| format!(" ({cause})"))
}
