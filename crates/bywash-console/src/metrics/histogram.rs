//! Prometheus histograms of latencies.

use bywash::traffic::Latencies;

use super::sample;

/// Binary logarithms of the bucket bounds in microseconds: 64 us to 67 s.
const LOG2_BOUNDS: std::ops::RangeInclusive<u32> = 6..=26;

/// Writes the buckets, the sum and the count of one series.
pub(super) fn write(text: &mut String, name: &str, labels: &[(&str, &str)], latencies: &Latencies) {
    let bucket = format!("{name}_bucket");
    let mut with_bound = labels.to_vec();
    with_bound.push(("le", ""));
    let last = with_bound.len() - 1;
    for log2 in LOG2_BOUNDS {
        let bound = ((1_u64 << log2) as f64 / 1e6).to_string();
        let mut labels = with_bound.clone();
        labels[last].1 = &bound;
        sample(text, &bucket, &labels, latencies.below_power_of_two(log2));
    }
    with_bound[last].1 = "+Inf";
    sample(text, &bucket, &with_bound, latencies.count());
    let sum = latencies.sum().as_secs_f64();
    sample(text, &format!("{name}_sum"), labels, sum);
    sample(text, &format!("{name}_count"), labels, latencies.count());
}
