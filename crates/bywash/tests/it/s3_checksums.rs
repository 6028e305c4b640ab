//! Whole reads of an S3 origin, which sends checksums only on request, and none with a range.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use bywash::origin::OriginOptions;
use bywash::{Bucket, Consistency, DownloadOptions, Engine, EngineError, OriginUrl, Verify};
use bywash_sim::server::objects::crc32c;
use bywash_sim::server::s3::S3;
use bywash_sim::server::{HttpRequest, HttpResponse, Protocol, Server};
use bywash_support::pattern;
use http::Method;
use object_store::path::Path;
use object_store::{Error, ObjectStoreExt, Result};

const BLOCK: usize = 64 << 10;
/// Several ranged GETs.
const LENGTH: usize = 6 << 20;

/// A store with checksums that flips a bit in each of its next bodies of at least a block.
struct AwsLike {
    store: Arc<S3>,
    flips: AtomicUsize,
    /// Requests for a checksum.
    requested: AtomicUsize,
    /// Status of the response to those, in place of the store's.
    refusal: Option<u16>,
}

impl Protocol for AwsLike {
    fn respond(&self, request: &HttpRequest) -> HttpResponse {
        let requests_it = request.header("x-amz-checksum-mode").is_some();
        if requests_it {
            self.requested.fetch_add(1, Relaxed);
            if let Some(refusal) = self.refusal {
                return HttpResponse::status(refusal);
            }
        }
        let mut response = self.store.respond(request);
        if !requests_it || request.header("range").is_some() {
            response.headers.remove("x-amz-checksum-crc32c");
            response.headers.remove("x-amz-checksum-type");
        }
        let taken = |left: usize| left.checked_sub(1);
        let is_data = request.method == Method::GET && response.body.len() >= BLOCK;
        if is_data && self.flips.fetch_update(Relaxed, Relaxed, taken).is_ok() {
            let mut body = response.body.to_vec();
            body[99] ^= 1;
            response.body = body.into();
        }
        response
    }
}

struct World {
    store: Arc<AwsLike>,
    _server: Server,
    bucket: Bucket,
    engine: Engine,
    content: Bytes,
    path: Path,
}

impl World {
    async fn new(refusal: Option<u16>, verify: Verify) -> Self {
        let content = pattern(0, LENGTH);
        let store = S3::new();
        let crc = BASE64_STANDARD.encode(crc32c(&content).to_be_bytes());
        let headers = [
            ("x-amz-checksum-crc32c", crc),
            ("x-amz-checksum-type", "FULL_OBJECT".to_owned()),
        ];
        let headers = headers.map(|(name, value)| (name.to_owned(), value)).into();
        let put = store
            .objects()
            .put("data", "k", content.clone(), headers, |_| true);
        assert!(put.is_some());
        let store = Arc::new(AwsLike {
            store,
            flips: AtomicUsize::new(0),
            requested: AtomicUsize::new(0),
            refusal,
        });
        let protocol: Arc<dyn Protocol> = Arc::<AwsLike>::clone(&store);
        let server = Server::start(protocol).await.unwrap();
        let options = [
            ("endpoint", server.url()),
            ("access_key_id", "key".to_owned()),
            ("secret_access_key", "secret".to_owned()),
        ];
        let options = OriginOptions {
            options: options.map(|(name, value)| (name.to_owned(), value)).into(),
            ..OriginOptions::default()
        };
        let url: OriginUrl = "s3://data".parse().unwrap();
        let builder = Engine::builder().memory(64 << 20).verify(verify);
        let engine = builder.block_size(BLOCK).build().unwrap();
        let origin = url.open_with(&options).unwrap();
        let bucket = engine
            .mount("data", origin, Consistency::Immutable)
            .unwrap();
        Self {
            store,
            _server: server,
            bucket,
            engine,
            content,
            path: Path::from("k"),
        }
    }

    async fn read(&self) -> Result<Bytes> {
        self.bucket.get(&self.path).await?.bytes().await
    }

    async fn download(&self) -> Result<Bytes> {
        let options = DownloadOptions {
            part_size: 1 << 20,
            ..DownloadOptions::default()
        };
        let begun = self.bucket.download(&self.path, options).await?;
        Ok(begun.finish().await?.into_contiguous())
    }

    fn flip(&self, bodies: usize) {
        self.store.flips.store(bodies, Relaxed);
    }

    fn requested(&self) -> usize {
        self.store.requested.load(Relaxed)
    }
}

fn is_mismatch(error: &Error) -> bool {
    let found = EngineError::find(error);
    matches!(found, Some(EngineError::DigestMismatch { .. }))
}

#[tokio::test]
async fn checksum_of_a_large_object_is_requested_once() {
    let world = World::new(None, Verify::Whole).await;
    world.flip(1);
    assert!(is_mismatch(&world.read().await.unwrap_err()));
    assert_eq!(world.engine.stats().pool.resident_blocks, 0);
    assert_eq!(world.requested(), 1);
    for _ in 0..3 {
        assert!(world.read().await.unwrap() == world.content);
    }
    // Of the version that was resolved again.
    assert_eq!(world.requested(), 2);
}

#[tokio::test]
async fn download_of_a_large_object_is_compared_with_the_requested_checksum() {
    let world = World::new(None, Verify::Whole).await;
    world.flip(1);
    assert!(world.download().await.unwrap() == world.content);
    assert_eq!(world.requested(), 2, "once for each attempt");
    // From the origin again.
    let _ = world.bucket.drop_cached("");
    world.flip(usize::MAX);
    assert!(is_mismatch(&world.download().await.unwrap_err()));
}

#[tokio::test]
async fn reads_succeed_if_the_checksum_request_is_refused() {
    let world = World::new(Some(403), Verify::Whole).await;
    assert!(world.read().await.unwrap() == world.content);
    assert!(world.download().await.unwrap() == world.content);
    assert_eq!(world.requested(), 1);
    let world = World::new(None, Verify::Off).await;
    world.flip(1);
    assert!(world.read().await.unwrap() != world.content, "the control");
    assert_eq!(world.requested(), 0);
}
