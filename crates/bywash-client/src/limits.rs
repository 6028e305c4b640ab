//! Limits of the protocol and of a client.

use std::time::Duration;

/// Maximum bytes of one message, its head excluded. A thousand keys of a kilobyte fit four times.
pub const MAX_MESSAGE_BYTES: usize = 4 << 20;
/// Maximum bytes of object data in one message: about the size of a socket's buffer.
pub const MAX_DATA_BYTES: usize = 128 << 10;
/// Maximum objects of one request for bytes.
pub const MAX_GET_OBJECTS: usize = 10_000;
/// Maximum ranges of one request for bytes, of all objects together.
pub const MAX_GET_RANGES: usize = 10_000;
/// Maximum keys of one request to delete, as in S3.
pub const MAX_DELETE_KEYS: usize = 1_000;
/// Maximum connections that a client keeps for later calls. A call that finds none free opens one.
pub const MAX_IDLE_CONNECTIONS: usize = 16;
/// Maximum parts, blocks of leases, that a client keeps mapped side by side for later leases of the same: a sixteenth of the maps that
/// the system allows a process.
pub const MAX_KEPT_PARTS: usize = 4096;
/// Length below which bytes are copied into the response: a lease costs two messages and a page fault.
pub const DEFAULT_INLINE_BYTES: u32 = 16 << 10;
/// Time after which a call fails if the caller sets no other.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(60);
/// Time for which a call that waits for the server keeps its core: a warm read takes less, and a wake-up as much.
pub(crate) const SPIN: Duration = Duration::from_micros(50);
/// Maximum bytes of a socket's path, as the system has it with a zero at the end. A longer one is reached through its folder.
pub(crate) const MAX_SOCKET_PATH_BYTES: usize = 107;
