//! Extents of a buffer: which bytes are written, which are being written, and which are holes.

use std::collections::BTreeMap;
use std::ops::Range;

use crossbeam_utils::CachePadded;

use super::error::FreezeError;
use crate::sync::{AtomicU64, Counted, Ordering, Step, order, skipped};

/// Number of bytes written of a claim, from its start. Raised only by its claim, read by every reader of the buffer.
#[derive(Debug)]
pub(super) struct Progress(CachePadded<AtomicU64>);

impl Progress {
    fn new() -> Counted<Self> {
        Counted::new(Self(CachePadded::new(AtomicU64::new(0))))
    }

    /// Returns the number of bytes that may be read.
    fn written(&self) -> u64 {
        // SeqCst: acquires the bytes that `raise` released, and is the load after the store of `ChangeListener::new`.
        self.0.load(order(Step::Progress, Ordering::SeqCst))
    }

    pub(super) fn raise(&self, written: u64) {
        // SeqCst: releases the bytes to `written`, and is the store before the load in `BufferCore::notify`.
        self.0
            .store(written, order(Step::Progress, Ordering::SeqCst));
    }
}

#[derive(Debug)]
enum ExtentState {
    Written,
    /// Claimed, and written up to its progress.
    Claimed(Counted<Progress>),
}

#[derive(Debug)]
struct Extent {
    end: u64,
    state: ExtentState,
}

impl Extent {
    fn is_written(&self) -> bool {
        matches!(self.state, ExtentState::Written)
    }

    fn readable(&self, start: u64) -> Range<u64> {
        match &self.state {
            ExtentState::Written => start..self.end,
            ExtentState::Claimed(progress) => start..start + progress.written(),
        }
    }
}

/// Result of looking up an offset for reading.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Readable bytes up to this offset.
    Bytes(u64),
    /// A hole; the next readable bytes start at this offset.
    Hole(u64),
    /// No readable byte at this offset or after it.
    End,
}

/// Disjoint extents by their start. Adjacent written extents are merged.
#[derive(Debug, Default)]
pub(super) struct Extents {
    by_start: BTreeMap<u64, Extent>,
}

impl Extents {
    /// Extents that overlap a range, and possibly the one before it.
    fn around(&self, range: Range<u64>) -> impl Iterator<Item = (u64, &Extent)> {
        let before = self.by_start.range(..=range.start).next_back();
        let first = before.map_or(range.start, |(&start, _)| start);
        self.by_start
            .range(first..range.end.max(first))
            .map(|(&start, extent)| (start, extent))
    }

    fn readable(&self) -> impl DoubleEndedIterator<Item = Range<u64>> {
        self.by_start
            .iter()
            .map(|(&start, extent)| extent.readable(start))
            .filter(|range| !range.is_empty())
    }

    /// Parts of `range` that are neither written nor claimed.
    pub(super) fn unclaimed(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let occupied = self.around(range.clone());
        gaps(range, occupied.map(|(start, extent)| start..extent.end))
    }

    /// Returns the first unwritten rest of a claim that overlaps `range`.
    pub(super) fn in_flight(&self, range: &Range<u64>) -> Option<Range<u64>> {
        self.around(range.clone())
            .map(|(start, extent)| extent.readable(start).end..extent.end)
            .find(|rest| rest.start < rest.end && rest.start < range.end && range.start < rest.end)
    }

    fn first_claimed(&self) -> Option<Range<u64>> {
        let mut extents = self.by_start.iter();
        extents
            .find(|(_, extent)| !extent.is_written())
            .map(|(&start, extent)| start..extent.end)
    }

    /// Marks an unclaimed range as claimed.
    pub(super) fn claim(&mut self, range: Range<u64>) -> Counted<Progress> {
        let progress = Progress::new();
        let state = ExtentState::Claimed(Counted::clone(&progress));
        let end = range.end;
        self.by_start.insert(range.start, Extent { end, state });
        progress
    }

    /// Ends the claim that starts at `start`: its bytes up to `written` become a written extent, the rest a hole.
    pub(super) fn finish_claim(&mut self, start: u64, written: u64) {
        let claimed = self.by_start.remove(&start);
        let incomplete = claimed.is_some_and(|claimed| claimed.end > written);
        if written == start || (incomplete && skipped(Step::ClaimHead)) {
            return;
        }
        let after = self
            .by_start
            .get(&written)
            .filter(|after| after.is_written());
        let end = after.map_or(written, |after| after.end);
        if end > written {
            self.by_start.remove(&written);
        }
        let before = self.by_start.range_mut(..start).next_back();
        match before {
            Some((_, before)) if before.end == start && before.is_written() => before.end = end,
            _ => {
                let state = ExtentState::Written;
                self.by_start.insert(start, Extent { end, state });
            }
        }
    }

    /// One past the last readable byte.
    pub(super) fn size(&self) -> u64 {
        self.readable().next_back().map_or(0, |last| last.end)
    }

    pub(super) fn find(&self, offset: u64) -> Found {
        let at = self.by_start.range(..=offset).next_back();
        if let Some((&start, extent)) = at
            && extent.readable(start).end > offset
        {
            return Found::Bytes(extent.readable(start).end);
        }
        // The extent that contains the offset has no readable byte from it on.
        let next = self.by_start.range(offset..).find_map(|(&start, extent)| {
            let readable = extent.readable(start);
            (!readable.is_empty()).then_some(readable.start)
        });
        next.map_or(Found::End, Found::Hole)
    }

    /// Readable ranges in order, adjacent ones merged.
    pub(super) fn written(&self) -> Vec<Range<u64>> {
        let mut merged: Vec<Range<u64>> = Vec::new();
        for range in self.readable() {
            match merged.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => merged.push(range),
            }
        }
        merged
    }

    /// Number of readable bytes from the start without a hole.
    pub(super) fn contiguous(&self) -> u64 {
        self.readable()
            .try_fold(0, |reached, range| {
                if range.start == reached {
                    Ok(range.end)
                } else {
                    Err(reached)
                }
            })
            .unwrap_or_else(|reached| reached)
    }

    /// Parts of the first `len` bytes that are not readable.
    pub(super) fn holes(&self, len: u64) -> Vec<Range<u64>> {
        gaps(0..len, self.readable()).collect()
    }

    /// Checks that exactly the first `len` bytes are written and nothing is in flight.
    pub(super) fn check_complete(&self, len: u64) -> Result<(), FreezeError> {
        let size = self.size();
        if size > len {
            return Err(FreezeError::TooLong { len, size });
        }
        if skipped(Step::Freeze) {
            return Ok(());
        }
        let holes = self.holes(len);
        if !holes.is_empty() {
            return Err(FreezeError::Holes(holes));
        }
        self.first_claimed()
            .map_or(Ok(()), |range| Err(FreezeError::InFlight { range }))
    }
}

/// Parts of `range` outside `occupied`, which is in order and disjoint.
fn gaps(
    range: Range<u64>,
    occupied: impl Iterator<Item = Range<u64>>,
) -> impl Iterator<Item = Range<u64>> {
    let end = range.end;
    let mut reached = range.start;
    occupied
        .chain(std::iter::once(end..end))
        .filter_map(move |occupied| {
            let gap = reached..occupied.start.min(end);
            reached = reached.max(occupied.end);
            (!gap.is_empty()).then_some(gap)
        })
}
