//! The pace of a request body for which memory is held. While others wait for memory, a sender that pauses, or sends a byte now and then,
//! loses it; without them it may be as slow as it likes.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// Limits of the pace while others wait for memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PaceLimits {
    /// Longest time that the server waits for bytes, beyond the time that the rate allows for all that came.
    pub(crate) silence: Duration,
    /// Least bytes a second of the time that the server waits for them.
    pub(crate) bytes_per_second: u32,
}

/// Fraction of the silence within which a body that was not read for long must continue.
const LATE_DIVISOR: u32 = 5;

/// An allowance of time. Waiting for the client consumes it; bytes refill it, up to the limit. The time in which the server does not want
/// bytes costs nothing.
#[derive(Debug)]
pub(crate) struct BodyPace {
    limits: PaceLimits,
    left: Duration,
    /// Since when the server waits for the client.
    since: Option<Instant>,
    /// When the last piece was passed on, until the next one is wanted.
    passed: Option<Instant>,
    /// Bytes that were sent while the server did not read refill nothing: they are no sign of a sender.
    is_backlog: bool,
    timer: Option<Pin<Box<Sleep>>>,
}

impl BodyPace {
    pub(crate) fn new(limits: PaceLimits) -> Self {
        Self {
            limits,
            left: limits.silence,
            since: None,
            passed: None,
            is_backlog: false,
            timer: None,
        }
    }

    /// Called when a piece of this many bytes is passed on.
    pub(crate) fn progress(&mut self, bytes: usize) {
        let now = Instant::now();
        if let Some(since) = self.since.take() {
            self.left = self.left.saturating_sub(now - since);
        }
        if !self.is_backlog {
            let earned = bytes as f64 / f64::from(self.limits.bytes_per_second);
            let left = self.left + Duration::from_secs_f64(earned);
            self.left = left.min(self.limits.silence);
        }
        self.passed = Some(now);
    }

    /// Called when the next piece is wanted. An operation that took long over the last one waited for memory, as others did then.
    pub(crate) fn wanted(&mut self) {
        let passed = self.passed.take();
        if passed.is_some_and(|passed| passed.elapsed() > self.limits.silence / 2) {
            self.left = self.limits.silence / LATE_DIVISOR;
            self.is_backlog = true;
        }
    }

    /// Called when a poll is pending. Ready if nothing is left and others wait; otherwise wakes `cx` later.
    pub(crate) fn poll_expired(
        &mut self,
        others_wait: impl Fn() -> bool,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        self.is_backlog = false;
        let deadline = *self.since.get_or_insert_with(Instant::now) + self.left;
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        loop {
            let now = Instant::now();
            if now >= deadline && others_wait() {
                return Poll::Ready(());
            }
            // A request that begins to wait later is seen then.
            let next = now + self.limits.silence / LATE_DIVISOR;
            timer.as_mut().reset(deadline.max(next));
            ready!(timer.as_mut().poll(cx));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::task::Waker;

    use tokio::time::advance;

    const LIMITS: PaceLimits = PaceLimits {
        silence: Duration::from_secs(5),
        bytes_per_second: 4096,
    };

    fn is_expired(pace: &mut BodyPace, others_wait: bool) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        pace.poll_expired(|| others_wait, &mut context).is_ready()
    }

    /// Sends `bytes` each `interval`, 100 times; the number after which the pace expired.
    async fn sent(bytes: usize, interval: Duration, others_wait: bool) -> Option<usize> {
        let mut pace = BodyPace::new(LIMITS);
        for number in 0..100 {
            pace.progress(bytes);
            pace.wanted();
            for _ in 0..10 {
                if is_expired(&mut pace, others_wait) {
                    return Some(number);
                }
                advance(interval / 10).await;
            }
        }
        None
    }

    #[tokio::test(start_paused = true)]
    async fn byte_now_and_then_is_as_silence_while_others_wait() {
        let byte_each = |seconds| sent(1, Duration::from_secs(seconds), true);
        assert_eq!(byte_each(4).await, Some(1));
        assert_eq!(byte_each(1).await, Some(5));
        assert_eq!(byte_each(6).await, Some(0));
        assert_eq!(sent(1, Duration::from_secs(4), false).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn steady_sender_at_the_rate_goes_on() {
        assert_eq!(sent(4096, Duration::from_secs(1), true).await, None);
        assert_eq!(sent(17_000, Duration::from_secs(4), true).await, None);
        // Half of it is too slow, after twice the silence.
        let half = sent(2048, Duration::from_secs(1), true).await;
        assert!(half.is_some_and(|seconds| seconds >= 9), "{half:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn time_in_which_the_server_reads_nothing_costs_nothing() {
        let mut pace = BodyPace::new(LIMITS);
        pace.progress(1);
        advance(Duration::from_secs(60)).await;
        pace.wanted();
        // Bytes that the client had sent by then earn it nothing, and it has a fifth to continue.
        pace.progress(20_000);
        pace.wanted();
        assert!(!is_expired(&mut pace, true));
        advance(Duration::from_millis(900)).await;
        assert!(!is_expired(&mut pace, true));
        pace.progress(65_536);
        pace.wanted();
        assert!(!is_expired(&mut pace, true));
        advance(Duration::from_millis(4900)).await;
        assert!(!is_expired(&mut pace, true));
        advance(Duration::from_millis(200)).await;
        assert!(is_expired(&mut pace, true));
    }
}
