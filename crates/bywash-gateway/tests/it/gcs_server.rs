//! A GCS endpoint on a free loopback port, over an engine with one bucket of each origin.

use std::net::SocketAddr;

use bywash::Engine;
use bywash_gateway::{GcsConfig, serve_gcs};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::http::{self, HttpResponse};
use crate::server::Server;

pub struct GcsServer {
    pub address: SocketAddr,
    pub engine: Engine,
    pub root: TempDir,
    /// Folder of sessions.
    pub sessions: TempDir,
    task: JoinHandle<()>,
}

impl Drop for GcsServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl GcsServer {
    pub async fn start() -> Self {
        Self::start_with(GcsConfig::anonymous("")).await
    }

    pub async fn start_with(config: GcsConfig) -> Self {
        Self::start_in(256 << 20, config).await
    }

    /// With a memory ceiling in bytes.
    pub async fn start_in(memory: u64, config: GcsConfig) -> Self {
        let root = tempfile::tempdir().unwrap();
        let engine = Server::engine(memory, &root);
        Self::start_over(engine, root, config).await
    }

    /// Over an engine.
    pub async fn start_over(engine: Engine, root: TempDir, config: GcsConfig) -> Self {
        let sessions = tempfile::tempdir().unwrap();
        let (address, task) = Self::serve(&engine, &sessions, config).await;
        Self {
            address,
            engine,
            root,
            sessions,
            task,
        }
    }

    async fn serve(
        engine: &Engine,
        sessions: &TempDir,
        config: GcsConfig,
    ) -> (SocketAddr, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let config = GcsConfig {
            sessions: sessions.path().to_owned(),
            ..config
        };
        let serving = serve_gcs(engine.clone(), listener, config, std::future::pending());
        let task = tokio::spawn(async move {
            let _ = Box::pin(serving).await.unwrap();
        });
        (address, task)
    }

    /// Replaces the server by another one with a new engine over the same folders. Connections of the old one are cut.
    pub async fn restart(&mut self) {
        self.restart_with(GcsConfig::anonymous("")).await;
    }

    pub async fn restart_with(&mut self, config: GcsConfig) {
        self.task.abort();
        let _ = (&mut self.task).await;
        self.engine = Server::engine(256 << 20, &self.root);
        (self.address, self.task) = Self::serve(&self.engine, &self.sessions, config).await;
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

    pub async fn send_owned(&self, method: &str, target: String, body: &[u8]) -> HttpResponse {
        self.send(method, &target, &[], body).await
    }

    pub async fn get_owned(&self, target: String) -> HttpResponse {
        self.get(&target).await
    }

    pub async fn get(&self, target: &str) -> HttpResponse {
        self.send("GET", target, &[], b"").await
    }

    pub async fn delete(&self, target: &str) -> HttpResponse {
        self.send("DELETE", target, &[], b"").await
    }

    pub async fn post(&self, target: &str, headers: &[(&str, &str)], body: &[u8]) -> HttpResponse {
        self.send("POST", target, headers, body).await
    }

    pub async fn put_object(&self, bucket: &str, key: &str, body: &[u8]) {
        let key = key.replace('/', "%2F");
        let target = format!("/upload/storage/v1/b/{bucket}/o?uploadType=media&name={key}");
        self.post(&target, &[], body).await.expect(200);
    }

    /// The names of all files of sessions.
    pub fn session_files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.sessions.path()).unwrap();
        let name = |entry: std::io::Result<std::fs::DirEntry>| {
            entry.unwrap().file_name().into_string().unwrap()
        };
        entries.map(name).collect()
    }
}
