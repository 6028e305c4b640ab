//! Model of writers on more cores than a test machine has: how cores, series and rows of a batch shape the throughput of inserts.
//!
//! A writer repeats batches. A batch has a private part (hashing and comparing names, grouping, encoding), and one visit to each
//! distinct series of the batch under that series' lock: the transfer of its cache lines if another core wrote it last, and the rows.
//! With a log, batches are then written by one leader at a time, together with all batches that wait (group commit).
//! Time advances by events; each draw comes from a seed, so a run repeats itself.
//!
//! What would refute it: a machine with these costs on which throughput at 10,000 series and 16 cores is below half of the
//! model's, or on which rows with a log exceed one row a `log_row`. What it leaves out: rows of a core that is behind come late and
//! are stored one by one, so one series gains less from a second core than the model says (measured: nothing).

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// Costs in nanoseconds, measured by `bywash-bench peers series --only "second thread"`.
#[derive(Debug, Clone, Copy)]
pub struct Costs {
    /// Private work of a row: name, grouping, encoding.
    pub row_private: u64,
    /// Work of a row under the lock of its series.
    pub row_locked: u64,
    /// A lock that no other thread wants, with its release.
    pub lock: u64,
    /// Until a core has a line that another core wrote.
    pub line_transfer: u64,
    /// Lines of a series that a visit writes: header and place of the next row.
    pub lines: u64,
    /// Visits whose lines are prefetched at once: their transfers overlap.
    pub prefetched: u64,
    /// One write to the log.
    pub log_write: u64,
    /// The share of a row of a write to the log.
    pub log_row: u64,
}

/// What is inserted.
#[derive(Debug, Clone, Copy)]
pub struct Inserts {
    /// Cores, each with one writer.
    pub cores: usize,
    /// Series, which rows belong to at random.
    pub series: u64,
    /// Rows of a batch.
    pub batch: u64,
    /// Whether batches are written to the log.
    pub log: bool,
}

#[derive(Debug, Default)]
struct SeriesState {
    /// When its lock is free.
    free_at: u64,
    writer: usize,
}

/// Batches of each core in a run.
const BATCHES: usize = 8;

fn next_random(state: &mut u64) -> u64 {
    // SplitMix64.
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A batch under way: the series it still visits, with their rows.
#[derive(Debug)]
struct Batch {
    visits: Vec<(u64, u64)>,
}

impl Batch {
    fn draw(inserts: &Inserts, random: &mut u64) -> Self {
        let mut rows: HashMap<u64, u64> = HashMap::new();
        for _ in 0..inserts.batch {
            *rows
                .entry(next_random(random) % inserts.series)
                .or_default() += 1;
        }
        let mut visits: Vec<_> = rows.into_iter().collect();
        visits.sort_unstable();
        // Two cores visit series in orders of their own.
        let turn = (next_random(random) % visits.len() as u64) as usize;
        visits.rotate_left(turn);
        Self { visits }
    }
}

/// Returns the mean nanoseconds a row, over the rows of all cores.
#[must_use]
pub fn nanoseconds_per_row(costs: &Costs, inserts: &Inserts, seed: u64) -> f64 {
    let mut random = seed;
    let mut series: HashMap<u64, SeriesState> = HashMap::new();
    let mut log_free_at = 0;
    let mut left = vec![BATCHES; inserts.cores];
    let mut batches: Vec<Batch> = Vec::new();
    // Cores by the time of their next step.
    let mut steps = BinaryHeap::new();
    for core in 0..inserts.cores {
        batches.push(Batch::draw(inserts, &mut random));
        // They do not begin at once.
        let begin = next_random(&mut random) % 1000;
        steps.push(Reverse((begin + inserts.batch * costs.row_private, core)));
    }
    let mut end = 0;
    while let Some(Reverse((now, core))) = steps.pop() {
        end = end.max(now);
        if let Some((number, rows)) = batches[core].visits.pop() {
            let state = series.entry(number).or_default();
            let mut at = now.max(state.free_at) + costs.lock;
            if state.free_at > 0 && state.writer != core {
                // A line that is waited for while its lock is held was not prefetched in time.
                let overlap = if state.free_at > now {
                    1
                } else {
                    costs.prefetched
                };
                at += costs.line_transfer * costs.lines / overlap.max(1);
            }
            at += rows * costs.row_locked;
            *state = SeriesState {
                free_at: at,
                writer: core,
            };
            steps.push(Reverse((at, core)));
            continue;
        }
        let mut done = now;
        if inserts.log {
            // A leader writes what waits: batches that come during a write share the next one.
            let joins = log_free_at > now;
            let begin = now.max(log_free_at);
            let write = if joins { 0 } else { costs.log_write };
            done = begin + write + inserts.batch * costs.log_row;
            log_free_at = done;
        }
        left[core] -= 1;
        end = end.max(done);
        if left[core] > 0 {
            batches[core] = Batch::draw(inserts, &mut random);
            steps.push(Reverse((done + inserts.batch * costs.row_private, core)));
        }
    }
    end as f64 / (inserts.cores * BATCHES) as f64 / inserts.batch as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows by name on the machine of `docs/performance.md`.
    const MEASURED: Costs = Costs {
        row_private: 65,
        row_locked: 12,
        lock: 12,
        line_transfer: 100,
        lines: 2,
        prefetched: 8,
        log_write: 1_500,
        log_row: 12,
    };

    fn speed_up(costs: &Costs, inserts: Inserts) -> f64 {
        let one = Inserts {
            cores: 1,
            ..inserts
        };
        nanoseconds_per_row(costs, &one, 1) / nanoseconds_per_row(costs, &inserts, 1)
    }

    fn inserts(cores: usize, series: u64, batch: u64, log: bool) -> Inserts {
        Inserts {
            cores,
            series,
            batch,
            log,
        }
    }

    #[test]
    fn two_cores_gain_what_was_measured() {
        // Measured: two threads take 0.53 to 0.65 of one thread's time at 10,000 series without a log.
        let gain = speed_up(&MEASURED, inserts(2, 10_000, 1000, false));
        assert!((1.0 / 0.65..=1.0 / 0.5).contains(&gain), "{gain:.2}");
    }

    #[test]
    fn many_series_scale_to_64_cores_without_a_log() {
        for (cores, least) in [(8, 5.0), (16, 9.0), (64, 25.0)] {
            let gain = speed_up(&MEASURED, inserts(cores, 10_000, 1000, false));
            assert!(
                gain >= least && gain <= cores as f64,
                "{cores} cores: {gain:.1}"
            );
        }
    }

    #[test]
    fn one_series_is_bounded_by_its_lock() {
        let of_16 = nanoseconds_per_row(&MEASURED, &inserts(16, 1, 1000, false), 1);
        assert!(of_16 >= MEASURED.row_locked as f64, "{of_16:.1}");
        let of_64 = nanoseconds_per_row(&MEASURED, &inserts(64, 1, 1000, false), 1);
        assert!((of_64 / of_16 - 1.0).abs() < 0.2, "{of_16:.1} {of_64:.1}");
    }

    #[test]
    fn log_bounds_the_rows_by_its_own_cost_of_a_row() {
        let of_64 = nanoseconds_per_row(&MEASURED, &inserts(64, 10_000, 1000, true), 1);
        assert!(
            of_64 >= MEASURED.log_row as f64 && of_64 < 2.0 * MEASURED.log_row as f64,
            "{of_64:.1}"
        );
    }

    #[test]
    fn dear_transfers_hurt_scattered_rows_and_not_runs() {
        let dear = Costs {
            line_transfer: 1000,
            prefetched: 1,
            ..MEASURED
        };
        // A control: without prefetches and with two sockets between the cores the second core gains little.
        let scattered = speed_up(&dear, inserts(2, 10_000, 1000, false));
        assert!(scattered < 1.0, "{scattered:.2}");
        // A hundred rows of each series a batch: one transfer for all of them.
        let runs = speed_up(&dear, inserts(2, 10, 1000, false));
        assert!(runs > scattered, "{runs:.2}");
    }

    #[test]
    fn table_of_the_decision() {
        println!("| series | rows a batch | log | 1 | 2 | 8 | 16 | 64 cores: M rows/s |");
        for log in [false, true] {
            for series in [1, 100, 10_000] {
                for batch in [100, 1000] {
                    let rate = |cores| {
                        1000.0
                            / nanoseconds_per_row(&MEASURED, &inserts(cores, series, batch, log), 1)
                    };
                    let rates = [1, 2, 8, 16, 64].map(rate);
                    println!(
                        "| {series} | {batch} | {log} | {} |",
                        rates.map(|rate| format!("{rate:.1}")).join(" | ")
                    );
                    assert!(
                        rates[1] <= 2.05 * rates[0],
                        "no more than the cores: {rates:?}"
                    );
                }
            }
        }
    }
}
