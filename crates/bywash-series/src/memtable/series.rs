//! Rows of one series in memory.

use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

use bywash_mem::{prefetch_line_for_write, prefetch_written_first};
use parking_lot::Mutex;

use super::PartitionKey;
use super::bounds::Bounds;
use super::chunk::{AsPoint, Block, MemtableChunk, UnsortedChunk};
use super::reservation::{MemoryReservation, RowMemory};
use crate::catalog::SeriesHandle;
use crate::partition::PartitionWidth;

/// Of a series that was not found without rows by the last sweep.
const NOT_IDLE: u32 = u32::MAX;

/// A series. Lives as long as its catalog.
///
/// The fields that each write changes are in one cache line, its first ([`bywash_mem::Names`]
/// places values so), and the others are only read: a writer waits for each line that another core
/// changed, for as long as ten rows take if the cores share no cache.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Series {
    /// Latest timestamp of all rows in memory, see [`Bounds`].
    latest: AtomicI64,
    /// Address of the next row as of the last write. Only prefetched; never accessed without the lock.
    next: AtomicUsize,
    points: Mutex<Points>,
    /// Earliest timestamp of all rows in memory.
    earliest: AtomicI64,
    /// Its id, and the epoch in which it got that: handles of earlier lookups are of another series.
    pub(crate) handle: SeriesHandle,
    /// Interned names of source and metric.
    pub(crate) source: u32,
    pub(crate) metric: u32,
    /// Up to the end of the line, so that a lookup reads the name in one line.
    _rest_of_line: [u64; 3],
}

/// State under the lock of a series, held for one run of rows at a time. The fields that each write
/// changes are first.
#[derive(Debug)]
#[repr(C)]
struct Points {
    /// Sequence number of the next write in an even and in an odd generation: at most two accept writers. Frames of concurrent
    /// writers may be logged in another order, which replay corrects by these numbers.
    write_seqs: [u32; 2],
    /// Chunk of the last row written.
    current: MemtableChunk,
    /// Generations of `write_seqs`.
    seq_generations: [u64; 2],
    /// Chunks of other partitions and generations, until they are flushed, by generation and partition: a client may write rows of
    /// a hundred thousand partitions.
    others: Vec<MemtableChunk>,
    /// Seconds since the database was opened at the first sweep that found no rows; no rows were dropped since. Else
    /// [`NOT_IDLE`].
    idle_since: u32,
}

/// Sorted copy of the rows of one partition and generation of a series.
#[derive(Debug)]
pub(crate) struct ChunkSnapshot {
    /// `floor(timestamp / width)` of each row.
    #[cfg_attr(not(test), allow(dead_code, reason = "compared by tests"))]
    pub(crate) partition: i64,
    /// Generation in which the rows were written.
    pub(crate) generation: u64,
    /// By ascending timestamp over all blocks, without duplicates.
    pub(crate) blocks: Vec<Block>,
}

/// Exclusive access of one writer to a series, to write a run of rows.
pub(crate) struct SeriesGuard<'a> {
    points: parking_lot::MutexGuard<'a, Points>,
    bounds: Bounds<'a>,
    next: &'a AtomicUsize,
    generation: u64,
}

impl Series {
    pub(crate) fn new(handle: SeriesHandle, source: u32, metric: u32) -> Self {
        let (earliest, latest) = Bounds::NONE;
        Self {
            latest: AtomicI64::new(latest),
            next: AtomicUsize::new(0),
            points: Mutex::new(Points {
                write_seqs: [0; 2],
                current: MemtableChunk::none(),
                seq_generations: [0; 2],
                others: Vec::new(),
                idle_since: NOT_IDLE,
            }),
            earliest: AtomicI64::new(earliest),
            handle,
            source,
            metric,
            _rest_of_line: [0; 3],
        }
    }

    /// Range of all rows in memory.
    fn bounds(&self) -> Bounds<'_> {
        Bounds::of(&self.earliest, &self.latest)
    }

    /// Prefetches the cache line a writer will change next, and those it will read. Otherwise each write waits for its misses:
    /// taking a lock orders it after earlier writes.
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch_written_first(self);
    }

    /// Prefetches the place of the next row: once [`Self::prefetch`] has had time to load its address.
    #[inline]
    pub(crate) fn prefetch_next(&self) {
        // Relaxed: a hint.
        prefetch_line_for_write(self.next.load(Ordering::Relaxed));
    }

    /// Locks the series for a writer of this generation.
    #[inline]
    pub(crate) fn lock(&self, generation: u64) -> SeriesGuard<'_> {
        SeriesGuard {
            points: self.points.lock(),
            bounds: self.bounds(),
            next: &self.next,
            generation,
        }
    }

    /// Copies all rows in memory of these partitions. Writers are blocked while at most a block is copied.
    pub(super) fn runs(
        &self,
        width: PartitionWidth,
        partitions: std::ops::RangeInclusive<i64>,
    ) -> Vec<ChunkSnapshot> {
        let taken: Vec<(i64, u64, UnsortedChunk)> = {
            let points = self.points.lock();
            let runs = points.runs().map(|run| (width.partition(run.to), run));
            runs.filter(|(partition, _)| partitions.contains(partition))
                .map(|(partition, run)| (partition, run.generation, run.snapshot()))
                .collect()
        };
        let into_sorted =
            |(partition, generation, taken): (i64, u64, UnsortedChunk)| ChunkSnapshot {
                partition,
                generation,
                blocks: taken.into_sorted(),
            };
        taken.into_iter().map(into_sorted).collect()
    }

    /// Copies the rows of a generation in some partitions, in ascending order.
    pub(super) fn runs_of(
        &self,
        width: PartitionWidth,
        generation: u64,
        partitions: &[i64],
    ) -> Vec<ChunkSnapshot> {
        let mut taken: Vec<(i64, UnsortedChunk)> = {
            let points = self.points.lock();
            let runs = points.runs().filter(|run| run.generation == generation);
            runs.map(|run| (width.partition(run.to), run))
                .filter(|(partition, _)| partitions.binary_search(partition).is_ok())
                .map(|(partition, run)| (partition, run.snapshot()))
                .collect()
        };
        taken.sort_unstable_by_key(|(partition, _)| *partition);
        let sorted = taken.into_iter().map(|(partition, taken)| ChunkSnapshot {
            partition,
            generation,
            blocks: taken.into_sorted(),
        });
        sorted.collect()
    }

    /// Calls `visit` with partition, generation and number of rows of each chunk in memory.
    pub(super) fn partitions(
        &self,
        width: PartitionWidth,
        mut visit: impl FnMut(PartitionKey, usize),
    ) {
        for run in self.points.lock().runs() {
            let key = PartitionKey {
                partition: width.partition(run.to),
                generation: run.generation,
            };
            visit(key, run.len());
        }
    }

    /// Whether a row in memory is in this range. Takes the lock only if the range is strictly
    /// between the bounds.
    #[inline]
    pub(crate) fn has(&self, range: &std::ops::RangeInclusive<i64>) -> bool {
        let of_rows = || self.points.lock().runs().any(|run| run.has(range));
        self.bounds().has(range).unwrap_or_else(of_rows)
    }

    /// Drops the chunks of a generation in some partitions, in ascending order. Returns the memory charged for them.
    pub(super) fn drop_partitions(
        &self,
        width: PartitionWidth,
        generation: u64,
        partitions: &[i64],
    ) -> RowMemory {
        let is_dropped = |run: &MemtableChunk| {
            run.generation == generation
                && partitions.binary_search(&width.partition(run.to)).is_ok()
        };
        let dropped = {
            let mut points = self.points.lock();
            let mut dropped: Vec<MemtableChunk> = points
                .others
                .extract_if(.., |run| is_dropped(run))
                .collect();
            if is_dropped(&points.current) {
                dropped.push(std::mem::replace(
                    &mut points.current,
                    MemtableChunk::none(),
                ));
            }
            self.bounds().set(points.bounds());
            points.idle_since = NOT_IDLE;
            dropped
        };
        let memory = dropped.iter().map(MemtableChunk::memory);
        memory.fold(RowMemory::default(), RowMemory::plus)
    }
}

impl Series {
    /// Whether the series had no row in memory at a sweep `grace` seconds before `now`, and got none since. Remembers this sweep.
    /// Both in seconds since the database was opened.
    pub(crate) fn is_idle(&self, now: u32, grace: u32) -> bool {
        let mut points = self.points.lock();
        if points.runs().next().is_some() {
            points.idle_since = NOT_IDLE;
            return false;
        }
        if points.idle_since == NOT_IDLE {
            points.idle_since = now;
            return false;
        }
        now - points.idle_since >= grace
    }

    /// Restarts its idle time.
    pub(crate) fn touch(&self) {
        self.points.lock().idle_since = NOT_IDLE;
    }

    /// Copies the time since which the series is idle from `other`, the same series in another catalog.
    pub(crate) fn copy_idle_since(&self, other: &Self) {
        let since = other.points.lock().idle_since;
        self.points.lock().idle_since = since;
    }

    /// Moves all rows to the same series in the catalog that replaces this one's. No writer has this one any more.
    ///
    /// Readers read this one first. Under both locks, so that they find the rows in one of the two;
    /// the bounds here stay, because they are read without a lock.
    pub(crate) fn move_to(&self, next: &Self) {
        let mut points = self.points.lock();
        let mut next_points = next.points.lock();
        let current = std::mem::replace(&mut points.current, MemtableChunk::none());
        let others = std::mem::take(&mut points.others).into_iter();
        let runs = others.chain([current]).filter(|run| !run.is_empty());
        next_points.others.extend(runs);
        next_points.others.sort_by_key(MemtableChunk::key);
        // The copy began with the same time ([`Self::copy_idle_since`]). A touch of either has set NOT_IDLE, the max.
        next_points.idle_since = next_points.idle_since.max(points.idle_since);
        next.bounds().set(next_points.bounds());
    }
}

impl Points {
    /// Chunks that have rows.
    fn runs(&self) -> impl Iterator<Item = &MemtableChunk> {
        let all = self.others.iter().chain(std::iter::once(&self.current));
        all.filter(|run| !run.is_empty())
    }

    /// Recomputes the [`Bounds`].
    fn bounds(&self) -> (i64, i64) {
        self.runs()
            .map(MemtableChunk::bounds)
            .fold(Bounds::NONE, |all, run| {
                (all.0.min(run.0), all.1.max(run.1))
            })
    }

    /// Makes the chunk of this generation and timestamp the current one.
    #[cold]
    fn select_chunk(&mut self, generation: u64, timestamp: i64, width: PartitionWidth) {
        let to = width.last_of(width.partition(timestamp));
        if self.current.is(generation, to) {
            return;
        }
        let find =
            |others: &[MemtableChunk], key| others.binary_search_by_key(&key, MemtableChunk::key);
        let run = match find(&self.others, (generation, to)) {
            Ok(at) => self.others.remove(at),
            Err(_) => MemtableChunk::new(generation, to),
        };
        let before = std::mem::replace(&mut self.current, run);
        if !before.is_empty() {
            let (Ok(at) | Err(at)) = find(&self.others, before.key());
            self.others.insert(at, before);
        }
    }
}

impl SeriesGuard<'_> {
    /// Sequence number of this write: counts from 0 in each generation, without gaps.
    #[inline]
    pub(crate) fn write_seq(&self) -> u32 {
        let at = (self.generation % 2) as usize;
        if self.points.seq_generations[at] == self.generation {
            self.points.write_seqs[at]
        } else {
            0
        }
    }

    /// Advances the sequence number for the next write.
    #[inline]
    pub(crate) fn advance_write_seq(&mut self) {
        let next = self.write_seq() + 1;
        let at = (self.generation % 2) as usize;
        self.points.write_seqs[at] = next;
        // A store of the same value would take its line from the other cores.
        if self.points.seq_generations[at] != self.generation {
            self.points.seq_generations[at] = self.generation;
        }
    }

    /// Writes rows until `rows` ends or memory is exhausted. Returns the number written.
    #[inline]
    pub(crate) fn write(
        &mut self,
        width: PartitionWidth,
        memory: &MemoryReservation,
        rows: &[impl AsPoint],
    ) -> usize {
        let points = &mut *self.points;
        let mut written = 0;
        let (mut earliest, mut latest) = self.bounds.get();
        while let Some(first) = rows.get(written).map(AsPoint::point) {
            let (stored, bounds) = if points.current.is_next(self.generation, first.timestamp) {
                let stored = points.current.push_ascending(&rows[written..], memory);
                let last = rows[..written + stored].last();
                let last = last.map_or(first.timestamp, |row| row.point().timestamp);
                (stored, (first.timestamp, last))
            } else {
                if !points
                    .current
                    .accepts(self.generation, first.timestamp, width)
                {
                    points.select_chunk(self.generation, first.timestamp, width);
                }
                if points.current.is_ascending() {
                    let stored = usize::from(points.current.push(first, memory));
                    (stored, (first.timestamp, first.timestamp))
                } else {
                    let rows = &rows[written..];
                    points.current.push_unordered(rows, width, memory)
                }
            };
            if stored == 0 {
                break;
            }
            written += stored;
            earliest = earliest.min(bounds.0);
            latest = latest.max(bounds.1);
        }
        self.bounds.set((earliest, latest));
        // Relaxed: a hint.
        self.next
            .store(points.current.next_address(), Ordering::Relaxed);
        written
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    const LINE: usize = 64;

    #[test]
    fn what_each_write_changes_is_one_cache_line() {
        let state = offset_of!(Series, points) + size_of::<Mutex<Points>>() - size_of::<Points>();
        let current = state + offset_of!(Points, current);
        assert!(current + MemtableChunk::CHANGED_BYTES <= LINE);
        assert!(state + offset_of!(Points, write_seqs) + 8 <= LINE);
        assert!(offset_of!(Series, latest) + 8 <= LINE && offset_of!(Series, next) + 8 <= LINE);
        // The name follows, in a line of its own.
        assert_eq!(size_of::<Series>() % LINE, 0);
    }
}
