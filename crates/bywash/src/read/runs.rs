//! Clients that read an object by one ranged GET after the other.
//!
//! S3 clients fetch a large object in ranges of 5 to 16 MiB, one by one or several at once. A read that begins at the very
//! byte at which another ended goes on with its *run*. From the third read of a run on, as much as the run has read so far is
//! loaded beyond its end, so it doubles while the client keeps up. What is held so is bounded as all that bodies hold ahead
//! ([`super::ahead`]), takes only memory that nobody needs, and is given up when someone waits for memory. Reads here and
//! there make no runs.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::ahead::Reader;
use super::shard::{AheadOf, begin_ahead};
use crate::bucket::Shared;
use crate::limits::MAX_RUNS;
use crate::versions::Version;

/// Reads in a row before anything beyond is loaded. Two are often chance: neighbouring columns of a table, a footer and its
/// length.
const READS_IN_A_ROW: u32 = 3;
/// How long a run waits for its next read. A client that thinks for longer does not wait for us either.
const PATIENCE: Duration = Duration::from_secs(10);

/// The runs of one bucket.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    runs: Mutex<Vec<Run>>,
    /// Their number, for reads that would not wait for the lock. A hint, hence relaxed.
    count: AtomicUsize,
}

/// Reads that each began where the one before ended.
#[derive(Debug)]
struct Run {
    version: u64,
    /// Where the last of them ends, and the next shall begin.
    end: u64,
    reads: u32,
    bytes: u64,
    last: Instant,
    ahead: Option<Arc<RunAhead>>,
}

/// What a read learns of its run.
pub(super) struct Joined {
    /// Bytes to load beyond its end.
    pub(super) beyond: u64,
    pub(super) ahead: Arc<RunAhead>,
}

/// What was loaded beyond the end of a run; the run has it, and each of its reads in progress.
#[derive(Debug)]
pub(super) struct RunAhead {
    /// Holds it until a read comes for it. Before the guard, so that nothing has an audience when that tells that we left.
    pub(super) reader: Reader,
    /// The first block not considered yet.
    next: Mutex<u32>,
    leaving: CancellationToken,
    _left_on_drop: DropGuard,
}

impl Runs {
    /// Notes a read of `range`, and tells what it is to load beyond that. `warm`: all of it is in memory, so it begins no run.
    pub(super) fn join(
        &self,
        bucket: &Shared,
        version: &Version,
        range: &Range<u64>,
        warm: bool,
    ) -> Option<Joined> {
        if warm && self.count.load(Relaxed) == 0 {
            return None;
        }
        let mut runs = if warm {
            // Warm reads are many, and wait for nothing.
            self.runs.try_lock()?
        } else {
            self.runs.lock()
        };
        let found = runs
            .iter()
            .position(|run| run.version == version.id() && run.end == range.start);
        if warm && found.is_none() {
            return None;
        }
        let now = Instant::now();
        let before = found.map(|at| runs.remove(at));
        let mut left: Vec<_> = runs
            .extract_if(.., |run| now - run.last > PATIENCE)
            .collect();
        let mut run = before.unwrap_or(Run {
            version: version.id(),
            end: 0,
            reads: 0,
            bytes: 0,
            last: now,
            ahead: None,
        });
        run.end = range.end;
        run.reads += 1;
        run.bytes += range.end - range.start;
        run.last = now;
        if run.reads >= READS_IN_A_ROW && run.ahead.is_none() {
            run.ahead = Some(RunAhead::new(bucket));
        }
        let joined = run.ahead.clone().map(|ahead| Joined {
            beyond: run.bytes,
            ahead,
        });
        if range.end < version.meta.size {
            if runs.len() >= MAX_RUNS {
                left.push(runs.remove(0));
            }
            runs.push(run);
        }
        self.count.store(runs.len(), Relaxed);
        drop(runs);
        // After the lock: what they hold has locks of its own.
        drop(left);
        joined
    }
}

impl RunAhead {
    fn new(bucket: &Shared) -> Arc<Self> {
        let leaving = CancellationToken::new();
        Arc::new(Self {
            reader: bucket.engine.ahead.reader(bucket.block_size),
            next: Mutex::new(0),
            _left_on_drop: leaving.clone().drop_guard(),
            leaving,
        })
    }

    /// Begins to load `most` blocks from `end` on, as far as they are absent and there is room.
    pub(super) fn extend(&self, bucket: &Arc<Shared>, version: &Arc<Version>, end: u32, most: u32) {
        // Another read of the run is at it.
        let Some(mut next) = self.next.try_lock() else {
            return;
        };
        let ahead = AheadOf {
            bucket,
            version,
            reader: &self.reader,
            leaving: &self.leaving,
        };
        let blocks = version.blocks(bucket.block_size);
        *next = begin_ahead(&ahead, end, (*next).max(end)..blocks, most, |_| {});
    }
}
