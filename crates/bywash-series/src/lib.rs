//! The time-series engine of Bywash: rows `(source, metric, timestamp, value)`.
//!
//! Rows go into a log and into memory; partitions of time are sealed to Parquet in an [`object_store::ObjectStore`], which is
//! the only way to storage, and read back from there.

#![forbid(unsafe_code)]

#[allow(dead_code, reason = "iterators, which come next, read it")]
mod catalog;
mod db;
mod error;
#[allow(dead_code, reason = "the front, which comes next, seals and reads")]
mod files;
mod frozen;
#[allow(dead_code, reason = "iterators, which come next, read it")]
mod head;
mod keeper;
mod options;
mod point;
mod replay;
mod span;
mod stats;
mod wal;

pub use catalog::{MAX_NAME, SeriesHandle};
pub use db::SeriesDb;
pub use error::SeriesError;
pub use options::{Ack, Clock, Profile, Retention, SeriesOptions, SystemClock};
pub use point::{Point, Row};
pub use stats::SeriesStats;
