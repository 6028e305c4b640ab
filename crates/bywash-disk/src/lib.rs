//! The tier below memory: blocks of objects on a disk, bounded, checked, and there again after a crash.
//!
//! A folder has segments of one size, each allocated whole. Blocks are appended in batches to the
//! newest segment; when the folder is full, the oldest segment is used again in place. An index in
//! memory has the place and the checksum of each block: a hit is one read, and any other bytes than
//! those written are a miss. A disk that fails makes the tier read-only or turns it off until it
//! works again. Layers, each importing only from those before it: `sync` the locks of models,
//! `format` the bytes, `erasures` of versions, `marks` and `storage` files, `health` the choice of
//! I/O to try, `index` and `versions` the tables, `admission` the choice of blocks to write,
//! `segment` one segment, `recovery`, `tier` the whole, `readers` its threads. Apart from these,
//! `slots` are temporary files for blocks that have no other copy.

#![forbid(unsafe_code)]

#[macro_use]
mod planted;

mod admission;
mod clock;
mod erasures;
mod error;
mod format;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod health;
mod index;
mod limits;
mod marks;
#[cfg(all(any(test, feature = "testing"), not(loom)))]
mod memory_storage;
mod readers;
mod recovery;
mod segment;
mod slots;
mod stats;
mod storage;
mod sync;
#[cfg(all(feature = "testing", not(loom)))]
pub mod testing;
mod tier;
mod versions;

pub use error::DiskError;
use error::disk_error;
pub use format::VersionKey;
pub use health::{TierState, TierStatus};
pub use readers::{ReadJob, Readers};
pub use slots::{Slot, SlotError, SlotFiles, SlotOptions, SlotStats};
pub use stats::TierStats;
pub use tier::{Batch, Declined, Tier, TierOptions, Verification};

/// One version of an object, cut into blocks of one size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionRecord {
    /// Address of the origin, with its endpoint.
    pub url: String,
    /// Key of the object at the origin.
    pub object: String,
    /// The origin's name of the version: a strong ETag or a time of modification.
    pub validator: String,
    /// Bytes of the object.
    pub size: u64,
    /// Bytes of each block but the last.
    pub block_size: u32,
}

/// A block to be written.
#[derive(Debug, Clone, Copy)]
pub struct Block<'a> {
    /// Version it belongs to.
    pub record: &'a VersionRecord,
    /// Key of `record`.
    pub version: VersionKey,
    /// Number of the block in the object.
    pub number: u32,
    /// Its bytes, written without a copy if they begin at a multiple of 4 KiB in memory.
    pub bytes: &'a [u8],
}
