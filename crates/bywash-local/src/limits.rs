//! Limits that clients of the local door can reach.

use std::time::Duration;

/// Maximum open connections. Clients are this user's own processes; each connection has a task, a socket and a descriptor.
pub const MAX_LOCAL_CONNECTIONS: usize = 1024;
/// Fraction of the memory that connections may take: fewer than [`MAX_LOCAL_CONNECTIONS`] fit below 256 MiB.
pub const CONNECTIONS_MEMORY_DIVISOR: u64 = 8;
/// Memory of a connection, charged when it opens: its task, the bytes that it reads at once, short messages and replies.
pub const CONNECTION_BYTES: u64 = 32 << 10;
/// Bytes that a connection reads from its socket at once.
pub const READ_BYTES: usize = 16 << 10;
/// Maximum leases of one connection: a client that never releases any. Beyond it reads get copies.
pub const MAX_CONNECTION_LEASES: usize = 10_000;
/// Maximum time from the first byte of a message to its last, and of the hello after the connection.
pub const MAX_MESSAGE_TIME: Duration = Duration::from_secs(10);
/// Maximum time for which a client may take nothing of a reply.
pub const MAX_REPLY_STALL: Duration = Duration::from_secs(30);
/// Maximum time that a request may ask for.
pub const MAX_DEADLINE: Duration = Duration::from_secs(600);
/// Bytes of a message up to which its memory is included in the connection's: most requests.
pub const MAX_FREE_MESSAGE_BYTES: usize = 4 << 10;
/// Memory of a decoded message for each of its bytes: a range of nine bytes takes 32.
pub const MESSAGE_FACTOR: u64 = 6;
/// Memory of a lease, without its parts.
pub const LEASE_BYTES: u64 = 512;
/// Memory of a block of a lease: its pin, its number, its place in the reply.
pub const LEASE_BLOCK_BYTES: u64 = 96;
/// Memory of a range of a lease, in the request, in the lease and in the reply.
pub const LEASE_RANGE_BYTES: u64 = 96;
/// Maximum objects of one request that are read at the same time.
pub const MAX_OBJECTS_AT_ONCE: usize = 4;
/// Maximum time for which a signed address is good, as in S3.
pub const MAX_SIGNED_TIME: Duration = Duration::from_secs(7 * 24 * 3600);
/// Maximum attributes of a written object: headers and metadata; S3 allows some kilobytes.
pub const MAX_ATTRIBUTES: usize = 200;
