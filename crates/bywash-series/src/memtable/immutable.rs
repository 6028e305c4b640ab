//! Immutable memtables: rows on their way from memory to files.

/// All rows of some partitions of one generation, no longer written to.
///
/// A *generation* is an epoch of the memtable. Each row is applied and logged under the one generation its writer
/// entered. Late rows may add a partition to several generations. On equal timestamps the newest generation wins;
/// within a generation duplicates are already resolved.
#[derive(Debug)]
pub(crate) struct ImmutableMemtable {
    /// `floor(timestamp / width)` of the rows, ascending; at least one.
    pub(crate) partitions: Vec<i64>,
    /// Generation in which the rows were written.
    pub(crate) generation: u64,
    /// Sorted by source, metric and partition: a series has columns of its own for each. None are empty.
    pub(crate) series: Vec<SeriesColumns>,
}

/// Columns of one series, by ascending timestamp, without duplicates.
#[derive(Debug)]
pub(crate) struct SeriesColumns {
    /// Name of the source.
    pub(crate) source: std::sync::Arc<str>,
    /// Name of the metric.
    pub(crate) metric: std::sync::Arc<str>,
    /// Nanoseconds since the Unix epoch.
    pub(crate) timestamps: Vec<i64>,
    /// Values, parallel to the timestamps.
    pub(crate) values: Vec<f64>,
}
