//! What a second thread is worth: the same rows written by two threads and by one, in alternating rounds.

use std::cell::{LazyCell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use bywash_series::Ack;

use super::ours::Ours;
use super::{Addressing, COUNTS, ROUNDS, SeriesWorkload, Time};
use crate::Failure;
use crate::peers::{Args, Report, Side, alternate};

const ONE: &str = "one thread";
const TWO: &str = "two threads";
/// Rows of a batch.
const BATCHES: [usize; 2] = [100, 1000];
/// Rows of all threads in a turn.
const ROWS: usize = 1 << 20;

/// Returns the max time of two threads by that of one.
fn goal(series: usize, ack: Option<Ack>) -> f64 {
    match (series, ack) {
        // All rows go to one series: the second thread must only not cost.
        (1, _) => 1.0,
        (_, None) => 0.65,
        (_, Some(_)) => 0.8,
    }
}

/// Returns the nanoseconds until a core sees what another has written: half of an exchange.
fn line_transfer() -> f64 {
    const EXCHANGES: u64 = 200_000;
    let turn = AtomicU64::new(0);
    let wait_for = |value| {
        // Acquire: pairs with the other thread's store.
        while turn.load(Ordering::Acquire) != value {
            std::hint::spin_loop();
        }
    };
    let begun = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..EXCHANGES {
                wait_for(2 * n + 1);
                // Release: pairs with the load of the other thread.
                turn.store(2 * n + 2, Ordering::Release);
            }
        });
        for n in 0..EXCHANGES {
            wait_for(2 * n);
            // Release: as above.
            turn.store(2 * n + 1, Ordering::Release);
        }
    });
    begun.elapsed().as_nanos() as f64 / (2 * EXCHANGES) as f64
}

/// Returns the nanoseconds of a lock that no other thread wants.
fn lock() -> f64 {
    const TURNS: u32 = 1_000_000;
    let counter = parking_lot::Mutex::new(0_u32);
    let begun = Instant::now();
    for _ in 0..TURNS {
        *std::hint::black_box(&counter).lock() += 1;
    }
    begun.elapsed().as_nanos() as f64 / f64::from(TURNS)
}

pub(super) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    if args.begins("second thread") {
        report.note(format!(
            "Second thread: the costs that the model of more cores takes (`testing/series/src/threads_model.rs`): {:.0} ns until a core \
             sees what another wrote, {:.1} ns for a lock that no other thread wants.",
            line_transfer(),
            lock()
        ));
    }
    for series in COUNTS {
        let workload = LazyCell::new(|| SeriesWorkload::new(series));
        for how in [Addressing::Names, Addressing::Handles] {
            for (ack, log) in [(None, "no log"), (Some(Ack::Written), "log written")] {
                for batch in BATCHES {
                    let case = format!(
                        "second thread: {}, {log}, {series} series, batches of {batch}",
                        how.name()
                    );
                    if args.begins(&case) {
                        let row = compare(args, &workload, (how, ack, batch), &case)?;
                        report.rows.push(row.goal(goal(series, ack)));
                    }
                }
            }
        }
    }
    Ok(())
}

fn compare(
    args: &Args,
    workload: &SeriesWorkload,
    (how, ack, batch): (Addressing, Option<Ack>, usize),
    case: &str,
) -> Result<crate::peers::Row, Failure> {
    let time = Time::of(args);
    let rows = if args.quick { ROWS / 4 } else { ROWS };
    let folders = [
        tempfile::tempdir_in("target")?,
        tempfile::tempdir_in("target")?,
    ];
    let mut databases = Vec::new();
    for (folder, threads) in folders.iter().zip([1, 2]) {
        let mut ours = Ours::new(folder.path(), ack, workload)?;
        // Not counted: the first touch of each series' memory.
        ours.turn(workload, how, batch, (threads, rows / threads), time)?;
        databases.push(RefCell::new(ours));
    }
    let side = |threads: usize| {
        let ours = &databases[threads - 1];
        move || {
            let mut ours = ours.borrow_mut();
            ours.turn(workload, how, batch, (threads, rows / threads), time)
        }
    };
    let sides = vec![Side::new(TWO, side(2)), Side::new(ONE, side(1))];
    let rounds = alternate(args.rounds(ROUNDS), sides)?;
    Ok(rounds.row(case, "ns/row", TWO, ONE))
}
