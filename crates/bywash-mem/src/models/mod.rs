//! Loom models: the real code, every interleaving of a few threads (to a bound of preemptions), and for each protocol a
//! negative control: with one step weakened, loom must report an error.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p bywash-mem --release --lib --target-dir target/loom`
#![allow(clippy::unwrap_used, reason = "tests")]

mod buffer;
mod copies;
mod evict;
mod flight;
mod gate;
mod gated;
mod lease;
mod ledger;
mod names;
mod reader;
mod registry;
mod series_log;
mod sharded_pins;
mod wake;
mod word;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use loom::thread;

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
/// Maximum preemptions in models that would take hours without a limit.
const MANY: Option<usize> = Some(4);
/// No bound: every interleaving.
const ALL: Option<usize> = None;

fn explore(preemptions: Option<usize>, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.max_branches = BRANCHES;
    builder.check(model);
}

/// Runs a model with one step weakened, in a process of its own because loom's panics may abort, and checks that it fails for
/// this reason.
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
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success(),
        "loom reported no error without {step:?}"
    );
    assert!(
        stderr.contains(reason),
        "without {step:?} the model failed, but not by {reason:?}: {stderr}"
    );
}

/// Wakes a model's thread.
struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread of a model.
fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// A pool of this many pages, without guarantees.
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
        panic!("no other thread loads it")
    };
    load.attach(frame(pool).expect("room"), len);
    load
}

fn load(pool: &Arc<BlockPool>, key: BlockKey, bytes: &[u8]) -> OwnedPin {
    let mut load = begin(pool, key, bytes.len());
    load.write(bytes);
    load.publish().unwrap()
}

/// Checks that nothing is left of a block but its idle frame.
fn check_empty(pool: &BlockPool) {
    pool.erase(KEY);
    let stats = pool.stats();
    assert_eq!(
        (stats.resident_blocks, stats.resident_bytes, stats.flights),
        (0, 0, 0)
    );
    assert_eq!((pool.budget().held(DOWN), pool.budget().waiting()), (0, 0));
}
