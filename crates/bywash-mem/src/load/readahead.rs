//! Loading ahead of need, with memory that nobody needs.

use std::sync::Arc;

use crate::budget::Share;
use crate::load::Load;
use crate::pool::{BlockKey, BlockPool, Claim};

/// Neighbouring blocks to be loaded by one request: consecutive blocks of one object, in order, each with its frame attached.
/// Dropping a load abandons it.
pub type PrefetchRun = Vec<Load>;

impl BlockPool {
    /// Begins to load those of `blocks` (with their lengths in bytes) that are neither here nor on their way, neighbours together
    /// in runs of at most `max_run`. The caller fills and publishes them.
    ///
    /// Takes memory that is free, or that blocks have which were not used since the hand last passed; never that of a block
    /// in use, never ahead of a taker in line, and never waits. Where memory ends, the rest is left out.
    #[must_use]
    pub fn prefetch(
        self: &Arc<Self>,
        blocks: impl IntoIterator<Item = (BlockKey, usize)>,
        max_run: usize,
    ) -> Vec<PrefetchRun> {
        let mut blocks: Vec<_> = blocks.into_iter().collect();
        blocks.sort_unstable();
        blocks.dedup_by_key(|(key, _)| *key);
        let mut runs: Vec<PrefetchRun> = Vec::new();
        for (key, len) in blocks {
            let Claim::Vacant(mut load) = self.claim(key) else {
                continue;
            };
            let Some(frame) = self.try_frame_gently(Share::Download, len) else {
                break;
            };
            load.attach(frame, len);
            match runs.last_mut() {
                Some(run) if run.len() < max_run && continues(run, key) => run.push(load),
                _ => runs.push(vec![load]),
            }
        }
        runs
    }
}

fn continues(run: &PrefetchRun, key: BlockKey) -> bool {
    let last = run.last().map(Load::key);
    last.is_some_and(|last| {
        (last.store, last.object, last.block.checked_add(1))
            == (key.store, key.object, Some(key.block))
    })
}
