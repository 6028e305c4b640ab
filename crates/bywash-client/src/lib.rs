//! Reads and writes a running Bywash server's buckets from other processes of its machine, without HTTP and without a copy.
//!
//! The server of this user listens on a unix socket. [`Client`] finds it; [`Bucket::get`] returns a
//! [`View`] of the server's own memory, which stays as it is until the view is dropped. All
//! processes of the machine share the data that any process has read.
//!
//! ```no_run
//! let bucket = bywash_client::Client::connect()?.bucket("first");
//! let object = bucket.get("flights-3m.parquet")?;
//! let bytes: usize = object.bytes.segments().map(<[u8]>::len).sum();
//! println!("{bytes} bytes, hit: {}", object.hit);
//! # Ok::<(), bywash_client::Error>(())
//! ```
//!
//! No thread and no runtime: calls block, each with a deadline ([`Client::with_deadline`]). After a
//! fork, parent and child both continue. The protocol is in [`message`] and `docs/formats.md`;
//! other languages use the C interface of `bywash-c`.

#[macro_use]
mod planted;

mod bucket;
mod client;
mod connection;
mod download;
mod error;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod get;
pub mod limits;
pub mod message;
mod pending;
pub mod place;
mod pool;
mod sys;
mod view;
pub mod wire;
mod writer;

pub use bucket::{Bucket, ListOptions, ListPage, Metadata, PutOptions, WriteCondition, Written};
pub use client::{Client, ServerInfo};
pub use download::Download;
pub use error::{Error, Result};
pub use get::{GetOptions, Object, PendingGet, Ranges, RangesOf, byte_range};
pub use message::{ByteRange, ErrorCode};
pub use pending::Pending;
pub use view::View;
pub use writer::{CapturedWrite, Writer};
