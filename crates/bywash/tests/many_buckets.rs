//! More buckets than the process may have open folders.
//!
//! A process of its own: it counts the descriptors of the process.

#![allow(clippy::unwrap_used, reason = "tests")]

use bywash::{Engine, MAX_OPEN_FOLDERS};
use object_store::ObjectStoreExt;
use object_store::path::Path;

const BUCKETS: usize = 10_000;
/// Bytes of an open, unused bucket: its name, its empty tables, its folder's path.
const MAX_BUCKET_BYTES: i64 = 4096;

fn name(number: usize) -> String {
    format!("bucket-{number:05}")
}

/// Descriptors of this process.
fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn ten_thousand_buckets_use_few_kilobytes_and_descriptors() {
    let root = tempfile::tempdir().unwrap();
    for number in 0..BUCKETS {
        std::fs::create_dir(root.path().join(name(number))).unwrap();
    }
    let engine = Engine::builder()
        .memory(16 << 20)
        .root(root.path())
        .build()
        .unwrap();
    let files = open_files();
    assert_eq!(engine.buckets().len(), BUCKETS);
    assert!(engine.open_buckets().is_empty(), "a list opens none");
    let counted = allocation_counter::measure(|| {
        for number in 0..BUCKETS {
            drop(engine.bucket(&name(number)).unwrap());
        }
    });
    assert_eq!(engine.open_buckets().len(), BUCKETS);
    let each = counted.bytes_current / BUCKETS as i64;
    assert!(each <= MAX_BUCKET_BYTES, "{each} bytes each");
    let opened = open_files() - files;
    assert!(opened <= MAX_OPEN_FOLDERS + 16, "{opened} files are open");
    // Closed folders serve as well as open ones.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        for number in (0..BUCKETS).step_by(20) {
            let bucket = engine.bucket(&name(number)).unwrap();
            let key = Path::from("key");
            bucket.put(&key, name(number).into()).await.unwrap();
        }
        for number in (0..BUCKETS).step_by(20) {
            let bucket = engine.bucket(&name(number)).unwrap();
            let read = bucket.get(&Path::from("key")).await.unwrap();
            assert_eq!(read.bytes().await.unwrap(), name(number));
        }
    });
    let opened = open_files() - files;
    assert!(opened <= MAX_OPEN_FOLDERS + 64, "{opened} files are open");
}
