//! Costs of an operation besides time. Counted in separate operations, because counting takes time.

use std::path::Path;
use std::sync::Arc;

use bywash_mem::BlockPool;

use super::sides::{Context, write_shard};
use super::{DESIGNS, SHARD};
use crate::Failure;
use crate::peers::{Go, Report, Row};
use crate::process::sleeps_of_thread;

/// Operations whose allocations and waits are counted.
const COUNTED: usize = 10;

/// Costs of an operation besides time.
#[derive(Debug, Clone, Copy, Default)]
struct Costs {
    allocations: f64,
    bytes: f64,
    waits: f64,
}

impl Costs {
    /// Runs something on this thread and counts.
    fn of<T>(work: impl FnOnce() -> T) -> Result<(T, Self), Failure> {
        let mut result = None;
        let this = Path::new("/proc/thread-self/status");
        let waits = sleeps_of_thread(this)?;
        let info = allocation_counter::measure(|| result = Some(work()));
        let waits = sleeps_of_thread(this)? - waits;
        let costs = Self {
            allocations: info.count_total as f64,
            bytes: info.bytes_total as f64,
            waits: waits as f64,
        };
        Ok((result.ok_or("nothing was measured")?, costs))
    }

    fn add(&mut self, other: Self) {
        self.allocations += other.allocations;
        self.bytes += other.bytes;
        self.waits += other.waits;
    }
}

/// Returns one row per figure and Go design.
pub(super) fn run(
    context: &Context<'_>,
    pool: &Arc<BlockPool>,
    go: &mut Go,
    report: &mut Report,
) -> Result<(), Failure> {
    let cell = context.cell;
    let operations = if cell.is_slow() { 1 } else { COUNTED };
    let mut ours = Costs::default();
    for _ in 0..COUNTED {
        ours.add(context.count(pool)?);
    }
    let name = cell.name();
    let mut row = |unit, ours: f64, peer, theirs| {
        let row = Row::info(&name, unit, ours / COUNTED as f64, peer, theirs);
        report.rows.push(row);
    };
    for (peer, design) in DESIGNS {
        let [_, allocations, bytes, waits] =
            go.run_case(&cell.go_case(design, operations, true))?;
        row("allocations", ours.allocations, peer, allocations);
        row("allocated bytes", ours.bytes, peer, bytes);
        row("contended waits", ours.waits, peer, waits);
    }
    Ok(())
}

impl Context<'_> {
    /// As [`Self::fill`], counting each thread.
    fn count(&self, pool: &Arc<BlockPool>) -> Result<Costs, Failure> {
        let (buffer, mut costs) = Costs::of(|| self.new_buffer(pool))?;
        let buffer = buffer?;
        let jobs = (0..self.cell.shards).map(|shard| {
            let (buffer, source) = (buffer.clone(), Arc::clone(&self.source));
            move || Costs::of(|| write_shard(&buffer, (shard * SHARD) as u64, &source))
        });
        for counted in self.crew.run(jobs)? {
            let (written, of_shard) = counted?;
            written?;
            costs.add(of_shard);
        }
        let (frozen, of_freeze) = Costs::of(|| buffer.freeze(self.cell.total() as u64).map(drop))?;
        frozen?;
        costs.add(of_freeze);
        Ok(costs)
    }
}
