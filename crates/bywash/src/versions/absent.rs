//! Negative cache: keys known to be absent, so that programs that look for the same few files send the origin one request per
//! window.

use object_store::path::Path;
use tokio::time::Instant;

use super::table::TableEntry;

/// A key that is absent at the origin.
#[derive(Debug)]
pub(super) struct AbsentKey {
    /// Number of its bucket.
    pub(super) store: u32,
    pub(super) path: Path,
    /// Send time of the request that found nothing.
    pub(super) sent_at: Instant,
}

impl TableEntry for AbsentKey {
    fn key(&self) -> (u32, &Path) {
        (self.store, &self.path)
    }

    fn bytes(&self) -> usize {
        /// Overhead of one allocation: the allocator's header and rounding.
        const ALLOCATION: usize = 24;
        self.path.as_ref().len() + ALLOCATION
    }
}
