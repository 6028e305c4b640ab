//! Points and rows.

/// A sample: one value of one series.
///
/// Values keep all bits: NaN payloads, `-0.0` and infinities are returned as written.
#[derive(Debug, Clone, Copy)]
pub struct Point {
    /// Nanoseconds since the Unix epoch, any `i64`.
    pub timestamp: i64,
    /// The value.
    pub value: f64,
}

/// A sample with the names of its series.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// The origin of the measurement, for example a host.
    pub source: &'a str,
    /// The measured quantity.
    pub metric: &'a str,
    /// Nanoseconds since the Unix epoch, any `i64`.
    pub timestamp: i64,
    /// The value.
    pub value: f64,
}
