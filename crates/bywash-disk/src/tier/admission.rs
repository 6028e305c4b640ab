//! The engine's question before it queues a block.

use std::sync::atomic::Ordering;

use super::Tier;
use super::write::Writer;
use crate::format::{PAGE, VersionKey, pages_of};

/// Pages that a block may use in addition to its own: of a summary, and of the footer.
const SUMMARY_PAGES: u64 = 2;

impl Tier {
    /// Whether to write a block that was just loaded from its origin. Call it once a load: it notes
    /// that the block was looked up and was not on the disk. A disk with room takes each block; if
    /// it or the index is full, blocks that are looked up again soon replace the oldest.
    #[must_use]
    pub fn wants(&self, version: VersionKey, block: u32, bytes: u32) -> bool {
        let came_back = self
            .lookups
            .miss(version, block, u64::from(bytes), self.size());
        self.admits(version, block, || {
            let pages = u64::from(pages_of(bytes as usize)) + SUMMARY_PAGES;
            let fits = self.room.load(Ordering::Relaxed) >= pages * PAGE as u64;
            came_back || (fits && !self.index.is_full())
        })
    }

    /// Whether to write a block that is in steady use in memory: no look-up reaches the disk, so it
    /// cannot come back.
    #[must_use]
    pub fn wants_settled(&self, version: VersionKey, block: u32) -> bool {
        self.admits(version, block, || true)
    }

    /// Whether a block that is not there may be written, and is worth it. Counts the reason if not.
    fn admits(&self, version: VersionKey, block: u32, is_worth: impl FnOnce() -> bool) -> bool {
        let counters = &self.counters;
        let refusal = if self.length(version, block).is_some() {
            return false;
        } else if !self.health.is_writable() {
            &counters.declined_state
        } else if !self.write_budget.allows(self.now()) {
            &counters.declined_rate
        } else if is_worth() {
            return true;
        } else if self.index.is_full() {
            &counters.index_full
        } else {
            &counters.declined_new
        };
        refusal.fetch_add(1, Ordering::Relaxed);
        false
    }

    /// Sets the bytes that may be written a day, including summaries and blocks written again. A
    /// 24th of the bytes may be written at once. `None`, the default: without limit.
    pub fn set_daily_writes(&self, bytes: Option<u64>) {
        self.write_budget.set(bytes, self.now());
    }

    /// Whether the bytes written lately leave room for a block in the bytes of a day.
    #[must_use]
    pub fn allows_writes(&self) -> bool {
        self.write_budget.allows(self.now())
    }

    /// Notes how many bytes can be written before a segment is used again: a relaxed hint for [`Self::wants`].
    pub(super) fn note_room(&self, writer: &Writer) {
        let room = match &writer.current {
            _ if self.may_create(writer) => u64::MAX,
            Some(current) if !writer.recycled => u64::from(current.free_pages()) * PAGE as u64,
            _ => 0,
        };
        self.room.store(room, Ordering::Relaxed);
    }
}
