//! Queries of a day of rows, in memory and flushed; the list of names; and flushes.

use std::path::Path;
use std::sync::Arc;

use bywash::{Consistency, Engine};
use bywash_mem::{BlockPool, PoolConfig};
use bywash_series::{Aggregate, Clock, Selector, SeriesDb, SeriesNames, SeriesOptions};
use object_store::ObjectStore;

use super::super::pin::Picks;
use super::super::{Args, Pace, Report, Row, Side, alternate};
use super::{OURS, ROUNDS, SeriesWorkload, Time};
use crate::Failure;

const SECOND: i64 = 1_000_000_000;
const DAY: i64 = 86_400 * SECOND;
/// Distance of rows of a series, in nanoseconds.
const EVERY: i64 = 10 * SECOND;
const ROWS_A_DAY: usize = (DAY / EVERY) as usize;
/// Series of the query for many series.
const STEP: i64 = 300 * SECOND;
const SERIES: usize = 100;
const NAMES: usize = 100_000;

/// Stride by which series are created, so that they are not in the order of their names. Prime.
const STRIDE: usize = 61_813;

/// Goals of the design, in milliseconds; the last one in nanoseconds per row and core.
const ONE_IN_MEMORY: f64 = 0.2;
const ONE_SEALED: f64 = 3.0;
const MANY: f64 = 20.0;
const LIST: f64 = 5.0;
const SEAL: f64 = 1000.0 / 6.0;

/// A clock that stops before the day ends: flushes and compactions run only on demand.
#[derive(Debug)]
struct Stopped;

impl Clock for Stopped {
    fn now(&self) -> i64 {
        0
    }
}

/// A database whose files are in a bucket of Bywash, all in memory.
struct Store {
    runtime: tokio::runtime::Runtime,
    db: SeriesDb,
}

impl Store {
    fn new(folder: &Path) -> Result<Self, Failure> {
        let runtime = crate::runtime()?;
        let entered = runtime.enter();
        let engine = Engine::builder().memory(1 << 30).build()?;
        let bucket = engine.mount_url("bench", &"memory://".parse()?, Consistency::default())?;
        let store: Arc<dyn ObjectStore> = Arc::new(bucket);
        let pool = BlockPool::new(PoolConfig::new(4 << 30))?;
        let options = SeriesOptions {
            log: false,
            clock: Arc::new(Stopped),
            ..SeriesOptions::default()
        };
        let opening = SeriesDb::open(store, folder, pool.budget().clone(), options);
        let db = runtime.block_on(opening)?;
        drop(entered);
        Ok(Self { runtime, db })
    }

    /// Writes `rows` rows of each series, in order of time.
    fn fill(&self, workload: &SeriesWorkload, rows: usize) -> Result<(), Failure> {
        let mut picks = Picks::all(0);
        for n in 0..workload.names.len() {
            let (source, metric) = &workload.names[n * STRIDE % workload.names.len()];
            let handle = self.db.handle(source, metric)?;
            // As in TSBS: a random walk between 0 and 100, rounded to whole numbers.
            let mut level = 50.0_f64;
            let mut row = |n| {
                let step = f64::from(picks.next()) / f64::from(1_u32 << Picks::BITS);
                level = (level + 4.0 * step - 2.0).clamp(0.0, 100.0);
                (handle, n as i64 * EVERY, level.trunc())
            };
            let rows: Vec<_> = (0..rows).map(&mut row).collect();
            self.db.append_batch(&rows)?;
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), Failure> {
        Ok(self.runtime.block_on(self.db.flush())?)
    }

    fn one(&self, workload: &SeriesWorkload, number: usize) -> Result<(), Failure> {
        let (source, metric) = &workload.names[number % workload.names.len()];
        let selector = Selector::series(source, metric);
        let asking = self.db.query(&selector, 0..=DAY - 1, None, Aggregate::Last);
        let series = self.runtime.block_on(asking)?;
        let found = series.first().map_or(0, |series| series.points.len());
        expect("points of a series", found, ROWS_A_DAY)
    }

    fn many(&self) -> Result<(), Failure> {
        let all = Selector::all();
        let asking = self.db.query(&all, 0..=DAY - 1, Some(STEP), Aggregate::Avg);
        let series = self.runtime.block_on(asking)?;
        let points = series.iter().map(|series| series.points.len()).sum();
        expect(
            "points of all series",
            points,
            SERIES * (DAY / STEP) as usize,
        )
    }

    fn list(&self) -> Result<SeriesNames, Failure> {
        let names = self
            .runtime
            .block_on(self.db.list(&Selector::all(), 0..=EVERY))?;
        expect("names", names.len(), NAMES)?;
        // Reads the names as a server would send them: the list itself has only their locations.
        let ends = |name: &str| name.bytes().next_back().map_or(0, usize::from);
        let read: usize = names
            .iter()
            .map(|(source, metric)| ends(source) + ends(metric))
            .sum();
        std::hint::black_box(read);
        Ok(names)
    }
}

fn expect(what: &str, found: usize, wanted: usize) -> Result<(), Failure> {
    if found == wanted {
        return Ok(());
    }
    Err(format!("{found} {what} where {wanted} were written").into())
}

pub(super) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let places = ["from memory", "from cached Parquet"];
    let one = |place: &str| format!("one series, a day at 10 s, {place}");
    let many = |place: &str| format!("{SERIES} series, a day at 10 s in steps of 5 min, {place}");
    let list = |place: &str| format!("names of {NAMES} series in a range, {place}");
    let wants = |name: &dyn Fn(&str) -> String| places.iter().any(|place| args.wants(&name(place)));
    let folder = tempfile::tempdir_in("target")?;
    if wants(&one) || wants(&many) {
        let workload = SeriesWorkload::new(SERIES);
        let store = Store::new(&folder.path().join("day"))?;
        store.fill(&workload, ROWS_A_DAY)?;
        for (place, goal) in places.into_iter().zip([ONE_IN_MEMORY, ONE_SEALED]) {
            if place != places[0] {
                store.flush()?;
            }
            let mut next = 0;
            measure(args, report, &one(place), goal, || {
                next += 1;
                store.one(&workload, next)
            })?;
            measure(args, report, &many(place), MANY, || store.many())?;
        }
    }
    if wants(&list) {
        let store = Store::new(&folder.path().join("names"))?;
        store.fill(&SeriesWorkload::new(NAMES), 2)?;
        for place in places {
            if place != places[0] {
                store.flush()?;
            }
            if !store.list()?.iter().is_sorted() {
                return Err("the names are not in order".into());
            }
            measure(args, report, &list(place), LIST, || store.list().map(drop))?;
        }
    }
    seals(args, report)
}

/// Returns the milliseconds of an operation.
fn measure(
    args: &Args,
    report: &mut Report,
    case: &str,
    goal: f64,
    mut operation: impl FnMut() -> Result<(), Failure>,
) -> Result<(), Failure> {
    if !args.begins(case) {
        return Ok(());
    }
    let mut pace = Pace::new(args.turn());
    let time = Time::of(args);
    let mut run = |count| {
        let begun = time.now();
        for _ in 0..count {
            operation()?;
        }
        Ok(time.now() - begun)
    };
    let side = Side::new(OURS, || Ok(pace.ns(&mut run)? / 1e6));
    let rounds = alternate(args.rounds(ROUNDS), vec![side])?;
    let row = Row::at_most(case, "ms", rounds.median(OURS), goal);
    report.rows.push(row);
    Ok(())
}

fn seals(args: &Args, report: &mut Report) -> Result<(), Failure> {
    let case = "seal";
    if !args.begins(case) {
        return Ok(());
    }
    let (workload, time) = (SeriesWorkload::new(SERIES), Time::of(args));
    let side = Side::new(OURS, || {
        let folder = tempfile::tempdir_in("target")?;
        let store = Store::new(folder.path())?;
        store.fill(&workload, ROWS_A_DAY)?;
        // One thread creates the files one after another.
        let begun = time.now();
        store.flush()?;
        Ok((time.now() - begun).as_nanos() as f64 / (SERIES * ROWS_A_DAY) as f64)
    });
    let rounds = alternate(args.rounds(ROUNDS), vec![side])?;
    let row = Row::at_most(case, "ns/row", rounds.median(OURS), SEAL);
    report.rows.push(row);
    Ok(())
}
