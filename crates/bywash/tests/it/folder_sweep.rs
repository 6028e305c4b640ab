//! Killed writers, and the staged files they leave.

use std::io::{BufRead, BufReader};
use std::path::Path as FsPath;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use bywash::origin::SessionOptions;
use bywash::origin::folder::FolderStore;
use bywash::origin::{Origin, UploadedPart};
use bywash::{Consistency, Engine, PutStreamOptions};
use futures::{StreamExt, stream};
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutMode, PutMultipartOptions, PutResult, Result};

use crate::numbered_parts::NumberedParts;

/// Set for the writer process: the folder it writes to.
const WRITER: &str = "BYWASH_TEST_WRITER";
const WRITERS: usize = 20;
const PART: u64 = 2 << 20;
/// Longer than several rounds of the sweep take on a loaded machine.
const MAX_WAIT: Duration = Duration::from_mins(3);

fn key() -> Path {
    Path::from("object")
}

/// A writer process: stages half a part, announces that, and waits for the rest forever.
#[tokio::test]
async fn stalling_writer_process() {
    let Ok(folder) = std::env::var(WRITER) else {
        return;
    };
    let store = FolderStore::open(folder).unwrap();
    let options = PutMultipartOptions::default();
    let upload = store.begin_upload(&key(), options).await.unwrap();
    // The second piece is requested when the first one is being written to the file.
    let piece = Bytes::from(vec![1; 1 << 20]);
    let rest = stream::once(async {
        println!("staged");
        std::future::pending().await
    });
    let body = stream::iter([Ok(piece)]).chain(rest).boxed();
    NumberedParts::send_part(&store, &key(), &upload, 1, PART, body)
        .await
        .unwrap();
}

/// Puts an object of two chunks, as an endpoint does; the second one waits for `rest`.
async fn put(store: FolderStore, rest: impl Future<Output = Bytes> + Send + 'static) -> PutResult {
    let engine = Engine::builder().memory(32 << 20).chunk_size(1 << 20);
    let engine = engine.build().unwrap();
    let consistency = Consistency::Immutable;
    let bucket = engine.mount("data", Arc::new(store), consistency).unwrap();
    let first: Result<Bytes> = Ok(vec![2; 1 << 20].into());
    let body = stream::iter([first]).chain(stream::once(async { Ok(rest.await) }));
    let options = PutStreamOptions {
        length: Some(PART),
        ..PutStreamOptions::default()
    };
    let put = bucket.put_stream(&key(), options, body.boxed()).await;
    put.unwrap()
}

/// A writer process: opens an upload that others may continue, and is killed during a put.
#[tokio::test]
async fn stalling_put_process() {
    let Ok(folder) = std::env::var(WRITER) else {
        return;
    };
    let store = FolderStore::open(folder).unwrap();
    let options = SessionOptions::default();
    let session = store.open_session(&key(), &options).await.unwrap();
    put(store, async {
        println!("staged");
        std::future::pending().await
    })
    .await;
    drop(session);
}

fn writer(folder: &FsPath, what: &str) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", what, "--nocapture"])
        .env(WRITER, folder)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("staged")));
    child
}

/// Names of the staged files, and their bytes.
fn staged(folder: &FsPath) -> Vec<(String, u64)> {
    let entries = std::fs::read_dir(folder.join(".bywash/staging")).unwrap();
    let staged = entries.filter_map(|entry| {
        let entry = entry.unwrap();
        let bytes = entry.metadata().ok()?.len();
        Some((entry.file_name().into_string().unwrap(), bytes))
    });
    staged.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn staged_files_of_killed_writers_are_removed_and_live_writers_continue() {
    let dir = tempfile::tempdir().unwrap();
    let store = FolderStore::open(dir.path()).unwrap();
    let options = PutMultipartOptions::default();
    let upload = store.begin_upload(&key(), options).await.unwrap();
    // A live writer of this process, which stalls until the sweep is over.
    let (go_on, waits) = tokio::sync::oneshot::channel();
    let first = stream::iter([Ok(Bytes::from(vec![2; 1 << 20]))]);
    let rest = stream::once(async { Ok(waits.await.unwrap()) });
    let live = tokio::spawn({
        let (store, upload) = (store.clone(), upload.clone());
        let body = first.chain(rest).boxed();
        async move { NumberedParts::send_part(&store, &key(), &upload, 1, PART, body).await }
    });
    let mut writers: Vec<_> = (0..WRITERS)
        .map(|_| writer(dir.path(), "folder_sweep::stalling_writer_process"))
        .collect();
    let deadline = Instant::now() + MAX_WAIT;
    while staged(dir.path()).len() < WRITERS + 1 {
        assert!(Instant::now() < deadline, "{:?}", staged(dir.path()));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // One other process stays alive.
    let mut other = writers.pop().unwrap();
    for mut writer in writers {
        writer.kill().unwrap();
        writer.wait().unwrap();
    }
    while staged(dir.path()).len() > 2 {
        assert!(Instant::now() < deadline, "{:?}", staged(dir.path()));
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(staged(dir.path()).len(), 2, "a live writer's file is gone");
    go_on.send(Bytes::from(vec![2; 1 << 20])).unwrap();
    let e_tag = live.await.unwrap().unwrap();
    let parts = [UploadedPart { number: 1, e_tag }];
    let key = key();
    let completed = store.complete_parts(&key, &upload, &parts, PutMode::Overwrite.into());
    completed.await.unwrap();
    let read = store.get(&key).await.unwrap().bytes().await.unwrap();
    assert!(read.len() as u64 == PART && read.iter().all(|byte| *byte == 2));
    assert_eq!(staged(dir.path()).len(), 1, "the other process' file");
    other.kill().unwrap();
    other.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_put_is_removed_and_live_puts_and_open_uploads_stay() {
    let dir = tempfile::tempdir().unwrap();
    let store = FolderStore::open(dir.path()).unwrap();
    let mut killed = writer(dir.path(), "folder_sweep::stalling_put_process");
    killed.kill().unwrap();
    killed.wait().unwrap();
    let (go_on, waits) = tokio::sync::oneshot::channel();
    let (begun, begins) = tokio::sync::oneshot::channel();
    let live = tokio::spawn(put(store.clone(), async {
        begun.send(()).unwrap();
        waits.await.unwrap()
    }));
    begins.await.unwrap();
    assert_eq!(staged(dir.path()).len(), 2);
    let deadline = Instant::now() + MAX_WAIT;
    while staged(dir.path()).len() > 1 {
        assert!(Instant::now() < deadline, "{:?}", staged(dir.path()));
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(store.open_sessions().await.unwrap().len(), 1);
    go_on.send(vec![2; 1 << 20].into()).unwrap();
    live.await.unwrap();
    let read = store.get(&key()).await.unwrap().bytes().await.unwrap();
    assert!(read.len() as u64 == PART && read.iter().all(|byte| *byte == 2));
    assert_eq!(staged(dir.path()).len(), 0);
    assert_eq!(store.open_sessions().await.unwrap().len(), 1);
}
