//! Promises of the cache, observed through the bucket and its counters.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use bywash::origin::memory::MemoryStore;
use bywash::{
    Bucket, BucketStats, CacheOutcome, Consistency, Engine, EngineError, LimitError, ReadInfo,
};
use bywash_support::pattern;
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt};

const BLOCK: usize = 64 << 10;
/// The minimum memory of an engine with these blocks.
const LEAST: u64 = 8 * BLOCK as u64;

fn engine() -> Engine {
    Engine::builder()
        .memory(16 << 20)
        .block_size(BLOCK)
        .build()
        .unwrap()
}

fn bucket_over(engine: &Engine, consistency: Consistency) -> (MemoryStore, Bucket) {
    let origin = MemoryStore::new();
    let bucket = engine
        .mount("test", Arc::new(origin.clone()), consistency)
        .unwrap();
    (origin, bucket)
}

fn stats(engine: &Engine) -> BucketStats {
    engine.stats().buckets["test"]
}

async fn outcome_of(bucket: &Bucket, path: &Path, options: GetOptions) -> (CacheOutcome, Bytes) {
    let result = bucket.get_opts(path, options).await.unwrap();
    let info = result.extensions.get::<ReadInfo>().unwrap().clone();
    (info.outcome, result.bytes().await.unwrap())
}

#[tokio::test]
async fn second_read_is_served_from_memory() {
    let engine = engine();
    let (origin, bucket) = bucket_over(&engine, Consistency::Immutable);
    let path = Path::from("a/b");
    for length in [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK + 17] {
        let data = pattern(0, length);
        origin.put(&path, data.clone().into()).await.unwrap();
        bucket.put(&path, data.clone().into()).await.unwrap();
        let before = stats(&engine);
        assert_eq!(
            bucket.get(&path).await.unwrap().bytes().await.unwrap(),
            data,
            "cold, {length}"
        );
        let cold = stats(&engine);
        assert_eq!(
            cold.origin_bytes - before.origin_bytes,
            length as u64,
            "{length}"
        );
        let (outcome, warm) = outcome_of(&bucket, &path, GetOptions::default()).await;
        assert_eq!(warm, data, "warm, {length}");
        assert_eq!(outcome, CacheOutcome::Hit, "{length}");
        let after = stats(&engine);
        assert_eq!(
            after.origin_data_requests, cold.origin_data_requests,
            "{length}"
        );
        assert_eq!(after.origin_requests, cold.origin_requests, "{length}");
        let blocks = length.div_ceil(BLOCK) as u64;
        assert_eq!(after.hits - cold.hits, blocks);
        assert_eq!(cold.misses - before.misses, blocks);
    }
}

#[tokio::test]
async fn blocks_and_bytes_of_a_body_left_early_are_counted() {
    let engine = engine();
    let (origin, bucket) = bucket_over(&engine, Consistency::Immutable);
    let path = Path::from("a/b");
    origin
        .put(&path, pattern(0, 40 * BLOCK).into())
        .await
        .unwrap();
    drop(bucket.get(&path).await.unwrap().bytes().await.unwrap());
    for taken in [1, 2, 17, 39] {
        let before = stats(&engine);
        let mut body = bucket.get(&path).await.unwrap().into_stream();
        for _ in 0..taken {
            body.try_next().await.unwrap().unwrap();
        }
        drop(body);
        let after = stats(&engine);
        assert_eq!(after.hits - before.hits, taken);
        assert_eq!(after.bytes - before.bytes, taken * BLOCK as u64);
    }
}

/// A body begins after it looked up 64 blocks, and looks up the others on its way.
#[tokio::test]
async fn absent_tail_behind_many_resident_blocks_is_read_ahead() {
    let engine = engine();
    let (origin, bucket) = bucket_over(&engine, Consistency::Immutable);
    let path = Path::from("a/b");
    let data = pattern(0, 160 * BLOCK);
    origin.put(&path, data.clone().into()).await.unwrap();
    let head = GetOptions::new().with_range(Some(GetRange::Bounded(0..100 * BLOCK as u64)));
    assert_eq!(outcome_of(&bucket, &path, head).await.1.len(), 100 * BLOCK);
    let before = stats(&engine);
    let (outcome, bytes) = outcome_of(&bucket, &path, GetOptions::default()).await;
    assert_eq!(outcome, CacheOutcome::Hit, "as far as it looked");
    assert!(bytes == data);
    let after = stats(&engine);
    assert_eq!(after.hits - before.hits, 100);
    assert_eq!(after.misses - before.misses, 60);
    let requests = after.origin_data_requests - before.origin_data_requests;
    assert!(requests <= 60 / 4, "{requests} requests for 60 blocks");
}

#[tokio::test]
async fn cold_read_of_an_unknown_object_costs_one_request() {
    let engine = engine();
    let (origin, bucket) = bucket_over(&engine, Consistency::Immutable);
    let data = pattern(0, 3 * BLOCK + 5);
    for (name, range) in [
        ("whole", None),
        ("bounded", Some(GetRange::Bounded(10..100))),
        ("offset", Some(GetRange::Offset(BLOCK as u64 + 3))),
        ("suffix", Some(GetRange::Suffix(7))),
        ("long-suffix", Some(GetRange::Suffix(2 * BLOCK as u64))),
    ] {
        let path = Path::from(name);
        origin.put(&path, data.clone().into()).await.unwrap();
        let before = stats(&engine);
        let options = GetOptions {
            range: range.clone(),
            ..GetOptions::default()
        };
        let result = bucket.get_opts(&path, options).await.unwrap();
        let expected = range.map_or(0..data.len() as u64, |range| {
            range.as_range(data.len() as u64).unwrap()
        });
        assert_eq!(result.range, expected);
        let expected = data.slice(expected.start as usize..expected.end as usize);
        assert_eq!(result.bytes().await.unwrap(), expected, "{name}");
        assert_eq!(
            stats(&engine).origin_requests - before.origin_requests,
            1,
            "{name}"
        );
    }
}

#[tokio::test]
async fn write_is_visible_at_once_and_a_stale_version_is_revalidated_once() {
    let engine = engine();
    let (origin, bucket) = bucket_over(&engine, Consistency::Revalidate(Duration::from_millis(0)));
    let path = Path::from("a");
    bucket.put(&path, "one".into()).await.unwrap();
    assert_eq!(
        bucket.get(&path).await.unwrap().bytes().await.unwrap(),
        "one"
    );
    bucket.put(&path, "two".into()).await.unwrap();
    assert_eq!(
        bucket.get(&path).await.unwrap().bytes().await.unwrap(),
        "two"
    );
    // Written behind the bucket's back: seen as soon as the version is revalidated.
    origin.put(&path, "three".into()).await.unwrap();
    assert_eq!(
        bucket.get(&path).await.unwrap().bytes().await.unwrap(),
        "three"
    );
    // Unchanged: one HEAD, no data.
    let before = stats(&engine);
    assert_eq!(
        bucket.get(&path).await.unwrap().bytes().await.unwrap(),
        "three"
    );
    let after = stats(&engine);
    assert_eq!(after.origin_requests - before.origin_requests, 1);
    assert_eq!(after.origin_data_requests, before.origin_data_requests);
    bucket.delete(&path).await.unwrap();
    assert!(matches!(
        bucket.get(&path).await,
        Err(object_store::Error::NotFound { .. })
    ));
}

#[tokio::test]
async fn many_small_objects_use_small_frames() {
    let engine = Engine::builder().memory(128 << 20).build().unwrap();
    let (origin, bucket) = bucket_over(&engine, Consistency::Immutable);
    let data = pattern(0, 3 << 10);
    for i in 0..10_000 {
        let path = Path::from(format!("small/{i}"));
        origin.put(&path, data.clone().into()).await.unwrap();
        assert_eq!(
            bucket.get(&path).await.unwrap().bytes().await.unwrap(),
            data
        );
    }
    let stats = engine.stats();
    assert_eq!(stats.pool.resident_blocks, 10_000, "all are still here");
    assert!(stats.budget.used < 64 << 20, "{stats:?}");
}

#[tokio::test]
async fn object_larger_than_memory_streams_through() {
    let engine = engine();
    let (origin, bucket) = bucket_over(&engine, Consistency::default());
    let data = pattern(0, 40 << 20);
    let path = Path::from("large");
    origin.put(&path, data.clone().into()).await.unwrap();
    let mut at = 0;
    let mut body = bucket.get(&path).await.unwrap().into_stream();
    while let Some(piece) = body.try_next().await.unwrap() {
        assert_eq!(piece, data.slice(at..at + piece.len()));
        at += piece.len();
        let budget = engine.stats().budget;
        assert!(budget.used <= budget.limit, "{budget:?}");
    }
    assert_eq!(at, data.len());
}

#[tokio::test]
async fn cold_read_sends_one_request_per_range_fetch() {
    let engine = engine();
    let (origin, bucket) = bucket_over(&engine, Consistency::Immutable);
    // A sixteenth of the memory is one range fetch.
    for shards in 1..=4 {
        let path = Path::from(format!("of-{shards}"));
        let data = pattern(0, shards << 20);
        origin.put(&path, data.clone().into()).await.unwrap();
        let before = stats(&engine).origin_data_requests;
        let body = bucket.get(&path).await.unwrap();
        assert_eq!(body.bytes().await.unwrap(), data);
        let requests = stats(&engine).origin_data_requests - before;
        assert_eq!(requests, shards as u64);
    }
}

#[tokio::test]
async fn second_read_hits_in_memory_full_of_blocks_read_once() {
    let engine = engine();
    let (origin, bucket) = bucket_over(&engine, Consistency::Immutable);
    let quarter = pattern(0, 4 << 20);
    let mut received = stats(&engine).origin_bytes;
    let mut read = async |name: String| {
        let body = bucket.get(&Path::from(name)).await.unwrap();
        assert_eq!(body.bytes().await.unwrap(), quarter);
        let now = stats(&engine).origin_bytes;
        now - std::mem::replace(&mut received, now)
    };
    for n in 0..8 {
        let name = format!("scan-{n}");
        origin
            .put(&Path::from(name.as_str()), quarter.clone().into())
            .await
            .unwrap();
        assert_eq!(read(name).await, 4 << 20, "each byte once");
    }
    origin
        .put(&Path::from("again"), quarter.clone().into())
        .await
        .unwrap();
    // Blocks read once must not keep later ones out.
    let again = [read("again".into()).await, read("again".into()).await];
    assert_eq!(again, [4 << 20, 0], "a second read requests nothing");
}

#[tokio::test]
async fn blocks_read_once_count_one_use_and_evict_no_hot_blocks() {
    let engine = engine();
    let (origin, bucket) = bucket_over(&engine, Consistency::Immutable);
    // Of one block each, resident before the reader that requested it looks it up.
    let data = pattern(0, BLOCK);
    let read = async |name: String| {
        let path = Path::from(name);
        if origin.head(&path).await.is_err() {
            origin.put(&path, data.clone().into()).await.unwrap();
        }
        bucket.get(&path).await.unwrap().bytes().await.unwrap();
    };
    let half = (8 << 20) / BLOCK;
    for _ in 0..2 {
        for n in 0..half {
            read(format!("hot-{n}")).await;
        }
    }
    for n in 0..6 * half {
        read(format!("once-{n}")).await;
    }
    let before = stats(&engine).origin_data_requests;
    for n in 0..half {
        read(format!("hot-{n}")).await;
    }
    let requests = stats(&engine).origin_data_requests - before;
    assert!(
        requests <= half as u64 / 20,
        "{requests} of {half} were evicted"
    );
}

/// Shards of a training set, as a job reads them each epoch, next to data that it reads once. A set of `COUNT` shards has
/// 25 MiB, and blocks may have 48.
struct Shards {
    engine: Engine,
    origin: MemoryStore,
    bucket: Bucket,
}

impl Shards {
    const COUNT: usize = 200;
    /// As many as fill the memory. One more would be read into memory that the policy has found unused.
    const FULL: usize = 384;
    /// Eight blocks.
    const BYTES: usize = 8 * Self::BLOCK;
    const BLOCK: usize = 16 << 10;

    fn new() -> Self {
        let engine = Engine::builder()
            .memory(64 << 20)
            .block_size(Self::BLOCK)
            .build()
            .unwrap();
        let (origin, bucket) = bucket_over(&engine, Consistency::Immutable);
        Self {
            engine,
            origin,
            bucket,
        }
    }

    /// Reads `count` shards of a set, shuffled. Returns the blocks that the origin had to send.
    async fn read(&self, set: &str, count: usize) -> usize {
        let before = stats(&self.engine).origin_bytes;
        // 37 has no common factor with the counts of shards here.
        for shard in (0..count).map(|n| n * 37 % count) {
            let path = Path::from(format!("{set}/{shard}"));
            let body = Bytes::from(vec![shard as u8; Self::BYTES]);
            if self.origin.head(&path).await.is_err() {
                self.origin.put(&path, body.clone().into()).await.unwrap();
            }
            let read = self.bucket.get(&path).await.unwrap();
            assert_eq!(read.bytes().await.unwrap(), body);
        }
        (stats(&self.engine).origin_bytes - before) as usize / Self::BLOCK
    }
}

/// In full memory the policy keeps new blocks only once it has found the old ones unused, by a sample of 48.
#[tokio::test]
async fn warm_set_that_was_read_twice_outlasts_scans_of_more_than_memory() {
    let warm = Shards::COUNT * 8;
    for (filled, may_lose) in [(0, 0), (Shards::FULL, 48)] {
        let shards = Shards::new();
        shards.read("filled", filled).await;
        assert_eq!(shards.read("warm", Shards::COUNT).await, warm);
        let again = shards.read("warm", Shards::COUNT).await;
        assert!(again <= may_lose, "{again} blocks though all fit");
        for round in 0..3 {
            let scan = shards.read(&format!("once-{round}"), 800).await;
            assert_eq!(scan, 800 * 8, "each block once");
            let lost = shards.read("warm", Shards::COUNT).await;
            assert!(lost <= may_lose, "{lost} of {warm} in round {round}");
        }
    }
}

/// Such a set differs from a scan only by its age, and both together exceed the memory by an eighth of the set.
#[tokio::test]
async fn warm_set_that_was_read_once_loses_at_most_an_eighth_to_a_scan_of_its_size() {
    let shards = Shards::new();
    let warm = Shards::COUNT * 8;
    assert_eq!(shards.read("warm", Shards::COUNT).await, warm);
    for round in 0..4 {
        shards.read(&format!("once-{round}"), Shards::COUNT).await;
        let lost = shards.read("warm", Shards::COUNT).await;
        assert!(lost <= warm / 8, "{lost} of {warm} in round {round}");
    }
}

#[tokio::test]
async fn deleted_bucket_leaves_no_blocks_and_others_keep_theirs() {
    let root = tempfile::tempdir().unwrap();
    let engine = Engine::builder()
        .memory(16 << 20)
        .block_size(BLOCK)
        .root(root.path())
        .build()
        .unwrap();
    let path = Path::from("a");
    let data = pattern(0, 3 * BLOCK);
    for name in ["goes", "stays"] {
        let bucket = engine.create_bucket(name).unwrap();
        bucket.put(&path, data.clone().into()).await.unwrap();
        bucket.get(&path).await.unwrap().bytes().await.unwrap();
    }
    assert_eq!(engine.stats().pool.resident_blocks, 6);
    engine.bucket("goes").unwrap().delete(&path).await.unwrap();
    engine.delete_bucket("goes").await.unwrap();
    assert_eq!(engine.stats().pool.resident_blocks, 3);
    let stays = engine.bucket("stays").unwrap();
    let (outcome, bytes) = outcome_of(&stays, &path, GetOptions::default()).await;
    assert_eq!((outcome, bytes), (CacheOutcome::Hit, data));
}

#[tokio::test]
async fn ceiling_changes_at_run_time() {
    let engine = Engine::builder()
        .memory(16 << 20)
        .block_size(BLOCK)
        .chunk_size(BLOCK)
        .build()
        .unwrap();
    let (origin, bucket) = bucket_over(&engine, Consistency::Immutable);
    let path = Path::from("a");
    let data = pattern(0, 8 << 20);
    origin.put(&path, data.clone().into()).await.unwrap();
    bucket.get(&path).await.unwrap().bytes().await.unwrap();
    assert!(engine.stats().budget.used >= 8 << 20);
    engine.set_memory(2 << 20).unwrap();
    let budget = engine.stats().budget;
    assert_eq!(budget.limit, 2 << 20);
    assert!(budget.used <= budget.limit, "{budget:?}");
    assert_eq!(
        bucket.get(&path).await.unwrap().bytes().await.unwrap(),
        data
    );
    let mut held = Vec::new();
    for block in 0..16u64 {
        let size = BLOCK as u64;
        held.push(
            bucket
                .get_range(&path, block * size..(block + 1) * size)
                .await
                .unwrap(),
        );
    }
    let refused = engine.set_memory(LEAST).unwrap_err();
    assert!(
        matches!(
            refused,
            EngineError::MemoryLimit(LimitError::Held { limit: LEAST, .. })
        ),
        "readers hold more: {refused}"
    );
    assert_eq!(engine.stats().budget.limit, 2 << 20);
    drop(held);
    engine.set_memory(LEAST).unwrap();
    assert!(engine.set_memory(LEAST - 1).is_err());
    let limits = engine.cache_limits().memory;
    assert_eq!((limits.limit, limits.min), (LEAST, LEAST));
    assert!(engine.set_memory(limits.max + 1).is_err());
    assert!(engine.set_memory(u64::MAX).is_err());
    engine.set_memory(64 << 20).unwrap();
    assert_eq!(
        bucket.get(&path).await.unwrap().bytes().await.unwrap(),
        data
    );
    let (outcome, _) = outcome_of(&bucket, &path, GetOptions::default()).await;
    assert_eq!(outcome, CacheOutcome::Hit, "all of it has room now");
}

#[test]
fn download_begun_on_a_runtime_that_ended_fails_on_others() {
    use tokio::runtime::Builder;

    // On the first its tasks are dropped before they were ever polled.
    for mut begun_on in [Builder::new_current_thread(), Builder::new_multi_thread()] {
        let waits_on = Builder::new_current_thread().enable_all().build().unwrap();
        end_runtime_of_download(begun_on.enable_all().build().unwrap(), &waits_on);
    }
}

fn end_runtime_of_download(begun_on: tokio::runtime::Runtime, waits_on: &tokio::runtime::Runtime) {
    let engine = engine();
    let path = Path::from("large");
    let download = begun_on.block_on(async {
        let (_, bucket) = bucket_over(&engine, Consistency::Immutable);
        let body = pattern(0, 8 << 20);
        bucket.put(&path, body.into()).await.unwrap();
        // Enough requests that the download cannot have ended.
        let options = bywash::DownloadOptions {
            part_size: 4096,
            parallel: 1,
            ..bywash::DownloadOptions::default()
        };
        bucket.download(&path, options).await.unwrap()
    });
    begun_on.shutdown_background();
    let ended = waits_on
        .block_on(async { tokio::time::timeout(Duration::from_secs(60), download.finish()).await });
    assert!(ended.expect("it ends").is_err());
}
