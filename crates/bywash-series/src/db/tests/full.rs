//! Tests of memory that is full of names: writers wait for others to leave.

use std::time::Duration;

use bywash_support::faulty_store::{Fault, FaultyStore};

use super::machines::open_over;
use super::store::down;
use super::*;
use crate::Selector;

const MEMORY: u64 = 2 << 20;
/// Names that take about three times that.
const MANY_NAMES: usize = 20_000;

/// A database with writers that wait so long.
fn small(write_timeout: Duration) -> TestDatabase {
    let mut database = TestDatabase::new();
    database.options.memtable_bytes = Some(MEMORY);
    database.options.write_timeout = write_timeout;
    database
}

/// Far more names than memory holds at once, one a call and many.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_beyond_the_memory_are_written_as_others_leave() {
    const NAMES: usize = 12_000;
    let database = small(Duration::from_secs(600));
    let db = database.open().await.unwrap();
    let writer = db.clone();
    let written = tokio::task::spawn_blocking(move || {
        let names: Vec<_> = (0..NAMES).map(|number| format!("{number}")).collect();
        let rows: Vec<_> = names.iter().map(|name| row("host", name, 1, 0.5)).collect();
        let (one_by_one, at_once) = rows.split_at(NAMES / 2);
        for row in one_by_one {
            writer.insert_rows(&[*row]).unwrap();
        }
        writer.insert_rows(at_once).unwrap();
    });
    written.await.unwrap();
    let stats = db.stats();
    assert!(stats.memtable_bytes <= MEMORY, "{stats:?}");
    assert!(stats.departed_series > NAMES as u64 / 4, "{stats:?}");
    let names = db.list(&Selector::all(), ALL).await.unwrap();
    assert_eq!(names.len(), NAMES);
}

/// Names without rows leave without a flush: the writer waits for sweeps, and requests nothing
/// until then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_name_waits_for_names_without_rows_and_causes_no_flush() {
    let database = small(Duration::from_secs(600));
    let db = database.open().await.unwrap();
    let writer = db.clone();
    let flushes = tokio::task::spawn_blocking(move || {
        let full = (0..).find_map(|number| writer.handle("a", &format!("{number}")).err());
        assert!(
            matches!(full, Some(SeriesError::TooManySeries { .. })),
            "a lookup does not wait: {full:?}"
        );
        let before = writer.stats().flushes;
        writer.insert_rows(&[row("b", "new", 1, 0.5)]).unwrap();
        writer.stats().flushes - before
    });
    assert_eq!(flushes.await.unwrap(), 0);
    assert!(db.stats().departed_series > 0);
    assert_eq!(content(&db).len(), 1);
}

/// Each call of a batch used to wait for a time limit of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_a_batch_wait_one_time_limit_together() {
    const CALLS: u32 = 20;
    let limit = Duration::from_millis(500);
    let database = small(limit);
    let db = database.open().await.unwrap();
    db.handle("a", "known").unwrap();
    while db.0.memtable.memory.try_charge(16) {}
    let stalled = tokio::task::spawn_blocking(move || {
        let began = Instant::now();
        let mut batch = db.batch();
        for call in 0..CALLS {
            let name = if call % 2 == 0 { "known" } else { "new" };
            let written = batch.insert_rows(&[row("a", name, 1, 0.5)]);
            assert!(
                matches!(written, Err(SeriesError::WriteStalled { .. })),
                "{written:?}"
            );
        }
        began.elapsed()
    });
    let stalled = stalled.await.unwrap();
    assert!((limit..limit * CALLS / 2).contains(&stalled), "{stalled:?}");
}

/// Flushes that free nothing are not repeated at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_without_memory_waits_its_time_limit_and_causes_few_flushes() {
    let database = small(Duration::from_millis(400));
    let db = database.open().await.unwrap();
    let series = db.handle("a", "b").unwrap();
    // As names would.
    while db.0.memtable.memory.try_charge(16) {}
    let writer = db.clone();
    let before = db.stats().flushes;
    let stalled = tokio::task::spawn_blocking(move || writer.append(series, 1, 0.5));
    let stalled = stalled.await.unwrap();
    let Err(SeriesError::WriteStalled { waited, .. }) = stalled else {
        panic!("{stalled:?}");
    };
    // A tenth of a second apart.
    let flushes = db.stats().flushes - before;
    let most = 2 + waited.as_millis() / 100;
    assert!(
        (1..=most).contains(&u128::from(flushes)),
        "{flushes} in {waited:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_name_waits_its_time_limit_while_the_store_is_down() {
    let limit = Duration::from_millis(50);
    let (store, database) = (FaultyStore::default(), small(limit));
    let db = open_over(store.shared(), &database).await.unwrap();
    down(&store, Fault::Fail);
    let writer = db.clone();
    let refused = tokio::task::spawn_blocking(move || {
        let mut refused = 0;
        for number in 0.. {
            let name = format!("{number}");
            let Err(error) = writer.insert_rows(&[row("a", &name, 1, 0.5)]) else {
                continue;
            };
            let SeriesError::WriteStalled { waited, cause, .. } = error else {
                panic!("{error}");
            };
            assert!(waited >= limit, "{waited:?}");
            refused += 1;
            let cause = cause.unwrap_or_default();
            if refused > 3 && cause.contains("the connection broke") {
                return number;
            }
        }
        unreachable!("memory is full some time")
    });
    let refused = refused.await.unwrap();
    assert!(refused > 1000, "only {refused} names fit");
    store.clear_faults();
    let writer = db.clone();
    let accepted = tokio::task::spawn_blocking(move || {
        // Its wait may end before names have left.
        while writer.insert_rows(&[row("b", "new", 1, 0.5)]).is_err() {}
    });
    accepted.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writer_that_waits_for_names_is_refused_when_the_database_is_closed() {
    let (store, database) = (FaultyStore::default(), small(Duration::from_secs(600)));
    let db = open_over(store.shared(), &database).await.unwrap();
    down(&store, Fault::HoldRequest);
    let writer = db.clone();
    let refused = tokio::task::spawn_blocking(move || {
        let insert = |number: u64| writer.insert_rows(&[row("a", &format!("{number}"), 1, 0.5)]);
        (0..).find_map(|number| insert(number).err())
    });
    while !db.0.memtable.directory.is_refused() {
        tokio::task::yield_now().await;
    }
    db.close().await.unwrap();
    let refused = refused.await.unwrap();
    assert!(matches!(refused, Some(SeriesError::Closed)), "{refused:?}");
}

/// The log may come from a process with more memory, or from a build that charged less for a name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_beyond_the_memory_is_opened_and_refuses_only_new_names() {
    let mut database = TestDatabase::new();
    let db = database.open().await.unwrap();
    let names: Vec<_> = (0..MANY_NAMES).map(|number| format!("{number}")).collect();
    let rows: Vec<_> = names.iter().map(|name| row("host", name, 1, 0.5)).collect();
    db.insert_rows(&rows).unwrap();
    let before = content(&db);
    drop(db);

    database.options.memtable_bytes = Some(MEMORY);
    database.options.write_timeout = Duration::from_secs(600);
    // Nor does the budget have the memory.
    let pool = BlockPool::new(PoolConfig::new(2 * MEMORY)).unwrap();
    let budget = pool.budget();
    let prepared = SeriesDb::prepare(
        Arc::clone(&database.store) as Arc<dyn ObjectStore>,
        database.folder.path(),
        budget.clone(),
        database.options.clone(),
    );
    let prepared = prepared.await.unwrap();
    let memtable = Arc::clone(&prepared.memtable);
    assert!(memtable.memory.used() > budget.limit());
    assert!(budget.used() <= budget.limit(), "{}", budget.used());
    let catalog = memtable.directory.current();
    assert!(catalog.handle("host", "0", &memtable).is_ok());
    let refused = catalog.handle("host", "new", &memtable).unwrap_err();
    let (refused, limit) = (refused.to_string(), memtable.max_name_bytes().to_string());
    for part in [&*limit, "memtable_bytes", "--memory"] {
        assert!(refused.contains(part), "{refused}");
    }

    let db = prepared.take_over().await.unwrap();
    let writer = db.clone();
    let new = row("host", "new", 1, 0.5);
    let written = tokio::task::spawn_blocking(move || writer.insert_rows(&[new]));
    written.await.unwrap().unwrap();
    assert!(db.stats().memtable_bytes <= MEMORY, "{:?}", db.stats());
    db.flush().await.unwrap();
    // A query of all names needs more memory than the budget has.
    let selector = Selector::all();
    let read = db.query(&selector, ALL, None, crate::Aggregate::Last).await;
    assert!(
        matches!(read, Err(SeriesError::NoMemory { .. })),
        "{read:?}"
    );
    let store = Arc::clone(&database.store) as Arc<dyn ObjectStore>;
    let pool = BlockPool::new(PoolConfig::new(64 << 20)).unwrap();
    let reader = SeriesDb::open_to_read(store, pool.budget().clone());
    let reader = reader.await.unwrap();
    let read = reader.query(&selector, ALL, None, crate::Aggregate::Last);
    let read = read.await.unwrap();
    let read: Content = read
        .iter()
        .flat_map(|series| {
            let (source, metric) = (series.source.to_string(), series.metric.to_string());
            series.points.iter().map(move |point| {
                let key = (source.clone(), metric.clone(), point.timestamp);
                (key, point.value.to_bits())
            })
        })
        .collect();
    assert_eq!(read.len(), MANY_NAMES + 1);
    assert!(before.iter().all(|(key, bits)| read.get(key) == Some(bits)));
}
