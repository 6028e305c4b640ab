//! Late responses of the origin: none undoes a write acknowledged before it, replaces a newer response, or is used by
//! a read that began too long after its request was sent.

use std::sync::Arc;
use std::time::Duration;

use bywash::origin::memory::MemoryStore;
use bywash::{Bucket, Consistency, DownloadOptions, Engine, Origin, WriteCache};
use bywash_sim::WrappedMemory;
use bywash_support::faulty_store::{Fault, FaultyStore};
use object_store::path::Path;
use object_store::{Error, GetOptions, ObjectStore as _, ObjectStoreExt};
use tokio::time::{Instant, sleep, sleep_until};

/// A store that makes each response at once and delivers it late, on request.
struct Late {
    store: MemoryStore,
    faults: FaultyStore,
}

impl Late {
    fn new() -> Self {
        let store = MemoryStore::new();
        Self {
            faults: FaultyStore::over(Arc::new(store.clone())),
            store,
        }
    }

    /// Delays the next reads.
    fn with_delays(delays: impl IntoIterator<Item = Duration>) -> Self {
        let late = Self::new();
        for delay in delays {
            late.delay_next(delay);
        }
        late
    }

    fn delay_next(&self, delay: Duration) {
        self.faults.fault("get", "", Fault::DelayResponse(delay));
    }

    fn shared(&self) -> Arc<dyn Origin> {
        let store = self.store.clone();
        Arc::new(WrappedMemory::new(self.faults.shared(), store))
    }

    fn requests(&self) -> u64 {
        self.faults.requests()
    }

    /// Responses being waited for.
    fn pending(&self) -> u64 {
        self.faults.in_progress()
    }
}

fn bucket_over(origin: &Late, consistency: Consistency) -> Bucket {
    let engine = Engine::builder().memory(16 << 20).build().unwrap();
    engine.mount("late", origin.shared(), consistency).unwrap()
}

#[derive(Clone, Copy, Debug)]
enum Write {
    Put,
    Upload,
    Delete,
}

/// A read is in flight with the old object and a write is acknowledged; later reads must see the write.
async fn read_after_write(write: Write) {
    let origin = Late::new();
    let bucket = bucket_over(&origin, Consistency::Immutable);
    let path = Path::from("a");
    origin.store.put(&path, "old".into()).await.unwrap();

    origin.faults.fault("get", "", Fault::HoldResponse);
    let early = tokio::spawn({
        let (bucket, path) = (bucket.clone(), path.clone());
        async move { bucket.get(&path).await.unwrap().bytes().await.unwrap() }
    });
    origin.faults.wait_until_held().await;
    match write {
        Write::Put => drop(bucket.put(&path, "new".into()).await.unwrap()),
        Write::Upload => {
            let mut upload = bucket.put_multipart(&path).await.unwrap();
            upload.put_part("new".into()).await.unwrap();
            upload.complete().await.unwrap();
        }
        Write::Delete => bucket.delete(&path).await.unwrap(),
    }
    let check = async || match (write, bucket.get(&path).await) {
        (Write::Delete, Err(Error::NotFound { .. })) => {}
        (_, answer) => assert_eq!(answer.unwrap().bytes().await.unwrap(), "new", "{write:?}"),
    };
    check().await;
    origin.faults.release(1);
    assert_eq!(early.await.unwrap(), "old", "it began before the write");
    check().await;
}

#[tokio::test]
async fn read_after_a_write_does_not_share_an_earlier_request() {
    for write in [Write::Put, Write::Upload, Write::Delete] {
        read_after_write(write).await;
    }
}

const PATH: &str = "a";

/// `None` if there is no such object.
async fn read(bucket: &Bucket, options: GetOptions) -> Option<String> {
    let head = options.head;
    match bucket.get_opts(&Path::from(PATH), options).await {
        Err(Error::NotFound { .. }) => None,
        answer if head => Some(answer.unwrap().meta.size.to_string()),
        answer => {
            let bytes = answer.unwrap().bytes().await.unwrap();
            Some(String::from_utf8(bytes.to_vec()).unwrap())
        }
    }
}

fn spawn_read(bucket: &Bucket) -> tokio::task::JoinHandle<Option<String>> {
    let bucket = bucket.clone();
    tokio::spawn(async move { read(&bucket, GetOptions::default()).await })
}

async fn download(bucket: &Bucket) -> Option<String> {
    let path = Path::from(PATH);
    match bucket.download(&path, DownloadOptions::default()).await {
        Err(Error::NotFound { .. }) => None,
        download => {
            let bytes = download.unwrap().finish().await.unwrap();
            Some(String::from_utf8(bytes.into_contiguous().to_vec()).unwrap())
        }
    }
}

async fn store(origin: &Late, body: &'static str) {
    let path = Path::from(PATH);
    origin.store.put(&path, body.into()).await.unwrap();
}

const fn secs(tenths: u64) -> Duration {
    Duration::from_millis(tenths * 100)
}

/// The window is 1 s, the origin needs 6 s, and the object changes at 0.5 s.
#[tokio::test(start_paused = true)]
async fn read_shares_no_request_older_than_the_window() {
    for window in [
        Consistency::Revalidate(secs(10)),
        Consistency::Revalidate(secs(10)),
    ] {
        // For an object never read before, and for one with a stale version.
        for known in [false, true] {
            let origin = Late::with_delays([]);
            let bucket = bucket_over(&origin, window);
            store(&origin, "old").await;
            if known {
                assert_eq!(read(&bucket, GetOptions::default()).await.unwrap(), "old");
                sleep(secs(11)).await;
            }
            let (start, before) = (Instant::now(), origin.requests());
            origin.delay_next(secs(60));
            let first = spawn_read(&bucket);
            sleep_until(start + secs(5)).await;
            store(&origin, "newer").await;
            sleep_until(start + secs(10)).await;
            let second = spawn_read(&bucket);
            sleep_until(start + secs(40)).await;
            assert_eq!(
                origin.requests() - before,
                1,
                "the second read joined the first"
            );
            assert_eq!(read(&bucket, GetOptions::default()).await.unwrap(), "newer");
            assert_eq!(start.elapsed(), secs(40), "it did not wait for the first");
            assert_eq!(origin.requests() - before, 2 + u64::from(known));
            // Both began within a second of the request. After a HEAD the object's bytes are requested, which are
            // gone.
            let expected = if known { "newer" } else { "old" };
            assert_eq!(first.await.unwrap().unwrap(), expected);
            assert_eq!(second.await.unwrap().unwrap(), expected);
            assert_eq!(start.elapsed(), secs(60));
            assert_eq!(read(&bucket, GetOptions::default()).await.unwrap(), "newer");
        }
    }
}

/// The same for metadata, with the length as the version.
#[tokio::test(start_paused = true)]
async fn head_shares_no_request_older_than_the_window() {
    let origin = Late::with_delays([secs(60)]);
    let bucket = bucket_over(&origin, Consistency::Revalidate(secs(10)));
    store(&origin, "old").await;
    let start = Instant::now();
    let head = || GetOptions {
        head: true,
        ..GetOptions::default()
    };
    let first = tokio::spawn({
        let bucket = bucket.clone();
        async move { read(&bucket, head()).await }
    });
    sleep_until(start + secs(5)).await;
    store(&origin, "newer").await;
    sleep_until(start + secs(40)).await;
    assert_eq!(read(&bucket, head()).await.unwrap(), "5");
    assert_eq!(start.elapsed(), secs(40));
    assert_eq!(first.await.unwrap().unwrap(), "3");
}

#[tokio::test(start_paused = true)]
async fn response_to_an_older_request_does_not_replace_a_newer_one() {
    let hour = Consistency::Revalidate(secs(36_000));
    // The object when the first request is sent, and when the second is.
    let cases = [
        (hour, Some("old"), Some("newer")),
        (Consistency::Immutable, Some("old"), Some("newer")),
        (hour, None, Some("newer")),
        (Consistency::Immutable, None, Some("newer")),
        (hour, Some("old"), None),
    ];
    for (consistency, before, after) in cases {
        let origin = Late::with_delays([secs(60)]);
        let bucket = bucket_over(&origin, consistency);
        if let Some(body) = before {
            store(&origin, body).await;
        }
        let start = Instant::now();
        let first = spawn_read(&bucket);
        sleep_until(start + secs(5)).await;
        match after {
            Some(body) => store(&origin, body).await,
            None => origin.store.delete(&Path::from(PATH)).await.unwrap(),
        }
        // A download always sends its own request.
        assert_eq!(download(&bucket).await.as_deref(), after);
        assert_eq!(start.elapsed(), secs(5));
        let first = first.await.unwrap();
        assert!(
            first.as_deref() == before || first.as_deref() == after,
            "{first:?}"
        );
        assert!(start.elapsed() >= secs(60));
        let requests = origin.requests();
        assert_eq!(
            read(
                &bucket,
                GetOptions {
                    head: true,
                    ..GetOptions::default()
                }
            )
            .await,
            after.map(|body| body.len().to_string())
        );
        assert_eq!(
            origin.requests(),
            requests,
            "the newer response is still known"
        );
        assert_eq!(read(&bucket, GetOptions::default()).await.as_deref(), after);
    }
}

/// Objects never change, so any request for one may be shared; but an absent one may exist by now.
#[tokio::test(start_paused = true)]
async fn immutable_read_shares_any_request_but_sends_its_own_after_not_found() {
    for there in [true, false] {
        let origin = Late::with_delays([secs(60)]);
        let bucket = bucket_over(&origin, Consistency::Immutable);
        if there {
            store(&origin, "there").await;
        }
        let start = Instant::now();
        let first = spawn_read(&bucket);
        sleep_until(start + secs(5)).await;
        if !there {
            store(&origin, "there").await;
        }
        sleep_until(start + secs(40)).await;
        assert_eq!(read(&bucket, GetOptions::default()).await.unwrap(), "there");
        assert_eq!(start.elapsed(), secs(60), "it waited for the first");
        assert_eq!(origin.requests(), if there { 1 } else { 2 });
        assert_eq!(first.await.unwrap().is_some(), there);
    }
}

/// One more request per window while the origin works; none is left behind.
#[tokio::test(start_paused = true)]
async fn one_request_per_window_is_in_flight_for_a_path() {
    let origin = Late::with_delays(std::iter::repeat_n(secs(100), 1000));
    let bucket = bucket_over(&origin, Consistency::Revalidate(secs(10)));
    store(&origin, "body").await;
    let start = Instant::now();
    let mut reads = Vec::new();
    // Ten a second.
    for tenth in 0..90 {
        sleep_until(start + secs(tenth)).await;
        reads.push(spawn_read(&bucket));
    }
    sleep_until(start + secs(95)).await;
    // At 0.0 s, 1.1 s, 2.2 s and so on.
    assert_eq!(origin.requests(), 9);
    assert_eq!(origin.pending(), 9);
    for read in reads {
        assert_eq!(read.await.unwrap().unwrap(), "body");
    }
    assert_eq!(origin.pending(), 0);
}

/// Clients read one object after the other from an origin that hangs, and leave: other readers must find memory at
/// once.
#[tokio::test(start_paused = true)]
async fn abandoned_requests_hold_little_memory() {
    let origin = Late::with_delays(std::iter::repeat_n(secs(100), 64));
    let engine = Engine::builder().memory(16 << 20).build().unwrap();
    let silent = engine.mount("silent", origin.shared(), Consistency::Immutable);
    let silent = silent.unwrap();
    let other = Arc::new(MemoryStore::new());
    other.put(&Path::from(PATH), "body".into()).await.unwrap();
    let other = engine
        .mount("other", other, Consistency::Immutable)
        .unwrap();
    let mut reads = Vec::new();
    for number in 0..16 {
        let (bucket, path) = (silent.clone(), Path::from(format!("none/{number}")));
        reads.push(tokio::spawn(async move { bucket.get(&path).await.is_ok() }));
    }
    sleep(secs(10)).await;
    for read in &reads {
        read.abort();
    }
    sleep(secs(1)).await;
    let start = Instant::now();
    let body = read(&other, GetOptions::default()).await;
    assert_eq!(body.as_deref(), Some("body"));
    assert_eq!(
        start.elapsed(),
        Duration::ZERO,
        "the read waited for memory"
    );
    // Blocks of 1 MiB, an eighth of the memory.
    assert_eq!(origin.pending(), 2);
}

/// Clients request one key after the other from an origin that hangs, and leave.
#[tokio::test(start_paused = true)]
async fn few_requests_continue_without_readers() {
    const GOING_ON: u64 = 64;
    let origin = Late::with_delays(std::iter::repeat_n(secs(100), 1000));
    let bucket = bucket_over(&origin, Consistency::Revalidate(secs(600)));
    store(&origin, "body").await;
    let head = |path: Path| {
        let bucket = bucket.clone();
        tokio::spawn(async move { bucket.head(&path).await.map(|meta| meta.size) })
    };
    let paths = (0..500).map(|number| Path::from(format!("none/{number}")));
    let reads: Vec<_> = std::iter::once(Path::from(PATH))
        .chain(paths)
        .map(head)
        .collect();
    sleep(secs(10)).await;
    assert_eq!(origin.pending(), 501);
    for read in &reads {
        read.abort();
    }
    sleep(secs(10)).await;
    assert_eq!(origin.pending(), GOING_ON);
    // The first request: a client that returns shares it.
    assert_eq!(head(Path::from(PATH)).await.unwrap().unwrap(), 4);
    assert_eq!(origin.requests(), 501);
    // A cancelled request is sent again.
    let ended = head(Path::from("none/499")).await.unwrap();
    assert!(matches!(ended, Err(Error::NotFound { .. })));
    assert_eq!(origin.requests(), 502);
    sleep(secs(200)).await;
    assert_eq!(origin.pending(), 0);
}

#[tokio::test]
async fn written_bytes_are_not_kept_if_another_write_came_between() {
    let origin = Late::with_delays([]);
    let engine = Engine::builder().memory(16 << 20);
    let engine = engine.write_cache(WriteCache::OnWrite).build().unwrap();
    let bucket = engine.mount("late", origin.shared(), Consistency::Immutable);
    let (bucket, path) = (bucket.unwrap(), Path::from(PATH));
    origin.faults.fault("put", "", Fault::HoldResponse);
    let (first, ()) = tokio::join!(bucket.put(&path, "first".into()), async {
        origin.faults.wait_until_held().await;
        store(&origin, "other").await;
        origin.faults.release(1);
    });
    first.unwrap();
    let read = bucket.get(&path).await.unwrap().bytes().await.unwrap();
    assert_eq!(&read[..], b"other");
    bucket.put(&path, "third".into()).await.unwrap();
    let read = bucket.get(&path).await.unwrap().bytes().await.unwrap();
    assert_eq!(&read[..], b"third");
    assert_eq!(engine.stats().buckets["late"].origin_data_requests, 1);
}
