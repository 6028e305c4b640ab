//! Departures: series without rows in memory leave the catalog, so that memory has the names that are in use, not all there were.
//!
//! A series in files only needs no place in the catalog: listings and queries find it by the
//! indexes of files, and its next row names it again.
//!
//! Lookups take no lock, so nothing is removed from a catalog. It is replaced by one without the
//! leaving series. The next generation of writers has the new catalog ([`bywash_mem::Gated`]); once
//! the writers of the one before have left, no thread changes the old one. Then series with rows,
//! or used lately, are copied under their ids, and their rows moved. A writer that needs a series
//! during that copies it first ([`Directory::carry`], [`Directory::create`]). A series that was not
//! copied in the end has left: its id is given to another series some time later, and a handle of
//! it is refused by its epoch.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::SeriesHandle;
use crate::background::{TICK, blocking};
use crate::catalog::Catalog;
use crate::db::Shared;
use crate::directory::Directory;
use crate::memtable::Series;

/// Max time between two sweeps.
const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// Min time between two sweeps while names are many. Each follows a flush of all rows.
const CROWDED_SWEEP_EVERY: Duration = Duration::from_millis(250);
/// Max time between them while they free nothing: each flushes all rows, few at a time.
const FRUITLESS_SWEEP_EVERY: Duration = Duration::from_secs(5);
/// A catalog is replaced when this part of its series would leave: each replacement copies the others.
const LEAVING_PART: usize = 4;
/// New series, as a part of all, for which names that are many are swept again.
const CREATED_PART: u64 = 8;
/// Series whose places are given back under one lock.
const FREED_AT_ONCE: usize = 1024;

/// When the next sweep is due.
#[derive(Debug)]
pub(crate) struct Sweeper {
    next: Instant,
    next_crowded: Instant,
    /// Sweeps of many names since one freed some.
    fruitless: u32,
}

impl Sweeper {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        Self {
            next: now,
            next_crowded: now,
            fruitless: 0,
        }
    }

    /// Whether names use half of the memory, and there are new ones, or a writer found no memory.
    pub(crate) fn is_crowded(&self, shared: &Shared) -> bool {
        let memtable = &shared.memtable;
        let directory = &memtable.directory;
        let many = directory.bytes() > memtable.memory.limit() / 2
            && directory.created() * CREATED_PART >= directory.current().len() as u64;
        (many || directory.is_refused()) && Instant::now() >= self.next_crowded
    }

    /// Lets series leave if a sweep is due.
    pub(crate) async fn sweep_if_due(&mut self, shared: &Arc<Shared>) {
        let now = Instant::now();
        let grace = shared.options.idle_names;
        let crowded = self.is_crowded(shared);
        if !crowded && now < self.next {
            return;
        }
        self.next = now + (grace / 4).clamp(TICK, SWEEP_EVERY);
        let grace = if crowded { Duration::ZERO } else { grace };
        let swept = Arc::clone(shared);
        let departed = blocking(move || sweep(&swept, grace)).await;
        self.fruitless = match departed {
            0 => self.fruitless + u32::from(crowded),
            _ => 0,
        };
        self.next_crowded = now + crowded_pause(self.fruitless);
        shared.backpressure.sweep_finished();
    }
}

/// Time until names that are many are swept again, after `fruitless` sweeps that freed nothing. The
/// first such sweep only marks which series are idle.
fn crowded_pause(fruitless: u32) -> Duration {
    let doublings = fruitless.saturating_sub(1).min(16);
    (CROWDED_SWEEP_EVERY * (1 << doublings)).min(FRUITLESS_SWEEP_EVERY)
}

/// Lets series leave that were without rows for `grace`, if they are a good part of all. Returns their number.
pub(crate) fn sweep(shared: &Shared, grace: Duration) -> u64 {
    let seconds = |time: Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX - 1);
    let (now, grace) = (seconds(shared.opened.elapsed()), seconds(grace));
    let directory = &shared.memtable.directory;
    directory.swept();
    let before = directory.current();
    let idle = before.iter().filter(|series| series.is_idle(now, grace));
    // Only these were idle before this sweep, which has just marked further series as idle: they must not leave yet.
    let mut leaving: Vec<SeriesHandle> = idle.map(|series| series.handle).collect();
    let all = before.len();
    if leaving.is_empty() || leaving.len() * LEAVING_PART < all {
        return 0;
    }
    // The copies of the others, until those before them are dropped.
    let mut leaves = leaving.iter().peekable();
    let stays = |series: &&Series| leaves.next_if(|handle| **handle == series.handle).is_none();
    let staying = before.iter().filter(stays).map(|series| series.handle.0);
    let copied = before.bytes_of_copy(staying);
    let memory = &shared.memtable.memory;
    let copies = memory.reserve_copy(copied);
    // Beyond the limit, as after the replay of a log, nothing else frees memory.
    if copies.is_none() && memory.used() <= memory.limit() {
        let leaving = leaving.len();
        tracing::debug!(copied, leaving, "no memory to let names of series leave");
        return 0;
    }
    let next = Arc::new(Catalog::new(before.epoch + 1));
    if !directory.begin(Arc::clone(&next)) {
        tracing::debug!("a reader holds the names of series; they leave at the next sweep");
        return 0;
    }
    shared.gate.close_with(Arc::clone(&next));
    let (mut seen, mut left) = (0, 0);
    for series in before.iter() {
        let was_idle = leaving.get(seen) == Some(&series.handle);
        seen += usize::from(was_idle);
        // Rows or a lookup may have come since.
        if was_idle && series.is_idle(now, grace) {
            leaving[left] = series.handle;
            left += 1;
            continue;
        }
        directory.carry(&next, series.handle);
        let copy = next.by_id(series.handle.0).expect("carried");
        series.move_to(copy);
    }
    leaving.truncate(left);
    next.inherit_order(&before);
    directory.end();
    let departed = free(directory, &next, &leaving);
    directory.settle(&shared.memtable.memory);
    shared.counters.departed(departed);
    departed
}

/// Gives back the ids of series that have left. Series that writers needed since have not. Returns
/// their number.
fn free(directory: &Directory, next: &Catalog, leaving: &[SeriesHandle]) -> u64 {
    let mut departed = 0;
    for handles in leaving.chunks(FREED_AT_ONCE) {
        let ids = handles.iter().map(|handle| handle.0);
        let left: Vec<u32> = ids.filter(|id| next.by_id(*id).is_none()).collect();
        directory.free(&left);
        departed += left.len() as u64;
    }
    departed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweeps_of_many_names_are_further_apart_while_they_free_nothing() {
        let pauses = [0, 1, 2, 3, 5, 6, u32::MAX].map(crowded_pause);
        let expected = [250, 250, 500, 1000, 4000, 5000, 5000];
        assert_eq!(pauses, expected.map(Duration::from_millis));
    }
}
