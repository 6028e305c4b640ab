//! A server in this process: an engine with a bucket in memory behind injected faults, and its local door.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bywash::origin::memory::MemoryStore;
use bywash::{Bucket, Consistency, Engine, EngineBuilder, LocalStats, OriginUrl, RetryPolicy};
use bywash_client::message::{
    FrameHead, HEAD_BYTES, Hello, Kind, MAGIC, Reply, Request, VERSION, put_frame,
};
use bywash_client::wire::Wire;
use bywash_client::{Client, View};
use bywash_gateway::{ETagStyle, SharedState};
use bywash_local::{AttachError, Attacher, Listener, LocalConfig, LocalDoor, LocalTimes};
use bywash_sim::WrappedMemory;
use bywash_support::faulty_store::FaultyStore;
use object_store::ObjectStoreExt;
use object_store::path::Path;
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// Time that a test waits for something to happen, however slow the machine is.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Door {
    pub(crate) engine: Engine,
    pub(crate) local: LocalDoor,
    pub(crate) store: FaultyStore,
    pub(crate) socket: PathBuf,
    stop: watch::Sender<bool>,
    runtime: Runtime,
    _folder: tempfile::TempDir,
}

/// Mounts `memory://` alone.
#[derive(Debug)]
struct MemoryBuckets(Engine);

impl Attacher for MemoryBuckets {
    fn attach(&self, address: &str, _: &[(String, String)]) -> Result<Bucket, AttachError> {
        let failed = |error: &dyn std::fmt::Display| AttachError(error.to_string());
        let url: OriginUrl = address.parse().map_err(|error| failed(&error))?;
        self.0.bucket("attached").map_or_else(
            || {
                let mounted = self.0.mount_url("attached", &url, Consistency::Immutable);
                mounted.map_err(|error| failed(&error))
            },
            Ok,
        )
    }

    fn sign(&self, _: &str, _: &Path, _: &str, _: Duration) -> Option<String> {
        None
    }
}

impl Door {
    pub(crate) fn new(memory: u64) -> Self {
        Self::with(|builder| builder.memory(memory))
    }

    pub(crate) fn with(settings: impl FnOnce(EngineBuilder) -> EngineBuilder) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let guard = runtime.enter();
        let retry = RetryPolicy {
            deadline: Duration::from_millis(200),
            ..RetryPolicy::default()
        };
        let builder = Engine::builder().shared_memory(true).retry(retry);
        let engine = settings(builder).build().unwrap();
        let memory = MemoryStore::new();
        let store = FaultyStore::over(Arc::new(memory.clone()));
        let origin = Arc::new(WrappedMemory::new(store.shared(), memory));
        engine
            .mount("data", origin, Consistency::default())
            .unwrap();
        let local = LocalDoor::new(
            engine.clone(),
            LocalConfig {
                program: "test".to_owned(),
                s3: "http://127.0.0.1:1".to_owned(),
                gcs: String::new(),
                etag: ETagStyle::Md5,
                access_log: None,
                shared: SharedState::default(),
                attacher: Arc::new(MemoryBuckets(engine.clone())),
                times: LocalTimes {
                    message: Duration::from_secs(2),
                    reply_stall: Duration::from_secs(1),
                },
            },
        );
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("local.sock");
        let (stop, mut stopped) = watch::channel(false);
        let listener = Listener::bind(&socket).unwrap();
        runtime.spawn(local.clone().serve(listener, async move {
            let _ = stopped.wait_for(|stop| *stop).await;
        }));
        drop(guard);
        Self {
            engine,
            local,
            store,
            socket,
            stop,
            runtime,
            _folder: folder,
        }
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect_to(&self.socket).unwrap()
    }

    pub(crate) fn bucket(&self) -> bywash_client::Bucket {
        self.client().bucket("data")
    }

    /// Writes an object through the engine.
    pub(crate) fn put(&self, key: &str, bytes: Vec<u8>) {
        let bucket = self.engine.bucket("data").unwrap();
        let put = async { bucket.put(&Path::from(key), bytes.into()).await };
        self.runtime.block_on(put).unwrap();
    }

    /// Writes an object of `len` bytes and reads it, so that it is in memory.
    pub(crate) fn warm(&self, key: &str, len: usize) -> Vec<u8> {
        let bytes = pattern(key, len);
        self.put(key, bytes.clone());
        let object = self.bucket().get(key).unwrap();
        assert!(object.bytes.into_vec() == bytes);
        // The end of the lease is a message that may still be on its way.
        self.wait_idle_of_leases();
        bytes
    }

    pub(crate) fn run<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    pub(crate) fn spawn(
        &self,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> tokio::task::JoinHandle<()> {
        self.runtime.spawn(work)
    }

    pub(crate) fn stats(&self) -> LocalStats {
        self.local.stats()
    }

    /// Waits until no client holds anything.
    pub(crate) fn wait_idle(&self) {
        wait_for(|| {
            let LocalStats {
                clients,
                leases,
                leased_bytes,
                ..
            } = self.stats();
            (clients, leases, leased_bytes) == (0, 0, 0)
        });
    }

    /// Stops the local door, as the end of a server does.
    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
        wait_for(|| !self.socket.exists());
    }
}

/// Waits until `condition` holds.
#[allow(clippy::disallowed_methods, reason = "polls the server of the test")]
pub(crate) fn wait_for(mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "it never happened");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Bytes that differ from key to key and from place to place.
pub(crate) fn pattern(key: &str, len: usize) -> Vec<u8> {
    let seed = key
        .bytes()
        .fold(7_u64, |sum, byte| sum.wrapping_mul(31) + u64::from(byte));
    bywash_support::pattern::pattern(seed, len).into()
}

/// Whether a view has these bytes.
pub(crate) fn has(view: &View, bytes: &[u8]) -> bool {
    let mut rest = bytes;
    view.segments().all(|segment| {
        let same = rest.starts_with(segment);
        rest = rest.get(segment.len()..).unwrap_or_default();
        same
    }) && rest.is_empty()
}

/// A connection without the client library.
pub(crate) struct RawClient(pub(crate) UnixStream);

impl RawClient {
    pub(crate) fn connect(door: &Door) -> Self {
        let stream = UnixStream::connect(&door.socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(stream)
    }

    /// Bytes of a request.
    pub(crate) fn request(number: u32, request: &Request) -> Vec<u8> {
        let mut bytes = Vec::new();
        put_frame(Kind::Request, number, request, &mut bytes);
        bytes
    }

    pub(crate) fn hello() -> Vec<u8> {
        Self::request(
            1,
            &Request::Hello(Hello {
                magic: MAGIC,
                version: VERSION,
                program: "raw".to_owned(),
            }),
        )
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    /// Receives one reply. `None` if the server closed the connection.
    pub(crate) fn receive(&mut self) -> Option<Reply> {
        let mut head = [0; HEAD_BYTES];
        self.0.read_exact(&mut head).ok()?;
        let head = FrameHead::decode(head).unwrap();
        let mut payload = vec![0; head.len as usize];
        self.0.read_exact(&mut payload).ok()?;
        assert_eq!(head.kind, Kind::Reply);
        Some(Reply::decode(&payload).unwrap())
    }
}
