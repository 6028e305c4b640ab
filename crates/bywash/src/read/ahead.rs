//! Memory for what bodies read before its turn, shared out among them.
//!
//! A block that was read ahead is held until its reader comes to it, so that other readers' blocks do not push it out and
//! it is loaded once. All that is held so is bounded: each reader has a window, which shrinks as readers come. And it is
//! given up when someone must wait for memory, so that readers that stopped reading keep nobody waiting with it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bywash_mem::Waiter;
use parking_lot::Mutex;

/// What all readers of an engine hold ahead of themselves.
#[derive(Debug)]
pub(crate) struct Ahead {
    held: Mutex<Held>,
}

/// How much may be held, in bytes: buckets differ in their blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AheadLimits {
    /// By one reader.
    pub(crate) each: u64,
    /// By all together.
    pub(crate) all: u64,
    /// By everything that is downloaded, held ahead or not.
    pub(crate) downloads: u64,
}

#[derive(Debug)]
struct Held {
    limits: AheadLimits,
    readers: HashMap<u64, VecDeque<(u32, Waiter)>>,
    /// The sum of what they hold, each block as if it were full.
    bytes: u64,
    next_reader: u64,
}

/// What a reader needs besides: the block it reads, and the one its consumer still has.
const IN_HAND_BLOCKS: u64 = 2;

/// How far a reader may read ahead now, in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Room {
    /// Its share when it holds nothing.
    pub(super) window: u32,
    /// What is left of it.
    pub(super) free: u32,
}

impl Ahead {
    pub(crate) fn new(limits: AheadLimits) -> Arc<Self> {
        Arc::new(Self {
            held: Mutex::new(Held {
                limits,
                readers: HashMap::new(),
                bytes: 0,
                next_reader: 0,
            }),
        })
    }

    /// What is held beyond new limits is let go of as its readers come to it.
    pub(crate) fn set_limits(&self, limits: AheadLimits) {
        self.held.lock().limits = limits;
    }

    /// A reader that has more than one block of `block` bytes to read.
    pub(super) fn reader(self: &Arc<Self>, block: u64) -> Reader {
        let mut held = self.held.lock();
        let id = held.next_reader;
        held.next_reader += 1;
        held.readers.insert(id, VecDeque::new());
        Reader {
            ahead: Arc::clone(self),
            id,
            block,
        }
    }

    /// What a reader of blocks of `block` bytes would be given that came now and wants no more than `most` of them.
    pub(super) fn room(&self, block: u64, most: u32) -> Room {
        let held = self.held.lock();
        held.room(1 + held.readers.len(), block, 0, most)
    }

    /// Lets go of all that is held: it stays in memory only while nobody needs the memory.
    pub(crate) fn give_up(&self) {
        let mut held = self.held.lock();
        let waiters: Vec<_> = held.readers.values_mut().flat_map(std::mem::take).collect();
        held.bytes = 0;
        drop(held);
        drop(waiters);
    }
}

impl Held {
    /// For one of `readers`, of blocks of `block` bytes, that holds `own` blocks.
    fn room(&self, readers: usize, block: u64, own: usize, most: u32) -> Room {
        let readers = (readers as u64).max(1);
        let blocks = |bytes: u64| u32::try_from(bytes / block).unwrap_or(u32::MAX);
        let AheadLimits {
            each,
            all,
            downloads,
        } = self.limits;
        let share = (downloads / readers).saturating_sub(IN_HAND_BLOCKS * block);
        let window = blocks(each.min(all / readers).min(share)).min(most);
        Room {
            window,
            free: window
                .saturating_sub(own as u32)
                .min(blocks(all.saturating_sub(self.bytes))),
        }
    }
}

/// One body that reads ahead. Dropping it lets go of all it holds.
#[derive(Debug)]
pub(super) struct Reader {
    ahead: Arc<Ahead>,
    id: u64,
    /// Bytes of a block.
    block: u64,
}

impl Reader {
    /// What this reader may hold, at most `most`.
    pub(super) fn room(&self, most: u32) -> Room {
        let held = self.ahead.held.lock();
        let own = held.readers.get(&self.id).map_or(0, VecDeque::len);
        held.room(held.readers.len(), self.block, own, most)
    }

    /// Holds a block that is on its way, after all those held already, unless others took the room meanwhile.
    pub(super) fn hold(&self, block: u32, waiter: Waiter) {
        let mut held = self.ahead.held.lock();
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

    /// Takes over what `other`, of the same bucket, holds of the blocks before `end`.
    pub(super) fn adopt(&self, other: &Self, end: u32) {
        let held = &mut *self.ahead.held.lock();
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

    /// The reader comes to `block`: it is handed its hold on that, and what is before it is let go of.
    pub(super) fn take(&self, block: u32) -> Option<Waiter> {
        let mut passed = Vec::new();
        {
            let mut held = self.ahead.held.lock();
            let held = &mut *held;
            if let Some(blocks) = held.readers.get_mut(&self.id) {
                while let Some(first) = blocks.pop_front_if(|(at, _)| *at <= block) {
                    passed.push(first);
                }
                held.bytes -= passed.len() as u64 * self.block;
            }
        }
        // After the lock: a waiter's end takes the pool's.
        let last = passed.pop().filter(|(at, _)| *at == block);
        last.map(|(_, waiter)| waiter)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut held = self.ahead.held.lock();
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
    fn the_windows_of_all_readers_stay_within_the_limit() {
        let pool = BlockPool::new(PoolConfig::new(1 << 20)).unwrap();
        let ahead = Ahead::new(AheadLimits {
            each: 40,
            all: 80,
            downloads: 200,
        });
        let first = ahead.reader(10);
        assert_eq!(first.room(100), Room { window: 4, free: 4 });
        assert_eq!(ahead.room(20, 100), Room { window: 2, free: 2 });
        let mut loads = Vec::new();
        let mut fill = |reader: &Reader, object: u64, blocks: std::ops::Range<u32>| {
            for block in blocks {
                let Claim::Vacant(load) = pool.claim(key(object, block)) else {
                    panic!("nobody loads it");
                };
                reader.hold(block, load.flight().join());
                loads.push(load);
            }
        };
        fill(&first, 1, 0..4);
        assert_eq!(first.room(100), Room { window: 4, free: 0 });
        let others: Vec<_> = (0..3).map(|_| ahead.reader(10)).collect();
        assert_eq!(others[0].room(100), Room { window: 2, free: 2 });
        fill(&others[0], 2, 0..6);
        assert_eq!(
            others[1].room(100),
            Room { window: 2, free: 0 },
            "the limit holds whoever was early"
        );
        assert!(first.take(2).is_some());
        assert!(first.take(2).is_none());
        assert_eq!(first.room(100), Room { window: 2, free: 1 });
        assert_eq!(others[1].room(100), Room { window: 2, free: 2 });
        let crowd: Vec<_> = (0..4).map(|_| ahead.reader(10)).collect();
        assert_eq!(
            others[1].room(100).window,
            0,
            "each still needs a block to read"
        );
        drop(crowd);
        ahead.give_up();
        assert!(loads.iter().all(|load| !load.has_listeners()));
        drop(others);
        assert_eq!(first.room(100), Room { window: 4, free: 4 });
    }

    fn key(object: u64, block: u32) -> BlockKey {
        BlockKey {
            store: 0,
            object,
            block,
        }
    }
}
