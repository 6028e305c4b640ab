//! Reads of a folder's object that is replaced during the read.
//!
//! A process of its own: the limit on files held open for reads is one a process.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use bywash::origin::folder::FolderStore;
use bywash::{Bucket, Consistency, DownloadOptions, Engine, EngineError};
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{GetOptions, ObjectStore, ObjectStoreExt, Result};
use tokio::sync::Mutex;

/// More than the engine's memory: later blocks are absent when a read begins.
const SIZE: usize = 2 << 20;
const BLOCK: usize = 16 << 10;
const ROUNDS: u8 = 100;
/// Maximum files that a process keeps open for reads.
const HELD_FILES: usize = 256;

/// The limit is per process: tests that depend on it run one after the other.
static ALONE: Mutex<()> = Mutex::const_new(());

fn key() -> Path {
    Path::from("dir/object")
}

fn content(version: u8) -> Bytes {
    vec![version; SIZE].into()
}

/// Returns a bucket over a folder with the object, in an engine of `memory` bytes, and the folder's store for other writers.
async fn served(memory: u64) -> (tempfile::TempDir, FolderStore, Bucket) {
    let folder = tempfile::tempdir().unwrap();
    let store = FolderStore::open(folder.path()).unwrap();
    store.put(&key(), content(0).into()).await.unwrap();
    let engine = Engine::builder().memory(memory).block_size(BLOCK);
    let engine = engine.build().unwrap();
    let consistency = Consistency::Revalidate(Duration::ZERO);
    let origin = Arc::new(store.clone());
    let bucket = engine.mount("data", origin, consistency).unwrap();
    (folder, store, bucket)
}

/// Begins to read the object; returns its first piece and the rest of the body.
async fn begin(bucket: &Bucket) -> (Bytes, BoxStream<'static, Result<Bytes>>) {
    let mut body = bucket.get(&key()).await.unwrap().into_stream();
    (body.next().await.unwrap().unwrap(), body)
}

/// Reads on to the end; returns the whole object.
async fn finish(first: Bytes, mut body: BoxStream<'static, Result<Bytes>>) -> Result<Vec<u8>> {
    let mut all = first.to_vec();
    // Pieces are memory of the engine, which has less than the object's length.
    drop(first);
    while let Some(piece) = body.next().await {
        all.extend_from_slice(&piece?);
    }
    Ok(all)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_beside_a_writer_of_the_key_are_whole() {
    let _alone = ALONE.lock().await;
    let (_folder, store, bucket) = served(SIZE as u64 / 2).await;
    for version in 0..ROUNDS {
        let (first, body) = begin(&bucket).await;
        store
            .put(&key(), content(version + 1).into())
            .await
            .unwrap();
        let read = finish(first, body).await.unwrap();
        assert!(read == content(version), "version {version}");
    }
    let (first, body) = begin(&bucket).await;
    store.delete(&key()).await.unwrap();
    let read = finish(first, body).await.unwrap();
    assert!(read == content(ROUNDS), "the deleted version");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn downloads_beside_a_writer_of_the_key_are_whole() {
    let _alone = ALONE.lock().await;
    let (_folder, store, bucket) = served(16 * SIZE as u64).await;
    for version in 0..ROUNDS / 5 {
        let options = DownloadOptions {
            part_size: BLOCK as u64,
            parallel: 1,
            ..DownloadOptions::default()
        };
        let download = bucket.download(&key(), options).await.unwrap();
        let next = content(version + 1).into();
        store.put(&key(), next).await.unwrap();
        let bytes = download.finish().await.unwrap().into_contiguous();
        assert!(bytes == content(version), "version {version}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_past_the_limit_of_held_files_fail_when_the_object_is_replaced() {
    let _alone = ALONE.lock().await;
    let (_folder, store, bucket) = served(SIZE as u64 / 2).await;
    let mut held = Vec::new();
    loop {
        let range = Some((0..1).into());
        let options = GetOptions {
            range,
            ..GetOptions::default()
        };
        let response = store.get_opts(&key(), options).await.unwrap();
        if response.extensions.is_empty() {
            break;
        }
        held.push(response);
    }
    assert_eq!(held.len(), HELD_FILES);
    let (first, body) = begin(&bucket).await;
    store.put(&key(), content(1).into()).await.unwrap();
    let error = finish(first, body).await.unwrap_err();
    let changed = EngineError::find(&error);
    assert!(
        matches!(changed, Some(EngineError::VersionChanged { .. })),
        "{error}"
    );
    held.pop();
    let (first, body) = begin(&bucket).await;
    store.put(&key(), content(2).into()).await.unwrap();
    assert!(finish(first, body).await.unwrap() == content(1));
}
