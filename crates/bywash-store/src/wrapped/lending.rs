//! Bytes of writes on loan to a store.
//!
//! The pieces of a chunk are memory of the engine. Stores mostly drop them before they respond. One in memory may keep them for as
//! long as its object lives, and the engine would lack that memory: such a store gets copies, which are its own memory. Which kind it
//! is shows after its first write, which is sent alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use bytes::Bytes;
use object_store::PutPayload;
use tokio::sync::{Mutex, MutexGuard};

/// No write has ended yet.
const UNKNOWN: u8 = 0;
/// The store has dropped the bytes of each write before its response.
const DROPS: u8 = 1;
/// The store has kept the bytes of a write.
const KEEPS: u8 = 2;

/// Whether a store keeps the bytes of the writes of one kind after it has acknowledged them.
#[derive(Debug, Default)]
pub(super) struct Lending {
    /// Set when a write ends, read when a write begins. Orders nothing, hence relaxed.
    store: AtomicU8,
    /// Held by the first write.
    first: Mutex<()>,
}

/// One piece on loan.
struct LentPiece {
    bytes: Bytes,
    _count: Arc<()>,
}

impl AsRef<[u8]> for LentPiece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The pieces of a write in flight.
#[derive(Debug)]
pub(super) struct Loan<'l> {
    lending: &'l Lending,
    /// Counts the pieces that the store has; `None` if they are a copy.
    count: Option<Arc<()>>,
    _first: Option<MutexGuard<'l, ()>>,
}

impl Lending {
    /// Returns the payload to give to the store. Waits for the end of the first write.
    pub(super) async fn lend(&self, payload: &PutPayload) -> (PutPayload, Loan<'_>) {
        let mut first = None;
        if self.store.load(Relaxed) == UNKNOWN {
            let turn = self.first.lock().await;
            first = Some(turn).filter(|_| self.store.load(Relaxed) == UNKNOWN);
        }
        let mut loan = Loan {
            lending: self,
            count: None,
            _first: first,
        };
        if self.store.load(Relaxed) == KEEPS {
            let mut copy = Vec::with_capacity(payload.content_length());
            for piece in payload {
                copy.extend_from_slice(piece);
            }
            return (copy.into(), loan);
        }
        let count = Arc::new(());
        let lent = payload.iter().map(|piece| {
            Bytes::from_owner(LentPiece {
                bytes: piece.clone(),
                _count: Arc::clone(&count),
            })
        });
        let lent = lent.collect();
        loan.count = Some(count);
        (lent, loan)
    }
}

impl Loan<'_> {
    /// Looks whether the store still has a piece after it acknowledged the write.
    pub(super) fn acknowledged(self) {
        let Some(count) = &self.count else {
            return;
        };
        let store = &self.lending.store;
        if Arc::strong_count(count) > 1 {
            store.store(KEEPS, Relaxed);
        } else {
            // A failure means that it is known already.
            let _ = store.compare_exchange(UNKNOWN, DROPS, Relaxed, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn bytes() -> Bytes {
        Bytes::from_static(b"abc")
    }

    fn is_lent(payload: &PutPayload) -> bool {
        let first = payload.iter().next();
        first.is_some_and(|piece| piece.as_ptr() == bytes().as_ptr())
    }

    #[tokio::test]
    async fn store_that_keeps_bytes_gets_copies_from_then_on() {
        let lending = Lending::default();
        let (sent, loan) = lending.lend(&bytes().into()).await;
        drop(sent);
        loan.acknowledged();
        let (kept, loan) = lending.lend(&bytes().into()).await;
        assert!(is_lent(&kept));
        loan.acknowledged();
        let both = PutPayload::from_iter([bytes(), bytes()]);
        let (copy, loan) = lending.lend(&both).await;
        assert!(!is_lent(&copy));
        loan.acknowledged();
        let pieces: Vec<Bytes> = copy.into_iter().collect();
        assert_eq!(pieces, [Bytes::from_static(b"abcabc")]);
    }

    #[tokio::test]
    async fn first_write_is_sent_alone() {
        let lending = Lending::default();
        let payload = PutPayload::from(bytes());
        let (failed, loan) = lending.lend(&payload).await;
        assert!(lending.lend(&payload).now_or_never().is_none());
        drop((failed, loan));
        let (kept, loan) = lending.lend(&payload).await;
        assert!(lending.lend(&payload).now_or_never().is_none());
        loan.acknowledged();
        let next = lending.lend(&payload).now_or_never();
        assert!(next.is_some_and(|(copy, _)| !is_lent(&copy)));
        drop(kept);
    }
}
