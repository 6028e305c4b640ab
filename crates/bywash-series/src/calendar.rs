//! Units of time of files: days, which are compacted, and windows of many days.

use crate::manifest::FileEntry;

/// A day, in nanoseconds.
const DAY: i64 = 86_400_000_000_000;
/// Days of a window: decades of rows take some files.
const WINDOW_DAYS: i64 = 1024;

/// Days and windows of partitions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Calendar {
    /// Partitions of a day.
    day: i64,
    /// Partitions of a window.
    window: i64,
}

impl Calendar {
    /// For partitions of this width in nanoseconds.
    pub(crate) fn new(width: i64) -> Self {
        let day = (DAY / width).max(1);
        Self {
            day,
            window: day.saturating_mul(WINDOW_DAYS),
        }
    }

    pub(crate) fn day(self, partition: i64) -> i64 {
        partition.div_euclid(self.day)
    }

    pub(crate) fn window(self, partition: i64) -> i64 {
        partition.div_euclid(self.window)
    }

    /// Partitions of a day.
    pub(crate) fn partitions_a_day(self) -> i64 {
        self.day
    }

    /// Partitions of a window.
    pub(crate) fn partitions_a_window(self) -> i64 {
        self.window
    }

    /// Whether a file has rows of several days, all in one window.
    pub(crate) fn is_of_window(self, file: &FileEntry) -> bool {
        self.day(file.partitions.0) != self.day(file.partitions.1)
    }
}
