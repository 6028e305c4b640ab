//! Files that other programs replace or rewrite in a served folder, with unchanged size and modification time.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path as FsPath;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use bywash::origin::folder::FolderStore;
use bywash::{Consistency, Engine};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, UpdateVersion};

const BLOCK: u64 = 1 << 20;
const SIZE: u64 = 4 * BLOCK + 7;
const ROUNDS: u8 = 20;

fn key() -> Path {
    Path::from("dir/object")
}

/// The modification time of every version, as if from an archive.
fn archived() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_600_000_000)
}

fn ctime(path: &FsPath) -> (i64, i64) {
    let meta = std::fs::metadata(path).unwrap();
    (meta.ctime(), meta.ctime_nsec())
}

/// Waits until a change to a file would get a later ctime than `path` has: kernels before 6.13 count
/// ctimes in ticks of a few milliseconds.
fn wait_for_tick(path: &FsPath) {
    let probe = path.with_file_name("probe");
    loop {
        std::fs::write(&probe, "x").unwrap();
        let ticked = ctime(&probe) > ctime(path);
        std::fs::remove_file(&probe).unwrap();
        if ticked {
            return;
        }
    }
}

fn fill(mut file: &File, byte: u8) {
    file.write_all(&vec![byte; usize::try_from(SIZE).unwrap()])
        .unwrap();
    file.set_modified(archived()).unwrap();
}

/// As `tar x`, `install` and `cp --remove-destination` do: ext4 gives the new file the freed inode.
fn replace(path: &FsPath, byte: u8) {
    wait_for_tick(path);
    std::fs::remove_file(path).unwrap();
    fill(&File::create(path).unwrap(), byte);
}

/// As `rsync --inplace --times` does.
fn rewrite(path: &FsPath, byte: u8) {
    wait_for_tick(path);
    fill(&File::options().write(true).open(path).unwrap(), byte);
}

fn served() -> (tempfile::TempDir, std::path::PathBuf, FolderStore) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("dir")).unwrap();
    let path = folder.path().join(key().as_ref());
    fill(&File::create(&path).unwrap(), 0);
    let store = FolderStore::open(folder.path()).unwrap();
    (folder, path, store)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn file_replaced_with_same_size_and_mtime_is_read_again_despite_cached_blocks() {
    for change in [replace, rewrite] {
        let (_folder, path, store) = served();
        let engine = Engine::builder().memory(64 << 20).build().unwrap();
        let consistency = Consistency::Revalidate(Duration::ZERO);
        let bucket = engine.mount("data", Arc::new(store), consistency).unwrap();
        for round in 1..=ROUNDS {
            // One block of the old version is in memory.
            let cached = bucket.get_range(&key(), 0..BLOCK).await.unwrap();
            assert!(cached.iter().all(|byte| *byte == round - 1), "{round}");
            let before = bucket.head(&key()).await.unwrap();
            change(&path, round);
            let read = bucket.get(&key()).await.unwrap();
            assert_ne!(read.meta.e_tag, before.e_tag, "{round}");
            assert_eq!(
                (read.meta.size, read.meta.last_modified),
                (before.size, before.last_modified)
            );
            let bytes = read.bytes().await.unwrap();
            assert!(bytes.iter().all(|byte| *byte == round), "{round}");
        }
    }
}

/// Reads the first piece of the object, changes it, and returns the rest of the body.
async fn read_while(store: &FolderStore, change: impl FnOnce()) -> Vec<Result<Bytes, Error>> {
    let mut body = store.get(&key()).await.unwrap().into_stream();
    assert!(body.next().await.unwrap().unwrap().iter().all(|b| *b == 0));
    change();
    body.collect().await
}

#[tokio::test]
async fn file_rewritten_while_read_fails_despite_restored_mtime() {
    let (_folder, path, store) = served();
    let rest = read_while(&store, || rewrite(&path, 1)).await;
    assert!(
        matches!(rest[..], [Err(Error::Precondition { .. })]),
        "{rest:?}"
    );
}

#[tokio::test]
async fn file_replaced_or_renamed_while_read_is_read_whole() {
    let link = |path: &FsPath| std::fs::hard_link(path, path.with_file_name("link")).unwrap();
    let over: fn(&FsPath) = |path| {
        let new = path.with_file_name("new");
        fill(&File::create(&new).unwrap(), 1);
        std::fs::rename(&new, path).unwrap();
    };
    for change in [link, |path: &FsPath| replace(path, 1), over] {
        let (_folder, path, store) = served();
        let rest = read_while(&store, || change(&path)).await;
        let rest: Vec<Bytes> = rest.into_iter().map(Result::unwrap).collect();
        let bytes: usize = rest.iter().map(Bytes::len).sum();
        assert_eq!(bytes as u64, SIZE - BLOCK);
        assert!(rest.iter().flatten().all(|byte| *byte == 0));
    }
}

#[tokio::test]
async fn etag_of_a_write_equals_that_of_reads_and_listings_and_permits_the_next_write() {
    let (folder, _, store) = served();
    // The last one is in the overflow area, since `dir/object` is a file.
    for raw in ["a", "dir/b", "dir/object", "dir/object/below"] {
        let key = Path::from(raw);
        let mut e_tag = store.put(&key, "0".into()).await.unwrap().e_tag;
        for body in ["1", "2"] {
            let head = store.head(&key).await.unwrap();
            assert_eq!(head.e_tag, e_tag, "{raw}");
            let listed: Vec<_> = store.list(None).try_collect().await.unwrap();
            let listed = listed.into_iter().find(|meta| meta.location == key);
            assert_eq!(listed.unwrap().e_tag, e_tag, "{raw}");
            let version = None;
            let mode = PutMode::Update(UpdateVersion { e_tag, version });
            let put = store.put_opts(&key, body.into(), mode.into()).await;
            e_tag = put.unwrap().e_tag;
        }
        let mut upload = store.put_multipart(&key).await.unwrap();
        upload.put_part("part".into()).await.unwrap();
        let put = upload.complete().await.unwrap();
        assert_eq!(store.head(&key).await.unwrap().e_tag, put.e_tag, "{raw}");
    }
    // A second name is a change: the version before it permits no write, the one read after it does.
    let key = Path::from("a");
    let before = store.head(&key).await.unwrap().e_tag;
    std::fs::hard_link(folder.path().join("a"), folder.path().join("link")).unwrap();
    let after = store.head(&key).await.unwrap().e_tag;
    for (e_tag, permitted) in [(before, false), (after, true)] {
        let version = None;
        let mode = PutMode::Update(UpdateVersion { e_tag, version });
        let put = store.put_opts(&key, "new".into(), mode.into()).await;
        assert_eq!(put.is_ok(), permitted, "{put:?}");
    }
}
