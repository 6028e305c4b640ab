//! Uploads that one process left and another takes over from the journal.

use std::path::PathBuf;

use bytes::Bytes;
use bywash::origin::folder::FolderStore;
use bywash::origin::{Chunk, SessionOptions};
use bywash::upload::journal::{Journal, JournalError, SourceIdentity};
use bywash::upload::{JournalOptions, Resumed, UploadOptions};
use bywash::{Bucket, Engine, EngineError, Origin, OriginError, OriginUrl};
use bywash_sim::server::objects::crc32c;
use bywash_support::pattern;
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutMode};
use tempfile::TempDir;

use crate::numbered_parts::SendChunk;

const CHUNK: usize = 64 << 10;

/// A folder to upload to, a source file, and a data folder.
struct Place {
    home: TempDir,
    content: Bytes,
}

impl Place {
    fn new(length: usize) -> Self {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join("origin")).unwrap();
        let content = pattern(0, length);
        std::fs::write(home.path().join("source"), &content).unwrap();
        Self { home, content }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn journal(&self) -> Journal {
        Journal::at(self.path("uploads"))
    }

    /// An engine of its own, as in another process.
    fn bucket(&self) -> Bucket {
        let engine = Engine::builder()
            .memory(32 << 20)
            .journal(self.path("uploads"))
            .build()
            .unwrap();
        let url = OriginUrl::File(self.path("origin"));
        engine
            .mount_url("bucket", &url, bywash::Consistency::default())
            .unwrap()
    }

    fn options(&self, pipe: bool) -> UploadOptions {
        let source = self.path("source");
        let identity = SourceIdentity::of(&source, &source.metadata().unwrap()).unwrap();
        UploadOptions {
            length: (!pipe).then_some(self.content.len() as u64),
            chunk: Some(CHUNK as u64),
            journal: Some(JournalOptions {
                url: "file:///origin/object".to_owned(),
                endpoint: None,
                source: (!pipe).then_some(identity),
            }),
            ..UploadOptions::default()
        }
    }

    /// Uploads the first bytes, then leaves. Returns the upload's id.
    async fn leave(&self, bytes: usize, options: UploadOptions) -> String {
        let mut upload = self.bucket().upload(&key(), options).await.unwrap();
        upload.write(self.content.slice(..bytes)).await.unwrap();
        drop(upload);
        self.idle().await
    }

    /// Returns the only upload's id, once no process works on it: a record may still be being written.
    async fn idle(&self) -> String {
        loop {
            let mut listed = self.journal().list().unwrap();
            assert_eq!(listed.len(), 1);
            let only = listed.pop().unwrap();
            if !only.alive {
                return only.id;
            }
            tokio::task::yield_now().await;
        }
    }

    async fn resume(&self, id: &str) -> object_store::Result<(u64, u64)> {
        let entry = self.journal().take(id).unwrap();
        match self.bucket().resume_upload(entry, 1).await? {
            Resumed::Finished { .. } => Ok((self.content.len() as u64, 0)),
            Resumed::Open {
                mut upload,
                resumed_bytes,
            } => {
                let from = usize::try_from(upload.position()).unwrap();
                upload.write(self.content.slice(from..)).await?;
                let result = upload.finish().await?;
                Ok((resumed_bytes, result.sent_bytes))
            }
        }
    }

    async fn assert_done(&self) {
        let store = FolderStore::open(self.path("origin")).unwrap();
        let got = store.get(&key()).await.unwrap().bytes().await.unwrap();
        assert!(got == self.content, "the object differs");
        assert!(self.journal().list().unwrap().is_empty());
        let uploads = std::fs::read_dir(self.path("origin/.bywash/uploads"));
        assert_eq!(uploads.map_or(0, Iterator::count), 0);
    }
}

fn key() -> Path {
    Path::from("object")
}

#[tokio::test]
async fn resumed_upload_resends_only_unacknowledged_parts() {
    for left in [1, CHUNK + 1, 5 * CHUNK, 8 * CHUNK, 8 * CHUNK + 10] {
        let place = Place::new(8 * CHUNK + 10);
        let id = place.leave(left, place.options(false)).await;
        let (resumed, sent) = place.resume(&id).await.unwrap();
        // The last full chunk waited for more bytes.
        let kept = left.saturating_sub(1) / CHUNK * CHUNK;
        assert_eq!(resumed, kept as u64, "left at {left}");
        assert_eq!(resumed + sent, place.content.len() as u64);
        place.assert_done().await;
    }
}

#[tokio::test]
async fn parts_after_a_gap_are_reported_and_not_resent() {
    let place = Place::new(8 * CHUNK + 10);
    let id = place.leave(2 * CHUNK + 1, place.options(false)).await;
    let entry = place.journal().take(&id).unwrap();
    let store = FolderStore::open(place.path("origin")).unwrap();
    let (options, token) = (SessionOptions::default(), &entry.header().session);
    let session = store.resume_session(&key(), &options, token).await;
    let piece = place.content.slice(4 * CHUNK..5 * CHUNK);
    let chunk = Chunk {
        index: 4,
        offset: 4 * CHUNK as u64,
        crc32c: crc32c(&piece),
        pieces: vec![piece],
    };
    session.unwrap().send(&chunk).await.unwrap();
    drop(entry);
    let (resumed, sent) = place.resume(&id).await.unwrap();
    assert_eq!(resumed, 3 * CHUNK as u64);
    assert_eq!(resumed + sent, place.content.len() as u64);
    place.assert_done().await;
}

#[tokio::test]
async fn small_object_is_one_put_without_a_journal() {
    let place = Place::new(CHUNK);
    let mut upload = place
        .bucket()
        .upload(&key(), place.options(false))
        .await
        .unwrap();
    upload.write(place.content.clone()).await.unwrap();
    upload.finish().await.unwrap();
    assert!(!place.path("uploads").exists());
    place.assert_done().await;
}

#[tokio::test]
async fn changed_source_is_reported_and_nothing_is_sent() {
    let place = Place::new(4 * CHUNK);
    let id = place.leave(3 * CHUNK, place.options(false)).await;
    std::fs::write(place.path("source"), &place.content[1..]).unwrap();
    let error = place.resume(&id).await.unwrap_err();
    assert!(
        matches!(
            EngineError::find(&error),
            Some(EngineError::SourceChanged { difference, .. }) if difference.contains("size")
        ),
        "{error}"
    );
    // It stays, and can be aborted together with its bytes at the store.
    let entry = place.journal().take(&id).unwrap();
    place.bucket().abort_journaled(entry).await.unwrap();
    assert!(place.journal().list().unwrap().is_empty());
    let uploads = std::fs::read_dir(place.path("origin/.bywash/uploads")).unwrap();
    assert_eq!(uploads.count(), 0);
}

#[tokio::test]
async fn changed_source_with_restored_date_is_detected() {
    let place = Place::new(4 * CHUNK);
    let id = place.leave(3 * CHUNK, place.options(false)).await;
    let source = place.path("source");
    let modified = source.metadata().unwrap().modified().unwrap();
    let mut other = place.content.to_vec();
    other[10] ^= 1;
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(&source)
        .unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &other, 0).unwrap();
    file.set_modified(modified).unwrap();
    let error = place.resume(&id).await.unwrap_err();
    assert!(
        matches!(
            OriginError::find(&error),
            Some(OriginError::UploadDamaged { .. })
        ),
        "{error}"
    );
}

#[tokio::test]
async fn upload_from_a_pipe_cannot_be_resumed() {
    let place = Place::new(4 * CHUNK);
    let id = place.leave(3 * CHUNK, place.options(true)).await;
    let error = place.resume(&id).await.unwrap_err();
    assert!(
        matches!(
            EngineError::find(&error),
            Some(EngineError::SourceLost { reason, .. }) if reason.contains("pipe")
        ),
        "{error}"
    );
    assert_eq!(place.idle().await, id, "it stays in the journal");
}

#[tokio::test]
async fn lost_session_restarts_unless_it_became_the_object() {
    // Lost without a trace.
    let place = Place::new(4 * CHUNK);
    let id = place.leave(3 * CHUNK, place.options(false)).await;
    std::fs::remove_dir_all(place.path("origin/.bywash/uploads")).unwrap();
    let sent = place.resume(&id).await.unwrap();
    assert_eq!(sent, (0, place.content.len() as u64));
    place.assert_done().await;

    // It became the object, and only the journal was not updated.
    let id = place.leave(3 * CHUNK, place.options(false)).await;
    std::fs::remove_dir_all(place.path("origin/.bywash/uploads")).unwrap();
    let sent = place.resume(&id).await.unwrap();
    assert_eq!(sent, (place.content.len() as u64, 0));
    place.assert_done().await;
}

#[tokio::test]
async fn only_one_process_can_resume_an_upload() {
    let place = Place::new(4 * CHUNK);
    let bucket = place.bucket();
    let mut upload = bucket.upload(&key(), place.options(false)).await.unwrap();
    upload
        .write(place.content.slice(..3 * CHUNK))
        .await
        .unwrap();
    let id = place.journal().list().unwrap().pop().unwrap().id;
    let refused = place.journal().take(&id).unwrap_err();
    assert!(matches!(refused, JournalError::Busy { .. }), "{refused}");
    upload
        .write(place.content.slice(3 * CHUNK..))
        .await
        .unwrap();
    upload.finish().await.unwrap();
    place.assert_done().await;
}

#[tokio::test]
async fn conditions_hold_after_a_takeover() {
    let place = Place::new(4 * CHUNK);
    let options = UploadOptions {
        mode: PutMode::Create,
        ..place.options(false)
    };
    let id = place.leave(2 * CHUNK, options).await;
    let store = FolderStore::open(place.path("origin")).unwrap();
    store.put(&key(), "first".into()).await.unwrap();
    let error = place.resume(&id).await.unwrap_err();
    assert!(
        matches!(error, object_store::Error::AlreadyExists { .. }),
        "{error}"
    );
    let got = store.get(&key()).await.unwrap().bytes().await.unwrap();
    assert_eq!(got, "first");
}
