//! Bytes of a write in memory before they are read.

use std::sync::Arc;

use bytes::Bytes;
use bywash::origin::memory::MemoryStore;
use bywash::{Bucket, BucketStats, Consistency, Engine, PutStreamOptions, WriteCache};
use futures::StreamExt;
use futures::stream;
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutPayload};

const BLOCK: usize = 64 << 10;

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

fn pattern(length: usize) -> Bytes {
    (0..length).map(|i| (i * 31 + i / 251) as u8).collect()
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
        let data = pattern(length);
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
    let (path, data) = (Path::from("a"), pattern(3 * BLOCK + 5));
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
    let (path, data) = (Path::from("a"), pattern(BLOCK));
    bucket.put(&path, data.clone().into()).await.unwrap();
    let requests = stats(&engine).origin_requests;
    assert_eq!(requests, 1, "a write costs one request");
    assert_eq!(read(&bucket, &path).await, data);
    assert_eq!(stats(&engine).origin_data_requests, 1);
}

#[tokio::test]
async fn object_larger_than_the_memory_is_kept_in_part() {
    let (_, _, bucket) = engine(WriteCache::OnWrite);
    let (path, data) = (Path::from("a"), pattern(24 << 20));
    bucket.put(&path, data.clone().into()).await.unwrap();
    assert_eq!(read(&bucket, &path).await, data);
}
