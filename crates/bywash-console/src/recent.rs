//! The last minute of the counters: snapshots in memory, so that rates need neither history nor disk.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bywash::{BucketStats, Engine};
use parking_lot::Mutex;
use tokio::time::{Instant, MissedTickBehavior};

use crate::Inner;
use crate::history::{BUCKETS, Counted, History, grown, sum};

/// Time between two snapshots.
const EVERY: Duration = Duration::from_secs(5);
/// Snapshots kept: they reach back a minute.
const KEPT: usize = 13;

/// Snapshots of the counters, the oldest first, and the time of the first one ever.
#[derive(Debug)]
pub(crate) struct Recent {
    started: Instant,
    moments: Mutex<VecDeque<Arc<Moment>>>,
}

/// All counters at one time.
#[derive(Debug)]
pub(crate) struct Moment {
    at: Instant,
    /// Of all buckets.
    pub(crate) total: BucketStats,
    /// With no more than [`BUCKETS`] buckets.
    pub(crate) counted: Counted,
    /// Responses by status.
    statuses: Vec<(u16, u64)>,
}

impl Moment {
    /// Returns the number of responses with this status.
    pub(crate) fn status(&self, status: u16) -> u64 {
        let found = self.statuses.iter().find(|(known, _)| *known == status);
        found.map_or(0, |(_, count)| *count)
    }

    fn now(engine: &Engine, history: Option<&History>) -> Self {
        let mut counted = Counted::now(engine, history);
        let total = counted.total();
        let beyond = counted.stats.buckets.keys().nth(BUCKETS).cloned();
        if let Some(first) = beyond {
            counted.stats.buckets.split_off(&first);
        }
        Self {
            at: Instant::now(),
            total,
            counted,
            statuses: engine.traffic().statuses(),
        }
    }
}

/// What was counted in the last minute, or since the start of a younger server.
#[derive(Debug)]
pub(crate) struct Minute {
    /// Seconds it spans, at least one.
    pub(crate) seconds: f64,
    /// Of all buckets.
    pub(crate) total: BucketStats,
    /// The oldest snapshot, to which counters of now compare.
    pub(crate) before: Arc<Moment>,
}

impl Minute {
    /// Returns the growth of a bucket's counters up to `now`; `None` if the snapshot lacks the bucket for lack of space.
    pub(crate) fn bucket(&self, name: &str, now: &BucketStats) -> Option<BucketStats> {
        let before = &self.before.counted.stats.buckets;
        match before.get(name) {
            Some(before) => Some(grown(before, now)),
            // It is new.
            None if before.len() < BUCKETS => Some(*now),
            None => None,
        }
    }

    /// A counter's growth in things a second.
    pub(crate) fn rate(&self, now: u64, before: u64) -> f64 {
        now.saturating_sub(before) as f64 / self.seconds
    }
}

impl Recent {
    pub(crate) fn new(engine: &Engine, history: Option<&History>) -> Self {
        Self {
            started: Instant::now(),
            moments: Mutex::new([Arc::new(Moment::now(engine, history))].into()),
        }
    }

    /// Time since the console was made.
    pub(crate) fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    fn add(&self, moment: Moment) {
        let mut moments = self.moments.lock();
        moments.push_back(Arc::new(moment));
        if moments.len() > KEPT {
            moments.pop_front();
        }
    }

    /// The minute that ends now, when all buckets together have counted `total`.
    pub(crate) fn minute(&self, total: &BucketStats) -> Minute {
        let before = {
            let moments = self.moments.lock();
            Arc::clone(
                moments
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

/// The counters of all buckets added up.
impl Counted {
    pub(crate) fn total(&self) -> BucketStats {
        let buckets = self.stats.buckets.values();
        buckets.fold(BucketStats::default(), |all, bucket| sum(&all, bucket))
    }
}

/// Takes snapshots until the console is dropped.
pub(crate) async fn record(console: Weak<Inner>) {
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first one is at once, and there is a snapshot of then.
    ticks.tick().await;
    loop {
        ticks.tick().await;
        let Some(console) = console.upgrade() else {
            return;
        };
        let moment = Moment::now(&console.engine, console.history.as_ref());
        console.recent.add(moment);
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
            let mut moment = Moment::now(&engine, None);
            moment.total = total((step + 1) * 50);
            recent.add(moment);
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
