//! Memory of copies: they hold none that readers need, take theirs in one step, and wait in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use bywash::origin::memory::MemoryStore;
use bywash::{Consistency, Engine, Share};
use bywash_gateway::{GcsConfig, S3Config};
use bywash_sim::WrappedMemory;
use bywash_support::hooked_store::{HookedStore, ObservedRequest, RequestHook};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use object_store::ObjectStoreExt;
use object_store::path::Path;
use tokio::sync::watch;

use crate::gcs_server::GcsServer;
use crate::http::{HttpResponse, pattern};
use crate::server::Server;

const KIB: u64 = 1 << 10;
/// At this limit an object of 1 MiB is one chunk.
const MEMORY: u64 = 8 << 20;
const BLOCK: usize = 128 << 10;
const OBJECT: usize = 1 << 20;
/// More than the memory of copies and of readers holds at a time.
const CLIENTS: usize = 20;

/// Holds back the reads of bytes of the sources, or the writes of their copies.
#[derive(Debug)]
struct Gate {
    method: &'static str,
    open: watch::Sender<bool>,
    waiting: AtomicUsize,
}

#[async_trait]
impl RequestHook for Gate {
    async fn before(&self, request: &ObservedRequest) -> object_store::Result<()> {
        let is_copied = request.path.as_ref().starts_with("from-");
        let has_bytes = request.method == "put" || request.range.is_some();
        if request.method == self.method && is_copied && has_bytes {
            self.waiting.fetch_add(1, Relaxed);
            let mut open = self.open.subscribe();
            let _ = open.wait_for(|open| *open).await;
            self.waiting.fetch_sub(1, Relaxed);
        }
        Ok(())
    }
}

struct Endpoints {
    gcs: GcsServer,
    s3: Server,
    gate: Arc<Gate>,
}

/// Endpoints over an origin that rewrites objects for other attributes, with the objects `from-N`
/// and `read`.
async fn endpoints(method: &'static str, deadline: Duration) -> Endpoints {
    let memory = MemoryStore::new();
    for number in 0..CLIENTS {
        let path = Path::from(format!("from-{number}"));
        memory.put(&path, pattern(OBJECT).into()).await.unwrap();
    }
    let read = Path::from("read");
    memory.put(&read, pattern(1 << 20).into()).await.unwrap();
    let gate = Arc::new(Gate {
        method,
        open: watch::Sender::new(false),
        waiting: AtomicUsize::new(0),
    });
    let hooked = HookedStore::new(Arc::new(memory.clone()), Arc::<Gate>::clone(&gate));
    let origin = Arc::new(WrappedMemory::new(Arc::new(hooked), memory));
    let engine = Engine::builder()
        .memory(MEMORY)
        .block_size(BLOCK)
        .admission_deadline(deadline)
        .build()
        .unwrap();
    engine.mount("bkt", origin, Consistency::default()).unwrap();
    let root = tempfile::tempdir().unwrap();
    let config = GcsConfig::anonymous("");
    let gcs = GcsServer::start_over(engine.clone(), root, config).await;
    let root = tempfile::tempdir().unwrap();
    let s3 = Server::start_with(engine, root, S3Config::anonymous()).await;
    Endpoints { gcs, s3, gate }
}

/// Ways to have the bytes of an object copied.
#[derive(Debug, Clone, Copy)]
enum Copying {
    Patch,
    Rewrite,
    Compose,
    Batch,
    CopyObject,
    CopyOntoItself,
    Part,
}

impl Endpoints {
    async fn copy(&self, copying: Copying, number: usize) -> HttpResponse {
        let object = format!("/storage/v1/b/bkt/o/from-{number}");
        let metadata = br#"{"metadata":{"a":"1"}}"#;
        let source = format!("/bkt/from-{number}");
        let source = ("x-amz-copy-source", source.as_str());
        let replaced = [
            source,
            ("x-amz-metadata-directive", "REPLACE"),
            ("x-amz-meta-a", "1"),
        ];
        match copying {
            Copying::Patch => self.gcs.send_owned("PATCH", object, metadata).await,
            Copying::Rewrite => {
                let target = format!("{object}/rewriteTo/b/bkt/o/to-{number}");
                self.gcs.send_owned("POST", target, metadata).await
            }
            Copying::Compose => {
                let target = format!("/storage/v1/b/bkt/o/to-{number}/compose");
                let sources = format!(
                    r#"{{"sourceObjects":[{{"name":"read"}},{{"name":"from-{number}"}},{{"name":"read"}}]}}"#
                );
                self.gcs
                    .send_owned("POST", target, sources.as_bytes())
                    .await
            }
            Copying::Batch => {
                let call = |target: &str| {
                    format!(
                        "--b\r\nContent-Type: application/http\r\n\r\nPOST {object}/rewriteTo/b/bkt/o/{target} HTTP/1.1\r\n\
                         Content-Length: 2\r\n\r\n{{}}\r\n"
                    )
                };
                let calls = (0..3).map(|call_number| call(&format!("to-{number}-{call_number}")));
                let batch = calls.collect::<String>() + "--b--";
                let kind = [("Content-Type", "multipart/mixed; boundary=b")];
                self.gcs
                    .post("/batch/storage/v1", &kind, batch.as_bytes())
                    .await
            }
            Copying::CopyObject => {
                self.s3
                    .put(&format!("/bkt/to-{number}"), &replaced, b"")
                    .await
            }
            Copying::CopyOntoItself => {
                self.s3
                    .put(&format!("/bkt/from-{number}"), &replaced, b"")
                    .await
            }
            Copying::Part => {
                let target = format!("/bkt/to-{number}");
                let id = self
                    .s3
                    .send("POST", &format!("{target}?uploads"), &[], b"")
                    .await;
                let id = id.expect(200).tag("UploadId").unwrap();
                let part = format!("{target}?partNumber=1&uploadId={id}");
                self.s3.put(&part, &[source], b"").await
            }
        }
    }

    /// Reads an object that is not in memory, and lists.
    async fn probe(&self) {
        let engine = &self.gcs.engine;
        let bucket = engine.bucket("bkt").unwrap();
        let _ = bucket.drop_cached("read");
        let read = self.s3.get("/bkt/read", &[]).await.expect(200);
        assert!(read.body == pattern(1 << 20));
        self.s3
            .get("/bkt?list-type=2&max-keys=50", &[])
            .await
            .expect(200);
        self.gcs
            .get("/storage/v1/b/bkt/o?maxResults=50")
            .await
            .expect(200);
    }

    async fn until_copies_wait(&self) {
        while self.gate.waiting.load(Relaxed) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

const ALL: [Copying; 7] = [
    Copying::Patch,
    Copying::Rewrite,
    Copying::Compose,
    Copying::Batch,
    Copying::CopyObject,
    Copying::CopyOntoItself,
    Copying::Part,
];

async fn readers_are_served_beside(copying: Copying, held_back: &'static str) {
    let endpoints = endpoints(held_back, Duration::from_secs(600)).await;
    let copies = (0..CLIENTS).map(|number| endpoints.copy(copying, number));
    let copies = futures::future::join_all(copies);
    let probes = async {
        endpoints.until_copies_wait().await;
        let engine = &endpoints.gcs.engine;
        for _ in 0..3 {
            endpoints.probe().await;
            let held = engine.budget().held(Share::Upload);
            assert!(
                held <= MEMORY / 2 + MEMORY / 4,
                "{held} bytes by copies and batches"
            );
        }
        endpoints.gate.open.send_replace(true);
    };
    let both = futures::future::join(copies, probes);
    let both = tokio::time::timeout(Duration::from_secs(300), both).await;
    let (copied, ()) =
        both.unwrap_or_else(|_| panic!("{copying:?}: copies and readers wait for each other"));
    for response in copied {
        let response = response.expect(200);
        let served = response.text().matches("HTTP/1.1 200").count();
        assert!(
            !matches!(copying, Copying::Batch) || served == 3,
            "{}",
            response.text()
        );
    }
}

#[tokio::test]
async fn readers_are_served_while_copies_wait_for_their_sources() {
    for copying in ALL {
        readers_are_served_beside(copying, "get").await;
    }
}

#[tokio::test]
async fn readers_are_served_while_copies_wait_for_their_writes() {
    for copying in [Copying::Patch, Copying::CopyOntoItself] {
        readers_are_served_beside(copying, "put").await;
    }
}

/// Copies of an object that hold their memory at a time: of a chunk, and of two buffers.
const AT_ONCE: usize = (MEMORY / 2 / (OBJECT as u64 + 2 * 256 * KIB)) as usize;

#[tokio::test]
async fn copies_beyond_their_limit_get_slow_down_and_the_others_end() {
    let endpoints = endpoints("get", Duration::from_secs(2)).await;
    let copies = (0..CLIENTS).map(|number| endpoints.copy(Copying::CopyObject, number));
    let mut copies: FuturesUnordered<_> = copies.map(Box::pin).collect();
    // Copies that have their memory are held back.
    for _ in AT_ONCE..CLIENTS {
        let refused = copies.next().await.unwrap();
        refused.expect_error(503, "SlowDown");
    }
    endpoints.gate.open.send_replace(true);
    while let Some(copied) = copies.next().await {
        copied.expect(200);
    }
    let budget = endpoints.gcs.engine.budget();
    assert_eq!(budget.held(Share::Upload), 0);
}
