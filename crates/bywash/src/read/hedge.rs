//! Hedged requests: when to send a second request for a slow first one.
//!
//! Most requests to one origin take about as long as their peers. A few take far longer, because of a lost packet or
//! a busy server. A request slower than 95 % of its peers is sent once more; the first response is used and the other
//! dropped ("hedged requests", Dean and Barroso, The Tail at Scale, 2013). Off by default, for each hedged request
//! costs money.

use std::collections::VecDeque;
use std::future::{Future, pending};
use std::pin::{Pin, pin};
use std::time::Duration;

use object_store::Result;
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::bucket::Shared;
use crate::limits::MAX_LATENCIES;

/// Percentile of its peers above which a request is slow.
const SLOW_PERCENTILE: usize = 95;
/// Samples needed before any request counts as slow.
const MIN_SAMPLES: usize = 20;
/// Number of request classes: the first of an object, then range fetches by the power of two of their blocks.
const CLASSES: usize = 13;

/// Class of requests with comparable latency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RequestClass(usize);

impl RequestClass {
    /// First request of an object, measured until its response begins.
    pub(super) const FIRST: Self = Self(0);

    /// Fetch of `blocks` blocks, measured until its end.
    pub(super) fn fetch(blocks: usize) -> Self {
        Self((1 + blocks.max(1).ilog2() as usize).min(CLASSES - 1))
    }
}

/// Recent latencies of one origin, by request class.
#[derive(Debug, Default)]
pub(crate) struct LatencyWindow {
    took: Mutex<[VecDeque<Duration>; CLASSES]>,
}

impl LatencyWindow {
    pub(super) fn record(&self, class: RequestClass, took: Duration) {
        let peers = &mut self.took.lock()[class.0];
        if peers.len() == MAX_LATENCIES {
            peers.pop_front();
        }
        peers.push_back(took);
    }

    /// Returns the latency above which a request is slow; `None` with too few samples.
    fn slow_above(&self, class: RequestClass) -> Option<Duration> {
        let mut peers: Vec<_> = {
            let took = self.took.lock();
            let peers = &took[class.0];
            (peers.len() >= MIN_SAMPLES).then(|| peers.iter().copied().collect())?
        };
        let at = (peers.len() * SLOW_PERCENTILE / 100).min(peers.len() - 1);
        let (_, slow, _) = peers.select_nth_unstable(at);
        Some(*slow)
    }
}

/// Timer that fires once, when a request has become slow; never if it must not be hedged.
#[derive(Debug)]
pub(super) struct HedgeTimer(Option<Pin<Box<Sleep>>>);

impl HedgeTimer {
    pub(super) fn new(bucket: &Shared, class: RequestClass, began: Instant) -> Self {
        let slow = bucket
            .engine
            .hedge
            .then(|| bucket.latencies.slow_above(class));
        Self(
            slow.flatten()
                .map(|slow| Box::pin(sleep_until(began + slow))),
        )
    }

    /// Completes when the timer fires; stays pending afterwards.
    pub(super) async fn fired(&mut self) {
        match &mut self.0 {
            Some(sleep) => sleep.await,
            None => pending().await,
        }
        self.0 = None;
    }
}

/// Returns whether the bucket may hedge one more request: at most [`crate::HEDGED_PERCENT`] of its data requests.
pub(super) fn allowed(bucket: &Shared) -> bool {
    bucket.counters.may_hedge()
}

/// Sends `request`, and a second time if the first is slow. Returns the first response and drops the other.
pub(super) async fn hedged<T, F>(bucket: &Shared, request: impl Fn() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let began = Instant::now();
    let mut hedge_timer = HedgeTimer::new(bucket, RequestClass::FIRST, began);
    let mut first = pin!(request());
    let result = tokio::select! {
        biased;
        result = &mut first => result,
        () = hedge_timer.fired() => if allowed(bucket) {
            bucket.counters.hedge();
            tokio::select! {
                biased;
                result = first => result,
                result = request() => {
                    bucket.counters.hedge_won();
                    result
                }
            }
        } else {
            first.await
        },
    };
    if result.is_ok() && bucket.engine.hedge {
        bucket
            .latencies
            .record(RequestClass::FIRST, began.elapsed());
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_threshold_is_the_95th_percentile_of_the_same_class() {
        let latencies = LatencyWindow::default();
        let class = RequestClass::fetch(8);
        for ms in 0..19 {
            latencies.record(class, Duration::from_millis(ms));
        }
        assert_eq!(latencies.slow_above(class), None, "too few samples");
        for ms in 0..100 {
            latencies.record(class, Duration::from_millis(ms));
            latencies.record(class, Duration::from_secs(60 * u64::from(ms == 0)));
        }
        let slow = latencies.slow_above(class);
        assert!(
            slow.is_some_and(|slow| (90..=99).contains(&slow.as_millis())),
            "{slow:?}"
        );
        assert_eq!(
            latencies.slow_above(RequestClass::fetch(1)),
            None,
            "fetches of other lengths are another class"
        );
        assert_eq!(RequestClass::fetch(9), class);
    }
}
