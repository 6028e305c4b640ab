//! Counters of the engine with a bounded number of buckets: those beyond it are counted together.

use std::collections::BTreeMap;

use bywash::origin::OriginStats;
use bywash::{BucketStats, Stats};

use crate::Shared;
use crate::history::sum;
use crate::limits::MAX_LABELLED_BUCKETS;

/// Label of the buckets beyond the limit. No bucket has this name.
pub(crate) const OTHER_BUCKETS: &str = "(others)";

/// Lines of a bucket in a report, and bytes of each without the bucket's name.
const BUCKET_LINES: usize = 32;
const LINE_BYTES: usize = 112;
/// Lines of the durations of an operation by cache outcome.
const OPERATION_LINES: usize = 28;
/// Bytes of all other lines.
const OTHER_BYTES: usize = 96 << 10;

/// Counters of the engine, of at most [`MAX_LABELLED_BUCKETS`] buckets and the sum of all others.
#[derive(Debug)]
pub(crate) struct Counted {
    pub(crate) stats: Stats,
    pub(crate) origins: BTreeMap<String, OriginStats>,
}

impl Counted {
    /// Reads the counters of the buckets that `sees` selects.
    pub(crate) fn now(shared: &Shared, sees: impl Fn(&str) -> bool) -> Self {
        let (mut stats, mut origins) = (shared.engine.stats(), shared.engine.origins());
        stats.buckets.retain(|bucket, _| sees(bucket));
        stats.memory.buckets.retain(|bucket, _| sees(bucket));
        origins.retain(|bucket, _| sees(bucket));
        let mut counted = Self { stats, origins };
        counted.join_others();
        counted
    }

    /// Adds up the buckets past the limit, by name, under [`OTHER_BUCKETS`].
    fn join_others(&mut self) {
        let Some(first) = self.stats.buckets.keys().nth(MAX_LABELLED_BUCKETS).cloned() else {
            return;
        };
        let others = self.stats.buckets.split_off(&first);
        let total = others
            .values()
            .fold(BucketStats::default(), |all, bucket| sum(&all, bucket));
        self.stats.buckets.insert(OTHER_BUCKETS.to_owned(), total);
        let mut memory = bywash::BucketMemory::default();
        for (_, bucket) in self.stats.memory.buckets.split_off(&first) {
            memory.blocks += bucket.blocks;
            memory.bytes += bucket.bytes;
        }
        let memories = &mut self.stats.memory.buckets;
        memories.insert(OTHER_BUCKETS.to_owned(), memory);
        let mut origin = OriginStats::default();
        for (kind, count) in self
            .origins
            .split_off(&first)
            .into_values()
            .flat_map(|origin| origin.errors)
        {
            match origin.errors.iter_mut().find(|(known, _)| *known == kind) {
                Some((_, all)) => *all += count,
                None => origin.errors.push((kind, count)),
            }
        }
        self.origins.insert(OTHER_BUCKETS.to_owned(), origin);
    }

    /// Max bytes of a report of these counters.
    pub(crate) fn text_bytes(&self, shared: &Shared) -> usize {
        let names = self.stats.buckets.keys();
        let buckets: usize = names
            .map(|name| BUCKET_LINES * (LINE_BYTES + 2 * name.len()))
            .sum();
        let operations = shared.engine.traffic().operations().len();
        OTHER_BYTES + buckets + operations * OPERATION_LINES * 2 * LINE_BYTES
    }
}
