//! The time-series engine of Bywash: rows `(source, metric, timestamp, value)`.
//!
//! Rows go into a log and into memory; partitions of time are sealed to Parquet in an [`object_store::ObjectStore`], which is
//! the only way to storage, and read back from there.

#![forbid(unsafe_code)]

mod catalog;
mod db;
mod error;
mod files;
mod frozen;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod head;
mod iterator;
mod keeper;
mod limits;
mod listing;
mod numbers;
mod options;
mod point;
mod query;
mod replay;
mod runs;
mod selector;
mod snapshot;
mod span;
mod stats;
mod tidy;
mod wal;
mod write_batch;

pub use catalog::SeriesHandle;
pub use db::SeriesDb;
pub use error::SeriesError;
pub use iterator::SeriesIterator;
pub use limits::MAX_NAME;
pub use listing::SeriesNames;
pub use options::{Ack, Clock, Profile, Retention, SeriesOptions, SystemClock};
pub use point::{Point, Row};
pub use query::{Aggregate, SeriesPoints};
pub use selector::{Pattern, Selector};
pub use stats::SeriesStats;
pub use write_batch::WriteBatch;
