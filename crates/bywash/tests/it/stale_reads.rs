//! Reads while the origin fails: of cached bytes as stale, where the bucket and the caller allow it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use bywash::origin::OriginOptions;
use bywash::{
    Bucket, BucketOptions, Consistency, DiskOptions, Engine, MayBeStale, OriginUrl, ReadInfo,
    RetryPolicy, Verify,
};
use bywash_sim::server::s3::S3;
use bywash_sim::server::{HttpRequest, HttpResponse, Protocol, Server};
use bywash_support::pattern;
use object_store::path::Path;
use object_store::{Error, GetOptions, GetRange, ObjectStore, ObjectStoreExt, Result};

const BLOCK: usize = 64 << 10;
const BYTES: usize = 3 * BLOCK + 5;
const HOUR: Duration = Duration::from_secs(3600);

/// A server that can be down.
struct Switch {
    s3: Arc<S3>,
    down: AtomicBool,
}

impl Protocol for Switch {
    fn respond(&self, request: &HttpRequest) -> HttpResponse {
        if self.down.load(Relaxed) {
            return HttpResponse::status(503);
        }
        self.s3.respond(request)
    }
}

struct World {
    switch: Arc<Switch>,
    _server: Server,
    engine: Engine,
    bucket: Bucket,
    _folder: Option<tempfile::TempDir>,
}

impl World {
    /// Each read asks the origin.
    async fn new(stale_if_error: Option<Duration>) -> Self {
        Self::with(stale_if_error, Verify::default(), false).await
    }

    async fn with(stale_if_error: Option<Duration>, verify: Verify, disk: bool) -> Self {
        let switch = Arc::new(Switch {
            s3: S3::new(),
            down: AtomicBool::new(false),
        });
        let server = Server::start(Arc::<Switch>::clone(&switch)).await.unwrap();
        let endpoint = server.url();
        let options = [
            ("endpoint", &*endpoint),
            ("access_key_id", "key"),
            ("secret_access_key", "secret"),
        ];
        let text = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let options = OriginOptions {
            options: options.into_iter().map(text).collect(),
            ..OriginOptions::default()
        };
        let url: OriginUrl = "s3://data".parse().unwrap();
        let origin = url.open_with(&options).unwrap();
        let retry = RetryPolicy {
            deadline: Duration::from_millis(100),
            ..RetryPolicy::default()
        };
        let folder = disk.then(|| tempfile::tempdir().unwrap());
        let mut builder = Engine::builder()
            .memory(32 << 20)
            .block_size(BLOCK)
            .verify(verify)
            .retry(retry);
        if let Some(folder) = &folder {
            builder = builder.disk(DiskOptions {
                path: folder.path().to_owned(),
                size: 128 << 20,
                daily_writes: None,
                min_block_size: None,
            });
        }
        let engine = builder.build().unwrap();
        let options = BucketOptions {
            consistency: Consistency::Revalidate(Duration::ZERO),
            stale_if_error,
            ..BucketOptions::default()
        };
        let bucket = engine.mount("data", origin, options).unwrap();
        let world = Self {
            switch,
            _server: server,
            engine,
            bucket,
            _folder: folder,
        };
        world.put("key", BYTES).await;
        world
    }

    async fn put(&self, key: &str, bytes: usize) {
        let path = Path::from(key);
        let body = pattern(1, bytes).into();
        self.bucket.put(&path, body).await.unwrap();
    }

    fn set_down(&self, down: bool) {
        self.switch.down.store(down, Relaxed);
    }

    async fn read_with(&self, options: GetOptions) -> Result<(Bytes, bool)> {
        let found = self.bucket.get_opts(&Path::from("key"), options).await?;
        let stale = found.extensions.get::<ReadInfo>().unwrap().stale;
        Ok((found.bytes().await?, stale))
    }

    /// Reads the object as a caller that shows staleness.
    async fn read(&self) -> Result<(Bytes, bool)> {
        self.read_with(options(None)).await
    }

    fn stale_reads(&self) -> u64 {
        self.engine.stats().buckets["data"].stale_reads
    }
}

fn options(range: Option<GetRange>) -> GetOptions {
    let mut options = GetOptions {
        range,
        ..GetOptions::default()
    };
    options.extensions.insert(MayBeStale);
    options
}

fn head() -> GetOptions {
    GetOptions {
        head: true,
        ..options(None)
    }
}

#[tokio::test]
async fn whole_object_in_memory_is_read_as_stale_while_the_origin_is_down() {
    for verify in [Verify::Off, Verify::Whole, Verify::Always] {
        let world = World::with(Some(HOUR), verify, false).await;
        let (bytes, stale) = world.read().await.unwrap();
        assert!(bytes == pattern(1, BYTES) && !stale);
        world.set_down(true);
        for number in 1..=5 {
            let (bytes, stale) = world.read().await.unwrap();
            assert!(bytes == pattern(1, BYTES) && stale, "{verify:?}");
            assert_eq!(world.stale_reads(), number, "{verify:?}");
        }
        let middle = GetRange::Bounded(10..BLOCK as u64 + 10);
        let (bytes, stale) = world.read_with(options(Some(middle))).await.unwrap();
        assert!(bytes == pattern(1, BYTES)[10..BLOCK + 10] && stale);
        let found = world.bucket.get_opts(&Path::from("key"), head()).await;
        let found = found.unwrap();
        assert_eq!(found.meta.size, BYTES as u64);
        assert!(found.extensions.get::<ReadInfo>().unwrap().stale);

        world.set_down(false);
        // A read that is served as stale finds out that the origin is back.
        let deadline = Instant::now() + Duration::from_secs(60);
        while world.read().await.unwrap().1 {
            assert!(Instant::now() < deadline, "the origin is back");
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn nothing_is_stale_without_the_setting_the_callers_consent_or_in_time() {
    for (setting, options) in [
        (None, options(None)),
        (Some(HOUR), GetOptions::default()),
        (Some(Duration::ZERO), options(None)),
    ] {
        let world = World::new(setting).await;
        world.read().await.unwrap();
        world.set_down(true);
        let read = world.read_with(options).await;
        assert!(read.is_err(), "{setting:?}");
        assert_eq!(world.stale_reads(), 0, "{setting:?}");
    }
}

#[tokio::test]
async fn object_that_is_not_whole_in_the_cache_is_an_error_while_the_origin_is_down() {
    let world = World::new(Some(HOUR)).await;
    let first = || Some(GetRange::Bounded(0..10));
    world.read_with(options(first())).await.unwrap();
    world.set_down(true);
    assert!(world.read().await.is_err());
    assert_eq!(world.stale_reads(), 0);
    // The bytes of this range are there.
    let (bytes, stale) = world.read_with(options(first())).await.unwrap();
    assert!(bytes == pattern(1, BYTES)[..10] && stale);
    let beyond = Some(GetRange::Bounded(10..BYTES as u64));
    assert!(world.read_with(options(beyond)).await.is_err());
}

#[tokio::test]
async fn response_of_the_origin_about_the_object_is_heeded() {
    let world = World::new(Some(HOUR)).await;
    world.read().await.unwrap();
    // Another program deletes it.
    assert!(world.switch.s3.objects().delete("data", "key"));
    let gone = world.read().await.unwrap_err();
    assert!(matches!(gone, Error::NotFound { .. }), "{gone}");
    world.set_down(true);
    assert!(world.read().await.is_err());
    assert_eq!(world.stale_reads(), 0);
}

#[tokio::test]
async fn version_before_a_write_that_failed_is_not_read_as_stale() {
    let world = World::new(Some(HOUR)).await;
    world.read().await.unwrap();
    world.set_down(true);
    let path = Path::from("key");
    let put = world.bucket.put(&path, Bytes::from("new").into()).await;
    assert!(put.is_err());
    assert!(
        world.read().await.is_err(),
        "the write may have been applied"
    );
}

#[tokio::test]
async fn whole_object_on_the_disk_is_read_as_stale_while_the_origin_is_down() {
    let world = World::with(Some(HOUR), Verify::default(), true).await;
    // More than the memory holds.
    world.put("filler", 40 << 20).await;
    let deadline = Instant::now() + Duration::from_secs(120);
    let path = Path::from("key");
    while world.bucket.explain(&path).tier != "disk" {
        assert!(Instant::now() < deadline, "{:?}", world.engine.stats().disk);
        world.read().await.unwrap();
        let filler = world.bucket.get(&Path::from("filler")).await.unwrap();
        filler.bytes().await.unwrap();
    }
    world.set_down(true);
    // A disk that is slow at this moment leaves the block to the origin.
    loop {
        match world.read().await {
            Ok((bytes, stale)) => {
                assert!(bytes == pattern(1, BYTES) && stale);
                break;
            }
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
    }
    assert!(world.engine.stats().disk.unwrap().hits > 0);
}
