//! Latency histogram: recording a latency costs one addition.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Buckets of each power of two: a quantile is at most 1/16 above the true value.
const PARTS: usize = 1 << PARTS_LOG2;
const PARTS_LOG2: usize = 4;
/// Number of buckets: up to 2^36 microseconds, 19 hours; longer latencies fall into the last.
const BUCKETS: usize = PARTS * (36 - PARTS_LOG2 + 1);

/// Counts by latency, in microseconds, and their sum.
#[derive(Debug)]
pub(crate) struct Histogram {
    counts: Box<[AtomicU64]>,
    micros: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            micros: AtomicU64::new(0),
        }
    }
}

impl Histogram {
    pub(crate) fn record(&self, latency: Duration) {
        let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        self.counts[bucket(micros)].fetch_add(1, Relaxed);
        self.micros.fetch_add(micros, Relaxed);
    }

    pub(crate) fn snapshot(&self) -> Latencies {
        let counts = self.counts.iter().map(|count| count.load(Relaxed));
        Latencies {
            counts: counts.collect(),
            micros: self.micros.load(Relaxed),
        }
    }
}

/// Returns the bucket of a latency: exact below [`PARTS`], then [`PARTS`] buckets a power of two.
fn bucket(micros: u64) -> usize {
    let Some(octave) = (micros.max(1).ilog2() as usize).checked_sub(PARTS_LOG2) else {
        return micros as usize;
    };
    let part = (micros >> octave) as usize - PARTS;
    ((octave + 1) * PARTS + part).min(BUCKETS - 1)
}

/// Returns the longest latency of a bucket, in microseconds.
fn longest(bucket: usize) -> u64 {
    match (bucket / PARTS).checked_sub(1) {
        None => bucket as u64,
        Some(octave) => (((bucket % PARTS + PARTS + 1) as u64) << octave) - 1,
    }
}

/// Latencies of responses in some span of time, as counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Latencies {
    counts: Box<[u64]>,
    micros: u64,
}

impl Default for Latencies {
    fn default() -> Self {
        Histogram::default().snapshot()
    }
}

impl Latencies {
    /// Returns the latencies recorded after `earlier`, a snapshot of the same histogram.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let pairs = self.counts.iter().zip(&earlier.counts);
        let counts = pairs.map(|(now, then)| now.saturating_sub(*then));
        Self {
            counts: counts.collect(),
            micros: self.micros.saturating_sub(earlier.micros),
        }
    }

    /// The number of responses.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The sum of the latencies.
    #[must_use]
    pub fn sum(&self) -> Duration {
        Duration::from_micros(self.micros)
    }

    /// Returns the number of responses that took less than 2^`log2` microseconds.
    #[must_use]
    pub fn below_power_of_two(&self, log2: u32) -> u64 {
        let end = if log2 >= 36 {
            BUCKETS
        } else {
            bucket(1 << log2)
        };
        self.counts[..end].iter().sum()
    }

    /// Returns the latency that `quantile` (0 to 1) of the responses did not exceed, rounded up by at most 1/16;
    /// `None` without responses.
    #[must_use]
    pub fn quantile(&self, quantile: f64) -> Option<Duration> {
        let count = self.count();
        let rank = ((count as f64 * quantile).ceil() as u64).clamp(1, count.max(1));
        let mut seen = 0;
        let found = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank
        })?;
        Some(Duration::from_micros(longest(found)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn buckets_are_contiguous() {
        let mut last = 0;
        for micros in 0..1_000_000 {
            let at = bucket(micros);
            assert!(
                at == last || at == last + 1,
                "{micros} is in {at} after {last}"
            );
            assert!(
                longest(at) >= micros && (longest(at) - micros) * 16 <= micros,
                "{micros}"
            );
            last = at;
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        assert_eq!(bucket((1 << 36) - 1), BUCKETS - 1);
        assert_eq!(longest(BUCKETS - 1), (1 << 36) - 1);
    }

    #[test]
    fn quantiles_are_within_a_sixteenth() {
        let histogram = Histogram::default();
        assert_eq!(histogram.snapshot().quantile(0.5), None);
        for micros in 1..=10_000 {
            histogram.record(Duration::from_micros(micros));
        }
        let latencies = histogram.snapshot();
        for (quantile, truth) in [
            (0.0, 1.0),
            (0.5, 5_000.0),
            (0.9, 9_000.0),
            (0.99, 9_900.0),
            (1.0, 10_000.0),
        ] {
            let measured = latencies.quantile(quantile).unwrap().as_micros() as f64;
            assert!(
                measured >= truth && measured <= truth * (1.0 + 1.0 / 16.0),
                "{quantile}: {measured}"
            );
        }
    }

    #[test]
    fn counts_below_a_power_of_two_are_exact() {
        let histogram = Histogram::default();
        let micros = [0, 1, 15, 63, 64, 65, 1023, 1024, u64::MAX];
        for micros in micros {
            histogram.record(Duration::from_micros(micros));
        }
        let latencies = histogram.snapshot();
        for log2 in 0..=40 {
            let below = micros.iter().filter(|micros| **micros < 1 << log2);
            let counted = latencies.below_power_of_two(log2);
            // The last one holds all that is longer.
            let all = if log2 >= 36 {
                micros.len()
            } else {
                below.count()
            };
            assert_eq!(counted, all as u64, "2^{log2}");
        }
    }

    #[test]
    fn difference_of_snapshots_has_only_later_latencies() {
        let histogram = Histogram::default();
        histogram.record(Duration::from_secs(1));
        let before = histogram.snapshot();
        histogram.record(Duration::from_micros(3));
        let span = histogram.snapshot().since(&before);
        let three = Duration::from_micros(3);
        assert_eq!(
            (span.count(), span.quantile(1.0), span.sum()),
            (1, Some(three), three)
        );
    }
}
