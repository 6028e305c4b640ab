//! Time-series engine of Bywash: rows `(source, metric, timestamp, value)`.
//!
//! A write appends rows to a write-ahead log and to a memtable. Partitions of time are flushed to Parquet files in an
//! [`object_store::ObjectStore`], the only way to storage.

#![forbid(unsafe_code)]

#[macro_use]
mod planted;

mod background;
mod backpressure;
mod calendar;
mod catalog;
mod checksum;
mod compaction;
mod db;
mod departures;
mod directory;
mod error;
mod flush;
mod flush_plan;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod grouping;
mod limits;
mod manifest;
mod memtable;
mod options;
mod orphans;
mod parquet;
mod partition;
mod point;
mod query;
mod replay;
mod retention;
mod schedule;
mod stats;
mod varint;
mod wal;
mod write_batch;

pub use backpressure::StoreFailure;
pub use catalog::SeriesHandle;
pub use db::{PreparedDb, SeriesDb};
pub use error::SeriesError;
pub use limits::MAX_NAME;
pub use options::{Ack, Clock, Profile, Retention, SeriesOptions, SystemClock};
pub use point::{Point, Row};
pub use query::{
    Aggregate, LeftOut, Pattern, SelectedPoints, Selector, SeriesIterator, SeriesNames,
    SeriesPoints,
};
pub use stats::SeriesStats;
pub use write_batch::WriteBatch;
