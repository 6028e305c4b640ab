//! Reads while the origin fails, at both endpoints: stale ones say so in a header.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bywash::origin::memory::MemoryStore;
use bywash::{BucketOptions, Consistency, Engine, RetryPolicy};
use bywash_gateway::{GcsConfig, S3Config};
use bywash_sim::WrappedMemory;
use bywash_support::hooked_store::{HookedStore, ObservedRequest, RequestHook};
use object_store::{Error, ObjectStore};

use crate::gcs_server::GcsServer;
use crate::http::HttpResponse;
use crate::server::Server;

/// A store that can be down.
#[derive(Debug, Default)]
struct Switch(AtomicBool);

#[async_trait]
impl RequestHook for Switch {
    async fn before(&self, _: &ObservedRequest) -> object_store::Result<()> {
        if self.0.load(Relaxed) {
            return Err(Error::Generic {
                store: "test",
                source: "503 Service Unavailable".into(),
            });
        }
        Ok(())
    }
}

const WARNING: &str = "110 Bywash \"Response is Stale\"";

fn is_stale(response: &HttpResponse) -> bool {
    response.header("warning") == Some(WARNING)
}

#[tokio::test]
async fn stale_responses_have_a_warning_and_only_reads_of_clients_are_stale() {
    let switch = Arc::new(Switch::default());
    let memory = MemoryStore::new();
    let objects: Arc<dyn ObjectStore> = Arc::new(memory.clone());
    let hooked = HookedStore::new(objects, Arc::<Switch>::clone(&switch));
    let origin = Arc::new(WrappedMemory::new(Arc::new(hooked), memory));
    let retry = RetryPolicy {
        deadline: Duration::from_millis(100),
        ..RetryPolicy::default()
    };
    let engine = Engine::builder().memory(64 << 20).retry(retry);
    let engine = engine.build().unwrap();
    let options = BucketOptions {
        consistency: Consistency::Revalidate(Duration::ZERO),
        stale_if_error: Some(Duration::from_secs(3600)),
        ..BucketOptions::default()
    };
    engine.mount("bkt", origin, options).unwrap();
    let root = tempfile::tempdir().unwrap();
    let gcs = GcsServer::start_over(engine.clone(), root, GcsConfig::anonymous("")).await;
    let root = tempfile::tempdir().unwrap();
    let s3 = Server::start_with(engine.clone(), root, S3Config::anonymous()).await;

    s3.put("/bkt/key", &[], b"body").await.expect(200);
    let read = s3.get("/bkt/key", &[]).await.expect(200);
    assert!(!is_stale(&read));
    let e_tag = read.header("etag").unwrap().to_owned();
    switch.0.store(true, Relaxed);

    let object = "/storage/v1/b/bkt/o/key";
    for _ in 0..2 {
        let read = s3.get("/bkt/key", &[]).await.expect(200);
        assert!(is_stale(&read) && read.body == b"body");
        let read = s3.get("/bkt/key", &[("range", "bytes=1-2")]).await;
        assert!(is_stale(&read) && read.status == 206 && read.body == b"od");
        let read = s3.get("/bkt/key", &[("if-match", &e_tag)]).await;
        assert!(is_stale(&read) && read.status == 200 && read.body == b"body");
        let read = s3.get("/bkt/key", &[("if-none-match", &e_tag)]).await;
        assert_eq!(read.status, 304);
        assert!(is_stale(
            &s3.send("HEAD", "/bkt/key", &[], b"").await.expect(200)
        ));
        let attributes = [("x-amz-object-attributes", "ObjectSize")];
        let read = s3.get("/bkt/key?attributes", &attributes).await;
        assert!(is_stale(&read.expect(200)));
        assert!(is_stale(&gcs.get(object).await.expect(200)));
        let read = gcs.get(&format!("{object}?alt=media")).await.expect(200);
        assert!(is_stale(&read) && read.body == b"body");
    }
    let stale_reads = engine.stats().buckets["bkt"].stale_reads;
    assert!(stale_reads >= 14, "{stale_reads}");

    // Requests for unknown objects, and requests that would carry a stale version on, fail.
    for (response, case) in [
        (s3.get("/bkt/other", &[]).await, "unknown key"),
        (s3.get("/bkt?list-type=2", &[]).await, "listing"),
        (
            s3.put("/bkt/copy", &[("x-amz-copy-source", "/bkt/key")], b"")
                .await,
            "copy",
        ),
        (
            gcs.post(&format!("{object}/copyTo/b/bkt/o/copy"), &[], b"")
                .await,
            "copy by the other endpoint",
        ),
    ] {
        assert_eq!(response.status / 100, 5, "{case}: {}", response.status);
        assert!(!is_stale(&response), "{case}");
    }

    switch.0.store(false, Relaxed);
    let deadline = Instant::now() + Duration::from_secs(60);
    while is_stale(&s3.get("/bkt/key", &[]).await.expect(200)) {
        assert!(Instant::now() < deadline, "the origin is back");
    }
}
