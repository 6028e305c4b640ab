//! Which bytes of a buffer are written, which are being written, and which are holes.

use std::collections::BTreeMap;
use std::ops::Range;

use crossbeam_utils::CachePadded;

use super::error::FreezeError;
use crate::sync::{AtomicU64, Counted, Ordering, Step, order, skipped};

/// How many bytes of a claim are written, from its start. Raised by its shard alone, read by everyone.
#[derive(Debug)]
pub(super) struct Progress(CachePadded<AtomicU64>);

impl Progress {
    fn new() -> Counted<Self> {
        Counted::new(Self(CachePadded::new(AtomicU64::new(0))))
    }

    /// The bytes below it may be read.
    fn written(&self) -> u64 {
        // SeqCst: acquires the bytes that `raise` released, and is the load after `Audience::new`'s store.
        self.0.load(order(Step::Progress, Ordering::SeqCst))
    }

    pub(super) fn raise(&self, written: u64) {
        // SeqCst: releases the bytes to `written`, and is the store before the load in `Core::ring`.
        self.0
            .store(written, order(Step::Progress, Ordering::SeqCst));
    }
}

#[derive(Debug)]
enum Held {
    Written,
    /// A shard's, written as far as it says.
    Claimed(Counted<Progress>),
}

#[derive(Debug)]
struct Extent {
    end: u64,
    held: Held,
}

impl Extent {
    fn is_written(&self) -> bool {
        matches!(self.held, Held::Written)
    }

    fn readable(&self, start: u64) -> Range<u64> {
        match &self.held {
            Held::Written => start..self.end,
            Held::Claimed(progress) => start..start + progress.written(),
        }
    }
}

/// What a reader finds at an offset.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Bytes up to there.
    Bytes(u64),
    /// Nothing yet; the next bytes that are written begin there.
    Hole(u64),
    /// Nothing is written here or further on.
    End,
}

/// Disjoint ranges by their start. Neighbours that are written are one range.
#[derive(Debug, Default)]
pub(super) struct Extents {
    by_start: BTreeMap<u64, Extent>,
}

impl Extents {
    /// Those that overlap a range, and perhaps the one before it.
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

    /// The parts of `range` that are neither written nor claimed.
    pub(super) fn free(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let taken = self.around(range.clone());
        gaps(range, taken.map(|(start, extent)| start..extent.end))
    }

    /// The first rest of a claim, still to be written, that overlaps `range`.
    pub(super) fn in_flight(&self, range: &Range<u64>) -> Option<Range<u64>> {
        self.around(range.clone())
            .map(|(start, extent)| extent.readable(start).end..extent.end)
            .find(|rest| rest.start < rest.end && rest.start < range.end && range.start < rest.end)
    }

    fn claimed(&self) -> Option<Range<u64>> {
        let mut claims = self.by_start.iter();
        claims
            .find(|(_, extent)| !extent.is_written())
            .map(|(&start, extent)| start..extent.end)
    }

    /// Marks a free range as one shard's.
    pub(super) fn claim(&mut self, range: Range<u64>) -> Counted<Progress> {
        let progress = Progress::new();
        let held = Held::Claimed(Counted::clone(&progress));
        let end = range.end;
        self.by_start.insert(range.start, Extent { end, held });
        progress
    }

    /// Ends the claim that begins at `start`: its bytes up to `written` are the buffer's, the rest is a hole again.
    pub(super) fn settle(&mut self, start: u64, written: u64) {
        self.by_start.remove(&start);
        if written == start || skipped(Step::Head) {
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
                let held = Held::Written;
                self.by_start.insert(start, Extent { end, held });
            }
        }
    }

    /// One past the last byte that may be read.
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
        // The one that holds the offset is read no further than that.
        let next = self.by_start.range(offset..).find_map(|(&start, extent)| {
            let readable = extent.readable(start);
            (!readable.is_empty()).then_some(readable.start)
        });
        next.map_or(Found::End, Found::Hole)
    }

    /// Ranges that may be read, in order, neighbours joined.
    pub(super) fn written(&self) -> Vec<Range<u64>> {
        let mut joined: Vec<Range<u64>> = Vec::new();
        for range in self.readable() {
            match joined.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => joined.push(range),
            }
        }
        joined
    }

    /// Bytes from the start that may be read without a hole.
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

    /// What of the first `len` bytes may not be read.
    pub(super) fn holes(&self, len: u64) -> Vec<Range<u64>> {
        gaps(0..len, self.readable()).collect()
    }

    /// Whether exactly the first `len` bytes are written, and nothing is in flight.
    pub(super) fn complete(&self, len: u64) -> Result<(), FreezeError> {
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
        self.claimed()
            .map_or(Ok(()), |range| Err(FreezeError::InFlight { range }))
    }
}

/// The parts of `range` that are not in `taken`, which is in order and disjoint.
fn gaps(
    range: Range<u64>,
    taken: impl Iterator<Item = Range<u64>>,
) -> impl Iterator<Item = Range<u64>> {
    let end = range.end;
    let mut reached = range.start;
    taken
        .chain(std::iter::once(end..end))
        .filter_map(move |taken| {
            let gap = reached..taken.start.min(end);
            reached = reached.max(taken.end);
            (!gap.is_empty()).then_some(gap)
        })
}
