use std::io::Write as _;
use std::sync::Arc;

use bywash::origin::memory::MemoryStore;
use bywash::{Consistency, Engine};
use bywash_series::{Aggregate, Selector, SeriesDb, SeriesOptions};
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutPayload};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use super::{
    Access, Console, HISTORY_EVERY, OpenUpload, OpenUploads, record_history, serve_console,
};

/// A console that runs, on a free loopback port. Dropping it ends the server.
struct Running {
    address: std::net::SocketAddr,
    series: SeriesDb,
    stop: oneshot::Sender<()>,
    server: tokio::task::JoinHandle<std::io::Result<()>>,
    _home: TempDir,
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
    let home = tempfile::tempdir().unwrap();
    let series = open_series(&engine, &home).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let upload = OpenUpload {
        target: "data/<big>".to_owned(),
        began: None,
        bytes: 3 << 20,
        length: Some(6 << 20),
        note: "a client".to_owned(),
    };
    let console = Console {
        engine,
        access,
        series: series.clone(),
        history: None,
        uploads: OpenUploads::new(move || vec![upload.clone()]),
    };
    let server = tokio::spawn(serve_console(console, listener, async move {
        let _ = stopped.await;
    }));
    Running {
        address,
        series,
        stop,
        server,
        _home: home,
    }
}

async fn start(engine: Engine) -> Running {
    start_with(engine, key()).await
}

fn engine() -> Engine {
    Engine::builder().memory(64 << 20).build().unwrap()
}

impl Running {
    async fn ask(&self, head: &str) -> (u16, String, String) {
        ask(self.address, head).await
    }

    /// `POST` with the key.
    async fn post(&self, target: &str, headers: &str, body: &[u8]) -> (u16, String, String) {
        let head = format!(
            "POST {target} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {KEY}\r\nContent-Length: {}\r\n{headers}",
            body.len()
        );
        send(self.address, head.trim_end(), body).await
    }

    /// `GET` with the key.
    async fn get(&self, target: &str) -> (u16, String, String) {
        self.ask(&format!(
            "GET {target} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {KEY}"
        ))
        .await
    }
}

/// Status, head and body of one request; `head` is everything before the blank line.
async fn ask(address: std::net::SocketAddr, head: &str) -> (u16, String, String) {
    send(address, head, b"").await
}

async fn send(address: std::net::SocketAddr, head: &str, body: &[u8]) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!("{head}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    // A body that is too large may be refused before its end.
    let _ = stream.write_all(body).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_owned(), body.to_owned())
}

/// A header of an answer.
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
async fn answers_health_stats_and_metrics_alike() {
    let engine = engine_with_traffic().await;
    let console = start(engine.clone()).await;
    let address = console.address;

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

    console.stop.send(()).unwrap();
    console.server.await.unwrap().unwrap();
}

#[tokio::test]
async fn refuses_foreign_hosts_whatever_the_page() {
    let console = start(engine()).await;
    let address = console.address;
    for request in [
        "GET /stats HTTP/1.1\r\nHost: evil.example",
        "GET /healthz HTTP/1.1\r\nHost: evil.example:8422",
        "GET http://evil.example/metrics HTTP/1.1\r\nHost: localhost",
        "GET /nothing HTTP/1.1\r\nHost: evil.example",
        "GET / HTTP/1.1\r\nHost: evil.example",
        "POST /write HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 0",
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
    let engine = engine();
    let home = tempfile::tempdir().unwrap();
    let console = Console {
        series: open_series(&engine, &home).await,
        engine,
        access: key(),
        history: None,
        uploads: OpenUploads::default(),
    };
    let error = serve_console(console, listener, std::future::pending())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    assert!(error.to_string().contains("not loopback"), "{error}");
}

mod cache;

#[tokio::test]
async fn the_page_and_the_series_are_for_who_has_the_key() {
    let console = start(engine_with_traffic().await).await;
    for target in ["/", "/series/list", "/cache"] {
        let (status, head, body) = console
            .ask(&format!("GET {target} HTTP/1.1\r\nHost: localhost"))
            .await;
        assert_eq!(
            (status, header(&head, "www-authenticate")),
            (401, Some("Basic realm=\"bywash\", charset=\"UTF-8\""))
        );
        assert!(body.contains("bywash env"), "{body}");
        let (status, head, _) = console
            .ask(&format!(
                "GET {target}?a=b HTTP/1.1\r\nHost: localhost\r\nAccept: text/html,*/*"
            ))
            .await;
        assert_eq!(status, 303);
        assert!(
            header(&head, "location")
                .unwrap()
                .starts_with("/login?next=%2F"),
            "{head}"
        );
        assert_eq!(console.get(target).await.0, 200, "{target}");
    }
    let write = "POST /write HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5";
    let (status, ..) = send(console.address, write, b"m a=1").await;
    assert_eq!(status, 401);
    assert_eq!(
        console.series.sources(i64::MIN..=i64::MAX).await.unwrap(),
        [""; 0]
    );

    let (status, _, page) = console.get("/").await;
    assert_eq!(status, 200);
    for part in [
        "data/&lt;big&gt;",
        "<progress max=\"6291456\" value=\"3145728\"",
        "Hit ratio",
        ">data<",
    ] {
        assert!(page.contains(part), "{part} is not in {page}");
    }
}

#[tokio::test]
async fn a_login_gives_a_cookie_that_scripts_and_other_sites_do_not_get() {
    let console = start(engine()).await;
    let login = |pair: &str| {
        let body = format!("{pair}&next=%2F%3Frange%3D6h");
        let head = format!(
            "POST /login HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: {}",
            body.len()
        );
        (head, body)
    };
    let (head, body) = login("access_key=key&secret_key=wrong");
    let (status, head, body) = send(console.address, &head, body.as_bytes()).await;
    assert_eq!((status, header(&head, "set-cookie")), (403, None));
    assert!(body.contains("not the key"), "{body}");

    let (head, body) = login("access_key=key&secret_key=secret");
    let (status, head, _) = send(console.address, &head, body.as_bytes()).await;
    assert_eq!(
        (status, header(&head, "location")),
        (303, Some("/?range=6h"))
    );
    let (cookie, rest) = header(&head, "set-cookie")
        .unwrap()
        .split_once(';')
        .unwrap();
    assert_eq!(rest, " Path=/; HttpOnly; SameSite=Strict");
    let with_cookie = format!("GET / HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}");
    assert_eq!(console.ask(&with_cookie).await.0, 200);
    let (status, head, _) = console
        .ask("POST /logout HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0")
        .await;
    assert_eq!(status, 303);
    assert!(
        header(&head, "set-cookie").unwrap().ends_with("Max-Age=0"),
        "{head}"
    );
}

#[tokio::test]
async fn an_anonymous_console_is_open_but_not_to_other_sites() {
    let console = start_with(engine(), Access::Anonymous).await;
    assert_eq!(
        console.ask("GET / HTTP/1.1\r\nHost: localhost").await.0,
        200
    );
    let write = "POST /write HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5";
    for (origin, expected) in [
        ("", 204),
        ("\r\nOrigin: http://localhost", 204),
        ("\r\nOrigin: http://evil.example", 403),
        ("\r\nOrigin: null", 403),
    ] {
        let (status, ..) = send(console.address, &format!("{write}{origin}"), b"m a=1").await;
        assert_eq!(status, expected, "{origin}");
    }
}

#[tokio::test]
async fn every_answer_tells_the_browser_what_it_may_load() {
    let console = start(engine()).await;
    for target in [
        "/",
        "/login",
        "/stats",
        "/nothing",
        "/assets/console.js",
        "/assets/nothing",
    ] {
        let (_, head, _) = console.get(target).await;
        let policy = header(&head, "content-security-policy").unwrap();
        for rule in [
            "default-src 'none'",
            "script-src 'self'",
            "frame-ancestors 'none'",
            "base-uri 'none'",
        ] {
            assert!(
                policy.contains(rule) && !policy.contains("unsafe"),
                "{policy}"
            );
        }
        assert_eq!(header(&head, "x-content-type-options"), Some("nosniff"));
    }
    let (_, _, page) = console.get("/").await;
    assert!(
        !page.contains("style=")
            && !page.contains("onclick")
            && !page.contains("href=\"http")
            && !page.contains("src=\"http"),
        "{page}"
    );
}

#[tokio::test]
async fn lines_become_series_and_refused_ones_are_named() {
    let console = start(engine()).await;
    let (status, ..) = console
        .post(
            "/write?precision=s&db=any",
            "",
            b"weather,place=garden temperature=21.5 1700000000",
        )
        .await;
    assert_eq!(status, 204);
    let (status, _, answer) = console
        .post(
            "/api/v2/write?org=o&bucket=b",
            "",
            b"m a=1\nm a=\n\nm,k=v b=2,s=\"x\"",
        )
        .await;
    assert_eq!(status, 400);
    let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(
        (&answer["kept_lines"], &answer["refused_lines"]),
        (&2.into(), &1.into())
    );
    assert_eq!(answer["refused"][0]["line"], 2);
    assert!(
        answer["error"]
            .as_str()
            .unwrap()
            .starts_with("partial write: 1 of 3 lines are refused: line 2: "),
        "{answer}"
    );

    let (status, _, list) = console.get("/series/list").await;
    assert_eq!(status, 200);
    let expected = serde_json::json!([
        {"source": "m", "metric": "a"}, {"source": "m,k=v", "metric": "b"},
        {"source": "weather,place=garden", "metric": "temperature"},
    ]);
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&list).unwrap(),
        expected
    );
    let (_, _, list) = console
        .get("/series/list?start=2023-11-14T00:00:00Z&end=2023-11-15T00:00:00Z&format=csv")
        .await;
    assert_eq!(
        list,
        "source,metric\n\"weather,place=garden\",temperature\n"
    );
    assert_eq!(console.get("/series/list?start=tomorrow").await.0, 400);

    let (_, _, metrics) = console.get("/metrics").await;
    for line in [
        "bywash_series_lines_total 4",
        "bywash_series_values_total 3",
        "bywash_series_strings_total 1",
        "bywash_series_refused_lines_total 1",
    ] {
        assert!(
            metrics.lines().any(|found| found == line),
            "{line} is not in {metrics}"
        );
    }
}

#[tokio::test]
async fn bodies_are_plain_or_gzip_and_limited_either_way() {
    let console = start(engine()).await;
    let pack = |bytes: &[u8]| {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all(bytes).unwrap();
        packer.finish().unwrap()
    };
    let gzip = "Content-Encoding: gzip\r\n";
    assert_eq!(
        console.post("/write", gzip, &pack(b"packed a=1")).await.0,
        204
    );
    assert_eq!(
        console.series.sources(i64::MIN..=i64::MAX).await.unwrap(),
        ["packed"]
    );
    assert_eq!(console.post("/write", gzip, b"packed a=1").await.0, 400);
    assert_eq!(
        console
            .post("/write", "Content-Encoding: br\r\n", b"x")
            .await
            .0,
        415
    );
    assert_eq!(
        console.post("/write?precision=d", "", b"m a=1").await.0,
        400
    );
    let huge = vec![b'#'; (16 << 20) + 1];
    assert_eq!(console.post("/write", "", &huge).await.0, 413);
    assert_eq!(console.post("/write", gzip, &pack(&huge)).await.0, 413);
    let (_, _, metrics) = console.get("/metrics").await;
    assert!(
        metrics.contains("bywash_series_refused_requests_total 5\n"),
        "{metrics}"
    );
}

#[tokio::test]
async fn points_are_queried_as_rows_and_by_steps() {
    let console = start(engine()).await;
    let lines = b"m,k=a v=1 0\nm,k=a v=3 1000000000\nm,k=b v=-0.5 60000000000";
    assert_eq!(console.post("/write", "", lines).await.0, 204);
    let rows = |answer: &str| -> Vec<(String, i64, f64)> {
        let rows: Vec<serde_json::Value> = serde_json::from_str(answer).unwrap();
        let row = |row: &serde_json::Value| {
            let source = row["source"].as_str().unwrap().to_owned();
            (
                source,
                row["timestamp"].as_i64().unwrap(),
                row["value"].as_f64().unwrap(),
            )
        };
        rows.iter().map(row).collect()
    };
    let a = |at: i64, value: f64| ("m,k=a".to_owned(), at, value);
    let (_, _, answer) = console.get("/series/query?source=m,k%3Da&metric=v").await;
    assert_eq!(rows(&answer), [a(0, 1.0), a(1_000_000_000, 3.0)]);
    let (_, _, answer) = console
        .get("/series/query?source=m,*&start=0&end=60000000000&step=1m&agg=max")
        .await;
    assert_eq!(
        rows(&answer),
        [a(0, 3.0), ("m,k=b".to_owned(), 60_000_000_000, -0.5)]
    );
    let (_, _, answer) = console
        .get("/series/query?source=m,k%3Db&metric=v&format=csv")
        .await;
    assert_eq!(
        answer,
        "source,metric,timestamp,value\n\"m,k=b\",v,60000000000,-0.5\n"
    );
    for wrong in ["step=0", "step=x", "agg=median", "start=2&end=1"] {
        let (status, _, told) = console.get(&format!("/series/query?{wrong}")).await;
        assert_eq!(status, 400, "{wrong}: {told}");
    }
}

#[tokio::test]
async fn a_series_is_drawn_by_its_name_whatever_slashes_it_has() {
    let console = start(engine()).await;
    assert_eq!(
        console
            .post("/write", "", b"disk,path=/var/log free/used=7")
            .await
            .0,
        204
    );
    let (_, _, page) = console.get("/?series=disk,path%3D/var/log/free/used").await;
    assert!(
        page.contains("<polyline") || page.contains("<circle"),
        "{page}"
    );
    assert!(page.contains("free/used: 7"), "{page}");
    let (_, _, page) = console.get("/?series=nothing/here&range=7d").await;
    assert!(
        page.contains("No series of this name") && !page.contains("<circle"),
        "{page}"
    );
    let (_, _, page) = console.get("/").await;
    assert!(
        page.contains("series=disk%2Cpath%3D%2Fvar%2Flog%2Ffree%2Fused"),
        "{page}"
    );
}

#[tokio::test(start_paused = true)]
async fn history_adds_up_to_the_counters() {
    let home = tempfile::tempdir().unwrap();
    let engine = engine_with_traffic().await;
    let db = open_series(&engine, &home).await;
    let (stop, stopped) = oneshot::channel::<()>();
    let recording = tokio::spawn(record_history(
        engine.clone(),
        db.clone(),
        HISTORY_EVERY,
        async {
            let _ = stopped.await;
        },
    ));
    let bucket = engine.bucket("data").unwrap();
    let before = engine.stats().buckets["data"];
    for _ in 0..3 {
        // Past the next point; the clock is the test's.
        tokio::time::sleep(HISTORY_EVERY).await;
        bucket
            .get(&Path::from("a"))
            .await
            .unwrap()
            .bytes()
            .await
            .unwrap();
    }
    stop.send(()).unwrap();
    recording.await.unwrap();
    let after = engine.stats().buckets["data"];
    let total = async |source: &str, metric: &str| {
        let found = db
            .query(
                &Selector::series(source, metric),
                i64::MIN..=i64::MAX,
                None,
                Aggregate::Sum,
            )
            .await
            .unwrap();
        found
            .iter()
            .flat_map(|series| &series.points)
            .map(|point| point.value)
            .sum::<f64>()
    };
    for source in ["bywash", "bywash,bucket=data"] {
        assert_eq!(
            total(source, "bytes").await,
            (after.bytes - before.bytes) as f64,
            "{source}"
        );
        assert_eq!(
            total(source, "hits").await,
            (after.hits - before.hits) as f64,
            "{source}"
        );
    }
    assert!(total("bywash", "memory_limit").await > 0.0);
}
