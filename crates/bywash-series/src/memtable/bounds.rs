//! Time range of the rows of a series in memory, readable without the lock of the series.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicI64, Ordering};

/// The earliest and the latest timestamp, each of an actual row; `i64::MAX` and `i64::MIN` without rows.
///
/// Written under the series' lock. A concurrent reader may load the two from before and after a write. Each alone was
/// valid when loaded, so `has` decides only what one of them proves.
#[derive(Debug)]
pub(super) struct Bounds {
    earliest: AtomicI64,
    latest: AtomicI64,
}

impl Bounds {
    pub(super) const fn none() -> Self {
        Self {
            earliest: AtomicI64::new(i64::MAX),
            latest: AtomicI64::new(i64::MIN),
        }
    }

    pub(super) fn get(&self) -> (i64, i64) {
        // Relaxed: the rows themselves are read under the lock only, and a reader that learned of a row loads this
        // afterwards.
        let earliest = self.earliest.load(Ordering::Relaxed);
        // Relaxed: as above.
        (earliest, self.latest.load(Ordering::Relaxed))
    }

    pub(super) fn set(&self, (earliest, latest): (i64, i64)) {
        // Relaxed: as in `get`.
        self.earliest.store(earliest, Ordering::Relaxed);
        // Relaxed: as in `get`.
        self.latest.store(latest, Ordering::Relaxed);
    }

    /// Whether a row lies in this range; `None` if only the rows can decide.
    pub(super) fn has(&self, range: &RangeInclusive<i64>) -> Option<bool> {
        match self.get() {
            (i64::MAX, i64::MIN) => Some(false),
            // Loaded from before and after the first write.
            (earliest, latest) if earliest > latest => None,
            (earliest, latest) if range.contains(&earliest) || range.contains(&latest) => {
                Some(true)
            }
            (earliest, latest) if latest < *range.start() || *range.end() < earliest => Some(false),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_is_decided_by_bounds_where_possible() {
        let bounds = Bounds::none();
        let all = i64::MIN..=i64::MAX;
        assert_eq!(bounds.has(&all), Some(false));
        for extreme in [i64::MIN, i64::MAX] {
            bounds.set((extreme, extreme));
            assert_eq!(bounds.has(&all), Some(true));
            assert_eq!(bounds.has(&(-1..=1)), Some(false));
            assert_eq!(bounds.has(&(extreme..=extreme)), Some(true));
        }
        bounds.set((5, 9));
        for (range, answer) in [
            (0..=4, Some(false)),
            (0..=5, Some(true)),
            (6..=8, None),
            (9..=9, Some(true)),
            (10..=12, Some(false)),
        ] {
            assert_eq!(bounds.has(&range), answer, "of {range:?}");
        }
        // As a reader concurrent with the first writer may see them.
        bounds.set((i64::MAX, 5));
        assert_eq!(bounds.has(&(6..=i64::MAX)), None);
    }
}
