//! The engine of Bywash: one cached, budgeted path between object storage and the threads that read and write it.
//!
//! [`Engine`] owns the memory budget, the block pool and the origins. [`Engine::bucket`] returns a [`Bucket`], which
//! implements [`object_store::ObjectStore`]: any user of that trait can use the cache. [`Engine::scratch`] lends memory of the same
//! budget to programs that embed the engine: blocks that are evicted to temporary files.

#![forbid(unsafe_code)]

#[macro_use]
mod planted;

mod block_kind;
mod bucket;
mod bucket_options;
mod byte_quota;
mod cache_admin;
mod cgroup;
pub mod cluster;
pub mod cluster_uploads;
mod conditional_put;
mod consistency;
mod content_check;
mod copy_memory;
mod cost;
mod damage;
mod delete;
mod disk;
mod engine;
mod error;
mod file_target;
mod frame_buffer;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod io;
mod key_digest;
mod key_turns;
mod left_out;
mod limits;
mod list;
mod open_upload;
mod outcome;
mod part_body;
mod progress;
mod read;
pub mod records;
mod rename;
mod retry;
mod rewrite;
mod scratch;
mod shared;
mod spill;
mod stats;
mod store_trait;
pub mod traffic;
pub mod upload;
mod verify;
mod versions;
mod write;
mod write_cache;
mod written_blocks;

pub use bucket::Bucket;
pub use bucket_options::{BucketOptions, Caching};
pub use byte_quota::{ByteQuota, QuotaPermit};
pub use bywash_disk::SlotError;
#[cfg(feature = "testing")]
pub use bywash_disk::testing;
pub use bywash_mem::{
    BlockSlice, FreezeError, LimitError, Overlap, Reservation, Segments, Share, SharedMemory,
    TailReader, WriteAtBuffer, WriteAtError, WriteAtOptions, WriteClaim,
};
/// The stores below the engine.
pub use bywash_store as origin;
pub use bywash_store::{
    CompleteOptions, ContentDigest, DeleteCondition, LeftOut, ListedPart, ListedParts,
    MAX_FAILURES_NAMED, MAX_OPEN_FOLDERS, Omission, Omissions, Origin, OriginError, OriginUrl,
    OriginUrlError, PartBody, RunningDigest, StatusError, UploadedPart, staged_file, time,
};
pub use cache_admin::{CacheChange, CacheExplanation, CachedObject, CachedPage};
pub use cgroup::available_memory;
pub use consistency::{Consistency, ParseConsistencyError};
pub use copy_memory::{CopyMemory, CopyReads};
pub use cost::Cost;
pub use damage::DamagedFile;
pub use disk::{DISK_THREADS, DiskOptions, DiskVerification};
pub use engine::{
    BucketInfo, ByteCharge, ByteLimit, CacheLimits, DiskLimit, Engine, EngineBuilder, MemoryLimit,
    MemoryShares, WrapOptions,
};
pub use error::EngineError;
pub use key_digest::DigestInKey;
pub use key_turns::HeldKeys;
pub use left_out::Unlistable;
pub use limits::MAX_TIMED_BUCKETS;
pub use outcome::{CacheOutcome, ReadInfo};
pub use read::{
    Download, DownloadOptions, DownloadedFile, FileDownloadOptions, Lease, LeasedRead, MayBeStale,
    PieceByPiece, ResidentObject, SharedBytes, clone_error,
};
pub use retry::{RetryPolicy, is_transient};
pub use scratch::{
    Scratch, ScratchBlock, ScratchBuffer, ScratchError, ScratchOptions, ScratchPin,
    ScratchPinError, ScratchStats,
};
pub use stats::{
    BucketMemory, BucketStats, BudgetStats, DiskStats, FileDownloadStats, HEDGED_PERCENT,
    KindStats, LocalStats, LocalStatsSource, MemoryStats, ObjectStats, PoolStats, Stats,
};
pub use upload::{
    BlockingUploadWriter, Upload, UploadOptions, UploadResult, UploadToken, UploadWriter,
};
pub use verify::Verify;
pub use write::PutStreamOptions;
pub use write_cache::WriteCache;

/// The README's example, compiled and run with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// The examples of the page on doors, compiled and run with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/doors.md")]
struct Doors;
