//! The frame allocator: the ledger, the frames it accounts for, and the queue of callers that wait for them.

use std::fmt;
use std::sync::{Arc, OnceLock, Weak};

use super::arena::{Arena, SizeClass};
use super::budget::Reservation;
use super::config::{PoolConfig, Share};
use super::frame::Frame;
use super::ledger::Ledger;
use super::wait_queue::WaitQueue;
use crate::error::PoolError;
use crate::sync::{Mutex, MutexGuard, Step, skipped};

/// Bytes decommitted under one lock of the ledger: some 0.1 ms of system calls.
const DECOMMIT_STEP: u64 = 1 << 20;

/// A holder of frames that can give some back when memory is short: the block cache. Called on the miss path only, with no lock
/// of the allocator held.
pub(crate) trait Reclaim: fmt::Debug + Send + Sync {
    /// Evicts until `bytes` came free or nothing more can be evicted. Returns whether anything was evicted.
    ///
    /// A queued caller may sleep after `false`: every frame that was pinned at that time is unpinned later, which wakes it.
    fn reclaim(&self, bytes: u64) -> bool;

    /// Upper bound of the bytes that [`Self::reclaim`] could free.
    fn reclaimable(&self) -> u64;
}

/// Result of an allocation.
#[derive(Debug)]
pub(crate) enum AllocOutcome<T> {
    /// At least the minimum was allocated.
    Allocated(T),
    /// Evicting this many bytes of blocks would allow more.
    Reclaim(u64),
    /// Less than the minimum is available, and evicting would not help.
    Unavailable,
}

/// Shared state behind [`super::Budget`]. Every frame and reservation keeps it alive.
#[derive(Debug)]
pub(crate) struct FrameAllocator {
    /// Configuration the pool was made with. The limits in force are the ledger's.
    config: PoolConfig,
    ledger: Mutex<Ledger>,
    wait_queue: WaitQueue,
    arena: Arena,
    reclaimer: OnceLock<Weak<dyn Reclaim>>,
}

impl FrameAllocator {
    pub(crate) fn new(config: PoolConfig) -> Result<Arc<Self>, PoolError> {
        config.check()?;
        let arena = Arena::new(config.ceiling, config.shared)?;
        Ok(Arc::new(Self {
            config,
            ledger: Mutex::new(Ledger::new(config)),
            wait_queue: WaitQueue::new(),
            arena,
            reclaimer: OnceLock::new(),
        }))
    }

    /// Sets the holder that gives frames back under memory pressure. Only the first call has an effect.
    pub(crate) fn set_reclaimer(&self, reclaimer: Weak<dyn Reclaim>) {
        let _ = self.reclaimer.set(reclaimer);
    }

    pub(super) fn reclaimer(&self) -> Option<Arc<dyn Reclaim>> {
        self.reclaimer.get()?.upgrade()
    }

    /// Upper bound of the bytes that the reclaimer could free.
    pub(super) fn reclaimable(&self) -> u64 {
        self.reclaimer()
            .map_or(0, |reclaimer| reclaimer.reclaimable())
    }

    /// Configuration the pool was made with.
    pub(crate) fn config(&self) -> &PoolConfig {
        &self.config
    }

    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock()
    }

    /// Limits in force.
    pub(crate) fn limits(&self) -> PoolConfig {
        self.ledger.lock().limits
    }

    /// Bytes charged, idle frames included, and the limit.
    pub(crate) fn used_and_limit(&self) -> (u64, u64) {
        let ledger = self.ledger.lock();
        (ledger.used(), ledger.limits.limit)
    }

    /// Sets the limits if everything held fits; decommits idle frames.
    ///
    /// # Errors
    /// Number of bytes by which the held memory exceeds the new limit.
    pub(crate) fn try_set_limits(&self, limits: PoolConfig) -> Result<(), u64> {
        let mut ledger = self.ledger.lock();
        let excess = ledger.held_total().saturating_sub(limits.limit);
        if excess > 0 {
            return Err(excess);
        }
        ledger.limits = limits;
        ledger.make_room(0, &self.arena);
        Ok(())
    }

    /// Decommits idle frames until at most `target` bytes are in use. Releases the lock every [`DECOMMIT_STEP`] bytes.
    pub(crate) fn decommit_idle(&self, target: u64) {
        loop {
            let mut ledger = self.ledger.lock();
            let mut decommitted = 0;
            while decommitted < DECOMMIT_STEP {
                let Some(bytes) = ledger.decommit_largest(target, &self.arena) else {
                    return;
                };
                decommitted += bytes;
            }
        }
    }

    #[inline]
    pub(crate) fn wait_queue(&self) -> &WaitQueue {
        &self.wait_queue
    }

    pub(crate) fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Allocates up to `max` frames and at least `min`, all in one step or none.
    ///
    /// `reclaimable` bounds the bytes that evicting blocks could free. While eviction would allow more frames, the result is
    /// [`AllocOutcome::Reclaim`]. With 0, only memory that is free now counts.
    pub(crate) fn allocate(
        self: &Arc<Self>,
        share: Share,
        class: SizeClass,
        (min, max): (usize, usize),
        reclaimable: u64,
    ) -> AllocOutcome<Vec<Frame>> {
        let size = class.bytes();
        let mut ledger = self.ledger.lock();
        let limit = ledger.limits.limit;
        let unavailable = ledger.unavailable_to(share);
        let fits = |bytes: u64| usize::try_from(bytes / size).unwrap_or(usize::MAX).min(max);
        let now = fits(limit.saturating_sub(unavailable));
        if now < max {
            let gain = ledger.gain(share, reclaimable);
            let after = fits((limit + gain).saturating_sub(unavailable));
            if after > now && after >= min {
                return AllocOutcome::Reclaim(unavailable + after as u64 * size - limit);
            }
            if now < min {
                return AllocOutcome::Unavailable;
            }
        }
        if skipped(Step::Charge) {
            drop(ledger);
            // Threads that only run would hardly ever meet here.
            #[cfg(not(any(loom, shuttle)))]
            crate::sync::yield_now();
            ledger = self.ledger.lock();
        }
        let indices: Vec<(u32, bool)> = (0..now)
            .map(|_| ledger.allocate(share, class, &self.arena))
            .collect();
        drop(ledger);
        AllocOutcome::Allocated(
            indices
                .into_iter()
                .map(|(index, fresh)| Frame::new(self, class, index, share, fresh))
                .collect(),
        )
    }

    /// Charges `bytes` that are not a frame. `reclaimable` is as in [`Self::allocate`].
    pub(super) fn reserve(
        self: &Arc<Self>,
        share: Share,
        bytes: u64,
        reclaimable: u64,
    ) -> AllocOutcome<Reservation> {
        let excess = {
            let mut ledger = self.ledger.lock();
            let limit = ledger.limits.limit;
            let excess = ledger
                .unavailable_to(share)
                .saturating_add(bytes)
                .saturating_sub(limit);
            if excess > ledger.gain(share, reclaimable) {
                return AllocOutcome::Unavailable;
            }
            if excess == 0 {
                ledger.make_room(bytes, &self.arena);
                ledger.charge(share, bytes);
            }
            excess
        };
        if excess > 0 {
            return AllocOutcome::Reclaim(excess);
        }
        AllocOutcome::Allocated(Reservation::new(self, share, bytes))
    }

    /// Charges `bytes` that are not a frame if they fit without evicting. Returns whether they did.
    pub(super) fn try_charge(&self, share: Share, bytes: u64) -> bool {
        let mut ledger = self.ledger.lock();
        let fits = ledger
            .unavailable_to(share)
            .checked_add(bytes)
            .is_some_and(|all| all <= ledger.limits.limit);
        if fits {
            ledger.make_room(bytes, &self.arena);
            ledger.charge(share, bytes);
        }
        fits
    }

    /// Releases the charge of bytes that are not a frame.
    pub(super) fn release_bytes(&self, share: Share, bytes: u64) {
        self.ledger.lock().discharge(share, bytes);
        self.wait_queue.wake();
    }

    /// Takes a frame back as idle.
    pub(super) fn release_frame(&self, share: Share, class: SizeClass, index: u32) {
        self.ledger.lock().free(share, class, index);
        self.wait_queue.wake();
    }

    /// Moves a charge between shares. The sum does not change. The other share may fall below its guarantee until memory is next
    /// released.
    pub(super) fn transfer(&self, from: Share, to: Share, bytes: u64) {
        {
            let mut ledger = self.ledger.lock();
            ledger.discharge(from, bytes);
            ledger.charge(to, bytes);
        }
        self.wait_queue.wake();
    }
}
