//! `block-memory`: memory of a resident block besides its bytes, including all tables, as resident memory of the process.

use std::process::Command;

use bywash_mem::BlockKey;
use foldhash::fast::RandomState;
use foyer::S3FifoConfig;
use quick_cache::UnitWeighter;
use quick_cache::sync::DefaultLifecycle;

use super::pool::filled;
use super::{Args, Report, Row};
use crate::Failure;

const BLOCKS: [u32; 3] = [10_000, 1_000_000, 4_000_000];
/// Goal of the design: max bytes of memory of a resident block.
const MOST: f64 = 128.0;
/// Blocks of an object, so that keys look like those of real objects.
const OBJECT: u32 = 1024;

const OURS: &str = "Bywash";
const PEERS: [&str; 3] = ["moka", "quick_cache", "foyer"];

/// Fills one cache and prints the memory of its blocks (started by `peers block-memory`).
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ChildArgs {
    cache: String,
    blocks: u32,
}

pub(super) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    report.note(
        "Growth of the resident memory (no file's) while the blocks are made, by their number, each measured in a process of its own. Our blocks \
         have no bytes, so that their frames' pages are never touched; the caches keep a `u64` in place. Same keys, same hasher; \
         caches have room for an eighth more than is put in, and the figure is by what stayed in.",
    );
    let counts = if args.quick { &BLOCKS[..2] } else { &BLOCKS };
    for &blocks in counts {
        let case = format!("{blocks} blocks");
        if !args.begins(&case) {
            continue;
        }
        let ours = in_a_process(OURS, blocks)?;
        report
            .rows
            .push(Row::at_most(&case, "bytes/block", ours, MOST));
        for peer in PEERS {
            let theirs = in_a_process(peer, blocks)?;
            report
                .rows
                .push(Row::info(&case, "bytes/block", ours, peer, theirs));
        }
    }
    Ok(())
}

fn in_a_process(cache: &str, blocks: u32) -> Result<f64, Failure> {
    let output = Command::new(std::env::current_exe()?)
        .args(["block-memory-child", cache, &blocks.to_string()])
        .stderr(std::process::Stdio::inherit())
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim()
        .parse()
        .map_err(|_| format!("{cache} with {blocks} blocks gave {text:?}").into())
}

pub(crate) fn run_child(args: &ChildArgs) -> Result<(), Failure> {
    let before = resident_bytes()?;
    let (after, held) = match args.cache.as_str() {
        OURS => ours(args.blocks),
        "moka" => moka(args.blocks),
        "quick_cache" => quick(args.blocks),
        "foyer" => foyer(args.blocks),
        other => Err(format!("no cache is called {other:?}").into()),
    }?;
    println!("{}", (after as f64 - before as f64) / held as f64);
    Ok(())
}

fn keys(blocks: u32) -> impl ExactSizeIterator<Item = BlockKey> {
    (0..blocks).map(|at| BlockKey {
        store: 0,
        object: u64::from(at / OBJECT),
        block: at % OBJECT,
    })
}

fn room(blocks: u32) -> usize {
    blocks as usize * 9 / 8
}

/// Fills the pool. Returns the resident memory, and the number of blocks. The functions below do the same with other caches.
fn ours(blocks: u32) -> Result<(u64, u64), Failure> {
    let pool = filled(keys(blocks), 0, |_, _| ())?;
    Ok((resident_bytes()?, pool.stats().resident_blocks))
}

fn moka(blocks: u32) -> Result<(u64, u64), Failure> {
    let cache = moka::sync::Cache::builder()
        .max_capacity(room(blocks) as u64)
        .build_with_hasher(RandomState::default());
    for (at, key) in (0_u64..).zip(keys(blocks)) {
        cache.insert(key, at);
    }
    cache.run_pending_tasks();
    Ok((resident_bytes()?, cache.entry_count()))
}

fn quick(blocks: u32) -> Result<(u64, u64), Failure> {
    let cache = quick_cache::sync::Cache::with(
        room(blocks),
        room(blocks) as u64,
        UnitWeighter,
        RandomState::default(),
        DefaultLifecycle::default(),
    );
    for (at, key) in (0_u64..).zip(keys(blocks)) {
        cache.insert(key, at);
    }
    Ok((resident_bytes()?, cache.len() as u64))
}

fn foyer(blocks: u32) -> Result<(u64, u64), Failure> {
    let cache: foyer::Cache<BlockKey, u64, RandomState> = foyer::CacheBuilder::new(room(blocks))
        .with_eviction_config(S3FifoConfig::default())
        .with_hash_builder(RandomState::default())
        .build();
    for (at, key) in (0_u64..).zip(keys(blocks)) {
        drop(cache.insert(key, at));
    }
    Ok((resident_bytes()?, cache.entries() as u64))
}

/// Returns the resident memory of this process without file-backed pages, such as the program itself.
fn resident_bytes() -> Result<u64, Failure> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages: Vec<u64> = text.split(' ').flat_map(str::parse).collect();
    match pages[..] {
        [_, resident, of_files, ..] => {
            Ok((resident - of_files) * rustix::param::page_size() as u64)
        }
        _ => Err(format!("/proc/self/statm is {text:?}").into()),
    }
}
