//! Upload sessions of the folder store: one staged file, in place, taken over by any process.

use std::path::Path as FsPath;

use bytes::Bytes;
use bywash::ContentDigest;
use bywash::OriginError;
use bywash::origin::Origin;
use bywash::origin::folder::FolderStore;
use bywash::origin::{
    Chunk, CompleteRequest, Finished, SessionOptions, SessionStatus, SessionToken, StoredRange,
    UploadSession,
};
use bywash_support::pattern;
use object_store::path::Path;
use object_store::{Attribute, Attributes, Error, ObjectStoreExt, PutMode, UpdateVersion};
use tempfile::TempDir;

use crate::folder_store::store;

use crate::numbered_parts::{NumberedParts, SendChunk};

const PART: usize = 100_000;

fn key() -> Path {
    Path::from("d/object")
}

fn crc(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

fn content(parts: usize) -> Bytes {
    pattern(0, parts * PART)
}

fn chunk(content: &Bytes, index: usize) -> Chunk {
    let bytes = content.slice(index * PART..(index + 1) * PART);
    Chunk {
        index: index as u64,
        offset: (index * PART) as u64,
        crc32c: crc(&bytes),
        // More than one piece, to be written one after the other.
        pieces: vec![bytes.slice(..1000), bytes.slice(1000..)],
    }
}

fn kept(content: &Bytes, index: usize) -> StoredRange {
    let chunk = chunk(content, index);
    StoredRange {
        range: chunk.range(),
        digest: Some(ContentDigest::Crc32c(chunk.crc32c)),
    }
}

fn ending(content: &Bytes) -> CompleteRequest {
    CompleteRequest {
        attributes: Attributes::new(),
        parts: None,
        digest: None,
        length: content.len() as u64,
        crc32c: crc(content),
        tail: None,
    }
}

fn mode(mode: PutMode) -> SessionOptions {
    SessionOptions {
        mode,
        ..SessionOptions::default()
    }
}

async fn open(store: &FolderStore, options: &SessionOptions) -> Box<dyn UploadSession> {
    store.open_session(&key(), options).await.unwrap()
}

/// A store of its own, as in another process.
async fn resume(dir: &TempDir, token: &SessionToken) -> Box<dyn UploadSession> {
    let store = FolderStore::open(dir.path()).unwrap();
    let options = SessionOptions::default();
    let session = store.resume_session(&key(), &options, token).await;
    session.unwrap()
}

fn names(folder: impl AsRef<FsPath>) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn staged(dir: &TempDir, session: &dyn UploadSession) -> std::path::PathBuf {
    dir.path().join(".bywash/uploads").join(session.token().0)
}

#[tokio::test]
async fn chunks_in_any_order_become_the_object_by_one_rename() {
    let (dir, store) = store();
    let content = content(4);
    let options = SessionOptions {
        attributes: Attributes::from_iter([(Attribute::ContentType, "text/plain")]),
        ..SessionOptions::default()
    };
    let session = open(&store, &options).await;
    let staged = staged(&dir, &*session);
    let inode = |path: &FsPath| std::os::unix::fs::MetadataExt::ino(&path.metadata().unwrap());
    let before = inode(&staged.join("data"));
    let chunks: Vec<Chunk> = [2, 0, 3, 1].map(|index| chunk(&content, index)).into();
    let sent = futures::future::join_all(chunks.iter().map(|chunk| session.send(chunk))).await;
    for (chunk, reached) in chunks.iter().zip(sent) {
        assert_eq!(reached.unwrap(), chunk.range().end);
    }
    assert!(matches!(
        store.head(&key()).await,
        Err(Error::NotFound { .. })
    ));
    let finished = session.finish(&ending(&content)).await.unwrap();

    let got = store.get(&key()).await.unwrap();
    assert_eq!(finished.e_tag, got.meta.e_tag);
    assert_eq!(finished.length, Some(content.len() as u64));
    assert_eq!(got.attributes, options.attributes);
    assert_eq!(got.bytes().await.unwrap(), content);
    // The bytes were written once: the staged file is the object.
    assert_eq!(inode(&dir.path().join("d/object")), before);
    assert_eq!(names(dir.path().join(".bywash/uploads")).len(), 0);
    assert_eq!(names(dir.path().join(".bywash/staging")).len(), 0);
    assert_eq!(session.status().await.unwrap(), SessionStatus::Gone);
    assert_eq!(store.open_sessions().await.unwrap(), []);
}

#[tokio::test]
async fn another_process_finds_exactly_the_acknowledged_chunks() {
    let (dir, store) = store();
    let content = content(4);
    let session = open(&store, &SessionOptions::default()).await;
    session.send(&chunk(&content, 0)).await.unwrap();
    session.send(&chunk(&content, 2)).await.unwrap();
    let (token, staged) = (session.token(), staged(&dir, &*session));
    drop(session);
    // The state after a crash between the bytes and their record.
    let data = std::fs::OpenOptions::new()
        .write(true)
        .open(staged.join("data"))
        .unwrap();
    std::os::unix::fs::FileExt::write_all_at(&data, &content[3 * PART..], 3 * PART as u64).unwrap();

    let session = resume(&dir, &token).await;
    let expected = SessionStatus::Open(vec![kept(&content, 0), kept(&content, 2)]);
    assert_eq!(session.status().await.unwrap(), expected);
    for index in [1, 3] {
        session.send(&chunk(&content, index)).await.unwrap();
    }
    session.finish(&ending(&content)).await.unwrap();
    let got = store.get(&key()).await.unwrap().bytes().await.unwrap();
    assert_eq!(got, content);
}

#[tokio::test]
async fn corrupted_staged_bytes_are_dropped() {
    let (dir, store) = store();
    let content = content(2);
    let session = open(&store, &SessionOptions::default()).await;
    for index in 0..2 {
        session.send(&chunk(&content, index)).await.unwrap();
    }
    let (token, staged) = (session.token(), staged(&dir, &*session));
    drop(session);
    let mut data = std::fs::read(staged.join("data")).unwrap();
    data[PART + 5] ^= 1;
    std::fs::write(staged.join("data"), data).unwrap();
    let status = resume(&dir, &token).await.status().await.unwrap();
    assert_eq!(status, SessionStatus::Open(vec![kept(&content, 0)]));
}

#[tokio::test]
async fn gap_or_excess_byte_never_becomes_an_object() {
    let (_dir, store) = store();
    let content = content(3);
    let session = open(&store, &SessionOptions::default()).await;
    session.send(&chunk(&content, 0)).await.unwrap();
    session.send(&chunk(&content, 2)).await.unwrap();
    let shorter = ending(&content.slice(..PART));
    for ending in [ending(&content), shorter.clone()] {
        let error = session.finish(&ending).await.unwrap_err();
        assert!(
            matches!(
                OriginError::find(&error),
                Some(OriginError::UploadDamaged { .. })
            ),
            "{error}"
        );
    }
    assert!(store.head(&key()).await.is_err());
    session.send(&chunk(&content, 1)).await.unwrap();
    session.finish(&ending(&content)).await.unwrap();
    assert_eq!(store.head(&key()).await.unwrap().size, content.len() as u64);
}

#[tokio::test]
async fn empty_object_can_use_a_session() {
    let (_dir, store) = store();
    let session = open(&store, &SessionOptions::default()).await;
    session.finish(&ending(&Bytes::new())).await.unwrap();
    assert_eq!(store.head(&key()).await.unwrap().size, 0);
}

#[tokio::test]
async fn conditions_are_checked_at_completion_and_failure_keeps_the_bytes() {
    let (dir, store) = store();
    let content = content(1);
    let old = store.put(&key(), "old".into()).await.unwrap();
    let stale = UpdateVersion {
        e_tag: Some("other".to_owned()),
        version: None,
    };
    for (options, exists) in [
        (mode(PutMode::Create), true),
        (mode(PutMode::Update(stale)), false),
    ] {
        let session = open(&store, &options).await;
        session.send(&chunk(&content, 0)).await.unwrap();
        let error = session.finish(&ending(&content)).await.unwrap_err();
        assert_eq!(matches!(error, Error::AlreadyExists { .. }), exists);
        assert_eq!(matches!(error, Error::Precondition { .. }), !exists);
        let status = session.status().await.unwrap();
        assert_eq!(status, SessionStatus::Open(vec![kept(&content, 0)]));
        session.abort().await.unwrap();
        session.abort().await.unwrap();
        assert_eq!(session.status().await.unwrap(), SessionStatus::Gone);
    }
    let got = store.get(&key()).await.unwrap().bytes().await.unwrap();
    assert_eq!(got, "old");
    assert_eq!(names(dir.path().join(".bywash/uploads")).len(), 0);

    let current = UpdateVersion {
        e_tag: old.e_tag,
        version: None,
    };
    let session = open(&store, &mode(PutMode::Update(current))).await;
    session.send(&chunk(&content, 0)).await.unwrap();
    session.finish(&ending(&content)).await.unwrap();
    let got = store.get(&key()).await.unwrap().bytes().await.unwrap();
    assert_eq!(got, content);
}

#[tokio::test]
async fn crash_right_after_the_rename_counts_as_finished() {
    let (dir, store) = store();
    let content = content(1);
    let session = open(&store, &SessionOptions::default()).await;
    session.send(&chunk(&content, 0)).await.unwrap();
    let (token, staged) = (session.token(), staged(&dir, &*session));
    let manifest = std::fs::read(staged.join("manifest.json")).unwrap();
    session.finish(&ending(&content)).await.unwrap();
    drop(session);
    std::fs::create_dir(&staged).unwrap();
    std::fs::write(staged.join("manifest.json"), manifest).unwrap();

    let session = resume(&dir, &token).await;
    let finished = SessionStatus::Finished(Finished::default());
    assert_eq!(session.status().await.unwrap(), finished);
    session.abort().await.unwrap();
    assert!(!staged.exists());
    assert!(store.head(&key()).await.is_ok(), "the object stays");
}

#[tokio::test]
async fn unknown_session_is_gone() {
    let (dir, store) = store();
    let parts = store
        .begin_upload(&key(), object_store::PutMultipartOptions::default())
        .await
        .unwrap();
    let elsewhere = {
        let options = SessionOptions::default();
        let other = store.open_session(&Path::from("other"), &options).await;
        other.unwrap().token().0
    };
    for token in ["0-0-0", "../staging", "", &parts, &elsewhere] {
        let session = resume(&dir, &SessionToken(token.to_owned())).await;
        assert_eq!(session.status().await.unwrap(), SessionStatus::Gone);
        session.abort().await.unwrap();
        for error in [
            session.send(&chunk(&content(1), 0)).await.unwrap_err(),
            session.finish(&ending(&Bytes::new())).await.unwrap_err(),
        ] {
            assert!(
                matches!(
                    OriginError::find(&error),
                    Some(OriginError::UploadLost { .. })
                ),
                "{error}"
            );
        }
    }
    let found = store.open_sessions().await.unwrap();
    assert_eq!(found.len(), 1, "uploads in parts are none of them");
    assert_eq!(found[0].token.0, elsewhere);
    assert_eq!(found[0].object, Path::from("other"));
}
