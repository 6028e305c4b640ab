//! Limits on counts and sizes that clients or origins can cause.
//!
//! Each has a unit and a reason. Tuning values and time limits stay with the code they tune.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Bytes of a bucket's name: the rule of S3.
pub(crate) const MAX_BUCKET_NAME_BYTES: RangeInclusive<usize> = 3..=63;
/// Objects deleted by one request to an origin, as in the S3 protocol.
pub(crate) const MAX_DELETES_PER_REQUEST: usize = 1000;
/// Delete requests in flight of one stream of deletes: enough to hide their latency.
pub(crate) const MAX_DELETE_REQUESTS_IN_FLIGHT: usize = 4;
/// Parts in flight of one upload through [`object_store::ObjectStore`], each with a buffer of a chunk.
pub(crate) const MAX_PARTS_IN_FLIGHT: usize = 4;
/// Bytes up to which pieces of a part's body are joined, for a store with a high cost per write. Charged to the
/// budget if there is memory, else pieces pass unjoined.
pub(crate) const MAX_JOINED_BYTES: usize = 256 << 10;
/// Time that pieces of a part wait for the next one before they are written: a stalled client holds no memory.
pub(crate) const MAX_JOIN_WAIT: Duration = Duration::from_millis(100);

/// Percent of the memory that can be guaranteed to reads, or to writes. The other side then has at least 60 %, which is more than the
/// largest request holds: a chunk of half the memory, and the buffers of a copy.
pub(crate) const MAX_GUARANTEED_PERCENT: u8 = 40;

/// Divisor of the memory limit: copies through the engine hold at most this part, so at most limit / 2 / (chunk + read buffers) copies
/// run at a time. Further ones wait in order. The rest of the uploads' share is for the writes of clients.
pub(crate) const MAX_COPIES_MEMORY_DIVISOR: u64 = 2;

/// Blocks that wait to be written to the disk tier, about 160 bytes each in addition to evicted ones. Further ones
/// stay in memory only.
pub(crate) const MAX_QUEUED_WRITES: usize = 16 << 10;
/// Blocks in memory whose time of arrival the disk tier knows, half a KiB each. Further ones are not written again
/// when their copies on the disk make room for others.
pub(crate) const MAX_RESIDENTS: usize = 64 << 10;

/// Maximum bytes of the table of known objects (version, validator, headers) in an engine: a thirty-second of the
/// memory ceiling, within [`MAX_KNOWN_BYTES`]. An object with a short key and no headers takes about 0.7 KiB.
pub(crate) fn max_known_bytes(memory: u64) -> u64 {
    (memory / 32).clamp(*MAX_KNOWN_BYTES.start(), *MAX_KNOWN_BYTES.end())
}

/// Maximum bytes of the table of absent keys in an engine: a 128th of the memory ceiling, within
/// [`MAX_ABSENT_BYTES`]. A short key takes about 0.3 KiB.
pub(crate) fn max_absent_bytes(memory: u64) -> u64 {
    (memory / 128).clamp(*MAX_ABSENT_BYTES.start(), *MAX_ABSENT_BYTES.end())
}

/// Bounds of [`max_known_bytes`]: enough for the small objects that fit little memory, and no more than the program's
/// own memory where the ceiling is high.
pub(crate) const MAX_KNOWN_BYTES: RangeInclusive<u64> = (8 << 20)..=(128 << 20);
/// Bounds of [`max_absent_bytes`]: a scan for absent keys costs no more.
pub(crate) const MAX_ABSENT_BYTES: RangeInclusive<u64> = (4 << 20)..=(16 << 20);
/// Bytes of both tables that are not charged to the budget: their maximum at up to 256 MiB of memory. The program's
/// part of a server's resident memory covers them. The excess is charged.
pub(crate) const MAX_UNCHARGED_TABLE_BYTES: u64 = 12 << 20;

/// Damaged files of a server that are shown, some hundred bytes each; further ones are only logged.
pub(crate) const MAX_DAMAGED_FILES: usize = 100;

/// Ranged GETs in flight of one bucket: more than a columnar reader sends at once, so that it does not wait a round
/// trip longer than without the cache; few enough for any origin.
pub(crate) const MAX_RANGED_GETS: usize = 64;
/// Version requests that continue in one bucket without readers. A client with a shorter timeout than its origin then
/// finds the response when it retries. Further requests are cancelled with their last reader, so there are never
/// more than reads in progress.
pub(crate) const MAX_ABANDONED_FLIGHTS: usize = 64;
/// Divisor of the memory limit: the maximum for version requests without readers, of all buckets, that hold a block
/// for their data. Clients that leave a silent origin must not keep memory from others.
pub(crate) const MAX_ABANDONED_MEMORY_DIVISOR: u64 = 8;
/// Bodies that copy pieces out of their blocks at once, when the memory for loans is used up: as many as an
/// endpoint's default number of connections. Further ones wait.
pub(crate) const MAX_COPIED_BODIES: usize = 1024;
/// Bytes of one copied piece: half of an endpoint's buffer for a connection, so that the endpoint polls for the next
/// one at once.
pub(crate) const MAX_PIECE_BYTES: u64 = 32 << 10;
/// Bytes of the first copied piece of a body at the minimum memory.
pub(crate) const MIN_PIECE_BYTES: u64 = 512;
/// Merged reads of one `get_ranges` at once: more than the range fetches of a long read, fewer than
/// [`MAX_RANGED_GETS`].
pub(crate) const MAX_MERGED_READS: usize = 8;
/// Maximum blocks of one lease. Longer ranges are read by bodies: pins and parts of more would take megabytes in addition to the blocks.
pub(crate) const MAX_LEASE_BLOCKS: u64 = 16_384;
/// Blocks that a body looks up at a time for the first absent one, some 100 ns each: as many as hide a request.
pub(crate) const MAX_PROBED_BLOCKS: u32 = 64;
/// Sequential streams tracked in a bucket, the latest: a scan through all takes some 50 ns.
pub(crate) const MAX_STREAMS: usize = 64;
/// Latencies kept per request class of a bucket: some seconds of a busy bucket.
pub(crate) const MAX_LATENCIES: usize = 128;
/// Objects read at once by [`crate::Bucket::warm`]: enough to hide the latency of small ones, few compared with clients'
/// reads.
pub(crate) const MAX_WARMED_AT_ONCE: usize = 8;
/// Maximum entries of a bucket whose warning is remembered, so that each is warned of once; see [`crate::Unlistable`].
pub(crate) const MAX_WARNED_ENTRIES: usize = 1000;
/// Objects counted for [`crate::traffic::Traffic::hottest`]: several times as many as a page shows, so that the shown
/// ones are accurate.
pub(crate) const MAX_HOT_OBJECTS: usize = 256;
/// Operations with latencies of their own, 17 KiB each: more than the endpoints have. Others share one entry.
pub(crate) const MAX_COUNTED_OPERATIONS: usize = 64;
/// Buckets with read latencies of their own, 8 KiB each: the first ones read.
pub const MAX_TIMED_BUCKETS: usize = 64;
