//! Looking up, reading and erasing blocks.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Tier;
use super::segments::hold;
use crate::format::{NameHash, VersionKey};
use crate::index::Place;
use crate::limits::MAX_READ_TIME;
use crate::segment::{ReadOutcome, Segment};

/// Outcome of the read of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockRead {
    /// The bytes are those written.
    Exact,
    /// The bytes are others.
    Damaged,
    /// The disk failed.
    Unreadable,
}

impl Tier {
    /// Whether there may be blocks of a version of this object. `false` while the tier is off.
    #[must_use]
    pub fn has_object(&self, url: &str, object: &str) -> bool {
        let name = NameHash::of(url, object);
        self.versions.lock().has_name(name) && self.health.is_readable()
    }

    /// Whether the block is on the disk. `false` while the tier is off.
    #[must_use]
    pub fn contains(&self, version: VersionKey, block: u32) -> bool {
        self.length(version, block).is_some() && self.health.is_readable()
    }

    /// Length of a block that is on the disk.
    pub(crate) fn length(&self, version: VersionKey, block: u32) -> Option<u32> {
        let number = self.versions.lock().find(version)?;
        self.index.find(number, block, |place| place.length)
    }

    /// Reads a block into `buffer`: whole pages, aligned, at least as long as the block. Returns the block's length, or `None` if
    /// it is not there, or not as it was written, or the tier is off.
    #[must_use]
    pub fn read(&self, version: VersionKey, block: u32, buffer: &mut [u8]) -> Option<u32> {
        let number = self.versions.lock().find(version)?;
        self.read_numbered(version, number, block, buffer)
    }

    /// As [`Self::read`], with the number that the version had a moment ago.
    pub(super) fn read_numbered(
        &self,
        version: VersionKey,
        number: u32,
        block: u32,
        buffer: &mut [u8],
    ) -> Option<u32> {
        if self.index.find(number, block, |_| ()).is_none() || !self.health.begin_read() {
            return None;
        }
        let (segment, place) = hold(&self.index, &self.segments, number, block)?;
        // The number may have been released and given to another version since it was found. While the segment is held, its blocks
        // stay as they are.
        if self.versions.lock().find(version) != Some(number) {
            return None;
        }
        let read = self.read_held(&segment, (version, number, block), place, buffer);
        if read != BlockRead::Exact {
            return None;
        }
        self.counters.hits.fetch_add(1, Ordering::Relaxed);
        let bytes = u64::from(place.length);
        self.counters.hit_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.lookups.hit(bytes, self.size());
        Some(place.length)
    }

    /// Reads a block of a segment that the caller holds. Removes it from the index if its bytes are others, or cannot be read.
    pub(super) fn read_held(
        &self,
        segment: &Segment,
        (version, number, block): (VersionKey, u32, u32),
        place: Place,
        buffer: &mut [u8],
    ) -> BlockRead {
        let start = self.now();
        let outcome = segment.read(version, block, place, buffer);
        let time = self.now().saturating_sub(start);
        let read = match outcome {
            ReadOutcome::Exact => {
                self.health.read_succeeded(time);
                return BlockRead::Exact;
            }
            ReadOutcome::Mismatch => {
                self.health.read_succeeded(time);
                self.counters.mismatches.fetch_add(1, Ordering::Relaxed);
                BlockRead::Damaged
            }
            ReadOutcome::Failed(error) => {
                self.counters.failed_reads.fetch_add(1, Ordering::Relaxed);
                let error = format!("cannot read segment {}: {error}", segment.number);
                if !self.health.read_failed(error) {
                    return BlockRead::Unreadable;
                }
                if segment.count_failed_read() {
                    self.remove_blocks(segment.number);
                }
                BlockRead::Unreadable
            }
        };
        self.remove(number, block, place);
        read
    }

    /// Time since the tier was opened.
    pub(crate) fn now(&self) -> Duration {
        self.health.clock.now()
    }

    /// Notes that no reader returns.
    pub(crate) fn turn_off_stuck(&self) {
        let error = format!("all readers have been waiting for the disk for {MAX_READ_TIME:?}");
        self.health.turn_off(error);
    }

    /// Removes a block, unless it has been written elsewhere since.
    fn remove(&self, version: u32, block: u32, place: Place) {
        let removed = self
            .index
            .remove_at(version, block, place.segment, place.page);
        if removed {
            self.versions.lock().remove_block(version);
        }
    }

    /// Removes all blocks of a segment.
    pub(super) fn remove_blocks(&self, segment: u32) {
        for version in self.index.remove_segment(segment) {
            self.versions.lock().remove_block(version);
        }
    }

    /// Makes all blocks of a version unfindable, including blocks of open batches. Has no I/O:
    /// [`Self::record_erasures`], or a batch that is begun later, makes it last beyond the process.
    pub fn erase(&self, version: VersionKey) {
        self.erasures.erase(version, || {
            self.versions.lock().erase(version);
        });
    }
}
