//! Rows of one series in memory.

use std::sync::atomic::{AtomicUsize, Ordering};

use bywash_mem::{prefetch_line_for_write, prefetch_value_for_write};
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
#[derive(Debug)]
pub(crate) struct Series {
    /// Its id, and the epoch in which it got that: handles of earlier lookups are of another series.
    pub(crate) handle: SeriesHandle,
    /// Interned names of source and metric.
    pub(crate) source: u32,
    pub(crate) metric: u32,
    /// Range of all rows in memory.
    bounds: Bounds,
    points: Mutex<Points>,
    /// Address of the next row as of the last write. Only prefetched; never accessed without the lock.
    next: AtomicUsize,
}

/// State under the lock of a series, held for one run of rows at a time.
#[derive(Debug)]
struct Points {
    /// Chunk of the last row written.
    current: MemtableChunk,
    /// Chunks of other partitions and generations, until they are flushed.
    others: Vec<MemtableChunk>,
    /// For even and for odd generations: at most two accept writers.
    write_seqs: [WriteSeq; 2],
    /// Seconds since the database was opened at the first sweep that found no rows; no rows were dropped since. Else
    /// [`NOT_IDLE`].
    idle_since: u32,
}

/// Sequence number of writes to a series in one generation. Frames of concurrent writers may be logged in another
/// order, which replay corrects by these numbers.
#[derive(Debug, Clone, Copy, Default)]
struct WriteSeq {
    generation: u64,
    next: u32,
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
    bounds: &'a Bounds,
    next: &'a AtomicUsize,
    generation: u64,
}

impl Series {
    pub(crate) fn new(handle: SeriesHandle, source: u32, metric: u32) -> Self {
        Self {
            handle,
            source,
            metric,
            bounds: Bounds::none(),
            points: Mutex::new(Points {
                current: MemtableChunk::none(),
                others: Vec::new(),
                write_seqs: Default::default(),
                idle_since: NOT_IDLE,
            }),
            next: AtomicUsize::new(0),
        }
    }

    /// Prefetches the cache lines a writer will change next. Otherwise each write waits for both misses: taking a lock
    /// orders it after earlier writes.
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch_value_for_write(self);
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
            bounds: &self.bounds,
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

    /// Copies the rows of one partition and generation, if there are any.
    pub(super) fn run(&self, width: PartitionWidth, key: PartitionKey) -> Option<ChunkSnapshot> {
        let to = width.last_of(key.partition);
        let taken = {
            let points = self.points.lock();
            points
                .runs()
                .find(|run| run.is(key.generation, to))?
                .snapshot()
        };
        Some(ChunkSnapshot {
            partition: key.partition,
            generation: key.generation,
            blocks: taken.into_sorted(),
        })
    }

    /// Calls `visit` with partition and generation of each chunk in memory.
    pub(super) fn partitions(&self, width: PartitionWidth, mut visit: impl FnMut(i64, u64)) {
        for run in self.points.lock().runs() {
            visit(width.partition(run.to), run.generation);
        }
    }

    /// Whether a row in memory lies in this range. Takes the lock only if the range lies strictly between the bounds.
    #[inline]
    pub(crate) fn has(&self, range: &std::ops::RangeInclusive<i64>) -> bool {
        let of_rows = || self.points.lock().runs().any(|run| run.has(range));
        self.bounds.has(range).unwrap_or_else(of_rows)
    }

    /// Drops the chunk of this partition and generation. Returns the memory charged for it.
    pub(super) fn drop_partition(&self, to: i64, generation: u64) -> RowMemory {
        let run = {
            let mut points = self.points.lock();
            let run = if points.current.is(generation, to) {
                std::mem::replace(&mut points.current, MemtableChunk::none())
            } else {
                let at = points.others.iter().position(|run| run.is(generation, to));
                at.map_or_else(MemtableChunk::none, |at| points.others.swap_remove(at))
            };
            self.bounds.set(points.bounds());
            points.idle_since = NOT_IDLE;
            run
        };
        run.memory()
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

    /// Begins its idle time anew.
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
    /// Readers read this one first. Under both locks, so that they find the rows in one of them; the bounds here stay, because
    /// they are read without a lock.
    pub(crate) fn move_to(&self, next: &Self) {
        let mut points = self.points.lock();
        let mut next_points = next.points.lock();
        let current = std::mem::replace(&mut points.current, MemtableChunk::none());
        let others = std::mem::take(&mut points.others).into_iter();
        let runs = others.chain([current]).filter(|run| !run.is_empty());
        next_points.others.extend(runs);
        // The copy began with the same time ([`Self::copy_idle_since`]). A touch of either has set NOT_IDLE, the max.
        next_points.idle_since = next_points.idle_since.max(points.idle_since);
        next.bounds.set(next_points.bounds());
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
        let none = (i64::MAX, i64::MIN);
        self.runs()
            .map(MemtableChunk::bounds)
            .fold(none, |all, run| (all.0.min(run.0), all.1.max(run.1)))
    }

    /// Makes the chunk of this generation and timestamp the current one.
    #[cold]
    fn select_chunk(&mut self, generation: u64, timestamp: i64, width: PartitionWidth) {
        let to = width.last_of(width.partition(timestamp));
        if self.current.is(generation, to) {
            return;
        }
        let other = self.others.iter().position(|run| run.is(generation, to));
        let run = match other {
            Some(at) => self.others.swap_remove(at),
            None => MemtableChunk::new(generation, to),
        };
        let before = std::mem::replace(&mut self.current, run);
        if !before.is_empty() {
            self.others.push(before);
        }
    }
}

impl SeriesGuard<'_> {
    /// Sequence number of this write: counts from 0 in each generation, without gaps.
    #[inline]
    pub(crate) fn write_seq(&self) -> u32 {
        let write_seqs = &self.points.write_seqs[(self.generation % 2) as usize];
        if write_seqs.generation == self.generation {
            write_seqs.next
        } else {
            0
        }
    }

    /// Advances the sequence number for the next write.
    #[inline]
    pub(crate) fn advance_write_seq(&mut self) {
        let next = self.write_seq() + 1;
        self.points.write_seqs[(self.generation % 2) as usize] = WriteSeq {
            generation: self.generation,
            next,
        };
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
            let stored = if points.current.is_next(self.generation, first.timestamp) {
                points.current.push_ascending(&rows[written..], memory)
            } else {
                if !points
                    .current
                    .accepts(self.generation, first.timestamp, width)
                {
                    points.select_chunk(self.generation, first.timestamp, width);
                }
                usize::from(points.current.push(first, memory))
            };
            if stored == 0 {
                break;
            }
            written += stored;
            // Rows of one step ascend.
            earliest = earliest.min(first.timestamp);
            latest = latest.max(rows[written - 1].point().timestamp);
        }
        self.bounds.set((earliest, latest));
        // Relaxed: a hint.
        self.next
            .store(points.current.next_address(), Ordering::Relaxed);
        written
    }
}
