//! The tier: segments, index and versions together.

mod admission;
mod checks;
mod contents;
#[cfg(all(test, loom))]
mod models;
mod read;
mod reinsert;
mod segments;
mod verify;
mod write;

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::VersionRecord;
use crate::admission::{Lookups, REMEMBERED_MEMORY, WriteBudget};
use crate::clock::Clock;
use crate::erasures::Erasures;
use crate::error::{DiskError, disk_error};
use crate::format::{NameHash, PAGE, Summary, VersionKey};
use crate::health::{Health, TierStatus};
use crate::index::{ENTRY_MEMORY, Index, Place};
use crate::marks::Marks;
use crate::recovery;
use crate::segment::Segment;
use crate::stats::{Counters, TierStats};
use crate::storage::{Folder, Storage};
use crate::sync::{self, Counted};
use crate::versions::{VERSION_MEMORY, Versions};
use checks::Checks;
use segments::{Segments, keeps_segments, max_segments};
pub use verify::Verification;
use write::Writer;
pub use write::{Batch, Declined};

/// Generations left out when segments were not read at a start: more than segments were ever begun in between.
const UNREAD_GENERATIONS: u64 = 1 << 32;

/// Settings of a tier.
#[derive(Debug, Clone)]
pub struct TierOptions {
    /// The folder. Created if it is missing.
    pub path: PathBuf,
    /// Max bytes on the disk, all files together.
    pub size: u64,
    /// Bytes of a segment of a new folder: a multiple of 4 KiB. A folder with segments of another
    /// size keeps theirs, unless `size` has no room for four such segments.
    pub segment_size: u32,
    /// Bytes of most blocks: the index has room for at least as many as fit.
    pub block_size: u32,
    /// Bytes of memory for the index: it has room for as many blocks as that allows.
    pub index_memory: u64,
    /// Max bytes of memory of the index, if the blocks need more than `index_memory`.
    pub max_index_memory: u64,
}

/// A disk tier.
#[derive(Debug)]
pub struct Tier {
    storage: Arc<dyn Storage>,
    folder: [u8; 16],
    /// Pages of a segment.
    pages: u32,
    index: Index,
    versions: Mutex<Versions>,
    /// A reader takes a segment while it holds the lock of the index' shard, so a segment whose entries were removed gets no
    /// new readers.
    segments: sync::Mutex<Segments>,
    /// Held while bytes are written.
    writer: Mutex<Writer>,
    erasures: Erasures,
    checks: Mutex<Checks>,
    health: Health,
    lookups: Lookups,
    write_budget: WriteBudget,
    /// Bytes that can be written before a segment is used again.
    room: AtomicU64,
    counters: Counters,
}

impl Tier {
    /// Opens the folder, with all blocks that an earlier run left there.
    ///
    /// # Errors
    /// The folder cannot be used, or the sizes do not fit each other.
    pub fn open(options: &TierOptions, new_id: [u8; 16]) -> Result<Self, DiskError> {
        let mut folder = Folder::open(options.path.clone(), new_id, options.segment_size)?;
        let id = folder.id;
        let mut options = options.clone();
        if keeps_segments(options.size, u64::from(folder.segment_size)) {
            options.segment_size = folder.segment_size;
        } else {
            // A size that is refused must not cost the segments that are there.
            Self::check(&options)?;
            folder.set_segment_size(options.segment_size)?;
        }
        let tier = Self::over(Arc::new(folder), id, &options, Clock::start())?;
        tier.open_marks(&options.path)?;
        Ok(tier)
    }

    /// Erases the versions that an earlier run left marked.
    pub(crate) fn open_marks(&self, folder: &Path) -> Result<(), DiskError> {
        let marks = Marks::open(folder).map_err(disk_error("open the marks of", folder))?;
        for version in marks.versions() {
            self.erase(version);
        }
        self.writer.lock().marks = Some(marks);
        self.release_marks();
        Ok(())
    }

    /// Returns the maximum segments and blocks of these options.
    fn check(options: &TierOptions) -> Result<(usize, u64), DiskError> {
        let max_segments = max_segments(options.size, u64::from(options.segment_size))?;
        let blocks = options.size / u64::from(options.block_size);
        let needed = Self::index_memory_of(blocks);
        if needed > options.max_index_memory {
            return Err(DiskError::IndexTooLarge {
                size: options.size,
                block_size: options.block_size,
                needed,
                allowed: options.max_index_memory,
            });
        }
        Ok((max_segments, blocks))
    }

    pub(crate) fn over(
        storage: Arc<dyn Storage>,
        folder: [u8; 16],
        options: &TierOptions,
        clock: Clock,
    ) -> Result<Self, DiskError> {
        let (max_segments, blocks) = Self::check(options)?;
        let affordable = options.index_memory * 8 / Self::index_memory_of(8);
        let blocks = affordable.min(options.size / PAGE as u64).max(blocks);
        let fits = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let mut tier = Self {
            folder,
            pages: options.segment_size / PAGE as u32,
            index: Index::new(fits(blocks)),
            versions: Mutex::new(Versions::with_capacity(fits(blocks))),
            erasures: Erasures::default(),
            checks: Mutex::default(),
            segments: sync::Mutex::new(Segments::new(max_segments)),
            writer: Mutex::new(Writer::new()),
            health: Health::new(clock),
            lookups: Lookups::new(fits(blocks)),
            write_budget: WriteBudget::default(),
            room: AtomicU64::new(0),
            counters: Counters::default(),
            storage,
        };
        tier.recover()
            .map_err(disk_error("read the segments of", &options.path))?;
        Ok(tier)
    }

    fn recover(&mut self) -> io::Result<()> {
        let found = recovery::segments(&*self.storage, self.folder, self.pages)?;
        let (mut segments, mut unread, mut error) = (found.segments, found.unread, found.error);
        for number in found.unusable {
            self.storage.remove(number)?;
        }
        // Fewer segments than before: unread segments are removed first, then the oldest.
        let max = self.segments.get_mut().max;
        let surplus = (segments.len() + unread.len()).saturating_sub(max);
        for number in unread.drain(..surplus.min(unread.len())) {
            self.storage.remove(number)?;
        }
        let surplus = segments.len().saturating_sub(max);
        for segment in segments.drain(..surplus) {
            self.storage.remove(segment.number)?;
        }
        for segments in segments.chunks(recovery::SEGMENTS_AT_ONCE) {
            let contents = recovery::contents_of(segments, self.pages);
            for (segment, contents) in segments.iter().zip(contents) {
                self.writer.get_mut().generation = segment.generation + 1;
                let summaries = match contents {
                    Ok(summaries) => summaries,
                    Err(failed) => {
                        unread.push(segment.number);
                        error = Some(failed);
                        continue;
                    }
                };
                // Less memory than before: the oldest blocks go.
                let blocks = summaries.iter().map(|summary| summary.entries.len());
                self.free_index(None, blocks.sum());
                self.apply(segment, &summaries);
                self.segments.get_mut().insert(Counted::clone(segment));
            }
        }
        if let Some(error) = error.filter(|_| !unread.is_empty()) {
            let count = unread.len();
            self.health.note(format!(
                "cannot read {count} segments at the start: {error}"
            ));
            // Regardless of their generations, later segments have higher ones at the next start.
            self.writer.get_mut().generation += UNREAD_GENERATIONS;
            self.segments.get_mut().unread = unread;
        }
        self.note_room(&self.writer.lock());
        Ok(())
    }

    /// Memory of an index with room for `blocks`, each of another version, in bytes.
    #[must_use]
    pub fn index_memory_of(blocks: u64) -> u64 {
        // Room for blocks that do not spread evenly, as the index has it.
        (blocks + blocks / 8) * ENTRY_MEMORY + blocks * (VERSION_MEMORY + REMEMBERED_MEMORY)
    }

    /// Enters the contents of a segment into the index.
    fn apply(&self, segment: &Segment, summaries: &[Summary]) {
        let records = summaries.iter().flat_map(|summary| &summary.records);
        let names: HashMap<_, _> = records
            .map(|record| (VersionKey::of(record), name_of(record)))
            .collect();
        for summary in summaries {
            let mut erasures = summary.erasures.iter().peekable();
            for (position, entry) in summary.entries.iter().enumerate() {
                while let Some(erasure) =
                    erasures.next_if(|erasure| erasure.position as usize <= position)
                {
                    self.versions.lock().erase(erasure.version);
                }
                if let Some(&name) = names.get(&entry.version) {
                    let place = Place::of(segment.number, entry);
                    self.enter(entry.version, name, entry.block, place);
                }
            }
            for erasure in erasures {
                self.versions.lock().erase(erasure.version);
            }
        }
    }

    fn enter(&self, version: VersionKey, name: NameHash, block: u32, place: Place) {
        let mut versions = self.versions.lock();
        let number = versions.add_block(version, name);
        match self.index.insert(number, block, place) {
            Ok(None) => {}
            Ok(Some(_)) => versions.remove_block(number),
            Err(_) => {
                versions.remove_block(number);
                self.counters.index_full.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> TierStats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        let (segments, unread_segments) = {
            let segments = self.segments.lock();
            (segments.count() as u64, segments.unread.len() as u64)
        };
        let (versions, erased) = {
            let versions = self.versions.lock();
            (versions.len() as u64, versions.erased_blocks())
        };
        TierStats {
            // Between two changes of the tables there may be fewer.
            blocks: (self.index.len() as u64).saturating_sub(erased),
            versions,
            segments,
            unread_segments,
            hits: load(&counters.hits),
            hit_bytes: load(&counters.hit_bytes),
            blocks_written: load(&counters.blocks_written),
            written_bytes: load(&counters.written_bytes),
            recycled_segments: load(&counters.recycled_segments),
            mismatches: load(&counters.mismatches),
            failed_reads: load(&counters.failed_reads),
            block_bytes: load(&counters.block_bytes),
            index_full: load(&counters.index_full),
            failed_writes: load(&counters.failed_writes),
            declined_large: load(&counters.declined_large),
            declined_state: load(&counters.declined_state),
            declined_segments: load(&counters.declined_segments),
            declined_rate: load(&counters.declined_rate),
            declined_new: load(&counters.declined_new),
            reinserted_blocks: load(&counters.reinserted_blocks),
            reinserted_bytes: load(&counters.reinserted_bytes),
        }
    }

    /// Whether the disk works, and since when.
    #[must_use]
    pub fn state(&self) -> TierStatus {
        self.health.get()
    }

    /// Last failure of the disk.
    #[must_use]
    pub fn last_error(&self) -> Option<String> {
        self.health.get().last_error
    }

    /// Memory of the index in bytes, all of it allocated at the start.
    #[must_use]
    pub fn index_memory(&self) -> u64 {
        self.index.memory() + self.versions.lock().memory() + self.lookups.memory()
    }
}

fn name_of(record: &VersionRecord) -> NameHash {
    NameHash::of(&record.url, &record.object)
}

#[cfg(all(test, not(loom)))]
mod tests;
