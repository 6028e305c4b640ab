//! Rows of one series, generation and partition in memory.

use std::ops::RangeInclusive;
use std::sync::Arc;

use bywash_mem::FrameVec;

use super::reservation::{MemoryReservation, RowMemory};
use crate::Point;
use crate::catalog::SeriesHandle;
use crate::partition::PartitionWidth;

/// Points of a full block: 2 KiB. A reader copies at most this much of the block being filled.
const POINTS_PER_BLOCK: usize = 128;
/// Initial capacity of a chunk, small for a million series with one row each.
const INITIAL_POINTS: usize = 4;
/// Points at the end of the block being filled among which a late row is inserted: two cache lines, which a write has
/// in cache.
const INSERT_WINDOW: usize = 8;
/// Bytes of a point.
const POINT_BYTES: usize = size_of::<Point>();
/// Bytes of a full block in addition to its points: counters, vector, list entry. On the heap.
const BLOCK_OVERHEAD: usize = 64;

/// A row of a known series.
pub(crate) trait AsPoint {
    fn point(&self) -> Point;
}

impl AsPoint for Point {
    #[inline(always)]
    fn point(&self) -> Point {
        *self
    }
}

impl AsPoint for (SeriesHandle, i64, f64) {
    #[inline(always)]
    fn point(&self) -> Point {
        Point {
            timestamp: self.1,
            value: self.2,
        }
    }
}

/// Immutable points.
pub(crate) type Block = Arc<FrameVec<Point>>;

/// Rows in the order of their writes. As long as they ascend, a row that is late by little is put
/// in its place, and a reader takes them as they are. Otherwise a reader sorts its copy, so that a
/// late row costs a writer no more than another: if one of several concurrent writers of a series
/// is ahead, the others write late rows only.
///
/// The fields that each write changes are first, for `Series`, which places them in one cache line.
#[derive(Debug)]
#[repr(C)]
pub(super) struct MemtableChunk {
    /// The block being filled. The first one grows on the heap; later ones lie in frames.
    tail: FrameVec<Point>,
    /// Latest timestamp of the rows.
    last: i64,
    /// Generation of the rows; 0 for the chunk that accepts none.
    pub(super) generation: u64,
    /// Last timestamp of the partition.
    pub(super) to: i64,
    /// Whether the timestamps of the rows ascend, without duplicates.
    ascending: bool,
    /// Boxed, for most small chunks have none.
    full: Option<Box<FullBlocks>>,
}

#[derive(Debug, Default)]
struct FullBlocks(Vec<Block>);

/// A copy of a chunk taken under its lock, sorted later without it.
#[derive(Debug)]
pub(super) struct UnsortedChunk {
    blocks: Vec<Block>,
    tail: FrameVec<Point>,
    ascending: bool,
}

impl MemtableChunk {
    /// Bytes from its start that each write changes.
    #[cfg(test)]
    pub(super) const CHANGED_BYTES: usize = std::mem::offset_of!(Self, last) + size_of::<i64>();

    /// A chunk that accepts no row.
    pub(super) const fn none() -> Self {
        Self {
            tail: FrameVec::new(),
            last: i64::MAX,
            generation: 0,
            to: i64::MIN,
            ascending: true,
            full: None,
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
        // A full block is followed by the row that needed the next one.
        self.tail.is_empty()
    }

    /// Number of rows, duplicates included.
    pub(super) fn len(&self) -> usize {
        let full: usize = self.full().iter().map(|block| block.len()).sum();
        full + self.tail.len()
    }

    /// Generation and last timestamp of the partition.
    pub(super) fn key(&self) -> (u64, i64) {
        (self.generation, self.to)
    }

    pub(super) fn is(&self, generation: u64, to: i64) -> bool {
        self.generation == generation && self.to == to
    }

    /// Whether the timestamps of the rows ascend, without duplicates.
    #[inline(always)]
    pub(super) fn is_ascending(&self) -> bool {
        self.ascending
    }

    fn full(&self) -> &[Block] {
        self.full.as_ref().map_or(&[], |full| &full.0)
    }

    /// Earliest and latest timestamp. The chunk must not be empty.
    pub(super) fn bounds(&self) -> (i64, i64) {
        let mut timestamps = self
            .full()
            .iter()
            .flat_map(|block| block.iter())
            .chain(self.tail.iter())
            .map(|point| point.timestamp);
        let earliest = if self.ascending {
            timestamps.next()
        } else {
            timestamps.min()
        };
        (earliest.unwrap_or(self.last), self.last)
    }

    /// Whether a row is in this range.
    pub(super) fn has(&self, range: &RangeInclusive<i64>) -> bool {
        // The common case, without reading rows.
        if range.contains(&self.last) && !self.is_empty() {
            return true;
        }
        let inside = |point: &Point| range.contains(&point.timestamp);
        let in_block = |block: &[Point]| match (block.first(), block.last()) {
            (Some(first), Some(last)) => {
                let between = first.timestamp < *range.start() && *range.end() < last.timestamp;
                let at_end = inside(first) || inside(last);
                at_end || (between || !self.ascending) && block.iter().any(inside)
            }
            _ => false,
        };
        in_block(&self.tail) || self.full().iter().any(|block| in_block(block))
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

    /// Whether a row is surely of this chunk, decided without a division.
    #[inline(always)]
    pub(super) fn accepts(&self, generation: u64, timestamp: i64, width: PartitionWidth) -> bool {
        // The last partition may end before its width does.
        let whole = self.to < i64::MAX;
        self.generation == generation
            && whole
            && timestamp <= self.to
            && self.to.abs_diff(timestamp) < width.nanos().unsigned_abs()
    }

    /// Appends the leading rows that ascend within the partition, at most to the end of the block being filled. The first
    /// must be the next one, see [`Self::is_next`]. Returns their number: 0 if there is no memory.
    #[inline(always)]
    pub(super) fn push_ascending(
        &mut self,
        rows: &[impl AsPoint],
        memory: &MemoryReservation,
    ) -> usize {
        if !self.has_room(memory) {
            return 0;
        }
        let free = (self.tail.capacity() - self.tail.len()).min(rows.len());
        let mut last = self.last;
        let mut count = 0;
        for row in &rows[..free] {
            let timestamp = row.point().timestamp;
            if timestamp <= last || timestamp > self.to {
                break;
            }
            last = timestamp;
            count += 1;
        }
        let points = rows[..count].iter().map(AsPoint::point);
        self.tail.extend_within_capacity(points);
        self.last = last;
        count
    }

    /// Adds a row of the chunk's partition and generation. Returns false if there is no memory.
    #[inline]
    pub(super) fn push(&mut self, point: Point, memory: &MemoryReservation) -> bool {
        if let Some(at) = self.insert_position(point.timestamp) {
            if self.tail[at].timestamp == point.timestamp {
                self.tail[at] = point;
                return true;
            }
            return self.insert(at, point, memory);
        }
        let is_last = self.is_empty() || point.timestamp > self.last;
        if !self.has_room(memory) {
            return false;
        }
        if is_last {
            self.last = point.timestamp;
        } else if self.ascending {
            // A store of the same value would take its line from the other cores.
            self.ascending = false;
        }
        self.tail.push(point);
        true
    }

    /// Appends the leading rows of the chunk's partition, in any order, at most to the end of the
    /// block being filled: for a chunk with rows that do not ascend, to which the first row must
    /// belong. Returns their number, 0 if there is no memory, and their earliest and latest
    /// timestamp.
    #[inline]
    pub(super) fn push_unordered(
        &mut self,
        rows: &[impl AsPoint],
        width: PartitionWidth,
        memory: &MemoryReservation,
    ) -> (usize, (i64, i64)) {
        debug_assert!(
            !self.ascending,
            "a late row may have a place among the last"
        );
        if rows.is_empty() || !self.has_room(memory) {
            return (0, (self.last, self.last));
        }
        let free = (self.tail.capacity() - self.tail.len()).min(rows.len());
        let first = rows[0].point().timestamp;
        let (mut earliest, mut latest) = (first, first);
        let mut count = 1;
        for row in &rows[1..free] {
            let timestamp = row.point().timestamp;
            if !self.accepts(self.generation, timestamp, width) {
                break;
            }
            earliest = earliest.min(timestamp);
            latest = latest.max(timestamp);
            count += 1;
        }
        let points = rows[..count].iter().map(AsPoint::point);
        self.tail.extend_within_capacity(points);
        self.last = self.last.max(latest);
        (count, (earliest, latest))
    }

    /// Position of a late row that has its place among the last of the block being filled.
    #[inline]
    fn insert_position(&self, timestamp: i64) -> Option<usize> {
        if !self.ascending || timestamp > self.last {
            return None;
        }
        let from = self.tail.len().saturating_sub(INSERT_WINDOW);
        let last = &self.tail[from..];
        let earliest = last.first()?;
        let among = match from {
            0 => {
                let before = self.full().last().and_then(|block| block.last());
                before.is_none_or(|before| before.timestamp < timestamp)
            }
            _ => earliest.timestamp <= timestamp,
        };
        among.then(|| from + last.partition_point(|there| there.timestamp < timestamp))
    }

    /// Inserts a row into the block being filled. If that is full, its last row moves to the next one.
    fn insert(&mut self, at: usize, point: Point, memory: &MemoryReservation) -> bool {
        if self.tail.len() < POINTS_PER_BLOCK {
            let stored = self.has_room(memory);
            if stored {
                self.tail.insert(at, point);
            }
            return stored;
        }
        let moved = self.tail[POINTS_PER_BLOCK - 1];
        self.tail.truncate(POINTS_PER_BLOCK - 1);
        self.tail.insert(at, point);
        if !self.grow(memory) {
            // As before: the block stays in its place, as it is charged.
            self.tail[at..].rotate_left(1);
            self.tail[POINTS_PER_BLOCK - 1] = moved;
            return false;
        }
        self.tail.push(moved);
        true
    }

    /// Makes room for a row. Returns false if there is no memory.
    #[inline(always)]
    fn has_room(&mut self, memory: &MemoryReservation) -> bool {
        self.tail.len() < self.tail.capacity() || self.grow(memory)
    }

    #[cold]
    fn grow(&mut self, memory: &MemoryReservation) -> bool {
        let held = self.tail.capacity();
        if held < POINTS_PER_BLOCK {
            let more = held.clamp(INITIAL_POINTS, POINTS_PER_BLOCK - held);
            if !memory.try_charge((more * POINT_BYTES) as u64) {
                return false;
            }
            self.tail.reserve_exact(more);
            return true;
        }
        if !memory.try_charge(BLOCK_OVERHEAD as u64) {
            return false;
        }
        let Some(next) = memory.try_block(POINTS_PER_BLOCK) else {
            memory.release(RowMemory::heap(BLOCK_OVERHEAD as u64));
            return false;
        };
        let full = std::mem::replace(&mut self.tail, next);
        self.full.get_or_insert_default().0.push(Arc::new(full));
        true
    }

    /// Bytes charged for the rows.
    pub(super) fn memory(&self) -> RowMemory {
        let blocks = self.full().iter().map(|block| &**block);
        let blocks = blocks.chain(std::iter::once(&self.tail));
        let overhead = RowMemory::heap((self.full().len() * BLOCK_OVERHEAD) as u64);
        blocks.map(RowMemory::of).fold(overhead, RowMemory::plus)
    }

    /// Copies the rows that may still change, at most a block. Full blocks are shared.
    pub(super) fn snapshot(&self) -> UnsortedChunk {
        UnsortedChunk {
            blocks: self.full().to_vec(),
            tail: self.tail.clone(),
            ascending: self.ascending,
        }
    }
}

impl UnsortedChunk {
    /// All points by ascending timestamp, without duplicates.
    pub(super) fn into_sorted(self) -> Vec<Block> {
        let mut blocks = self.blocks;
        if self.ascending {
            blocks.push(Arc::new(self.tail));
            return blocks;
        }
        let full = blocks.iter().flat_map(|block| block.iter()).copied();
        let mut points: Vec<Point> = full.collect();
        points.extend_from_slice(&self.tail);
        vec![Arc::new(dedup_keeping_last(points).into())]
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
