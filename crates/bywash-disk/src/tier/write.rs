//! Writing batches of blocks.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Tier, name_of};
use crate::Block;
use crate::format::{PAGE, VersionKey, pages_of};
use crate::index::Place;
use crate::limits::MAX_TEXT_BYTES;
use crate::marks::Marks;
use crate::segment::SegmentWriter;

/// Why nothing was written.
#[derive(Debug)]
#[non_exhaustive]
pub enum Declined {
    /// A block is larger than a segment holds, or a name is too long.
    TooLarge,
    /// Each segment is being read or written.
    NoSegment,
    /// The disk failed lately; nothing was tried.
    NotWritable,
    /// The bytes of this day were written already.
    DailyWrites,
    /// The disk failed; nothing of the blocks is found.
    Failed(io::Error),
}

#[derive(Debug)]
pub(super) struct Writer {
    pub(super) current: Option<SegmentWriter>,
    /// Generation of the next segment.
    pub(super) generation: u64,
    /// No segment is created before: the disk was full.
    pub(super) create_after: Duration,
    /// Marks of versions that are being compared.
    pub(super) marks: Option<Marks>,
    /// The current segment replaced others' blocks.
    pub(super) recycled: bool,
    /// The current segment has the blocks that were read in the next one to be used again.
    pub(super) reinserted: bool,
}

impl Writer {
    pub(super) fn new() -> Self {
        Self {
            current: None,
            generation: 1,
            create_after: Duration::ZERO,
            marks: None,
            recycled: false,
            reinserted: false,
        }
    }

    /// Returns the number of the current segment.
    pub(super) fn number(&self) -> Option<u32> {
        self.current.as_ref().map(|current| current.segment.number)
    }
}

/// Versions erased while blocks are written.
#[derive(Debug, Default)]
pub(super) struct Erasures {
    /// Erased versions that no batch on the disk names yet.
    pub(super) pending: Vec<VersionKey>,
    /// Versions of the blocks being written.
    pub(super) writing: Vec<VersionKey>,
}

impl Tier {
    /// Writes blocks. Blocks until the system has the bytes.
    ///
    /// # Errors
    /// None of the blocks is found afterwards.
    pub fn write(&self, blocks: &[Block<'_>]) -> Result<(), Declined> {
        let written = self.write_batch(blocks);
        if let Err(declined) = &written {
            self.count_declined(declined, blocks.len() as u64);
        }
        // No try while the disk fails.
        if !matches!(written, Err(Declined::NotWritable)) {
            self.remove_surplus();
        }
        written
    }

    fn count_declined(&self, declined: &Declined, blocks: u64) {
        let counter = match declined {
            Declined::TooLarge => &self.counters.declined_large,
            Declined::NoSegment => &self.counters.declined_segments,
            Declined::NotWritable => &self.counters.declined_state,
            Declined::DailyWrites => &self.counters.declined_rate,
            Declined::Failed(_) => &self.counters.failed_writes,
        };
        counter.fetch_add(blocks, Ordering::Relaxed);
    }

    fn write_batch(&self, blocks: &[Block<'_>]) -> Result<(), Declined> {
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
        if !self.write_budget.allows(self.now()) {
            return Err(Declined::DailyWrites);
        }
        if !self.health.begin_write() {
            return Err(Declined::NotWritable);
        }
        if let Err(error) = self.mark(&mut writer, blocks) {
            self.health.write_failed(format!("cannot mark: {error}"));
            return Err(Declined::Failed(error));
        }
        self.free_index(writer.number(), blocks.len());
        let pages = blocks.iter().map(|block| pages_of(block.bytes.len())).sum();
        self.reinsert_if_due(&mut writer, pages);
        let appended = self.enter_all(blocks, |erased| self.append(&mut writer, blocks, erased));
        match &appended {
            Ok(()) => self.health.write_succeeded(),
            Err(Declined::Failed(error)) if error.kind() == io::ErrorKind::NotFound => {
                self.health.turn_off(format!("the folder is gone: {error}"));
            }
            Err(Declined::Failed(error)) => {
                self.health.write_failed(format!("cannot write: {error}"));
            }
            Err(_) => {}
        }
        self.note_room(&writer);
        appended?;
        let counters = &self.counters;
        let bytes: u64 = blocks.iter().map(|block| block.bytes.len() as u64).sum();
        let count = blocks.len() as u64;
        counters.blocks_written.fetch_add(count, Ordering::Relaxed);
        counters.block_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Has `append` write blocks with the pending erasures, and enters those blocks that were not erased meanwhile.
    pub(super) fn enter_all(
        &self,
        blocks: &[Block<'_>],
        append: impl FnOnce(&[VersionKey]) -> Result<Vec<Place>, Declined>,
    ) -> Result<(), Declined> {
        let erased = {
            let mut erasures = self.erasures.lock();
            erasures.writing = blocks.iter().map(|block| block.version).collect();
            std::mem::take(&mut erasures.pending)
        };
        let appended = append(&erased);
        let mut erasures = self.erasures.lock();
        erasures.writing.clear();
        match appended {
            Ok(places) => {
                for (block, place) in blocks.iter().zip(places) {
                    if !erasures.pending.contains(&block.version) {
                        self.enter(block.version, name_of(block.record), block.number, place);
                    }
                }
                Ok(())
            }
            Err(declined) => {
                erasures.pending.extend(erased);
                Err(declined)
            }
        }
    }

    fn append(
        &self,
        writer: &mut Writer,
        blocks: &[Block<'_>],
        erased: &[VersionKey],
    ) -> Result<Vec<Place>, Declined> {
        // Its blocks could not be read: it is used again.
        if (writer.current.as_ref()).is_some_and(|current| current.segment.is_given_up()) {
            writer.current = None;
        }
        for _ in 0..2 {
            if writer.current.is_none() {
                writer.current = Some(self.next_segment(writer)?);
                writer.reinserted = false;
            }
            if let Some(places) = self.append_to_current(writer, blocks, erased)? {
                return Ok(places);
            }
            if let Some(full) = writer.current.take() {
                self.seal(full).map_err(Declined::Failed)?;
            }
        }
        Err(Declined::TooLarge)
    }

    /// Appends to the current segment; `None` if that has no room. If the disk fails, there is no current segment
    /// afterwards.
    pub(super) fn append_to_current(
        &self,
        writer: &mut Writer,
        blocks: &[Block<'_>],
        erased: &[VersionKey],
    ) -> Result<Option<Vec<Place>>, Declined> {
        let Some(current) = writer.current.as_mut() else {
            return Ok(None);
        };
        let before = current.written_bytes();
        let appended = current.append(blocks, erased);
        self.count_written(current.written_bytes() - before);
        appended.map_err(|error| {
            // What follows a failed batch would never be recovered.
            if let Some(failed) = writer.current.take().filter(SegmentWriter::is_empty) {
                failed.segment.give_up();
            }
            Declined::Failed(error)
        })
    }

    fn seal(&self, full: SegmentWriter) -> io::Result<()> {
        self.count_written(full.footer_bytes());
        full.seal()
    }

    fn count_written(&self, bytes: u64) {
        let written = &self.counters.written_bytes;
        written.fetch_add(bytes, Ordering::Relaxed);
        self.write_budget.charge(bytes, self.now());
    }

    /// Seals the newest segment, so that the next start reads one footer for all of it.
    ///
    /// # Errors
    /// The disk failed; what was written is still found, and recovered batch by batch.
    pub fn close(&self) -> io::Result<()> {
        let current = self.writer.lock().current.take();
        current.map_or(Ok(()), |current| self.seal(current))
    }
}
