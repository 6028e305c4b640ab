//! Which segments there are: creation, use again, and removal when the size is lowered.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Tier;
use super::write::{Declined, Writer};
use crate::DiskError;
use crate::format::PAGE;
use crate::index::{Index, Place};
use crate::segment::{Segment, SegmentWriter};
use crate::storage::SegmentFile;
use crate::sync::{Counted, Mutex, Step, skipped};

/// Bytes of the folder itself and of its small files.
const FOLDER_BYTES: u64 = 64 << 10;
/// Bytes that the file system may use for a segment in addition to the segment's own: a name, and
/// the list of its extents.
const SEGMENT_FILE_BYTES: u64 = 8 << 10;
/// With fewer segments, none can be used again.
const MIN_SEGMENTS: usize = 2;
/// Time between tries to create a segment when the file system is full.
const CREATE_INTERVAL: Duration = Duration::from_secs(60);

/// Segments of a folder's former size that make it keep them: with fewer, using one again would cost too much of the tier.
const MIN_KEPT_SEGMENTS: usize = 4;

/// Whether a folder with segments of `segment_size` keeps them when the tier has `size` bytes.
pub(super) fn keeps_segments(size: u64, segment_size: u64) -> bool {
    max_segments(size, segment_size).is_ok_and(|segments| segments >= MIN_KEPT_SEGMENTS)
}

/// Returns the number of segments that fit.
pub(super) fn max_segments(size: u64, segment_size: u64) -> Result<usize, DiskError> {
    let segment = segment_size + SEGMENT_FILE_BYTES;
    let min = size_of(MIN_SEGMENTS, segment_size);
    if size < min {
        return Err(DiskError::TooSmall { size, min });
    }
    Ok(usize::try_from((size - FOLDER_BYTES) / segment).unwrap_or(usize::MAX))
}

/// Max bytes that `segments` segments take.
pub(super) fn size_of(segments: usize, segment_size: u64) -> u64 {
    FOLDER_BYTES + segments as u64 * (segment_size + SEGMENT_FILE_BYTES)
}

/// The segments by number.
#[derive(Debug)]
pub(super) struct Segments {
    pub(super) max: usize,
    all: Vec<Option<Counted<Segment>>>,
    /// Numbers of files that were not read at the start.
    pub(super) unread: Vec<u32>,
}

impl Segments {
    pub(super) fn new(max: usize) -> Self {
        Self {
            max,
            all: Vec::new(),
            unread: Vec::new(),
        }
    }

    pub(super) fn get(&self, number: u32) -> Option<Counted<Segment>> {
        self.all.get(number as usize)?.clone()
    }

    pub(super) fn insert(&mut self, segment: Counted<Segment>) {
        let number = segment.number as usize;
        if self.all.len() <= number {
            self.all.resize(number + 1, None);
        }
        self.all[number] = Some(segment);
    }

    fn remove(&mut self, number: u32) {
        self.all[number as usize] = None;
    }

    /// Number of files.
    pub(super) fn count(&self) -> usize {
        self.all.iter().flatten().count() + self.unread.len()
    }

    /// Whether a segment has no blocks, so that using it again costs none.
    fn has_given_up(&self) -> bool {
        let mut all = self.all.iter().flatten();
        all.any(|segment| segment.is_given_up())
    }

    fn unused_number(&self) -> u32 {
        let is_used = |number: &u32| {
            let segment = self.all.get(*number as usize);
            segment.is_some_and(Option::is_some) || self.unread.contains(number)
        };
        let mut unused = (0..u32::MAX).filter(|number| !is_used(number));
        unused.next().expect("fewer files than 2^32")
    }

    /// Numbers of all segments but `current`: those without blocks, then the oldest first.
    pub(super) fn oldest_first(&self, current: Option<u32>) -> Vec<u32> {
        let others = self.all.iter().flatten();
        let mut others: Vec<_> = others
            .filter(|segment| Some(segment.number) != current)
            .map(|segment| (!segment.is_given_up(), segment.generation, segment.number))
            .collect();
        others.sort_unstable();
        others.into_iter().map(|(_, _, number)| number).collect()
    }

    /// Returns the file of a segment that no reader holds.
    fn without_reader(&mut self, number: u32) -> Option<Arc<dyn SegmentFile>> {
        let segment = self.all[number as usize].as_mut();
        let segment = segment.and_then(Counted::get_mut);
        segment.map(|segment| Arc::clone(&segment.file))
    }
}

/// Returns the segment and the place of a block for a reader: while it holds the segment, that is
/// not used again. Marks the block as read.
pub(super) fn hold(
    index: &Index,
    segments: &Mutex<Segments>,
    version: u32,
    block: u32,
) -> Option<(Counted<Segment>, Place)> {
    // The segment is taken while the entry cannot be removed.
    index.find_to_read(version, block, |place| {
        Some((segments.lock().get(place.segment)?, place))
    })?
}

/// Has `remove_entries` remove the blocks of a segment from the index, and returns its file if no reader holds the segment.
pub(super) fn release(
    segments: &Mutex<Segments>,
    number: u32,
    remove_entries: impl FnOnce(),
) -> Option<Arc<dyn SegmentFile>> {
    let file = segments.lock().without_reader(number)?;
    if !skipped(Step::Entries) {
        remove_entries();
    }
    if skipped(Step::Readers) {
        return Some(file);
    }
    // Readers take segments while their entries cannot be removed, and the entries are gone:
    // without a reader now, none can follow.
    segments.lock().without_reader(number)
}

impl Tier {
    /// Bytes of a segment.
    #[must_use]
    pub fn segment_size(&self) -> u64 {
        u64::from(self.pages) * PAGE as u64
    }

    /// Max bytes on the disk, all files together.
    #[must_use]
    pub fn size(&self) -> u64 {
        size_of(self.segments.lock().max, self.segment_size())
    }

    /// Sets the max bytes on the disk. The tier does not grow beyond it from now on. If it has more, the oldest segments are
    /// removed before this returns or, if a write is in progress, when that ends. A read in progress ends as it would have;
    /// the file system has the bytes of its segment back then. The memory of the index stays as it is.
    ///
    /// # Errors
    /// The size leaves no room for two segments; nothing is changed.
    pub fn resize(&self, size: u64) -> Result<(), DiskError> {
        let max = max_segments(size, self.segment_size())?;
        self.segments.lock().max = max;
        self.remove_surplus();
        if let Some(writer) = self.writer.try_lock() {
            self.note_room(&writer);
        }
        Ok(())
    }

    /// Removes the oldest segments while there are too many, unless a writer is at work, which does it at its end.
    pub(super) fn remove_surplus(&self) {
        let has_surplus = || {
            let segments = self.segments.lock();
            segments.count() > segments.max + usize::from(planted!("disk-one-segment-more"))
        };
        // The number is looked at again after each failure to get the lock, and by the writer after it released it.
        while has_surplus() {
            let Some(writer) = self.writer.try_lock() else {
                return;
            };
            if !self.remove_oldest(&writer) {
                return;
            }
        }
    }

    /// Removes a segment that was not read, or else the oldest but the current one, and returns whether that succeeded.
    fn remove_oldest(&self, writer: &Writer) -> bool {
        let current = writer.number();
        let (unread, oldest) = {
            let segments = self.segments.lock();
            let oldest = segments.oldest_first(current).first().copied();
            (segments.unread.last().copied(), oldest)
        };
        let Some(number) = unread.or(oldest) else {
            return false;
        };
        if unread.is_none() {
            self.remove_blocks(number);
        }
        if let Err(error) = self.storage.remove(number) {
            // It is still there, and counts.
            let error = format!("cannot remove segment {number}: {error}");
            self.health.write_failed(error);
            return false;
        }
        let mut segments = self.segments.lock();
        match unread {
            Some(_) => segments.unread.retain(|other| *other != number),
            None => segments.remove(number),
        }
        true
    }

    /// Removes the blocks of the oldest segments while the index has no room for `blocks` more.
    /// These segments are the next to be used again.
    pub(super) fn free_index(&self, current: Option<u32>, blocks: usize) {
        if self.index.has_room(blocks) {
            return;
        }
        let oldest = self.segments.lock().oldest_first(current);
        for number in oldest {
            let segment = self.segments.lock().get(number);
            let segment = segment.filter(|segment| !segment.is_given_up());
            if let Some(segment) = segment {
                self.remove_blocks(number);
                segment.give_up();
            }
            if self.index.has_room(blocks) {
                return;
            }
        }
    }

    /// Begins a new segment, or reuses an old one.
    pub(super) fn next_segment(&self, writer: &mut Writer) -> Result<SegmentWriter, Declined> {
        let created = self.create_segment(writer).map_err(Declined::Failed)?;
        writer.recycled = created.is_none();
        let (number, file) = match created {
            Some(created) => created,
            None => self.recycle()?,
        };
        let segment = Counted::new(Segment::new(number, writer.generation, file));
        writer.generation += 1;
        let begun = SegmentWriter::begin(Counted::clone(&segment), self.folder, self.pages);
        if begun.is_err() {
            segment.give_up();
        }
        self.segments.lock().insert(segment);
        begun.map_err(Declined::Failed)
    }

    /// Whether another segment would be created before one is used again.
    pub(super) fn may_create(&self, writer: &Writer) -> bool {
        let segments = self.segments.lock();
        let count = segments.count();
        let is_allowed = count < MIN_SEGMENTS || self.now() >= writer.create_after;
        count < segments.max && is_allowed && !segments.has_given_up()
    }

    /// Creates a segment if the maximum allows one more. `None` also if the file system is full and
    /// there are others.
    fn create_segment(
        &self,
        writer: &mut Writer,
    ) -> io::Result<Option<(u32, Arc<dyn SegmentFile>)>> {
        if !self.may_create(writer) {
            return Ok(None);
        }
        let (number, can_recycle) = {
            let segments = self.segments.lock();
            (segments.unused_number(), segments.count() >= MIN_SEGMENTS)
        };
        match self.storage.create(number, self.segment_size()) {
            Ok(file) => Ok(Some((number, file))),
            Err(error) if can_recycle && is_full(&error) => {
                writer.create_after = self.now() + CREATE_INTERVAL;
                let error = format!("cannot create a segment: {error}");
                self.health.note(error);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Creates a segment in place of one that was not read at the start; `None` if all were read,
    /// or the creation fails.
    fn replace_unread(&self) -> Option<(u32, Arc<dyn SegmentFile>)> {
        let number = self.segments.lock().unread.pop()?;
        match self.storage.create(number, self.segment_size()) {
            Ok(file) => Some((number, file)),
            Err(error) => {
                // It may still be there, and counts.
                self.segments.lock().unread.push(number);
                self.health
                    .note(format!("cannot replace segment {number}: {error}"));
                None
            }
        }
    }

    /// Removes the blocks of the oldest segment without a reader, and returns its file.
    fn recycle(&self) -> Result<(u32, Arc<dyn SegmentFile>), Declined> {
        if let Some(replaced) = self.replace_unread() {
            return Ok(replaced);
        }
        let oldest = self.segments.lock().oldest_first(None);
        for number in oldest {
            let Some(file) = release(&self.segments, number, || self.remove_blocks(number)) else {
                continue;
            };
            let recycled = &self.counters.recycled_segments;
            recycled.fetch_add(1, Ordering::Relaxed);
            let bytes = self.segment_size();
            if file.is_whole(bytes).map_err(Declined::Failed)? {
                return Ok((number, file));
            }
            // Its file was removed or cut off.
            self.segments.lock().remove(number);
            let created = self.storage.create(number, bytes);
            return Ok((number, created.map_err(Declined::Failed)?));
        }
        Err(Declined::NoSegment)
    }
}

/// Whether an error means that there is no room on the disk.
fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded)
}
