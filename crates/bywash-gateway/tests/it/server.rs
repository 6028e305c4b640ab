//! An endpoint on a free loopback port, over an engine with one bucket of each origin.

use std::net::SocketAddr;
use std::path::Path as FsPath;
use std::sync::Arc;

use bywash::origin::memory::MemoryStore;
use bywash::{Consistency, Engine};
use bywash_gateway::{Credential, Drained, S3Config, serve_s3};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::http::{self, HttpResponse};

pub use bywash_support::sign::{KEY, SECRET};
/// A bucket over `memory://`, and one over a folder.
pub const BUCKETS: [&str; 2] = ["memory", "folder"];

pub struct Server {
    pub address: SocketAddr,
    pub engine: Engine,
    pub root: TempDir,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Drained>,
}

pub fn signed() -> S3Config {
    S3Config::signed(Credential::new(KEY, SECRET))
}

impl Server {
    pub async fn start(config: S3Config) -> Self {
        Self::start_in(256 << 20, config).await
    }

    /// With a memory ceiling in bytes.
    pub async fn start_in(memory: u64, config: S3Config) -> Self {
        Self::start_over(tempfile::tempdir().unwrap(), memory, config).await
    }

    /// Starts over the folder of another server.
    async fn start_over(root: TempDir, memory: u64, config: S3Config) -> Self {
        Self::start_with(Self::engine(memory, &root), root, config).await
    }

    /// An engine with the buckets; the folder is in `root`.
    pub fn engine(memory: u64, root: &TempDir) -> Engine {
        let engine = Engine::builder()
            .memory(memory)
            .root(root.path())
            .build()
            .unwrap();
        engine
            .mount(
                "memory",
                Arc::new(MemoryStore::new()),
                Consistency::default(),
            )
            .unwrap();
        if engine.bucket("folder").is_none() {
            engine.create_bucket("folder").unwrap();
        }
        engine
    }

    pub async fn start_with(engine: Engine, root: TempDir, config: S3Config) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = serve_s3(engine.clone(), listener, config, async {
            let _ = stopped.await;
        });
        let task = tokio::spawn(async move { Box::pin(serving).await.unwrap() });
        Self {
            address,
            engine,
            root,
            stop: Some(stop),
            task,
        }
    }

    /// Starts an anonymous endpoint over the engine of another one.
    pub async fn start_beside(engine: &Engine) -> Self {
        let root = tempfile::tempdir().unwrap();
        Self::start_with(engine.clone(), root, S3Config::anonymous()).await
    }

    pub async fn anonymous() -> Self {
        Self::start(S3Config::anonymous()).await
    }

    pub async fn signed() -> Self {
        Self::start(signed()).await
    }

    pub async fn send(
        &self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> HttpResponse {
        http::send(self.address, method, target, headers, body).await
    }

    pub async fn get(&self, target: &str, headers: &[(&str, &str)]) -> HttpResponse {
        self.send("GET", target, headers, b"").await
    }

    pub async fn put(&self, target: &str, headers: &[(&str, &str)], body: &[u8]) -> HttpResponse {
        self.send("PUT", target, headers, body).await
    }

    /// All files of the folder bucket: a failed write must leave none.
    pub fn files(&self) -> Vec<String> {
        fn walk(folder: &FsPath, found: &mut Vec<String>) {
            // Files may be removed during the listing.
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                let path = entry.path();
                if path.is_dir() {
                    walk(&path, found)
                } else {
                    found.push(path.display().to_string())
                }
            }
        }
        let mut found = Vec::new();
        walk(&self.root.path().join("folder"), &mut found);
        found.sort();
        found
    }

    /// Waits until the folder holds exactly `files`: leftovers of cancelled or rejected requests are removed in the
    /// background.
    pub async fn settled(&self, files: &[String]) {
        // A minute, which counts as forever.
        for _ in 0..6000 {
            if self.files() == files {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        assert_eq!(self.files(), files);
    }

    /// Starts another server over the same folder after this one has ended.
    pub async fn restarted(self, config: S3Config) -> Self {
        let Self {
            stop, task, root, ..
        } = self;
        drop(stop);
        task.await.unwrap();
        Self::start_over(root, 256 << 20, config).await
    }

    /// Ends it at once, with all connections.
    pub fn kill(self) {
        self.task.abort();
    }

    pub fn begin_stop(&mut self) {
        drop(self.stop.take());
    }

    pub async fn stopped(self) -> Drained {
        let Self {
            stop,
            task,
            root: _root,
            ..
        } = self;
        drop(stop);
        task.await.unwrap()
    }
}
