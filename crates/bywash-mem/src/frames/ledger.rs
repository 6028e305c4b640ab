//! The ledger: exact accounting of committed memory, always locked as a whole.

use super::arena::{Arena, CLASSES, SizeClass};
use super::config::{PoolConfig, Share};

/// Charges, idle frames and the limits in force. [`super::FrameAllocator`] keeps it behind one mutex.
#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) limits: PoolConfig,
    /// Bytes charged to each share.
    held: [u64; 2],
    /// Bytes of the idle frames of all classes.
    idle: u64,
    classes: [ClassFrames; CLASSES],
}

/// Frames of one class that have no owner, by index.
#[derive(Debug, Default)]
struct ClassFrames {
    /// Committed frames, charged as idle.
    idle: Vec<u32>,
    /// Decommitted frames with free addresses.
    decommitted: Vec<u32>,
    /// First index that was never used.
    next: u32,
}

impl Ledger {
    pub(super) fn new(limits: PoolConfig) -> Self {
        Self {
            limits,
            held: [0; 2],
            idle: 0,
            classes: Default::default(),
        }
    }

    pub(super) fn held(&self, share: Share) -> u64 {
        self.held[share as usize]
    }

    /// Bytes charged to both shares, idle frames excluded.
    pub(super) fn held_total(&self) -> u64 {
        self.held[0] + self.held[1]
    }

    pub(super) fn idle(&self) -> u64 {
        self.idle
    }

    pub(super) fn used(&self) -> u64 {
        self.held_total() + self.idle
    }

    /// Bytes unavailable to `share`: all that is held, plus the unused part of the other share's guarantee.
    pub(super) fn unavailable_to(&self, share: Share) -> u64 {
        let other = share.other();
        self.held(share) + self.held(other).max(self.limits.guarantee(other))
    }

    /// Bytes that `share` gains if `reclaimable` bytes of blocks are evicted. Blocks are charged to downloads, so an upload gains
    /// nothing below the downloads' guarantee.
    pub(super) fn gain(&self, share: Share, reclaimable: u64) -> u64 {
        match share {
            Share::Download => reclaimable,
            Share::Upload => reclaimable.min(
                self.held(Share::Download)
                    .saturating_sub(self.limits.download_guarantee),
            ),
        }
    }

    pub(super) fn charge(&mut self, share: Share, bytes: u64) {
        self.held[share as usize] += bytes;
    }

    pub(super) fn discharge(&mut self, share: Share, bytes: u64) {
        self.held[share as usize] -= bytes;
    }

    /// Decommits idle frames until `bytes` more fit the limit. The caller has checked that `held_total + bytes` does.
    ///
    /// The system call runs under the ledger's lock. It costs microseconds, happens only when the mix of classes changes, and
    /// keeps charge and pages in step.
    pub(super) fn make_room(&mut self, bytes: u64, arena: &Arena) {
        let target = self.limits.limit.saturating_sub(bytes);
        while self.decommit_largest(target, arena).is_some() {}
        debug_assert!(
            self.used() + bytes <= self.limits.limit,
            "everything that no share holds was idle, and is decommitted now"
        );
    }

    /// Decommits an idle frame of the largest class, if more than `target` bytes are in use. Returns its bytes.
    pub(super) fn decommit_largest(&mut self, target: u64, arena: &Arena) -> Option<u64> {
        if self.used() <= target {
            return None;
        }
        let mut classes = SizeClass::all().rev();
        let class = classes.find(|class| !self.classes[class.index()].idle.is_empty())?;
        let frames = &mut self.classes[class.index()];
        let index = frames.idle.pop()?;
        // SAFETY: an idle frame belongs to the ledger.
        unsafe { arena.decommit(class, index) };
        frames.decommitted.push(index);
        self.idle -= class.bytes();
        Some(class.bytes())
    }

    /// Charges one frame to `share`, idle frames first. The caller has checked the limit. Returns the frame's index, and whether it
    /// has no pages yet.
    pub(super) fn allocate(
        &mut self,
        share: Share,
        class: SizeClass,
        arena: &Arena,
    ) -> (u32, bool) {
        let idle = self.classes[class.index()].idle.pop();
        let index = if let Some(index) = idle {
            self.idle -= class.bytes();
            index
        } else {
            self.make_room(class.bytes(), arena);
            let frames = &mut self.classes[class.index()];
            frames.decommitted.pop().unwrap_or_else(|| {
                frames.next += 1;
                frames.next - 1
            })
        };
        self.charge(share, class.bytes());
        (index, idle.is_none())
    }

    /// Moves a frame from `share` to the idle frames.
    pub(super) fn free(&mut self, share: Share, class: SizeClass, index: u32) {
        self.discharge(share, class.bytes());
        self.idle += class.bytes();
        self.classes[class.index()].idle.push(index);
    }
}
