//! Tests of a store that is down, slow, or forgets conditions, and of a crash between a file and its manifest.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use bywash_support::faulty_store::{Fault, FaultyStore};
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use super::machines::open_over;
use super::*;

/// Faults that no test uses up.
const MANY: usize = 100_000;

pub(super) fn down(store: &FaultyStore, fault: Fault) {
    (0..MANY).for_each(|_| store.fault("put", "", fault));
}

/// A database with 1 MiB of memory, whose writers do not wait.
fn small() -> TestDatabase {
    let mut database = TestDatabase::new();
    database.options.memtable_bytes = Some(1 << 20);
    database
}

/// Inserts rows until one stalls for the reason that flushes fail. Returns the number of rows inserted.
fn insert_until_stalled(db: &SeriesDb) -> (i64, String) {
    let mut next = 0;
    loop {
        match db.insert_rows(&[row("a", "b", next, next as f64)]) {
            Ok(()) => next += 1,
            Err(SeriesError::WriteStalled { cause: None, .. }) => std::thread::yield_now(),
            Err(SeriesError::WriteStalled {
                cause: Some(cause), ..
            }) => return (next, cause),
            Err(other) => panic!("{other}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_that_is_down_holds_up_no_write_until_the_limit_and_then_says_so() {
    let (store, database) = (FaultyStore::default(), small());
    let db = open_over(store.shared(), &database).await.unwrap();
    assert_eq!(db.store_failure(), None);
    down(&store, Fault::Fail);
    let writer = db.clone();
    let inserted = tokio::task::spawn_blocking(move || insert_until_stalled(&writer));
    let (inserted, cause) = inserted.await.unwrap();
    assert!(inserted > 20_000, "only {inserted} rows fit");
    assert!(cause.contains("the connection broke"), "{cause}");
    let failure = db.store_failure().unwrap();
    assert!(failure.failures > 0, "{failure:?}");
    assert!(
        failure.reason.contains("the connection broke"),
        "{failure:?}"
    );
    assert!(db.stats().failed_flushes > 0);
    assert_eq!(content(&db).len() as i64, inserted, "all are readable");

    store.clear_faults();
    db.flush().await.unwrap();
    assert_eq!(db.store_failure(), None);
    assert_eq!(sealed_rows(&db) as i64, inserted, "each once");
    db.insert_rows(&[row("a", "b", -1, 0.5)]).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_that_is_slow_holds_up_neither_writes_nor_reads() {
    let (store, database) = (FaultyStore::default(), small());
    let db = open_over(store.shared(), &database).await.unwrap();
    store.fault("put", "files/", Fault::HoldRequest);
    db.insert_rows(&[row("a", "b", 0, 0.0)]).unwrap();
    let flushing = tokio::spawn({
        let db = db.clone();
        async move { db.flush().await }
    });
    store.wait_until_held().await;
    for at in 1..1000 {
        db.insert_rows(&[row("a", "b", at, 0.5)]).unwrap();
    }
    let mut points = db.iterator("a", "b");
    for at in 0..1000 {
        assert_eq!(points.next().await.unwrap().unwrap().timestamp, at);
    }
    store.release(1);
    flushing.await.unwrap().unwrap();
    assert_eq!((sealed_rows(&db), content(&db).len()), (1, 999));
}

/// The process ends after a file was stored and before the manifest names it: the rows are in its log alone.
#[tokio::test]
async fn crash_between_file_and_manifest_leaves_the_rows_to_the_log() {
    for fault in [Fault::Fail, Fault::LoseResponse, Fault::DelayPut] {
        let (store, database) = (FaultyStore::default(), TestDatabase::new());
        let db = open_over(store.shared(), &database).await.unwrap();
        db.insert_rows(&[row("a", "b", 1, 1.0)]).unwrap();
        store.fault("put", "manifest", fault);
        store.fault("get", "manifest", Fault::Fail);
        assert!(db.flush().await.is_err());
        drop(db);
        store.clear_faults();

        // Another machine sees the row if the manifest was replaced, though no response said so.
        let elsewhere = TestDatabase::new();
        let other = open_over(store.shared(), &elsewhere).await.unwrap();
        let seen = u64::from(fault == Fault::LoseResponse);
        assert_eq!(sealed_rows(&other), seen, "{fault:?}");
        // The put of a writer that is gone arrives late, and is refused.
        let late = store.complete_delayed().await;
        assert!(late.iter().all(std::result::Result::is_err), "{late:?}");
        drop(other);

        let back = open_over(store.shared(), &database).await.unwrap();
        back.flush().await.unwrap();
        assert_eq!(sealed_rows(&back), 1, "{fault:?}");
    }
}

/// Ignores the conditions of puts, as some servers of the S3 protocol do.
#[derive(Debug)]
struct Unconditional(InMemory);

impl fmt::Display for Unconditional {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a store without conditions")
    }
}

#[async_trait]
impl ObjectStore for Unconditional {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        _options: PutOptions,
    ) -> Result<PutResult> {
        self.0.put_opts(path, payload, PutOptions::default()).await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.0.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        self.0.get_opts(path, options).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.0.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.0.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.0.copy_opts(from, to, options).await
    }
}

#[tokio::test]
async fn store_that_ignores_conditions_is_refused() {
    let store: Arc<dyn ObjectStore> = Arc::new(Unconditional(InMemory::new()));
    let database = TestDatabase::new();
    for _ in 0..2 {
        let refused = open_over(Arc::clone(&store), &database).await;
        assert!(
            matches!(refused, Err(SeriesError::NoConditionalPut)),
            "{refused:?}"
        );
    }
}

/// A writer with a time limit waits for it, not for the store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writer_waits_its_time_limit_for_a_store_that_does_not_respond() {
    let (store, mut database) = (FaultyStore::default(), small());
    let limit = Duration::from_millis(50);
    database.options.write_timeout = limit;
    let db = open_over(store.shared(), &database).await.unwrap();
    down(&store, Fault::HoldRequest);
    let writer = db.clone();
    let stalled = tokio::task::spawn_blocking(move || {
        (0..).find_map(|at| writer.insert_rows(&[row("a", "b", at, 0.5)]).err())
    });
    let stalled = stalled.await.unwrap();
    let Some(SeriesError::WriteStalled { waited, .. }) = stalled else {
        panic!("{stalled:?}");
    };
    assert!(waited >= limit, "{waited:?}");
}
