//! Every limit on counts, sizes and durations that a client can cause: its unit, and the reason for its value.
//!
//! Those with a field in [`Limits`](crate::Limits) can be set; the others are fixed.

use std::time::Duration;

/// Connections open at once. Each costs a task and its buffers. Beyond it, idle connections are
/// closed, oldest first; if none is idle, new ones wait in the listener's backlog.
pub const MAX_CONNECTIONS: usize = 1024;
/// Bytes of one request head: S3 allows 8 KiB of headers, presigned URLs add a few more.
pub const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Headers of one request: S3 allows 8 KiB of them, and the shortest take some 20 bytes.
pub const MAX_HEADERS: usize = 256;
/// Bytes of an unfinished head that are not counted: what every connection's first buffer holds.
pub(crate) const MAX_FREE_HEAD_BYTES: usize = 4 * 1024;
/// Bytes of all unfinished heads together are at most the memory limit divided by this. Heads are
/// 1 to 2 KiB long and complete at once, so few count at all.
pub(crate) const MAX_HEADS_MEMORY_DIVISOR: u64 = 32;
/// Time from a connection, or from the first byte of a head, to the end of the head: seconds on the
/// slowest of networks.
pub const MAX_HEAD_TIME: Duration = Duration::from_secs(10);
/// Connections of one client address are at most the connections divided by this, unless the
/// address is exempt: so one client cannot keep all others out.
pub const MAX_ADDRESS_CONNECTIONS_DIVISOR: usize = 2;
/// Time that a connection must have been without a request before it can be closed in favour of a
/// new one: those that just came or just got their response have time to send.
pub const MIN_RECLAIM_IDLE: Duration = Duration::from_secs(1);
/// Time that a connection may stay open between two requests. Longer than the pools of common
/// clients keep a connection.
pub const MAX_IDLE: Duration = Duration::from_secs(60);
/// Time that a response may wait for its client to take a byte before it is closed, so that its
/// memory serves other requests.
pub const MAX_BODY_STALL: Duration = Duration::from_secs(30);
/// Bytes of a response that may lie in the connection's buffer before its body is polled again, and
/// bytes of a request's body read at once. Far less than a block, so a response holds the block
/// being sent and the next one: the body window of two blocks.
pub const MAX_UNSENT_BYTES: usize = 64 * 1024;
/// Bytes of a connection's send buffer in the kernel, which books twice as many: what a network of
/// 1 ms and 1 Gbit/s has on its way.
pub const MAX_SOCKET_SEND_BYTES: usize = 128 * 1024;
/// Bytes of a connection's receive buffer in the kernel, which books twice as many.
pub const MAX_SOCKET_RECEIVE_BYTES: usize = 128 * 1024;
/// Bytes of one connection in the server beside its request head: its read buffer, its task, TLS.
pub const MAX_CONNECTION_BYTES: u64 = 128 * 1024;
/// Bytes of one thread: the pages of its stack that it touches, and its part of the allocator.
pub const MAX_THREAD_BYTES: u64 = 512 * 1024;
/// Threads that wait for folders and disks at once. More requests wait in line: disks gain nothing
/// from more.
pub const MAX_BLOCKING_THREADS: usize = 64;
/// Bytes of the program: its data, tables that the memory ceiling does not cover, fragments.
pub const MAX_PROGRAM_BYTES: u64 = 64 << 20;
/// Time that a request body may send nothing before the request fails with RequestTimeout.
pub const MAX_BODY_SILENCE: Duration = Duration::from_secs(30);
/// Time that a TLS handshake may take.
pub const MAX_HANDSHAKE: Duration = Duration::from_secs(10);
/// Time that requests in progress may take to end after shutdown began.
pub const MAX_DRAIN: Duration = Duration::from_secs(30);
/// Time that a socket is read on after its last response, when the client was still sending:
/// closed at once, it would be reset, and the client might never see the response.
pub(crate) const MAX_LINGER: Duration = Duration::from_secs(2);
/// Multipart uploads open at once. Their parts have a limit of their own, in bytes.
pub const MAX_OPEN_UPLOADS: usize = 4096;
/// Bytes of the lists of open uploads and their parts are at most the memory limit divided by this: at 64 MiB some thirty
/// thousand parts. Beyond it new uploads and parts get SlowDown until others end.
pub(crate) const MAX_UPLOADS_MEMORY_DIVISOR: u64 = 8;
/// Bytes that these lists may take in a small memory, up to a quarter of it: one upload of the most parts.
pub(crate) const MIN_UPLOADS_BYTES: u64 = 4 << 20;
/// Of lists that an earlier server left, those beyond the memory limit divided by this are not charged: a server with less
/// memory than its last one starts and serves.
pub(crate) const MAX_LOADED_UPLOADS_MEMORY_DIVISOR: u64 = 2;

/// Bytes of one XML request body, held in memory while it is read: 10,000 parts with checksums, or
/// 1000 keys of full length, take about half.
pub(crate) const MAX_XML_BYTES: usize = 4 << 20;
/// Elements directly below the root of a request's XML: the parts of the largest completion, and a
/// few others. Each becomes a value many times as long as the shortest element.
pub(crate) const MAX_XML_ENTRIES: u64 = 10_000 + 16;
/// Eighths of the engine's memory that request XML and pages of listings of all requests may take
/// together: readers and writers of objects keep the rest.
pub const MAX_DOCUMENTS_EIGHTHS: u64 = 3;
/// Bytes that documents may take in a small memory, up to half of it: the largest completion.
pub(crate) const MIN_DOCUMENTS_BYTES: u64 = 8 << 20;
/// Bytes that the values and the XML of one page of a listing take while it is rendered. A page of
/// long names has fewer entries: 1000 names fit if they have up to 500 plain characters.
pub(crate) const MAX_PAGE_BYTES: u64 = 4 << 20;
/// Bytes of an entry as the origin lists it: its name, its metadata, and the origin's own response.
pub(crate) const ORIGIN_ENTRY_BYTES: u64 = 2048;
/// Buckets of one response to ListBuckets, as in S3.
pub(crate) const MAX_LIST_BUCKETS: usize = 10_000;
/// Keys of one DeleteObjects request, as in S3.
pub(crate) const MAX_DELETE_KEYS: usize = 1000;
/// Entries of one page of a listing, as in S3.
pub(crate) const MAX_LIST_KEYS: i32 = 1000;
/// Keys below a common prefix that are read over before the listing begins anew beyond it.
/// Origins list by pages, so the next few keys are there already.
pub(crate) const MAX_READ_OVER_KEYS: usize = 128;
/// Times that a page may begin anew before the rest of the level is fetched by listings with delimiter. Those cannot stop early
/// where the origin has no pages of them, so they are not the first choice.
pub(crate) const MAX_LISTING_RESTARTS: usize = 8;

/// Times that a copy begins anew because its source was replaced while it was read; then it gets SlowDown.
pub(crate) const MAX_COPY_ATTEMPTS: usize = 16;
/// Bytes of one key, as in S3.
pub(crate) const MAX_KEY_BYTES: usize = 1024;
/// Bytes of all user metadata of an object, names and values, as in S3.
pub(crate) const MAX_METADATA_BYTES: usize = 2048;
/// Tags of one object, as in S3.
pub(crate) const MAX_TAGS: usize = 10;
/// Characters of a tag's key, as in S3.
pub(crate) const MAX_TAG_KEY_CHARS: usize = 128;
/// Characters of a tag's value, as in S3.
pub(crate) const MAX_TAG_VALUE_CHARS: usize = 256;

/// The highest part number of a multipart upload, as in S3; so also the number of its parts.
pub(crate) const MAX_PART_NUMBER: u16 = 10_000;
/// Bytes appended to an upload's file past which it is written anew: parts stored again and again
/// leave stale records. More than all parts of an upload take.
pub(crate) const MAX_UPLOAD_FILE_APPENDED_BYTES: u64 = 8 << 20;

/// Bytes of one signed chunk: it is held until its signature is verified. Clients send 64 KiB to
/// 1 MiB.
pub(crate) const MAX_SIGNED_CHUNK_BYTES: u64 = 16 << 20;
/// Bytes of the signed chunks of all requests are at most the memory limit divided by this: at 64 MiB one of the largest, or 128
/// of 128 KiB. Beyond it uploads in such chunks wait, and then get SlowDown.
pub(crate) const MAX_SIGNED_CHUNKS_MEMORY_DIVISOR: u64 = 4;
/// Bytes of a signed chunk up to which pieces from the socket are copied together: each piece that waits for the signature takes a
/// few words of its own.
pub(crate) const MAX_COPIED_PIECE_BYTES: usize = 16 << 10;
/// Bytes of the line before a chunk; a signature makes it about 100.
pub(crate) const MAX_CHUNK_LINE_BYTES: usize = 1024;
/// Bytes of all trailers together; a checksum and a signature make about 200.
pub(crate) const MAX_TRAILER_BYTES: usize = 16 * 1024;

/// Bytes of a Host header: DNS allows 253 of a name, a port takes six more.
pub(crate) const MAX_HOST_BYTES: usize = 260;
/// Seconds that a presigned request may hold, as in S3: a week.
pub(crate) const MAX_PRESIGNED_S: i64 = 7 * 24 * 60 * 60;
/// Seconds between the date of a signature and the server's clock, as in S3.
pub(crate) const MAX_CLOCK_SKEW_S: i64 = 15 * 60;

/// Access records that wait to be written; more are dropped and counted.
pub(crate) const MAX_QUEUED_RECORDS: usize = 4096;
/// Bytes of access records that wait to be written; more are dropped and counted. Half a minute of
/// a disk that stands still, at some hundred requests a second.
pub(crate) const MAX_QUEUED_RECORD_BYTES: u64 = 4 << 20;
/// Access records that wait take the memory limit divided by this at most.
pub(crate) const MAX_RECORDS_MEMORY_DIVISOR: u64 = 32;
/// Bytes of one text of an access record that the client chose: longer ones are cut.
pub(crate) const MAX_LOGGED_TEXT_BYTES: usize = 2048;
/// Bytes of lines that are written to the access log at once.
pub(crate) const MAX_LOG_BUFFER_BYTES: usize = 64 << 10;
/// Time that a line of the access log waits in memory for others.
pub(crate) const MAX_LOG_DELAY: Duration = Duration::from_secs(1);
/// Time that the end of a server waits for the last lines of its access log.
pub(crate) const MAX_LOG_CLOSE: Duration = Duration::from_secs(2);
