//! The tier: segments, index and versions together.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::error::{DiskError, disk_error};
use crate::format::{NameHash, PAGE, Summary, VersionKey};
use crate::index::{ENTRY_MEMORY, Index, Place};
use crate::limits::MAX_TEXT_BYTES;
use crate::recovery::{Recovered, recover};
use crate::segment::{ReadOutcome, Segment, SegmentWriter};
use crate::stats::{Counters, TierStats};
use crate::storage::{Folder, Storage};
use crate::versions::{VERSION_MEMORY, Versions};
use crate::{Block, VersionRecord};

/// Bytes of the folder itself and of its small files.
const FOLDER_BYTES: u64 = 64 << 10;

/// Settings of a tier.
#[derive(Debug, Clone)]
pub struct TierOptions {
    /// The folder. Created if it is missing.
    pub path: PathBuf,
    /// Max bytes on the disk, all files together.
    pub size: u64,
    /// Bytes of a segment: a multiple of 4 KiB.
    pub segment_size: u32,
    /// Bytes of most blocks: the index has room for at least as many as fit.
    pub block_size: u32,
    /// Bytes of memory for the index: it has room for as many blocks as that allows.
    pub index_memory: u64,
    /// Max bytes of memory of the index, if the blocks need more than `index_memory`.
    pub max_index_memory: u64,
}

/// Why nothing was written.
#[derive(Debug)]
pub enum Declined {
    /// A block is larger than a segment holds, or a name is too long.
    TooLarge,
    /// Each segment is being read or written.
    NoSegment,
    /// The disk failed; nothing of the blocks is found.
    Failed(io::Error),
}

/// A disk tier.
#[derive(Debug)]
pub struct Tier {
    storage: Arc<dyn Storage>,
    folder: [u8; 16],
    /// Pages of a segment.
    pages: u32,
    max_segments: usize,
    index: Index,
    versions: Mutex<Versions>,
    /// By number. A reader takes a segment while it holds the lock of the index' shard, so a segment whose entries were removed
    /// gets no new readers.
    segments: Mutex<Vec<Option<Arc<Segment>>>>,
    writer: Mutex<Writer>,
    /// Erased versions that no batch names yet.
    erased: Mutex<Vec<VersionKey>>,
    /// The last failure, for people.
    last_error: Mutex<Option<String>>,
    counters: Counters,
}

#[derive(Debug)]
struct Writer {
    current: Option<SegmentWriter>,
    /// Generation of the next segment.
    generation: u64,
}

impl Tier {
    /// Opens the folder, with all blocks that an earlier run left there.
    ///
    /// # Errors
    /// The folder cannot be used, or the sizes do not fit each other.
    pub fn open(options: &TierOptions, new_id: [u8; 16]) -> Result<Self, DiskError> {
        let folder = Folder::open(options.path.clone(), new_id)?;
        let id = folder.id;
        Self::over(Arc::new(folder), id, options)
    }

    pub(crate) fn over(
        storage: Arc<dyn Storage>,
        folder: [u8; 16],
        options: &TierOptions,
    ) -> Result<Self, DiskError> {
        let segment = u64::from(options.segment_size);
        let min = 2 * segment + FOLDER_BYTES;
        if options.size < min {
            let size = options.size;
            return Err(DiskError::TooSmall { size, min });
        }
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
        let affordable = options.index_memory / Self::index_memory_of(1);
        let blocks = affordable.min(options.size / PAGE as u64).max(blocks);
        let fits = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let mut tier = Self {
            folder,
            pages: options.segment_size / PAGE as u32,
            max_segments: fits((options.size - FOLDER_BYTES) / segment),
            index: Index::new(fits(blocks)),
            versions: Mutex::new(Versions::with_capacity(fits(blocks))),
            erased: Mutex::default(),
            last_error: Mutex::default(),
            segments: Mutex::default(),
            writer: Mutex::new(Writer {
                current: None,
                generation: 1,
            }),
            counters: Counters::default(),
            storage,
        };
        tier.recover()
            .map_err(disk_error("read the segments of", &options.path))?;
        Ok(tier)
    }

    fn recover(&mut self) -> io::Result<()> {
        let (mut recovered, unusable) = recover(&*self.storage, self.folder, self.pages)?;
        for number in unusable {
            self.storage.remove(number)?;
        }
        // Fewer segments than before: the oldest go.
        let surplus = recovered.len().saturating_sub(self.max_segments);
        for Recovered { segment, .. } in recovered.drain(..surplus) {
            self.storage.remove(segment.number)?;
        }
        for Recovered { segment, summaries } in recovered {
            self.writer.get_mut().generation = segment.generation + 1;
            for summary in &summaries {
                self.apply(&segment, &summaries, summary);
            }
            let segments = self.segments.get_mut();
            let number = segment.number as usize;
            if segments.len() <= number {
                segments.resize(number + 1, None);
            }
            segments[number] = Some(segment);
        }
        Ok(())
    }

    /// Returns the memory of an index with room for `blocks`, each of them of another version, in bytes.
    fn index_memory_of(blocks: u64) -> u64 {
        // Room for blocks that do not spread evenly, as the index has it.
        (blocks + blocks / 8) * ENTRY_MEMORY + blocks * VERSION_MEMORY
    }

    /// Enters what a summary has into the index. Records are those of the whole segment.
    fn apply(&self, segment: &Segment, all: &[Summary], summary: &Summary) {
        let records = all.iter().flat_map(|summary| &summary.records);
        let names: HashMap<_, _> = records
            .map(|record| (VersionKey::of(record), name_of(record)))
            .collect();
        let mut erasures = summary.erasures.iter().peekable();
        for (position, entry) in summary.entries.iter().enumerate() {
            while let Some(erasure) =
                erasures.next_if(|erasure| erasure.position as usize <= position)
            {
                self.versions.lock().erase(erasure.version);
            }
            if let Some(&name) = names.get(&entry.version) {
                let place = Place {
                    segment: segment.number,
                    page: entry.page,
                    length: entry.length,
                    crc: entry.crc,
                };
                self.enter(entry.version, name, entry.block, place);
            }
        }
        for erasure in erasures {
            self.versions.lock().erase(erasure.version);
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

    /// Returns whether there may be blocks of a version of this object.
    #[must_use]
    pub fn has_object(&self, url: &str, object: &str) -> bool {
        self.versions.lock().has_name(NameHash::of(url, object))
    }

    /// Returns whether the block is on the disk.
    #[must_use]
    pub fn contains(&self, version: VersionKey, block: u32) -> bool {
        let number = self.versions.lock().find(version);
        number.is_some_and(|number| self.index.find(number, block, |_| ()).is_some())
    }

    /// Returns the length of a block that is on the disk.
    pub(crate) fn length(&self, version: VersionKey, block: u32) -> Option<u32> {
        let number = self.versions.lock().find(version)?;
        self.index.find(number, block, |place| place.length)
    }

    /// Reads a block into `buffer`: whole pages, aligned, at least as long as the block. Returns the block's length, or `None` if
    /// it is not there, or not as it was written.
    #[must_use]
    pub fn read(&self, version: VersionKey, block: u32, buffer: &mut [u8]) -> Option<u32> {
        let number = self.versions.lock().find(version)?;
        let (segment, place) = self.index.find(number, block, |place| {
            let segments = self.segments.lock();
            let segment = segments.get(place.segment as usize)?.clone();
            segment.map(|segment| (segment, place))
        })??;
        match segment.read(version, block, place, buffer) {
            ReadOutcome::Exact => {
                self.counters.hits.fetch_add(1, Ordering::Relaxed);
                let bytes = u64::from(place.length);
                self.counters.hit_bytes.fetch_add(bytes, Ordering::Relaxed);
                return Some(place.length);
            }
            ReadOutcome::Mismatch => self.counters.mismatches.fetch_add(1, Ordering::Relaxed),
            ReadOutcome::Failed(error) => {
                *self.last_error.lock() =
                    Some(format!("cannot read segment {}: {error}", place.segment));
                self.counters.failed_reads.fetch_add(1, Ordering::Relaxed)
            }
        };
        if self
            .index
            .remove_at(number, block, place.segment, place.page)
        {
            self.versions.lock().remove_block(number);
        }
        None
    }

    /// Makes all blocks of a version unfindable, now and, once more blocks were written, after a restart. Returns
    /// whether there were any.
    pub fn erase(&self, version: VersionKey) -> bool {
        let erased = self.versions.lock().erase(version);
        if erased {
            self.erased.lock().push(version);
        }
        erased
    }

    /// Writes blocks. Blocks until the system has the bytes.
    ///
    /// # Errors
    /// None of the blocks is found afterwards.
    pub fn write(&self, blocks: &[Block<'_>]) -> Result<(), Declined> {
        for Block { record, bytes, .. } in blocks {
            let texts = [&record.url, &record.object, &record.validator];
            let max = self.pages as usize * PAGE;
            if bytes.is_empty()
                || bytes.len() > max
                || texts.iter().any(|text| text.len() > MAX_TEXT_BYTES)
            {
                return Err(Declined::TooLarge);
            }
        }
        let mut writer = self.writer.lock();
        let erased = std::mem::take(&mut *self.erased.lock());
        let places = match self.append(&mut writer, blocks, &erased) {
            Ok(places) => places,
            Err(declined) => {
                self.erased.lock().extend(erased);
                return Err(declined);
            }
        };
        for (block, place) in blocks.iter().zip(places) {
            self.enter(block.version, name_of(block.record), block.number, place);
            let bytes = block.bytes.len() as u64;
            let counters = &self.counters;
            counters.blocks_written.fetch_add(1, Ordering::Relaxed);
            counters.block_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        Ok(())
    }

    fn append(
        &self,
        writer: &mut Writer,
        blocks: &[Block<'_>],
        erased: &[VersionKey],
    ) -> Result<Vec<Place>, Declined> {
        for _ in 0..2 {
            if writer.current.is_none() {
                writer.current = Some(self.next_segment(&mut writer.generation)?);
            }
            let current = writer.current.as_mut().expect("it was begun above");
            let before = current.written_bytes();
            let appended = current.append(blocks, erased);
            self.count_written(current.written_bytes() - before);
            match appended {
                Ok(Some(places)) => return Ok(places),
                Ok(None) => {}
                Err(error) => {
                    // What follows a failed batch would never be recovered.
                    writer.current = None;
                    return Err(Declined::Failed(error));
                }
            }
            let full = writer.current.take().expect("it was appended to");
            self.seal(full).map_err(Declined::Failed)?;
        }
        Err(Declined::TooLarge)
    }

    fn seal(&self, full: SegmentWriter) -> io::Result<()> {
        self.count_written(full.footer_bytes());
        full.seal()
    }

    fn count_written(&self, bytes: u64) {
        let written = &self.counters.written_bytes;
        written.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Begins a new segment, or the oldest one anew.
    fn next_segment(&self, generation: &mut u64) -> Result<SegmentWriter, Declined> {
        let number = self.unused_number();
        let (number, file) = match number {
            Some(number) => {
                let bytes = u64::from(self.pages) * PAGE as u64;
                let file = self
                    .storage
                    .create(number, bytes)
                    .map_err(Declined::Failed)?;
                (number, file)
            }
            None => self.recycle()?,
        };
        let segment = Arc::new(Segment {
            number,
            generation: *generation,
            file,
        });
        *generation += 1;
        let writer = SegmentWriter::begin(Arc::clone(&segment), self.folder, self.pages);
        let mut segments = self.segments.lock();
        let place = number as usize;
        if segments.len() <= place {
            segments.resize(place + 1, None);
        }
        segments[place] = Some(segment);
        drop(segments);
        writer.map_err(Declined::Failed)
    }

    /// Returns the lowest number without a segment, while there may be more of them.
    fn unused_number(&self) -> Option<u32> {
        let segments = self.segments.lock();
        if segments.iter().flatten().count() >= self.max_segments {
            return None;
        }
        let free = segments.iter().position(Option::is_none);
        u32::try_from(free.unwrap_or(segments.len())).ok()
    }

    /// Removes the blocks of the oldest segments until one has no reader, and returns that one's file.
    fn recycle(&self) -> Result<(u32, Arc<dyn crate::storage::SegmentFile>), Declined> {
        let mut oldest: Vec<(u64, u32)> = {
            let segments = self.segments.lock();
            let segments = segments.iter().flatten();
            segments
                .map(|segment| (segment.generation, segment.number))
                .collect()
        };
        oldest.sort_unstable();
        for (_, number) in oldest {
            for version in self.index.remove_segment(number) {
                self.versions.lock().remove_block(version);
            }
            let mut segments = self.segments.lock();
            let held = segments[number as usize].as_mut();
            // Readers take segments under this lock, and their entries are gone: a single owner stays the only one.
            let file = held
                .and_then(Arc::get_mut)
                .map(|segment| Arc::clone(&segment.file));
            if let Some(file) = file {
                let recycled = &self.counters.recycled_segments;
                recycled.fetch_add(1, Ordering::Relaxed);
                return Ok((number, file));
            }
        }
        Err(Declined::NoSegment)
    }

    /// Seals the newest segment, so that the next start reads one footer for all of it.
    ///
    /// # Errors
    /// The disk failed; what was written is still found, and recovered batch by batch.
    pub fn close(&self) -> io::Result<()> {
        let current = self.writer.lock().current.take();
        current.map_or(Ok(()), |current| self.seal(current))
    }

    /// Returns the counters.
    #[must_use]
    pub fn stats(&self) -> TierStats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        TierStats {
            blocks: self.index.len() as u64,
            versions: self.versions.lock().len() as u64,
            segments: self.segments.lock().iter().flatten().count() as u64,
            hits: load(&self.counters.hits),
            hit_bytes: load(&self.counters.hit_bytes),
            blocks_written: load(&self.counters.blocks_written),
            written_bytes: load(&self.counters.written_bytes),
            recycled_segments: load(&self.counters.recycled_segments),
            mismatches: load(&self.counters.mismatches),
            failed_reads: load(&self.counters.failed_reads),
            block_bytes: load(&self.counters.block_bytes),
            index_full: load(&self.counters.index_full),
        }
    }

    /// Returns the last failure of the disk.
    #[must_use]
    pub fn last_error(&self) -> Option<String> {
        self.last_error.lock().clone()
    }

    /// Returns the memory of the index in bytes, all of it allocated at the start.
    #[must_use]
    pub fn index_memory(&self) -> u64 {
        self.index.memory() + self.index.capacity() as u64 * VERSION_MEMORY
    }

    /// Returns the max bytes on the disk, all files together.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.max_segments as u64 * u64::from(self.pages) * PAGE as u64 + FOLDER_BYTES
    }
}

fn name_of(record: &VersionRecord) -> NameHash {
    NameHash::of(&record.url, &record.object)
}

#[cfg(test)]
mod tests;
