//! Writing batches of blocks.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Tier, name_of};
use crate::Block;
use crate::erasures::OpenBatch;
use crate::format::{PAGE, VersionKey, pages_of};
use crate::index::Place;
use crate::limits::MAX_TEXT_BYTES;
use crate::marks::Marks;
use crate::segment::SegmentWriter;

/// Pages of a segment, times this fraction of a page, are the erasures of a batch: with 20 bytes each a 25th of the segment.
const ERASURES_DIVISOR: usize = 512;

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
    /// Too many versions are being compared with their digests to mark another one.
    TooManyChecks,
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

    /// Number of the current segment.
    pub(super) fn number(&self) -> Option<u32> {
        self.current.as_ref().map(|current| current.segment.number)
    }
}

/// Blocks on their way to the disk: blocks of a version that is erased after the begin of the batch
/// are not found afterwards.
#[derive(Debug)]
pub struct Batch<'a> {
    tier: &'a Tier,
    open: OpenBatch<'a>,
}

impl Batch<'_> {
    /// Writes blocks that were looked up since the batch was begun. Blocks until the system has the bytes.
    ///
    /// # Errors
    /// None of the blocks is found afterwards.
    pub fn write(self, blocks: &[Block<'_>]) -> Result<(), Declined> {
        let Self { tier, open } = self;
        let written = tier.write_batch(&open, blocks);
        if let Err(declined) = &written {
            tier.count_declined(declined, blocks.len() as u64);
        }
        // No try while the disk fails.
        if !matches!(written, Err(Declined::NotWritable)) {
            tier.remove_surplus();
        }
        written
    }
}

impl Tier {
    /// Begins a batch. Call this before its blocks are looked up: an erasure in between must not be missed.
    #[must_use]
    pub fn begin_batch(&self) -> Batch<'_> {
        Batch {
            tier: self,
            open: self.erasures.open(),
        }
    }

    /// As [`Batch::write`], for blocks that the caller has at hand.
    ///
    /// # Errors
    /// None of the blocks is found afterwards.
    pub fn write(&self, blocks: &[Block<'_>]) -> Result<(), Declined> {
        self.begin_batch().write(blocks)
    }

    fn count_declined(&self, declined: &Declined, blocks: u64) {
        let counter = match declined {
            Declined::TooLarge => &self.counters.declined_large,
            Declined::NoSegment => &self.counters.declined_segments,
            Declined::NotWritable | Declined::TooManyChecks => &self.counters.declined_state,
            Declined::DailyWrites => &self.counters.declined_rate,
            Declined::Failed(_) => &self.counters.failed_writes,
        };
        counter.fetch_add(blocks, Ordering::Relaxed);
    }

    fn write_batch(&self, open: &OpenBatch<'_>, blocks: &[Block<'_>]) -> Result<(), Declined> {
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
        match self.mark(&mut writer, blocks) {
            Ok(true) => {}
            Ok(false) => return Err(Declined::TooManyChecks),
            Err(error) => {
                self.health.write_failed(format!("cannot mark: {error}"));
                return Err(Declined::Failed(error));
            }
        }
        self.free_index(writer.number(), blocks.len());
        let pages = blocks.iter().map(|block| pages_of(block.bytes.len())).sum();
        self.reinsert_if_due(&mut writer, open, pages);
        self.append_judged(&mut writer, open, blocks)?;
        let counters = &self.counters;
        let bytes: u64 = blocks.iter().map(|block| block.bytes.len() as u64).sum();
        let count = blocks.len() as u64;
        counters.blocks_written.fetch_add(count, Ordering::Relaxed);
        counters.block_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Appends blocks with the pending erasures, enters them into the index, and judges the disk by the outcome.
    fn append_judged(
        &self,
        writer: &mut Writer,
        open: &OpenBatch<'_>,
        blocks: &[Block<'_>],
    ) -> Result<(), Declined> {
        let mut append = |blocks: &[Block<'_>]| {
            self.enter_all(open, blocks, |erased| self.append(writer, blocks, erased))
        };
        let mut appended = Ok(());
        // Erasures beyond the number that a batch takes with its blocks are written before it.
        while appended.is_ok() && self.erasures.pending_count() > self.max_erasures() {
            appended = append(&[]);
        }
        let appended = appended.and_then(|()| append(blocks));
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
        self.note_room(writer);
        appended
    }

    /// Erasures that a batch takes: a small part of a segment.
    fn max_erasures(&self) -> usize {
        self.pages as usize * (PAGE / ERASURES_DIVISOR)
    }

    /// Has `append` write blocks with the pending erasures, and enters those blocks that were not erased since the batch was begun.
    pub(super) fn enter_all(
        &self,
        open: &OpenBatch<'_>,
        blocks: &[Block<'_>],
        append: impl FnOnce(&[VersionKey]) -> Result<Vec<Place>, Declined>,
    ) -> Result<(), Declined> {
        let erased = open.take_pending(self.max_erasures());
        let written: &[VersionKey] = if planted!("disk-erasure-not-written") {
            &[]
        } else {
            &erased
        };
        match append(written) {
            Ok(places) => {
                open.enter(blocks.iter().map(|block| block.version), |position| {
                    let block = &blocks[position];
                    let name = name_of(block.record);
                    self.enter(block.version, name, block.number, places[position]);
                });
                Ok(())
            }
            Err(declined) => {
                open.put_back(erased);
                Err(declined)
            }
        }
    }

    /// Writes the erasures that are not recorded on the disk yet: without this they last as soon as
    /// blocks are written. If that fails they are marked, as far as there is room. Blocks on the
    /// disk.
    ///
    /// # Errors
    /// Erasures without a record or a mark are lost if the process is killed before it writes blocks.
    pub fn record_erasures(&self) -> Result<(), Declined> {
        if self.erasures.pending_count() == 0 {
            return Ok(());
        }
        let mut writer = self.writer.lock();
        let recorded = if self.health.begin_write() {
            self.append_judged(&mut writer, &self.erasures.open(), &[])
        } else {
            Err(Declined::NotWritable)
        };
        let Some(marks) = writer.marks.as_mut().filter(|_| recorded.is_err()) else {
            return recorded;
        };
        let pending = self.erasures.pending();
        let mut marked = pending.into_iter().map(|version| marks.add(version));
        match marked.all(|marked| matches!(marked, Ok(true))) {
            true => Ok(()),
            false => recorded,
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
            // Batches after a failed batch would never be recovered.
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

    /// Writes the pending erasures and seals the newest segment, so that the next start reads one footer for all of it.
    ///
    /// # Errors
    /// The disk failed; written blocks are still found, and recovered batch by batch.
    pub fn close(&self) -> io::Result<()> {
        let recorded = self.record_erasures();
        let current = self.writer.lock().current.take();
        current.map_or(Ok(()), |current| self.seal(current))?;
        match recorded {
            Err(Declined::Failed(error)) => Err(error),
            _ => Ok(()),
        }
    }
}
