//! Series in a bucket of Bywash itself: in a folder, and in memory.

use std::sync::Arc;

use bywash::origin::Origin;
use bywash::origin::folder::FolderStore;
use bywash::origin::memory::MemoryStore;
use bywash::{Bucket, Consistency, Engine};
use bywash_series::{Aggregate, Row, Selector, SeriesDb, SeriesOptions};

const HOUR: i64 = 3_600_000_000_000;

async fn open(bucket: &Bucket, log: &std::path::Path) -> SeriesDb {
    let pool = bywash_mem::BlockPool::new(bywash_mem::PoolConfig::new(64 << 20)).unwrap();
    let store = Arc::new(bucket.clone());
    SeriesDb::open(store, log, pool.budget().clone(), SeriesOptions::default())
        .await
        .unwrap()
}

async fn series_round_trip(origin: Arc<dyn Origin>) {
    let engine = Engine::builder().memory(64 << 20).build().unwrap();
    let bucket = engine
        .mount("series", origin, Consistency::default())
        .unwrap();
    let log = tempfile::tempdir().unwrap();
    let db = open(&bucket, log.path()).await;
    for part in 0..4 {
        let row = |n: i64| Row {
            source: if n % 2 == 0 { "even" } else { "odd" },
            metric: "n",
            timestamp: (part * 5000 + n) * HOUR / 1000,
            value: n as f64,
        };
        db.insert_rows(&(0..5000).map(row).collect::<Vec<_>>())
            .unwrap();
        db.flush().await.unwrap();
    }
    let ask = async |db: &SeriesDb| {
        let found = db
            .query(&Selector::all(), 0..=i64::MAX, Some(HOUR), Aggregate::Sum)
            .await
            .unwrap();
        let points = found
            .iter()
            .flat_map(|series| series.points.iter().copied());
        points
            .map(|point| (point.timestamp, point.value.to_bits()))
            .collect::<Vec<_>>()
    };
    let before = ask(&db).await;
    assert_eq!(before.len(), 40);
    db.compact().await.unwrap();
    assert_eq!(db.stats().files, 1);
    assert_eq!(ask(&db).await, before);
    let origin_bytes = engine.stats().buckets["series"].origin_bytes;
    assert_eq!(ask(&db).await, before);
    assert_eq!(
        engine.stats().buckets["series"].origin_bytes,
        origin_bytes,
        "the second time from the cache"
    );
    db.close().await.unwrap();
    drop(db);
    assert_eq!(ask(&open(&bucket, log.path()).await).await, before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn series_in_a_folder_bucket_round_trip() {
    let folder = tempfile::tempdir().unwrap();
    series_round_trip(Arc::new(FolderStore::open(folder.path()).unwrap())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn series_in_a_memory_bucket_round_trip() {
    series_round_trip(Arc::new(MemoryStore::new())).await;
}
