//! A full disk: the write fails, the old object is intact, no staged file is left.
//!
//! The limits need a process of their own, so the tests start this binary again: under a file size limit (`EFBIG`,
//! everywhere), and on a one MiB tmpfs (`ENOSPC`, where mounting is allowed).

use std::io::ErrorKind;
use std::process::{Command, Output};

use bytes::Bytes;
use bywash::origin::Origin;
use bywash::origin::folder::FolderStore;
use bywash::origin::{Chunk, CompleteRequest, SessionOptions, SessionStatus};
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{Attribute, Attributes, ObjectStore, ObjectStoreExt};

use crate::numbered_parts::SendChunk;

pub(crate) const FOLDER: &str = "BYWASH_TEST_FULL_DISK_FOLDER";
const NO_MOUNT: i32 = 77;
const THIS: &str = "folder_full_disk::in_a_limited_process";

fn io_kind(error: &object_store::Error) -> Option<ErrorKind> {
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        if let Some(io) = error.downcast_ref::<std::io::Error>() {
            return Some(io.kind());
        }
        source = error.source();
    }
    None
}

/// The body of both tests; does nothing unless a test has started it.
#[tokio::test]
async fn in_a_limited_process() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    let store = FolderStore::open(&folder).unwrap();
    let key = Path::from("d/object");
    let old = Bytes::from(vec![7; 100_000]);
    let kept = Attributes::from_iter([(Attribute::ContentType, "old")]);
    store
        .put_opts(&key, old.clone().into(), kept.clone().into())
        .await
        .unwrap();
    let before = store.head(&key).await.unwrap();

    let large = Bytes::from(vec![8; 4 << 20]);
    let full = [ErrorKind::StorageFull, ErrorKind::FileTooLarge];
    let new = Attributes::from_iter([(Attribute::ContentType, "new")]);
    let error = store.put_opts(&key, large.clone().into(), new.into()).await;
    let error = error.unwrap_err();
    assert!(
        io_kind(&error).is_some_and(|kind| full.contains(&kind)),
        "{error:?}"
    );

    let mut upload = store.put_multipart(&key).await.unwrap();
    let error = upload.put_part(large.into()).await.unwrap_err();
    assert!(
        io_kind(&error).is_some_and(|kind| full.contains(&kind)),
        "{error:?}"
    );
    upload.abort().await.unwrap();

    let after = store.get(&key).await.unwrap();
    assert_eq!(after.meta.e_tag, before.e_tag);
    assert_eq!(after.attributes, kept);
    assert_eq!(after.bytes().await.unwrap(), old);
    let keys: Vec<_> = store.list(None).try_collect().await.unwrap();
    assert_eq!(keys.len(), 1);
    let staging = std::path::Path::new(&folder).join(".bywash/staging");
    assert_eq!(std::fs::read_dir(staging).unwrap().count(), 0);

    // With free space again, the same write succeeds.
    store.put(&key, "small".into()).await.unwrap();
    let got = store.get(&key).await.unwrap().bytes().await.unwrap();
    assert_eq!(got, "small");
    continue_session_after_full_disk(&store).await;
    println!("limits met");
}

async fn continue_session_after_full_disk(store: &FolderStore) {
    let (key, filler) = (Path::from("session"), Path::from("filler"));
    let options = SessionOptions::default();
    let session = store.open_session(&key, &options).await.unwrap();
    let chunk = |index: u64| {
        let bytes = Bytes::from(vec![index as u8; 300_000]);
        Chunk {
            index,
            offset: index * 300_000,
            crc32c: crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &bytes) as u32,
            pieces: vec![bytes],
        }
    };
    session.send(&chunk(0)).await.unwrap();
    store.put(&filler, vec![9; 600_000].into()).await.unwrap();
    if let Err(error) = session.send(&chunk(1)).await {
        assert_eq!(io_kind(&error), Some(ErrorKind::StorageFull), "{error:?}");
        let SessionStatus::Open(kept) = session.status().await.unwrap() else {
            panic!("the session is gone");
        };
        assert_eq!(kept.len(), 1);
        assert_eq!(kept[0].range, 0..300_000);
        store.delete(&filler).await.unwrap();
        session.send(&chunk(1)).await.unwrap();
        println!("session met the limit");
    }
    let ending = CompleteRequest {
        attributes: Attributes::new(),
        parts: None,
        digest: None,
        length: 600_000,
        crc32c: 0,
        tail: None,
    };
    session.finish(&ending).await.unwrap();
    assert_eq!(store.head(&key).await.unwrap().size, 600_000);
}

/// Starts `test` of this program alone, by a script, with an empty folder in the environment.
pub(crate) fn limited(command: &mut Command, script: &str, test: &str) -> Output {
    let dir = tempfile::tempdir().unwrap();
    let this = std::env::current_exe().unwrap();
    let output = command
        .args(["sh", "-c", script])
        .arg(this)
        .args(["--exact", test, "--nocapture"])
        .env(FOLDER, dir.path())
        .output()
        .unwrap();
    eprintln!("{}", String::from_utf8_lossy(&output.stderr));
    output
}

/// As [`limited`], with a folder of one MiB; `None` where nothing can be mounted.
pub(crate) fn on_small_disk(test: &str) -> Option<Output> {
    let script = format!(
        r#"mount -t tmpfs -o size=1m tmpfs "${FOLDER}" || exit {NO_MOUNT}; exec "$0" "$@""#
    );
    let mut unshare = Command::new("unshare");
    unshare.args(["--map-root-user", "--mount"]);
    let can_unshare = Command::new("unshare")
        .args(["--map-root-user", "--mount", "true"])
        .status();
    if !can_unshare.is_ok_and(|status| status.success()) {
        return None;
    }
    let output = limited(&mut unshare, &script, test);
    (output.status.code() != Some(NO_MOUNT)).then_some(output)
}

pub(crate) fn assert_limits_met(output: &Output) {
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && printed.contains("limits met"),
        "{printed}"
    );
}

#[test]
fn too_large_a_file_leaves_the_old_object() {
    // 2048 blocks of 512 bytes. The signal would end the process; ignored, the write fails.
    let script = r#"trap "" XFSZ; ulimit -f 2048; exec "$0" "$@""#;
    assert_limits_met(&limited(&mut Command::new("env"), script, THIS));
}

#[cfg(target_os = "linux")]
#[test]
fn full_disk_leaves_the_old_object() {
    if let Some(output) = on_small_disk(THIS) {
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(printed.contains("session met the limit"), "{printed}");
        return assert_limits_met(&output);
    }
    eprintln!("skipped: no tmpfs can be mounted here; the file size limit is tested all the same");
}
