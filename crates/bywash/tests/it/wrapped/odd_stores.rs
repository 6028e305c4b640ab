//! Stores without validators, order or honesty.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use bywash::{Bucket, Consistency, Engine, EngineError, OriginError, RetryPolicy};
use bywash_support::pattern;
use futures::{StreamExt, TryStreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    Error, GetOptions, GetRange, GetResult, GetResultPayload, ObjectMeta, ObjectStore,
    ObjectStoreExt,
};

use super::{BLOCK, LENGTH, Odd, wrap};

const REVALIDATE: Consistency = Consistency::Revalidate(Duration::ZERO);

async fn read(bucket: &Bucket, path: &Path) -> Result<Bytes, Error> {
    bucket.get(path).await?.bytes().await
}

fn no_e_tag(meta: &mut ObjectMeta) {
    meta.e_tag = None;
}

fn no_validator(meta: &mut ObjectMeta) {
    meta.e_tag = None;
    meta.last_modified = chrono::DateTime::UNIX_EPOCH;
}

fn unconditional(options: GetOptions) -> GetOptions {
    GetOptions {
        if_match: None,
        if_unmodified_since: None,
        ..options
    }
}

#[tokio::test]
async fn object_without_etag_is_known_by_its_date_and_size() {
    let store = Arc::new(Odd {
        meta: no_e_tag,
        ..Odd::new(InMemory::new())
    });
    let path = Path::from("a");
    let [old, new] = [1, 2].map(|seed| pattern(seed, LENGTH));
    store.put(&path, old.clone().into()).await.unwrap();
    let (engine, bucket) = wrap(&store, REVALIDATE);
    let received = || engine.stats().buckets["wrapped"].origin_bytes;
    assert_eq!(read(&bucket, &path).await.unwrap(), old);
    assert_eq!(read(&bucket, &path).await.unwrap(), old);
    assert_eq!(received(), LENGTH as u64, "cached");
    tokio::time::sleep(Duration::from_millis(2)).await;
    store.put(&path, new.clone().into()).await.unwrap();
    assert_eq!(read(&bucket, &path).await.unwrap(), new);
    assert_eq!(received(), 2 * LENGTH as u64);
}

#[tokio::test]
async fn object_without_etag_and_date_is_read_and_never_cached() {
    let store = Arc::new(Odd {
        meta: no_validator,
        request: |_, options| unconditional(options),
        ..Odd::new(InMemory::new())
    });
    let path = Path::from("a");
    let (engine, bucket) = wrap(&store, Consistency::Immutable);
    for seed in 1..4 {
        let bytes = pattern(seed, LENGTH);
        store.put(&path, bytes.clone().into()).await.unwrap();
        assert_eq!(read(&bucket, &path).await.unwrap(), bytes);
    }
    assert_eq!(engine.stats().pool.resident_bytes, 0);
}

/// Replaces the object before its second read, and ignores conditions.
#[tokio::test]
async fn version_that_changes_between_blocks_is_never_mixed() {
    let inner = Arc::new(InMemory::new());
    let path = Path::from("a");
    let [old, new] = [1, 2].map(|seed| pattern(seed, 40 * BLOCK));
    inner.put(&path, old.clone().into()).await.unwrap();
    let store = Odd {
        request: |_, options| unconditional(options),
        ..Odd::new(Arc::<InMemory>::clone(&inner))
    };
    let (_engine, bucket) = wrap(&Arc::new(store), Consistency::Immutable);
    let first = bucket.get_range(&path, 0..10).await.unwrap();
    assert_eq!(first, old[..10]);
    let mut body = bucket.get(&path).await.unwrap().into_stream();
    inner.put(&path, new.clone().into()).await.unwrap();
    let mut got = Vec::new();
    let error = loop {
        match body.try_next().await {
            Ok(Some(piece)) => got.extend_from_slice(&piece),
            Ok(None) => panic!("the store no longer has the {} bytes", got.len()),
            Err(error) => break error,
        }
    };
    assert!(old.starts_with(&got), "bytes of another version");
    let found = EngineError::find(&error);
    assert!(
        matches!(found, Some(EngineError::VersionChanged { .. })),
        "{error}"
    );
    assert_eq!(read(&bucket, &path).await.unwrap(), new);
}

/// Returns the response with another body.
fn with_body(result: GetResult, change: fn(Bytes) -> Bytes) -> GetResult {
    let (meta, range) = (result.meta.clone(), result.range.clone());
    let (attributes, extensions) = (result.attributes.clone(), result.extensions.clone());
    let body = result.into_stream().map_ok(change).boxed();
    GetResult {
        payload: GetResultPayload::Stream(body),
        meta,
        range,
        attributes,
        extensions,
    }
}

#[tokio::test]
async fn lies_about_ranges_are_errors_and_never_bytes() {
    let lies: [fn(GetResult) -> GetResult; 4] = [
        |mut result| {
            result.range = 1..result.range.end + 1;
            result
        },
        |mut result| {
            result.range.end -= 1;
            result
        },
        |result| with_body(result, |body| body.slice(..body.len() - 1)),
        |result| with_body(result, |body| [&body[..], b"x"].concat().into()),
    ];
    for (number, lie) in lies.into_iter().enumerate() {
        let store = Odd {
            response: lie,
            ..Odd::new(InMemory::new())
        };
        let path = Path::from("a");
        let bytes = pattern(1, LENGTH);
        store.put(&path, bytes.clone().into()).await.unwrap();
        let (_engine, bucket) = wrap(&Arc::new(store), Consistency::Immutable);
        let error = read(&bucket, &path).await.unwrap_err();
        let found = OriginError::find(&error);
        let is_named = matches!(found, Some(OriginError::OriginUnavailable { .. }));
        assert!(is_named, "lie {number}: {error}");
        assert!(error.to_string().contains("does not match"), "{error}");
        // Behind a body that is too short each fetch continues at the byte reached: but for its last byte the object may be here.
        if let Ok(part) = bucket.get_range(&path, 70_001..200_000).await {
            assert!(part == bytes[70_001..200_000], "lie {number}");
        }
        assert_eq!(bucket.head(&path).await.unwrap().size, LENGTH as u64);
    }
}

#[tokio::test]
async fn unordered_lists_are_listed_and_refused_by_pages() {
    let store = Odd {
        is_backwards: true,
        ..Odd::new(InMemory::new())
    };
    let keys = ["a/1", "a/2", "b/1", "c", "d"];
    for key in keys {
        store.put(&Path::from(key), key.into()).await.unwrap();
    }
    let (_engine, bucket) = wrap(&Arc::new(store), Consistency::default());
    let listed: Vec<ObjectMeta> = bucket.list(None).try_collect().await.unwrap();
    let mut listed: Vec<String> = listed
        .into_iter()
        .map(|meta| meta.location.into())
        .collect();
    assert_eq!(listed[0], "d");
    listed.sort_unstable();
    assert_eq!(listed, keys);
    let level = bucket.list_with_delimiter(None).await.unwrap();
    let names: Vec<_> = level
        .objects
        .iter()
        .map(|meta| meta.location.as_ref())
        .collect();
    assert_eq!(names, ["c", "d"]);
    assert_eq!(level.common_prefixes, [Path::from("a"), Path::from("b")]);
    let error = bucket.list_page("", None, 9).await.unwrap_err();
    assert!(matches!(error, Error::NotSupported { .. }), "{error:?}");
    assert!(error.to_string().contains("order of keys"), "{error}");
}

/// As of a server that sends frames without data.
#[tokio::test]
async fn body_of_empty_pieces_is_a_stall() {
    let store = Odd {
        response: |result| GetResult {
            payload: GetResultPayload::Stream(
                futures::stream::repeat_with(|| Ok(Bytes::new())).boxed(),
            ),
            ..result
        },
        ..Odd::new(InMemory::new())
    };
    let path = Path::from("a");
    store.put(&path, pattern(1, LENGTH).into()).await.unwrap();
    let retry = RetryPolicy {
        initial_backoff: Duration::from_millis(1),
        max_backoff: Duration::from_millis(1),
        deadline: Duration::from_millis(50),
        stall: Duration::from_millis(20),
    };
    let engine = Engine::builder().memory(32 << 20).retry(retry);
    let engine = engine.build().unwrap();
    let consistency = Consistency::Immutable;
    let bucket = engine.wrap("wrapped", Arc::new(store), consistency);
    let bucket = bucket.unwrap();
    for range in [None, Some(GetRange::Bounded(70_000..70_010))] {
        let options = GetOptions {
            range,
            ..GetOptions::default()
        };
        let read = async { bucket.get_opts(&path, options).await?.bytes().await };
        // A minute, which counts as forever.
        let read = tokio::time::timeout(Duration::from_secs(60), read).await;
        let error = read.expect("the read ends").unwrap_err();
        let found = OriginError::find(&error);
        let is_named = matches!(found, Some(OriginError::OriginUnavailable { .. }));
        assert!(is_named, "{error}");
    }
}
