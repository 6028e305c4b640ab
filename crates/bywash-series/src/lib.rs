//! The time-series engine of Bywash: rows `(source, metric, timestamp, value)`.
//!
//! Rows go into a log and into memory; partitions of time are sealed to Parquet in an [`object_store::ObjectStore`], which is
//! the only way to storage, and read back from there.

#![forbid(unsafe_code)]

mod error;
mod frozen;
mod point;

pub use error::SeriesError;
pub use point::{Point, Row};
