//! Checks of the final state, after all readers and writers ended.

use std::collections::BTreeMap;

use object_store::GetRange;

use super::RunContext;
use crate::fault::FaultKind;
use crate::oracle::Violation;
use crate::origin::Validators;

impl RunContext {
    /// Checks that no load is left, that all memory in use is cached, that counters add up, and that no block was sent twice.
    pub(super) fn check_final_state(&self) {
        let stats = self.engine.stats();
        let bucket = stats.buckets.get("sim").copied().unwrap_or_default();
        let (pool, budget) = (stats.pool, stats.budget);
        let long_bodies = self
            .origin
            .log()
            .iter()
            .flat_map(|r| &r.faults)
            .any(|f| f.kind() == FaultKind::Long);
        let findings = self.findings.lock();
        let (bytes, nonempty) = (findings.report.bytes, findings.nonempty_reads);
        drop(findings);
        let equal = [
            ("loads in progress", pool.flights, 0),
            ("waiters for memory", budget.waiting, 0),
            (
                "bytes used, compared with resident and idle bytes",
                budget.used,
                pool.resident_bytes + budget.idle,
            ),
            ("bucket requests", bucket.requests, self.operations()),
            (
                "origin requests",
                bucket.origin_requests,
                self.origin.requests(),
            ),
            (
                "origin data requests",
                bucket.origin_data_requests,
                self.origin.data_requests(None),
            ),
        ];
        for (what, counted, expected) in equal {
            self.ensure(counted == expected, || {
                format!("{what}: counted {counted}, expected {expected}")
            });
        }
        let sent = self.origin.data_bytes(None);
        self.ensure(
            bucket.origin_bytes == sent || (long_bodies && bucket.origin_bytes <= sent),
            || format!("origin bytes: counted {}, sent {sent}", bucket.origin_bytes),
        );
        // A lease whose load fails has read bytes that its reader never gets.
        let may_give_up = self.plan.cancelling_readers || self.plan.leases;
        self.ensure(
            bucket.bytes == bytes || (may_give_up && bucket.bytes >= bytes),
            || {
                format!(
                    "bytes to readers: counted {}, received {bytes}",
                    bucket.bytes
                )
            },
        );
        self.ensure(bucket.hits + bucket.misses >= nonempty, || {
            format!(
                "{} hits and {} misses for {nonempty} non-empty reads",
                bucket.hits, bucket.misses
            )
        });
        if self.plan.is_fault_free() {
            let open = self.origin.open_uploads();
            self.ensure(open == 0, || format!("{open} uploads left open"));
            self.check_blocks_sent_once(pool.evictions);
        }
    }

    /// Checks that the origin sent each block of a version once, in runs without faults in which all objects fit in memory.
    ///
    /// Not checked are suffix ranges, which begin within a block if the length is unknown; objects without a validator, which
    /// are not cached; runs with writers, as a response older than a write is not cached; and downloads, which bypass the
    /// cache.
    fn check_blocks_sent_once(&self, evictions: u64) {
        let plan = &self.plan;
        if evictions > 0 || plan.tight_memory || plan.writers > 0 || plan.downloads {
            return;
        }
        let mut sent: BTreeMap<(usize, u64, u64), u64> = BTreeMap::new();
        for request in self.origin.log().iter().filter(|request| request.is_data()) {
            let index = self.paths.iter().position(|path| *path == request.path);
            let cached = index.filter(|index| self.plan.objects[*index].0 != Validators::None);
            let suffix = matches!(request.requested, Some(GetRange::Suffix(_)));
            if let (Some(index), Some(version), Some(range), false) =
                (cached, request.version, &request.sent_range, suffix)
            {
                for block in self.whole_blocks(range.start, request.sent, request.size) {
                    *sent.entry((index, version, block)).or_default() += 1;
                }
            }
        }
        for ((index, version, block), times) in sent {
            self.ensure(times == 1, || {
                format!(
                    "block {block} of version {version} of {}: the origin sent it {times} times",
                    self.paths[index]
                )
            });
        }
    }

    /// Returns the complete blocks among `sent` bytes from offset `start`, of an object of `size` bytes.
    fn whole_blocks(&self, start: u64, sent: u64, size: u64) -> std::ops::Range<u64> {
        let block = self.plan.block_size as u64;
        let end = if start + sent >= size {
            size.div_ceil(block)
        } else {
            (start + sent) / block
        };
        start.div_ceil(block)..end
    }

    fn ensure(&self, holds: bool, detail: impl FnOnce() -> String) {
        if !holds {
            self.report(Violation::FinalState { detail: detail() });
        }
    }
}
