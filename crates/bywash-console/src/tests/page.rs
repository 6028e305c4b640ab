//! Content of the page.

use std::time::Duration;

use bywash::traffic::{RequestKind, RequestSummary};
use bywash::{CacheOutcome, RetryPolicy};

use super::*;

async fn read(engine: &Engine, key: &str) {
    let bucket = engine.bucket("data").unwrap();
    let got = bucket.get(&Path::from(key)).await.unwrap();
    got.bytes().await.unwrap();
}

#[tokio::test]
async fn tiles_show_the_last_minute_and_not_the_time_before() {
    let engine = engine_with_traffic().await;
    for _ in 0..7 {
        read(&engine, "a").await;
    }
    // The traffic before is not in this minute, whose first snapshot is taken now.
    let console = start(engine.clone()).await;
    let (_, _, page) = console.get("/").await;
    assert!(page.contains("The last minute"), "{page}");
    assert!(page.contains("0 of 0 blocks"), "{page}");
    for _ in 0..3 {
        read(&engine, "a").await;
    }
    let (_, _, page) = console.get("/").await;
    assert!(page.contains("3 of 3 blocks"), "{page}");
}

#[tokio::test]
async fn first_names_of_series_are_listed() {
    let console = start(engine()).await;
    let line = |number: usize| format!("m,n={number:03} v=1 1\n");
    let shown = crate::page::NAMES;
    let lines: String = (0..shown).rev().map(line).collect();
    console.post("/write", "", lines.as_bytes()).await;
    let names = |page: &str| page.matches("&amp;series=m%2Cn").count();
    let (_, _, page) = console.get("/").await;
    assert_eq!((names(&page), page.contains("and more")), (shown, false));
    console.post("/write", "", line(shown).as_bytes()).await;
    let (_, _, page) = console.get("/").await;
    assert_eq!((names(&page), page.contains("and more")), (shown, true));
    assert!(page.contains("m,n=000/v") && !page.contains(&format!("m,n={shown}/v")));
}

#[tokio::test]
async fn uploads_that_are_not_shown_are_counted() {
    let console = start(engine()).await;
    let (_, _, page) = console.get("/").await;
    assert!(page.contains("data/&lt;big&gt;"), "{page}");
    assert!(page.contains("and 2 more"), "{page}");
    assert!(page.contains("some are missing here"), "{page}");
}

#[tokio::test]
async fn uploads_are_listed_as_json_with_their_ids_at_the_store() {
    let console = start(engine()).await;
    let (status, _, body) = console.get("/uploads").await;
    let listed: crate::ListedUploads = serde_json::from_str(&body).unwrap();
    assert_eq!((status, listed.total, listed.partial), (200, 3, true));
    assert_eq!(listed.newest[0].session.as_deref(), Some("session-1"));
}

#[tokio::test]
async fn page_names_a_failing_origin_and_its_error() {
    let policy = RetryPolicy {
        initial_backoff: Duration::from_millis(1),
        max_backoff: Duration::from_millis(1),
        deadline: Duration::from_millis(100),
        ..RetryPolicy::default()
    };
    let engine = Engine::builder().memory(64 << 20).retry(policy);
    let engine = engine.build().unwrap();
    // Nothing listens there.
    let nowhere = "http://127.0.0.1:1/".parse().unwrap();
    let gone = engine.mount_url("gone", &nowhere, Consistency::default());
    engine
        .mount_url(
            "fine",
            &"memory://".parse().unwrap(),
            Consistency::default(),
        )
        .unwrap();
    let console = start(engine.clone()).await;
    let (_, _, page) = console.get("/").await;
    assert!(page.contains("The server is well."), "{page}");
    assert!(gone.unwrap().head(&Path::from("a")).await.is_err());
    let (_, _, page) = console.get("/").await;
    assert!(page.contains("The server is degraded."), "{page}");
    assert!(page.contains("the origin of bucket gone fails: "), "{page}");
    assert!(page.contains("unavailable</td>"), "{page}");
    let repeated = engine.stats().buckets["gone"].retries;
    // Each request but the first is a repetition, and none was hedged.
    assert_eq!(repeated + 1, engine.stats().buckets["gone"].origin_requests);
    let cells = format!("<td>{}</td><td>{repeated}</td><td>0</td>", repeated + 1);
    assert!(page.contains(&cells), "{cells}: {page}");
    let (_, _, stats) = console.get("/stats").await;
    let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
    let origin = &stats["origins"]["gone"];
    assert!(origin["failures_in_a_row"].as_u64() >= Some(3), "{origin}");
    assert_eq!(origin["last_failure"]["kind"], "unavailable");
    // It may name keys, and this needs no login.
    assert_eq!(origin["last_failure"]["text"], serde_json::Value::Null);
    assert_eq!(stats["origins"]["fine"], serde_json::Value::Null);
}

#[tokio::test]
async fn page_is_filtered_by_bucket_without_a_script() {
    let engine = engine_with_traffic().await;
    let other = engine.mount(
        "other",
        Arc::new(MemoryStore::new()),
        Consistency::default(),
    );
    other
        .unwrap()
        .put(&Path::from("b"), PutPayload::from_static(b"x"))
        .await
        .unwrap();
    let console = start(engine.clone()).await;
    let row = |page: &str, name: &str| page.contains(&format!("bucket={name}\">{name}</a>"));
    let (_, _, page) = console.get("/").await;
    assert!(row(&page, "data") && row(&page, "other"), "{page}");
    read(&engine, "a").await;
    let (_, _, page) = console.get("/?bucket=other").await;
    assert!(row(&page, "other") && !row(&page, "data"), "{page}");
    assert!(
        page.contains("0 of 0 blocks") && page.contains("All buckets"),
        "{page}"
    );
    let (_, _, page) = console.get("/?bucket=data").await;
    assert!(page.contains("1 of 1 blocks"), "{page}");
    for whole in ["Memory now", "Connections now", "Errors by status"] {
        assert!(!page.contains(whole), "{whole} is not of the bucket");
    }
    // An unknown bucket, with characters of HTML.
    let (status, _, page) = console.get("/?bucket=%3Cb%3E").await;
    assert!(
        status == 200 && page.contains("&lt;b&gt;") && !page.contains("<b>"),
        "{page}"
    );
}

#[tokio::test]
async fn hits_misses_and_errors_are_shown_apart() {
    let engine = engine_with_traffic().await;
    let summary = |cache, status, millis| RequestSummary {
        kind: RequestKind::Read,
        operation: Some("GetObject"),
        cache,
        latency: Some(Duration::from_millis(millis)),
        status,
        received: 0,
        sent: 5,
        object: Some(("data", "a")),
    };
    let traffic = engine.traffic();
    for _ in 0..3 {
        traffic.note(&summary(Some(CacheOutcome::Hit), 200, 1));
    }
    traffic.note(&summary(Some(CacheOutcome::Miss), 200, 40));
    let console = start(engine.clone()).await;
    traffic.note(&summary(None, 404, 1));
    let (_, _, page) = console.get("/").await;
    assert!(page.contains("<td>75 %</td>"), "reads from memory: {page}");
    assert!(page.contains("<td>1.02 ms / 1.02 ms</td>"), "hits: {page}");
    assert!(page.contains("<td>41 ms / 41 ms</td>"), "misses: {page}");
    assert!(
        page.contains("<th scope=\"row\">404 Not Found</th><td>1</td><td>1</td>"),
        "{page}"
    );
    for owner in [
        "Blocks in memory",
        "Writes, uploads and tables",
        "Free frames",
    ] {
        assert!(page.contains(owner), "{owner}");
    }
}
