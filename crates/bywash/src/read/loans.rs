//! Bounds on block memory lent to consumers that may stop reading.
//!
//! A block handed to a consumer stays pinned until the consumer drops it: it is on loan. All loans of an engine
//! together are bounded. Beyond the bound a body returns small copies instead ([`super::pieces`]). So stalled
//! consumers pin at most half of the downloads' memory, and other readers can always load.
//!
//! A frame that several leases hold ([`super::lease`]) counts once: any number of processes may read one warm set.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bywash_mem::MIN_FRAME;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::limits::{MAX_COPIED_BODIES, MAX_PIECE_BYTES, MIN_PIECE_BYTES};

/// Fractions of the downloads' memory: at most a half on loan, at most a quarter in copies. The last quarter is for
/// loads. It holds at least one of the largest blocks, for the memory holds eight.
const LENT_DIVISOR: u64 = 2;
pub(super) const COPIES_DIVISOR: u64 = 4;
/// Fraction of the copies' memory for pieces that grow: a quarter. The rest is for the first piece of each body.
const GROWN_DIVISOR: u64 = 4;

/// Bytes on loan and in copies, of all bodies of an engine.
#[derive(Debug)]
pub(crate) struct Loans {
    /// Bytes that downloads may hold; the bounds are fractions of it.
    downloads: AtomicU64,
    /// Bytes of frames on loan. A block lent to several bodies counts for each; to several leases, once.
    lent: AtomicU64,
    /// Frames on loan to leases.
    leased: Mutex<Leased>,
    /// Bytes of copies beyond the first piece of each body.
    pub(super) grown: AtomicU64,
    pub(super) copied_bodies: Arc<Semaphore>,
}

impl Loans {
    /// Bounds for downloads that may hold `downloads` bytes.
    pub(crate) fn new(downloads: u64) -> Arc<Self> {
        Arc::new(Self {
            downloads: AtomicU64::new(downloads),
            lent: AtomicU64::new(0),
            leased: Mutex::default(),
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
        self.lend_all([length])
    }

    /// Lends blocks of `lengths` bytes, if all are within the bound.
    pub(super) fn lend_all(
        self: &Arc<Self>,
        lengths: impl IntoIterator<Item = usize>,
    ) -> Option<Loan> {
        let bytes = lengths.into_iter().map(frame_bytes).sum();
        let limit = self.max_lent();
        // Relaxed: a counter that publishes nothing.
        let before = self.lent.fetch_add(bytes, Relaxed);
        let loan = Loan {
            loans: Arc::clone(self),
            bytes,
        };
        (before + bytes <= limit).then_some(loan)
    }

    /// Lends frames to a lease. Counts only frames that no other lease holds. With `loan`, a loan of all frames, the surplus
    /// is given back; without one, fails if they are more than the bound allows.
    pub(super) fn lease(
        self: &Arc<Self>,
        frames: Box<[Frame]>,
        loan: Option<Loan>,
    ) -> Option<LeasedFrames> {
        let mut leased = self.leased.lock();
        let new = leased.add(&frames);
        let fits = match loan {
            Some(mut loan) => {
                self.lent.fetch_sub(loan.bytes - new, Relaxed);
                loan.bytes = 0;
                true
            }
            None => self.lent.fetch_add(new, Relaxed) + new <= self.max_lent(),
        };
        drop(leased);
        // Not within the bound: the frames are given back.
        let lease = LeasedFrames {
            loans: Arc::clone(self),
            frames,
        };
        fits.then_some(lease)
    }

    /// Bytes of frames that leases hold, each counted once.
    pub(crate) fn leased_bytes(&self) -> u64 {
        self.leased.lock().bytes
    }

    /// Maximum bytes of frames on loan.
    fn max_lent(&self) -> u64 {
        self.downloads.load(Relaxed) / LENT_DIVISOR
    }

    /// Maximum number of blocks of `block_size` bytes on loan.
    pub(super) fn max_blocks(&self, block_size: u64) -> u64 {
        self.max_lent() / block_size
    }

    /// The bytes of a body's first piece: [`MAX_COPIED_BODIES`] such pieces fit the copies' memory.
    pub(super) fn first_piece(&self) -> u64 {
        let copies = self.downloads.load(Relaxed) / COPIES_DIVISOR;
        let first = (copies - copies / GROWN_DIVISOR) / MAX_COPIED_BODIES as u64;
        first.clamp(MIN_PIECE_BYTES, MAX_PIECE_BYTES)
    }

    /// Counts `bytes` more for a growing copy, if that is within the bound.
    pub(super) fn grow(&self, bytes: u64) -> bool {
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

/// A frame of the shared memory: its offset and its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Frame {
    offset: u64,
    bytes: u64,
}

impl Frame {
    /// The frame at `offset` of a block of `length` bytes.
    pub(super) fn new(offset: u64, length: usize) -> Self {
        Self {
            offset,
            bytes: frame_bytes(length),
        }
    }
}

/// Frames that leases hold.
#[derive(Debug, Default)]
struct Leased {
    /// Number of leases of each.
    counts: HashMap<Frame, u32>,
    /// Bytes of all frames.
    bytes: u64,
}

impl Leased {
    /// Counts a lease. Returns the bytes of the frames that no other lease holds.
    fn add(&mut self, frames: &[Frame]) -> u64 {
        let before = self.bytes;
        for frame in frames {
            let count = self.counts.entry(*frame).or_default();
            if *count == 0 {
                self.bytes += frame.bytes;
            }
            *count += 1;
        }
        self.bytes - before
    }

    /// Ends a lease. Returns the bytes of the frames that no other lease holds.
    fn remove(&mut self, frames: &[Frame]) -> u64 {
        let before = self.bytes;
        for frame in frames {
            let count = self.counts.get_mut(frame).expect("the lease was counted");
            *count -= 1;
            if *count == 0 {
                self.counts.remove(frame);
                self.bytes -= frame.bytes;
            }
        }
        before - self.bytes
    }
}

/// Frames on loan to a lease. Dropping it ends the loan of each frame that no other lease holds.
#[derive(Debug)]
pub(super) struct LeasedFrames {
    loans: Arc<Loans>,
    frames: Box<[Frame]>,
}

impl Drop for LeasedFrames {
    fn drop(&mut self) {
        let ended = self.loans.leased.lock().remove(&self.frames);
        self.loans.lent.fetch_sub(ended, Relaxed);
    }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

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

    #[test]
    fn frame_of_several_leases_counts_once() {
        let loans = Loans::new(8 << 20);
        let frames = |offsets: [u64; 3]| offsets.map(|at| Frame::new(at << 20, 1 << 20)).into();
        let first = loans.lease(frames([0, 1, 2]), None).unwrap();
        let second = loans.lease(frames([0, 1, 2]), None).unwrap();
        assert_eq!(loans.lent.load(Relaxed), 3 << 20);
        assert!(loans.lease(frames([2, 3, 4]), None).is_none());
        let loan = loans.lend(1 << 20).unwrap();
        let third = loans.lease([Frame::new(2 << 20, 1 << 20)].into(), Some(loan));
        assert_eq!(loans.leased_bytes(), 3 << 20);
        drop(first);
        assert_eq!(loans.lent.load(Relaxed), 3 << 20);
        drop(second);
        assert_eq!(loans.lent.load(Relaxed), 1 << 20);
        drop(third);
        assert_eq!((loans.lent.load(Relaxed), loans.leased_bytes()), (0, 0));
        assert!(loans.leased.lock().counts.is_empty());
    }
}
