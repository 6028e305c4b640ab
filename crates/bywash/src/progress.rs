//! Distinguishes a stalled origin from a slow sender.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::poll_fn;

use crate::origin::PartBody;

/// Progress of a body being sent.
///
/// Written by the task that polls the body, read by the task that watches it. It orders nothing else, hence relaxed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Progress(Arc<ProgressCounters>);

#[derive(Debug, Default)]
struct ProgressCounters {
    /// Pieces taken by the origin.
    pieces: AtomicU64,
    /// Whether the origin waits for the sender.
    waiting: AtomicBool,
}

/// Wraps a body so that its progress can be watched.
pub(crate) fn watched(mut body: PartBody) -> (PartBody, Progress) {
    let progress = Progress::default();
    let counters = Arc::clone(&progress.0);
    let body = poll_fn(move |context| {
        let next = body.poll_next_unpin(context);
        counters.waiting.store(next.is_pending(), Relaxed);
        if next.is_ready() {
            counters.pieces.fetch_add(1, Relaxed);
        }
        next
    });
    (body.boxed(), progress)
}

impl Progress {
    /// Runs `sending`. Returns `None` when for `stall` the origin neither took a piece nor responded, though the
    /// sender had one.
    pub(crate) async fn guard<T>(
        &self,
        stall: Duration,
        sending: impl Future<Output = T>,
    ) -> Option<T> {
        let mut sending = std::pin::pin!(sending);
        let mut seen = self.0.pieces.load(Relaxed);
        loop {
            let tick = tokio::time::timeout(
                stall,
                futures::future::poll_fn(|context| sending.as_mut().poll(context)),
            );
            if let Ok(result) = tick.await {
                return Some(result);
            }
            let pieces = self.0.pieces.load(Relaxed);
            if pieces == seen && !self.0.waiting.load(Relaxed) {
                return None;
            }
            seen = pieces;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[tokio::test(start_paused = true)]
    async fn slow_sender_is_tolerated_and_stalled_origin_is_not() {
        let stall = Duration::from_secs(1);
        let slow = futures::stream::once(async {
            tokio::time::sleep(Duration::from_secs(10)).await;
            Ok(Bytes::from_static(b"late"))
        });
        let (mut body, progress) = watched(slow.boxed());
        let taken = progress
            .guard(stall, async { body.next().await.is_some() })
            .await;
        assert_eq!(taken, Some(true));
        let (_body, progress) = watched(futures::stream::empty().boxed());
        assert_eq!(
            progress.guard(stall, std::future::pending::<()>()).await,
            None
        );
    }
}
