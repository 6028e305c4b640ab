//! Content-addressed buckets: a segment of each key is the SHA-256 of its object.

use std::sync::Arc;

use bytes::Bytes;
use bywash::origin::folder::FolderStore;
use bywash::origin::memory::MemoryStore;
use bywash::{
    Bucket, BucketOptions, CacheOutcome, Consistency, ContentDigest, Engine, EngineError, Origin,
    PutStreamOptions, ReadInfo, UploadOptions, UploadedPart, Verify,
};
use bywash_sim::WrappedMemory;
use bywash_support::pattern;
use futures::{StreamExt as _, stream};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    Error, GetRange, ObjectStore as _, ObjectStoreExt as _, PutMode, PutMultipartOptions,
    PutPayload,
};

const BLOCK: usize = 64 << 10;
/// More than a chunk, so that a stream becomes a session.
const LENGTH: usize = 3 * CHUNK + 17;
const CHUNK: usize = 256 << 10;

struct World {
    engine: Engine,
    origin: MemoryStore,
    bucket: Bucket,
}

fn blobs() -> BucketOptions {
    BucketOptions {
        consistency: Consistency::Immutable,
        digest_in_key: Some("sha256".parse().unwrap()),
        ..BucketOptions::default()
    }
}

fn world(verify: Verify) -> World {
    let builder = Engine::builder().memory(16 << 20).block_size(BLOCK);
    let builder = builder.chunk_size(CHUNK).verify(verify);
    let engine = builder.build().unwrap();
    let origin = MemoryStore::new();
    let shared = Arc::new(origin.clone());
    let bucket = engine.mount("blobs", shared, blobs()).unwrap();
    World {
        engine,
        origin,
        bucket,
    }
}

/// The key of these bytes.
fn key(bytes: &[u8]) -> Path {
    let pieces = [Bytes::copy_from_slice(bytes)];
    let digest = ContentDigest::Sha256([0; 32]).same_of(&pieces).to_string();
    let hex = digest.strip_prefix("SHA-256 ").unwrap();
    Path::from(format!("blobs/sha256/{hex}"))
}

fn pieces(bytes: &[u8]) -> Vec<Bytes> {
    bytes.chunks(10_007).map(Bytes::copy_from_slice).collect()
}

async fn streamed(world: &World, path: &Path, bytes: &[u8]) -> object_store::Result<()> {
    let body = stream::iter(pieces(bytes).into_iter().map(Ok)).boxed();
    let options = PutStreamOptions::default();
    world.bucket.put_stream(path, options, body).await.map(drop)
}

fn is_wrong_content(error: &Error) -> bool {
    let found = EngineError::find(error);
    matches!(found, Some(EngineError::WrongContent { .. }))
}

fn needs_whole_write(error: &Error) -> bool {
    let found = EngineError::find(error);
    matches!(found, Some(EngineError::NeedsWholeWrite { .. }))
}

#[tokio::test]
async fn writes_with_other_bytes_leave_no_object() {
    let world = world(Verify::Off);
    let right = pattern(0, LENGTH);
    let path = key(&right);
    for length in [0, 1, CHUNK, LENGTH - 1] {
        let wrong = &right[..length];
        let payload: PutPayload = pieces(wrong).into_iter().collect();
        let put = world.bucket.put(&path, payload).await.unwrap_err();
        assert!(is_wrong_content(&put), "{put}");
        let sent = streamed(&world, &path, wrong).await.unwrap_err();
        assert!(is_wrong_content(&sent), "{sent}");
        let mut upload = world.bucket.put_multipart(&path).await.unwrap();
        upload.put_part(wrong.to_vec().into()).await.unwrap();
        let completed = upload.complete().await.unwrap_err();
        assert!(is_wrong_content(&completed), "{completed}");
    }
    let gone = world.origin.head(&path).await.unwrap_err();
    assert!(matches!(gone, Error::NotFound { .. }));
    streamed(&world, &path, &right).await.unwrap();
    let payload: PutPayload = pieces(&right).into_iter().collect();
    world.bucket.put(&path, payload).await.unwrap();
    let read = world.bucket.get(&path).await.unwrap();
    assert_eq!(read.bytes().await.unwrap(), right);
}

#[tokio::test]
async fn write_to_a_key_without_a_digest_is_refused() {
    let world = world(Verify::default());
    for name in ["plain", "blobs/sha256/abc", &format!("{}/data", key(b""))] {
        let path = Path::from(name);
        let put = world.bucket.put(&path, "bytes".into()).await.unwrap_err();
        let sent = streamed(&world, &path, b"bytes").await.unwrap_err();
        for error in [put, sent] {
            let found = EngineError::find(&error);
            let named = matches!(found, Some(EngineError::KeyWithoutDigest { .. }));
            assert!(named, "{name}: {error}");
        }
    }
}

#[tokio::test]
async fn whole_reads_of_other_bytes_fail_before_their_last_byte() {
    for verify in [Verify::Off, Verify::Whole, Verify::Always] {
        let world = world(verify);
        let right = pattern(0, LENGTH);
        let mut damaged = right.to_vec();
        damaged[LENGTH / 2] ^= 1;
        let path = key(&right);
        world.origin.put(&path, damaged.into()).await.unwrap();
        for round in 0..3 {
            let read = world.bucket.get(&path).await;
            let mut received = 0;
            let failed = match read {
                Err(error) => error,
                Ok(read) => {
                    let mut body = read.into_stream();
                    loop {
                        match body.next().await.expect("the body fails before its end") {
                            Ok(piece) => received += piece.len(),
                            Err(error) => break error,
                        }
                    }
                }
            };
            assert!(received < LENGTH, "{verify} {round}");
            let found = EngineError::find(&failed);
            let named = matches!(found, Some(EngineError::DigestMismatch { .. }));
            assert!(named, "{verify} {round}: {failed}");
        }
        assert!(world.engine.stats().buckets["blobs"].digest_mismatches > 0);
    }
}

#[tokio::test]
async fn compared_blocks_are_read_again_from_memory_and_ranges_are_not_compared() {
    let world = world(Verify::default());
    let bytes = pattern(0, LENGTH);
    let path = key(&bytes);
    world.origin.put(&path, bytes.clone().into()).await.unwrap();
    for _ in 0..2 {
        let read = world.bucket.get(&path).await.unwrap();
        assert_eq!(read.bytes().await.unwrap(), bytes);
    }
    let read = world.bucket.get(&path).await.unwrap();
    let info: &ReadInfo = read.extensions.get().unwrap();
    assert_eq!(info.outcome, CacheOutcome::Hit);
    let range = world.bucket.get_range(&path, 5..70_000).await.unwrap();
    assert_eq!(range, bytes[5..70_000]);
    let suffix = object_store::GetOptions::new().with_range(Some(GetRange::Suffix(9)));
    let tail = world.bucket.get_opts(&path, suffix).await.unwrap();
    assert_eq!(tail.bytes().await.unwrap(), bytes[LENGTH - 9..]);
}

#[tokio::test]
async fn writes_whose_bytes_do_not_pass_in_order_are_refused() {
    let world = world(Verify::default());
    let (one, other) = (pattern(0, LENGTH), pattern(1, LENGTH));
    let (path, elsewhere) = (key(&one), key(&other));
    streamed(&world, &path, &one).await.unwrap();
    // This kind of store does not compare the parts of an upload.
    let origin = || {
        Arc::new(WrappedMemory::new(
            Arc::new(InMemory::new()),
            MemoryStore::new(),
        ))
    };
    let wrapped = world.engine.mount("wrapped", origin(), blobs()).unwrap();
    let options = PutMultipartOptions::default();
    let begun = wrapped.create_upload(&path, options).await;
    assert!(needs_whole_write(&begun.unwrap_err()));
    // One that began while the bucket did not have the setting.
    let plain = world
        .engine
        .mount("plain", origin(), Consistency::Immutable);
    let options = PutMultipartOptions::default();
    let begun = plain
        .unwrap()
        .create_upload(&elsewhere, options)
        .await
        .unwrap();
    let completed = wrapped.complete_upload(&elsewhere, &begun, &[], PutMode::Overwrite);
    assert!(needs_whole_write(&completed.await.unwrap_err()));
    for moved in [
        world.bucket.copy(&path, &elsewhere).await,
        world.bucket.rename(&path, &elsewhere).await,
    ] {
        let error = moved.unwrap_err();
        assert!(needs_whole_write(&error), "{error}");
    }
    // The same digest under another folder is the same object.
    let twin = Path::from(format!("other/{}", path.filename().unwrap()));
    world.bucket.copy(&path, &twin).await.unwrap();
    let read = world.bucket.get(&twin).await.unwrap();
    assert_eq!(read.bytes().await.unwrap(), one);
    let upload = UploadOptions::default();
    let mut upload = world.bucket.upload(&elsewhere, upload).await.unwrap();
    for piece in pieces(&other[..LENGTH - 5]) {
        upload.write(piece).await.unwrap();
    }
    let token = upload.capture();
    assert!(upload.acknowledged() > 0);
    let restored = world.bucket.restore_upload(&token).await;
    assert!(needs_whole_write(&restored.unwrap_err()));
    // The upload itself continues.
    upload
        .write(Bytes::copy_from_slice(&other[LENGTH - 5..]))
        .await
        .unwrap();
    upload.finish().await.unwrap();
    let read = world.bucket.get(&elsewhere).await.unwrap();
    assert_eq!(read.bytes().await.unwrap(), other);
}

/// Sends these parts in reverse order, and completes the upload of `path`. Returns the result and the upload's id.
async fn in_parts(
    bucket: &Bucket,
    path: &Path,
    parts: &[&[u8]],
) -> (object_store::Result<object_store::PutResult>, String) {
    let options = PutMultipartOptions::default();
    let id = bucket.create_upload(path, options).await.unwrap();
    let mut named = Vec::new();
    for (index, part) in parts.iter().enumerate().rev() {
        let number = u16::try_from(index + 1).unwrap();
        let body = stream::iter(pieces(part).into_iter().map(Ok)).boxed();
        let length = part.len() as u64;
        let sent = bucket.put_part(path, &id, number, length, body).await;
        let e_tag = sent.unwrap();
        named.push(UploadedPart { number, e_tag });
    }
    named.reverse();
    let mode = PutMode::Overwrite;
    let done = bucket.complete_upload(path, &id, &named, mode).await;
    (done, id)
}

#[tokio::test]
async fn numbered_parts_are_compared_before_their_object_exists() {
    let world = world(Verify::Off);
    let folder = tempfile::tempdir().unwrap();
    let folder = Arc::new(FolderStore::open(folder.path()).unwrap());
    let shared = Arc::<FolderStore>::clone(&folder);
    let on_disk = world.engine.mount("folder", shared, blobs());
    let on_disk = on_disk.unwrap();
    let stores: [(&Bucket, &dyn Origin); 2] =
        [(&world.bucket, &world.origin), (&on_disk, &*folder)];
    let bytes = pattern(3, LENGTH);
    let path = key(&bytes);
    let (head, tail) = bytes.split_at(CHUNK + 5);
    for (bucket, store) in stores {
        // The right parts in another order, and one byte too few.
        for wrong in [[tail, head], [head, &tail[1..]]] {
            let (refused, id) = in_parts(bucket, &path, &wrong).await;
            assert!(is_wrong_content(&refused.unwrap_err()));
            let absent = store.head(&path).await.unwrap_err();
            assert!(matches!(absent, Error::NotFound { .. }), "{absent}");
            // The upload stays, and another part can take the place of the wrong one.
            bucket.abort_upload(&path, &id).await.unwrap();
        }
        in_parts(bucket, &path, &[head, tail]).await.0.unwrap();
        let read = bucket.get(&path).await.unwrap();
        assert_eq!(read.bytes().await.unwrap(), bytes);
        let options = PutMultipartOptions::default();
        let plain = bucket.create_upload(&Path::from("plain"), options).await;
        let refused = plain.unwrap_err();
        let found = EngineError::find(&refused);
        assert!(
            matches!(found, Some(EngineError::KeyWithoutDigest { .. })),
            "{refused}"
        );
    }
}
