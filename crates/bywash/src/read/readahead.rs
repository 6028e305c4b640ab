//! Read-ahead memory, shared among all readers of an engine.
//!
//! A block that was read ahead stays pinned until its reader reaches it: other readers do not evict it, and it is
//! loaded once. These pins are bounded. Each reader has a window, which shrinks as more readers come. All are
//! released when a request must wait for memory, so idle readers block no others. The loads themselves are started by
//! [`super::plan`], for a body ([`super::body`]) or for a stream of requests ([`super::sequential`]).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bywash_mem::Waiter;
use parking_lot::Mutex;

/// Blocks that the readers of an engine have read ahead, and their limits.
#[derive(Debug)]
pub(crate) struct ReadaheadBudget {
    held: Mutex<BudgetState>,
}

/// Limits of read-ahead, in bytes: block sizes differ between buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReadaheadLimits {
    /// One reader's maximum.
    pub(crate) each: u64,
    /// Maximum of all readers together.
    pub(crate) all: u64,
    /// Maximum of all downloads, read-ahead included.
    pub(crate) downloads: u64,
}

#[derive(Debug)]
struct BudgetState {
    limits: ReadaheadLimits,
    /// In the order of their begin, in which all are released: the same in each run of a seed.
    readers: BTreeMap<u64, VecDeque<(u32, Waiter)>>,
    /// Bytes held by all readers; each block counts as a full one.
    bytes: u64,
    next_reader: u64,
}

/// Blocks that a reader needs in addition to its window: the one being read, and the one its consumer still holds.
const IN_HAND_BLOCKS: u64 = 2;

/// Read-ahead allowed to one reader, in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Quota {
    /// Window of a reader that holds nothing.
    pub(super) window: u32,
    /// Part of the window that is not used yet.
    pub(super) free: u32,
}

impl ReadaheadBudget {
    pub(crate) fn new(limits: ReadaheadLimits) -> Arc<Self> {
        Arc::new(Self {
            held: Mutex::new(BudgetState {
                limits,
                readers: BTreeMap::new(),
                bytes: 0,
                next_reader: 0,
            }),
        })
    }

    /// Changes the limits. Blocks above a lower limit are released as their readers reach them.
    pub(crate) fn set_limits(&self, limits: ReadaheadLimits) {
        self.held.lock().limits = limits;
    }

    /// Registers a reader of several blocks of `block` bytes each.
    pub(super) fn window(self: &Arc<Self>, block: u64) -> ReadaheadWindow {
        let mut held = self.held.lock();
        let id = held.next_reader;
        held.next_reader += 1;
        held.readers.insert(id, VecDeque::new());
        ReadaheadWindow {
            budget: Arc::clone(self),
            id,
            block,
        }
    }

    /// Returns the quota that one more reader of blocks of `block` bytes would get, at most `max` blocks.
    pub(super) fn quota(&self, block: u64, max: u32) -> Quota {
        let held = self.held.lock();
        held.quota(1 + held.readers.len(), block, 0, max)
    }

    /// Releases every block read ahead: the pool may evict them from now on.
    pub(crate) fn release_all(&self) {
        let mut held = self.held.lock();
        let waiters: Vec<_> = held.readers.values_mut().flat_map(std::mem::take).collect();
        held.bytes = 0;
        drop(held);
        drop(waiters);
    }
}

impl BudgetState {
    /// Returns the quota of one among `readers` readers, with blocks of `block` bytes, that holds `own` blocks.
    fn quota(&self, readers: usize, block: u64, own: usize, max: u32) -> Quota {
        let readers = (readers as u64).max(1);
        let blocks = |bytes: u64| u32::try_from(bytes / block).unwrap_or(u32::MAX);
        let ReadaheadLimits {
            each,
            all,
            downloads,
        } = self.limits;
        let share = (downloads / readers).saturating_sub(IN_HAND_BLOCKS * block);
        let window = blocks(each.min(all / readers).min(share)).min(max);
        Quota {
            window,
            free: window
                .saturating_sub(own as u32)
                .min(blocks(all.saturating_sub(self.bytes))),
        }
    }
}

/// Read-ahead window of one reader. Dropping it releases the blocks it holds.
#[derive(Debug)]
pub(super) struct ReadaheadWindow {
    budget: Arc<ReadaheadBudget>,
    id: u64,
    /// Bytes of a block.
    block: u64,
}

impl ReadaheadWindow {
    /// Returns the quota of this reader, at most `max` blocks.
    pub(super) fn quota(&self, max: u32) -> Quota {
        let held = self.budget.held.lock();
        let own = held.readers.get(&self.id).map_or(0, VecDeque::len);
        held.quota(held.readers.len(), self.block, own, max)
    }

    /// Adds a loading block after those held already, unless other readers have used up the limit since.
    pub(super) fn hold(&self, block: u32, waiter: Waiter) {
        let mut held = self.budget.held.lock();
        if held.bytes + self.block > held.limits.all {
            drop(held);
            drop(waiter);
            return;
        }
        let held = &mut *held;
        if let Some(blocks) = held.readers.get_mut(&self.id) {
            blocks.push_back((block, waiter));
            held.bytes += self.block;
        }
    }

    /// Takes over the blocks before `end` that `other`, of the same bucket, holds.
    pub(super) fn adopt(&self, other: &Self, end: u32) {
        let held = &mut *self.budget.held.lock();
        let mut taken = VecDeque::new();
        if let Some(theirs) = held.readers.get_mut(&other.id) {
            while let Some(first) = theirs.pop_front_if(|(at, _)| *at < end) {
                taken.push_back(first);
            }
        }
        if let Some(own) = held.readers.get_mut(&self.id) {
            own.append(&mut taken);
            own.make_contiguous().sort_unstable_by_key(|(at, _)| *at);
        }
    }

    /// Returns the waiter for `block` if it was read ahead, and releases all blocks before it.
    pub(super) fn take(&self, block: u32) -> Option<Waiter> {
        let mut passed = Vec::new();
        {
            let mut held = self.budget.held.lock();
            let held = &mut *held;
            if let Some(blocks) = held.readers.get_mut(&self.id) {
                while let Some(first) = blocks.pop_front_if(|(at, _)| *at <= block) {
                    passed.push(first);
                }
                held.bytes -= passed.len() as u64 * self.block;
            }
        }
        // After the lock: dropping a waiter takes locks of the pool.
        let last = passed.pop().filter(|(at, _)| *at == block);
        last.map(|(_, waiter)| waiter)
    }
}

impl Drop for ReadaheadWindow {
    fn drop(&mut self) {
        let mut held = self.budget.held.lock();
        let blocks = held.readers.remove(&self.id).unwrap_or_default();
        held.bytes -= blocks.len() as u64 * self.block;
        drop(held);
        drop(blocks);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use bywash_mem::{BlockKey, BlockPool, Claim, PoolConfig};

    #[test]
    fn windows_shrink_as_readers_come_and_stay_within_the_limit() {
        let pool = BlockPool::new(PoolConfig::new(1 << 20)).unwrap();
        let budget = ReadaheadBudget::new(ReadaheadLimits {
            each: 40,
            all: 80,
            downloads: 200,
        });
        let first = budget.window(10);
        assert_eq!(first.quota(100), Quota { window: 4, free: 4 });
        assert_eq!(budget.quota(20, 100), Quota { window: 2, free: 2 });
        let mut loads = Vec::new();
        let mut fill = |reader: &ReadaheadWindow, object: u64, blocks: std::ops::Range<u32>| {
            for block in blocks {
                let Claim::Vacant(load) = pool.claim(key(object, block)) else {
                    panic!("the block is absent");
                };
                reader.hold(block, load.flight().join());
                loads.push(load);
            }
        };
        fill(&first, 1, 0..4);
        assert_eq!(first.quota(100), Quota { window: 4, free: 0 });
        let others: Vec<_> = (0..3).map(|_| budget.window(10)).collect();
        assert_eq!(others[0].quota(100), Quota { window: 2, free: 2 });
        fill(&others[0], 2, 0..6);
        assert_eq!(
            others[1].quota(100),
            Quota { window: 2, free: 0 },
            "the limit of all readers applies, whichever came first"
        );
        assert!(first.take(2).is_some());
        assert!(first.take(2).is_none());
        assert_eq!(first.quota(100), Quota { window: 2, free: 1 });
        assert_eq!(others[1].quota(100), Quota { window: 2, free: 2 });
        let crowd: Vec<_> = (0..4).map(|_| budget.window(10)).collect();
        assert_eq!(
            others[1].quota(100).window,
            0,
            "each still needs a block to read"
        );
        drop(crowd);
        budget.release_all();
        assert!(loads.iter().all(|load| !load.has_listeners()));
        drop(others);
        assert_eq!(first.quota(100), Quota { window: 4, free: 4 });
    }

    fn key(object: u64, block: u32) -> BlockKey {
        BlockKey {
            store: 0,
            object,
            block,
        }
    }
}
