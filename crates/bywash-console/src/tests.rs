use std::sync::Arc;

use bywash::origin::memory::MemoryStore;
use bywash::{Consistency, Engine};
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutPayload};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use super::serve_console;

/// A console on a free loopback port; dropping `stop` ends it.
async fn start(
    engine: Engine,
) -> (
    std::net::SocketAddr,
    oneshot::Sender<()>,
    tokio::task::JoinHandle<std::io::Result<()>>,
) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let server = tokio::spawn(serve_console(engine, listener, async move {
        let _ = stopped.await;
    }));
    (address, stop, server)
}

/// Status, head and body of one request; `head` is everything before the blank line.
async fn ask(address: std::net::SocketAddr, head: &str) -> (u16, String, String) {
    exchange(address, &format!("{head}\r\nConnection: close\r\n\r\n")).await
}

/// The same of a request that is complete.
async fn exchange(address: std::net::SocketAddr, request: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_ascii_lowercase(), body.to_owned())
}

async fn engine_with_traffic() -> Engine {
    let engine = Engine::builder().memory(64 << 20).build().unwrap();
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
async fn answers_health_stats_and_metrics_alike() {
    let engine = engine_with_traffic().await;
    let (address, stop, server) = start(engine.clone()).await;

    let (status, _, body) = ask(address, "GET /healthz HTTP/1.1\r\nHost: localhost").await;
    assert_eq!((status, body.as_str()), (200, "ok\n"));

    let (status, head, body) = ask(address, "GET /stats HTTP/1.1\r\nHost: 127.0.0.1:8422").await;
    assert_eq!(status, 200);
    assert!(head.contains("content-type: application/json"), "{head}");
    let stats: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(stats, serde_json::to_value(engine.stats()).unwrap());
    assert!(stats["buckets"]["data"]["requests"].as_u64().unwrap() >= 2);

    let (status, head, text) = ask(address, "GET /metrics HTTP/1.1\r\nHost: [::1]:8422").await;
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

    stop.send(()).unwrap();
    server.await.unwrap().unwrap();
}

#[tokio::test]
async fn refuses_foreign_hosts_whatever_the_page() {
    let (address, _stop, _server) =
        start(Engine::builder().memory(64 << 20).build().unwrap()).await;
    for request in [
        "GET /stats HTTP/1.1\r\nHost: evil.example",
        "GET /healthz HTTP/1.1\r\nHost: evil.example:8422",
        "GET http://evil.example/metrics HTTP/1.1\r\nHost: localhost",
        "GET /nothing HTTP/1.1\r\nHost: evil.example",
    ] {
        let (status, _, body) = ask(address, request).await;
        assert_eq!(status, 403, "{request}: {body}");
        assert!(!body.contains("budget"), "{body}");
    }
    let (status, _, _) = ask(address, "GET /healthz HTTP/1.0").await;
    assert_eq!(
        status, 200,
        "a request that names no host is not a browser's"
    );
    let (status, _, _) = ask(address, "GET /nothing HTTP/1.1\r\nHost: localhost").await;
    assert_eq!(status, 404);
    let (status, _, _) = ask(
        address,
        "POST /stats HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0",
    )
    .await;
    assert_eq!(status, 405);
}

#[tokio::test]
async fn refuses_an_address_others_can_reach() {
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let engine = Engine::builder().memory(64 << 20).build().unwrap();
    let error = serve_console(engine, listener, std::future::pending())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    assert!(error.to_string().contains("not loopback"), "{error}");
}

fn post(path: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost:1\r\nContent-Length: {length}{headers}\r\nConnection: close\r\n\r\n{body}"
    )
}

#[tokio::test]
async fn tells_what_is_in_memory_and_why_and_changes_it() {
    let engine = engine_with_traffic().await;
    let (address, _stop, _server) = start(engine).await;
    let get = async |path: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost");
        let (status, head, body) = ask(address, &request).await;
        assert!(head.contains("content-type: application/json"), "{head}");
        (
            status,
            serde_json::from_str::<serde_json::Value>(&body).unwrap(),
        )
    };
    let (status, cached) = get("/cache").await;
    assert_eq!((status, &cached["data"][0]["key"]), (200, &"a".into()));
    let (_, cached) = get("/cache?bucket=data&prefix=b").await;
    assert_eq!(cached["data"], serde_json::json!([]));
    let (status, why) = get("/cache/why?bucket=data&key=a").await;
    assert_eq!((status, &why["outcome"]), (200, &"hit".into()));
    for missing in ["/cache?bucket=no", "/cache/why?bucket=no&key=a"] {
        let (status, said) = get(missing).await;
        assert_eq!(
            (status, &said["error"]),
            (404, &"there is no bucket no".into())
        );
    }

    let json = "\r\nContent-Type: application/json";
    let all = r#"{"bucket":"data"}"#;
    let (status, _, body) = exchange(address, &post("/cache/drop", json, all)).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(
        get("/cache/why?bucket=data&key=a").await.1["outcome"],
        "miss"
    );
    let (status, _, body) = exchange(address, &post("/cache/warm", json, all)).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(
        get("/cache/why?bucket=data&key=a").await.1["outcome"],
        "hit"
    );
}

#[tokio::test]
async fn takes_no_changes_from_pages_of_other_sites() {
    let engine = engine_with_traffic().await;
    let (address, _stop, _server) = start(engine.clone()).await;
    let all = r#"{"bucket":"data"}"#;
    let json = "\r\nContent-Type: application/json";
    for (headers, refused) in [
        (format!("{json}\r\nOrigin: http://evil.example"), 403),
        (format!("{json}\r\nOrigin: http://localhost:2"), 403),
        (format!("{json}\r\nOrigin: null"), 403),
        // What a page can send without asking first.
        ("\r\nContent-Type: text/plain".to_owned(), 415),
        (String::new(), 415),
    ] {
        let (status, _, _) = exchange(address, &post("/cache/drop", &headers, all)).await;
        assert_eq!(status, refused, "{headers}");
    }
    let get = "GET /cache/drop HTTP/1.1\r\nHost: localhost";
    assert_eq!(ask(address, get).await.0, 405);
    let path = Path::from("a");
    assert_eq!(engine.bucket("data").unwrap().why(&path).outcome, "hit");
    let own = format!("{json}\r\nOrigin: http://localhost:1");
    assert_eq!(
        exchange(address, &post("/cache/drop", &own, all)).await.0,
        200
    );
    assert_eq!(engine.bucket("data").unwrap().why(&path).outcome, "miss");
}
