//! What must hold when everyone has gone home.

use std::collections::BTreeMap;

use object_store::GetRange;

use super::Run;
use crate::fault::FaultKind;
use crate::oracle::Violation;
use crate::origin::Validators;

impl Run {
    /// No load left, memory back to what is cached, counters that add up, nothing asked twice.
    pub(super) fn check_end(&self) {
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
        let (bytes, filled) = (findings.report.bytes, findings.filled_reads);
        drop(findings);
        let equal = [
            ("loads in progress", pool.flights, 0),
            ("requests that wait for memory", budget.waiting, 0),
            (
                "bytes used, against resident and idle ones",
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
        for (what, counted, right) in equal {
            self.ensure(counted == right, || {
                format!("{what}: counted {counted}, right is {right}")
            });
        }
        let sent = self.origin.data_bytes(None);
        self.ensure(
            bucket.origin_bytes == sent || (long_bodies && bucket.origin_bytes <= sent),
            || {
                format!(
                    "origin bytes: counted {}, sent were {sent}",
                    bucket.origin_bytes
                )
            },
        );
        self.ensure(
            bucket.bytes == bytes || (self.plan.leavers && bucket.bytes >= bytes),
            || {
                format!(
                    "bytes to readers: counted {}, they got {bytes}",
                    bucket.bytes
                )
            },
        );
        self.ensure(bucket.hits + bucket.misses >= filled, || {
            format!(
                "{} hits and {} misses for {filled} reads with bytes",
                bucket.hits, bucket.misses
            )
        });
        if self.plan.is_calm() {
            let open = self.origin.open_uploads();
            self.ensure(open == 0, || format!("{open} uploads left open"));
            self.check_asked_once(pool.evictions);
        }
    }

    /// Where nothing goes wrong and all fits, the origin sends no block of a version twice.
    ///
    /// Suffix ranges are left out: asked of an unknown object, they begin within a block. So are
    /// objects without a validator, which are not cached, runs with writers: an answer that a
    /// write overtook serves those who asked and is not remembered; and downloads, which go past the
    /// cache.
    fn check_asked_once(&self, evictions: u64) {
        let plan = &self.plan;
        if evictions > 0 || plan.tight_memory || plan.writers > 0 || plan.downloads {
            return;
        }
        let mut sent: BTreeMap<(usize, u64, u64), u64> = BTreeMap::new();
        for request in self.origin.log().iter().filter(|request| request.is_data()) {
            let index = self.paths.iter().position(|path| *path == request.path);
            let cached = index.filter(|index| self.plan.objects[*index].0 != Validators::None);
            let suffix = matches!(request.asked, Some(GetRange::Suffix(_)));
            if let (Some(index), Some(version), Some(range), false) =
                (cached, request.version, &request.answered, suffix)
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

    /// The blocks that `sent` bytes from `start` on hold whole, of an object of `size` bytes.
    fn whole_blocks(&self, start: u64, sent: u64, size: u64) -> std::ops::Range<u64> {
        let block = self.plan.block_size as u64;
        let end = if start + sent >= size {
            size.div_ceil(block)
        } else {
            (start + sent) / block
        };
        start.div_ceil(block)..end
    }

    fn ensure(&self, holds: bool, broken: impl FnOnce() -> String) {
        if !holds {
            self.report(Violation::End { detail: broken() });
        }
    }
}
