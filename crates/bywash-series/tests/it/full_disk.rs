//! A full disk: the log fails and accepts no more rows, acknowledged rows are found after a restart, and a flush
//! frees space.
//!
//! The disk is a tmpfs of one MiB in a process of its own, so the test runs this binary again. It is skipped where
//! mounting is not permitted.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use bywash_mem::{BlockPool, PoolConfig};
use bywash_series::{SeriesDb, SeriesError, SeriesOptions};
use object_store::memory::InMemory;

const FOLDER: &str = "BYWASH_TEST_FULL_DISK_FOLDER";
const NO_MOUNT: i32 = 77;

async fn open(store: &Arc<InMemory>, folder: &Path) -> SeriesDb {
    let pool = BlockPool::new(PoolConfig::new(64 << 20)).unwrap();
    let options = SeriesOptions {
        segment_bytes: 512 << 10,
        ..SeriesOptions::default()
    };
    let (store, budget) = (Arc::clone(store), pool.budget().clone());
    SeriesDb::open(store, folder, budget, options)
        .await
        .unwrap()
}

/// The test in the child process; does nothing in the parent.
#[tokio::test]
async fn on_a_small_disk() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    let folder = Path::new(&folder).join("log");
    let store = Arc::new(InMemory::new());
    let db = open(&store, &folder).await;
    // In the far future, so that no partition expires and nothing is flushed automatically.
    let begin = i64::MAX - 1_000_000;
    let series = db.handle("host", "cpu").unwrap();
    let rows = |from: i64| -> Vec<_> {
        (from..from + 1000)
            .map(|n| (series, begin + n, 1.0))
            .collect()
    };
    let mut acknowledged = 0;
    let failure = loop {
        match db.append_batch(&rows(acknowledged)) {
            Ok(()) => acknowledged += 1000,
            Err(failure) => break failure,
        }
    };
    assert!(
        matches!(failure, SeriesError::LogFailed { .. }),
        "{failure}"
    );
    assert!(failure.to_string().contains("No space"), "{failure}");
    assert!(acknowledged > 10_000, "{acknowledged}");
    assert!(db.append_batch(&rows(acknowledged)).is_err());
    drop(db);

    let db = open(&store, &folder).await;
    assert!(db.stats().replayed_rows >= acknowledged as u64);
    let mut points = db.iterator("host", "cpu");
    for n in 0..acknowledged {
        assert_eq!(points.next().await.unwrap().unwrap().timestamp, begin + n);
    }
    db.flush().await.unwrap();
    let series = db.handle("host", "cpu").unwrap();
    db.append(series, begin, 2.0).unwrap();
    println!("limits met");
}

#[test]
fn full_disk_fails_the_log_without_loss() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        r#"mount -t tmpfs -o size=1m tmpfs "${FOLDER}" || exit {NO_MOUNT}; exec "$0" "$@""#
    );
    let output = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", &script])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "full_disk::on_a_small_disk", "--nocapture"])
        .env(FOLDER, folder.path())
        .output();
    let Ok(output) = output else {
        eprintln!("skipped: there is no unshare here");
        return;
    };
    let said = String::from_utf8_lossy(&output.stdout);
    let why = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(NO_MOUNT) || why.starts_with("unshare:") {
        eprintln!("skipped: no tmpfs can be mounted here");
        return;
    }
    assert!(
        output.status.success() && said.contains("limits met"),
        "{said}\n{why}"
    );
}
