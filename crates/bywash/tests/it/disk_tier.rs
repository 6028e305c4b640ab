//! The disk tier through the engine: blocks read before are found after a restart, and never another version.

use std::fmt;
use std::path::Path as FsPath;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use bywash::origin::memory::MemoryStore;
use bywash::origin::{Capabilities, ReadOnly, StoreIdentity};
use bywash::{Bucket, Consistency, DiskOptions, DiskStats, Engine, Origin};
use bywash_support::pattern;
use object_store::path::Path;
use object_store::{
    GetOptions, GetResult, ObjectStoreExt, PutOptions, PutPayload, PutResult, Result,
};

const BLOCK: usize = 64 << 10;
const MEMORY: u64 = 16 << 20;

/// A store that outlives engines, as a cloud does.
#[derive(Debug, Clone)]
struct Durable {
    objects: MemoryStore,
    address: String,
    /// ETags of responses, in place of the store's own.
    e_tag: Option<ETag>,
}

/// A store's way with ETags.
#[derive(Debug, Clone, Copy)]
enum ETag {
    Is(&'static str),
    Absent,
}

impl fmt::Display for Durable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address)
    }
}

impl Origin for Durable {
    fn capabilities(&self) -> Capabilities {
        Capabilities::of("memory")
    }

    fn identity(&self) -> Option<StoreIdentity> {
        Some(StoreIdentity::of(self.address.clone()))
    }
}

bywash_support::forward_object_store! {
    impl[] ObjectStore for Durable => objects {
        async fn put_opts(
            &self,
            path: &Path,
            payload: PutPayload,
            options: PutOptions,
        ) -> Result<PutResult> {
            self.objects.put_opts(path, payload, options).await
        }

        async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
            let Some(e_tag) = self.e_tag else {
                return self.objects.get_opts(path, options).await;
            };
            let options = GetOptions {
                if_match: None,
                ..options
            };
            let mut result = self.objects.get_opts(path, options).await?;
            result.meta.e_tag = match e_tag {
                ETag::Is(e_tag) => Some(e_tag.to_owned()),
                ETag::Absent => None,
            };
            Ok(result)
        }
    }
}

fn durable(address: &str) -> Durable {
    Durable {
        objects: MemoryStore::new(),
        address: address.to_owned(),
        e_tag: None,
    }
}

fn engine(folder: &FsPath, size: u64) -> Engine {
    engine_with(DiskOptions {
        path: folder.to_owned(),
        size,
        daily_writes: None,
        min_block_size: None,
    })
}

/// Opens an engine over the folder. The threads of the engine before it may still have the folder's lock for a moment.
fn engine_with(options: DiskOptions) -> Engine {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let builder = Engine::builder().memory(MEMORY).block_size(BLOCK);
        match builder.disk(options.clone()).build() {
            Ok(engine) => return engine,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        std::thread::yield_now();
    }
}

fn mount(engine: &Engine, origin: &Durable) -> Bucket {
    let origin = Arc::new(ReadOnly::new(Arc::new(origin.clone())));
    engine
        .mount("test", origin, Consistency::Revalidate(Duration::ZERO))
        .unwrap()
}

async fn read(bucket: &Bucket, path: &Path) -> Bytes {
    bucket.get(path).await.unwrap().bytes().await.unwrap()
}

fn disk(engine: &Engine) -> DiskStats {
    engine.stats().disk.unwrap()
}

fn data_requests(engine: &Engine) -> u64 {
    engine.stats().buckets["test"].origin_data_requests
}

#[tokio::test]
async fn blocks_read_before_a_restart_need_no_data_request_after_it() {
    let folder = tempfile::tempdir().unwrap();
    let origin = durable("s3://data at one");
    // More than the memory holds, and lengths around a block and a page.
    let lengths = [
        1,
        4095,
        4096,
        4097,
        BLOCK - 1,
        BLOCK,
        BLOCK + 1,
        3 * BLOCK + 100,
    ];
    let big = [8 << 20; 4];
    let objects: Vec<_> = lengths.into_iter().chain(big).enumerate().collect();
    let path = |index: usize| Path::from(format!("objects/{index}"));
    for (index, length) in &objects {
        let payload = pattern(*index as u64, *length).into();
        origin.objects.put(&path(*index), payload).await.unwrap();
    }
    let size = 512 << 20;
    let first = engine(folder.path(), size);
    let bucket = mount(&first, &origin);
    let blocks: usize = objects
        .iter()
        .map(|(_, length)| length.div_ceil(BLOCK))
        .sum();
    // Blocks that are evicted before the disk could take them are not written; a later read offers them again.
    let deadline = Instant::now() + Duration::from_secs(120);
    while disk(&first).blocks < blocks as u64 {
        assert!(Instant::now() < deadline, "{:?}", disk(&first));
        for (index, length) in &objects {
            assert!(read(&bucket, &path(*index)).await == pattern(*index as u64, *length));
        }
    }
    assert!(first.close_disk(Duration::from_secs(60)).await);
    drop((bucket, first));

    let second = engine(folder.path(), size);
    let bucket = mount(&second, &origin);
    assert_eq!(disk(&second).blocks, blocks as u64);
    bucket.head(&path(11)).await.unwrap();
    let explained = bucket.explain(&path(11));
    assert_eq!(explained.tier, "disk");
    let reasons = explained.reasons.join("; ");
    assert!(reasons.contains("128 are on disk"), "{reasons}");
    assert!(!reasons.contains("never read"), "{reasons}");
    for _ in 0..2 {
        for (index, length) in &objects {
            assert!(read(&bucket, &path(*index)).await == pattern(*index as u64, *length));
        }
    }
    let stats = disk(&second);
    // Blocks that the disk did not return in time were loaded from the origin, neighbours in one request.
    assert!(data_requests(&second) <= stats.slow_reads, "{stats:?}");
    assert!(stats.hits + stats.slow_reads >= blocks as u64, "{stats:?}");
    assert_eq!((stats.mismatches, stats.failed_reads), (0, 0));
    // Blocks loaded from the disk are in memory.
    let before = stats.hits;
    assert!(read(&bucket, &path(7)).await == pattern(7, lengths[7]));
    let loaded = disk(&second).hits - before;
    assert!(read(&bucket, &path(7)).await == pattern(7, lengths[7]));
    assert_eq!(disk(&second).hits - before, loaded);
}

#[tokio::test]
async fn version_that_changed_while_no_engine_ran_is_not_read_from_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let origin = durable("s3://data at one");
    let path = Path::from("object");
    let (old, new) = (pattern(1, 5 * BLOCK), pattern(2, 5 * BLOCK));
    origin.objects.put(&path, old.clone().into()).await.unwrap();
    let first = engine(folder.path(), 512 << 20);
    assert!(read(&mount(&first, &origin), &path).await == old);
    assert!(first.close_disk(Duration::from_secs(60)).await);
    drop(first);
    origin.objects.put(&path, new.clone().into()).await.unwrap();

    let second = engine(folder.path(), 512 << 20);
    assert!(read(&mount(&second, &origin), &path).await == new);
    assert_eq!(disk(&second).hits, 0);
    assert!(second.close_disk(Duration::from_secs(60)).await);
    drop(second);

    // Another store with a bucket of the same name and an object with the same ETag.
    let other = Durable {
        address: "s3://data at two".to_owned(),
        ..origin.clone()
    };
    let third = engine(folder.path(), 512 << 20);
    assert!(read(&mount(&third, &other), &path).await == new);
    assert_eq!(disk(&third).hits, 0);
}

/// An object is replaced, and then as it was before, ETag and all, each time while no engine runs.
#[tokio::test]
async fn former_etag_that_is_back_finds_its_own_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let mut origin = durable("s3://data at one");
    let path = Path::from("object");
    for (seed, e_tag, hits) in [(1, "\"a\"", 0), (2, "\"b\"", 0), (1, "\"a\"", 5)] {
        let data = pattern(seed, 5 * BLOCK);
        origin
            .objects
            .put(&path, data.clone().into())
            .await
            .unwrap();
        origin.e_tag = Some(ETag::Is(e_tag));
        let engine = engine(folder.path(), 512 << 20);
        assert!(read(&mount(&engine, &origin), &path).await == data);
        assert_eq!(disk(&engine).hits, hits, "{e_tag}");
        assert!(engine.close_disk(Duration::from_secs(60)).await);
    }
}

/// Two writes within a second have one date: without ETags the disk could not tell them apart.
#[tokio::test]
async fn objects_without_etag_are_not_kept_on_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let mut origin = durable("s3://data at one");
    origin.e_tag = Some(ETag::Absent);
    let path = Path::from("object");
    for seed in 0..2 {
        let data = pattern(seed as u64, 3 * BLOCK);
        origin
            .objects
            .put(&path, data.clone().into())
            .await
            .unwrap();
        let engine = engine(folder.path(), 512 << 20);
        assert!(read(&mount(&engine, &origin), &path).await == data);
        assert!(engine.close_disk(Duration::from_secs(60)).await);
        let stats = disk(&engine);
        assert_eq!((stats.written_blocks, stats.blocks, stats.hits), (0, 0, 0));
    }
}

#[tokio::test]
async fn evicted_blocks_are_read_from_the_disk_while_the_engine_runs() {
    let folder = tempfile::tempdir().unwrap();
    let origin = durable("s3://data at one");
    let engine = engine(folder.path(), 512 << 20);
    let bucket = mount(&engine, &origin);
    let paths: Vec<_> = (0..12).map(|n| Path::from(format!("o/{n}"))).collect();
    for (index, path) in paths.iter().enumerate() {
        let payload = pattern(index as u64, 4 << 20).into();
        origin.objects.put(path, payload).await.unwrap();
    }
    for _ in 0..3 {
        for (index, path) in paths.iter().enumerate() {
            assert!(read(&bucket, path).await == pattern(index as u64, 4 << 20));
        }
    }
    let stats = disk(&engine);
    assert!(stats.hits > 0, "{stats:?}");
    assert!(engine.budget().used() <= MEMORY);
}

#[tokio::test]
async fn dropped_objects_are_dropped_from_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let origin = durable("s3://data at one");
    let path = Path::from("object");
    let data = pattern(1, 3 * BLOCK);
    origin
        .objects
        .put(&path, data.clone().into())
        .await
        .unwrap();
    let engine = engine(folder.path(), 512 << 20);
    let bucket = mount(&engine, &origin);
    assert!(read(&bucket, &path).await == data);
    assert!(engine.close_disk(Duration::from_secs(60)).await);
    assert_eq!(bucket.cached("")[0].disk_blocks, 3);
    assert_eq!(bucket.explain(&path).tier, "memory+disk");
    assert_eq!(bucket.drop_cached("").objects, 1);
    assert!(read(&bucket, &path).await == data);
    assert_eq!(disk(&engine).hits, 0);
    assert_eq!(data_requests(&engine), 2);
}

/// A drop returns when the disk has a record of it.
#[tokio::test]
async fn dropped_objects_are_not_on_the_disk_after_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let origin = durable("s3://data at one");
    let engine = engine(folder.path(), 512 << 20);
    let bucket = mount(&engine, &origin);
    for (seed, key) in ["dropped/a", "dropped/b", "kept"].into_iter().enumerate() {
        let (path, data) = (Path::from(key), pattern(seed as u64, 3 * BLOCK));
        origin
            .objects
            .put(&path, data.clone().into())
            .await
            .unwrap();
        assert!(read(&bucket, &path).await == data);
    }
    while disk(&engine).written_blocks < 9 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(bucket.drop_cached("dropped/").objects, 2);
    let copy = killed(folder.path());
    let again = engine_with(DiskOptions {
        path: copy.path().to_owned(),
        size: 512 << 20,
        daily_writes: None,
        min_block_size: None,
    });
    assert_eq!(disk(&again).blocks, 3);
}

#[tokio::test]
async fn local_origins_do_not_use_the_disk_tier() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path(), 512 << 20);
    let origin = MemoryStore::new();
    let path = Path::from("object");
    origin.put(&path, pattern(1, BLOCK).into()).await.unwrap();
    let bucket = engine.mount("test", Arc::new(origin), Consistency::Immutable);
    assert!(read(&bucket.unwrap(), &path).await == pattern(1, BLOCK));
    assert!(engine.close_disk(Duration::from_secs(60)).await);
    let stats = disk(&engine);
    assert_eq!((stats.written_blocks, stats.blocks), (0, 0));
}

#[test]
fn folder_in_use_and_sizes_that_do_not_fit_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let open = |size| {
        let path = folder.path().to_owned();
        let builder = Engine::builder().memory(MEMORY).block_size(BLOCK);
        builder
            .disk(DiskOptions {
                path,
                size,
                daily_writes: None,
                min_block_size: None,
            })
            .build()
    };
    let small = open(1 << 20).unwrap_err().to_string();
    assert!(small.contains("disk"), "{small}");
    let large = open(100 << 30).unwrap_err().to_string();
    assert!(large.contains("memory"), "{large}");
    let _engine = engine(folder.path(), 512 << 20);
    let used = open(512 << 20).unwrap_err().to_string();
    assert!(used.contains("another process"), "{used}");
}

#[test]
fn index_has_room_for_the_smallest_blocks_within_a_quarter_of_the_memory() {
    let index_bytes = |size: u64, min_block_size| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_owned();
        let engine = engine_with(DiskOptions {
            path,
            size,
            daily_writes: None,
            min_block_size,
        });
        disk(&engine).index_bytes
    };
    let size = 128 << 20;
    let of_engine = index_bytes(size, None);
    let of_small = index_bytes(size, Some(4 << 10));
    assert!(of_small > of_engine, "{of_engine} {of_small}");
    assert!(of_small >= (size / (4 << 10)) * 80, "{of_small}");
    let bounded = index_bytes(2 << 30, Some(4 << 10));
    // Tables have sizes of their own: a few hundredths more than was asked for.
    let quarter = MEMORY / 4;
    assert!(
        bounded <= quarter + quarter / 16 && bounded > MEMORY / 5,
        "{bounded}"
    );
    // Blocks larger than the engine's take nothing away.
    assert_eq!(index_bytes(size, Some(4 << 20)), of_engine);
}

/// Changes one byte in the folder's segments: the first of `bytes`.
fn flip_byte_of(folder: &FsPath, bytes: &[u8]) {
    for file in std::fs::read_dir(folder).unwrap().flatten() {
        let path = file.path();
        let mut found = std::fs::read(&path).unwrap();
        let mut pages = found.chunks_mut(4096);
        if let Some(page) = pages.find(|page| page.starts_with(&bytes[..64])) {
            page[0] ^= 1;
            std::fs::write(path, found).unwrap();
            return;
        }
    }
    panic!("the bytes are in no segment");
}

#[tokio::test]
async fn verification_drops_damaged_blocks_and_keeps_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let origin = durable("s3://data at one");
    let path = Path::from("object");
    let data = pattern(1, 5 * BLOCK);
    origin
        .objects
        .put(&path, data.clone().into())
        .await
        .unwrap();
    let engine = engine(folder.path(), 512 << 20);
    let bucket = mount(&engine, &origin);
    assert!(read(&bucket, &path).await == data);
    assert!(engine.close_disk(Duration::from_secs(60)).await);
    let whole = engine.verify_disk(None).await.unwrap();
    assert_eq!((whole.good_blocks, whole.damaged_blocks), (5, 0));
    assert_eq!(whole.good_bytes, data.len() as u64);
    flip_byte_of(folder.path(), &data[2 * BLOCK..]);
    let found = engine.verify_disk(None).await.unwrap();
    assert_eq!((found.good_blocks, found.damaged_blocks), (4, 1));
    assert!(found.complete);
    assert_eq!(bucket.cached("")[0].disk_blocks, 4);
    // The pass is no reader.
    assert_eq!(disk(&engine).hits, 0);
}

#[tokio::test]
async fn slow_verification_ends_with_its_caller() {
    let folder = tempfile::tempdir().unwrap();
    let origin = durable("s3://data at one");
    let path = Path::from("object");
    origin
        .objects
        .put(&path, pattern(1, 5 * BLOCK).into())
        .await
        .unwrap();
    let engine = engine(folder.path(), 512 << 20);
    let bucket = mount(&engine, &origin);
    read(&bucket, &path).await;
    assert!(engine.close_disk(Duration::from_secs(60)).await);
    // Days, at this rate.
    let slow = tokio::spawn({
        let engine = engine.clone();
        async move {
            // A pass below may be first.
            while engine.verify_disk(Some(1)).await.is_err() {
                tokio::task::yield_now().await;
            }
        }
    });
    // Only one pass at a time: a second one is refused while the first runs.
    let refused = loop {
        match engine.verify_disk(Some(u64::MAX)).await {
            Err(error) => break error,
            Ok(_) => tokio::task::yield_now().await,
        }
    };
    assert!(refused.to_string().contains("another pass"), "{refused}");
    slow.abort();
    while engine.verify_disk(None).await.is_err() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn blocks_beyond_the_daily_writes_are_declined_and_explained() {
    let folder = tempfile::tempdir().unwrap();
    let origin = durable("s3://data at one");
    let path = Path::from("object");
    let data = pattern(1, 12 << 20);
    origin
        .objects
        .put(&path, data.clone().into())
        .await
        .unwrap();
    let daily_writes = 24 << 20;
    let engine = engine_with(DiskOptions {
        path: folder.path().to_owned(),
        size: 512 << 20,
        daily_writes: Some(daily_writes),
        min_block_size: None,
    });
    let bucket = mount(&engine, &origin);
    let deadline = Instant::now() + Duration::from_secs(60);
    while disk(&engine).declined_rate == 0 {
        assert!(Instant::now() < deadline, "{:?}", disk(&engine));
        assert!(read(&bucket, &path).await == data);
    }
    let explained = bucket.explain(&path).reasons.join("; ");
    assert!(
        explained.contains("may write 25165824 bytes a day"),
        "{explained}"
    );
    assert!(engine.close_disk(Duration::from_secs(60)).await);
    let stats = disk(&engine);
    assert_eq!(stats.daily_writes, Some(daily_writes));
    // A 24th at once, a batch more, and the bytes that became free since.
    assert!(stats.written_bytes < 6 << 20, "{stats:?}");
}

/// Copies a tier's folder as a kill at this moment leaves it.
fn killed(folder: &FsPath) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(folder).unwrap().flatten() {
        std::fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
    }
    copy
}

#[tokio::test]
async fn blocks_in_steady_use_are_on_the_disk_after_it_was_written_over_and_a_kill() {
    const HOT: usize = 4 << 20;
    const OBJECT: usize = 2 << 20;
    let folder = tempfile::tempdir().unwrap();
    let origin = durable("s3://data at one");
    let hot = Path::from("hot");
    let data = pattern(0, HOT);
    origin.objects.put(&hot, data.clone().into()).await.unwrap();
    let size = 80 << 20;
    let cold: Vec<_> = (0..200).map(|n| Path::from(format!("cold/{n}"))).collect();
    for (index, path) in cold.iter().enumerate() {
        let payload = pattern(index as u64 + 1, OBJECT).into();
        origin.objects.put(path, payload).await.unwrap();
    }
    let first = engine(folder.path(), size);
    let bucket = mount(&first, &origin);
    for _ in 0..3 {
        assert!(read(&bucket, &hot).await == data);
    }
    let written = async |engine: &Engine| {
        let deadline = Instant::now() + Duration::from_secs(60);
        while disk(engine).queued_blocks > 0 {
            assert!(Instant::now() < deadline, "{:?}", disk(engine));
            tokio::task::yield_now().await;
        }
    };
    // Five times the disk of others, each window often enough to be written; the hot blocks never leave the memory.
    for window in cold.chunks(20) {
        for _ in 0..3 {
            for path in window {
                read(&bucket, path).await;
                assert!(read(&bucket, &hot).await == data);
                written(&first).await;
            }
        }
    }
    let stats = disk(&first);
    assert!(stats.written_block_bytes > 4 * size, "{stats:?}");
    let object = |bucket: &Bucket| bucket.cached("hot")[0].clone();
    assert_eq!(object(&bucket).resident_blocks, 64);
    let copy = killed(folder.path());
    let second = engine(copy.path(), size);
    let bucket = mount(&second, &origin);
    bucket.head(&hot).await.unwrap();
    // At least 99 of 100.
    assert!(object(&bucket).disk_blocks >= 64, "{:?}", object(&bucket));
}

#[tokio::test]
async fn what_was_downloaded_is_on_the_disk_and_a_download_takes_it_from_there() {
    let folder = tempfile::tempdir().unwrap();
    let origin = durable("s3://data at downloads");
    let (path, body) = (Path::from("object"), pattern(5, 40 * BLOCK + 9));
    let payload = body.clone().into();
    origin.objects.put(&path, payload).await.unwrap();
    let first = engine(folder.path(), 256 << 20);
    let bucket = mount(&first, &origin);
    let options = bywash::DownloadOptions::default;
    let download = bucket.download(&path, options()).await.unwrap();
    assert!(download.finish().await.unwrap().into_contiguous() == body);
    assert!(first.close_disk(Duration::from_secs(60)).await);
    assert_eq!(disk(&first).blocks, 41);
    drop((bucket, first));

    let second = engine(folder.path(), 256 << 20);
    let bucket = mount(&second, &origin);
    for _ in 0..2 {
        let download = bucket.download(&path, options()).await.unwrap();
        assert!(download.finish().await.unwrap().into_contiguous() == body);
    }
    assert_eq!(data_requests(&second), 0);
    assert!(disk(&second).hits > 0, "{:?}", disk(&second));
}

#[tokio::test]
async fn warming_fills_the_disk_with_more_than_the_memory_holds() {
    let folder = tempfile::tempdir().unwrap();
    let origin = durable("s3://data to warm");
    let bytes = 8 << 20;
    for index in 0..5 {
        let (path, body) = (Path::from(format!("warm/{index}")), pattern(index, bytes));
        origin.objects.put(&path, body.into()).await.unwrap();
    }
    let engine = engine(folder.path(), 256 << 20);
    let bucket = mount(&engine, &origin);
    let warmed = bucket.warm("warm/").await.unwrap();
    assert_eq!((warmed.objects, warmed.left_out), (5, 0));
    assert_eq!(warmed.bytes, 5 * bytes as u64);
    assert!(engine.close_disk(Duration::from_secs(60)).await);
    // All but blocks evicted before the disk could take them.
    let all = 5 * (bytes / BLOCK) as u64;
    assert!(disk(&engine).blocks > all / 2, "{:?}", disk(&engine));
}

#[tokio::test]
async fn objects_of_an_earlier_run_are_listed_and_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let origin = durable("s3://data at one");
    let objects = [("a/1", 3 * BLOCK + 1), ("a/2", 10), ("b/1", 2 * BLOCK)];
    let first = engine(folder.path(), 512 << 20);
    let bucket = mount(&first, &origin);
    for (index, (key, length)) in objects.into_iter().enumerate() {
        let (path, data) = (Path::from(key), pattern(index as u64, length));
        origin
            .objects
            .put(&path, data.clone().into())
            .await
            .unwrap();
        assert!(read(&bucket, &path).await == data);
    }
    assert!(first.close_disk(Duration::from_secs(60)).await);
    drop((bucket, first));

    let second = engine(folder.path(), 512 << 20);
    let bucket = mount(&second, &origin);
    // No read has asked for any.
    assert!(bucket.cached("").is_empty());
    let page = second.cached_page(None, "", None, 10, false);
    assert!(page.buckets.is_empty());
    let page = second.cached_page(Some(&bucket), "", None, 2, true);
    let found = &page.buckets["test"];
    let blocks = |object: &bywash::CachedObject| (object.blocks, object.disk_blocks);
    assert_eq!(
        found.iter().map(blocks).collect::<Vec<_>>(),
        [(4, 4), (1, 1)]
    );
    assert_eq!(found[0].disk_bytes, 3 * BLOCK as u64 + 1);
    assert_eq!(page.next.as_deref(), Some("test/a/2"));
    // The others; one is known by now.
    assert!(read(&bucket, &Path::from("b/1")).await == pattern(2, 2 * BLOCK));
    let page = second.cached_page(None, "", page.next.as_deref(), 2, true);
    assert_eq!(page.buckets["test"].len(), 1);
    assert_eq!(page.buckets["test"][0].resident_blocks, 2);
    assert_eq!(page.next, None);

    let before = (disk(&second).hits, data_requests(&second));
    assert_eq!(bucket.drop_cached("a/").objects, 2);
    for (index, (key, length)) in objects.into_iter().take(2).enumerate() {
        assert!(read(&bucket, &Path::from(key)).await == pattern(index as u64, length));
    }
    let after = (disk(&second).hits, data_requests(&second));
    assert_eq!(after.0, before.0);
    assert!(after.1 >= before.1 + 2);
    let page = second.cached_page(None, "b/", None, 2, true);
    assert_eq!(page.buckets["test"][0].disk_blocks, 2, "not dropped");
}
