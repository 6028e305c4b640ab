//! Buckets whose blocks stay in memory only while they are read.

use std::sync::Arc;
use std::time::Duration;

use bywash::{
    Bucket, BucketOptions, Caching, Consistency, DownloadOptions, Engine, EngineError, Verify,
    WriteCache,
};
use bywash_sim::{FaultProfile, SimOrigin};
use bywash_support::pattern;
use futures::StreamExt as _;
use futures::future::join_all;
use object_store::ObjectStoreExt as _;
use object_store::path::Path;

const BLOCK: usize = 64 << 10;
const LENGTH: usize = 40 * BLOCK + 17;

struct World {
    engine: Engine,
    bucket: Bucket,
    path: Path,
}

impl World {
    /// A bucket with one object that was written before. Each request takes a while, so that reads overlap.
    async fn new(caching: Caching) -> Self {
        let latency = Duration::from_millis(20);
        let origin = SimOrigin::new(
            1,
            FaultProfile {
                latency: latency..latency,
                ..FaultProfile::none()
            },
        );
        let builder = Engine::builder().memory(16 << 20).block_size(BLOCK);
        let engine = builder.write_cache(WriteCache::OnWrite).build().unwrap();
        let options = BucketOptions {
            consistency: Consistency::Immutable,
            caching,
            ..BucketOptions::default()
        };
        let bucket = engine.mount("test", Arc::new(origin), options).unwrap();
        let path = Path::from("object");
        let body = pattern(0, LENGTH);
        bucket.put(&path, body.into()).await.unwrap();
        Self {
            engine,
            bucket,
            path,
        }
    }

    async fn read(&self) {
        let response = self.bucket.get(&self.path).await.unwrap();
        assert_eq!(response.bytes().await.unwrap(), pattern(0, LENGTH));
    }

    fn resident_blocks(&self) -> u64 {
        self.engine.stats().pool.resident_blocks
    }

    fn data_requests(&self) -> u64 {
        self.engine.stats().buckets["test"].origin_data_requests
    }
}

#[tokio::test(start_paused = true)]
async fn blocks_leave_with_their_last_reader_and_cost_no_more_requests_than_others() {
    let kept = World::new(Caching::Kept).await;
    assert!(kept.resident_blocks() > 0, "a write stays");
    assert_eq!(kept.bucket.drop_cached("").objects, 1);
    kept.read().await;
    let requests = kept.data_requests();
    assert!(requests > 1 && kept.resident_blocks() > 0);

    let passing = World::new(Caching::WhileRead).await;
    assert_eq!(passing.resident_blocks(), 0, "a write does not stay");
    for round in 1..=3 {
        passing.read().await;
        assert_eq!(passing.resident_blocks(), 0, "round {round}");
        assert_eq!(passing.data_requests(), round * requests, "round {round}");
    }
    let options = DownloadOptions::default();
    let download = passing.bucket.download(&passing.path, options).await;
    drop(download.unwrap().finish().await.unwrap());
    assert_eq!(passing.resident_blocks(), 0, "a download");
}

#[tokio::test(start_paused = true)]
async fn concurrent_readers_share_requests() {
    let world = World::new(Caching::WhileRead).await;
    world.read().await;
    let alone = world.data_requests();
    join_all((0..8).map(|_| world.read())).await;
    let together = world.data_requests() - alone;
    assert!(together < 3 * alone, "{together} requests of eight readers");
    assert_eq!(world.resident_blocks(), 0);
}

#[tokio::test(start_paused = true)]
async fn reader_that_leaves_early_leaves_no_block() {
    let world = World::new(Caching::WhileRead).await;
    let response = world.bucket.get(&world.path).await.unwrap();
    let mut body = response.into_stream();
    let first = body.next().await.unwrap().unwrap();
    assert_eq!(first[..], pattern(0, LENGTH)[..first.len()]);
    drop((first, body));
    // Requests in flight end, and publish blocks that nobody reads.
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(world.resident_blocks(), 0);
}

#[tokio::test(start_paused = true)]
async fn warming_and_settings_that_need_blocks_are_refused() {
    let world = World::new(Caching::WhileRead).await;
    let refused = world.bucket.warm("").await.unwrap_err().to_string();
    assert!(refused.contains("nothing to warm"), "{refused}");
    let builder = Engine::builder().memory(64 << 20).verify(Verify::Always);
    let engine = builder.build().unwrap();
    let origin = SimOrigin::new(1, FaultProfile::none());
    let options = BucketOptions {
        caching: Caching::WhileRead,
        ..BucketOptions::default()
    };
    let refused = engine.mount("test", Arc::new(origin), options);
    assert!(matches!(
        refused,
        Err(EngineError::InvalidSetting {
            setting: "cache",
            ..
        })
    ));
}
