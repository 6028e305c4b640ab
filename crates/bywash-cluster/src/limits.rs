//! Limits of a node and of the port between nodes.

/// Authenticated connections of other nodes. A hundred nodes have ten each; a node without a
/// connection asks the origin.
pub const MAX_PEER_CONNECTIONS: usize = 1024;
/// TLS handshakes at once, with enough memory. The oldest one is ended for a new one; a member needs its place for a few milliseconds.
pub const MAX_HANDSHAKES: usize = 256;
/// Least number of handshakes at once, with little memory: as many as one node begins at once with its writes. Fewer, and its newer
/// connections would end its older ones.
pub(crate) const MIN_HANDSHAKES: usize = 64;
/// Handshakes take at most the memory divided by this, or the memory of [`MIN_HANDSHAKES`]. All of
/// it is charged at the start: any peer may begin one.
pub(crate) const MAX_HANDSHAKES_MEMORY_DIVISOR: u64 = 32;
/// Calls at other nodes have at most the memory divided by this for themselves, charged at the start: reads of blocks take the rest of their
/// part, and must not keep a write from its end.
pub(crate) const MAX_CALLS_MEMORY_DIVISOR: u64 = 32;
/// Least memory of calls for themselves, in bytes: half of it has room for the longest message.
pub(crate) const MIN_CALLS_BYTES: u64 = 3 << 20;
/// Most memory of calls for themselves, in bytes: 256 short ones.
pub(crate) const MAX_CALLS_BYTES: u64 = 32 << 20;
/// Unused connections that a client keeps for each node, with enough memory.
pub(crate) const MAX_POOL_CONNECTIONS: usize = 16;
/// Minimum number of unused connections, with little memory.
pub(crate) const MIN_POOL_CONNECTIONS: usize = 2;
/// Memory for each unused connection, in bytes: they are not charged, and the connections for one
/// node take at most the memory divided by 128.
pub(crate) const POOL_CONNECTION_MEMORY: u64 = 128 * PEER_CONNECTION_BYTES;
/// Memory of a connection in bytes, of its handshake, and of a call by one: buffers of TLS and of HTTP, the task, and a short message.
pub(crate) const PEER_CONNECTION_BYTES: u64 = 128 << 10;
/// Connections of other nodes and their messages take at most the memory divided by this, and so do calls and reads at other nodes.
pub(crate) const MAX_PEERS_MEMORY_DIVISOR: u64 = 8;
/// Head of a request, in bytes: the least that the HTTP server takes. One has less than 1 KiB.
pub(crate) const MAX_PEER_HEAD_BYTES: usize = 8 << 10;
/// Longest message, in bytes, that the charge of its connection covers: a request for one object.
pub(crate) const MAX_FREE_CALL_BYTES: usize = 2 << 10;
/// Longest response, in bytes, that the charge of its call covers: the version of one object with
/// its metadata.
pub(crate) const MAX_FREE_RESPONSE_BYTES: usize = 16 << 10;
/// Memory of each byte of a longer message: the message twice, its requests as records and as the
/// machine has them, the waiter of each, and the responses. A request has at least 40 bytes.
pub(crate) const CALL_FACTOR: u64 = 16;
/// Block streams that are served at once; further ones are refused as busy. Each holds pins of at
/// most [`MAX_FRAME_BYTES`] and one item of the service's stream, in addition to the buffers of its
/// socket.
pub(crate) const MAX_BLOCK_STREAMS: usize = 256;
/// Reads of other nodes' blocks in progress; further ones ask the origin. As many as a node serves of such streams.
pub(crate) const MAX_PEER_READS: usize = 256;
/// Memory of such a read outside the pool, in bytes: a frame, and the bytes that its connection has
/// received.
pub(crate) const PEER_READ_BYTES: u64 = 512 << 10;
/// Memory of an object that a node keeps state of as its holder, and of a read lease, in bytes: for each a name, headers and some
/// metadata, a place in the tables, and a timer.
pub const OBJECT_BYTES: u64 = 2 << 10;
/// Payload of one frame, in bytes: a client buffers one until it has compared the checksum. Larger
/// ones come in several pieces from the network, and would be copied.
pub(crate) const MAX_FRAME_BYTES: usize = 128 << 10;
/// Body of one message, in bytes. A request with a bucket's name and a path of 1,024 bytes needs less than 8 KiB, however they are
/// escaped; a thousand begins of keys of 40 bytes need 50 KiB.
pub(crate) const MAX_CALL_BYTES: usize = 64 << 10;
/// Requests in one message: all keys of a request that deletes a thousand objects, if one node holds them.
pub(crate) const MAX_BATCHED_REQUESTS: usize = 1000;
/// Text of a failure of a stream, in bytes.
pub(crate) const MAX_FAILURE_BYTES: usize = 512;
/// Cluster keys in one file: the one in use and, while it is replaced, another.
pub(crate) const MAX_CLUSTER_KEYS: usize = 2;
/// A file of cluster keys, in bytes: some lines.
pub(crate) const MAX_KEY_FILE_BYTES: u64 = 4 << 10;
/// Ended writes of other nodes that a node remembers, some 100 bytes each: one second's at 4,000
/// writes a second. A begin is late by the time that a packet is.
pub(crate) const MAX_ENDED_WRITES: usize = 4096;
