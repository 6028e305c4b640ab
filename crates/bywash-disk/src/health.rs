//! Whether the disk works: the operations that are not tried while it fails, and the probes that
//! find out when it works again.
//!
//! ```text
//! state     | reads                 | writes                | entered by
//! on        | yes                   | yes                   | a probe that succeeds
//! read-only | yes                   | one probe an interval | a write that fails
//! off       | one probe an interval | one probe an interval | failed reads above a rate, a missing folder, stuck readers
//! ```
//!
//! Probes are the reads and writes that come anyway, so an idle tier has no I/O. The interval is 1 s and doubles with each
//! probe up to 60 s. It begins at 1 s again for a failure after more than 60 s without one.

use std::fmt;
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Clock;
use crate::limits::{MAX_PROBE_INTERVAL, MAX_READ_TIME};

/// First interval between probes.
const MIN_PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Failed reads are counted over this time.
const READ_WINDOW: Duration = Duration::from_secs(10);
/// Failed reads of a window that turn the tier off, if they are also a share of all reads.
const FAILED_READS: u32 = 5;
/// Failed reads of a window times this are at least all reads of it.
const FAILED_READS_DIVISOR: u32 = 4;

/// State of a tier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TierState {
    /// Reads and writes.
    #[default]
    On,
    /// Reads only: the last write failed.
    ReadOnly,
    /// Neither: each block is a miss.
    Off,
}

impl fmt::Display for TierState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::On => "on",
            Self::ReadOnly => "read-only",
            Self::Off => "off",
        })
    }
}

/// State of a tier, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierStatus {
    /// The state.
    pub state: TierState,
    /// How long the tier has been in it.
    pub duration: Duration,
    /// Time until the next probe is allowed; `None` while the tier is on.
    pub next_probe: Option<Duration>,
    /// The last failure of the disk, also if it works again.
    pub last_error: Option<String>,
}

#[derive(Debug)]
pub(crate) struct Health {
    pub(crate) clock: Clock,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    state: TierState,
    /// When the state was entered.
    since: Duration,
    next_probe: Duration,
    /// Interval after the next probe.
    interval: Duration,
    window: ReadWindow,
    last_error: Option<String>,
}

#[derive(Debug, Default)]
struct ReadWindow {
    start: Duration,
    reads: u32,
    failed: u32,
}

impl ReadWindow {
    /// Counts a read, and returns whether too many have failed.
    fn count(&mut self, now: Duration, failed: bool) -> bool {
        if now.saturating_sub(self.start) >= READ_WINDOW {
            *self = Self {
                start: now,
                ..Self::default()
            };
        }
        self.reads += 1;
        self.failed += u32::from(failed);
        self.failed >= FAILED_READS && self.failed * FAILED_READS_DIVISOR >= self.reads
    }
}

impl Inner {
    /// Returns whether a probe is due, and schedules the next one.
    fn claim_probe(&mut self, now: Duration) -> bool {
        let due = now >= self.next_probe;
        if due {
            self.next_probe = now + self.interval;
            self.interval = (self.interval * 2).min(MAX_PROBE_INTERVAL);
        }
        due
    }

    fn enter(&mut self, state: TierState, now: Duration) {
        if self.state != state {
            self.state = state;
            self.since = now;
            self.window = ReadWindow::default();
        }
    }

    fn fail(&mut self, state: TierState, now: Duration, error: String) {
        self.last_error = Some(error);
        if self.state == TierState::On {
            // A disk that fails again soon after it recovered is probed as rarely as before.
            let steady = now.saturating_sub(self.since) > MAX_PROBE_INTERVAL;
            if steady || self.interval.is_zero() {
                self.interval = MIN_PROBE_INTERVAL;
            }
            self.next_probe = Duration::ZERO;
        }
        // The first failure, or a probe that took longer than its interval.
        self.claim_probe(now);
        if self.state != TierState::Off {
            self.enter(state, now);
        }
    }
}

impl Health {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            inner: Mutex::default(),
        }
    }

    /// Whether a read would be tried now.
    pub(crate) fn is_readable(&self) -> bool {
        let inner = self.inner.lock();
        inner.state != TierState::Off || self.clock.now() >= inner.next_probe
    }

    /// Whether a write would be tried now.
    pub(crate) fn is_writable(&self) -> bool {
        let inner = self.inner.lock();
        inner.state == TierState::On || self.clock.now() >= inner.next_probe
    }

    /// Whether to read. While the tier is off, the caller's read is then the probe.
    pub(crate) fn begin_read(&self) -> bool {
        let mut inner = self.inner.lock();
        inner.state != TierState::Off || inner.claim_probe(self.clock.now())
    }

    /// Whether to write. Unless the tier is on, the caller's write is then the probe.
    pub(crate) fn begin_write(&self) -> bool {
        let mut inner = self.inner.lock();
        inner.state == TierState::On || inner.claim_probe(self.clock.now())
    }

    /// Notes a read that took so long. A slow one proves nothing.
    pub(crate) fn read_succeeded(&self, time: Duration) {
        let mut inner = self.inner.lock();
        let now = self.clock.now();
        inner.window.count(now, false);
        if inner.state == TierState::Off && time < MAX_READ_TIME {
            inner.enter(TierState::On, now);
        }
    }

    /// Notes a failed read, and returns whether the tier stays on: then the block is at fault and not the disk.
    pub(crate) fn read_failed(&self, error: String) -> bool {
        let mut inner = self.inner.lock();
        let now = self.clock.now();
        if inner.window.count(now, true) || inner.state == TierState::Off {
            inner.fail(TierState::Off, now, error);
            return false;
        }
        inner.last_error = Some(error);
        true
    }

    pub(crate) fn write_succeeded(&self) {
        let mut inner = self.inner.lock();
        if inner.state != TierState::On {
            let now = self.clock.now();
            inner.enter(TierState::On, now);
        }
    }

    pub(crate) fn write_failed(&self, error: String) {
        let mut inner = self.inner.lock();
        inner.fail(TierState::ReadOnly, self.clock.now(), error);
    }

    /// Turns the tier off: the folder is missing, or no reader returns.
    pub(crate) fn turn_off(&self, error: String) {
        let mut inner = self.inner.lock();
        inner.fail(TierState::Off, self.clock.now(), error);
    }

    /// Notes a failure that changes no state.
    pub(crate) fn note(&self, error: String) {
        self.inner.lock().last_error = Some(error);
    }

    pub(crate) fn get(&self) -> TierStatus {
        let inner = self.inner.lock();
        let now = self.clock.now();
        let failing = inner.state != TierState::On;
        TierStatus {
            state: inner.state,
            duration: now.saturating_sub(inner.since),
            next_probe: failing.then(|| inner.next_probe.saturating_sub(now)),
            last_error: inner.last_error.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    fn health() -> (Health, Arc<AtomicU64>) {
        let time = Arc::new(AtomicU64::new(0));
        (Health::new(Clock::Manual(Arc::clone(&time))), time)
    }

    /// Milliseconds at which a write is tried within the first `seconds`, when each write fails.
    fn probes(seconds: u64) -> Vec<u64> {
        let (health, time) = health();
        health.write_failed("full".to_owned());
        (0..seconds * 10)
            .map(|tick| tick * 100)
            .filter(|&now| {
                time.store(now, Ordering::Relaxed);
                let tried = health.begin_write();
                if tried {
                    assert!(!health.begin_write(), "one probe an interval");
                    health.write_failed("full".to_owned());
                }
                tried
            })
            .collect()
    }

    #[test]
    fn probes_are_one_second_apart_and_then_twice_as_long_up_to_a_minute() {
        let expected: Vec<u64> = [1, 3, 7, 15, 31, 63, 123, 183, 243]
            .map(|seconds| seconds * 1000)
            .to_vec();
        assert_eq!(probes(300), expected);
    }

    #[test]
    fn failed_write_leaves_reads_on_until_a_write_succeeds() {
        let (health, time) = health();
        health.write_failed("no space".to_owned());
        let state = health.get();
        assert_eq!(state.state, TierState::ReadOnly);
        assert_eq!(state.next_probe, Some(Duration::from_secs(1)));
        assert_eq!(state.last_error.as_deref(), Some("no space"));
        assert!(health.begin_read() && !health.begin_write());
        time.store(1000, Ordering::Relaxed);
        health.read_succeeded(Duration::ZERO);
        assert_eq!(
            health.get().state,
            TierState::ReadOnly,
            "a read proves nothing"
        );
        assert!(health.begin_write());
        health.write_succeeded();
        assert_eq!(health.get().state, TierState::On);
        assert_eq!(health.get().next_probe, None);
    }

    #[test]
    fn read_errors_turn_off_only_above_their_rate() {
        let (few, _) = health();
        for read in 0..100 {
            match read % 5 {
                0 => assert!(few.read_failed("bad sector".to_owned())),
                _ => few.read_succeeded(Duration::ZERO),
            }
        }
        assert_eq!(few.get().state, TierState::On);
        let (many, time) = health();
        for _ in 0..FAILED_READS {
            assert!(many.begin_read());
            many.read_failed("bad sector".to_owned());
        }
        assert_eq!(many.get().state, TierState::Off);
        assert!(!many.begin_read() && !many.begin_write() && !many.is_readable());
        time.store(1000, Ordering::Relaxed);
        assert!(many.is_readable() && many.begin_read() && !many.begin_read());
        many.read_succeeded(MAX_READ_TIME);
        assert_eq!(many.get().state, TierState::Off, "too slow");
        time.store(3000, Ordering::Relaxed);
        assert!(many.begin_read());
        many.read_succeeded(Duration::ZERO);
        assert_eq!(many.get().state, TierState::On);
    }

    #[test]
    fn failure_soon_after_coming_back_keeps_the_interval() {
        let (health, time) = health();
        health.turn_off("gone".to_owned());
        let mut now = 0;
        let mut fail_again = |after: u64| {
            now += after;
            time.store(now, Ordering::Relaxed);
            assert!(health.begin_write());
            health.write_succeeded();
            health.turn_off("gone".to_owned());
            health.get().next_probe
        };
        assert_eq!(fail_again(1000), Some(Duration::from_secs(4)));
        assert_eq!(fail_again(4000), Some(Duration::from_secs(16)));
        health.inner.lock().enter(TierState::On, Duration::ZERO);
        time.store(100_000_000, Ordering::Relaxed);
        health.turn_off("gone".to_owned());
        assert_eq!(health.get().next_probe, Some(Duration::from_secs(1)));
    }
}
