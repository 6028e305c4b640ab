//! Scratch blocks compared with a model: a map of the bytes that each must have.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use bywash_disk::SlotError;
use bywash_mem::Share;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::*;
use crate::{Engine, EngineError};

const BLOCK: usize = 64 << 10;
const MEMORY: u64 = 1 << 20;

fn engine() -> Engine {
    Engine::builder()
        .memory(MEMORY)
        .block_size(BLOCK)
        .admission_deadline(Duration::from_secs(20))
        .build()
        .unwrap()
}

fn scratch(engine: &Engine, folder: &Path, size: u64) -> Scratch {
    engine.scratch(&ScratchOptions::new(folder, size)).unwrap()
}

/// Bytes of a block: with odd seeds they compress.
fn fill(bytes: &mut [u8], seed: u64) {
    if seed % 2 == 1 {
        let line = format!("row {seed} of a table that repeats itself;");
        bytes
            .iter_mut()
            .zip(line.bytes().cycle())
            .for_each(|(to, from)| *to = from);
    } else {
        let mut state = seed | 1;
        bytes.chunks_mut(8).for_each(|chunk| {
            // Xorshift (Marsaglia 2003).
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
        });
    }
}

fn content(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill(&mut bytes, seed);
    bytes
}

fn block(scratch: &Scratch, len: usize, seed: u64) -> Result<ScratchBlock, ScratchError> {
    let mut buffer = scratch.allocate_blocking(len)?;
    fill(&mut buffer, seed);
    Ok(buffer.unpin())
}

/// Bytes that each file of a folder takes on the disk.
fn file_bytes(folder: &Path) -> Vec<(PathBuf, u64)> {
    let files = std::fs::read_dir(folder).unwrap();
    let sizes = files.filter_map(|file| {
        let path = file.unwrap().path();
        // It may be removed during the walk.
        let data = std::fs::metadata(&path).ok()?;
        Some((path, data.blocks() * 512))
    });
    sizes.collect()
}

/// Bytes that a folder takes on the disk. Files are looked at one after the other, until two rounds find the same.
fn disk_bytes(folder: &Path) -> u64 {
    let mut last = file_bytes(folder);
    loop {
        let again = file_bytes(folder);
        if again == last {
            return again.iter().map(|(_, bytes)| bytes).sum();
        }
        last = again;
    }
}

fn files(folder: &Path) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

#[test]
fn evicted_blocks_are_found_again_and_everything_is_freed_with_them() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine();
    let before = engine.budget().held(Share::Download);
    let scratch = scratch(&engine, folder.path(), 64 << 20);
    let blocks: Vec<_> = (0..64)
        .map(|seed| block(&scratch, BLOCK, seed).unwrap())
        .collect();
    assert!(
        scratch.stats().written_blocks >= 52,
        "most do not fit into memory"
    );
    let kind = engine.stats().memory.kinds["scratch"];
    assert_eq!(kind.bytes, engine.stats().pool.resident_bytes);
    for _ in 0..2 {
        for (block, seed) in blocks.iter().zip(0..) {
            assert!(
                block.pin_blocking().unwrap()[..] == content(BLOCK, seed),
                "{seed}"
            );
        }
    }
    let stats = scratch.stats();
    assert!(
        stats.read_blocks >= 100 && stats.written_blocks <= 64,
        "unchanged blocks are written once: {stats:?}"
    );
    assert!(stats.written_bytes <= stats.written_block_bytes);
    let taken = disk_bytes(folder.path());
    assert!(taken <= stats.disk_bytes, "{taken}: {stats:?}");
    drop(blocks);
    let stats = scratch.stats();
    assert_eq!(
        (stats.blocks, stats.copies, stats.slots, stats.disk_bytes),
        (0, 0, 0, 0)
    );
    assert_eq!(engine.stats().pool.resident_bytes, 0);
    assert_eq!(files(folder.path()), 1, "the lock");
    drop(scratch);
    assert_eq!(engine.budget().held(Share::Download), before);
}

#[test]
fn block_is_changed_in_place_after_an_eviction() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine();
    let scratch = scratch(&engine, folder.path(), 64 << 20);
    let mut blocks: Vec<_> = (0..32)
        .map(|seed| block(&scratch, BLOCK - 100, seed).unwrap())
        .collect();
    for (block, seed) in std::mem::take(&mut blocks).into_iter().zip(0..) {
        let mut buffer = block.pin_mut_blocking().unwrap();
        assert!(buffer[..] == content(BLOCK - 100, seed));
        fill(&mut buffer, 100 + seed);
        blocks.push(buffer.unpin());
    }
    for (block, seed) in blocks.iter().zip(100..) {
        assert_eq!((block.len(), block.is_empty()), (BLOCK - 100, false));
        assert!(block.pin_blocking().unwrap()[..] == content(BLOCK - 100, seed));
    }
}

#[test]
fn resized_block_keeps_the_bytes_that_fit_also_after_an_eviction() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine();
    let scratch = scratch(&engine, folder.path(), 64 << 20);
    let mut blocks: Vec<_> = (0..32)
        .map(|seed| block(&scratch, BLOCK / 2 + 1, seed).unwrap())
        .collect();
    for (block, seed) in blocks.iter_mut().zip(0..) {
        let cut = 5 * (seed as usize + 1);
        block.resize_blocking(BLOCK).unwrap();
        block.resize_blocking(cut).unwrap();
        block.resize_blocking(BLOCK).unwrap();
        assert_eq!(block.len(), BLOCK);
    }
    assert!(scratch.stats().read_blocks > 0, "some had been evicted");
    for (block, seed) in blocks.iter().zip(0..) {
        let cut = 5 * (seed as usize + 1);
        let pin = block.pin_blocking().unwrap();
        assert!(pin[..cut] == content(cut, seed) && pin[cut..].iter().all(|byte| *byte == 0));
    }
    let error = blocks[0].resize_blocking(8 << 20).unwrap_err();
    assert!(matches!(error, ScratchError::TooLarge { .. }), "{error}");
    assert_eq!(blocks[0].len(), BLOCK, "the block is as it was");
}

#[tokio::test]
async fn resize_waits_for_memory_until_the_deadline_and_returns_the_block() {
    let folder = tempfile::tempdir().unwrap();
    let builder = Engine::builder().memory(MEMORY).block_size(BLOCK);
    let deadline = Duration::from_millis(50);
    let engine = builder.admission_deadline(deadline).build().unwrap();
    let scratch = scratch(&engine, folder.path(), 64 << 20);
    let small = block(&scratch, 4096, 7).unwrap();
    let mut pinned = Vec::new();
    let error = loop {
        match scratch.allocate(BLOCK).await {
            Ok(buffer) => pinned.push(buffer),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, ScratchError::NoMemory { .. }), "{error}");
    let failed = small.resize(BLOCK).await.unwrap_err();
    assert!(matches!(failed.error, ScratchError::NoMemory { .. }));
    let small = failed.block.unwrap();
    drop(pinned);
    let grown = small.resize(BLOCK).await.unwrap();
    assert!(grown.pin().await.unwrap()[..4096] == content(4096, 7));
}

#[test]
fn full_files_are_an_error_that_names_the_limit_and_nothing_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine();
    let limit = 1 << 20;
    let scratch = scratch(&engine, folder.path(), limit);
    let mut blocks = Vec::new();
    let error = loop {
        match block(&scratch, BLOCK, 2 * blocks.len() as u64) {
            Ok(block) => blocks.push(block),
            Err(error) => break error,
        }
    };
    assert!(
        blocks.len() >= 24,
        "15 blocks fit on the disk, and 11 into memory"
    );
    let stats = scratch.stats();
    assert!(
        matches!(
            &error,
            ScratchError::NotEvictable { source: SlotError::Full { used, limit: 1_048_576, .. }, .. } if *used == stats.disk_bytes
        ),
        "{error}"
    );
    let text = error.to_string();
    for part in [
        folder.path().to_str().unwrap(),
        "1048576",
        "raise the limit",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert!(disk_bytes(folder.path()) <= limit);
    // A request of the engine waits until a block is freed, and then gets its memory by an eviction.
    let waiting = engine.clone();
    let waiter = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let frames = waiting.shared().pool.frames(Share::Download, BLOCK, 1, 1);
        runtime.block_on(frames)
    });
    while engine.budget().waiting() == 0 {
        std::thread::yield_now();
    }
    let on_disk = blocks.iter().position(|block| block.try_pin().is_none());
    drop(blocks.swap_remove(on_disk.unwrap()));
    drop(waiter.join().unwrap().unwrap());
    let mut found: Vec<_> = blocks
        .iter()
        .map(|block| block.pin_blocking().unwrap()[..8].to_vec())
        .collect();
    found.sort_unstable();
    let mut expected: Vec<_> = (0..=blocks.len() as u64)
        .map(|number| content(BLOCK, 2 * number)[..8].to_vec())
        .filter(|bytes| found.binary_search(bytes).is_ok())
        .collect();
    expected.sort_unstable();
    assert_eq!(found, expected);
    assert_eq!(found.len(), blocks.len());
}

#[test]
fn pinned_buffers_that_fill_the_memory_are_an_error_at_the_deadline() {
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::builder()
        .memory(MEMORY)
        .block_size(BLOCK)
        .admission_deadline(Duration::from_millis(50))
        .build()
        .unwrap();
    let scratch = scratch(&engine, folder.path(), 64 << 20);
    let mut buffers = Vec::new();
    let error = loop {
        match scratch.allocate_blocking(BLOCK) {
            Ok(buffer) => buffers.push(buffer),
            Err(error) => break error,
        }
    };
    assert!(
        matches!(error, ScratchError::NoMemory { limit: MEMORY, .. }),
        "{error}"
    );
    assert!(error.to_string().contains("unpin blocks"));
    drop(buffers.pop());
    buffers.push(scratch.allocate_blocking(BLOCK).unwrap());
    let too_large = scratch.allocate_blocking((4 << 20) + 1).unwrap_err();
    assert!(
        matches!(too_large, ScratchError::TooLarge { max: 4_194_304, .. }),
        "{too_large}"
    );
}

#[test]
fn folder_in_use_or_with_foreign_files_is_refused_and_leftovers_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("slots-7.tmp"), [1; 100]).unwrap();
    let engine = engine();
    let first = scratch(&engine, folder.path(), 1 << 20);
    assert_eq!(files(folder.path()), 1, "the lock");
    let refused = |part: &str| {
        let error = engine
            .scratch(&ScratchOptions::new(folder.path(), 1 << 20))
            .unwrap_err();
        assert!(matches!(
            error,
            EngineError::InvalidSetting {
                setting: "scratch",
                ..
            }
        ));
        assert!(error.to_string().contains(part), "{error}");
    };
    refused("used by another");
    drop(first);
    std::fs::write(folder.path().join("notes.txt"), "mine").unwrap();
    refused("notes.txt");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn asynchronous_calls_find_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine();
    let scratch = scratch(&engine, folder.path(), 64 << 20);
    let mut blocks = Vec::new();
    for seed in 0..32 {
        let mut buffer = scratch.allocate(BLOCK).await.unwrap();
        fill(&mut buffer, seed);
        blocks.push(buffer.unpin());
    }
    for (block, seed) in blocks.iter().zip(0..) {
        assert!(block.pin().await.unwrap()[..] == content(BLOCK, seed));
    }
    let mut buffer = blocks.swap_remove(0).pin_mut().await.unwrap();
    fill(&mut buffer, 99);
    let bytes = bytes::Bytes::from_owner(buffer);
    assert!(
        bytes[..] == content(BLOCK, 99),
        "a buffer is lent without a copy"
    );
}

/// A block of the model: the content of `seed` in its first `kept` bytes, then zeros.
struct Modelled {
    block: ScratchBlock,
    seed: u64,
    kept: usize,
}

impl Modelled {
    fn new(block: ScratchBlock, seed: u64) -> Self {
        let kept = block.len();
        Self { block, seed, kept }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = content(self.kept, self.seed);
        bytes.resize(self.block.len(), 0);
        bytes
    }
}

/// One thread of the model: random calls on its own blocks.
fn run(scratch: &Scratch, seed: u64, calls: u32) -> u32 {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut model: HashMap<u64, Modelled> = HashMap::new();
    let (mut next, mut refused) = (0, 0);
    for _ in 0..calls {
        let keys: Vec<u64> = model.keys().copied().collect();
        let chosen = (!keys.is_empty()).then(|| keys[rng.random_range(0..keys.len())]);
        match (rng.random_range(0..9), chosen) {
            (0..3, _) | (_, None) => {
                let len = rng.random_range(1..=BLOCK);
                let content = rng.random();
                match block(scratch, len, content) {
                    Ok(block) => {
                        model.insert(next, Modelled::new(block, content));
                        next += 1;
                    }
                    Err(ScratchError::NotEvictable { .. }) => refused += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            (3..6, Some(key)) => {
                let modelled = &model[&key];
                match modelled.block.pin_blocking() {
                    Ok(pin) => assert!(pin[..] == modelled.bytes()),
                    Err(ScratchError::NotEvictable { .. }) => refused += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            (6, Some(key)) => {
                let mut modelled = model.remove(&key).unwrap();
                let before = modelled.bytes();
                match modelled.block.pin_mut_blocking() {
                    Ok(mut buffer) => {
                        assert!(buffer[..] == before);
                        let content = rng.random();
                        fill(&mut buffer, content);
                        modelled = Modelled::new(buffer.unpin(), content);
                    }
                    Err(failed) => {
                        assert!(matches!(failed.error, ScratchError::NotEvictable { .. }));
                        modelled.block = failed.block.unwrap();
                        refused += 1;
                    }
                }
                model.insert(key, modelled);
            }
            (7, Some(key)) => {
                let modelled = model.get_mut(&key).unwrap();
                let len = rng.random_range(1..=BLOCK);
                match modelled.block.resize_blocking(len) {
                    Ok(()) => modelled.kept = modelled.kept.min(len),
                    Err(ScratchError::NotEvictable { .. }) => refused += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            (_, Some(key)) => drop(model.remove(&key)),
        }
        if refused > 0 && rng.random_ratio(1, 4) {
            model.retain(|_, _| rng.random());
        }
    }
    for modelled in model.values() {
        if let Ok(pin) = modelled.block.pin_blocking() {
            assert!(pin[..] == modelled.bytes());
        }
    }
    refused
}

#[test]
fn random_calls_of_threads_find_what_a_model_has_within_both_limits() {
    for seed in 0..6 {
        let folder = tempfile::tempdir().unwrap();
        let engine = engine();
        let limit = if seed % 2 == 0 { 64 << 20 } else { 2 << 20 };
        let scratch = scratch(&engine, folder.path(), limit);
        let refused = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3)
                .map(|thread| {
                    let scratch = &scratch;
                    scope.spawn(move || run(scratch, seed * 8 + thread, 300))
                })
                .collect();
            while !threads
                .iter()
                .all(std::thread::ScopedJoinHandle::is_finished)
            {
                let taken = disk_bytes(folder.path());
                assert!(taken <= limit, "{taken} of {limit}: {:?}", scratch.stats());
                assert!(engine.budget().used() <= engine.budget().limit());
                std::thread::yield_now();
            }
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .sum::<u32>()
        });
        assert_eq!(
            refused > 0,
            seed % 2 == 1,
            "only the small limit is reached"
        );
        let stats = scratch.stats();
        // How many are refused depends on how the threads take turns. Before the first refusal, slots of at most 64 KiB fill 2 MiB,
        // less a slot that has no room, two of other threads and the overhead of the file system for each file.
        let least = if refused > 0 { 24 } else { 100 };
        assert!(stats.written_blocks > least, "{stats:?}");
        assert_eq!(
            (stats.blocks, stats.copies, stats.slots, stats.disk_bytes),
            (0, 0, 0, 0)
        );
        assert_eq!(engine.stats().pool.resident_bytes, 0);
    }
}

#[test]
fn disk_that_fails_keeps_blocks_in_memory_and_is_used_again_when_it_works() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("scratch");
    let engine = engine();
    let scratch = scratch(&engine, &path, 64 << 20);
    std::fs::remove_dir_all(&path).unwrap();
    let mut blocks = Vec::new();
    let error = loop {
        match block(&scratch, BLOCK, blocks.len() as u64) {
            Ok(block) => blocks.push(block),
            Err(error) => break error,
        }
    };
    assert!(
        matches!(
            &error,
            ScratchError::NotEvictable {
                source: SlotError::File {
                    operation: "write",
                    ..
                },
                ..
            }
        ),
        "{error}"
    );
    assert!(error.to_string().contains("check the disk"));
    std::fs::create_dir(&path).unwrap();
    // Writes are tried again after a pause.
    while blocks.len() < 32 {
        if let Ok(block) = block(&scratch, BLOCK, blocks.len() as u64) {
            blocks.push(block);
        }
    }
    for (block, seed) in blocks.iter().zip(0..) {
        assert!(block.pin_blocking().unwrap()[..] == content(BLOCK, seed));
    }
}

#[test]
fn block_with_other_bytes_than_were_written_is_an_error_until_they_are_back() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine();
    let scratch = scratch(&engine, folder.path(), 64 << 20);
    let blocks: Vec<_> = (0..32)
        .map(|seed| block(&scratch, BLOCK, seed).unwrap())
        .collect();
    let flip = || {
        for (file, _) in file_bytes(folder.path()) {
            let mut bytes = std::fs::read(&file).unwrap();
            bytes.iter_mut().for_each(|byte| *byte = !*byte);
            std::fs::write(&file, bytes).unwrap();
        }
    };
    let evicted: Vec<_> = (0..32)
        .filter(|at| blocks[*at].try_pin().is_none())
        .collect();
    assert!(evicted.len() >= 16);
    flip();
    for at in &evicted {
        let error = blocks[*at].pin_blocking().unwrap_err();
        assert!(
            matches!(error, ScratchError::Unreadable(SlotError::Damaged { .. })),
            "{error}"
        );
    }
    flip();
    for at in evicted {
        assert!(blocks[at].pin_blocking().unwrap()[..] == content(BLOCK, at as u64));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_are_given_up_and_blocks_dropped_meanwhile_leave_nothing() {
    use std::future::Future;

    let folder = tempfile::tempdir().unwrap();
    let engine = engine();
    let scratch = scratch(&engine, folder.path(), 64 << 20);
    for round in 0..8 {
        let mut blocks = Vec::new();
        for seed in 0..32 {
            blocks.push(block(&scratch, BLOCK, seed).unwrap());
        }
        for (at, block) in blocks.into_iter().enumerate() {
            // Polled once, the call runs on a blocking thread. It is given up, and its block is dropped.
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            if (at + round) % 2 == 0 {
                let mut pin = Box::pin(block.pin());
                let _ = pin.as_mut().poll(&mut context);
            } else {
                let mut pin = Box::pin(block.pin_mut());
                let _ = pin.as_mut().poll(&mut context);
            }
        }
    }
    let held = || {
        (
            scratch.stats().blocks,
            scratch.stats().slots,
            engine.stats().pool.resident_bytes,
        )
    };
    while held() != (0, 0, 0) {
        tokio::task::yield_now().await;
    }
    assert_eq!(scratch.stats().disk_bytes, 0);
}
