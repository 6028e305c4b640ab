//! Recent latencies of requests, by class: which request is slow.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;

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
    pub(super) fn slow_above(&self, class: RequestClass) -> Option<Duration> {
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
