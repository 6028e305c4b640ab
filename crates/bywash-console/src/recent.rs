//! Counters of the last minute: snapshots in memory, so that rates need neither history nor disk.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bywash::{BucketStats, Engine};
use parking_lot::Mutex;
use tokio::time::{Instant, MissedTickBehavior};

use crate::Inner;
use crate::history::{BUCKETS, CounterSnapshot, History, grown, sum};

/// Time between two snapshots.
const EVERY: Duration = Duration::from_secs(5);
/// Max snapshots: they span a minute.
const KEPT: usize = 13;

/// Snapshots of the counters, the oldest first, and the time of the first one ever.
#[derive(Debug)]
pub(crate) struct Recent {
    started: Instant,
    snapshots: Mutex<VecDeque<Arc<RecentSnapshot>>>,
}

/// All counters at one time.
#[derive(Debug)]
pub(crate) struct RecentSnapshot {
    at: Instant,
    /// Sum of all buckets.
    pub(crate) total: BucketStats,
    /// All counters, with at most [`BUCKETS`] buckets.
    pub(crate) counted: CounterSnapshot,
    /// Number of all buckets.
    buckets: usize,
    /// Responses by status.
    statuses: Vec<(u16, u64)>,
}

impl RecentSnapshot {
    /// Number of responses with this status.
    pub(crate) fn status(&self, status: u16) -> u64 {
        let found = self.statuses.iter().find(|(known, _)| *known == status);
        found.map_or(0, |(_, count)| *count)
    }

    fn now(engine: &Engine, history: Option<&History>) -> Self {
        let mut counted = CounterSnapshot::now(engine, history);
        let total = counted.total();
        let buckets = counted.stats.buckets.len();
        let beyond = counted.stats.buckets.keys().nth(BUCKETS).cloned();
        if let Some(first) = beyond {
            counted.stats.buckets.split_off(&first);
        }
        Self {
            at: Instant::now(),
            total,
            counted,
            buckets,
            statuses: engine.traffic().statuses(),
        }
    }
}

/// Increase of the counters in the last minute, or since the start of a younger server.
#[derive(Debug)]
pub(crate) struct Minute {
    /// Its length in seconds, at least one.
    pub(crate) seconds: f64,
    /// Sum of all buckets.
    pub(crate) total: BucketStats,
    /// The oldest snapshot, to which counters of now compare.
    pub(crate) before: Arc<RecentSnapshot>,
}

impl Minute {
    /// The growth of a bucket's counters up to `now`; `None` if the snapshot lacks the bucket for
    /// lack of space.
    pub(crate) fn bucket(&self, name: &str, now: &BucketStats) -> Option<BucketStats> {
        let before = &self.before.counted.stats.buckets;
        match before.get(name) {
            Some(before) => Some(grown(before, now)),
            // It is new.
            None if before.len() < BUCKETS => Some(*now),
            None => None,
        }
    }

    /// The increase of a counter a second.
    pub(crate) fn rate(&self, now: u64, before: u64) -> f64 {
        now.saturating_sub(before) as f64 / self.seconds
    }
}

impl Recent {
    pub(crate) fn new(engine: &Engine, history: Option<&History>) -> Self {
        Self {
            started: Instant::now(),
            snapshots: Mutex::new([Arc::new(RecentSnapshot::now(engine, history))].into()),
        }
    }

    /// The time since the console was created.
    pub(crate) fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// Number of buckets at the last snapshot.
    pub(crate) fn buckets(&self) -> usize {
        self.snapshots.lock().back().map_or(0, |last| last.buckets)
    }

    fn add(&self, snapshot: RecentSnapshot) {
        let mut snapshots = self.snapshots.lock();
        snapshots.push_back(Arc::new(snapshot));
        if snapshots.len() > KEPT {
            snapshots.pop_front();
        }
    }

    /// The minute that ends now, with counters of `total` for all buckets together.
    pub(crate) fn minute(&self, total: &BucketStats) -> Minute {
        let before = {
            let snapshots = self.snapshots.lock();
            Arc::clone(
                snapshots
                    .front()
                    .expect("the first is taken before it is shared"),
            )
        };
        Minute {
            seconds: before.at.elapsed().as_secs_f64().max(1.0),
            total: grown(&before.total, total),
            before,
        }
    }
}

/// Returns the sum of all buckets.
impl CounterSnapshot {
    pub(crate) fn total(&self) -> BucketStats {
        let buckets = self.stats.buckets.values();
        buckets.fold(BucketStats::default(), |all, bucket| sum(&all, bucket))
    }
}

/// Takes snapshots until the console is dropped.
pub(crate) async fn record(console: Weak<Inner>) {
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick is immediate, and there is a snapshot of that time.
    ticks.tick().await;
    loop {
        ticks.tick().await;
        let Some(console) = console.upgrade() else {
            return;
        };
        let snapshot = RecentSnapshot::now(&console.engine, console.history.as_ref());
        console.recent.add(snapshot);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn minute_forgets_what_was_counted_before_it() {
        let engine = Engine::builder().memory(16 << 20).build().unwrap();
        let recent = Recent::new(&engine, None);
        let total = |requests| BucketStats {
            requests,
            ..BucketStats::default()
        };
        // Ten requests a second, for two minutes.
        for step in 0..24_u64 {
            tokio::time::advance(EVERY).await;
            let mut snapshot = RecentSnapshot::now(&engine, None);
            snapshot.total = total((step + 1) * 50);
            recent.add(snapshot);
        }
        let minute = recent.minute(&total(24 * 50));
        assert_eq!(minute.total.requests, 600);
        assert_eq!(minute.seconds, 60.0);
        assert_eq!(minute.rate(1200, 600), 10.0);
        assert_eq!(recent.uptime(), EVERY * 24);
    }

    #[tokio::test(start_paused = true)]
    async fn young_server_compares_with_its_start() {
        let engine = Engine::builder().memory(16 << 20).build().unwrap();
        let recent = Recent::new(&engine, None);
        tokio::time::advance(Duration::from_secs(2)).await;
        let minute = recent.minute(&BucketStats {
            hits: 8,
            ..BucketStats::default()
        });
        assert_eq!((minute.total.hits, minute.seconds), (8, 2.0));
    }
}
