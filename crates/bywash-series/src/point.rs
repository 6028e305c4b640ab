//! What is stored.

/// One value of one series.
///
/// The value is kept bit by bit: NaN payloads, `-0.0` and infinities come back as they were written.
#[derive(Debug, Clone, Copy)]
pub struct Point {
    /// Nanoseconds since the Unix epoch, any `i64`.
    pub timestamp: i64,
    /// The value.
    pub value: f64,
}

/// A row with its names spelt out.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// Who measured, for example a host.
    pub source: &'a str,
    /// What was measured.
    pub metric: &'a str,
    /// Nanoseconds since the Unix epoch, any `i64`.
    pub timestamp: i64,
    /// The value.
    pub value: f64,
}
