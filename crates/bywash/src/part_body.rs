//! Joins pieces of a part's body, for a store with a high cost per write.
//!
//! A piece from a client is a few KiB and keeps the buffer it was read into alive. Joined pieces are copied into a
//! buffer charged to the engine's budget. Without memory there, pieces pass unjoined.

use std::sync::Arc;

use bytes::Bytes;
use bywash_mem::{Reservation, Share};
use bywash_store::PartBody;
use futures::{Stream, StreamExt};
use object_store::Result;

use crate::limits::{MAX_JOIN_WAIT, MAX_JOINED_BYTES};
use crate::shared::EngineShared;

/// A buffer and its charge, released with the last slice of it.
struct JoinedPieces {
    // Declared before the charge: memory is freed before its charge is released.
    bytes: Vec<u8>,
    charge: Reservation,
}

impl JoinedPieces {
    fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for JoinedPieces {
    fn as_ref(&self) -> &[u8] {
        debug_assert!(self.bytes.len() as u64 <= self.charge.bytes());
        &self.bytes
    }
}

struct JoinState {
    body: PartBody,
    engine: Arc<EngineShared>,
    /// Bytes that did not fit the last buffer.
    rest: Bytes,
    failed: Option<object_store::Error>,
}

/// Returns `body` with its pieces joined up to [`MAX_JOINED_BYTES`]. A body that pauses passes its sent bytes on.
pub(crate) fn joined(body: PartBody, engine: &Arc<EngineShared>) -> PartBody {
    let state = JoinState {
        body,
        engine: Arc::clone(engine),
        rest: Bytes::new(),
        failed: None,
    };
    pieces(state).boxed()
}

fn pieces(state: JoinState) -> impl Stream<Item = Result<Bytes>> + Send {
    futures::stream::unfold(state, async |mut state| {
        let piece = state.next().await?;
        Some((piece, state))
    })
}

impl JoinState {
    async fn next(&mut self) -> Option<Result<Bytes>> {
        let first = match std::mem::take(&mut self.rest) {
            rest if !rest.is_empty() => rest,
            _ => match self.failed.take() {
                Some(error) => return Some(Err(error)),
                None => match self.body.next().await? {
                    Ok(piece) => piece,
                    error => return Some(error),
                },
            },
        };
        if first.len() >= MAX_JOINED_BYTES {
            return Some(Ok(first));
        }
        let charge = MAX_JOINED_BYTES as u64;
        let Some(charge) = self.engine.pool.try_reserve(Share::Upload, charge) else {
            return Some(Ok(first));
        };
        let mut bytes = Vec::with_capacity(MAX_JOINED_BYTES);
        bytes.extend_from_slice(&first);
        drop(first);
        self.fill(&mut bytes).await;
        Some(Ok(JoinedPieces { bytes, charge }.freeze()))
    }

    /// Appends pieces to `bytes` until it is full, the body pauses, or the body ends.
    async fn fill(&mut self, bytes: &mut Vec<u8>) {
        while bytes.len() < MAX_JOINED_BYTES && self.rest.is_empty() {
            match tokio::time::timeout(MAX_JOIN_WAIT, self.body.next()).await {
                Ok(Some(Ok(mut piece))) => {
                    let room = MAX_JOINED_BYTES - bytes.len();
                    self.rest = piece.split_off(room.min(piece.len()));
                    bytes.extend_from_slice(&piece);
                }
                Ok(Some(Err(error))) => {
                    self.failed = Some(error);
                    return;
                }
                // Not polled again after its end: replaced by an empty stream.
                Ok(None) => {
                    self.body = futures::stream::empty().boxed();
                    return;
                }
                Err(_) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::time::Duration;

    use tokio::sync::mpsc;

    use super::*;
    use crate::Engine;

    const PIECE: usize = 20_000;

    fn engine() -> Engine {
        Engine::builder().memory(16 << 20).build().unwrap()
    }

    fn body(pieces: Vec<Bytes>) -> PartBody {
        futures::stream::iter(pieces.into_iter().map(Ok)).boxed()
    }

    fn numbered(count: usize) -> Vec<Bytes> {
        let piece = |number: usize| Bytes::from(vec![number as u8; PIECE]);
        (0..count).map(piece).collect()
    }

    async fn all(mut body: PartBody) -> Vec<Bytes> {
        let mut found = Vec::new();
        while let Some(piece) = body.next().await {
            found.push(piece.unwrap());
        }
        found
    }

    #[tokio::test]
    async fn pieces_are_joined_within_a_charge_that_is_released() {
        let engine = engine();
        let before = engine.budget().used();
        let sent = numbered(40);
        let mut joined = joined(body(sent.clone()), engine.shared());
        let first = joined.next().await.unwrap().unwrap();
        assert_eq!(first.len(), MAX_JOINED_BYTES);
        let used = engine.budget().used();
        assert_eq!(used, before + MAX_JOINED_BYTES as u64);
        let mut got = first.to_vec();
        drop(first);
        assert_eq!(engine.budget().used(), before, "the charge is gone");
        for piece in all(joined).await {
            got.extend_from_slice(&piece);
        }
        assert_eq!(got, sent.concat());
        assert_eq!(engine.budget().used(), before);
    }

    #[tokio::test]
    async fn pieces_pass_unjoined_without_memory() {
        let engine = engine();
        let max = engine.budget().limit() / 4 * 3;
        let _held = engine.try_reserve(Share::Upload, max).unwrap();
        let sent = numbered(40);
        let joined = joined(body(sent.clone()), engine.shared());
        assert_eq!(all(joined).await, sent);
    }

    #[tokio::test(start_paused = true)]
    async fn body_that_pauses_holds_no_charge() {
        let engine = engine();
        let before = engine.budget().used();
        let (sender, mut receiver) = mpsc::channel(1);
        let paused = futures::stream::poll_fn(move |context| receiver.poll_recv(context));
        let mut joined = joined(paused.boxed(), engine.shared());
        sender.try_send(Ok(Bytes::from_static(b"begun"))).unwrap();
        assert_eq!(joined.next().await.unwrap().unwrap(), "begun");
        let waited = tokio::time::timeout(Duration::from_secs(60), joined.next()).await;
        assert!(waited.is_err(), "nothing more has come");
        assert_eq!(engine.budget().used(), before);
        drop(sender);
        assert!(joined.next().await.is_none());
    }

    #[tokio::test]
    async fn error_follows_the_bytes_sent_before_it() {
        let engine = engine();
        let failed = object_store::Error::Generic {
            store: "test",
            source: "cut".into(),
        };
        let sent = vec![Ok(Bytes::from_static(b"begun")), Err(failed)];
        let sent = futures::stream::iter(sent).boxed();
        let mut joined = joined(sent, engine.shared());
        assert_eq!(joined.next().await.unwrap().unwrap(), "begun");
        assert!(joined.next().await.unwrap().is_err());
        assert!(joined.next().await.is_none());
    }
}
