//! Measures scheduling delays of the machine, which judges subtract from waits for the server.
//!
//! A meter repeatedly sleeps and exchanges a byte over loopback with another thread. The time of a round beyond its
//! sleep and an allowance is delay of timers, scheduler or hypervisor. A stalled server adds none.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Sleep of one round of the meter.
const TICK: Duration = Duration::from_millis(10);
/// Time of a round beyond its sleep that is normal.
const ALLOWANCE: Duration = Duration::from_millis(5);

/// Sum of all delays, and the round in progress.
#[derive(Debug)]
struct Meter {
    total: Duration,
    /// Start of the round in progress; `None` once the meter has failed.
    round: Option<Instant>,
}

impl Meter {
    /// Delay of the round in progress, at `now`.
    fn current(&self, now: Instant) -> Duration {
        let round = self.round.unwrap_or(now);
        now.saturating_duration_since(round)
            .saturating_sub(TICK + ALLOWANCE)
    }

    fn next_round(&mut self, now: Instant) {
        self.total += self.current(now);
        self.round = Some(now);
    }
}

static METER: Mutex<Meter> = Mutex::new(Meter {
    total: Duration::ZERO,
    round: None,
});

/// Returns the delay since the first call, which starts the meter. Never decreases.
///
/// Without a meter there is no delay: all waits count against the server.
#[must_use]
pub fn delay() -> Duration {
    static STARTED: OnceLock<bool> = OnceLock::new();
    if !STARTED.get_or_init(|| start().is_ok()) {
        return Duration::ZERO;
    }
    let meter = METER.lock();
    meter.total + meter.current(Instant::now())
}

/// Starts the meter and the thread that echoes its byte.
fn start() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut near = TcpStream::connect(listener.local_addr()?)?;
    let (mut far, _) = listener.accept()?;
    for socket in [&near, &far] {
        socket.set_nodelay(true)?;
    }
    let echo = move || {
        let mut byte = [0];
        while far.read_exact(&mut byte).is_ok() && far.write_all(&byte).is_ok() {}
    };
    std::thread::Builder::new()
        .name("siege-echo".to_owned())
        .spawn(echo)?;
    let rounds = move || {
        let mut byte = [0];
        loop {
            METER.lock().next_round(Instant::now());
            #[expect(
                clippy::disallowed_methods,
                reason = "a dedicated thread, whose delay is measured"
            )]
            std::thread::sleep(TICK);
            if near.write_all(&byte).is_err() || near.read_exact(&mut byte).is_err() {
                METER.lock().round = None;
                return;
            }
        }
    };
    std::thread::Builder::new()
        .name("siege-meter".to_owned())
        .spawn(rounds)?;
    Ok(())
}

/// Measures a wait, and the machine's delay within it.
#[derive(Debug, Clone, Copy)]
pub struct Stopwatch {
    began: Instant,
    delay: Duration,
}

impl Stopwatch {
    #[must_use]
    pub fn start() -> Self {
        Self {
            delay: delay(),
            began: Instant::now(),
        }
    }

    /// Time since the start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Time since the start without the machine's delay, as judges count it.
    #[must_use]
    pub fn counted(&self) -> Duration {
        let elapsed = self.began.elapsed();
        elapsed.saturating_sub(delay().saturating_sub(self.delay))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_is_the_excess_over_sleep_and_allowance() {
        let began = Instant::now();
        let mut meter = Meter {
            total: Duration::ZERO,
            round: Some(began),
        };
        let prompt = began + TICK + ALLOWANCE;
        assert_eq!(meter.current(prompt), Duration::ZERO);
        meter.next_round(prompt);
        assert_eq!(meter.total, Duration::ZERO);
        // A round delayed by a second counts during the delay, and once afterwards.
        let late = prompt + TICK + ALLOWANCE + Duration::from_secs(1);
        assert_eq!(meter.current(late), Duration::from_secs(1));
        meter.next_round(late);
        assert_eq!(meter.total, Duration::from_secs(1));
        assert_eq!(meter.current(late), Duration::ZERO);
        // A failed meter reports no delay.
        meter.round = None;
        assert_eq!(meter.current(late + TICK + TICK), Duration::ZERO);
    }

    #[test]
    #[expect(
        clippy::disallowed_methods,
        reason = "a stall, to be distinguished from the delay of the machine"
    )]
    fn stall_of_a_peer_is_not_a_delay_of_the_machine() {
        let watch = Stopwatch::start();
        let before = delay();
        std::thread::sleep(Duration::from_millis(200));
        let delayed = delay() - before;
        // All of the sleep counts except for the machine's own delay.
        assert!(watch.counted() + delayed + TICK >= Duration::from_millis(200));
        assert!(watch.counted() <= watch.elapsed());
    }
}
