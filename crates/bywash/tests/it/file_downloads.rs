//! Downloads to files: complete, durable and compared, or not there at all.

use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path as FsPath;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use bywash::origin::memory::MemoryStore;
use bywash::{
    BucketStats, Consistency, ContentDigest, Engine, EngineError, FileDownloadOptions,
    FileDownloadStats,
};
use bywash_support::pattern;
use object_store::path::Path;
use object_store::{Error, ObjectStoreExt};
use sha2::Digest as _;
use tempfile::TempDir;

use crate::folder_full_disk::{FOLDER, assert_limits_met, limited, on_small_disk};

const BLOCK: usize = 64 << 10;
const MEMORY: u64 = 4 << 20;
const LIMITED: &str = "file_downloads::in_a_limited_process";

fn sha256(bytes: &[u8]) -> ContentDigest {
    ContentDigest::Sha256(sha2::Sha256::digest(bytes).into())
}

/// An engine over one object, and a folder for files.
struct World {
    engine: Engine,
    origin: MemoryStore,
    path: Path,
    body: Bytes,
    home: TempDir,
}

impl World {
    async fn new(length: usize) -> Self {
        let builder = Engine::builder().memory(MEMORY).block_size(BLOCK);
        let engine = builder.build().unwrap();
        let (origin, path, body) = (
            MemoryStore::new(),
            Path::from("a/object"),
            pattern(0, length),
        );
        origin.put(&path, body.clone().into()).await.unwrap();
        engine
            .mount("test", Arc::new(origin.clone()), Consistency::default())
            .unwrap();
        Self {
            engine,
            origin,
            path,
            body,
            home: tempfile::tempdir().unwrap(),
        }
    }

    fn stats(&self) -> BucketStats {
        self.engine.stats().buckets["test"]
    }

    fn files(&self) -> FileDownloadStats {
        self.engine.stats().file_downloads
    }

    async fn fetch(&self, name: &str, options: FileDownloadOptions) -> Result<(), Error> {
        let target = match options.within {
            Some(_) => name.into(),
            None => self.home.path().join(name),
        };
        let bucket = self.engine.bucket("test").unwrap();
        bucket.download_to(&self.path, target, options).await?;
        Ok(())
    }

    fn assert_fetched(&self, name: &str) {
        let bytes = std::fs::read(self.home.path().join(name)).unwrap();
        assert!(bytes == self.body, "{name}: {} bytes", bytes.len());
    }

    fn names(&self) -> Vec<String> {
        names(self.home.path())
    }
}

fn names(folder: &FsPath) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort_unstable();
    names
}

fn options() -> FileDownloadOptions {
    FileDownloadOptions::default()
}

#[tokio::test]
async fn resident_object_is_written_without_a_request() {
    for length in [0, 1, BLOCK, 7 * BLOCK + 77] {
        let world = World::new(length).await;
        let bucket = world.engine.bucket("test").unwrap();
        bucket
            .get(&world.path)
            .await
            .unwrap()
            .bytes()
            .await
            .unwrap();
        let before = world.stats().origin_requests;
        world.fetch("file", options()).await.unwrap();
        world.assert_fetched("file");
        assert_eq!(world.stats().origin_requests, before, "{length}");
        let files = world.files();
        assert_eq!((files.finished, files.finished_bytes), (1, length as u64));
        assert_eq!((files.in_progress, files.waiting_bytes), (0, 0));
    }
}

#[tokio::test]
async fn downloaded_object_is_read_without_a_request() {
    let world = World::new(5 * BLOCK).await;
    world.fetch("file", options()).await.unwrap();
    let before = world.stats().origin_requests;
    let bucket = world.engine.bucket("test").unwrap();
    let read = bucket.get(&world.path).await.unwrap().bytes().await;
    assert!(read.unwrap() == world.body);
    assert_eq!(world.stats().origin_requests, before);
}

#[tokio::test]
async fn concurrent_downloads_of_an_object_larger_than_memory_read_it_once() {
    let world = World::new(3 * MEMORY as usize + 5).await;
    let names: Vec<_> = (0..6).map(|number| format!("file-{number}")).collect();
    let all = names.iter().map(|name| world.fetch(name, options()));
    for fetched in futures::future::join_all(all).await {
        fetched.unwrap();
    }
    for name in &names {
        world.assert_fetched(name);
    }
    assert_eq!(world.stats().origin_bytes, world.body.len() as u64);
    assert_eq!((world.files().finished, world.files().oldest_ms), (6, 0));
}

#[tokio::test]
async fn queued_download_reads_the_new_version_after_one_of_the_old() {
    let world = World::new(8 * BLOCK).await;
    let bucket = world.engine.bucket("test").unwrap();
    let (first, second) = tokio::join!(world.fetch("old", options()), async {
        let changed = pattern(0, 9 * BLOCK + 3);
        bucket
            .put(&world.path, changed.clone().into())
            .await
            .unwrap();
        world.fetch("new", options()).await.unwrap();
        changed
    });
    // The object may have changed under it.
    if first.is_ok() {
        let old = std::fs::read(world.home.path().join("old")).unwrap();
        assert!(old == world.body || old == second);
    }
    assert!(std::fs::read(world.home.path().join("new")).unwrap() == second);
}

#[tokio::test]
async fn bytes_without_the_callers_digest_never_get_the_name() {
    for length in [0, 4 * BLOCK + 9] {
        let world = World::new(length).await;
        std::fs::write(world.home.path().join("file"), "before").unwrap();
        let wrong = FileDownloadOptions {
            digest: Some(sha256(b"something else")),
            ..options()
        };
        let error = world.fetch("file", wrong).await.unwrap_err();
        let found = EngineError::find(&error);
        assert!(
            matches!(found, Some(EngineError::DigestMismatch { .. })),
            "{error}"
        );
        assert_eq!(world.names(), ["file"]);
        let kept = std::fs::read(world.home.path().join("file")).unwrap();
        assert_eq!(kept, b"before");
        assert_eq!((world.files().retried, world.files().failed), (1, 1));
        let right = FileDownloadOptions {
            digest: Some(sha256(&world.body)),
            ..options()
        };
        world.fetch("file", right).await.unwrap();
        world.assert_fetched("file");
    }
}

#[tokio::test]
async fn copied_download_is_compared_with_the_digest_of_its_own_caller() {
    let world = World::new(6 * BLOCK).await;
    let wrong = FileDownloadOptions {
        digest: Some(sha256(b"something else")),
        ..options()
    };
    let both = tokio::join!(world.fetch("one", options()), world.fetch("two", wrong));
    both.0.unwrap();
    both.1.unwrap_err();
    assert_eq!(world.names(), ["one"]);
}

#[tokio::test]
async fn file_that_its_owner_changed_is_not_copied() {
    let length = 6 * BLOCK + 5;
    let damages: [fn(&FsPath); 3] = [
        |file| {
            let file = std::fs::File::options().write(true).open(file).unwrap();
            file.write_all_at(b"edited in place", 3 * BLOCK as u64)
                .unwrap();
        },
        |file| std::fs::write(file, "truncated").unwrap(),
        |file| std::fs::write(file, vec![7; 9 * BLOCK]).unwrap(),
    ];
    for damage in damages {
        let world = World::new(length).await;
        let (one, two) = tokio::join!(
            async {
                let fetched = world.fetch("one", options()).await;
                // Before the other one, which waits for its turn, is polled again.
                damage(&world.home.path().join("one"));
                fetched
            },
            world.fetch("two", options())
        );
        one.unwrap();
        two.unwrap();
        world.assert_fetched("two");
        assert_eq!(world.files().retried, 0, "it is read again at once");
    }
}

#[tokio::test]
async fn cancelled_download_leaves_nothing_and_the_next_one_runs() {
    let world = World::new(9 * BLOCK).await;
    for polls in [1, 2, 5] {
        let mut fetch = Box::pin(world.fetch("file", options()));
        for _ in 0..polls {
            if futures::poll!(&mut fetch).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(fetch);
        let files = world.files();
        assert_eq!((files.in_progress, files.waiting_bytes), (0, 0));
    }
    assert_eq!(world.files().cancelled + world.files().finished, 3);
    world.fetch("file", options()).await.unwrap();
    assert_eq!(world.names(), ["file"]);
    world.assert_fetched("file");
}

#[tokio::test(start_paused = true)]
async fn age_of_the_oldest_download_in_progress_is_counted() {
    let world = World::new(BLOCK).await;
    let (mut older, mut newer) = (
        Box::pin(world.fetch("older", options())),
        Box::pin(world.fetch("newer", options())),
    );
    assert!(futures::poll!(&mut older).is_pending());
    tokio::time::advance(Duration::from_secs(3)).await;
    assert!(futures::poll!(&mut newer).is_pending());
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(world.files().oldest_ms, 5_000);
    drop(older);
    assert_eq!(world.files().oldest_ms, 2_000);
    drop(newer);
    assert_eq!(world.files().oldest_ms, 0);
}

#[tokio::test]
async fn absent_object_leaves_no_file() {
    let world = World::new(1).await;
    world.origin.delete(&world.path).await.unwrap();
    let error = world.fetch("file", options()).await.unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
    assert!(world.names().is_empty());
    assert_eq!(world.files().failed, 1);
}

#[tokio::test]
async fn existing_files_keep_their_permissions_or_their_place() {
    let world = World::new(BLOCK).await;
    let file = world.home.path().join("file");
    std::fs::write(&file, "before").unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o640)).unwrap();
    let keeps = FileDownloadOptions {
        replaces: false,
        ..options()
    };
    let error = world.fetch("file", keeps).await.unwrap_err();
    assert!(error.to_string().contains("exists"), "{error}");
    assert_eq!(std::fs::read(&file).unwrap(), b"before");
    world.fetch("file", options()).await.unwrap();
    world.assert_fetched("file");
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    assert_eq!(world.names(), ["file"]);
}

#[tokio::test]
async fn paths_that_leave_the_folder_are_refused() {
    let world = World::new(10).await;
    let outside = tempfile::tempdir().unwrap();
    let folder = world.home.path().join("fetched");
    std::fs::create_dir(&folder).unwrap();
    symlink(outside.path(), folder.join("out")).unwrap();
    symlink(outside.path().join("file"), folder.join("link")).unwrap();
    let within = || FileDownloadOptions {
        within: Some(folder.clone()),
        ..options()
    };
    for name in ["../up", "out/file", "/etc/absolute", "a/../../up"] {
        let error = world.fetch(name, within()).await.unwrap_err();
        let found = EngineError::find(&error);
        let refused = matches!(
            found,
            Some(EngineError::InvalidSetting {
                setting: "path",
                ..
            })
        );
        assert!(refused, "{name}: {error}");
    }
    assert_eq!(world.files().refused, 3, "the other one is found out later");
    // Replaces the link, not the file that it names.
    world.fetch("link", within()).await.unwrap();
    world.fetch("made/for/it", within()).await.unwrap();
    assert!(names(outside.path()).is_empty());
    assert_eq!(names(world.home.path()), ["fetched"]);
    world.assert_fetched("fetched/link");
    world.assert_fetched("fetched/made/for/it");
}

#[tokio::test]
async fn leftovers_of_killed_writers_are_removed() {
    let world = World::new(10).await;
    std::fs::write(world.home.path().join(".bywash-cp-dead"), "x").unwrap();
    world.fetch("file", options()).await.unwrap();
    assert_eq!(world.names(), ["file"]);
}

#[tokio::test]
async fn other_failures_are_retried_three_times_and_named() {
    let world = World::new(10).await;
    std::fs::write(world.home.path().join("plain"), "x").unwrap();
    let error = world.fetch("plain/file", options()).await.unwrap_err();
    let found = EngineError::find(&error);
    assert!(matches!(found, Some(EngineError::File { .. })), "{error}");
    assert_eq!((world.files().retried, world.files().failed), (3, 1));
}

/// The body of the tests below; does nothing unless a test has started it.
#[tokio::test]
async fn in_a_limited_process() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    let world = World::new(3 << 19).await;
    let folder = FsPath::new(&folder);
    let bucket = world.engine.bucket("test").unwrap();
    let impatient = FileDownloadOptions {
        full_disk_deadline: Duration::ZERO,
        ..options()
    };
    let large = bucket.download_to(&world.path, folder.join("file"), impatient);
    let error = large.await.unwrap_err();
    let found = EngineError::find(&error);
    assert!(matches!(found, Some(EngineError::File { .. })), "{error}");
    assert!(names(folder).is_empty());

    // Space is freed while a smaller one waits for it.
    let (small, body) = (Path::from("small"), pattern(0, 600_000));
    world.origin.put(&small, body.clone().into()).await.unwrap();
    std::fs::write(folder.join("filler"), vec![1; 700_000]).unwrap();
    let fetched = tokio::spawn({
        let (bucket, target) = (bucket.clone(), folder.join("file"));
        async move { bucket.download_to(&small, target, options()).await }
    });
    let before = world.files().retried;
    while world.files().retried == before && !fetched.is_finished() {
        tokio::task::yield_now().await;
    }
    if world.files().retried > before {
        println!("waited for space");
    }
    std::fs::remove_file(folder.join("filler")).unwrap();
    fetched.await.unwrap().unwrap();
    assert!(std::fs::read(folder.join("file")).unwrap() == body);
    println!("limits met");
}

#[test]
fn too_large_a_file_leaves_nothing() {
    // 2048 blocks of 512 bytes. The signal would end the process; ignored, the write fails.
    let script = r#"trap "" XFSZ; ulimit -f 2048; exec "$0" "$@""#;
    assert_limits_met(&limited(&mut Command::new("env"), script, LIMITED));
}

#[cfg(target_os = "linux")]
#[test]
fn full_disk_is_waited_for() {
    if let Some(output) = on_small_disk(LIMITED) {
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(printed.contains("waited for space"), "{printed}");
        return assert_limits_met(&output);
    }
    eprintln!("skipped: no tmpfs can be mounted here");
}
