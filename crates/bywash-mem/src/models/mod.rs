//! Loom models: the real code, every interleaving of a few threads (to a bound of preemptions), and for each protocol a
//! negative control: with one step weakened, loom must find fault.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p bywash-mem --release --lib --target-dir target/loom`
#![allow(clippy::unwrap_used, reason = "tests")]

mod evict;
#[path = "series_log.rs"]
mod first_turn;
mod flight;
#[path = "reader.rs"]
mod follow;
mod gate;
mod ledger;
mod names;
mod registry;
#[path = "sharded_pins.rs"]
mod stripes;
mod wake;
mod word;
#[path = "buffer.rs"]
mod write_at;

use std::sync::Arc;

use crate::sync::{Step, weaken};
use crate::{BlockKey, BlockPool, Claim, Frame, Load, OwnedPin, PoolConfig, Share};

const PAGE: u64 = 4096;
const DOWN: Share = Share::Download;
const UP: Share = Share::Upload;
const KEY: BlockKey = key(1);

const fn key(object: u64) -> BlockKey {
    BlockKey {
        store: 0,
        object,
        block: 0,
    }
}

/// Steps of one execution; the whole pool in a model takes some hundreds.
const BRANCHES: usize = 20_000;
/// Preemptions explored of the models whose every interleaving would take hours.
const MANY: Option<usize> = Some(4);
/// No bound: every interleaving.
const ALL: Option<usize> = None;

fn explore(preemptions: Option<usize>, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.max_branches = BRANCHES;
    builder.check(model);
}

/// Runs a model with one step weakened, in a process of its own since loom's panics may abort, and checks that loom gave this
/// reason to fail it.
fn control(step: Step, model: fn(), reason: &str) {
    const CHILD: &str = "BYWASH_WEAKENED";
    if std::env::var_os(CHILD).is_some() {
        weaken(step);
        return explore(MANY, model);
    }
    let this = std::thread::current();
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args([this.name().unwrap(), "--exact", "--nocapture"])
        .envs([(CHILD, "1"), ("RUST_BACKTRACE", "0")])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success(),
        "loom found no fault without {step:?}"
    );
    assert!(
        said.contains(reason),
        "without {step:?} the model failed, but not by {reason:?}: {said}"
    );
}

/// A pool of so many pages, without guarantees.
fn pool(pages: u64) -> Arc<BlockPool> {
    let limit = pages * PAGE;
    BlockPool::new(PoolConfig {
        download_guarantee: 0,
        upload_guarantee: 0,
        ..PoolConfig::new(limit)
    })
    .unwrap()
}

fn frame(pool: &BlockPool) -> Option<Frame> {
    pool.try_frames(DOWN, 1, 1, 1)?.pop()
}

fn begin(pool: &Arc<BlockPool>, key: BlockKey, len: usize) -> Load {
    let Claim::Vacant(mut load) = pool.claim(key) else {
        panic!("nobody else loads it")
    };
    load.attach(frame(pool).expect("room"), len);
    load
}

fn load(pool: &Arc<BlockPool>, key: BlockKey, bytes: &[u8]) -> OwnedPin {
    let mut load = begin(pool, key, bytes.len());
    load.write(bytes);
    load.publish().unwrap()
}

/// Nothing is left of a block but its idle frame.
fn gone(pool: &BlockPool) {
    pool.erase(KEY);
    let stats = pool.stats();
    assert_eq!(
        (stats.resident_blocks, stats.resident_bytes, stats.flights),
        (0, 0, 0)
    );
    assert_eq!((pool.budget().held(DOWN), pool.budget().waiting()), (0, 0));
}
