//! Hedged requests: when to send a second request for a slow first one.
//!
//! Most requests to one origin take about as long as their peers. A few take far longer, because of a lost packet or
//! a busy server. A request slower than 95 % of its peers is sent once more; the first response is used and the other
//! dropped ("hedged requests", Dean and Barroso, The Tail at Scale, 2013). Off by default, for each hedged request
//! costs money.

use std::future::{Future, pending};
use std::pin::{Pin, pin};

use object_store::Result;
use tokio::time::{Instant, Sleep, sleep_until};

use super::latencies::RequestClass;
use crate::shared::BucketShared;

/// Timer that fires once, when a request has become slow; never if it must not be hedged.
#[derive(Debug)]
pub(super) struct HedgeTimer(Option<Pin<Box<Sleep>>>);

impl HedgeTimer {
    pub(super) fn new(bucket: &BucketShared, class: RequestClass, began: Instant) -> Self {
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
pub(super) fn allowed(bucket: &BucketShared) -> bool {
    bucket.counters.may_hedge()
}

/// Sends `request`, and a second time if the first is slow. Returns the first response and drops the other.
pub(super) async fn hedged<T, F>(bucket: &BucketShared, request: impl Fn() -> F) -> Result<T>
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
