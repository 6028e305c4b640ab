//! Bytes of a write in memory before they are read.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use bywash::origin::memory::MemoryStore;
use bywash::{
    Bucket, BucketStats, Consistency, Engine, PutStreamOptions, UploadOptions, WriteCache,
};
use bywash_sim::{FaultKind, FaultProfile, SimOrigin};
use bywash_support::pattern;
use futures::StreamExt;
use futures::stream;
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutPayload};
use tokio::time::{Instant, sleep};

const BLOCK: usize = 64 << 10;
/// Chunks of an upload: their ends are within blocks.
const CHUNK: usize = 3 * BLOCK + 1000;

fn engine(when: WriteCache) -> (Engine, MemoryStore, Bucket) {
    let engine = Engine::builder()
        .memory(16 << 20)
        .block_size(BLOCK)
        .write_cache(when)
        .build()
        .unwrap();
    let origin = MemoryStore::new();
    let shared = Arc::new(origin.clone());
    let bucket = engine.mount("test", shared, Consistency::Immutable);
    let bucket = bucket.unwrap();
    (engine, origin, bucket)
}

fn stats(engine: &Engine) -> BucketStats {
    engine.stats().buckets["test"]
}

async fn read(bucket: &Bucket, path: &Path) -> Bytes {
    bucket.get(path).await.unwrap().bytes().await.unwrap()
}

#[tokio::test]
async fn written_bytes_are_read_from_memory() {
    let (engine, _, bucket) = engine(WriteCache::OnWrite);
    let path = Path::from("a");
    for length in [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK + 17] {
        let data = pattern(0, length);
        // Pieces that end within blocks.
        let pieces = data.chunks(10_007).map(Bytes::copy_from_slice);
        let payload: PutPayload = pieces.collect();
        bucket.put(&path, payload).await.unwrap();
        let written = stats(&engine);
        assert_eq!(read(&bucket, &path).await, data, "{length}");
        let after = stats(&engine);
        assert_eq!(after.origin_requests, written.origin_requests, "{length}");
    }
    assert_eq!(stats(&engine).origin_data_requests, 0);
}

#[tokio::test]
async fn streamed_body_of_one_chunk_is_read_from_memory() {
    let (engine, _, bucket) = engine(WriteCache::OnWrite);
    let (path, data) = (Path::from("a"), pattern(0, 3 * BLOCK + 5));
    let pieces: Vec<_> = data.chunks(999).map(Bytes::copy_from_slice).collect();
    let body = stream::iter(pieces.into_iter().map(Ok)).boxed();
    let options = PutStreamOptions::default();
    bucket.put_stream(&path, options, body).await.unwrap();
    assert_eq!(read(&bucket, &path).await, data);
    assert_eq!(stats(&engine).origin_data_requests, 0);
}

#[tokio::test]
async fn bytes_are_read_from_the_origin_by_default() {
    let (engine, _, bucket) = engine(WriteCache::default());
    let (path, data) = (Path::from("a"), pattern(0, BLOCK));
    bucket.put(&path, data.clone().into()).await.unwrap();
    let requests = stats(&engine).origin_requests;
    assert_eq!(requests, 1, "a write costs one request");
    assert_eq!(read(&bucket, &path).await, data);
    assert_eq!(stats(&engine).origin_data_requests, 1);
}

#[tokio::test]
async fn object_larger_than_the_memory_is_kept_in_part() {
    let (_, _, bucket) = engine(WriteCache::OnWrite);
    let (path, data) = (Path::from("a"), pattern(0, 24 << 20));
    bucket.put(&path, data.clone().into()).await.unwrap();
    assert_eq!(read(&bucket, &path).await, data);
}

#[tokio::test(start_paused = true)]
async fn write_waits_only_shortly_for_the_head_of_its_version() {
    let latency = Duration::from_millis(10);
    let profile = |faults| FaultProfile {
        latency: latency..latency,
        faults,
        ..FaultProfile::none()
    };
    for fault in [FaultKind::StallResponse, FaultKind::Unavailable] {
        let origin = SimOrigin::new(1, profile(vec![]));
        let builder = Engine::builder().memory(16 << 20).block_size(BLOCK);
        let engine = builder.write_cache(WriteCache::OnWrite).build().unwrap();
        let shared = Arc::new(origin.clone());
        let bucket = engine.mount("test", shared, Consistency::Immutable);
        let bucket = bucket.unwrap();
        let (begun, path) = (Instant::now(), Path::from("a"));
        let put = tokio::spawn({
            let (bucket, path) = (bucket.clone(), path.clone());
            async move { bucket.put(&path, pattern(0, BLOCK).into()).await }
        });
        // The write has reached the store; the next requests fail.
        sleep(latency / 2).await;
        origin.set_fault_profile(profile(vec![(fault, 1.0)]));
        put.await.unwrap().unwrap();
        let took = begun.elapsed();
        assert!(took <= Duration::from_secs(2), "{fault:?}: {took:?}");
        assert_eq!(origin.requests(), 2, "{fault:?}: one HEAD");
        origin.set_fault_profile(profile(vec![]));
        assert_eq!(read(&bucket, &path).await, pattern(0, BLOCK));
    }
}

async fn upload(bucket: &Bucket, path: &Path, data: &Bytes) -> object_store::Result<()> {
    let options = UploadOptions {
        chunk: Some(CHUNK as u64),
        ..UploadOptions::default()
    };
    let mut upload = bucket.upload(path, options).await?;
    for (index, piece) in data.chunks(CHUNK + 77).enumerate() {
        // Whole chunks are sent without a copy, shorter pieces are collected.
        let pieces = piece.chunks(if index % 2 == 0 { piece.len() } else { 9_999 });
        for piece in pieces {
            upload.write(Bytes::copy_from_slice(piece)).await?;
        }
    }
    upload.finish().await.map(|_| ())
}

#[tokio::test]
async fn upload_of_several_chunks_is_read_from_memory() {
    let (engine, _, bucket) = engine(WriteCache::OnWrite);
    let path = Path::from("a");
    for length in [CHUNK + 1, 2 * CHUNK, 11 * BLOCK, 40 * BLOCK + 17] {
        let data = pattern(0, length);
        upload(&bucket, &path, &data).await.unwrap();
        let resident = engine.stats().pool.resident_bytes;
        assert!(resident >= length as u64, "{resident} of {length}");
        assert_eq!(read(&bucket, &path).await, data, "{length}");
        assert_eq!(stats(&engine).origin_data_requests, 0, "{length}");
        let _ = bucket.drop_cached("");
        assert_eq!(engine.stats().pool.resident_blocks, 0, "{length}");
    }
}

#[tokio::test]
async fn upload_larger_than_a_quarter_of_the_memory_is_kept_up_to_that() {
    let (engine, _, bucket) = engine(WriteCache::OnWrite);
    let (path, data) = (Path::from("a"), pattern(0, 6 << 20));
    upload(&bucket, &path, &data).await.unwrap();
    let stats = engine.stats();
    assert_eq!(stats.pool.resident_bytes, 4 << 20);
    assert!(stats.budget.used <= 16 << 20);
    assert_eq!(read(&bucket, &path).await, data);
}

#[tokio::test]
async fn upload_that_fails_or_is_aborted_leaves_no_block() {
    let (engine, origin, bucket) = engine(WriteCache::OnWrite);
    let (path, old) = (Path::from("a"), pattern(0, 10));
    origin.put(&path, old.clone().into()).await.unwrap();
    let resident = || engine.stats().pool.resident_blocks;
    for fails in [true, false] {
        let options = UploadOptions {
            chunk: Some(CHUNK as u64),
            crc32c: fails.then_some(1),
            ..UploadOptions::default()
        };
        let mut upload = bucket.upload(&path, options).await.unwrap();
        upload.write(pattern(0, 5 * CHUNK)).await.unwrap();
        // In memory, but of no version.
        assert!(resident() > 0);
        assert_eq!(read(&bucket, &path).await, old);
        if fails {
            upload.finish().await.unwrap_err();
        }
        upload.abort().await.unwrap();
        drop(upload);
        let _ = bucket.drop_cached("");
        assert_eq!(resident(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn upload_that_was_overwritten_at_once_is_not_kept() {
    let latency = Duration::from_millis(10);
    let profile = FaultProfile {
        latency: latency..latency,
        ..FaultProfile::none()
    };
    let origin = SimOrigin::new(1, profile.clone());
    let builder = Engine::builder().memory(16 << 20).block_size(BLOCK);
    let engine = builder.write_cache(WriteCache::OnWrite).build().unwrap();
    let shared = Arc::new(origin.clone());
    let bucket = engine.mount("test", shared, Consistency::Immutable);
    let (bucket, path) = (bucket.unwrap(), Path::from("a"));
    let length = 9 * BLOCK;
    let writes = tokio::spawn({
        let (bucket, path) = (bucket.clone(), path.clone());
        async move { upload(&bucket, &path, &pattern(0, length)).await }
    });
    // Another client writes as much between the completion and the HEAD.
    while origin.oracle().current(&path).is_none() {
        sleep(Duration::from_millis(1)).await;
    }
    let other = origin.write(&path, length);
    writes.await.unwrap().unwrap();
    assert_eq!(engine.stats().pool.resident_blocks, 0);
    assert_eq!(read(&bucket, &path).await, other.body);
}
