//! The end of a server that nobody uses, with `--idle-exit`.

use std::time::Duration;

use bywash::Engine;
use tokio::time::{Instant, sleep};

use super::settings::duration;
use crate::failure::Failure;

/// Minimum span: with less, a client that was started together with the server finds it gone.
const MIN_IDLE_EXIT: Duration = Duration::from_millis(100);
/// Pause between two samples of the counters; shorter with a short span.
const PAUSE: Duration = Duration::from_secs(1);

/// Parses the span of `--idle-exit`.
pub(super) fn idle_exit(text: Option<String>) -> Result<Option<Duration>, Failure> {
    match duration("--idle-exit", text)? {
        Some(span) if span < MIN_IDLE_EXIT => Err(Failure::usage(format!(
            "--idle-exit {span:?} is less than 100ms; leave it out for a server that stays"
        ))),
        span => Ok(span),
    }
}

/// Requests of clients until now, and whether any client is connected or served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Use {
    requests: u64,
    is_used: bool,
}

impl Use {
    fn of(engine: &Engine) -> Self {
        let (traffic, local) = (engine.traffic().stats(), engine.local_stats());
        let local = local.unwrap_or_default();
        Self {
            requests: traffic.requests + local.requests,
            is_used: traffic.in_flight + traffic.connections + local.clients > 0,
        }
    }
}

/// Completes when no client was connected and no request arrived for `span`; never without a span.
pub(super) async fn unused(engine: &Engine, span: Option<Duration>) {
    unused_by(|| Use::of(engine), span).await;
}

async fn unused_by(current: impl Fn() -> Use, span: Option<Duration>) {
    let Some(span) = span else {
        return std::future::pending().await;
    };
    let pause = (span / 10).min(PAUSE);
    let (mut last, mut since) = (current(), Instant::now());
    loop {
        sleep(pause).await;
        let now = current();
        if now.is_used || now != last {
            (last, since) = (now, Instant::now());
        } else if since.elapsed() >= span {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::cell::Cell;

    use super::*;

    const SPAN: Duration = Duration::from_secs(600);

    /// Runs a server for `span` whose use at each time is `at`. Returns when it ended.
    async fn end(at: impl Fn(Duration) -> Use) -> Duration {
        let begun = Instant::now();
        unused_by(|| at(begun.elapsed()), Some(SPAN)).await;
        begun.elapsed()
    }

    fn idle(requests: u64) -> Use {
        Use {
            requests,
            is_used: false,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn server_without_clients_ends_after_the_span() {
        let ended = end(|_| idle(0)).await;
        assert!(ended >= SPAN && ended < SPAN + 2 * PAUSE, "{ended:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn requests_and_clients_put_the_end_off() {
        let last = Duration::from_secs(1000);
        let ended = end(|now| idle(now.min(last).as_secs() / 500)).await;
        assert!(ended >= last + SPAN, "{ended:?}");
        let ended = end(|now| Use {
            requests: 0,
            is_used: now < last,
        })
        .await;
        assert!(ended >= last + SPAN - PAUSE, "{ended:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn server_without_the_setting_stays() {
        let asked = Cell::new(0);
        let current = || {
            asked.set(asked.get() + 1);
            idle(0)
        };
        let stays = tokio::time::timeout(100 * SPAN, unused_by(current, None)).await;
        assert!(stays.is_err() && asked.get() == 0);
    }

    #[test]
    fn span_below_the_minimum_is_refused() {
        let parsed = |text: &str| idle_exit(Some(text.to_owned()));
        assert_eq!(parsed("100ms").unwrap(), Some(MIN_IDLE_EXIT));
        assert_eq!(idle_exit(None).unwrap(), None);
        assert!(parsed("99ms").unwrap_err().message.contains("99ms"));
    }
}
