//! The buffer that a body copies its pieces into, one at a time, when its blocks may not be lent ([`super::loans`]).

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bywash_mem::{Reservation, Share};
use object_store::Result;
use object_store::path::Path;
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit};

use super::loans::Loans;
use crate::limits::MAX_PIECE_BYTES;
use crate::shared::EngineShared;

/// Buffer of the current piece of a body: owned by the body or lent to its consumer.
#[derive(Debug)]
pub(super) struct CopyBuffer {
    shared: Arc<SharedBuffer>,
    /// Bytes charged, which is the largest piece.
    size: u64,
}

#[derive(Debug)]
struct SharedBuffer {
    loans: Arc<Loans>,
    state: Mutex<BufferState>,
    returned: Notify,
    _permit: OwnedSemaphorePermit,
}

#[derive(Debug)]
struct BufferState {
    /// `None` while the consumer holds it.
    bytes: Option<Vec<u8>>,
    charge: Reservation,
    /// Bytes of the charge counted by [`Loans::grow`].
    grown: u64,
}

impl CopyBuffer {
    /// Returns a buffer if its memory is available without waiting.
    pub(super) fn try_new(engine: &EngineShared) -> Option<Self> {
        let loans = &engine.loans;
        let permit = Arc::clone(&loans.copied_bodies).try_acquire_owned().ok()?;
        let charge = engine
            .pool
            .try_reserve(Share::Download, loans.first_piece())?;
        Some(Self::with(loans, permit, charge))
    }

    /// Waits for a buffer's memory in the order of all requests, until the admission deadline. The caller must hold
    /// no block.
    ///
    /// # Errors
    /// [`crate::EngineError::SlowDown`] at the deadline.
    pub(super) async fn new(engine: &EngineShared, object: &Path) -> Result<Self> {
        if let Some(buffer) = Self::try_new(engine) {
            return Ok(buffer);
        }
        let loans = &engine.loans;
        let permit = Arc::clone(&loans.copied_bodies).acquire_owned();
        let permit = tokio::time::timeout(engine.admission_deadline, permit).await;
        let Ok(Ok(permit)) = permit else {
            return Err(engine.slow_down("read", object.as_ref()).into());
        };
        let bytes = loans.first_piece();
        let charge = engine
            .reserve(Share::Download, bytes, "read", object.as_ref())
            .await?;
        Ok(Self::with(loans, permit, charge))
    }

    fn with(loans: &Arc<Loans>, permit: OwnedSemaphorePermit, charge: Reservation) -> Self {
        let size = charge.bytes();
        let state = BufferState {
            bytes: Some(Vec::new()),
            charge,
            grown: 0,
        };
        Self {
            shared: Arc::new(SharedBuffer {
                loans: Arc::clone(loans),
                state: Mutex::new(state),
                returned: Notify::new(),
                _permit: permit,
            }),
            size,
        }
    }

    /// The current maximum length of a piece.
    pub(super) fn size(&self) -> usize {
        self.size as usize
    }

    /// Whether the consumer has dropped the last piece.
    pub(super) fn is_returned(&self) -> bool {
        self.shared.state.lock().bytes.is_some()
    }

    /// Completes when the consumer has dropped the last piece.
    pub(super) async fn returned(&self) {
        while !self.is_returned() {
            self.shared.returned.notified().await;
        }
    }

    /// Doubles the buffer if there is memory for it that no request waits for.
    pub(super) fn try_grow(&mut self, engine: &EngineShared) {
        let more = self.size.min(MAX_PIECE_BYTES - self.size);
        if more == 0 || !self.shared.loans.grow(more) {
            return;
        }
        let state = &mut *self.shared.state.lock();
        if state.bytes.is_some() && engine.pool.try_grow(&mut state.charge, more) {
            state.grown += more;
            self.size += more;
            // Reallocated with the next piece.
            state.bytes = Some(Vec::new());
        } else {
            self.shared.loans.grown.fetch_sub(more, Relaxed);
        }
    }

    /// An empty buffer for the next piece, with the capacity of the largest.
    ///
    /// # Panics
    /// While the consumer holds the last piece.
    pub(super) fn take(&self) -> Vec<u8> {
        let taken = self.shared.state.lock().bytes.take();
        let mut bytes = taken.expect("awaited by the caller");
        bytes.clear();
        bytes.reserve_exact(self.size());
        bytes
    }

    /// Lends `bytes`, of this buffer, to the consumer.
    pub(super) fn hand_out(&self, bytes: Vec<u8>) -> bytes::Bytes {
        bytes::Bytes::from_owner(CopiedPiece {
            bytes,
            buffer: Arc::clone(&self.shared),
        })
    }

    /// Returns a buffer unused.
    pub(super) fn put_back(&self, bytes: Vec<u8>) {
        self.shared.state.lock().bytes = Some(bytes);
    }
}

impl Drop for SharedBuffer {
    fn drop(&mut self) {
        let grown = self.state.get_mut().grown;
        self.loans.grown.fetch_sub(grown, Relaxed);
    }
}

/// A piece held by the consumer.
struct CopiedPiece {
    bytes: Vec<u8>,
    buffer: Arc<SharedBuffer>,
}

impl AsRef<[u8]> for CopiedPiece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for CopiedPiece {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        self.buffer.state.lock().bytes = Some(bytes);
        self.buffer.returned.notify_one();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::time::Duration;

    use super::super::loans::COPIES_DIVISOR;
    use super::*;
    use crate::limits::MAX_COPIED_BODIES;

    fn engine(memory: u64) -> crate::Engine {
        let engine = crate::Engine::builder()
            .memory(memory)
            .admission_deadline(Duration::from_secs(1));
        engine.build().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn body_past_the_limit_waits_for_a_buffer_and_gets_slow_down() {
        let engine = engine(64 << 20);
        let shared = engine.shared();
        let copies = (48 << 20) / COPIES_DIVISOR;
        let mut buffers = Vec::new();
        for _ in 0..MAX_COPIED_BODIES {
            let mut buffer = CopyBuffer::try_new(shared).unwrap();
            buffer.try_grow(shared);
            buffers.push(buffer);
        }
        let held = engine.budget().held(Share::Download);
        assert!(held <= copies, "{held} bytes of copies");
        assert!(buffers[0].size() > buffers[MAX_COPIED_BODIES - 1].size());
        assert!(CopyBuffer::try_new(shared).is_none());
        let object = Path::from("object");
        let refused = CopyBuffer::new(shared, &object).await;
        let refused = refused.map(|_| ()).unwrap_err();
        let error = crate::EngineError::find(&refused);
        assert!(matches!(error, Some(crate::EngineError::SlowDown { .. })));
        drop(buffers.pop());
        assert!(CopyBuffer::new(shared, &object).await.is_ok());
        drop(buffers);
        assert_eq!(engine.budget().used(), 0);
    }

    #[tokio::test]
    async fn dropped_piece_returns_its_buffer_and_a_buffer_stops_growing_at_the_limit() {
        let engine = engine(1 << 30);
        let shared = engine.shared();
        let mut buffer = CopyBuffer::try_new(shared).unwrap();
        for _ in 0..10 {
            buffer.try_grow(shared);
        }
        assert_eq!(buffer.size() as u64, MAX_PIECE_BYTES);
        let mut bytes = buffer.take();
        bytes.extend_from_slice(b"piece");
        let piece = buffer.hand_out(bytes);
        assert!(!buffer.is_returned());
        tokio::join!(async { drop(piece) }, buffer.returned());
        assert!(buffer.is_returned());
    }
}
