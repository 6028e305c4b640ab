//! The pool's table from keys of blocks to headers, beside a map without a lock.

use std::collections::HashMap;
use std::hint::black_box;

use bywash_mem::{BlockKey, Registry};
use foldhash::fast::RandomState;

use super::{GET_GOAL, OURS, PLAIN, ROUNDS, draws};
use crate::Failure;
use crate::peers::pin::cpu_time;
use crate::peers::{Args, Report, Side, alternate};

const COUNTS: [usize; 4] = [100, 10_000, 1_000_000, 4_000_000];
/// Keys drawn in advance.
const SCRIPT: usize = 1 << 20;
/// Blocks of an object.
const OBJECT: usize = 1024;
/// Max memory of an entry in bytes, including all tables.
const MOST: f64 = 34.0;

/// A cache line with the key in it, like a block's header.
#[derive(Debug)]
#[repr(align(64))]
struct Header(BlockKey);

fn key(at: usize) -> BlockKey {
    BlockKey {
        store: 0,
        object: (at / OBJECT) as u64,
        block: (at % OBJECT) as u32,
    }
}

pub(super) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    report.note(
        "Find: from a key of 16 bytes to the header that holds the block, whose line is read: by our table the key in it decides, \
         by the map the number it gives leads there. CPU time of one thread. Growth: a lookup among the most keys by one among the \
         fewest.",
    );
    let mut figures = Vec::new();
    for count in COUNTS {
        let case = format!("find, {count} blocks");
        if !args.begins(&case) {
            continue;
        }
        let headers: Vec<Header> = (0..count).map(|at| Header(key(at))).collect();
        let ours = Registry::new();
        let mut plain: HashMap<BlockKey, u32, RandomState> = HashMap::default();
        for (slot, header) in (0..).zip(&headers) {
            ours.insert(ours.hash(header.0), slot);
            plain.insert(header.0, slot);
        }
        let script: Vec<BlockKey> = draws(count).take(SCRIPT).map(key).collect();
        let by_ours = |key: BlockKey| {
            let same = |slot: u32| (headers[slot as usize].0 == key).then_some(slot);
            ours.find(ours.hash(key), same)
        };
        let by_plain = |key: BlockKey| {
            let slot = plain.get(&key).copied();
            slot.filter(|slot| headers[*slot as usize].0.object == key.object)
        };
        let lookups = if args.quick { SCRIPT >> 3 } else { SCRIPT };
        let sides = vec![
            Side::new(OURS, || Ok(turn(&script[..lookups], by_ours))),
            Side::new(PLAIN, || Ok(turn(&script[..lookups], by_plain))),
        ];
        let rounds = alternate(args.rounds(ROUNDS), sides)?;
        let row = rounds.row(&case, "ns/lookup", OURS, PLAIN);
        figures.push((row.ours, row.peer));
        report.rows.push(row.goal(GET_GOAL));
        if count != COUNTS[0] {
            let each = ours.bytes() as f64 / count as f64;
            let case = format!("memory of an entry, {count} blocks");
            let row = crate::peers::Row::at_most(&case, "bytes", each, MOST);
            report.rows.push(row);
        }
    }
    if let (true, Some(fewest), Some(most)) = (
        figures.len() == COUNTS.len(),
        figures.first(),
        figures.last(),
    ) {
        let (ours, plain) = (most.0 / fewest.0, most.1 / fewest.1);
        let case = "growth of find, 100 to 4000000 blocks";
        let row = crate::peers::Row::info(case, "times", ours, PLAIN, plain);
        report.rows.push(row.goal(1.0));
    }
    Ok(())
}

/// Returns the nanoseconds of a lookup.
fn turn(script: &[BlockKey], find: impl Fn(BlockKey) -> Option<u32>) -> f64 {
    let begun = cpu_time();
    for &key in script {
        black_box(find(black_box(key)));
    }
    (cpu_time() - begun).as_nanos() as f64 / script.len() as f64
}
