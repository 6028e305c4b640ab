//! The writer over real origins: the folder store, and memory, which has parts and no sessions.

use std::sync::Arc;

use bytes::Bytes;
use bywash::origin::folder::FolderStore;
use bywash::origin::memory::MemoryStore;
use bywash::{Bucket, Consistency, EngineError, Origin, UploadOptions};
use object_store::path::Path;
use object_store::{Attribute, Attributes, Error, ObjectStoreExt, PutMode};

use super::fake::engine;

const CHUNK: usize = 64 << 10;

fn bucket(origin: Arc<dyn Origin>) -> Bucket {
    engine(CHUNK)
        .mount("test", origin, Consistency::default())
        .unwrap()
}

async fn round_trip(origin: Arc<dyn Origin>) {
    let bucket = bucket(origin);
    let path = Path::from("deep/er/object");
    let attributes = Attributes::from_iter([(Attribute::ContentType, "text/plain")]);
    for (length, piece) in [
        (0, 1),
        (CHUNK, 1_000),
        (CHUNK + 1, 70_000),
        (9 * CHUNK + 5, 30_011),
    ] {
        let body = bywash_support::pattern(3, length);
        let options = UploadOptions {
            attributes: attributes.clone(),
            length: (length % 2 == 0).then_some(length as u64),
            ..UploadOptions::default()
        };
        let mut upload = bucket.upload(&path, options).await.unwrap();
        for piece in body.chunks(piece) {
            upload.write(Bytes::copy_from_slice(piece)).await.unwrap();
        }
        let result = upload.finish().await.unwrap();
        assert_eq!((result.sent_bytes, result.resent_bytes), (length as u64, 0));
        let found = bucket.get(&path).await.unwrap();
        assert_eq!(found.attributes, attributes, "{length} bytes");
        assert_eq!(found.meta.e_tag, result.put.e_tag);
        assert_eq!(found.bytes().await.unwrap(), body);
    }

    // Left by one process, finished by another.
    let body = bywash_support::pattern(4, 3 * CHUNK);
    let options = UploadOptions {
        mode: PutMode::Create,
        ..UploadOptions::default()
    };
    let other = Path::from("left");
    let mut upload = bucket.upload(&other, options.clone()).await.unwrap();
    upload.write(body.slice(..2 * CHUNK + 9)).await.unwrap();
    let token = upload.capture();
    drop(upload);
    let mut upload = bucket.restore_upload(&token).await.unwrap();
    upload.write(body.slice(2 * CHUNK + 9..)).await.unwrap();
    upload.finish().await.unwrap();
    assert_eq!(
        bucket.get(&other).await.unwrap().bytes().await.unwrap(),
        body
    );

    let mut second = bucket.upload(&other, options).await.unwrap();
    second.write(body.clone()).await.unwrap();
    let error = second.finish().await.unwrap_err();
    assert!(matches!(error, Error::AlreadyExists { .. }), "{error}");
    second.abort().await.unwrap();
}

#[tokio::test]
async fn uploads_over_the_folder_store() {
    let folder = tempfile::tempdir().unwrap();
    round_trip(Arc::new(FolderStore::open(folder.path()).unwrap())).await;
}

#[tokio::test]
async fn uploads_over_parts() {
    round_trip(Arc::new(MemoryStore::new())).await;
}

#[tokio::test]
async fn more_chunks_than_the_maximum_are_rejected_before_sending() {
    let bucket = bucket(Arc::new(MemoryStore::new()));
    let options = UploadOptions {
        chunk: Some(1),
        length: Some(10_001),
        ..UploadOptions::default()
    };
    // With a known length, the chunks are made longer.
    let mut upload = bucket.upload(&Path::from("a"), options).await.unwrap();
    upload.write(vec![7; 10_001].into()).await.unwrap();
    assert_eq!(upload.finish().await.unwrap().length, 10_001);
    // A length that no chunk of the store can hold.
    let options = UploadOptions {
        length: Some(60 << 40),
        ..UploadOptions::default()
    };
    let error = bucket.upload(&Path::from("b"), options).await.unwrap_err();
    let found = EngineError::find(&error);
    assert!(
        matches!(found, Some(EngineError::InvalidSetting { .. })),
        "{found:?}"
    );
}
