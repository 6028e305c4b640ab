//! Writes through a bucket over a wrapped store, as the program would have written to the store itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use bywash::{
    Bucket, Consistency, EngineError, OriginError, UploadOptions, UploadedPart, WrapOptions,
};
use bywash_support::pattern;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{
    Error, GetOptions, MultipartId, ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, Result, UpdateVersion,
};

use super::{BLOCK, MEMORY, Odd, dead_line, wrap};

const MIB: usize = 1 << 20;

/// Runs the operations of a program on its store, and returns their results.
async fn program(store: Arc<dyn ObjectStore>) -> Vec<String> {
    let mut seen = Vec::new();
    let [a, b, c, d] = ["p/a", "p/b", "q/c", "q/d"].map(Path::from);
    store.put(&a, "first".into()).await.unwrap();
    let create = PutOptions::from(PutMode::Create);
    let refused = store.put_opts(&a, "other".into(), create).await;
    seen.push(format!(
        "{}",
        matches!(refused, Err(Error::AlreadyExists { .. }))
    ));
    store.put(&a, "second".into()).await.unwrap();
    let text = store.get(&a).await.unwrap().bytes().await.unwrap();
    seen.push(format!("{text:?}"));
    store.copy(&a, &b).await.unwrap();
    let refused = store.copy_if_not_exists(&a, &b).await;
    seen.push(format!(
        "{}",
        matches!(refused, Err(Error::AlreadyExists { .. }))
    ));
    store.rename(&a, &c).await.unwrap();
    let gone = store.get(&a).await;
    seen.push(format!("{}", matches!(gone, Err(Error::NotFound { .. }))));
    let mut upload = store.put_multipart(&d).await.unwrap();
    let whole = pattern(1, 12 * MIB + 3);
    for part in [0..5 * MIB, 5 * MIB..10 * MIB, 10 * MIB..whole.len()] {
        upload.put_part(whole.slice(part).into()).await.unwrap();
    }
    upload.complete().await.unwrap();
    assert_eq!(store.get(&d).await.unwrap().bytes().await.unwrap(), whole);
    let range = store.get_range(&d, 5_000_000..5_000_009).await.unwrap();
    assert_eq!(range, whole[5_000_000..5_000_009]);
    let listed: Vec<_> = store.list(None).try_collect().await.unwrap();
    let mut listed: Vec<_> = listed
        .into_iter()
        .map(|meta| format!("{} {}", meta.location, meta.size))
        .collect();
    listed.sort_unstable();
    seen.extend(listed);
    let level = store.list_with_delimiter(None).await.unwrap();
    seen.push(format!("{:?}", level.common_prefixes.len()));
    store.delete(&b).await.unwrap();
    seen.push(format!("{}", store.head(&b).await.is_err()));
    seen
}

#[tokio::test]
async fn program_sees_the_same_of_its_store_and_of_the_bucket_over_it() {
    let (_engine, bucket) = wrap(&Arc::new(InMemory::new()), Consistency::default());
    let expected = program(Arc::new(InMemory::new())).await;
    assert_eq!(
        expected[4..],
        ["p/b 6", "q/c 6", "q/d 12582915", "2", "true"]
    );
    assert_eq!(program(Arc::new(bucket)).await, expected);
    let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let [one, other] = [0, 1].map(|n| LocalFileSystem::new_with_prefix(folders[n].path()).unwrap());
    let (_engine, bucket) = wrap(&Arc::new(one), Consistency::default());
    assert_eq!(program(Arc::new(other)).await, expected);
    assert_eq!(program(Arc::new(bucket)).await, expected);
}

#[tokio::test]
async fn writes_through_the_bucket_are_seen_at_once() {
    let (_engine, bucket) = wrap(&Arc::new(InMemory::new()), Consistency::Immutable);
    let path = Path::from("a");
    for text in ["one", "two", "three"] {
        bucket.put(&path, text.into()).await.unwrap();
        let read = bucket.get(&path).await.unwrap().bytes().await.unwrap();
        assert_eq!(read, text);
    }
}

/// The memory store keeps the parts of an upload, and an object put as one piece. The engine's memory does not stay with it.
#[tokio::test]
async fn store_that_keeps_bytes_does_not_keep_the_engines_memory() {
    let store = Arc::new(InMemory::new());
    let with_parts = WrapOptions {
        multipart: Some(Arc::<InMemory>::clone(&store)),
        ..WrapOptions::default()
    };
    for options in [WrapOptions::default(), with_parts] {
        let (engine, bucket) = wrap(&store, options);
        let whole = pattern(1, 3 * MEMORY as usize);
        for parallel in [1, 3] {
            let options = UploadOptions {
                parallel,
                ..UploadOptions::default()
            };
            let path = Path::from("large");
            let mut upload = bucket.upload(&path, options).await.unwrap();
            for piece in whole.chunks(100_000) {
                upload.write(Bytes::copy_from_slice(piece)).await.unwrap();
            }
            upload.finish().await.unwrap();
            drop(upload);
            assert_eq!(
                store.get(&path).await.unwrap().bytes().await.unwrap(),
                whole
            );
        }
        for number in 0..20 {
            let path = Path::from(format!("small/{number}"));
            let mut upload = bucket
                .upload(&path, UploadOptions::default())
                .await
                .unwrap();
            for _ in 0..2 {
                upload.write(Bytes::from_static(b"abc")).await.unwrap();
            }
            upload.finish().await.unwrap();
        }
        // The first small object may keep its buffer.
        let uploads = engine.stats().budget.uploads;
        assert!(uploads <= MEMORY / 4, "{uploads}");
    }
}

/// Uploads to a memory store in numbered parts. The first parts fail.
#[derive(Debug)]
struct NumberedParts {
    store: Arc<InMemory>,
    failing: AtomicUsize,
}

#[async_trait]
impl MultipartStore for NumberedParts {
    async fn create_multipart(&self, path: &Path) -> Result<MultipartId> {
        self.store.create_multipart(path).await
    }

    async fn put_part(
        &self,
        path: &Path,
        id: &MultipartId,
        part_idx: usize,
        data: PutPayload,
    ) -> Result<PartId> {
        let left = |left: usize| left.checked_sub(1);
        if self.failing.fetch_update(Relaxed, Relaxed, left).is_ok() {
            return Err(dead_line());
        }
        self.store.put_part(path, id, part_idx, data).await
    }

    async fn complete_multipart(
        &self,
        path: &Path,
        id: &MultipartId,
        parts: Vec<PartId>,
    ) -> Result<PutResult> {
        self.store.complete_multipart(path, id, parts).await
    }

    async fn abort_multipart(&self, path: &Path, id: &MultipartId) -> Result<()> {
        self.store.abort_multipart(path, id).await
    }
}

fn with_parts(failing: usize) -> (Arc<InMemory>, Bucket) {
    let store = Arc::new(InMemory::new());
    let parts = NumberedParts {
        store: Arc::clone(&store),
        failing: AtomicUsize::new(failing),
    };
    let options = WrapOptions {
        multipart: Some(Arc::new(parts)),
        ..WrapOptions::default()
    };
    let (_engine, bucket) = wrap(&store, options);
    (store, bucket)
}

fn is_not_implemented(error: &Error, names: &[&str]) -> bool {
    let text = error.to_string();
    matches!(error, Error::NotImplemented { .. }) && names.iter().all(|name| text.contains(name))
}

#[tokio::test]
async fn numbered_parts_that_fail_are_sent_again() {
    let (store, bucket) = with_parts(3);
    let (path, whole) = (Path::from("a"), pattern(1, 20 * MIB + 5));
    let options = UploadOptions {
        parallel: 2,
        ..UploadOptions::default()
    };
    let mut upload = bucket.upload(&path, options).await.unwrap();
    upload.write(whole.clone()).await.unwrap();
    let put = upload.finish().await.unwrap();
    assert!(put.resent_bytes > 0, "{put:?}");
    assert_eq!(
        store.get(&path).await.unwrap().bytes().await.unwrap(),
        whole
    );
}

#[tokio::test]
async fn parts_in_any_order_are_joined_by_their_numbers() {
    let (store, bucket) = with_parts(0);
    let (path, whole) = (Path::from("a"), pattern(1, 10 * MIB + 5));
    let id = bucket
        .create_upload(&path, PutMultipartOptions::default())
        .await
        .unwrap();
    let ranges = [0..5 * MIB, 5 * MIB..10 * MIB, 10 * MIB..whole.len()];
    let mut parts = Vec::new();
    for number in [2_u16, 3, 1] {
        let bytes = whole.slice(ranges[usize::from(number) - 1].clone());
        let length = bytes.len() as u64;
        let pieces: Vec<_> = bytes
            .chunks(10_000)
            .map(Bytes::copy_from_slice)
            .map(Ok)
            .collect();
        let body = stream::iter(pieces).boxed();
        let e_tag = bucket
            .put_part(&path, &id, number, length, body)
            .await
            .unwrap();
        parts.push(UploadedPart { number, e_tag });
    }
    parts.sort_by_key(|part| part.number);
    let gap = [parts[0].clone(), parts[2].clone()];
    let refused = bucket
        .complete_upload(&path, &id, &gap, PutMode::Overwrite)
        .await
        .unwrap_err();
    assert!(
        is_not_implemented(&refused, &["upload of a", "part 3", "without a gap"]),
        "{refused}"
    );
    let refused = bucket
        .complete_upload(&path, &id, &parts, PutMode::Create)
        .await
        .unwrap_err();
    assert!(
        is_not_implemented(&refused, &["upload of a", "on a condition"]),
        "{refused}"
    );
    bucket
        .complete_upload(&path, &id, &parts, PutMode::Overwrite)
        .await
        .unwrap();
    assert_eq!(
        store.get(&path).await.unwrap().bytes().await.unwrap(),
        whole
    );
    assert_eq!(
        bucket.get(&path).await.unwrap().bytes().await.unwrap(),
        whole
    );
}

/// The body of a client's part is in memory while it is sent: charged first, and refused if it cannot be.
#[tokio::test]
async fn part_of_a_client_is_charged_before_it_is_read() {
    let (_store, bucket) = with_parts(0);
    let path = Path::from("a");
    let id = bucket
        .create_upload(&path, PutMultipartOptions::default())
        .await
        .unwrap();
    let body = stream::poll_fn(|_| panic!("nothing of it is read")).boxed();
    let error = bucket
        .put_part(&path, &id, 1, 2 * MEMORY, body)
        .await
        .unwrap_err();
    let found = EngineError::find(&error);
    let is_named = matches!(
        found,
        Some(EngineError::InvalidSetting {
            setting: "memory",
            ..
        })
    );
    assert!(is_named, "{error}");
}

#[tokio::test]
async fn upload_as_one_stream_ends_with_a_part_that_failed() {
    for parallel in [1, 3] {
        let inner = Arc::new(InMemory::new());
        let store = Odd {
            failing_parts: AtomicUsize::new(1),
            ..Odd::new(Arc::<InMemory>::clone(&inner))
        };
        let (_engine, bucket) = wrap(&Arc::new(store), Consistency::default());
        let path = Path::from("a");
        let options = UploadOptions {
            parallel,
            ..UploadOptions::default()
        };
        let mut upload = bucket.upload(&path, options).await.unwrap();
        let bytes = pattern(1, 40 * MIB);
        let error = async {
            upload.write(bytes).await?;
            upload.finish().await
        }
        .await
        .unwrap_err();
        let found = OriginError::find(&error);
        let is_named = matches!(found, Some(OriginError::OriginUnavailable { .. }));
        assert!(
            is_named || matches!(found, Some(OriginError::UploadLost { .. })),
            "{error}"
        );
        upload.abort().await.unwrap();
        let absent = inner.get(&path).await;
        assert!(matches!(absent, Err(Error::NotFound { .. })), "{absent:?}");
        // A new upload is another one.
        let mut again = bucket.put_multipart(&path).await.unwrap();
        again.put_part(pattern(2, 17 * MIB).into()).await.unwrap();
        again.complete().await.unwrap();
        let stored = inner.get(&path).await.unwrap().bytes().await.unwrap();
        assert_eq!(stored, pattern(2, 17 * MIB));
    }
}

#[tokio::test]
async fn what_the_store_lacks_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let store = LocalFileSystem::new_with_prefix(folder.path()).unwrap();
    let (_engine, bucket) = wrap(&Arc::new(store), Consistency::default());
    let path = Path::from("a");
    bucket.put(&path, "text".into()).await.unwrap();
    let meta = bucket.head(&path).await.unwrap();
    let update = PutMode::Update(UpdateVersion::from(PutResult {
        e_tag: meta.e_tag,
        version: None,
        extensions: Default::default(),
    }));
    let refused = bucket
        .put_opts(&path, "new".into(), update.into())
        .await
        .unwrap_err();
    assert!(matches!(refused, Error::NotImplemented { .. }), "{refused}");
    let parts = bucket
        .create_upload(&path, PutMultipartOptions::default())
        .await
        .unwrap_err();
    assert!(
        is_not_implemented(&parts, &["upload of a", "WrapOptions::multipart"]),
        "{parts}"
    );
    let options = UploadOptions {
        mode: PutMode::Create,
        length: Some(40 * MIB as u64),
        ..UploadOptions::default()
    };
    let refused = bucket.upload(&Path::from("b"), options).await.unwrap_err();
    assert!(
        is_not_implemented(&refused, &["upload of b", "on a condition"]),
        "{refused}"
    );
    let old = GetOptions {
        version: Some("1".to_owned()),
        ..GetOptions::default()
    };
    let read = bucket.get_opts(&path, old).await;
    assert!(read.is_err() || read.unwrap().bytes().await.unwrap() == "text");
}

#[tokio::test]
async fn dropped_upload_and_dropped_body_drop_the_requests_of_the_store() {
    let store = Odd {
        hanging: Some(Arc::default()),
        ..Odd::new(InMemory::new())
    };
    let hanging = Arc::clone(store.hanging.as_ref().unwrap());
    let path = Path::from("a");
    store
        .put(&path, pattern(1, 4 * BLOCK).into())
        .await
        .unwrap();
    let (_engine, bucket) = wrap(&Arc::new(store), Consistency::default());
    let mut upload = bucket
        .upload(&path, UploadOptions::default())
        .await
        .unwrap();
    tokio::select! {
        written = upload.write(pattern(1, 20 * MIB)) => panic!("{written:?}"),
        () = hanging.begun.notified() => {}
    }
    assert!(
        hanging.dropped.load(Relaxed),
        "the part was dropped with the write"
    );
    drop(upload);
    hanging.dropped.store(false, Relaxed);
    let read = async { bucket.get(&path).await?.bytes().await };
    tokio::select! {
        read = read => panic!("the body never arrives: {read:?}"),
        () = hanging.begun.notified() => {}
    }
    let is_dropped = async {
        while !hanging.dropped.load(Relaxed) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(4), is_dropped).await;
    assert!(
        waited.is_ok(),
        "before the time after which it counts as stalled"
    );
}
