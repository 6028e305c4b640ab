//! Late responses of the origin: none undoes a write acknowledged meanwhile, replaces a newer response, or is used by
//! a read that began too long after its request was sent.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use bywash::origin::memory::MemoryStore;
use bywash::{
    Bucket, Consistency, DownloadOptions, Engine, Origin, PartBody, UploadedPart, WriteCache,
};
use object_store::path::Path;
use object_store::{
    Error, GetOptions, GetResult, ObjectStore as _, ObjectStoreExt, PutMode, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, Result,
};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, sleep, sleep_until};

/// A store that makes each response to a read at once and delivers it late. The first one waits for the gate, if that
/// is held; the others for their delay.
#[derive(Debug)]
struct Late {
    store: MemoryStore,
    answered: Notify,
    gate: Semaphore,
    /// Reads that wait for the gate.
    reads: Semaphore,
    /// Delays of the next reads; an empty list means none.
    delays: Mutex<VecDeque<Duration>>,
    requests: AtomicUsize,
    /// Responses being waited for.
    pending: AtomicUsize,
    /// What another client writes right after the next write.
    next_write: Mutex<Option<PutPayload>>,
}

/// Counts one response being waited for.
struct Pending<'a>(&'a AtomicUsize);

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Late {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            store: MemoryStore::new(),
            answered: Notify::new(),
            gate: Semaphore::new(0),
            reads: Semaphore::new(1),
            delays: Mutex::default(),
            requests: AtomicUsize::new(0),
            pending: AtomicUsize::new(0),
            next_write: Mutex::default(),
        })
    }

    /// Holds no read at the gate.
    fn with_delays(delays: impl IntoIterator<Item = Duration>) -> Arc<Self> {
        let late = Self::new();
        late.reads.forget_permits(1);
        late.delays.lock().extend(delays);
        late
    }

    fn requests(&self) -> usize {
        self.requests.load(Relaxed)
    }
}

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("late")
    }
}

bywash::forward_object_store! {
    impl[] ObjectStore for Late => store {
        async fn put_opts(
            &self,
            path: &Path,
            payload: PutPayload,
            options: PutOptions,
        ) -> Result<PutResult> {
            let result = self.store.put_opts(path, payload, options).await;
            let next = self.next_write.lock().take();
            if let Some(next) = next {
                self.store.put(path, next).await?;
            }
            result
        }

        async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
            self.requests.fetch_add(1, Relaxed);
            self.pending.fetch_add(1, Relaxed);
            let _pending = Pending(&self.pending);
            let answer = self.store.get_opts(path, options).await;
            let delay = self.delays.lock().pop_front();
            if let Some(delay) = delay {
                sleep(delay).await;
            }
            if let Ok(first) = self.reads.try_acquire() {
                first.forget();
                self.answered.notify_one();
                self.gate.acquire().await.unwrap().forget();
            }
            answer
        }
    }
}

#[async_trait]
impl Origin for Late {
    fn kind(&self) -> &'static str {
        "memory"
    }

    async fn create_upload(&self, path: &Path, options: PutMultipartOptions) -> Result<String> {
        self.store.create_upload(path, options).await
    }

    async fn put_part(
        &self,
        path: &Path,
        id: &str,
        number: u16,
        length: u64,
        body: PartBody,
    ) -> Result<String> {
        self.store.put_part(path, id, number, length, body).await
    }

    async fn complete_upload(
        &self,
        path: &Path,
        id: &str,
        parts: &[UploadedPart],
        mode: PutMode,
    ) -> Result<PutResult> {
        self.store.complete_upload(path, id, parts, mode).await
    }

    async fn abort_upload(&self, path: &Path, id: &str) -> Result<()> {
        self.store.abort_upload(path, id).await
    }
}

fn bucket_over(origin: &Arc<Late>, consistency: Consistency) -> Bucket {
    let engine = Engine::builder().memory(16 << 20).build().unwrap();
    let origin: Arc<dyn Origin> = Arc::<Late>::clone(origin);
    engine.mount("late", origin, consistency).unwrap()
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

    let early = tokio::spawn({
        let (bucket, path) = (bucket.clone(), path.clone());
        async move { bucket.get(&path).await.unwrap().bytes().await.unwrap() }
    });
    origin.answered.notified().await;
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
    origin.gate.add_permits(1);
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
            origin.delays.lock().push_back(secs(60));
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
            assert_eq!(origin.requests() - before, 2 + usize::from(known));
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
    assert_eq!(origin.pending.load(Relaxed), 9);
    for read in reads {
        assert_eq!(read.await.unwrap().unwrap(), "body");
    }
    assert_eq!(origin.pending.load(Relaxed), 0);
}

/// Clients read one object after the other from an origin that hangs, and leave: other readers must find memory at
/// once.
#[tokio::test(start_paused = true)]
async fn abandoned_requests_hold_little_memory() {
    let origin = Late::with_delays(std::iter::repeat_n(secs(100), 64));
    let engine = Engine::builder().memory(16 << 20).build().unwrap();
    let silent: Arc<dyn Origin> = Arc::<Late>::clone(&origin);
    let silent = engine.mount("silent", silent, Consistency::Immutable);
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
    assert_eq!(origin.pending.load(Relaxed), 2);
}

/// Clients request one key after the other from an origin that hangs, and leave.
#[tokio::test(start_paused = true)]
async fn few_requests_continue_without_readers() {
    const GOING_ON: usize = 64;
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
    assert_eq!(origin.pending.load(Relaxed), 501);
    for read in &reads {
        read.abort();
    }
    sleep(secs(10)).await;
    assert_eq!(origin.pending.load(Relaxed), GOING_ON);
    // The first request: a client that returns shares it.
    assert_eq!(head(Path::from(PATH)).await.unwrap().unwrap(), 4);
    assert_eq!(origin.requests(), 501);
    // A cancelled request is sent again.
    let ended = head(Path::from("none/499")).await.unwrap();
    assert!(matches!(ended, Err(Error::NotFound { .. })));
    assert_eq!(origin.requests(), 502);
    sleep(secs(200)).await;
    assert_eq!(origin.pending.load(Relaxed), 0);
}

#[tokio::test]
async fn written_bytes_are_not_kept_if_another_write_came_between() {
    let origin = Late::with_delays([]);
    let engine = Engine::builder().memory(16 << 20);
    let engine = engine.write_cache(WriteCache::OnWrite).build().unwrap();
    let shared: Arc<dyn Origin> = Arc::<Late>::clone(&origin);
    let bucket = engine.mount("late", shared, Consistency::Immutable);
    let (bucket, path) = (bucket.unwrap(), Path::from("a"));
    *origin.next_write.lock() = Some("other".into());
    bucket.put(&path, "first".into()).await.unwrap();
    let read = bucket.get(&path).await.unwrap().bytes().await.unwrap();
    assert_eq!(&read[..], b"other");
    bucket.put(&path, "third".into()).await.unwrap();
    let read = bucket.get(&path).await.unwrap().bytes().await.unwrap();
    assert_eq!(&read[..], b"third");
    assert_eq!(engine.stats().buckets["late"].origin_data_requests, 1);
}
