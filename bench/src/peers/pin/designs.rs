//! Pinning designs: our blocks, by handle and by key; two plain adds; and a mutex per block.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bywash_mem::{BlockHandle, BlockKey, BlockPool, Pin};
use parking_lot::Mutex;

use super::seed::CasIfPinned;
use super::workload::Cells;
use crate::Failure;
use crate::peers::pool::{filled, key};

/// A way to pin a block for a moment.
pub(super) trait Design: Send + Sync + 'static {
    /// Pins block `at`, reads the address of its bytes, and unpins it.
    fn pair(&self, at: u32, thread: u32);

    /// Pins block `at` for good.
    fn keep(&self, at: u32);
}

/// Ours, by handle: no lookup.
#[derive(Debug)]
pub(super) struct InHand {
    pool: Arc<BlockPool>,
    handles: Vec<BlockHandle>,
}

impl InHand {
    /// Creates blocks of `len` bytes. `fill` gets the index of each key, and its bytes.
    pub(super) fn new(
        keys: impl ExactSizeIterator<Item = BlockKey> + Clone,
        len: usize,
        fill: impl FnMut(u32, &mut [u8]),
    ) -> Result<Self, Failure> {
        let pool = filled(keys.clone(), len, fill)?;
        let handles = keys
            .map(|key| pool.get(key).map(|pin| pin.handle()))
            .collect::<Option<Vec<_>>>()
            .ok_or("a pool with room for twice the blocks has evicted one")?;
        Ok(Self { pool, handles })
    }

    #[inline]
    fn pin(&self, at: u32) -> Option<Pin<'_>> {
        self.pool.try_pin(&self.handles[at as usize])
    }
}

impl Design for InHand {
    #[inline(always)]
    fn pair(&self, at: u32, _: u32) {
        if let Some(pin) = self.pin(at) {
            black_box::<&[u8]>(&pin);
        }
    }

    fn keep(&self, at: u32) {
        std::mem::forget(self.pin(at));
    }
}

impl Cells for InHand {
    #[inline]
    fn cell(&self, at: u32, offset: usize) -> [u8; 8] {
        let pin = self.pin(at);
        cell(pin.as_deref().unwrap_or(&[]), offset)
    }
}

/// Returns the 8 bytes at `offset`; zeros if the block is shorter, which no block of the workload is.
#[inline]
fn cell(bytes: &[u8], offset: usize) -> [u8; 8] {
    let found = bytes.get(offset..).and_then(|rest| rest.first_chunk());
    found.copied().unwrap_or_default()
}

/// Ours, by key.
#[derive(Debug)]
pub(super) struct ByKey(Arc<BlockPool>);

impl ByKey {
    pub(super) fn new(blocks: u32) -> Result<Self, Failure> {
        let keys = (0..blocks).map(|block| key(0, block));
        Ok(Self(filled(keys, 1, |_, _| ())?))
    }
}

impl Design for ByKey {
    #[inline(always)]
    fn pair(&self, at: u32, _: u32) {
        if let Some(pin) = self.0.get(key(0, at)) {
            black_box::<&[u8]>(&pin);
        }
    }

    fn keep(&self, at: u32) {
        std::mem::forget(self.0.get(key(0, at)));
    }
}

/// The minimum of any counted pin: an add and a subtract on an uncontended line, found through entries as long as our
/// handles.
#[derive(Debug)]
pub(super) struct TwoAdds {
    entries: Vec<LineEntry>,
    lines: Vec<Line>,
}

/// Entry as large as a [`BlockHandle`].
#[derive(Debug)]
struct LineEntry {
    line: u32,
    _key: BlockKey,
}

/// A counter alone on its cache line, like a block's header.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line(AtomicU64);

impl TwoAdds {
    pub(super) fn new(blocks: u32) -> Self {
        // One hot block becomes one line per thread, with distance between the lines because of the prefetcher.
        let lines = blocks.max(1 << 8);
        let entry = |line| LineEntry {
            line,
            _key: key(0, line),
        };
        Self {
            entries: (0..lines).map(entry).collect(),
            lines: (0..lines).map(|_| Line::default()).collect(),
        }
    }
}

impl Design for TwoAdds {
    #[inline(always)]
    fn pair(&self, at: u32, thread: u32) {
        let entry = &self.entries[(at + 4 * thread) as usize % self.entries.len()];
        let line = &self.lines[entry.line as usize].0;
        // The orderings of a pin and an unpin; on x86 they cost what any others would.
        line.fetch_add(1, Ordering::Acquire);
        line.fetch_sub(1, Ordering::Release);
    }

    fn keep(&self, _: u32) {}
}

/// A mutex per block, taken twice, as in DuckDB, without its eviction queue.
#[derive(Debug)]
pub(super) struct Locked(Vec<Arc<LockedBlock>>);

#[derive(Debug)]
struct LockedBlock {
    state: Mutex<Readers>,
    bytes: Box<[u8]>,
}

#[derive(Debug)]
struct Readers(u32);

impl Locked {
    pub(super) fn new(blocks: impl IntoIterator<Item = Box<[u8]>>) -> Self {
        let block = |bytes| {
            Arc::new(LockedBlock {
                state: Mutex::new(Readers(0)),
                bytes,
            })
        };
        Self(blocks.into_iter().map(block).collect())
    }

    #[inline]
    fn with<R>(&self, at: u32, read: impl FnOnce(&[u8]) -> R) -> R {
        let block = &self.0[at as usize];
        block.state.lock().0 += 1;
        let result = read(&block.bytes);
        block.state.lock().0 -= 1;
        result
    }
}

impl Design for Locked {
    #[inline(always)]
    fn pair(&self, at: u32, _: u32) {
        self.with(at, |bytes| {
            black_box(bytes);
        });
    }

    fn keep(&self, at: u32) {
        self.0[at as usize].state.lock().0 += 1;
    }
}

impl Cells for Locked {
    #[inline]
    fn cell(&self, at: u32, offset: usize) -> [u8; 8] {
        self.with(at, |bytes| cell(bytes, offset))
    }
}

impl Cells for CasIfPinned {
    #[inline]
    fn cell(&self, at: u32, offset: usize) -> [u8; 8] {
        self.with(at, |bytes| cell(bytes, offset))
    }
}
