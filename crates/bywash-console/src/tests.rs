//! Tests of a running console, by requests as its users send them.

use std::sync::Arc;

use bywash::origin::memory::MemoryStore;
use bywash::{Consistency, Engine};
use bywash_gateway::{Drained, Limits, serve_http};
use bywash_series::{SeriesDb, SeriesOptions};
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutPayload};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use super::{
    Access, ClientUpload, Console, History, ListedUploads, MAX_ADMIN_CONNECTIONS,
    MAX_METRICS_CONNECTIONS, MetricsReader, OpenUpload, OpenUploads, admin_and_metrics,
};

mod access;
mod actions;
mod cache;
mod connections;
mod history;
mod page;
mod report;
mod series;

/// A running console on a free loopback port. Dropping it stops the server.
struct Running {
    address: std::net::SocketAddr,
    series: SeriesDb,
    stop: oneshot::Sender<()>,
    server: tokio::task::JoinHandle<Drained>,
    home: TempDir,
}

const KEY: &str = "Basic a2V5OnNlY3JldA==";

fn key() -> Access {
    Access::Key {
        access_key: "key".to_owned(),
        secret_key: "secret".to_owned(),
    }
}

async fn open_series(engine: &Engine, home: &TempDir) -> SeriesDb {
    let store = Arc::new(MemoryStore::new());
    SeriesDb::open(
        store,
        home.path().join("wal"),
        engine.budget().clone(),
        SeriesOptions::default(),
    )
    .await
    .unwrap()
}

async fn start_with(engine: Engine, access: Access) -> Running {
    start_all(engine, access, None).await
}

async fn start_all(engine: Engine, access: Access, history: Option<History>) -> Running {
    start_limited(engine, access, history, Limits::default()).await
}

/// Starts a console with other limits of connections than the default.
async fn start_limited(
    engine: Engine,
    access: Access,
    history: Option<History>,
    limits: Limits,
) -> Running {
    let home = tempfile::tempdir().unwrap();
    let series = open_series(&engine, &home).await;
    start_over(engine, access, history, limits, (series, home)).await
}

/// Starts a console over this database, whose folder it keeps.
async fn start_over(
    engine: Engine,
    access: Access,
    history: Option<History>,
    limits: Limits,
    (series, home): (SeriesDb, TempDir),
) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let upload = OpenUpload {
        target: "data/<big>".to_owned(),
        began: None,
        bytes: Some(3 << 20),
        session: Some("session-1".to_owned()),
        length: Some(6 << 20),
        note: "a client".to_owned(),
        client: Some(ClientUpload {
            bucket: "data".to_owned(),
            key: "<big>".to_owned(),
            upload: "id-1".to_owned(),
        }),
    };
    let console = Console {
        engine: engine.clone(),
        access,
        series: Some(series.clone()),
        history,
        uploads: OpenUploads::new(
            move |_| ListedUploads {
                newest: vec![upload.clone()],
                total: 3,
                stuck: 0,
                partial: true,
            },
            |upload| {
                let aborted = match upload.upload.as_str() {
                    "id-1" => Ok(()),
                    other => Err(format!("There is no upload {other}.")),
                };
                Box::pin(std::future::ready(aborted))
            },
        ),
        fetch_folder: Some(home.path().join("fetched")),
    };
    std::fs::create_dir(home.path().join("fetched")).unwrap();
    let (service, _) = admin_and_metrics(console, address, Vec::new()).unwrap();
    let limits = Limits {
        connections: MAX_ADMIN_CONNECTIONS,
        ..limits
    };
    let server = tokio::spawn(serve_http(
        engine,
        listener,
        limits,
        None,
        service,
        async move {
            let _ = stopped.await;
        },
    ));
    Running {
        address,
        series,
        stop,
        server,
        home,
    }
}

async fn start(engine: Engine) -> Running {
    start_with(engine, key()).await
}

/// Serves the metrics alone to `readers`, on a free loopback port.
async fn serve_metrics(
    engine: Engine,
    readers: Vec<MetricsReader>,
) -> (std::net::SocketAddr, tokio::task::JoinHandle<Drained>) {
    let home = tempfile::tempdir().unwrap();
    let console = Console {
        series: Some(open_series(&engine, &home).await),
        engine: engine.clone(),
        access: key(),
        history: None,
        uploads: OpenUploads::default(),
        fetch_folder: None,
    };
    let loopback = "127.0.0.1:8422".parse().unwrap();
    let (_, metrics) = admin_and_metrics(console, loopback, readers).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let limits = Limits {
        connections: MAX_METRICS_CONNECTIONS,
        ..Limits::default()
    };
    let forever = std::future::pending();
    let served = async move {
        let _home = home;
        serve_http(engine, listener, limits, None, metrics, forever).await
    };
    (address, tokio::spawn(served))
}

fn metrics_reader(access_key: &str, buckets: Option<Vec<String>>) -> MetricsReader {
    MetricsReader {
        access_key: access_key.to_owned(),
        secret_key: "secret".to_owned(),
        buckets,
    }
}

fn engine() -> Engine {
    Engine::builder().memory(64 << 20).build().unwrap()
}

impl Running {
    async fn request(&self, head: &str) -> (u16, String, String) {
        request(self.address, head).await
    }

    /// Sends a `POST` with the key.
    async fn post(&self, target: &str, headers: &str, body: &[u8]) -> (u16, String, String) {
        let head = format!(
            "POST {target} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {KEY}\r\nContent-Length: {}\r\n{headers}",
            body.len()
        );
        send(self.address, head.trim_end(), body).await
    }

    /// Sends a `GET` with the key.
    async fn get(&self, target: &str) -> (u16, String, String) {
        self.request(&format!(
            "GET {target} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {KEY}"
        ))
        .await
    }
}

/// Sends one request. Returns status, head and body; the head is everything before the blank line.
async fn request(address: std::net::SocketAddr, head: &str) -> (u16, String, String) {
    send(address, head, b"").await
}

async fn send(address: std::net::SocketAddr, head: &str, body: &[u8]) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!("{head}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    // A body that is too large may be refused before its end.
    let _ = stream.write_all(body).await;
    let mut response = Vec::new();
    let _ = stream.read_to_end(&mut response).await;
    let response = String::from_utf8(response).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_owned(), body.to_owned())
}

/// A header of a response head.
fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = head.lines().filter_map(|line| line.split_once(": "));
    lines
        .find(|(found, _)| found.eq_ignore_ascii_case(name))
        .map(|(_, value)| value)
}

async fn engine_with_traffic() -> Engine {
    let engine = engine();
    let bucket = engine
        .mount("data", Arc::new(MemoryStore::new()), Consistency::default())
        .unwrap();
    let path = Path::from("a");
    bucket
        .put(&path, PutPayload::from_static(b"hello"))
        .await
        .unwrap();
    bucket.get(&path).await.unwrap().bytes().await.unwrap();
    engine
}

#[tokio::test]
async fn responses_of_health_stats_and_metrics_agree() {
    let engine = engine_with_traffic().await;
    let console = start(engine.clone()).await;
    let address = console.address;

    let (status, _, body) = request(address, "GET /healthz HTTP/1.1\r\nHost: localhost").await;
    assert_eq!((status, body.as_str()), (200, "ok\n"));

    let (status, head, body) =
        request(address, "GET /stats HTTP/1.1\r\nHost: 127.0.0.1:8422").await;
    assert_eq!(status, 200);
    assert!(head.contains("content-type: application/json"), "{head}");
    let stats: serde_json::Value = serde_json::from_str(&body).unwrap();
    let mut expected = serde_json::to_value(engine.stats()).unwrap();
    expected["endpoint"] = serde_json::to_value(engine.traffic().stats()).unwrap();
    expected["history"] = serde_json::json!({"points": 0, "dropped_points": 0});
    expected["origins"] = serde_json::json!({});
    assert_eq!(stats["series"]["values"]["failed_flushes"], 0);
    expected["series"] = stats["series"].clone();
    assert_eq!(stats, expected);
    assert!(stats["buckets"]["data"]["requests"].as_u64().unwrap() >= 2);

    let (status, head, text) = request(address, "GET /metrics HTTP/1.1\r\nHost: [::1]:8422").await;
    assert_eq!(status, 200);
    assert!(
        head.contains("content-type: text/plain; version=0.0.4"),
        "{head}"
    );
    for (field, value) in stats["buckets"]["data"].as_object().unwrap() {
        let line = format!("bywash_{field}_total{{bucket=\"data\"}} {value}");
        assert!(
            text.lines().any(|found| found == line),
            "{line} is not in\n{text}"
        );
    }

    console.stop.send(()).unwrap();
    assert_eq!(console.server.await.unwrap().cut, 0);
}
