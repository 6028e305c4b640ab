//! Partitions of time.

use std::time::Duration;

/// Width of a partition in nanoseconds, above 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PartitionWidth(i64);

impl PartitionWidth {
    /// Returns `None` for less than a microsecond (too many partitions) and for more than an `i64` of nanoseconds.
    pub(crate) fn new(length: Duration) -> Option<Self> {
        let nanos = i64::try_from(length.as_nanos()).ok()?;
        (nanos >= 1000).then_some(Self(nanos))
    }

    /// Width in nanoseconds.
    pub(crate) fn nanos(self) -> i64 {
        self.0
    }

    /// Partition of a timestamp, by floor division: all partitions have one width, before and after 1970.
    pub(crate) fn partition(self, timestamp: i64) -> i64 {
        timestamp.div_euclid(self.0)
    }

    /// Last timestamp of a partition, at most `i64::MAX`.
    pub(crate) fn last_of(self, partition: i64) -> i64 {
        let last = i128::from(partition) * i128::from(self.0) + i128::from(self.0) - 1;
        i64::try_from(last).unwrap_or(if last > 0 { i64::MAX } else { i64::MIN })
    }

    /// First timestamp of a partition, at least `i64::MIN`.
    pub(crate) fn first_of(self, partition: i64) -> i64 {
        partition.saturating_mul(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_have_one_width_before_and_after_zero_and_end_with_i64() {
        let span = PartitionWidth::new(Duration::from_micros(1)).unwrap();
        for (timestamp, partition) in [
            (-1001, -2),
            (-1000, -1),
            (-1, -1),
            (0, 0),
            (999, 0),
            (1000, 1),
        ] {
            assert_eq!(span.partition(timestamp), partition, "of {timestamp}");
            let (first, last) = (span.first_of(partition), span.last_of(partition));
            assert!((first..=last).contains(&timestamp));
        }
        for extreme in [i64::MIN, i64::MAX] {
            let partition = span.partition(extreme);
            assert!((span.first_of(partition)..=span.last_of(partition)).contains(&extreme));
        }
        assert_eq!(span.last_of(span.partition(i64::MAX)), i64::MAX);
        assert_eq!(PartitionWidth::new(Duration::from_nanos(999)), None);
        assert_eq!(PartitionWidth::new(Duration::MAX), None);
    }
}
