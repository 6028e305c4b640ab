//! All limits on counts, sizes and durations that a client can reach, with unit and reason.
//!
//! Those with a field in [`Limits`](crate::Limits) are configurable; the others are fixed.

use std::time::Duration;

/// Max open connections, by default. Each costs a task and its buffers. At the limit, idle connections are closed, oldest first;
/// if none is idle, new ones wait in the listener's backlog.
pub const MAX_CONNECTIONS: usize = 1024;
/// Max bytes of a request head: S3 allows 8 KiB of headers, presigned URLs add a few more.
pub const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Max headers of a request. S3 allows 8 KiB of headers, and the shortest take some 20 bytes.
pub const MAX_HEADERS: usize = 256;
/// Bytes of an unfinished head that are not counted: the first buffer of every connection.
pub(crate) const MAX_FREE_HEAD_BYTES: usize = 4 * 1024;
/// Bytes that a client may send in HTTP/2 while it is refused: some hundred calls of gRPC. Its connection then ends.
pub(crate) const MAX_REFUSED_HTTP2_BYTES: usize = 64 * 1024;
/// The bytes of all unfinished heads are limited to the memory limit divided by this. Heads are 1 to 2 KiB long and
/// usually arrive complete, so few are counted.
pub(crate) const MAX_HEADS_MEMORY_DIVISOR: u64 = 32;
/// Max time from a connection, or from the first byte of a head, to the end of the head: ample for slow networks.
pub const MAX_HEAD_TIME: Duration = Duration::from_secs(10);
/// Connections of one client address are limited to all connections divided by this, unless exempt: one client cannot
/// exclude all others.
pub const MAX_ADDRESS_CONNECTIONS_DIVISOR: usize = 2;
/// Min time without a request before a connection may be closed in favour of a new one: clients need time to send
/// after connecting or after a response.
pub const MIN_RECLAIM_IDLE: Duration = Duration::from_secs(1);
/// Max time between two requests of a connection. Longer than the pools of common clients keep connections.
pub const MAX_IDLE: Duration = Duration::from_secs(60);
/// Max time without progress of a response before its connection is closed, to free its memory.
pub const MAX_BODY_STALL: Duration = Duration::from_secs(30);
/// Max bytes of a response buffered by the connection before its body is polled again, and max bytes of a request's
/// body read at a time. Far less than a block, so a response holds two blocks: the one being sent and the next.
pub const MAX_UNSENT_BYTES: usize = 64 * 1024;
/// Bytes of a connection's send buffer in the kernel, which charges twice as many: the bytes in flight on a network
/// of 1 ms and 1 Gbit/s.
pub const MAX_SOCKET_SEND_BYTES: usize = 128 * 1024;
/// Bytes of a connection's receive buffer in the kernel, which charges twice as many.
pub const MAX_SOCKET_RECEIVE_BYTES: usize = 128 * 1024;
/// Bytes of one connection in the server, without its request head: read buffer, task, TLS.
pub const MAX_CONNECTION_BYTES: u64 = 128 * 1024;
/// Bytes of one thread: the used pages of its stack, and its part of the allocator.
pub const MAX_THREAD_BYTES: u64 = 512 * 1024;
/// Max threads in blocking calls to folders and disks. Further requests queue: disks gain nothing from more threads.
pub const MAX_BLOCKING_THREADS: usize = 64;
/// Bytes of the program: data, tables outside of the memory ceiling, fragmentation.
pub const MAX_PROGRAM_BYTES: u64 = 64 << 20;
/// Max time without bytes of a request body before the request fails with RequestTimeout.
pub const MAX_BODY_SILENCE: Duration = Duration::from_secs(30);
/// Max time without bytes of a request body for which memory is held while other requests wait for memory, before the request fails with
/// RequestTimeout. Bytes that come make up for the time that [`MIN_CONTENDED_RATE`] allows for them: time for lost packets to be sent again.
pub const MAX_CONTENDED_SILENCE: Duration = Duration::from_secs(5);
/// Min bytes a second of such a body, of the time that the server waits for them: a slow mobile network.
pub const MIN_CONTENDED_RATE: u32 = 4096;
/// Max time of a TLS handshake.
pub const MAX_HANDSHAKE: Duration = Duration::from_secs(10);
/// Max time for requests in progress to end after shutdown began.
pub const MAX_DRAIN: Duration = Duration::from_secs(30);
/// Max time that a socket is still read after its last response to a client that was sending. An immediate close
/// would reset the connection, and the client might miss the response.
pub(crate) const MAX_LINGER: Duration = Duration::from_secs(2);
/// Max open multipart uploads. Their parts have a limit in bytes.
pub const MAX_OPEN_UPLOADS: usize = 4096;
/// Max open uploads of a cluster that a node shows at once: one page of their records.
pub const MAX_SHOWN_UPLOADS: usize = 1000;
/// Max requests to origins in one search for records of uploads that the origins have forgotten.
/// The next search continues from there.
pub const MAX_CHECKED_UPLOADS: usize = 1000;
/// Bytes of the lists of open uploads and their parts are limited to the memory limit divided by this: at 64 MiB some
/// thirty thousand parts. Above it new uploads and parts get SlowDown.
pub(crate) const MAX_UPLOADS_MEMORY_DIVISOR: u64 = 8;
/// Bytes of these lists with little memory, up to a quarter of it: one upload with the max number of parts.
pub(crate) const MIN_UPLOADS_BYTES: u64 = 4 << 20;
/// Lists loaded at start are charged up to the memory limit divided by this, so that a server starts with less memory
/// than its predecessor.
pub(crate) const MAX_LOADED_UPLOADS_MEMORY_DIVISOR: u64 = 2;

/// Max open connections of the endpoint of Google's storage API, not counting the S3 endpoint.
pub const MAX_GCS_CONNECTIONS: usize = 128;
/// Max bytes of a JSON request body, buffered whole: user metadata takes 2 KiB of it.
pub(crate) const MAX_JSON_BYTES: usize = 64 << 10;
/// Max sources of a composed object, as in Google's storage.
pub(crate) const MAX_COMPOSE_SOURCES: usize = 32;
/// Max calls of a batch, as in Google's storage.
pub(crate) const MAX_BATCH_CALLS: usize = 100;
/// Max bytes of a batch, buffered whole: 100 calls with names of full length and metadata take less than half.
pub(crate) const MAX_BATCH_BYTES: usize = 1 << 20;
/// Max bytes of the response to a call of a batch: the document of an object with a name of full length takes about 10 KiB,
/// its metadata 2 KiB.
pub(crate) const MAX_BATCH_RESPONSE_BYTES: usize = 16 << 10;
/// Max bytes of a pattern of names: the time of a match is as long as the pattern, for each byte of a name.
pub(crate) const MAX_GLOB_BYTES: usize = 256;
/// Divisor of the memory limit: decompressions of objects for clients without gzip, which hold their memory while their reads wait for
/// more. Further ones wait, and hold nothing.
pub(crate) const MAX_GUNZIPS_MEMORY_DIVISOR: u64 = 16;
/// Max bytes of the fields that a client selects of a document. Each field is compared with each
/// name in the document: all names of an object take less than 1 KiB.
pub(crate) const MAX_FIELDS_BYTES: usize = 4 << 10;
/// Max depth of the fields that a client selects of a document; documents are five deep.
pub(crate) const MAX_FIELDS_DEPTH: usize = 16;
/// Max bytes of the name of a resumable session, in a file's name: 64 digits.
pub(crate) const SESSION_ID_BYTES: usize = 64;
/// Lifetime of a resumable session, and of the record of its end, as in Google's storage: a week.
pub(crate) const MAX_SESSION_AGE: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Seconds after which a request of a session that came to another node of the cluster is to be repeated.
pub(crate) const ELSEWHERE_RETRY_S: u64 = 1;
/// Max records of the ends of sessions, a file each; the oldest are removed. At a hundred ends a second the response to a lost
/// one is there for ten minutes, and their names take 2 MiB.
pub(crate) const MAX_FINISHED_SESSIONS: usize = 65_536;
/// Min time between two searches for expired sessions.
pub(crate) const SWEEP_INTERVAL: Duration = Duration::from_secs(60 * 60);
/// Sessions whose writers wait in memory for the next chunk are limited to the memory limit divided by this, in chunks of
/// [`MAX_LIVE_CHUNK_BYTES`]. Others continue from their files.
pub(crate) const MAX_LIVE_SESSIONS_MEMORY_DIVISOR: u64 = 16;
/// Bytes of a writer that waits, at most: one chunk of the engine.
pub(crate) const MAX_LIVE_CHUNK_BYTES: u64 = 8 << 20;
/// Chunks of a session that has a file are at most the memory limit divided by this, or 5 MiB: between two requests, one may be in memory
/// as a frame of up to twice its length, in the token, in the file, and as it was read from that.
pub(crate) const MAX_SESSION_CHUNK_MEMORY_DIVISOR: u64 = 8;
/// Max writers of sessions that wait in memory, however much memory there is.
pub(crate) const MAX_LIVE_SESSIONS: u64 = 64;

/// Max bytes of a token: tokens of clients have less than 1 KiB.
pub(crate) const MAX_JWT_BYTES: usize = 8 << 10;
/// Max bytes of the form that is exchanged for an access token, from anyone: its token, and the name of the grant.
pub(crate) const MAX_TOKEN_FORM_BYTES: usize = MAX_JWT_BYTES + (1 << 10);
/// Max seconds from the issue of a signed token to its expiry, as in Google's storage: an hour.
pub(crate) const MAX_JWT_LIFE_S: i64 = 60 * 60;
/// Max seconds between the clocks of a client that signs tokens and the server.
pub(crate) const MAX_JWT_SKEW_S: i64 = 60;
/// Seconds of validity of an access token, as of Google's: clients request the next one some minutes before.
pub(crate) const MAX_ACCESS_TOKEN_AGE_S: i64 = 60 * 60;
/// Max bytes of the name of a service account, as of Google's.
pub(crate) const MAX_ACCOUNT_NAME_BYTES: usize = 30;
/// Max age of a cached service account: a removed account is refused after it.
pub(crate) const MAX_ACCOUNT_AGE: Duration = Duration::from_secs(10);
/// Max service accounts that are known without a read of their file; each takes about 1 KiB.
pub(crate) const MAX_KEPT_ACCOUNTS: usize = 256;

/// Max bytes of an XML request body, buffered whole: 10,000 parts with checksums, or 1000 keys of full length, take
/// about half.
pub(crate) const MAX_XML_BYTES: usize = 4 << 20;
/// Max rules of a bucket for pages of other sites, as in S3.
pub(crate) const MAX_CORS_RULES: usize = 100;
/// Max elements directly below the root of a request's XML: the parts of the largest completion, and a few others. A
/// decoded value is many times as large as the shortest element.
pub(crate) const MAX_XML_ENTRIES: u64 = 10_000 + 16;
/// Eighths of the engine's memory for request XML and listing pages of all requests. Readers and writers of objects
/// keep the rest.
pub const MAX_DOCUMENTS_EIGHTHS: u64 = 3;
/// Bytes for documents with little memory, up to half of it: the largest completion.
pub(crate) const MIN_DOCUMENTS_BYTES: u64 = 8 << 20;
/// Divisor of the memory limit, for memory that requests hold while their writes wait: batches with
/// the responses to their calls, and compressed bodies. Further requests wait, and hold nothing.
pub(crate) const MAX_HELD_MEMORY_DIVISOR: u64 = 8;
/// Bytes for these with little memory, up to a quarter of it: the largest batch.
pub(crate) const MIN_HELD_BYTES: u64 = 4 << 20;
/// Max bytes of values and XML of a listing page during rendering. A page of long names has fewer entries: 1000 names
/// of up to 500 plain characters fit.
pub(crate) const MAX_PAGE_BYTES: u64 = 4 << 20;
/// Bytes of an entry in the origin's listing: its name, its metadata, and the origin's own response.
pub(crate) const ORIGIN_ENTRY_BYTES: u64 = 2048;
/// Max buckets of a ListBuckets response, as in S3.
pub(crate) const MAX_LIST_BUCKETS: usize = 10_000;
/// Max keys of a DeleteObjects request, as in S3.
pub(crate) const MAX_DELETE_KEYS: usize = 1000;
/// Max entries of a listing page, as in S3.
pub(crate) const MAX_LIST_KEYS: i32 = 1000;
/// Max keys below a common prefix that are skipped before the listing restarts after the prefix. Origins return
/// pages, so the next few keys are there already.
pub(crate) const MAX_READ_OVER_KEYS: usize = 128;
/// Max restarts of a page before the rest of the level is listed with delimiter. Without pages of the origin such a
/// listing cannot stop early, so it is not the first choice.
pub(crate) const MAX_LISTING_RESTARTS: usize = 8;

/// Max attempts of a copy or a change of attributes while other writers replace the object; then SlowDown.
pub(crate) const MAX_COPY_ATTEMPTS: usize = 16;
/// Max bytes of a key, as in S3.
pub(crate) const MAX_KEY_BYTES: usize = 1024;
/// Max bytes of the user metadata of an object, names and values, as in S3.
pub(crate) const MAX_METADATA_BYTES: usize = 2048;
/// Max tags of an object, as in S3.
pub(crate) const MAX_TAGS: usize = 10;
/// Max characters of a tag's key, as in S3.
pub(crate) const MAX_TAG_KEY_CHARS: usize = 128;
/// Max characters of a tag's value, as in S3.
pub(crate) const MAX_TAG_VALUE_CHARS: usize = 256;

/// Highest part number of a multipart upload, as in S3; so also the max number of parts.
pub(crate) const MAX_PART_NUMBER: u16 = 10_000;
/// Bytes of the list of an object's parts that are kept with it, and of the list of their checksums; in memory while the object is
/// known. 10,000 parts of one size and their CRC32 fit. Of a longer list, the object is read as one part, or the parts without checksums.
pub(crate) const MAX_PARTS_ATTRIBUTE_BYTES: usize = 64 << 10;
/// Bytes appended to an upload's file before it is rewritten: repeated parts leave stale records. More than all parts
/// of an upload take.
pub(crate) const MAX_UPLOAD_FILE_APPENDED_BYTES: u64 = 8 << 20;

/// Max bytes of a chunk's header line; a signature makes it about 100.
pub(crate) const MAX_CHUNK_LINE_BYTES: usize = 1024;
/// Max bytes of all trailers; a checksum and a signature make about 200.
pub(crate) const MAX_TRAILER_BYTES: usize = 16 * 1024;

/// Max bytes of a canonical request that an error about its signature repeats, twice: enough for
/// requests of common length. With a longer one the error has only the text to sign.
pub(crate) const MAX_SHOWN_SIGNED_BYTES: usize = 4 << 10;
/// Max bytes of a Host header: DNS allows 253 for a name, a port takes six more.
pub(crate) const MAX_HOST_BYTES: usize = 260;
/// Max seconds of validity of a presigned request, as in S3: a week.
pub(crate) const MAX_PRESIGNED_S: i64 = 7 * 24 * 60 * 60;
/// Max seconds between the date of a signature and the server's clock, as in S3.
pub(crate) const MAX_CLOCK_SKEW_S: i64 = 15 * 60;

/// Max bytes of queued lines of the access log; further ones are dropped and counted. Covers half a minute of a
/// stalled disk at some hundred requests a second.
pub(crate) const MAX_QUEUED_RECORD_BYTES: u64 = 4 << 20;
/// Queued lines of the access log are limited to the memory limit divided by this.
pub(crate) const MAX_RECORDS_MEMORY_DIVISOR: u64 = 32;
/// Max bytes of a client-chosen text in an access record: longer ones are cut.
pub(crate) const MAX_LOGGED_TEXT_BYTES: usize = 2048;
/// Max bytes of lines written to the access log at a time, but for a longer line.
pub(crate) const MAX_LOG_BUFFER_BYTES: usize = 64 << 10;
/// Max time that a line of the access log is buffered.
pub(crate) const MAX_LOG_DELAY: Duration = Duration::from_secs(1);
/// Max time that a shutdown waits for the last lines of the access log.
pub(crate) const MAX_LOG_CLOSE: Duration = Duration::from_secs(2);

/// Max bytes of response heads that the fast path keeps, of versions served lately. One costs about a
/// microsecond to build.
pub(crate) const MAX_KEPT_HEADS_BYTES: u64 = 4 << 20;
/// Kept response heads are limited to the memory limit divided by this.
pub(crate) const MAX_KEPT_HEADS_MEMORY_DIVISOR: u64 = 256;
/// Max bytes of one kept response head: eight to ten headers take three quarters. Longer ones are built for each response.
pub(crate) const MAX_KEPT_HEAD_BYTES: usize = 4 << 10;
/// Signing keys that an endpoint keeps, one a day, region and access key. Others are derived for each request.
pub(crate) const MAX_KEPT_SIGNING_KEYS: usize = 64;
