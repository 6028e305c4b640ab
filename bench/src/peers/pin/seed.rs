//! The ancestor's design, written for the benchmark from its description: a reader that finds the block pinned adds its pin
//! by compare-and-swap; otherwise it takes the block's mutex. The last unpin takes the mutex and queues the block for
//! eviction, which makes its earlier node dead. Every 4096th node purges dead ones.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crossbeam_queue::SegQueue;
use parking_lot::Mutex;

use super::designs::Design;

/// Nodes queued between two purges.
const PURGE_EVERY: u64 = 4096;
/// Nodes that a purge scans at a time.
const PURGE_BATCH: usize = 2 * PURGE_EVERY as usize;
/// Min length of a queue to purge.
const PURGE_FROM: usize = 4 * PURGE_BATCH;
/// A purge continues while dead nodes are at least this many times the live ones.
const DEAD_TO_LIVE: usize = 3;

/// Blocks pinned by compare-and-swap while pinned.
#[derive(Debug)]
pub(super) struct CasIfPinned {
    blocks: Vec<Arc<CasBlock>>,
    /// `None` leaves out the cost of queueing.
    queue: Option<EvictionQueue>,
}

#[derive(Debug)]
struct CasBlock {
    loaded: AtomicBool,
    readers: AtomicI32,
    /// Number of this block's current node in the queue.
    sequence: AtomicU64,
    slow: Mutex<()>,
    bytes: Box<[u8]>,
}

/// A node of the queue, dead once its block has a newer one.
#[derive(Debug)]
struct Node {
    block: Weak<CasBlock>,
    sequence: u64,
}

impl Node {
    fn is_dead(&self) -> bool {
        self.block
            .upgrade()
            .is_none_or(|block| block.sequence.load(Ordering::Relaxed) != self.sequence)
    }
}

#[derive(Debug, Default)]
struct EvictionQueue {
    nodes: SegQueue<Node>,
    put: AtomicU64,
    dead: AtomicU64,
    purging: Mutex<()>,
}

impl EvictionQueue {
    /// Returns whether a purge is due.
    fn put(&self, node: Node) -> bool {
        if node.sequence > 1 {
            // The block's node before this one.
            self.dead.fetch_add(1, Ordering::Relaxed);
        }
        self.nodes.push(node);
        (self.put.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(PURGE_EVERY)
    }

    fn purge(&self) {
        let Some(_guard) = self.purging.try_lock() else {
            return;
        };
        let mut rounds = self.nodes.len() / PURGE_BATCH;
        while rounds > 0 && self.nodes.len() >= PURGE_FROM {
            rounds -= 1;
            let batch: Vec<Node> = (0..PURGE_BATCH).map_while(|_| self.nodes.pop()).collect();
            let found = batch.len();
            let live: Vec<Node> = batch.into_iter().filter(|node| !node.is_dead()).collect();
            self.dead
                .fetch_sub((found - live.len()) as u64, Ordering::Relaxed);
            live.into_iter().for_each(|node| self.nodes.push(node));
            let dead = self.dead.load(Ordering::Relaxed) as usize;
            let live = self.nodes.len().saturating_sub(dead);
            if live * DEAD_TO_LIVE > dead {
                break;
            }
        }
    }
}

impl CasIfPinned {
    pub(super) fn new(blocks: impl IntoIterator<Item = Box<[u8]>>, queued: bool) -> Self {
        let block = |bytes| {
            Arc::new(CasBlock {
                loaded: AtomicBool::new(true),
                readers: AtomicI32::new(0),
                sequence: AtomicU64::new(0),
                slow: Mutex::new(()),
                bytes,
            })
        };
        Self {
            blocks: blocks.into_iter().map(block).collect(),
            queue: queued.then(EvictionQueue::default),
        }
    }

    /// Reads the bytes of block `at` while it is pinned.
    #[inline]
    pub(super) fn with<R>(&self, at: u32, read: impl FnOnce(&[u8]) -> R) -> R {
        let block = &self.blocks[at as usize];
        self.pin(block);
        let result = read(&block.bytes);
        self.unpin(block);
        result
    }

    #[inline]
    fn pin(&self, block: &CasBlock) {
        if block.loaded.load(Ordering::Acquire) {
            let mut readers = block.readers.load(Ordering::Relaxed);
            while readers > 0 {
                // Acquire: sees what the loader wrote before it added its pin.
                match block.readers.compare_exchange_weak(
                    readers,
                    readers + 1,
                    Ordering::Acquire,
                    Ordering::Relaxed,
                ) {
                    Ok(_) => return,
                    Err(now) => readers = now,
                }
            }
        }
        let _guard = block.slow.lock();
        // Every block of the benchmark stays loaded, so a load is never needed.
        block.readers.fetch_add(1, Ordering::Acquire);
    }

    #[inline]
    fn unpin(&self, block: &Arc<CasBlock>) {
        // Release: this reader's reads happen before an evictor's writes.
        if block.readers.fetch_sub(1, Ordering::Release) > 1 {
            return;
        }
        let guard = block.slow.lock();
        let mut purge = false;
        if let Some(queue) = &self.queue
            && block.readers.load(Ordering::Acquire) == 0
        {
            let sequence = block.sequence.fetch_add(1, Ordering::Relaxed) + 1;
            purge = queue.put(Node {
                block: Arc::downgrade(block),
                sequence,
            });
        }
        drop(guard);
        if let Some(queue) = self.queue.as_ref().filter(|_| purge) {
            queue.purge();
        }
    }
}

impl Design for CasIfPinned {
    #[inline(always)]
    fn pair(&self, at: u32, _: u32) {
        self.with(at, |bytes| {
            std::hint::black_box(bytes);
        });
    }

    fn keep(&self, at: u32) {
        self.pin(&self.blocks[at as usize]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purges_keep_the_queue_short_and_its_counts_exact() {
        let blocks = 100;
        let design = CasIfPinned::new((0..blocks).map(|_| Box::from([0_u8])), true);
        for at in 0..200_000 {
            design.pair(at % blocks, 0);
        }
        let queue = design.queue.as_ref().unwrap();
        assert!(queue.nodes.len() <= PURGE_FROM + PURGE_EVERY as usize);
        let live = queue.nodes.len() as u64 - queue.dead.load(Ordering::Relaxed);
        assert_eq!(live, u64::from(blocks), "one current node a block");
        assert!(
            design
                .blocks
                .iter()
                .all(|block| block.readers.load(Ordering::Relaxed) == 0)
        );
    }
}
