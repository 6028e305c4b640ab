//! Tests of series that leave memory: their names, their handles, and the race with writers.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::*;
use crate::departures::sweep;
use crate::{Aggregate, Selector, SeriesNames};

/// Two sweeps: the first one sees that a series has no rows, the second one that it has got none since.
fn sweep_twice(db: &SeriesDb) -> u64 {
    sweep(&db.0, Duration::ZERO) + sweep(&db.0, Duration::ZERO)
}

fn names(count: usize) -> Vec<String> {
    (0..count)
        .map(|number| format!("metric {number}"))
        .collect()
}

async fn rows(db: &SeriesDb) -> BTreeSet<(String, i64, u64)> {
    let all = Selector::all();
    let found = db.query(&all, ALL, None, Aggregate::Last).await.unwrap();
    let mut rows = BTreeSet::new();
    for series in found.iter() {
        for point in &series.points {
            let row = (
                series.metric.to_string(),
                point.timestamp,
                point.value.to_bits(),
            );
            assert!(rows.insert(row.clone()), "{row:?} is there twice");
        }
    }
    rows
}

#[tokio::test]
async fn names_without_rows_leave_and_come_back_with_their_next_row() {
    let database = TestDatabase::new();
    let db = database.open().await.unwrap();
    let names = names(1000);
    let insert = |at: i64| {
        let rows = names.iter().map(|metric| row("a", metric, at, 0.5));
        db.insert_rows(&rows.collect::<Vec<_>>()).unwrap();
    };
    insert(1);
    assert_eq!(sweep_twice(&db), 0, "they have rows");
    let full = db.stats().memtable_bytes;
    db.flush().await.unwrap();
    assert_eq!(sweep(&db.0, Duration::from_secs(3600)), 0, "for now");
    assert_eq!(sweep_twice(&db), 1000);
    let stats = db.stats();
    assert_eq!((stats.series, stats.departed_series), (0, 1000));
    assert_eq!(stats.memtable_bytes, 0, "of {full}");
    assert_eq!(db.list(&Selector::all(), ALL).await.unwrap().len(), 1000);
    assert_eq!(db.list_first(10, ALL).await.unwrap().0.len(), 10);

    insert(2);
    assert_eq!(db.stats().series, 1000);
    assert_eq!(db.stats().memtable_bytes, full);
    assert_eq!(db.list_first(2000, ALL).await.unwrap().0.len(), 1000);
    let expected = rows(&db).await;
    assert_eq!(expected.len(), 2000);
    assert_eq!(rows(&database.copy().open().await.unwrap()).await, expected);
}

/// Entries of the catalog lie in chunks, which a series that stays keeps.
#[tokio::test]
async fn charge_of_names_is_what_they_take_while_some_stay() {
    const CHUNK: usize = 256;
    const NAMES: usize = 20 * CHUNK;
    let database = TestDatabase::new();
    let db = database.open().await.unwrap();
    let names = names(NAMES);
    let insert = |at: i64, step: usize| {
        let rows = names.iter().step_by(step);
        let rows = rows.map(|metric| row("a", metric, at, 0.5));
        db.insert_rows(&rows.collect::<Vec<_>>()).unwrap();
    };
    let charged = || {
        let memtable = &db.0.memtable;
        let allocated = memtable.directory.current().bytes();
        let empty = crate::catalog::Catalog::new(0).bytes();
        assert_eq!(memtable.directory.bytes(), allocated - empty);
        memtable.directory.bytes()
    };
    insert(1, 1);
    let full = charged();
    db.flush().await.unwrap();
    // One series of each chunk continues.
    insert(2, CHUNK);
    assert_eq!(sweep_twice(&db), (NAMES - NAMES / CHUNK) as u64);
    let scattered = charged();
    let of_series = NAMES * size_of::<crate::memtable::Series>();
    assert!(scattered > of_series as u64, "{scattered} of {full}");
    assert!(scattered < full, "names of texts left");
    // Others take the places that are left, and then the chunks.
    for name in 0..NAMES - NAMES / CHUNK {
        let name = format!("other {name}");
        db.insert_rows(&[row("a", &name, 3, 0.5)]).unwrap();
    }
    assert!(
        charged() <= full + 4 * NAMES as u64,
        "{} of {full}",
        charged()
    );
    db.flush().await.unwrap();
    assert_eq!(sweep_twice(&db), NAMES as u64);
    assert_eq!((charged(), db.stats().memtable_bytes), (0, 0));
}

#[tokio::test]
async fn series_with_rows_stay_with_their_handles() {
    let database = TestDatabase::new();
    let db = database.open().await.unwrap();
    let names = names(100);
    let handles: Vec<_> = names
        .iter()
        .map(|metric| db.handle("a", metric).unwrap())
        .collect();
    assert_eq!(sweep(&db.0, Duration::ZERO), 0);
    for handle in &handles {
        db.append(*handle, 1, 0.5).unwrap();
    }
    db.flush().await.unwrap();
    // Every tenth series continues.
    let going_on = || handles.iter().step_by(10);
    for round in 2..6 {
        for handle in going_on() {
            db.append(*handle, round, 0.5).unwrap();
        }
        let left = sweep_twice(&db);
        assert_eq!(left, if round == 2 { 90 } else { 0 }, "round {round}");
    }
    let before = content(&db);
    assert_eq!(before.len(), 4 * 10);
    assert_eq!(content(&database.copy().open().await.unwrap()), before);
    // The places of the others are taken by others, whose handles differ.
    let fresh: Vec<_> = (0..90)
        .map(|number| db.handle("b", &format!("{number}")).unwrap())
        .collect();
    let ids: BTreeSet<u32> = fresh.iter().map(|handle| handle.0).collect();
    assert!(ids.iter().all(|id| *id < 100), "ids are given back");
    for (number, handle) in handles.iter().enumerate() {
        let appended = db.append(*handle, 9, 1.0);
        match number % 10 {
            0 => appended.unwrap(),
            _ => assert!(
                matches!(appended, Err(SeriesError::Departed)),
                "{number}: {appended:?}"
            ),
        }
    }
    // Of a batch, the rows before are stored.
    let batch = [(handles[0], 10, 1.0), (handles[1], 10, 1.0)];
    assert!(matches!(
        db.append_batch(&batch),
        Err(SeriesError::Departed)
    ));
    let again = db.handle("a", &names[1]).unwrap();
    db.append(again, 10, 1.0).unwrap();
    let unknown = db.append(SeriesHandle(1000, 0), 1, 1.0);
    assert!(matches!(unknown, Err(SeriesError::UnknownHandle(1000))));
    let after = content(&db);
    assert_eq!(after.len(), 4 * 10 + 10 + 2);
    assert_eq!(content(&database.copy().open().await.unwrap()), after);
}

#[tokio::test]
async fn fresh_handle_stays_while_others_leave_in_a_sweep() {
    let database = TestDatabase::new();
    let db = database.open().await.unwrap();
    for metric in names(10) {
        db.insert_rows(&[row("a", &metric, 1, 0.5)]).unwrap();
    }
    db.flush().await.unwrap();
    assert_eq!(sweep(&db.0, Duration::ZERO), 0);
    let fresh = db.handle("a", "fresh").unwrap();
    let touched = db.handle("a", "metric 3").unwrap();
    assert_eq!(sweep(&db.0, Duration::ZERO), 9);
    for handle in [fresh, touched] {
        db.append(handle, 2, 0.5).unwrap();
    }
}

/// A writer of the next generation touches the copy before the rows of the other one move.
#[test]
fn touched_copy_of_a_series_is_not_idle_after_its_rows_have_moved() {
    use crate::memtable::Series;
    let handle = SeriesHandle(0, 0);
    for touch in [false, true] {
        let [before, next] = [Series::new(handle, 0, 0), Series::new(handle, 0, 0)];
        assert!(!before.is_idle(5, 0), "seen for the first time");
        next.copy_idle_since(&before);
        if touch {
            next.touch();
        }
        before.move_to(&next);
        assert_eq!(next.is_idle(9, 4), !touch, "touched: {touch}");
    }
}

#[tokio::test]
async fn order_of_names_stays_when_some_leave() {
    let database = TestDatabase::new();
    let db = database.open().await.unwrap();
    let insert = |metric: &str, at: i64| {
        db.insert_rows(&[row("a", metric, at, 0.5)]).unwrap();
    };
    names(10).iter().for_each(|metric| insert(metric, 1));
    db.flush().await.unwrap();
    let stay = |number: &usize| number.is_multiple_of(3);
    for number in (0..10).filter(stay) {
        insert(&names(10)[number], 2);
    }
    assert_eq!(db.list(&Selector::all(), ALL).await.unwrap().len(), 10);
    assert_eq!(sweep_twice(&db), 6);
    assert_eq!(db.0.memtable.directory.current().ordered(), 4);
    // Another name under the id of one that left.
    insert("metric 00", 2);
    let memtable = &db.0.memtable;
    let listed =
        SeriesNames::in_memory(memtable, &Selector::all(), &ALL, &db.read_charge()).unwrap();
    let listed: Vec<_> = listed.owned().map(|(_, metric)| metric).collect();
    let expected = ["metric 0", "metric 00", "metric 3", "metric 6", "metric 9"];
    assert_eq!(
        listed.iter().map(|name| &**name).collect::<Vec<_>>(),
        expected
    );
    assert_eq!(db.list_first(5, ALL).await.unwrap().0.len(), 5);
}

#[test]
fn catalogs_are_read_twice_at_most() {
    let directory = crate::directory::Directory::default();
    let mut reads = 0;
    let replace = |epoch| {
        let next = Arc::new(crate::catalog::Catalog::new(epoch));
        directory.begin(next) && directory.end().is_some()
    };
    directory.read(|_| {
        reads += 1;
        assert_eq!(replace(reads), reads == 1, "read {reads}");
    });
    assert_eq!(reads, 2);
    assert!(replace(3), "the reader has ended");
}

/// Writers by name, and one by handle.
const WRITERS: i64 = 3;
/// Min rounds of a writer, which continues until `LEFT` series have left.
const ROUNDS: i64 = 500;
const LEFT: u64 = 300;
/// Names that a writer by name writes in a round.
const ALIVE: i64 = 20;
/// Rounds of a writer by handle with one name.
const ROUNDS_OF_A_HANDLE: i64 = 50;

fn metric(writer: i64, number: i64) -> String {
    format!("{writer} {number}")
}

/// Numbers of the names that a writer writes in a round: they slide on.
fn numbers(writer: i64, round: i64) -> std::ops::Range<i64> {
    match writer {
        WRITERS => round / ROUNDS_OF_A_HANDLE..round / ROUNDS_OF_A_HANDLE + 1,
        _ => round / 4..round / 4 + ALIVE,
    }
}

/// Names that come and go.
struct Churn<'a> {
    db: &'a SeriesDb,
    runtime: tokio::runtime::Handle,
    done: AtomicBool,
}

impl Churn<'_> {
    fn is_done(&self) -> bool {
        // Relaxed: it orders nothing.
        self.done.load(Ordering::Relaxed)
    }

    /// Returns the number of rounds.
    fn write_by_name(&self, writer: i64) -> i64 {
        let mut round = 0;
        while round < ROUNDS || self.db.stats().departed_series < LEFT {
            let names: Vec<_> = numbers(writer, round)
                .map(|number| metric(writer, number))
                .collect();
            let rows = names
                .iter()
                .map(|name| row("a", name, round, writer as f64));
            self.db.insert_rows(&rows.collect::<Vec<_>>()).unwrap();
            round += 1;
        }
        round
    }

    /// Returns the number of rounds.
    fn write_by_handle(&self, writer: i64) -> i64 {
        let handle = |round: i64| {
            let name = metric(writer, numbers(writer, round).start);
            self.db.handle("a", &name).unwrap()
        };
        let mut round = 0;
        let mut current = handle(0);
        while round < ROUNDS || self.db.stats().departed_series < LEFT {
            if round % ROUNDS_OF_A_HANDLE == 0 {
                current = handle(round);
            }
            while let Err(refused) = self.db.append(current, round, writer as f64) {
                assert!(matches!(refused, SeriesError::Departed), "{refused}");
                current = handle(round);
            }
            round += 1;
        }
        round
    }

    fn flush(&self) {
        let handle = || self.db.handle("keep", "").unwrap();
        let mut keep = handle();
        for at in 0.. {
            if self.is_done() {
                return;
            }
            while self.db.append(keep, at, 0.5).is_err() {
                keep = handle();
            }
            self.runtime.block_on(self.db.flush()).unwrap();
            if at % 20 == 19 {
                self.runtime.block_on(self.db.compact()).unwrap();
            }
        }
    }

    /// Data that was read once is read again.
    fn read(&self) {
        let (mut count, mut listed) = (0, 0);
        while !self.is_done() {
            let (found, names) = self.runtime.block_on(async {
                let mut points = self.db.iterator("keep", "");
                let mut found = 0;
                while points.next().await.unwrap().is_some() {
                    found += 1;
                }
                let names = self.db.list(&Selector::all(), ALL).await.unwrap();
                (found, names.len())
            });
            assert!(found >= count, "{found} rows, {count} before");
            assert!(names >= listed, "{names} names, {listed} before");
            (count, listed) = (found, names);
        }
    }

    /// Returns the rounds of each writer.
    fn run(&self) -> Vec<i64> {
        std::thread::scope(|threads| {
            let by_name = |writer| threads.spawn(move || self.write_by_name(writer));
            let mut writers: Vec<_> = (0..WRITERS).map(by_name).collect();
            writers.push(threads.spawn(|| self.write_by_handle(WRITERS)));
            threads.spawn(|| self.flush());
            threads.spawn(|| self.read());
            let joined: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
            // The others end also after a failure.
            self.done.store(true, Ordering::Relaxed);
            joined.into_iter().map(Result::unwrap).collect()
        })
    }
}

/// Names come and go while writers by name and by handle, readers and flushes run: no row is lost, doubled or another series'.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_stored_once_while_names_leave() {
    let mut database = TestDatabase::new();
    database.options.idle_names = Duration::ZERO;
    let db = database.open().await.unwrap();
    let churn = Churn {
        db: &db,
        runtime: tokio::runtime::Handle::current(),
        done: AtomicBool::new(false),
    };
    let mut expected = BTreeSet::new();
    for (writer, rounds) in (0..).zip(churn.run()) {
        for round in 0..rounds {
            let value = (writer as f64).to_bits();
            let names = numbers(writer, round).map(|number| metric(writer, number));
            expected.extend(names.map(|name| (name, round, value)));
        }
    }
    let stored = async |db: &SeriesDb| {
        let mut stored = rows(db).await;
        stored.retain(|(metric, ..)| !metric.is_empty());
        stored
    };
    assert!(stored(&db).await == expected, "rows differ");
    let again = database.copy().open().await.unwrap();
    assert!(
        stored(&again).await == expected,
        "rows differ after a replay"
    );
}
