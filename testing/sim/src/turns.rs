//! Time for tests over real sockets.

#![allow(
    clippy::disallowed_methods,
    reason = "a thread of its own sleeps: real time is what this is about"
)]

use std::thread;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::{advance, pause};

/// How far the clock moves in one turn, and the least time a turn takes.
const TICK: Duration = Duration::from_millis(5);

/// From now on the clock of this runtime, which has one thread, moves a little each time the runtime had a turn, instead of
/// with the machine's clock.
///
/// A limit of 300 ms then ends after 60 turns in which nothing came. A process that is stopped for a second, or has to wait
/// for a processor, has not used up limits of its servers and clients when it goes on.
///
/// # Panics
/// If the runtime has several threads, or its clock is paused already.
pub fn pass_time_by_turns() {
    pause();
    // While a blocking task runs, tokio does not move a paused clock by itself.
    let rest = || spawn_blocking(|| thread::sleep(TICK));
    let mut resting = rest();
    tokio::spawn(async move {
        while resting.await.is_ok() {
            resting = rest();
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
    async fn a_stop_of_the_process_takes_no_time() {
        pass_time_by_turns();
        let begun = Instant::now();
        thread::sleep(Duration::from_millis(500));
        tokio::task::yield_now().await;
        assert!(begun.elapsed() <= TICK * 2, "{:?}", begun.elapsed());
    }

    #[tokio::test]
    async fn time_passes_though_nothing_else_happens_and_no_faster_than_the_machines() {
        pass_time_by_turns();
        let (begun, real) = (Instant::now(), Real::now());
        sleep(Duration::from_millis(50)).await;
        assert!(begun.elapsed() >= Duration::from_millis(50));
        assert!(real.elapsed() >= Duration::from_millis(50) - TICK);
    }
}
