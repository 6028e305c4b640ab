//! How often other nodes ask this one for a block, in fixed memory. Only its owner sees the demand of all.

use std::hash::BuildHasher;
use std::time::Duration;

use bywash_mem::BlockKey;
use foldhash::fast::RandomState;
use parking_lot::Mutex;
use tokio::time::Instant;

/// Blocks are counted in sets of [`WAYS`]. 4,096 blocks, in 160 KiB: more than a node is asked for a hundred times a second each.
const SETS: usize = 1024;
const WAYS: usize = 4;
/// Time over which requests are counted.
const SPAN: Duration = Duration::from_secs(1);

/// Requests for one block.
#[derive(Debug, Clone, Copy)]
struct Count {
    hash: u64,
    /// Begin of the current span.
    since: Instant,
    current: u32,
    previous: u32,
}

impl Count {
    /// Begins the span of `now`.
    fn turn(&mut self, now: Instant) {
        let age = now.saturating_duration_since(self.since);
        if age >= 2 * SPAN {
            *self = Self {
                since: now,
                current: 0,
                previous: 0,
                ..*self
            };
        } else if age >= SPAN {
            self.since += SPAN;
            self.previous = std::mem::take(&mut self.current);
        }
    }

    /// Returns the requests of the last second: of the previous span, the part within it.
    fn rate(&self, now: Instant) -> u32 {
        let left = SPAN.saturating_sub(now.saturating_duration_since(self.since));
        let previous = f64::from(self.previous) * left.as_secs_f64() / SPAN.as_secs_f64();
        self.current.saturating_add(previous as u32)
    }
}

/// Requests of other nodes by block. A block without a place takes the place of the least requested one of its set.
#[derive(Debug)]
pub(crate) struct PeerDemand {
    sets: Box<[Mutex<[Option<Count>; WAYS]>]>,
    hasher: RandomState,
}

impl Default for PeerDemand {
    fn default() -> Self {
        Self {
            sets: (0..SETS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::default(),
        }
    }
}

impl PeerDemand {
    /// Counts a request for a block. Returns the number of those in the last second, this one included.
    pub(super) fn count(&self, key: BlockKey) -> u32 {
        let hash = self.hasher.hash_one(key);
        let now = Instant::now();
        let mut set = self.sets[hash as usize % SETS].lock();
        for count in set.iter_mut().flatten() {
            count.turn(now);
        }
        let found = set
            .iter()
            .position(|count| count.is_some_and(|count| count.hash == hash));
        let rate = |at: &usize| set[*at].map_or(0, |count| count.rate(now));
        let at = found.or_else(|| (0..WAYS).min_by_key(rate)).unwrap_or(0);
        let count = set[at].get_or_insert(Count {
            hash,
            since: now,
            current: 0,
            previous: 0,
        });
        if count.hash != hash {
            *count = Count {
                hash,
                since: now,
                current: 0,
                previous: 0,
            };
        }
        count.current = count.current.saturating_add(1);
        count.rate(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(block: u32) -> BlockKey {
        BlockKey {
            store: 0,
            object: 1,
            block,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn requests_of_the_last_second_are_counted() {
        let demand = PeerDemand::default();
        let mut rate = 0;
        for _ in 0..300 {
            rate = demand.count(key(1));
            tokio::time::advance(Duration::from_millis(5)).await;
        }
        assert!((190..=210).contains(&rate), "{rate} of 200 a second");
        assert_eq!(demand.count(key(2)), 1);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(demand.count(key(1)), 1, "it has ended");
    }

    #[tokio::test(start_paused = true)]
    async fn block_that_is_often_requested_keeps_its_place_among_many_others() {
        let demand = PeerDemand::default();
        let mut rate = 0;
        for round in 0..200 {
            rate = demand.count(key(0));
            for other in 1..500 {
                demand.count(key(1 + round * 500 + other));
            }
        }
        // It may lose its place as long as it was requested once, as the others were.
        assert!((150..=200).contains(&rate), "{rate}");
    }
}
