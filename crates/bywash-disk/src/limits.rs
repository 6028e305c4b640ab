//! Limits of the disk tier.

use std::time::Duration;

/// Pieces of one write call: Linux takes 1,024.
pub(crate) const MAX_PIECES: usize = 512;
/// Bytes of a URL, an object key or a validator: S3 keys have at most 1,024, URLs seldom more than 2,048. Blocks of
/// objects with longer ones stay in memory only.
pub(crate) const MAX_TEXT_BYTES: usize = 8 << 10;
/// Time of a read. When all readers take longer, the tier is off.
pub(crate) const MAX_READ_TIME: Duration = Duration::from_secs(1);
/// Time between probes of a disk that fails.
pub(crate) const MAX_PROBE_INTERVAL: Duration = Duration::from_secs(60);
/// Failed reads of a segment. Then all of its blocks are removed, and it is the next to be used again.
pub(crate) const MAX_FAILED_READS: u32 = 3;
