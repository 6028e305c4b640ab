//! Limits of a node and of the port between nodes.

/// Authenticated connections of other nodes. A hundred nodes have ten each; what is beyond them asks the origin.
pub const MAX_PEER_CONNECTIONS: usize = 1024;
/// TLS handshakes at once. The oldest one is ended for a new one. One needs some KiB, at most about 100 KiB; a member needs its
/// place for a few milliseconds.
pub const MAX_HANDSHAKES: usize = 256;
/// Block streams that are served at once; further ones are refused as busy. Each holds pins of at most [`MAX_FRAME_BYTES`] and one
/// item of the service's stream beside the buffers of its socket.
pub(crate) const MAX_BLOCK_STREAMS: usize = 256;
/// Reads of other nodes' blocks in progress; further ones ask the origin. As many as a node serves of such streams.
pub const MAX_PEER_READS: usize = 256;
/// Memory of such a read outside the pool, in bytes: a frame, and what its connection has received.
pub const PEER_READ_BYTES: u64 = 512 << 10;
/// Memory of an object that a node keeps state of as its holder, and of a read lease, in bytes: for each a name, headers and some
/// metadata, a place in the tables, and a timer.
pub const OBJECT_BYTES: u64 = 2 << 10;
/// Payload of one frame, in bytes: what a client keeps of a stream until its checksum is compared. Larger ones come in several pieces
/// from the network, and would be copied.
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
/// Ended writes of other nodes that a node remembers, some 100 bytes each: those of a second at 4,000 writes a second. A begin is late by
/// the time that a packet is.
pub(crate) const MAX_ENDED_WRITES: usize = 4096;
