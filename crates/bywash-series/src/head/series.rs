//! One series in memory.

use std::sync::atomic::{AtomicUsize, Ordering};

use bywash_mem::{prefetch_line, prefetch_value};
use parking_lot::Mutex;

use super::Place;
use super::bounds::Bounds;
use super::charge::Charge;
use super::run::{Block, Run, Taken};
use crate::Point;
use crate::catalog::SeriesHandle;
use crate::span::Span;

/// A series, for as long as the database is open.
#[derive(Debug)]
pub(crate) struct Series {
    pub(crate) handle: SeriesHandle,
    /// Names of source and metric, by their ids in the catalogue's texts.
    pub(crate) source: u32,
    pub(crate) metric: u32,
    /// Of all rows in memory.
    bounds: Bounds,
    points: Mutex<Points>,
    /// The address where its next row goes, by the last turn. Nobody reads or writes there without the lock.
    next: AtomicUsize,
}

/// What its lock protects; held for one run of rows at a time.
#[derive(Debug)]
struct Points {
    /// The run of the row written last.
    current: Run,
    /// Other partitions and generations, until they are sealed.
    others: Vec<Run>,
    /// Of the even and of the odd generation: there are writers in two at most.
    turns: [Turns; 2],
}

/// The turns in which writers of one generation wrote to a series: the log may have two frames in the other order, and a replay
/// puts them right by these numbers.
#[derive(Debug, Clone, Copy, Default)]
struct Turns {
    generation: u64,
    next: u32,
}

/// Rows of one partition and generation of a series.
#[derive(Debug)]
pub(crate) struct HeadRun {
    /// `floor(timestamp / span)` of each.
    #[cfg_attr(not(test), allow(dead_code, reason = "what tests compare"))]
    pub(crate) partition: i64,
    /// The generation they were written in.
    pub(crate) generation: u64,
    /// By ascending timestamp over all blocks, no two alike.
    pub(crate) blocks: Vec<Block>,
}

/// A series that one writer holds, to write a run of rows.
pub(crate) struct Turn<'a> {
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
                current: Run::none(),
                others: Vec::new(),
                turns: Default::default(),
            }),
            next: AtomicUsize::new(0),
        }
    }

    /// Has the series and the place of its next row brought near, for who takes a turn soon. Without it each turn waits for both:
    /// a lock is taken only when the writes before it are done.
    #[inline]
    pub(crate) fn come(&self) {
        prefetch_value(self);
        // Relaxed: a hint.
        prefetch_line(self.next.load(Ordering::Relaxed));
    }

    /// Waits for the series, for a writer of this generation.
    #[inline]
    pub(crate) fn turn(&self, generation: u64) -> Turn<'_> {
        Turn {
            points: self.points.lock(),
            bounds: &self.bounds,
            next: &self.next,
            generation,
        }
    }

    /// All rows in memory whose partitions are among these. Other writers wait while at most a block and what came late is
    /// copied.
    pub(super) fn runs(
        &self,
        span: Span,
        partitions: std::ops::RangeInclusive<i64>,
    ) -> Vec<HeadRun> {
        let taken: Vec<(i64, u64, Taken)> = {
            let points = self.points.lock();
            let runs = points.runs().map(|run| (span.partition(run.to), run));
            runs.filter(|(partition, _)| partitions.contains(partition))
                .map(|(partition, run)| (partition, run.generation, run.take()))
                .collect()
        };
        let in_order = |(partition, generation, taken): (i64, u64, Taken)| HeadRun {
            partition,
            generation,
            blocks: taken.in_order(),
        };
        taken.into_iter().map(in_order).collect()
    }

    /// The rows of one place, if there are any.
    pub(super) fn run(&self, span: Span, place: Place) -> Option<HeadRun> {
        let to = span.last_of(place.partition);
        let taken = {
            let points = self.points.lock();
            points
                .runs()
                .find(|run| run.is(place.generation, to))?
                .take()
        };
        Some(HeadRun {
            partition: place.partition,
            generation: place.generation,
            blocks: taken.in_order(),
        })
    }

    /// Partition and generation of each run in memory.
    pub(super) fn places(&self, span: Span, mut see: impl FnMut(i64, u64)) {
        for run in self.points.lock().runs() {
            see(span.partition(run.to), run.generation);
        }
    }

    /// Whether a row in memory lies in this range. Waits for the series only where the range lies among its rows.
    #[inline]
    pub(crate) fn has(&self, range: &std::ops::RangeInclusive<i64>) -> bool {
        let of_rows = || self.points.lock().runs().any(|run| run.has(range));
        self.bounds.has(range).unwrap_or_else(of_rows)
    }

    /// Drops the run of this place, and answers the bytes that were charged for it.
    pub(super) fn forget(&self, to: i64, generation: u64) -> u64 {
        let run = {
            let mut points = self.points.lock();
            let run = if points.current.is(generation, to) {
                std::mem::replace(&mut points.current, Run::none())
            } else {
                let at = points.others.iter().position(|run| run.is(generation, to));
                at.map_or_else(Run::none, |at| points.others.swap_remove(at))
            };
            self.bounds.set(points.bounds());
            run
        };
        run.bytes()
    }
}

impl Points {
    /// None is empty.
    fn runs(&self) -> impl Iterator<Item = &Run> {
        let all = self.others.iter().chain(std::iter::once(&self.current));
        all.filter(|run| !run.is_empty())
    }

    /// As [`Bounds`] has them.
    fn bounds(&self) -> (i64, i64) {
        let none = (i64::MAX, i64::MIN);
        self.runs()
            .map(Run::bounds)
            .fold(none, |all, run| (all.0.min(run.0), all.1.max(run.1)))
    }

    /// Makes the run of this generation and timestamp the current one.
    #[cold]
    fn turn_to(&mut self, generation: u64, timestamp: i64, span: Span) {
        let to = span.last_of(span.partition(timestamp));
        if self.current.is(generation, to) {
            return;
        }
        let other = self.others.iter().position(|run| run.is(generation, to));
        let run = match other {
            Some(at) => self.others.swap_remove(at),
            None => Run::new(generation, to),
        };
        let before = std::mem::replace(&mut self.current, run);
        if !before.is_empty() {
            self.others.push(before);
        }
    }
}

impl Turn<'_> {
    /// Its number: turns of a generation count from 0, without a gap. At 0, nobody has written to the series in it.
    #[inline]
    pub(crate) fn number(&self) -> u32 {
        let turns = &self.points.turns[(self.generation % 2) as usize];
        if turns.generation == self.generation {
            turns.next
        } else {
            0
        }
    }

    /// Makes the next turn another one.
    #[inline]
    pub(crate) fn count(&mut self) {
        let next = self.number() + 1;
        self.points.turns[(self.generation % 2) as usize] = Turns {
            generation: self.generation,
            next,
        };
    }

    /// Writes rows until there is no memory for one, or `rows` ends; answers how many.
    #[inline]
    pub(crate) fn write(
        &mut self,
        span: Span,
        charge: &Charge,
        rows: impl Iterator<Item = Point>,
    ) -> usize {
        let points = &mut *self.points;
        let mut written = 0;
        let (mut earliest, mut latest) = self.bounds.get();
        for point in rows {
            let stored = if points.current.is_next(self.generation, point.timestamp) {
                points.current.push_next(point, charge)
            } else {
                points.turn_to(self.generation, point.timestamp, span);
                points.current.push(point, charge)
            };
            if !stored {
                break;
            }
            earliest = earliest.min(point.timestamp);
            latest = latest.max(point.timestamp);
            written += 1;
        }
        self.bounds.set((earliest, latest));
        // Relaxed: a hint.
        self.next
            .store(points.current.next_address(), Ordering::Relaxed);
        written
    }
}
