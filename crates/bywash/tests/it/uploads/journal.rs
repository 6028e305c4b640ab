//! Journal records of an upload, and when they are written.

use std::sync::Arc;

use bywash::upload::JournalOptions;
use bywash::upload::journal::Journal;
use bywash::{Bucket, Consistency, Engine, UploadOptions};
use object_store::path::Path;
use tempfile::TempDir;

use super::fake::{Fake, IN_ORDER, SessionFault, crc32c};

const CHUNK: usize = 1_000;

fn bucket(fake: &Fake, folder: &TempDir) -> (Engine, Bucket) {
    let engine = Engine::builder()
        .memory(4 << 20)
        .block_size(4 << 10)
        .chunk_size(CHUNK)
        .journal(folder.path().join("uploads"))
        .build()
        .unwrap();
    let bucket = engine
        .mount("test", Arc::new(fake.clone()), Consistency::default())
        .unwrap();
    (engine, bucket)
}

fn options() -> UploadOptions {
    UploadOptions {
        journal: Some(JournalOptions {
            url: "fake://bucket/object".to_owned(),
            endpoint: None,
            source: None,
        }),
        ..UploadOptions::default()
    }
}

fn files(folder: &TempDir) -> usize {
    std::fs::read_dir(folder.path().join("uploads")).map_or(0, Iterator::count)
}

#[tokio::test]
async fn upload_is_journaled_before_its_first_byte_and_removed_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::new(IN_ORDER);
    fake.state.lock().journal = Some(folder.path().join("uploads"));
    let (engine, bucket) = bucket(&fake, &folder);
    let path = Path::from("object");
    let body = bywash_support::pattern(1, 3 * CHUNK + 1);
    for end in ["finish", "abort"] {
        let mut upload = bucket.upload(&path, options()).await.unwrap();
        upload.write(body.slice(..CHUNK)).await.unwrap();
        assert_eq!(files(&folder), 0, "one chunk needs no session");
        upload.write(body.slice(CHUNK..)).await.unwrap();
        let listed = engine.journal().unwrap().list().unwrap();
        assert_eq!(listed.len(), 1);
        assert!(listed[0].alive);
        match end {
            "finish" => drop(upload.finish().await.unwrap()),
            _ => upload.abort().await.unwrap(),
        }
        assert_eq!(files(&folder), 0, "after {end}");
    }
}

#[tokio::test]
async fn journal_has_the_acknowledged_offset_when_completion_fails() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::with(&[], &[SessionFault::Refuse]);
    let (engine, bucket) = bucket(&fake, &folder);
    let body = bywash_support::pattern(2, 3 * CHUNK + 1);
    let mut upload = bucket
        .upload(&Path::from("object"), options())
        .await
        .unwrap();
    upload.write(body.clone()).await.unwrap();
    upload.finish().await.unwrap_err();
    drop(upload);
    let journal: &Journal = engine.journal().unwrap();
    let listed = journal.list().unwrap();
    let content = listed[0].content.as_ref().unwrap();
    assert!(!listed[0].alive, "no process works on it any more");
    assert_eq!(content.progress.offset, 3 * CHUNK as u64);
    assert_eq!(content.progress.crc32c, crc32c(&body[..3 * CHUNK]));
    let whole = content.whole.unwrap();
    assert_eq!(
        (whole.length, whole.crc32c),
        (body.len() as u64, crc32c(&body))
    );
    assert_eq!(content.header.chunk, CHUNK as u64);
    journal.take(&listed[0].id).unwrap();
}
