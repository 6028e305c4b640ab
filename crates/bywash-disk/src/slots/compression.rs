//! Compression of blocks on their way to a slot, as far as it pays.
//!
//! The cost of a way to write is its time for a byte times the part of the byte that it leaves on the disk: half the bytes are worth
//! twice the time. The cheapest way so far is taken, and now and then another, because data and disk change.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use zstd::bulk::{Compressor, Decompressor};

/// Ways to write: plain, and the levels of zstd.
const LEVELS: [Option<i32>; 4] = [None, Some(-5), Some(-1), Some(1)];
/// One block in this number takes another way than the cheapest. Blocks that do not compress cost
/// little more than a copy.
const EXPLORE: u64 = 16;
/// Weight of one block in a mean: about the last sixteen blocks count.
const WEIGHT: f64 = 1.0 / 16.0;
/// Memory of the contexts of zstd at these levels, for one thread.
const CONTEXT_MEMORY: u64 = 2 << 20;

/// Bytes that a compressed block may have: with more than seven eighths of it, compressing saves too little.
fn room(bytes: usize) -> usize {
    bytes / 8 * 7
}

/// Memory of one thread that compresses or decompresses.
struct Workspace {
    compressor: Compressor<'static>,
    decompressor: Decompressor<'static>,
    buffer: Vec<u8>,
}

/// A compressed block in a borrowed workspace, or a buffer to read one into. Dropping it returns the workspace.
pub(super) struct Packed<'a> {
    compression: &'a Compression,
    workspace: Option<Workspace>,
    len: usize,
}

impl Packed<'_> {
    pub(super) fn bytes(&self) -> &[u8] {
        let workspace = self.workspace.as_ref();
        workspace.map_or(&[], |workspace| &workspace.buffer[..self.len])
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        let workspace = self.workspace.as_mut();
        workspace.map_or(&mut [], |workspace| &mut workspace.buffer[..self.len])
    }

    /// Decompresses into `block`. Returns whether exactly that came out.
    pub(super) fn unpack(&mut self, block: &mut [u8]) -> bool {
        let Some(workspace) = self.workspace.as_mut() else {
            return false;
        };
        let packed = &workspace.buffer[..self.len];
        let unpacked = workspace.decompressor.decompress_to_buffer(packed, block);
        unpacked.is_ok_and(|len| len == block.len())
    }
}

impl Drop for Packed<'_> {
    fn drop(&mut self) {
        if let Some(workspace) = self.workspace.take() {
            self.compression.give_back(workspace);
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Cost {
    /// Nanoseconds a byte, times the part of it on the disk. 0 before the first block.
    mean: f64,
}

impl Cost {
    fn add(&mut self, sample: f64) {
        self.mean = if self.mean == 0.0 {
            sample
        } else {
            self.mean + (sample - self.mean) * WEIGHT
        };
    }
}

#[derive(Debug, Default)]
struct Workspaces {
    idle: Vec<Workspace>,
    made: usize,
}

impl std::fmt::Debug for Workspace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Workspace").finish_non_exhaustive()
    }
}

/// How one block is written: an index of [`LEVELS`], and when it began.
#[derive(Debug)]
pub(super) struct Attempt {
    way: usize,
    started: Instant,
}

/// Chooses and compresses.
#[derive(Debug)]
pub(super) struct Compression {
    costs: Mutex<[Cost; LEVELS.len()]>,
    workspaces: Mutex<Workspaces>,
    returned: Condvar,
    /// Threads at once, and the largest block that is compressed.
    threads: usize,
    block_bytes: usize,
    /// Blocks that it was chosen for.
    pub(super) blocks: AtomicU64,
}

impl Compression {
    /// For blocks of at most `block_bytes`, on `threads` threads at once. Without threads nothing is compressed.
    pub(super) fn new(threads: usize, block_bytes: usize) -> Self {
        Self {
            costs: Mutex::default(),
            workspaces: Mutex::default(),
            returned: Condvar::new(),
            threads,
            block_bytes,
            blocks: AtomicU64::new(0),
        }
    }

    /// Memory that `threads` threads take.
    pub(super) fn memory(threads: usize, block_bytes: usize) -> u64 {
        threads as u64 * (CONTEXT_MEMORY + room(block_bytes) as u64)
    }

    /// Compresses a block, or not, as it pays. [`Self::written`] follows.
    pub(super) fn pack(&self, block: &[u8]) -> (Attempt, Option<Packed<'_>>) {
        let mut attempt = Attempt {
            way: 0,
            started: Instant::now(),
        };
        if block.len() > self.block_bytes || room(block.len()) == 0 {
            return (attempt, None);
        }
        attempt.way = self.choose();
        let Some(level) = LEVELS[attempt.way] else {
            return (attempt, None);
        };
        // Each workspace is in use: another thread compresses, and this one is not to wait for it.
        let Some(mut workspace) = self.workspace() else {
            attempt.way = 0;
            return (attempt, None);
        };
        let room = room(block.len());
        let set = workspace.compressor.set_compression_level(level);
        let packed = set.and_then(|()| {
            let buffer = &mut workspace.buffer[..room];
            workspace.compressor.compress_to_buffer(block, buffer)
        });
        match packed {
            Ok(len) => {
                let packed = Packed {
                    compression: self,
                    workspace: Some(workspace),
                    len,
                };
                (attempt, Some(packed))
            }
            // It does not fit: the time counts, and saved nothing.
            Err(_) => {
                self.give_back(workspace);
                (attempt, None)
            }
        }
    }

    /// Counts a block of `len` bytes that was written as `stored` bytes.
    pub(super) fn written(&self, attempt: &Attempt, len: usize, stored: usize) {
        self.count(attempt.way, attempt.started.elapsed(), len, stored);
    }

    #[allow(clippy::cast_precision_loss, reason = "a mean of times")]
    fn count(&self, way: usize, elapsed: Duration, len: usize, stored: usize) {
        let len = len.max(1) as f64;
        let cost = elapsed.as_nanos() as f64 / len * (stored as f64 / len);
        self.costs.lock()[way].add(cost);
    }

    /// Cheapest way, or another one to learn about it.
    fn choose(&self) -> usize {
        if self.threads == 0 {
            return 0;
        }
        // Relaxed: a count that orders nothing.
        let block = self.blocks.fetch_add(1, Relaxed);
        let costs = *self.costs.lock();
        if let Some(untried) = costs.iter().position(|cost| cost.mean == 0.0) {
            return untried;
        }
        if block.is_multiple_of(EXPLORE) {
            return (block / EXPLORE) as usize % LEVELS.len();
        }
        let cheapest = (0..LEVELS.len()).min_by(|a, b| costs[*a].mean.total_cmp(&costs[*b].mean));
        cheapest.unwrap_or(0)
    }

    /// Returns a workspace for a compressed block of `len` bytes, when there is one.
    pub(super) fn packed(&self, len: usize) -> Packed<'_> {
        let mut workspaces = self.workspaces.lock();
        loop {
            if let Some(workspace) = self.take(&mut workspaces) {
                return Packed {
                    compression: self,
                    workspace: Some(workspace),
                    len,
                };
            }
            self.returned.wait(&mut workspaces);
        }
    }

    fn workspace(&self) -> Option<Workspace> {
        self.take(&mut self.workspaces.lock())
    }

    fn take(&self, workspaces: &mut Workspaces) -> Option<Workspace> {
        if let Some(workspace) = workspaces.idle.pop() {
            return Some(workspace);
        }
        if workspaces.made == self.threads {
            return None;
        }
        let workspace = Workspace {
            compressor: Compressor::default(),
            decompressor: Decompressor::default(),
            buffer: vec![0; room(self.block_bytes)],
        };
        workspaces.made += 1;
        Some(workspace)
    }

    fn give_back(&self, workspace: Workspace) {
        self.workspaces.lock().idle.push(workspace);
        self.returned.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(compression: &Compression) -> usize {
        // Another way is tried now and then; most of sixteen blocks go the cheapest.
        let mut counts = [0; LEVELS.len()];
        (0..EXPLORE).for_each(|_| counts[compression.choose()] += 1);
        (0..LEVELS.len())
            .max_by_key(|way| counts[*way])
            .unwrap_or(0)
    }

    fn costs(
        compression: &Compression,
        micros: [u64; LEVELS.len()],
        stored: [usize; LEVELS.len()],
    ) {
        for _ in 0..200 {
            for way in 0..LEVELS.len() {
                compression.count(way, Duration::from_micros(micros[way]), 1000, stored[way]);
            }
        }
    }

    #[test]
    fn cheapest_way_is_taken_and_others_are_tried_again() {
        let compression = Compression::new(1, 1 << 20);
        assert_eq!(
            (0..8).map(|_| compression.choose()).max(),
            Some(0),
            "first the untried"
        );
        // A fast disk, and blocks that do not compress.
        costs(&compression, [100, 180, 250, 400], [1000; 4]);
        assert_eq!(chosen(&compression), 0);
        // Half the bytes for less than twice the time.
        costs(&compression, [100, 180, 250, 400], [1000, 500, 450, 400]);
        assert_eq!(chosen(&compression), 1);
        // A slow disk: the fewest bytes.
        costs(
            &compression,
            [5000, 2600, 2300, 2200],
            [1000, 500, 450, 400],
        );
        assert_eq!(chosen(&compression), 3);
        let mut tried = [false; LEVELS.len()];
        (0..EXPLORE * 8).for_each(|_| tried[compression.choose()] = true);
        assert_eq!(tried, [true; LEVELS.len()]);
    }

    #[test]
    fn block_comes_back_and_one_that_does_not_compress_stays_plain() {
        let compression = Compression::new(1, 1 << 20);
        costs(&compression, [100, 10, 200, 200], [1000; 4]);
        let block = b"0123456789abcdef".repeat(1000);
        // The first takes another way than the cheapest.
        assert!(compression.pack(&block).1.is_none());
        let mut again = compression.pack(&block).1.expect("it compresses");
        assert!(again.bytes().len() < block.len() / 8);
        let mut found = vec![0; block.len()];
        assert!(again.unpack(&mut found) && found == block);
        assert!(
            !again.unpack(&mut vec![0; block.len() + 1]),
            "a length is exact"
        );
        drop(again);
        let noise: Vec<u8> = (0..50_000u32)
            .flat_map(|number| crate::format::crc32c(&number.to_le_bytes()).to_le_bytes())
            .collect();
        assert!((0..40).all(|_| compression.pack(&noise).1.is_none()));
        assert!(compression.pack(&[0; 7]).1.is_none());
        assert!(compression.pack(&vec![0; 2 << 20]).1.is_none(), "too large");
    }
}
