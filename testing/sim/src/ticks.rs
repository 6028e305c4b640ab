//! Clock of tests over real sockets.

#![allow(
    clippy::disallowed_methods,
    reason = "a dedicated thread measures real time"
)]

use std::thread;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::{advance, pause};

/// Clock advance per tick, and minimum duration of a tick in real time.
const TICK: Duration = Duration::from_millis(5);

/// Pauses the clock of the current single-threaded runtime and advances it by a fixed tick each time the runtime was polled.
///
/// A timeout of 300 ms expires after 60 ticks without progress. A process that is stopped for a second, or waits for a
/// processor, thus does not expire timeouts of its servers and clients.
///
/// # Panics
/// If the runtime has several threads, or its clock is already paused.
pub fn advance_clock_by_ticks() {
    pause();
    // Tokio does not advance a paused clock by itself while a blocking task runs.
    let sleep_tick = || spawn_blocking(|| thread::sleep(TICK));
    let mut sleeping = sleep_tick();
    tokio::spawn(async move {
        while sleeping.await.is_ok() {
            sleeping = sleep_tick();
            advance(TICK).await;
        }
    });
}

#[cfg(test)]
mod tests {
    use std::time::Instant as Real;

    use tokio::time::{Instant, sleep};

    use super::*;

    #[tokio::test]
    async fn clock_ignores_a_stop_of_the_process() {
        advance_clock_by_ticks();
        let begun = Instant::now();
        thread::sleep(Duration::from_millis(500));
        tokio::task::yield_now().await;
        assert!(begun.elapsed() <= TICK * 2, "{:?}", begun.elapsed());
    }

    #[tokio::test]
    async fn clock_advances_while_idle_and_no_faster_than_real_time() {
        advance_clock_by_ticks();
        let (begun, real) = (Instant::now(), Real::now());
        sleep(Duration::from_millis(50)).await;
        assert!(begun.elapsed() >= Duration::from_millis(50));
        assert!(real.elapsed() >= Duration::from_millis(50) - TICK);
    }
}
