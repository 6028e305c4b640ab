//! Bounds on block memory lent to consumers that may stop reading.
//!
//! A block handed to a consumer stays pinned until the consumer drops it: it is on loan. All loans of an engine
//! together are bounded. Beyond the bound a body returns small copies instead ([`super::pieces`]). So stalled
//! consumers pin at most half of the downloads' memory, and other readers can always load.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bywash_mem::{MIN_FRAME, Reservation, Share};
use object_store::Result;
use object_store::path::Path;
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::engine::Shared as Engine;
use crate::limits::{MAX_COPIED_BODIES, MAX_PIECE_BYTES, MIN_PIECE_BYTES};

/// Fractions of the downloads' memory: at most a half on loan, at most a quarter in copies. The last quarter is for
/// loads. It holds at least one of the largest blocks, for the memory holds eight.
const LENT_DIVISOR: u64 = 2;
const COPIES_DIVISOR: u64 = 4;
/// Fraction of the copies' memory for pieces that grow: a quarter. The rest is for the first piece of each body.
const GROWN_DIVISOR: u64 = 4;

/// Bytes on loan and in copies, of all bodies of an engine.
#[derive(Debug)]
pub(crate) struct Loans {
    /// Bytes that downloads may hold; the bounds are fractions of it.
    downloads: AtomicU64,
    /// Bytes of frames on loan. A block lent to several consumers counts for each.
    lent: AtomicU64,
    /// Bytes of copies beyond the first piece of each body.
    grown: AtomicU64,
    copied_bodies: Arc<Semaphore>,
}

impl Loans {
    /// Bounds for downloads that may hold `downloads` bytes.
    pub(crate) fn new(downloads: u64) -> Arc<Self> {
        Arc::new(Self {
            downloads: AtomicU64::new(downloads),
            lent: AtomicU64::new(0),
            grown: AtomicU64::new(0),
            copied_bodies: Arc::new(Semaphore::new(MAX_COPIED_BODIES)),
        })
    }

    /// Changes the bounds. Memory above them stays until its consumers drop it.
    pub(crate) fn set_downloads(&self, bytes: u64) {
        self.downloads.store(bytes, Relaxed);
    }

    /// Lends a block of `length` bytes, if that is within the bound.
    pub(super) fn lend(self: &Arc<Self>, length: usize) -> Option<Loan> {
        let bytes = frame_bytes(length);
        let limit = self.downloads.load(Relaxed) / LENT_DIVISOR;
        // Relaxed: a counter that publishes nothing.
        let before = self.lent.fetch_add(bytes, Relaxed);
        let loan = Loan {
            loans: Arc::clone(self),
            bytes,
        };
        (before + bytes <= limit).then_some(loan)
    }

    /// Returns the bytes of a body's first piece: [`MAX_COPIED_BODIES`] of them fit the copies' memory.
    fn first_piece(&self) -> u64 {
        let copies = self.downloads.load(Relaxed) / COPIES_DIVISOR;
        let first = (copies - copies / GROWN_DIVISOR) / MAX_COPIED_BODIES as u64;
        first.clamp(MIN_PIECE_BYTES, MAX_PIECE_BYTES)
    }

    /// Counts `bytes` more for a growing copy, if that is within the bound.
    fn grow(&self, bytes: u64) -> bool {
        let limit = self.downloads.load(Relaxed) / COPIES_DIVISOR / GROWN_DIVISOR;
        let grown = self.grown.fetch_add(bytes, Relaxed) + bytes <= limit;
        if !grown {
            self.grown.fetch_sub(bytes, Relaxed);
        }
        grown
    }
}

/// Returns the bytes of the frame of a block of `length` bytes.
fn frame_bytes(length: usize) -> u64 {
    length.max(MIN_FRAME).next_power_of_two() as u64
}

/// A block on loan to a consumer. Dropping it ends the loan.
#[derive(Debug)]
pub(super) struct Loan {
    loans: Arc<Loans>,
    bytes: u64,
}

impl Loan {
    /// Reduces the loan to a block of `length` bytes, if that is shorter.
    pub(super) fn shrink_to(&mut self, length: usize) {
        let bytes = frame_bytes(length).min(self.bytes);
        self.loans.lent.fetch_sub(self.bytes - bytes, Relaxed);
        self.bytes = bytes;
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.loans.lent.fetch_sub(self.bytes, Relaxed);
    }
}

/// Buffer that a body copies its pieces into, one at a time: owned by the body or lent to its consumer.
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
    pub(super) fn try_new(engine: &Engine) -> Option<Self> {
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
    pub(super) async fn new(engine: &Engine, object: &Path) -> Result<Self> {
        if let Some(buffer) = Self::try_new(engine) {
            return Ok(buffer);
        }
        let loans = &engine.loans;
        let permit = Arc::clone(&loans.copied_bodies).acquire_owned();
        let permit = tokio::time::timeout(engine.admission_deadline, permit).await;
        let Ok(Ok(permit)) = permit else {
            return Err(engine.slow_down("read", object));
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

    /// Returns the current maximum length of a piece.
    pub(super) fn size(&self) -> usize {
        self.size as usize
    }

    /// Returns whether the consumer has dropped the last piece.
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
    pub(super) fn try_grow(&mut self, engine: &Engine) {
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

    /// Returns an empty buffer for the next piece, with the capacity of the largest.
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

    use super::*;

    fn engine(memory: u64) -> crate::Engine {
        let engine = crate::Engine::builder()
            .memory(memory)
            .admission_deadline(Duration::from_secs(1));
        engine.build().unwrap()
    }

    #[test]
    fn loans_end_at_half_of_the_downloads_memory() {
        let loans = Loans::new(12 << 20);
        let lent: Vec<_> = (0..7).filter_map(|_| loans.lend((1 << 19) + 1)).collect();
        assert_eq!(lent.len(), 6, "frames of 1 MiB");
        assert!(loans.lend(1).is_none());
        drop(lent);
        assert!(loans.lend(6 << 20).is_none(), "a frame of 8 MiB");
        let mut loan = loans.lend(4 << 20).unwrap();
        loan.shrink_to(2 << 20);
        assert!(loans.lend(4 << 20).is_some());
        drop(loan);
        loans.set_downloads(4 << 20);
        assert!(loans.lend(4 << 20).is_none());
        assert_eq!(loans.lent.load(Relaxed), 0, "all came back");
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
    async fn a_piece_returns_its_buffer_and_a_buffer_stops_growing_at_the_limit() {
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
