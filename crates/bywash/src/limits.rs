//! Limits on counts and sizes of things that clients or origins can cause.
//!
//! Each has a unit and a reason. Values that only tune speed, and time limits, stay with the code they tune.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Bytes of a bucket's name: the rule of S3.
pub(crate) const MAX_BUCKET_NAME_BYTES: RangeInclusive<usize> = 3..=63;
/// Objects deleted by one request to an origin, as in the S3 protocol.
pub(crate) const MAX_DELETES_PER_REQUEST: usize = 1000;
/// Such requests in flight of one stream of deletes: enough to hide their latency.
pub(crate) const MAX_DELETE_REQUESTS_IN_FLIGHT: usize = 4;
/// Parts in flight of one upload through [`object_store::ObjectStore`], each with a buffer of a chunk.
pub(crate) const MAX_PARTS_IN_FLIGHT: usize = 4;
/// Bytes to which pieces of a part's body are joined for a store that writes each in one step: a step costs little beside them.
/// Charged while there is room; without it pieces pass as they come.
pub(crate) const MAX_JOINED_BYTES: usize = 256 << 10;
/// Time that pieces of a part wait for the next one before they are written: a client that stops holds no memory.
pub(crate) const MAX_JOIN_WAIT: Duration = Duration::from_millis(100);
/// Parts of an upload, as in the S3 protocol.
pub(crate) const MAX_PARTS: u16 = 10_000;
/// Bytes of a part of an upload, as in the S3 protocol.
pub(crate) const MAX_PART_BYTES: u64 = 5 << 30;

/// Bytes that what is known of objects (version, validator, headers) may take in a whole engine, at most: a thirty-second of the
/// memory ceiling, within [`MAX_KNOWN_BYTES`]. An object with a short key and no headers takes about 0.7 KiB.
pub(crate) fn max_known_bytes(memory: u64) -> u64 {
    (memory / 32).clamp(*MAX_KNOWN_BYTES.start(), *MAX_KNOWN_BYTES.end())
}

/// Bytes that keys known to be absent may take in a whole engine, at most: a 128th of the memory ceiling, within
/// [`MAX_ABSENT_BYTES`]. A short key takes about 0.3 KiB.
pub(crate) fn max_absent_bytes(memory: u64) -> u64 {
    (memory / 128).clamp(*MAX_ABSENT_BYTES.start(), *MAX_ABSENT_BYTES.end())
}

/// Bounds of [`max_known_bytes`], in bytes: enough for the small objects that little memory holds, and no more than the program
/// itself takes where memory is large.
pub(crate) const MAX_KNOWN_BYTES: RangeInclusive<u64> = (8 << 20)..=(128 << 20);
/// Bounds of [`max_absent_bytes`], in bytes: a scan for keys that never were costs no more.
pub(crate) const MAX_ABSENT_BYTES: RangeInclusive<u64> = (4 << 20)..=(16 << 20);
/// Bytes of the tables of known objects and absent keys that the budget does not cover: what they may take at up to 256 MiB of
/// memory. The program's part of a server's resident memory has room for it. What their bounds exceed it by is charged.
pub(crate) const MAX_UNCHARGED_TABLE_BYTES: u64 = 12 << 20;

/// Ranged GETs in flight of one bucket: more than a reader of columns sends at once, which would wait for a round trip where it
/// reads directly and does not; few enough for any origin.
pub(crate) const MAX_RANGED_GETS: usize = 64;
/// Requests for the version of an object that go on in one bucket after all their readers left, so that a client with less
/// patience than its origin needs finds the response when it comes again. Others end with their last reader: there are no more of
/// them than reads in progress.
pub(crate) const MAX_ABANDONED_OPENS: usize = 64;
/// Those of all buckets that hold a block for the data they wait for take the memory limit divided by this at most: clients that leave
/// a silent origin must not keep memory from others.
pub(crate) const MAX_ABANDONED_MEMORY_DIVISOR: u64 = 8;
/// Bodies that copy pieces out of their blocks at once, because the memory for loans is used up: as many as an endpoint has
/// connections, unless set otherwise. More wait for one to end.
pub(crate) const MAX_COPIED_BODIES: usize = 1024;
/// Bytes of one copied piece: half of what an endpoint buffers for a connection, so that it asks for the next one at once.
pub(crate) const MAX_PIECE_BYTES: u64 = 32 << 10;
/// Bytes of the first copied piece of a body in the smallest of memories.
pub(crate) const MIN_PIECE_BYTES: u64 = 512;
/// Merged reads of one `get_ranges` at once: more than the range fetches of a long one, fewer than [`MAX_RANGED_GETS`].
pub(crate) const MAX_MERGED_READS: usize = 8;
/// Blocks that one look examines for the first absent one: some 100 ns each.
pub(crate) const MAX_PROBED_BLOCKS: u32 = 4096;
/// Sequential streams that a bucket remembers, the latest: a look through all of them takes some 50 ns.
pub(crate) const MAX_RUNS: usize = 64;
/// Latencies that a bucket remembers of each kind of request: some seconds of a busy bucket.
pub(crate) const MAX_LATENCIES: usize = 128;
/// Objects read at once by [`crate::Bucket::warm`]: enough to hide the latency of small ones, few beside what clients read.
pub(crate) const MAX_WARMED_AT_ONCE: usize = 8;
/// Failures that [`crate::Changed`] names: a person reads no more.
pub const MAX_FAILURES_NAMED: usize = 20;
/// Objects whose reads are counted for [`crate::traffic::Traffic::hottest`]: some times what a page shows, so that those shown
/// are right.
pub(crate) const MAX_HOT_OBJECTS: usize = 256;

/// Bytes of an origin's response to a request that is no data, unless the request expects more.
pub(crate) const MAX_RESPONSE_BYTES: usize = 64 << 10;
/// Bytes of an origin's page of parts: a thousand of them.
pub(crate) const MAX_PARTS_PAGE_BYTES: usize = 4 << 20;
/// Bytes of an origin's page of uploads: a thousand whose keys of 1,024 bytes are encoded, and whose owners have long names.
pub(crate) const MAX_UPLOADS_PAGE_BYTES: usize = 8 << 20;
/// Bytes of an Azure blob's list of blocks: 50,000 committed ones, and as many that are not.
pub(crate) const MAX_BLOCK_LIST_BYTES: usize = 32 << 20;

/// Bytes of an origin's page of objects: five thousand of Azure's, with their metadata.
pub(crate) const MAX_LIST_PAGE_BYTES: usize = 16 << 20;
/// Headers of an origin's response by HTTP/1, the HTTP client's default: some times those of any store. Their bytes are at most
/// 400 KiB.
#[cfg(test)]
pub(crate) const MAX_RESPONSE_HEADERS: usize = 100;
/// Bytes of the headers of an origin's response by HTTP/2.
pub(crate) const MAX_RESPONSE_HEADERS_BYTES: u32 = 64 << 10;

/// Redirects followed for one request, as many as browsers and other clients follow, or fewer.
pub(crate) const MAX_REDIRECTS: usize = 10;
/// Bytes of an object taken from a web server that does not say its length. It is read whole to be measured, into memory that
/// the budget does not see; so it must be short.
pub(crate) const MAX_MEASURED_BYTES: u64 = 1 << 20;
/// Bytes of an object that is handed out whole when a web server sends it whole: what was not asked for is here anyway.
pub(crate) const MAX_WHOLE_BYTES: u64 = 8 << 20;
/// Bodies of web servers parked at once by an origin. Each keeps a connection, and what the kernel holds of it, but no memory of
/// ours beyond a piece.
pub(crate) const MAX_PARKED_BODIES: usize = 16;

/// Served folders that the process keeps open. A closed one is opened again in some microseconds; descriptors are for
/// connections and files.
pub const MAX_OPEN_FOLDERS: usize = 256;
/// Files of folders that the process keeps open for reads that need them again, one a read at most: they are among the files that a
/// server counts of each connection, and few beside the 1,024 descriptors that other programs get. More reads go by the key, and
/// end with an error if the object is replaced before they have all of it.
pub(crate) const MAX_HELD_FILES: usize = 256;
/// Bytes of one component of a file's path: the limit of Linux file systems.
pub(crate) const MAX_COMPONENT_BYTES: usize = 255;
/// Deletes of one stream under way at once in a folder: enough to keep a disk busy, few enough not to take all blocking threads.
pub(crate) const MAX_FOLDER_DELETES: usize = 8;
/// Folders whose staged leftovers are looked for in one round of the sweep, every 10 s: some milliseconds. More take turns.
pub(crate) const MAX_FOLDERS_SWEPT: usize = 64;
/// Staged leftovers removed from one folder in one round of the sweep; their names are in memory. The rest goes in the next.
pub(crate) const MAX_LEFTOVERS_SWEPT: usize = 1024;
