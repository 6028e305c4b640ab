//! Blocks that were read since they were written leave with no segment: they are appended once more before it is used again.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use super::Tier;
use super::write::{Declined, Writer};
use crate::erasures::OpenBatch;
use crate::format::{Entry, VersionKey, pages_of};
use crate::recovery::contents;
use crate::segment::{ReadOutcome, Segment};
use crate::storage::Pages;
use crate::sync::Counted;
use crate::{Block, VersionRecord};

/// The part of a segment for such blocks. Each block is written 1 / (1 - 1/4) times on average at most.
const SHARE_DIVISOR: u32 = 4;
/// Pages of a batch of such blocks, unless one block is larger: they are in memory once more.
const BATCH_PAGES: u32 = 256;

/// A block of the segment that is used again next.
struct Kept<'a> {
    record: &'a VersionRecord,
    entry: Entry,
    payload: Pages,
}

impl Tier {
    /// Appends to the current segment the blocks that were read in the segment that is used again
    /// next, if `pages` more pages would begin the last quarter of the current one. Done once a
    /// segment. If the disk fails, there is no current segment afterwards.
    pub(super) fn reinsert_if_due(&self, writer: &mut Writer, open: &OpenBatch<'_>, pages: u32) {
        let current = writer.current.as_ref();
        let free = current.map_or(0, |current| current.free_pages());
        if free.saturating_sub(pages) <= self.pages / SHARE_DIVISOR {
            self.reinsert(writer, open);
        }
    }

    fn reinsert(&self, writer: &mut Writer, open: &OpenBatch<'_>) {
        let done = std::mem::replace(&mut writer.reinserted, true);
        if done || writer.current.is_none() || self.may_create(writer) {
            return;
        }
        let Some(victim) = self.next_victim(writer) else {
            return;
        };
        let Ok(summaries) = contents(&victim, self.pages) else {
            return;
        };
        let records = summaries.iter().flat_map(|summary| &summary.records);
        let records: HashMap<_, _> = records
            .map(|record| (VersionKey::of(record), record))
            .collect();
        let mut free = self.pages / SHARE_DIVISOR;
        let (mut batch, mut batch_pages) = (Vec::new(), 0);
        for &entry in summaries.iter().flat_map(|summary| &summary.entries) {
            // With a page of summary, should it be the first of a batch.
            let pages = pages_of(entry.length as usize);
            let Some(&record) = records.get(&entry.version) else {
                continue;
            };
            if pages + 1 > free || !self.was_read(&victim, &entry) {
                continue;
            }
            if batch_pages + pages > BATCH_PAGES {
                if !self.append_kept(writer, open, &std::mem::take(&mut batch)) {
                    return;
                }
                (batch_pages, free) = (0, free - 1);
            }
            if let Some(payload) = self.payload(&victim, &entry) {
                (batch_pages, free) = (batch_pages + pages, free.saturating_sub(pages));
                batch.push(Kept {
                    record,
                    entry,
                    payload,
                });
            }
        }
        self.append_kept(writer, open, &batch);
    }

    fn next_victim(&self, writer: &Writer) -> Option<Counted<Segment>> {
        let segments = self.segments.lock();
        if !segments.unread.is_empty() {
            return None;
        }
        let oldest = segments.oldest_first(writer.number());
        let victim = segments.get(*oldest.first()?)?;
        (!victim.is_given_up()).then_some(victim)
    }

    /// Whether the block is still found at this place, and was read there.
    fn was_read(&self, segment: &Segment, entry: &Entry) -> bool {
        let version = self.versions.lock().find(entry.version);
        version.is_some_and(|version| {
            self.index
                .was_read_at(version, entry.block, segment.number, entry.page)
        })
    }

    fn payload(&self, segment: &Segment, entry: &Entry) -> Option<Pages> {
        if !self.write_budget.allows(self.now()) {
            return None;
        }
        let mut payload = Pages::zeroed(pages_of(entry.length as usize));
        let place = crate::index::Place::of(segment.number, entry);
        let outcome = segment.read(entry.version, entry.block, place, payload.as_mut());
        matches!(outcome, ReadOutcome::Exact).then_some(payload)
    }

    /// Appends blocks, and returns whether there may be more.
    fn append_kept(&self, writer: &mut Writer, open: &OpenBatch<'_>, kept: &[Kept<'_>]) -> bool {
        if kept.is_empty() {
            return true;
        }
        let blocks: Vec<_> = kept
            .iter()
            .map(|kept| Block {
                record: kept.record,
                version: kept.entry.version,
                number: kept.entry.block,
                bytes: &kept.payload.as_ref()[..kept.entry.length as usize],
            })
            .collect();
        let appended = self.enter_all(open, &blocks, |erased| {
            let places = self.append_to_current(writer, &blocks, erased)?;
            places.ok_or(Declined::TooLarge)
        });
        match appended {
            Ok(()) => {
                let bytes: u64 = blocks.iter().map(|block| block.bytes.len() as u64).sum();
                let counters = &self.counters;
                let count = blocks.len() as u64;
                counters
                    .reinserted_blocks
                    .fetch_add(count, Ordering::Relaxed);
                counters
                    .reinserted_bytes
                    .fetch_add(bytes, Ordering::Relaxed);
                true
            }
            Err(Declined::Failed(error)) => {
                let error = format!("cannot write: {error}");
                self.health.write_failed(error);
                false
            }
            Err(_) => false,
        }
    }
}
