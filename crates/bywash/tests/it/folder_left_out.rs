//! Entries of a folder that are no keys, or that the process may not read: listings have the others.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path as FsPath;
use std::process::Command;
use std::sync::Arc;

use bywash::origin::folder::FolderStore;
use bywash::{Bucket, BucketOptions, Engine, EngineError, LeftOut, Omission, Unlistable};
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{Error, ObjectStore};

/// A user without rights, who is not the superuser.
const NOBODY: u32 = 65534;
const AS_NOBODY: &str = "BYWASH_TEST_AS_NOBODY";

fn bucket(folder: &FsPath, unlistable: Unlistable) -> (Engine, Bucket) {
    let engine = Engine::builder().memory(32 << 20).build().unwrap();
    let options = BucketOptions {
        unlistable,
        ..BucketOptions::default()
    };
    let origin = FolderStore::open(folder).unwrap();
    let bucket = engine.mount("data", Arc::new(origin), options).unwrap();
    (engine, bucket)
}

async fn listed(bucket: &Bucket, prefix: &str) -> (Vec<String>, LeftOut) {
    let (listed, omissions) = bucket.list_with_omissions(Some(&Path::from(prefix)), None);
    let listed: Vec<_> = listed.try_collect().await.unwrap();
    let keys = listed.into_iter().map(|meta| meta.location.to_string());
    (keys.collect(), omissions.left_out())
}

/// A folder with names that are no keys.
fn with_bad_names() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("d")).unwrap();
    for name in ["a", "c", "d/x", "d/control\u{1}", "z\n"] {
        std::fs::write(dir.path().join(name), name).unwrap();
    }
    std::fs::write(dir.path().join(OsStr::from_bytes(b"b\xff")), "").unwrap();
    dir
}

#[tokio::test]
async fn names_that_are_no_keys_are_left_out_counted_and_named() {
    let dir = with_bad_names();
    let (engine, bucket) = bucket(dir.path(), Unlistable::LeaveOut);
    let (keys, left) = listed(&bucket, "").await;
    assert_eq!(keys, ["a", "c", "d/x"]);
    let names: Vec<&str> = left.named.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, ["b\u{fffd}", "d/control\u{1}", "z\n"]);
    assert!(left.named.iter().all(|(_, why)| *why == Omission::NotAKey));
    assert_eq!(left.count, 3);
    assert_eq!(listed(&bucket, "d").await.1.count, 1);
    assert_eq!(engine.stats().buckets["data"].left_out, 4);
    let level = bucket.list_with_delimiter(None).await.unwrap();
    assert_eq!(level.extensions.get::<LeftOut>().unwrap().count, 2);
}

#[tokio::test]
async fn pages_count_each_entry_once() {
    let dir = with_bad_names();
    let (_engine, bucket) = bucket(dir.path(), Unlistable::LeaveOut);
    for size in [1, 2, 10] {
        let (mut after, mut count) = (None::<String>, 0);
        loop {
            let page = bucket.list_page("", after.as_deref(), size).await.unwrap();
            count += page.left_out.count;
            after = page.objects.last().map(|meta| meta.location.to_string());
            if !page.more {
                break;
            }
        }
        assert_eq!(count, 3, "pages of {size}");
    }
    let (mut next, mut count) = (String::new(), 0);
    loop {
        let level = bucket.list_level("", &next, 1).await.unwrap();
        count += level.left_out.count;
        match level.next {
            Some(name) => next = name,
            None => break,
        }
    }
    assert_eq!(count, 2, "levels");
}

#[tokio::test]
async fn bucket_may_make_an_entry_that_cannot_be_listed_an_error() {
    let dir = with_bad_names();
    let (_engine, bucket) = bucket(dir.path(), Unlistable::Error);
    let all: Result<Vec<_>, _> = bucket.list(None).try_collect().await;
    for error in [
        all.map(drop).unwrap_err(),
        bucket.list_page("", None, 10).await.map(drop).unwrap_err(),
        bucket.list_level("", "", 10).await.map(drop).unwrap_err(),
        bucket
            .list_with_delimiter(None)
            .await
            .map(drop)
            .unwrap_err(),
    ] {
        let found = EngineError::find(&error);
        assert!(
            matches!(found, Some(EngineError::Unlistable { .. })),
            "{error}"
        );
        assert!(error.to_string().contains("b\u{fffd}"), "{error}");
    }
    std::fs::remove_file(dir.path().join(OsStr::from_bytes(b"b\xff"))).unwrap();
    std::fs::remove_file(dir.path().join("z\n")).unwrap();
    std::fs::remove_file(dir.path().join("d/control\u{1}")).unwrap();
    let all: Vec<_> = bucket.list(None).try_collect().await.unwrap();
    assert_eq!(all.len(), 3, "mended");
}

/// Runs this test again as a user who is not the superuser, whom no permission stops. Returns whether this is that run.
fn is_nobody(test: &str) -> bool {
    if std::env::var_os(AS_NOBODY).is_some() || !is_superuser() {
        return true;
    }
    let exe = std::env::current_exe().unwrap();
    let mut command = Command::new(exe);
    command.args(["--exact", test, "--nocapture"]);
    command.env(AS_NOBODY, "1").env("TMPDIR", "/tmp");
    let ran = command.uid(NOBODY).gid(NOBODY).output().unwrap();
    let text = String::from_utf8_lossy(&ran.stdout) + String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success() && text.contains("1 passed"), "{text}");
    false
}

fn is_superuser() -> bool {
    let dir = tempfile::tempdir().unwrap();
    let locked = dir.path().join("locked");
    std::fs::create_dir(&locked).unwrap();
    lock(&locked);
    std::fs::read_dir(&locked).is_ok()
}

fn lock(folder: &FsPath) {
    std::fs::set_permissions(folder, PermissionsExt::from_mode(0o0)).unwrap();
}

fn unlock(folder: &FsPath) {
    std::fs::set_permissions(folder, PermissionsExt::from_mode(0o700)).unwrap();
}

#[tokio::test]
async fn folder_without_permission_hides_no_others() {
    if !is_nobody("folder_left_out::folder_without_permission_hides_no_others") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let locked = dir.path().join("lost+found");
    for folder in ["a", "lost+found/in", "z"] {
        std::fs::create_dir_all(dir.path().join(folder)).unwrap();
        std::fs::write(dir.path().join(folder).join("file"), "x").unwrap();
    }
    symlink("lost+found/in", dir.path().join("link")).unwrap();
    lock(&locked);
    let (_engine, bucket) = bucket(dir.path(), Unlistable::LeaveOut);
    let (keys, left) = listed(&bucket, "").await;
    assert_eq!(keys, ["a/file", "z/file"]);
    let names: Vec<&str> = left.named.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, ["link", "lost+found/"]);
    assert!(left.named[0].1.to_string().contains("ermission denied"));
    let level = bucket.list_with_delimiter(None).await.unwrap();
    assert_eq!(level.common_prefixes, [Path::from("a"), Path::from("z")]);
    assert_eq!(level.extensions.get::<LeftOut>().unwrap().count, 2);
    // The folder that is to be listed itself is no entry.
    let inside: Result<Vec<_>, _> = bucket.list(Some(&"lost+found".into())).try_collect().await;
    let error = inside.unwrap_err();
    assert!(matches!(error, Error::PermissionDenied { .. }), "{error}");
    unlock(&locked);
    assert_eq!(listed(&bucket, "").await.0.len(), 4, "mended");
}
