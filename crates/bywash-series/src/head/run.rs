//! Rows of one series, one generation and one partition, in memory.

use std::ops::RangeInclusive;
use std::sync::Arc;

use super::charge::Charge;
use crate::Point;

/// Points of a full block: 2 KiB. What a reader copies of the block that is being filled is at most this.
const BLOCK: usize = 128;
/// Points of a run's first memory, so that a million series with one row each stay small.
const FIRST: usize = 4;
/// Points at the end of the block being filled, among which a late row is put in its place: two cache lines, which are near when
/// a row is written.
const NEAR: usize = 8;
/// Bytes of a point.
const POINT: usize = size_of::<Point>();
/// What a full block costs beside its points: its counts, its vector, its place in the list.
const BLOCK_EXTRA: usize = 64;

/// Points by ascending timestamp, no two alike; nobody writes to them any more.
pub(crate) type Block = Arc<Vec<Point>>;

/// Rows by ascending timestamp. A row that comes late is put in its place if that is among the last, as it is where writers side
/// by side differ by little; others lie apart.
///
/// A row that lies apart was written after the one in order with its timestamp, for rows are put in place only among the last, and
/// where these begin never gets earlier: so it wins, and among those apart the last.
#[derive(Debug)]
pub(super) struct Run {
    /// The generation the rows were written in. None has 0.
    pub(super) generation: u64,
    /// The last timestamp of the partition.
    pub(super) to: i64,
    /// The last timestamp in order.
    last: i64,
    /// The block that is being filled.
    tail: Vec<Point>,
    /// What few runs have at first.
    more: Option<Box<More>>,
}

#[derive(Debug, Default)]
struct More {
    full: Vec<Block>,
    late: Vec<Point>,
}

/// What a reader took of a run under its lock, to be put in order without it.
#[derive(Debug)]
pub(super) struct Taken {
    blocks: Vec<Block>,
    tail: Vec<Point>,
    late: Vec<Point>,
}

impl Run {
    /// A run that takes no row.
    pub(super) const fn none() -> Self {
        Self {
            generation: 0,
            to: i64::MIN,
            last: i64::MAX,
            tail: Vec::new(),
            more: None,
        }
    }

    pub(super) fn new(generation: u64, to: i64) -> Self {
        Self {
            generation,
            to,
            last: i64::MIN,
            ..Self::none()
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tail.is_empty() && self.more.as_ref().is_none_or(|more| more.full.is_empty())
    }

    pub(super) fn is(&self, generation: u64, to: i64) -> bool {
        self.generation == generation && self.to == to
    }

    /// Its earliest and its latest timestamp; it is not empty.
    pub(super) fn bounds(&self) -> (i64, i64) {
        let more = self.more.as_ref();
        let first = more
            .and_then(|more| more.full.first()?.first())
            .or(self.tail.first());
        let late = more.into_iter().flat_map(|more| &more.late);
        let earliest = first
            .into_iter()
            .chain(late)
            .map(|point| point.timestamp)
            .min();
        (earliest.unwrap_or(self.last), self.last)
    }

    /// Whether a row lies in this range.
    pub(super) fn has(&self, range: &RangeInclusive<i64>) -> bool {
        // Often enough, and no memory of rows is read.
        if range.contains(&self.last) && !self.is_empty() {
            return true;
        }
        let (full, late) = self
            .more
            .as_ref()
            .map_or((&[][..], &[][..]), |more| (&more.full[..], &more.late[..]));
        let inside = |point: &Point| range.contains(&point.timestamp);
        let in_block = |block: &[Point]| match (block.first(), block.last()) {
            (Some(first), Some(last)) => {
                range.contains(&first.timestamp)
                    || range.contains(&last.timestamp)
                    || first.timestamp < *range.start()
                        && *range.end() < last.timestamp
                        && block.iter().any(inside)
            }
            _ => false,
        };
        in_block(&self.tail) || full.iter().any(|block| in_block(block)) || late.iter().any(inside)
    }

    /// The address where the next row in order goes, unless that needs memory first.
    #[inline(always)]
    pub(super) fn next_address(&self) -> usize {
        self.tail.as_ptr().wrapping_add(self.tail.len()).addr()
    }

    /// Whether this is the next row in order of this run, as nearly all are.
    #[inline(always)]
    pub(super) fn is_next(&self, generation: u64, timestamp: i64) -> bool {
        self.generation == generation && timestamp > self.last && timestamp <= self.to
    }

    /// A row that [`Self::is_next`]. False if there is no memory for it.
    #[inline(always)]
    pub(super) fn push_next(&mut self, point: Point, charge: &Charge) -> bool {
        if self.tail.len() == self.tail.capacity() && !self.grow(charge) {
            return false;
        }
        self.tail.push(point);
        self.last = point.timestamp;
        true
    }

    /// Any row of the run's partition and generation. False if there is no memory for it.
    pub(super) fn push(&mut self, point: Point, charge: &Charge) -> bool {
        if point.timestamp > self.last || self.is_empty() {
            return self.push_next(point, charge);
        }
        if let Some(at) = self.place_among_last(point.timestamp) {
            if self.tail[at].timestamp == point.timestamp {
                self.tail[at] = point;
                return true;
            }
            if self.tail.len() < BLOCK {
                if self.tail.len() == self.tail.capacity() && !self.grow(charge) {
                    return false;
                }
                self.tail.insert(at, point);
                return true;
            }
        }
        let late = &mut self.more.get_or_insert_default().late;
        if late.len() == late.capacity() {
            let more = late.capacity().max(FIRST);
            if !charge.take((more * POINT) as u64) {
                return false;
            }
            late.reserve_exact(more);
        }
        late.push(point);
        true
    }

    /// Where a row goes that is not the latest, if that is among the last of the block being filled: before the first of them that is
    /// not earlier.
    fn place_among_last(&self, timestamp: i64) -> Option<usize> {
        let from = self.tail.len().saturating_sub(NEAR);
        let last = &self.tail[from..];
        let among = last.first()?.timestamp <= timestamp;
        among.then(|| from + last.partition_point(|there| there.timestamp < timestamp))
    }

    #[cold]
    fn grow(&mut self, charge: &Charge) -> bool {
        let held = self.tail.capacity();
        if held < BLOCK {
            let more = held.clamp(FIRST, BLOCK - held);
            if !charge.take((more * POINT) as u64) {
                return false;
            }
            self.tail.reserve_exact(more);
            return true;
        }
        if !charge.take((BLOCK * POINT + BLOCK_EXTRA) as u64) {
            return false;
        }
        let full = std::mem::replace(&mut self.tail, Vec::with_capacity(BLOCK));
        self.more.get_or_insert_default().full.push(Arc::new(full));
        true
    }

    /// What was charged for the rows.
    pub(super) fn bytes(&self) -> u64 {
        let more = self.more.as_ref().map_or(0, |more| {
            more.full.len() * (BLOCK * POINT + BLOCK_EXTRA) + more.late.capacity() * POINT
        });
        (self.tail.capacity() * POINT + more) as u64
    }

    /// Copies what may still change, at most a block and what came late; the rest is shared.
    pub(super) fn take(&self) -> Taken {
        let (blocks, late) = self.more.as_ref().map_or_else(Default::default, |more| {
            (more.full.clone(), more.late.clone())
        });
        Taken {
            blocks,
            tail: self.tail.clone(),
            late,
        }
    }
}

impl Taken {
    /// All points by ascending timestamp, no two alike.
    pub(super) fn in_order(self) -> Vec<Block> {
        let mut blocks = self.blocks;
        blocks.push(Arc::new(self.tail));
        if self.late.is_empty() {
            return blocks;
        }
        let late = last_of_each(self.late);
        let count = blocks.iter().map(|block| block.len()).sum::<usize>() + late.len();
        let mut merged = Vec::with_capacity(count);
        let mut late = late.into_iter().peekable();
        for point in blocks.iter().flat_map(|block| block.iter()) {
            while let Some(earlier) = late.next_if(|late| late.timestamp < point.timestamp) {
                merged.push(earlier);
            }
            merged.push(
                late.next_if(|late| late.timestamp == point.timestamp)
                    .unwrap_or(*point),
            );
        }
        merged.extend(late);
        vec![Arc::new(merged)]
    }
}

/// By ascending timestamp, of points of one timestamp the last.
fn last_of_each(mut points: Vec<Point>) -> Vec<Point> {
    // Stable: of equal timestamps, the last written stays last.
    points.sort_by_key(|point| point.timestamp);
    points.reverse();
    points.dedup_by(|next, kept| next.timestamp == kept.timestamp);
    points.reverse();
    points
}
