//! When a second request is sent for what a first one is slow to bring.
//!
//! The answers of one origin mostly take as long as their peers, and a few take far longer: a lost packet, a server that is
//! busy. A request that has taken longer than 95 of 100 like it is sent once more; whatever comes first is used, and the loser
//! is dropped ("hedged requests", Dean and Barroso, The Tail at Scale, 2013). Off unless the engine is told, as each costs money.

use std::collections::VecDeque;
use std::future::{Future, pending};
use std::pin::{Pin, pin};
use std::time::Duration;

use object_store::Result;
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::bucket::Shared;
use crate::limits::MAX_LATENCIES;

/// A request is slow when this part of its peers took less time, in percent.
const SLOW_PERCENT: usize = 95;
/// With fewer there is no telling what is slow.
const LEAST_PEERS: usize = 20;
/// Kinds of answers: the first of an object, then shards by the power of two of their blocks.
const KINDS: usize = 13;

/// What an answer is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kind(usize);

impl Kind {
    /// The answer that tells an object's version: until it begins.
    pub(super) const FIRST: Self = Self(0);

    /// A shard of so many blocks: until its end.
    pub(super) fn shard(blocks: usize) -> Self {
        Self((1 + blocks.max(1).ilog2() as usize).min(KINDS - 1))
    }
}

/// How long the answers of one origin took of late.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    took: Mutex<[VecDeque<Duration>; KINDS]>,
}

impl Pace {
    pub(super) fn note(&self, kind: Kind, took: Duration) {
        let peers = &mut self.took.lock()[kind.0];
        if peers.len() == MAX_LATENCIES {
            peers.pop_front();
        }
        peers.push_back(took);
    }

    /// How long an answer may take before it is slow, if that is known.
    fn slow(&self, kind: Kind) -> Option<Duration> {
        let mut peers: Vec<_> = {
            let took = self.took.lock();
            let peers = &took[kind.0];
            (peers.len() >= LEAST_PEERS).then(|| peers.iter().copied().collect())?
        };
        let at = (peers.len() * SLOW_PERCENT / 100).min(peers.len() - 1);
        let (_, slow, _) = peers.select_nth_unstable(at);
        Some(*slow)
    }
}

/// Fires once when a request that began at some moment has become slow; never if it is not to be hedged.
#[derive(Debug)]
pub(super) struct Patience(Option<Pin<Box<Sleep>>>);

impl Patience {
    pub(super) fn new(bucket: &Shared, kind: Kind, began: Instant) -> Self {
        let slow = bucket.engine.hedge.then(|| bucket.pace.slow(kind));
        Self(
            slow.flatten()
                .map(|slow| Box::pin(sleep_until(began + slow))),
        )
    }

    /// Ends when it fires; not at all after that.
    pub(super) async fn ends(&mut self) {
        match &mut self.0 {
            Some(sleep) => sleep.await,
            None => pending().await,
        }
        self.0 = None;
    }
}

/// Whether the bucket may send one more request twice: all such are at most [`crate::HEDGED_PERCENT`] of its requests for data.
pub(super) fn allowed(bucket: &Shared) -> bool {
    bucket.counters.may_hedge()
}

/// The answer of `ask`, asked a second time if the first takes longer than its peers; the other is dropped.
pub(super) async fn hedged<T, F>(bucket: &Shared, ask: impl Fn() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let began = Instant::now();
    let mut patience = Patience::new(bucket, Kind::FIRST, began);
    let mut first = pin!(ask());
    let answer = tokio::select! {
        biased;
        answer = &mut first => answer,
        () = patience.ends() => if allowed(bucket) {
            bucket.counters.hedge();
            tokio::select! {
                biased;
                answer = first => answer,
                answer = ask() => {
                    bucket.counters.hedge_won();
                    answer
                }
            }
        } else {
            first.await
        },
    };
    if answer.is_ok() && bucket.engine.hedge {
        bucket.pace.note(Kind::FIRST, began.elapsed());
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_is_what_ninety_five_of_a_hundred_are_not() {
        let pace = Pace::default();
        let kind = Kind::shard(8);
        for ms in 0..19 {
            pace.note(kind, Duration::from_millis(ms));
        }
        assert_eq!(pace.slow(kind), None, "too few to tell");
        for ms in 0..100 {
            pace.note(kind, Duration::from_millis(ms));
            pace.note(kind, Duration::from_secs(60 * u64::from(ms == 0)));
        }
        let slow = pace.slow(kind);
        assert!(
            slow.is_some_and(|slow| (90..=99).contains(&slow.as_millis())),
            "{slow:?}"
        );
        assert_eq!(
            pace.slow(Kind::shard(1)),
            None,
            "shards of other lengths are no peers"
        );
        assert_eq!(Kind::shard(9), kind);
    }
}
