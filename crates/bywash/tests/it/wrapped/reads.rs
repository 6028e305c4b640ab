//! Reads of object_store's own stores: right, cached, and of one version.

use std::path::Path as FsPath;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use bywash::{Bucket, Consistency, DiskOptions, DownloadOptions, Engine, EngineError, WrapOptions};
use bywash_support::pattern;
use futures::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::throttle::{ThrottleConfig, ThrottledStore};
use object_store::{ObjectStore, ObjectStoreExt};

use super::{BLOCK, LENGTH, MEMORY, Odd, wrap};

/// Reads an object in every way twice; the second time without a request.
async fn is_read_and_cached(store: impl ObjectStore) {
    let store = Arc::new(Odd::new(store));
    let (path, bytes) = (Path::from("a/b"), pattern(1, LENGTH));
    store.put(&path, bytes.clone().into()).await.unwrap();
    let (engine, bucket) = wrap(&store, Consistency::Immutable);
    let mut sent = None;
    for _ in 0..2 {
        let read = bucket.get(&path).await.unwrap();
        assert_eq!(read.meta.location, path);
        assert_eq!(read.bytes().await.unwrap(), bytes);
        let range = 70_001..200_000;
        let part = bucket.get_range(&path, range.clone()).await.unwrap();
        assert_eq!(part, bytes[70_001..200_000]);
        let parts = bucket.get_ranges(&path, &[0..9, range]).await.unwrap();
        assert_eq!(parts, [bytes.slice(..9), bytes.slice(70_001..200_000)]);
        assert_eq!(bucket.head(&path).await.unwrap().size, LENGTH as u64);
        let download = bucket.download(&path, DownloadOptions::default()).await;
        let whole = download.unwrap().finish().await.unwrap();
        let whole: Vec<u8> = whole.into_iter().flatten().collect();
        assert_eq!(whole, bytes);
        assert_eq!(store.reads(), *sent.get_or_insert(store.reads()), "{store}");
    }
    let stats = &engine.stats().buckets["wrapped"];
    assert_eq!(stats.origin_bytes, LENGTH as u64, "{store}: each byte once");
    let absent = bucket.get(&Path::from("absent")).await.unwrap_err();
    assert!(
        matches!(absent, object_store::Error::NotFound { .. }),
        "{absent}"
    );
}

#[tokio::test]
async fn stores_are_read_right_and_each_byte_is_requested_once() {
    is_read_and_cached(InMemory::new()).await;
    is_read_and_cached(PrefixStore::new(InMemory::new(), "below")).await;
    let slow = ThrottleConfig {
        wait_get_per_call: Duration::from_millis(5),
        ..ThrottleConfig::default()
    };
    is_read_and_cached(ThrottledStore::new(InMemory::new(), slow)).await;
    let folder = tempfile::tempdir().unwrap();
    is_read_and_cached(LocalFileSystem::new_with_prefix(folder.path()).unwrap()).await;
}

#[tokio::test]
async fn empty_object_is_read_and_ranges_beyond_an_object_are_refused() {
    let store = Arc::new(InMemory::new());
    let (path, empty) = (Path::from("a"), Path::from("empty"));
    store.put(&path, "abc".into()).await.unwrap();
    store.put(&empty, "".into()).await.unwrap();
    let (_engine, bucket) = wrap(&store, Consistency::default());
    assert_eq!(bucket.get(&empty).await.unwrap().bytes().await.unwrap(), "");
    let beyond = bucket.get_range(&path, 5..9).await.unwrap_err();
    let found = EngineError::find(&beyond);
    let is_refused = matches!(found, Some(EngineError::RangeNotSatisfiable { .. }));
    assert!(is_refused, "{beyond}");
    let end = bucket.get_range(&path, 1..9).await.unwrap();
    assert_eq!(end, "bc");
}

#[tokio::test(start_paused = true)]
async fn object_replaced_behind_the_bucket_is_seen_after_the_window() {
    let store = Arc::new(Odd::new(InMemory::new()));
    let path = Path::from("a");
    let window = Duration::from_secs(10);
    let (_engine, bucket) = wrap(&store, Consistency::Revalidate(window));
    let read = async || bucket.get(&path).await.unwrap().bytes().await.unwrap();
    let [old, new] = [1, 2].map(|seed| pattern(seed, LENGTH));
    store.put(&path, old.clone().into()).await.unwrap();
    assert_eq!(read().await, old);
    store.put(&path, new.clone().into()).await.unwrap();
    assert_eq!(read().await, old, "known within the window");
    tokio::time::advance(window + Duration::from_millis(1)).await;
    assert_eq!(read().await, new);
    let sent = store.reads();
    tokio::time::advance(window + Duration::from_millis(1)).await;
    assert_eq!(read().await, new);
    assert_eq!(store.reads(), sent + 1, "one request confirms the version");
}

#[tokio::test]
async fn replaced_file_is_never_mixed_within_a_read() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(LocalFileSystem::new_with_prefix(folder.path()).unwrap());
    let path = Path::from("a");
    let [old, new] = [1, 2].map(|seed| pattern(seed, 40 * BLOCK));
    store.put(&path, old.clone().into()).await.unwrap();
    let (_engine, bucket) = wrap(&store, Consistency::Revalidate(Duration::ZERO));
    let mut body = bucket.get(&path).await.unwrap().into_stream();
    let mut got = body.try_next().await.unwrap().unwrap().to_vec();
    store.put(&path, new.clone().into()).await.unwrap();
    let end = loop {
        match body.try_next().await {
            Ok(Some(piece)) => got.extend_from_slice(&piece),
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    assert!(old.starts_with(&got), "only bytes of the old version");
    match end {
        Ok(()) => assert_eq!(got.len(), old.len()),
        Err(error) => {
            let found = EngineError::find(&error);
            let is_change = matches!(found, Some(EngineError::VersionChanged { .. }));
            assert!(is_change, "{error}");
        }
    }
    assert_eq!(bucket.get(&path).await.unwrap().bytes().await.unwrap(), new);
}

/// Opens an engine over the folder. The threads of the engine before it may still have the folder's lock for a moment.
fn wrap_on_disk(folder: &FsPath, store: &Arc<Odd>, address: Option<&str>) -> (Engine, Bucket) {
    let options = DiskOptions {
        path: folder.to_owned(),
        size: 512 << 20,
        daily_writes: None,
        min_block_size: None,
    };
    let deadline = Instant::now() + Duration::from_secs(20);
    let engine = loop {
        let builder = Engine::builder().memory(MEMORY).block_size(BLOCK);
        match builder.disk(options.clone()).build() {
            Ok(engine) => break engine,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        std::thread::yield_now();
    };
    let options = WrapOptions {
        address: address.map(str::to_owned),
        ..WrapOptions::default()
    };
    let store = Arc::<Odd>::clone(store);
    let bucket = engine.wrap("wrapped", store, options).unwrap();
    (engine, bucket)
}

#[tokio::test]
async fn blocks_of_a_store_with_an_address_outlive_the_engine_on_the_disk() {
    let disk = tempfile::tempdir().unwrap();
    let store = Arc::new(Odd::new(InMemory::new()));
    let (path, bytes) = (Path::from("a"), pattern(1, LENGTH));
    store.put(&path, bytes.clone().into()).await.unwrap();
    let read = async |address: Option<&str>| -> (Bytes, u64) {
        let (engine, bucket) = wrap_on_disk(disk.path(), &store, address);
        let got = bucket.get(&path).await.unwrap().bytes().await.unwrap();
        let stored = || engine.stats().disk.unwrap().blocks > 0;
        while address.is_some() && !stored() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        engine.close_disk(Duration::from_secs(20)).await;
        (got, engine.stats().buckets["wrapped"].origin_bytes)
    };
    let length = LENGTH as u64;
    assert_eq!(read(None).await, (bytes.clone(), length));
    assert_eq!(read(None).await, (bytes.clone(), length));
    assert_eq!(read(Some("here/b")).await, (bytes.clone(), length));
    assert_eq!(read(Some("here/b")).await, (bytes.clone(), 0));
    assert_eq!(read(Some("there/b")).await, (bytes, length));
}
