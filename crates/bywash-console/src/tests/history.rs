//! The server's own history.

use std::time::Duration;

use bywash_series::{Ack, Aggregate, Selector};
use bywash_support::faulty_store::{Fault, FaultyStore};

use super::*;
use crate::HISTORY_EVERY;

/// Returns the sum of all points of a series.
async fn total(db: &SeriesDb, source: &str, metric: &str) -> f64 {
    let selector = Selector::series(source, metric);
    let found = db.query(&selector, i64::MIN..=i64::MAX, None, Aggregate::Sum);
    let found = found.await.unwrap();
    let points = found.iter().flat_map(|series| &series.points);
    points.map(|point| point.value).sum()
}

async fn read(engine: &Engine) {
    let bucket = engine.bucket("data").unwrap();
    let got = bucket.get(&Path::from("a")).await.unwrap();
    got.bytes().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn history_adds_up_to_the_counters() {
    let home = tempfile::tempdir().unwrap();
    let engine = engine_with_traffic().await;
    let db = open_series(&engine, &home).await;
    let history = History::new(db.clone());
    let (stop, stopped) = oneshot::channel::<()>();
    let recording = history
        .clone()
        .record(engine.clone(), HISTORY_EVERY, async {
            let _ = stopped.await;
        });
    let recording = tokio::spawn(recording);
    for _ in 0..3 {
        // Past the next point; the clock is the test's.
        tokio::time::sleep(HISTORY_EVERY).await;
        read(&engine).await;
    }
    stop.send(()).unwrap();
    recording.await.unwrap();
    let counted = engine.stats().buckets["data"];
    for source in ["bywash", "bywash,bucket=data"] {
        assert_eq!(
            total(&db, source, "bytes").await,
            counted.bytes as f64,
            "{source}"
        );
        assert_eq!(
            total(&db, source, "hits").await,
            counted.hits as f64,
            "{source}"
        );
    }
    assert!(total(&db, "bywash", "memory_limit").await > 0.0);
    assert_eq!(total(&db, "bywash", "starts").await, 1.0);
    assert!(history.stats().points >= 4, "{:?}", history.stats());
    assert_eq!(history.stats().dropped_points, 0);
}

/// Writes history to a database whose flushes never succeed and whose log is full. A write with a zero timeout fails, any other
/// waits long.
async fn with_a_stuck_store(write_timeout: Duration) {
    const WAL_BYTES: u64 = 2 << 20;
    /// More than the test writes.
    const FILES: usize = 1000;
    let home = tempfile::tempdir().unwrap();
    let engine = engine_with_traffic().await;
    let store = FaultyStore::over(Arc::new(MemoryStore::new()));
    (0..FILES).for_each(|_| store.fault("put", "files/", Fault::HoldRequest));
    let options = SeriesOptions {
        ack: Ack::Memory,
        write_timeout,
        wal_bytes: WAL_BYTES,
        segment_bytes: WAL_BYTES / 4,
        ..SeriesOptions::default()
    };
    let budget = engine.budget().clone();
    let opened = SeriesDb::open(store.shared(), home.path().join("wal"), budget, options);
    let db = opened.await.unwrap();
    let (filling, filler) = (db.clone(), db.handle("other", "rows").unwrap());
    let filling = tokio::task::spawn_blocking(move || {
        let rows: Vec<_> = (0..WAL_BYTES as i64 / 8)
            .map(|at| (filler, at, 0.5))
            .collect();
        filling.append_batch(&rows)
    });
    while db.stats().wal_bytes < WAL_BYTES {
        tokio::task::yield_now().await;
    }

    let history = History::new(db.clone());
    let console = start_all(engine.clone(), key(), Some(history.clone())).await;
    let (stop, stopped) = oneshot::channel::<()>();
    let recording = history
        .clone()
        .record(engine.clone(), Duration::from_millis(1), async {
            let _ = stopped.await;
        });
    let recording = tokio::spawn(recording);
    // Requests are served, and dropped points counted.
    let dropped = || history.stats().dropped_points;
    for round in 1..=20 {
        let before = dropped();
        read(&engine).await;
        assert_eq!(console.get("/").await.0, 200, "round {round}");
        while dropped() == before {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    assert_eq!(history.stats().points, 0);
    let (_, _, stats) = console.get("/stats").await;
    let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
    assert!(
        stats["history"]["dropped_points"].as_u64() >= Some(20),
        "{stats}"
    );

    store.release(FILES);
    while history.stats().points < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // With a zero timeout it failed.
    let _ = filling.await.unwrap();
    stop.send(()).unwrap();
    recording.await.unwrap();
    let counted = engine.stats().buckets["data"];
    assert_eq!(
        total(&db, "bywash,bucket=data", "bytes").await,
        counted.bytes as f64,
        "increases of dropped points are in later points, once"
    );
    let missing = total(&db, "bywash", "history_dropped_points").await;
    assert!(missing >= 20.0, "{missing}");
    let (_, _, page) = console.get("/").await;
    assert!(page.contains("Missing in these charts"), "{page}");
}

#[tokio::test]
async fn stuck_store_drops_and_counts_points_and_delays_no_request() {
    with_a_stuck_store(Duration::ZERO).await;
}

#[tokio::test]
async fn stuck_history_writer_delays_no_request() {
    with_a_stuck_store(Duration::from_secs(3600)).await;
}

/// Clients cannot write the server's own measurement, so their values are in no file of its history.
#[tokio::test]
async fn damaged_file_of_the_history_hides_no_values() {
    let home = tempfile::tempdir().unwrap();
    let engine = engine_with_traffic().await;
    let store = Arc::new(MemoryStore::new());
    let budget = engine.budget().clone();
    let options = bywash_series::SeriesOptions::default();
    let db = SeriesDb::open(
        Arc::<MemoryStore>::clone(&store),
        home.path().join("wal"),
        budget,
        options,
    );
    let db = db.await.unwrap();
    let row = bywash_series::Row {
        source: "bywash",
        metric: "requests",
        timestamp: 1,
        value: 1.0,
    };
    db.insert_rows(&[row]).unwrap();
    db.flush().await.unwrap();
    let files = futures::TryStreamExt::try_collect::<Vec<_>>(object_store::ObjectStore::list(
        &*store,
        Some(&"files".into()),
    ));
    let file = files.await.unwrap().remove(0);
    let damage = vec![7; file.size as usize];
    store.put(&file.location, damage.into()).await.unwrap();
    let console = start_all(engine.clone(), key(), Some(History::new(db))).await;
    assert_eq!(console.post("/write", "", b"m v=2 2").await.0, 204);

    for values in ["source=m", "source=m*", "metric=v&source=m"] {
        for path in ["list", "query"] {
            let (status, head, body) = console.get(&format!("/series/{path}?{values}")).await;
            assert_eq!((status, body.contains("\"m\"")), (200, true), "{values}");
            assert_eq!(header(&head, "x-bywash-damaged-file"), None, "{values}");
        }
    }
    assert!(engine.damaged_files().is_empty(), "no query needed it");
    // A query of all series has the others, and names the file.
    for path in ["list", "query"] {
        let (status, head, body) = console.get(&format!("/series/{path}")).await;
        assert_eq!((status, body.contains("\"m\"")), (200, true), "{body}");
        let expected = format!("history/{}", file.location);
        assert_eq!(header(&head, "x-bywash-damaged-file"), Some(&*expected));
    }
    let (_, _, ready) = console.get("/readyz").await;
    assert!(ready.contains(file.location.as_ref()), "{ready}");
    let (status, _, page) = console.get("/").await;
    assert_eq!(status, 200, "{page}");
}
