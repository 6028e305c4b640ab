//! Time range of the rows of a series in memory, readable without the lock of the series.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicI64, Ordering};

/// The earliest and the latest timestamp, each of an actual row; `i64::MAX` and `i64::MIN` without rows.
///
/// Written under the series' lock. A concurrent reader may load the two from before and after a
/// write. Each alone was valid when loaded, so `has` decides only if one bound alone is a proof.
///
/// The two lie apart: nearly each write changes the latest, and few the earliest.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds<'a> {
    earliest: &'a AtomicI64,
    latest: &'a AtomicI64,
}

impl<'a> Bounds<'a> {
    /// `earliest` and `latest` of a series without rows.
    pub(super) const NONE: (i64, i64) = (i64::MAX, i64::MIN);

    pub(super) const fn of(earliest: &'a AtomicI64, latest: &'a AtomicI64) -> Self {
        Self { earliest, latest }
    }

    pub(super) fn get(&self) -> (i64, i64) {
        // Relaxed: the rows themselves are read under the lock only, and a reader that learned of a row loads this
        // afterwards.
        let earliest = self.earliest.load(Ordering::Relaxed);
        // Relaxed: as above.
        (earliest, self.latest.load(Ordering::Relaxed))
    }

    pub(super) fn set(&self, (earliest, latest): (i64, i64)) {
        // Relaxed: as in `get`. A store of the same value would take the line from the other cores.
        if self.earliest.load(Ordering::Relaxed) != earliest {
            // Relaxed: as in `get`.
            self.earliest.store(earliest, Ordering::Relaxed);
        }
        // Relaxed: as in `get`.
        self.latest.store(latest, Ordering::Relaxed);
    }

    /// Whether a row is in this range; `None` if only the rows can decide.
    pub(super) fn has(&self, range: &RangeInclusive<i64>) -> Option<bool> {
        match self.get() {
            Self::NONE => Some(false),
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
        let (earliest, latest) = (AtomicI64::new(i64::MAX), AtomicI64::new(i64::MIN));
        let bounds = Bounds::of(&earliest, &latest);
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
