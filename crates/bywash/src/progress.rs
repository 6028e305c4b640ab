//! Distinguishes a stalled origin from a slow sender.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use bywash_store::PartBody;
use futures::StreamExt;
use futures::stream::poll_fn;
use object_store::Result;

use crate::RetryPolicy;
use crate::retry::stalled;

/// Progress of a body being sent.
///
/// Written by the task that polls the body, read by the task that watches it. It orders nothing else, hence relaxed.
#[derive(Debug, Default)]
struct SendProgress {
    /// Pieces taken by the origin.
    pieces: AtomicU64,
    /// Whether the origin waits for the sender.
    waiting: AtomicBool,
}

/// Runs `send` with `body`. Its time limit counts only while the sender has a piece: a slow sender is no stall.
///
/// # Errors
/// The error of `send`; the error of a stalled request if the origin neither took a piece nor responded for `policy.stall`.
pub(crate) async fn send_watched<T, F: Future<Output = Result<T>>>(
    policy: RetryPolicy,
    mut body: PartBody,
    send: impl FnOnce(PartBody) -> F,
) -> Result<T> {
    let progress = Arc::new(SendProgress::default());
    let counters = Arc::clone(&progress);
    let body = poll_fn(move |context| {
        let next = body.poll_next_unpin(context);
        counters.waiting.store(next.is_pending(), Relaxed);
        if next.is_ready() {
            counters.pieces.fetch_add(1, Relaxed);
        }
        next
    });
    let mut sending = std::pin::pin!(send(body.boxed()));
    let mut seen = 0;
    loop {
        if let Ok(result) = tokio::time::timeout(policy.stall, sending.as_mut()).await {
            return result;
        }
        let pieces = progress.pieces.load(Relaxed);
        if pieces == seen && !progress.waiting.load(Relaxed) {
            return Err(stalled(policy));
        }
        seen = pieces;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn slow_sender_is_tolerated_and_stalled_origin_is_not() {
        let policy = RetryPolicy {
            stall: Duration::from_secs(1),
            ..RetryPolicy::default()
        };
        let slow = futures::stream::once(async {
            tokio::time::sleep(Duration::from_secs(10)).await;
            Ok(Bytes::from_static(b"late"))
        });
        let taken = send_watched(policy, slow.boxed(), async |mut body| {
            Ok(body.next().await.is_some())
        });
        assert!(matches!(taken.await, Ok(true)));
        let empty = futures::stream::empty().boxed();
        let stuck = send_watched(policy, empty, |_| std::future::pending::<Result<()>>()).await;
        let error = stuck.expect_err("the origin never responds").to_string();
        assert!(error.contains("no byte moved"), "{error}");
    }
}
