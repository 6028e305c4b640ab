//! The clock of a node.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Time since the machine started. It runs while the process is stopped and while the machine is
/// suspended, which [`std::time::Instant`] does not.
pub(super) fn boottime() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u32::try_from(now.tv_nsec).unwrap_or(0);
    Duration::new(seconds, nanos)
}
