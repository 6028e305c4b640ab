//! Rows of one series, generation and partition in memory.

use std::ops::RangeInclusive;
use std::sync::Arc;

use super::reservation::MemoryReservation;
use crate::Point;

/// Points of a full block: 2 KiB. A reader copies at most this much of the block being filled.
const POINTS_PER_BLOCK: usize = 128;
/// Initial capacity of a chunk, small for a million series with one row each.
const INITIAL_POINTS: usize = 4;
/// Points at the end of the block being filled among which a late row is inserted: two cache lines, which a write has
/// in cache.
const INSERT_WINDOW: usize = 8;
/// Bytes of a point.
const POINT_BYTES: usize = size_of::<Point>();
/// Bytes of a full block besides its points: counters, vector, list entry.
const BLOCK_OVERHEAD: usize = 64;

/// Immutable points by ascending timestamp, without duplicates.
pub(crate) type Block = Arc<Vec<Point>>;

/// Rows by ascending timestamp. A late row is inserted if its position is among the last rows, which covers
/// concurrent writers. Other late rows are kept apart.
///
/// Late rows kept apart are newer than the sorted row of the same timestamp: rows are only inserted near the end, and
/// the end never moves back. So they win over sorted rows, and the last of them wins among themselves.
#[derive(Debug)]
pub(super) struct MemtableChunk {
    /// Generation of the rows; 0 for the chunk that accepts none.
    pub(super) generation: u64,
    /// Last timestamp of the partition.
    pub(super) to: i64,
    /// Last timestamp in sorted order.
    last: i64,
    /// The block being filled.
    tail: Vec<Point>,
    /// What most small chunks do not need.
    overflow: Option<Box<Overflow>>,
}

#[derive(Debug, Default)]
struct Overflow {
    full: Vec<Block>,
    late: Vec<Point>,
}

/// A copy of a chunk taken under its lock, sorted later without it.
#[derive(Debug)]
pub(super) struct UnsortedChunk {
    blocks: Vec<Block>,
    tail: Vec<Point>,
    late: Vec<Point>,
}

impl MemtableChunk {
    /// A chunk that accepts no row.
    pub(super) const fn none() -> Self {
        Self {
            generation: 0,
            to: i64::MIN,
            last: i64::MAX,
            tail: Vec::new(),
            overflow: None,
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
        self.tail.is_empty()
            && self
                .overflow
                .as_ref()
                .is_none_or(|overflow| overflow.full.is_empty())
    }

    pub(super) fn is(&self, generation: u64, to: i64) -> bool {
        self.generation == generation && self.to == to
    }

    /// Earliest and latest timestamp. The chunk must not be empty.
    pub(super) fn bounds(&self) -> (i64, i64) {
        let overflow = self.overflow.as_ref();
        let first = overflow
            .and_then(|overflow| overflow.full.first()?.first())
            .or(self.tail.first());
        let late = overflow.into_iter().flat_map(|overflow| &overflow.late);
        let earliest = first
            .into_iter()
            .chain(late)
            .map(|point| point.timestamp)
            .min();
        (earliest.unwrap_or(self.last), self.last)
    }

    /// Whether a row lies in this range.
    pub(super) fn has(&self, range: &RangeInclusive<i64>) -> bool {
        // The common case, without reading rows.
        if range.contains(&self.last) && !self.is_empty() {
            return true;
        }
        let (full, late) = self
            .overflow
            .as_ref()
            .map_or((&[][..], &[][..]), |overflow| {
                (&overflow.full[..], &overflow.late[..])
            });
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

    /// Address of the next row in order, unless that row needs an allocation.
    #[inline(always)]
    pub(super) fn next_address(&self) -> usize {
        self.tail.as_ptr().wrapping_add(self.tail.len()).addr()
    }

    /// Whether a row continues the order of this chunk, as nearly all do.
    #[inline(always)]
    pub(super) fn is_next(&self, generation: u64, timestamp: i64) -> bool {
        self.generation == generation && timestamp > self.last && timestamp <= self.to
    }

    /// Appends a row for which [`Self::is_next`] holds. Returns false if there is no memory.
    #[inline(always)]
    pub(super) fn push_next(&mut self, point: Point, memory: &MemoryReservation) -> bool {
        if self.tail.len() == self.tail.capacity() && !self.grow(memory) {
            return false;
        }
        self.tail.push(point);
        self.last = point.timestamp;
        true
    }

    /// Adds a row of the chunk's partition and generation. Returns false if there is no memory.
    pub(super) fn push(&mut self, point: Point, memory: &MemoryReservation) -> bool {
        if point.timestamp > self.last || self.is_empty() {
            return self.push_next(point, memory);
        }
        if let Some(at) = self.insert_position(point.timestamp) {
            if self.tail[at].timestamp == point.timestamp {
                self.tail[at] = point;
                return true;
            }
            if self.tail.len() < POINTS_PER_BLOCK {
                if self.tail.len() == self.tail.capacity() && !self.grow(memory) {
                    return false;
                }
                self.tail.insert(at, point);
                return true;
            }
        }
        let late = &mut self.overflow.get_or_insert_default().late;
        if late.len() == late.capacity() {
            let overflow = late.capacity().max(INITIAL_POINTS);
            if !memory.try_charge((overflow * POINT_BYTES) as u64) {
                return false;
            }
            late.reserve_exact(overflow);
        }
        late.push(point);
        true
    }

    /// Returns the position of a late row if it is among the last of the block being filled.
    fn insert_position(&self, timestamp: i64) -> Option<usize> {
        let from = self.tail.len().saturating_sub(INSERT_WINDOW);
        let last = &self.tail[from..];
        let among = last.first()?.timestamp <= timestamp;
        among.then(|| from + last.partition_point(|there| there.timestamp < timestamp))
    }

    #[cold]
    fn grow(&mut self, memory: &MemoryReservation) -> bool {
        let held = self.tail.capacity();
        if held < POINTS_PER_BLOCK {
            let overflow = held.clamp(INITIAL_POINTS, POINTS_PER_BLOCK - held);
            if !memory.try_charge((overflow * POINT_BYTES) as u64) {
                return false;
            }
            self.tail.reserve_exact(overflow);
            return true;
        }
        if !memory.try_charge((POINTS_PER_BLOCK * POINT_BYTES + BLOCK_OVERHEAD) as u64) {
            return false;
        }
        let full = std::mem::replace(&mut self.tail, Vec::with_capacity(POINTS_PER_BLOCK));
        self.overflow
            .get_or_insert_default()
            .full
            .push(Arc::new(full));
        true
    }

    /// Bytes charged for the rows.
    pub(super) fn bytes(&self) -> u64 {
        let overflow = self.overflow.as_ref().map_or(0, |overflow| {
            overflow.full.len() * (POINTS_PER_BLOCK * POINT_BYTES + BLOCK_OVERHEAD)
                + overflow.late.capacity() * POINT_BYTES
        });
        (self.tail.capacity() * POINT_BYTES + overflow) as u64
    }

    /// Copies what may still change, at most a block and the late rows. Full blocks are shared.
    pub(super) fn snapshot(&self) -> UnsortedChunk {
        let (blocks, late) = self
            .overflow
            .as_ref()
            .map_or_else(Default::default, |overflow| {
                (overflow.full.clone(), overflow.late.clone())
            });
        UnsortedChunk {
            blocks,
            tail: self.tail.clone(),
            late,
        }
    }
}

impl UnsortedChunk {
    /// All points by ascending timestamp, without duplicates.
    pub(super) fn into_sorted(self) -> Vec<Block> {
        let mut blocks = self.blocks;
        blocks.push(Arc::new(self.tail));
        if self.late.is_empty() {
            return blocks;
        }
        let late = dedup_keeping_last(self.late);
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

/// Sorts by timestamp; of equal timestamps only the last point stays.
fn dedup_keeping_last(mut points: Vec<Point>) -> Vec<Point> {
    // Stable: of equal timestamps, the last written stays last.
    points.sort_by_key(|point| point.timestamp);
    points.reverse();
    points.dedup_by(|next, kept| next.timestamp == kept.timestamp);
    points.reverse();
    points
}
