//! Readahead: starting loads before the blocks are needed, in memory that nothing else needs.

use std::sync::Arc;

use super::flights::{Claim, FlightTable};
use super::leader::Load;
use crate::frames::Share;
use crate::key::BlockKey;

/// Loads for one request: consecutive blocks of one object, in order, each with its frame attached. Dropping a load abandons it.
pub type LoadRun = Vec<Load>;

impl FlightTable {
    /// See [`crate::BlockPool::start_readahead`].
    pub(crate) fn start_readahead(
        self: &Arc<Self>,
        blocks: impl IntoIterator<Item = (BlockKey, usize)>,
        max_run: usize,
    ) -> Vec<LoadRun> {
        let mut blocks: Vec<_> = blocks.into_iter().collect();
        blocks.sort_unstable();
        blocks.dedup_by_key(|(key, _)| *key);
        let mut runs: Vec<LoadRun> = Vec::new();
        for (key, len) in blocks {
            let Claim::Vacant(mut load) = self.claim(key) else {
                continue;
            };
            let Some(frame) = self.cache().try_frame_cold(Share::Download, len) else {
                break;
            };
            load.attach(frame, len);
            match runs.last_mut() {
                Some(run) if run.len() < max_run && is_next(run, key) => run.push(load),
                _ => runs.push(vec![load]),
            }
        }
        runs
    }
}

/// Whether `key` is the block after the last one of `run`.
fn is_next(run: &LoadRun, key: BlockKey) -> bool {
    let last = run.last().map(Load::key);
    last.is_some_and(|last| {
        (last.store, last.object, last.block.checked_add(1))
            == (key.store, key.object, Some(key.block))
    })
}
