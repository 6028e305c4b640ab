//! Time since a tier was opened. It never moves back, regardless of the time of day.

use std::time::{Duration, Instant};

/// The monotonic clock. Tests substitute one that they set.
#[derive(Debug, Clone)]
pub(crate) enum Clock {
    System(Instant),
    /// Milliseconds.
    #[cfg(test)]
    Manual(std::sync::Arc<std::sync::atomic::AtomicU64>),
}

impl Clock {
    /// Starts at zero.
    pub(crate) fn start() -> Self {
        Self::System(Instant::now())
    }

    pub(crate) fn now(&self) -> Duration {
        match self {
            Self::System(start) => start.elapsed(),
            #[cfg(test)]
            Self::Manual(time) => {
                Duration::from_millis(time.load(std::sync::atomic::Ordering::Relaxed))
            }
        }
    }
}
