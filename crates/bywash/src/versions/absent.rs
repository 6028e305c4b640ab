//! Keys that are not there, so that programs that look for the same few files over and over ask the origin once a window.

use object_store::path::Path;
use tokio::time::Instant;

use super::table::Entry;

/// A key that the origin did not have.
#[derive(Debug)]
pub(super) struct AbsentKey {
    /// Number of its bucket.
    pub(super) store: u32,
    pub(super) path: Path,
    /// When the request was sent that found nothing.
    pub(super) asked: Instant,
}

impl Entry for AbsentKey {
    fn key(&self) -> (u32, &Path) {
        (self.store, &self.path)
    }

    fn bytes(&self) -> usize {
        /// What an allocator adds to one allocation, and rounds up to.
        const ALLOCATION: usize = 24;
        self.path.as_ref().len() + ALLOCATION
    }
}
