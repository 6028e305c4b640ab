//! Cache administration: listing, explaining, dropping and warming cached objects.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use bywash::origin::memory::MemoryStore;
use bywash::{Bucket, Consistency, Engine};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt};

const BLOCK: usize = 64 << 10;
const MEMORY: u64 = 4 << 20;

async fn bucket(consistency: Consistency, objects: &[(&str, usize)]) -> (MemoryStore, Bucket) {
    let engine = Engine::builder()
        .memory(MEMORY)
        .block_size(BLOCK)
        .build()
        .unwrap();
    let origin = MemoryStore::new();
    for (key, length) in objects {
        let body = Bytes::from(vec![7; *length]);
        origin.put(&Path::from(*key), body.into()).await.unwrap();
    }
    let bucket = engine
        .mount("test", Arc::new(origin.clone()), consistency)
        .unwrap();
    (origin, bucket)
}

async fn read(bucket: &Bucket, key: &str) -> usize {
    let body = bucket.get(&Path::from(key)).await.unwrap();
    body.bytes().await.unwrap().len()
}

#[tokio::test]
async fn cached_objects_are_listed_with_their_cost() {
    let objects = [("logs/a", 3 * BLOCK + 1), ("logs/b", 10), ("other", BLOCK)];
    let (_origin, bucket) = bucket(Consistency::Immutable, &objects).await;
    assert!(bucket.cached("").is_empty(), "no object was read yet");
    for (key, length) in objects {
        assert_eq!(read(&bucket, key).await, length);
    }
    let keys = |prefix| {
        let cached = bucket.cached(prefix);
        cached
            .into_iter()
            .map(|object| object.key)
            .collect::<Vec<_>>()
    };
    assert_eq!(keys(""), ["logs/a", "logs/b", "other"]);
    assert_eq!(keys("logs/"), ["logs/a", "logs/b"]);
    assert_eq!(keys("logs/b"), ["logs/b"]);
    let first = &bucket.cached("logs/a")[0];
    assert_eq!((first.blocks, first.resident_blocks), (4, 4));
    assert_eq!((first.size, first.resident_bytes), (196_609, 196_609));
    assert_eq!((first.cost.bytes, first.cost.blocks), (196_609, 4));
    assert_eq!(first.cost.requests, 1);
    assert!(first.fresh);
}

#[tokio::test]
async fn explain_distinguishes_hit_partial_and_miss() {
    let objects = [("a", 4 * BLOCK), ("large", 8 << 20)];
    let (_origin, bucket) = bucket(Consistency::Immutable, &objects).await;
    let path = Path::from("a");
    let why = bucket.explain(&path);
    assert_eq!((why.outcome.as_str(), why.tier.as_str()), ("miss", "none"));
    assert!(why.reasons[0].contains("it has not been read"), "{why:?}");
    assert_eq!(why.object, None);

    let block = BLOCK as u64;
    bucket.get_range(&path, 0..block).await.unwrap();
    let why = bucket.explain(&path);
    assert_eq!(
        (why.outcome.as_str(), why.tier.as_str()),
        ("partial", "memory")
    );
    let reasons = why.reasons.join("; ");
    assert!(reasons.contains("1 of its 4 blocks"), "{reasons}");
    assert!(reasons.contains("3 were never read"), "{reasons}");

    read(&bucket, "a").await;
    let why = bucket.explain(&path);
    assert_eq!(why.outcome, "hit");
    let reasons = why.reasons.join("; ");
    assert!(
        reasons.contains("all of its blocks are in memory"),
        "{reasons}"
    );
    assert!(reasons.contains("never revalidated"), "{reasons}");

    read(&bucket, "large").await;
    let why = bucket.explain(&Path::from("large"));
    let reasons = why.reasons.join("; ");
    assert!(reasons.contains("loaded and evicted"), "{reasons}");
}

#[tokio::test(start_paused = true)]
async fn explain_reports_when_the_version_is_revalidated() {
    let window = Consistency::Revalidate(Duration::from_secs(5));
    let (_origin, bucket) = bucket(window, &[("a", 10)]).await;
    read(&bucket, "a").await;
    let why = bucket.explain(&Path::from("a"));
    assert!(why.object.as_ref().unwrap().fresh, "{why:?}");
    assert!(
        why.reasons.join("; ").contains("trusts that for 5s"),
        "{why:?}"
    );
    tokio::time::advance(Duration::from_secs(6)).await;
    let why = bucket.explain(&Path::from("a"));
    assert_eq!(why.outcome, "hit", "its bytes are here");
    assert!(!why.object.as_ref().unwrap().fresh, "{why:?}");
    assert!(
        why.reasons
            .join("; ")
            .contains("revalidates it by one request"),
        "{why:?}"
    );
}

#[tokio::test]
async fn dropped_objects_leave_memory_and_are_loaded_again() {
    let objects = [("logs/a", 2 * BLOCK), ("logs/b", BLOCK), ("other", BLOCK)];
    let (_origin, bucket) = bucket(Consistency::Immutable, &objects).await;
    for (key, _) in objects {
        read(&bucket, key).await;
    }
    let dropped = bucket.drop_cached("logs/");
    assert_eq!((dropped.objects, dropped.bytes), (2, 3 * BLOCK as u64));
    assert_eq!(bucket.cached("").len(), 1);
    assert_eq!(bucket.explain(&Path::from("other")).outcome, "hit");
    assert_eq!(bucket.explain(&Path::from("logs/a")).outcome, "miss");
    assert_eq!(read(&bucket, "logs/a").await, 2 * BLOCK);
    assert_eq!(bucket.drop_cached("nothing/").objects, 0);
}

#[tokio::test]
async fn warming_reads_up_to_the_memory_limit_and_reports_skipped_objects() {
    let objects = [
        ("logs/a", 2 * BLOCK),
        ("logs/b", 0),
        ("logsbook", BLOCK),
        ("x", BLOCK),
    ];
    let (origin, bucket) = bucket(Consistency::Immutable, &objects).await;
    let warmed = bucket.warm("logs").await.unwrap();
    assert_eq!((warmed.objects, warmed.bytes), (3, 3 * BLOCK as u64));
    assert_eq!((warmed.left_out, warmed.failed.len()), (0, 0));
    assert_eq!(bucket.explain(&Path::from("logsbook")).outcome, "hit");
    assert_eq!(bucket.explain(&Path::from("x")).outcome, "miss");

    for n in 0..5 {
        let path = Path::from(format!("many/{n}"));
        let body = Bytes::from(vec![1; 1 << 20]);
        origin.put(&path, body.into()).await.unwrap();
    }
    let warmed = bucket.warm("many/").await.unwrap();
    assert_eq!(
        (warmed.objects, warmed.left_out),
        (2, 3),
        "of 3 MiB, less the rounding"
    );
    for n in 0..2 {
        assert_eq!(
            bucket.explain(&Path::from(format!("many/{n}"))).outcome,
            "hit"
        );
    }
    assert_eq!(bucket.warm("nothing/").await.unwrap().objects, 0);
}

#[tokio::test]
async fn memory_is_counted_by_kind_and_by_bucket() {
    let objects = [("table", 8 * BLOCK + 100), ("small", 10)];
    let origin = MemoryStore::new();
    for (key, length) in objects {
        let body = Bytes::from(vec![7; length]);
        origin.put(&Path::from(key), body.into()).await.unwrap();
    }
    let engine = Engine::builder()
        .memory(MEMORY)
        .block_size(BLOCK)
        .build()
        .unwrap();
    let mount = |name| {
        let origin = Arc::new(origin.clone());
        engine.mount(name, origin, Consistency::Immutable).unwrap()
    };
    let (bucket, other) = (mount("test"), mount("other"));
    let kinds = || {
        let kinds = engine.stats().memory.kinds;
        ["data", "small", "footer", "readahead"].map(|kind| kinds[kind].blocks)
    };
    let table = Path::from("table");
    // The version is unknown: the first response has the footer.
    let last = GetOptions::new().with_range(Some(GetRange::Suffix(8)));
    other
        .get_opts(&table, last)
        .await
        .unwrap()
        .bytes()
        .await
        .unwrap();
    assert_eq!(kinds(), [0, 0, 1, 0]);
    // The version is known: a range to the end, as of readers that know the length.
    bucket.head(&table).await.unwrap();
    let size = 8 * BLOCK as u64 + 100;
    bucket.get_range(&table, size - 8..size).await.unwrap();
    assert_eq!(kinds(), [0, 0, 2, 0]);
    bucket.get_range(&table, 0..size).await.unwrap();
    assert_eq!(read(&bucket, "small").await, 10);
    assert_eq!(kinds(), [8, 1, 2, 0]);

    let memory = engine.stats().memory;
    let footer = memory.kinds["footer"];
    assert_eq!((footer.bytes, footer.evicted_blocks), (2 * 4096, 0));
    let of = |name: &str| (memory.buckets[name].blocks, memory.buckets[name].bytes);
    assert_eq!(of("other"), (1, 4096));
    assert_eq!(of("test"), (10, 8 * BLOCK as u64 + 2 * 4096));
    let dropped = bucket.drop_cached("");
    assert_eq!(dropped.objects, 2);
    let memory = engine.stats().memory;
    assert_eq!(memory.buckets["test"].blocks, 0);
    assert_eq!(memory.kinds["data"].evicted_bytes, 8 * BLOCK as u64);
}
