//! What leaves memory for a file: the joint between the head and the sealed files.

/// All rows of one partition of one generation. Nobody writes to it any more.
///
/// A *generation* is a span of the head's life: each row is applied to, and logged under, the one generation its writer
/// entered. A partition may be frozen in several generations (late rows); of rows with one timestamp the higher generation
/// wins, and within a generation duplicates are already resolved.
#[derive(Debug)]
pub(crate) struct Frozen {
    /// `floor(timestamp / span)`, the same of each row.
    pub(crate) partition: i64,
    /// The generation of the head the rows were written in.
    pub(crate) generation: u64,
    /// Sorted by source, then metric; none empty.
    pub(crate) series: Vec<FrozenSeries>,
}

/// The rows of one series, by ascending timestamp, no two alike.
#[derive(Debug)]
pub(crate) struct FrozenSeries {
    /// The source's name.
    pub(crate) source: std::sync::Arc<str>,
    /// The metric's name.
    pub(crate) metric: std::sync::Arc<str>,
    /// Nanoseconds since the Unix epoch.
    pub(crate) timestamps: Vec<i64>,
    /// The values, beside their timestamps.
    pub(crate) values: Vec<f64>,
}
