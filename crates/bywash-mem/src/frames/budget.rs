//! The budget: the public handle of the allocator, which checks the limit (`allocator.rs`), and reservations of bytes that are not frames.

use std::fmt;
use std::sync::Arc;

use super::allocator::FrameAllocator;
use super::config::Share;
use super::frame::Frame;

/// Handle of a pool's committed memory: bytes in use, idle frames, the limit. Cheap to clone; clones share one budget.
///
/// The sum of live reservations, frames included, is [`Self::used`] and never exceeds [`Self::limit`]. A charge of one share may
/// raise the sum of both shares to at most the limit minus the unused part of the other share's guarantee. Idle frames count
/// for no share.
#[derive(Debug, Clone)]
pub struct Budget(pub(crate) Arc<FrameAllocator>);

impl Budget {
    /// Bytes charged now, idle frames included.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.0.ledger().used()
    }

    /// Limit in bytes. [`crate::BlockPool::set_limit`] changes it.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.0.limits().limit
    }

    /// Bytes that a share can ever hold: the limit without the other share's guarantee.
    #[must_use]
    pub fn max_of_share(&self, share: Share) -> u64 {
        self.0.limits().max_of_share(share)
    }

    /// Highest limit that can be set at run time: [`crate::PoolConfig::ceiling`].
    #[must_use]
    pub fn ceiling(&self) -> u64 {
        self.0.config().ceiling
    }

    /// Bytes of free frames that keep their pages. Part of [`Self::used`]; either share can allocate them.
    #[must_use]
    pub fn idle(&self) -> u64 {
        self.0.ledger().idle()
    }

    /// Bytes charged to one share.
    #[must_use]
    pub fn held(&self, share: Share) -> u64 {
        self.0.ledger().held(share)
    }

    /// Number of callers in the wait queues of both shares.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.0.wait_queue().waiting()
    }

    /// Allocates a frame of the class that holds `len` bytes. Never waits, and never overtakes a waiter of its share.
    #[must_use]
    pub fn try_frame(&self, share: Share, len: usize) -> Option<Frame> {
        self.0.try_frames(share, len, 1, 1)?.pop()
    }

    /// Charges `bytes` that are not a frame. Never waits, never evicts a block, never overtakes a waiter of its share.
    #[must_use]
    pub fn try_reserve(&self, share: Share, bytes: u64) -> Option<Reservation> {
        if self.0.wait_queue().has_waiters(share) || !self.0.try_charge(share, bytes) {
            return None;
        }
        Some(Reservation::new(&self.0, share, bytes))
    }
}

/// A charge for bytes that are not a frame. Released on drop.
#[must_use = "dropping it releases the charge"]
pub struct Reservation {
    allocator: Arc<FrameAllocator>,
    share: Share,
    bytes: u64,
}

impl Reservation {
    /// Takes over a charge that was just entered in the ledger.
    pub(super) fn new(allocator: &Arc<FrameAllocator>, share: Share, bytes: u64) -> Self {
        Self {
            allocator: Arc::clone(allocator),
            share,
            bytes,
        }
    }

    /// Bytes charged.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn share(&self) -> Share {
        self.share
    }

    /// Releases the charge above `bytes`. Does nothing if `bytes` is not smaller than the charge.
    pub fn shrink_to(&mut self, bytes: u64) {
        let released = self.bytes.saturating_sub(bytes);
        if released == 0 {
            return;
        }
        self.bytes = bytes;
        self.allocator.release_bytes(self.share, released);
    }

    /// Adds the charge of `other` to this one.
    ///
    /// # Panics
    /// If the two belong to different budgets or shares.
    pub fn merge(&mut self, mut other: Self) {
        assert!(
            Arc::ptr_eq(&self.allocator, &other.allocator) && self.share == other.share,
            "only charges of one budget and share can be merged"
        );
        self.bytes += std::mem::take(&mut other.bytes);
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("share", &self.share)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.allocator.release_bytes(self.share, self.bytes);
    }
}
