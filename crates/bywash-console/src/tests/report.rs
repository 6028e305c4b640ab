//! Texts of `/metrics` and `/stats`: bounded, shared and charged.

use bywash::Share;

use super::*;
use crate::Shared;
use crate::labelled::{Counted, OTHER_BUCKETS};
use crate::limits::{MAX_LABELLED_BUCKETS, MAX_REPORT_PAUSE};
use crate::report::{LIVE_TEXTS, Report};

/// An engine with this many buckets, and a request to the last bucket by name.
async fn engine_of_buckets(count: usize) -> Engine {
    let engine = Engine::builder().memory(64 << 20).build().unwrap();
    let store = Arc::new(MemoryStore::new());
    for number in 0..count {
        let name = format!("bucket-{number:05}");
        engine
            .mount(
                &name,
                Arc::<MemoryStore>::clone(&store),
                Consistency::default(),
            )
            .unwrap();
    }
    let last = engine.bucket(&format!("bucket-{:05}", count - 1)).unwrap();
    let _ = last.get(&Path::from("absent")).await;
    engine
}

#[tokio::test]
async fn buckets_past_the_limit_are_counted_together() {
    let engine = engine_of_buckets(MAX_LABELLED_BUCKETS + 5).await;
    let console = start(engine.clone()).await;
    let (_, _, text) = console.get("/metrics").await;
    let requests: Vec<_> = text
        .lines()
        .filter(|line| line.starts_with("bywash_requests_total{"))
        .collect();
    assert_eq!(requests.len(), MAX_LABELLED_BUCKETS + 1);
    let others = format!("bywash_requests_total{{bucket=\"{OTHER_BUCKETS}\"}} 1");
    assert!(requests.contains(&&*others), "{:?}", requests.first());
    let (_, _, stats) = console.get("/stats").await;
    let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
    let buckets = stats["buckets"].as_object().unwrap();
    assert_eq!(buckets.len(), MAX_LABELLED_BUCKETS + 1);
    assert_eq!(buckets[OTHER_BUCKETS]["requests"], 1);
    // With as many as the limit, each has a label.
    let console = start(engine_of_buckets(MAX_LABELLED_BUCKETS).await).await;
    let (_, _, text) = console.get("/metrics").await;
    assert!(!text.contains(OTHER_BUCKETS));
}

fn shared(engine: &Engine) -> Shared {
    let console = Console {
        engine: engine.clone(),
        access: key(),
        series: None,
        history: None,
        uploads: OpenUploads::default(),
        fetch_folder: None,
    };
    Shared::new(console, "127.0.0.1:8422".parse().unwrap())
}

/// A text as long as reports may be.
fn long_text(_: &Shared, _: &Counted, capacity: usize) -> Vec<u8> {
    vec![b'x'; capacity]
}

#[tokio::test(start_paused = true)]
async fn readers_share_a_text_and_those_that_keep_older_ones_delay_the_next() {
    const READERS: usize = 24;
    const LATER: std::time::Duration = std::time::Duration::from_millis(1);
    let engine = Engine::builder().memory(64 << 20).build().unwrap();
    let shared = shared(&engine);
    let budget = engine.budget();
    let before = budget.held(Share::Upload);
    let report = Report::new("text/plain", long_text);
    let texts = || report.live_texts();
    // All ask at once: the first renders.
    let all = (0..READERS).map(|_| report.response(&shared, |_| true));
    let held = futures::future::join_all(all).await;
    assert!(held.iter().all(|response| response.status() == 200));
    assert_eq!(texts(), 1);
    drop(held);
    assert_eq!(texts(), 1, "the last one");
    // Readers that keep texts of different times.
    let read = || async {
        tokio::time::advance(LATER).await;
        report.response(&shared, |_| true).await
    };
    let mut held = Vec::new();
    while texts() <= LIVE_TEXTS {
        held.push(read().await);
    }
    let asked = tokio::time::Instant::now();
    held.push(read().await);
    assert!(asked.elapsed() >= MAX_REPORT_PAUSE);
    assert_eq!(texts(), held.len());
    // Past the memory that is reserved they are charged to the budget.
    for _ in 0..READERS {
        held.push(read().await);
    }
    assert!(budget.held(Share::Upload) - before > 1 << 20);
    drop(held);
    assert_eq!(texts(), 1);
    drop(report);
    assert_eq!(budget.held(Share::Upload), before);
}

#[tokio::test]
async fn full_memory_hides_no_counters() {
    let engine = engine_with_traffic().await;
    let console = start(engine.clone()).await;
    let mut held = Vec::new();
    for bytes in [1 << 20, 1 << 10, 1] {
        while let Some(taken) = engine.budget().try_reserve(Share::Upload, bytes) {
            held.push(taken);
        }
    }
    for target in ["/metrics", "/stats"] {
        for _ in 0..3 {
            let (status, _, body) = console.get(target).await;
            assert_eq!(status, 200, "{target}: {body}");
        }
    }
}

#[tokio::test]
async fn counters_are_as_of_the_request_or_later() {
    let engine = engine_with_traffic().await;
    let console = start(engine.clone()).await;
    let bucket = engine.bucket("data").unwrap();
    for _ in 0..5 {
        bucket.get(&Path::from("a")).await.unwrap();
        let requests = engine.stats().buckets["data"].requests;
        let line = format!("bywash_requests_total{{bucket=\"data\"}} {requests}");
        let (_, _, text) = console.get("/metrics").await;
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
}

#[tokio::test]
async fn page_and_uploads_without_memory_are_refused_for_now() {
    let engine = engine_of_buckets(3000).await;
    let console = start(engine.clone()).await;
    let mut held = Vec::new();
    for bytes in [1 << 20, 1 << 10, 1] {
        while let Some(taken) = engine.budget().try_reserve(Share::Upload, bytes) {
            held.push(taken);
        }
    }
    let (status, head, _) = console.get("/").await;
    assert_eq!((status, header(&head, "retry-after")), (503, Some("1")));
    assert_eq!(console.get("/uploads").await.0, 503);
    drop(held);
    assert_eq!(console.get("/").await.0, 200);
    assert_eq!(console.get("/uploads").await.0, 200);
}
