//! Other attributes for an object at an S3 origin: copies that the store makes, under its faults.

use std::sync::Arc;
use std::time::Duration;

use bywash::origin::AttributeRewrite;
use bywash::origin::s3::S3Store;
use bywash::{Bucket, Consistency, Engine, RetryPolicy};
use bywash_sim::server::s3::S3;
use bywash_sim::server::{HttpRequest, HttpResponse, LoggedRequest, Protocol, Server, ServerFault};
use http::Method;
use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, Error, ObjectStoreExt, PutResult, Result, TagSet, UpdateVersion,
};

/// A store that changes requests, or responds itself.
struct Changed<F>(Arc<S3>, F);

impl<F> Protocol for Changed<F>
where
    F: Fn(&mut HttpRequest) -> Option<HttpResponse> + Send + Sync + 'static,
{
    fn respond(&self, request: &HttpRequest) -> HttpResponse {
        let mut request = request.clone();
        let own = (self.1)(&mut request);
        own.unwrap_or_else(|| self.0.respond(&request))
    }
}

struct World {
    objects: Arc<S3>,
    server: Server,
    bucket: Bucket,
    written: PutResult,
}

const BODY: &[u8] = b"more than the minimum of a part";
/// Text in the lines of all requests of an upload but the one that begins it.
const OF_UPLOAD: &str = "uploadId=";

fn path() -> Path {
    Path::from("dir/a b")
}

impl World {
    async fn start(retry: RetryPolicy) -> Self {
        Self::over(retry, |_: &mut HttpRequest| None).await
    }

    async fn over<F>(retry: RetryPolicy, change: F) -> Self
    where
        F: Fn(&mut HttpRequest) -> Option<HttpResponse> + Send + Sync + 'static,
    {
        let objects = S3::new();
        let protocol = Arc::new(Changed(Arc::clone(&objects), change));
        let server = Server::start(protocol).await.unwrap();
        let builder = AmazonS3Builder::new()
            .with_endpoint(server.url())
            .with_bucket_name("data")
            .with_access_key_id("key")
            .with_secret_access_key("secret")
            .with_allow_http(true);
        let origin = S3Store::from_builder(builder, "data", &Path::default()).unwrap();
        let origin = Arc::new(origin.with_min_part(8));
        let engine = Engine::builder().memory(64 << 20).retry(retry);
        let engine = engine.build().unwrap();
        let bucket = engine
            .mount("cloud", origin, Consistency::Immutable)
            .unwrap();
        let written = bucket.put(&path(), BODY.into()).await.unwrap();
        let _of_put = server.take_log();
        Self {
            objects,
            server,
            bucket,
            written,
        }
    }

    /// Gives the object another type.
    async fn rewrite(&self) -> Result<Option<PutResult>> {
        let rewrite = AttributeRewrite {
            version: UpdateVersion {
                e_tag: self.written.e_tag.clone(),
                version: self.written.version.clone(),
            },
            size: BODY.len() as u64,
            attributes: Attributes::from_iter([(Attribute::ContentType, "text/y")]),
            tags: TagSet::default(),
        };
        self.bucket.rewrite_by_copy(&path(), rewrite).await
    }

    /// Returns whether the object has the other type; its bytes stay.
    fn is_rewritten(&self) -> bool {
        let stored = self.objects.objects().get("data", "dir/a b").unwrap();
        assert_eq!(stored.bytes, BODY);
        stored.headers.get("content-type").map(String::as_str) == Some("text/y")
    }

    fn aborts(&self) -> usize {
        let log = self.server.take_log();
        log.iter().filter(|request| is(request, "DELETE ")).count()
    }
}

fn is(request: &LoggedRequest, method: &str) -> bool {
    request.line.starts_with(method) && request.line.contains(OF_UPLOAD)
}

/// Limits of a second: each fault is waited for.
fn quick() -> RetryPolicy {
    RetryPolicy {
        stall: Duration::from_millis(300),
        deadline: Duration::from_millis(200),
        ..RetryPolicy::default()
    }
}

#[tokio::test]
async fn completion_without_a_response_ends_within_its_limit_and_is_not_aborted() {
    let world = World::start(RetryPolicy::default()).await;
    let completion = format!("POST /data/dir/a%20b?{OF_UPLOAD}");
    world.server.script(&completion, ServerFault::StallResponse);
    let wait_and_pass_the_limit = async {
        let mut log = Vec::new();
        while !log.iter().any(|request| is(request, "POST ")) {
            tokio::time::sleep(Duration::from_millis(1)).await;
            log.extend(world.server.take_log());
        }
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(700)).await;
        tokio::time::resume();
    };
    let (rewritten, ()) = tokio::join!(world.rewrite(), wait_and_pass_the_limit);
    let error = rewritten.unwrap_err().to_string();
    assert!(error.contains("no response for 620000 ms"), "{error}");
    assert_eq!(world.aborts(), 0);
    assert!(world.is_rewritten());
}

#[tokio::test]
async fn upload_stays_if_the_response_to_its_completion_was_lost_and_goes_if_it_was_refused() {
    let conflict = "<Error><Code>ConditionalRequestConflict</Code><Message>m</Message></Error>";
    let failed = "<Error><Code>InternalError</Code><Message>m</Message></Error>";
    for (status, body, aborts) in [
        (409, conflict, 1),
        (412, "", 1),
        (400, "", 1),
        (200, failed, 0),
    ] {
        let world = World::over(quick(), move |request| {
            let completes = request.method == Method::POST && request.query("uploadId").is_some();
            completes.then(|| HttpResponse::status(status).body(body))
        });
        let world = world.await;
        let error = world.rewrite().await.unwrap_err();
        let unmet = matches!(error, Error::Precondition { .. });
        assert_eq!(unmet, status == 412, "{error}");
        assert_eq!(world.aborts(), aborts, "{status} {error}");
        assert_eq!(world.objects.open_uploads(), 1 - aborts);
        assert!(!world.is_rewritten());
    }
    let completion = format!("POST /data/dir/a%20b?{OF_UPLOAD}");
    for (fault, done) in [
        (ServerFault::LoseResponse, true),
        (ServerFault::Unavailable, false),
    ] {
        let world = World::start(quick()).await;
        world.server.script(&completion, fault);
        world.rewrite().await.unwrap_err();
        assert_eq!(world.aborts(), 0, "{fault:?}");
        assert_eq!(world.is_rewritten(), done);
    }
}

#[tokio::test]
async fn create_and_abort_without_a_response_end_within_their_limits() {
    let world = World::start(quick()).await;
    world.server.script("?uploads", ServerFault::StallResponse);
    let error = world.rewrite().await.unwrap_err().to_string();
    assert!(error.contains("begin upload of"), "{error}");
    world
        .server
        .script("partNumber=1", ServerFault::Refuse(412));
    world.server.script("DELETE ", ServerFault::StallResponse);
    let error = world.rewrite().await.unwrap_err();
    assert!(matches!(error, Error::Precondition { .. }), "{error}");
    assert_eq!(world.aborts(), 1);
    assert!(world.rewrite().await.unwrap().is_some() && world.is_rewritten());
}

#[tokio::test]
async fn server_that_copies_no_parts_has_no_rewrites_and_keeps_no_upload() {
    for status in [501, 405] {
        let world = World::start(quick()).await;
        world
            .server
            .script("partNumber=1", ServerFault::Refuse(status));
        assert!(world.rewrite().await.unwrap().is_none(), "{status}");
        assert!(world.objects.open_uploads() == 0 && !world.is_rewritten());
    }
    // One that takes the request for a part without bytes.
    let ignores = |request: &mut HttpRequest| {
        request.headers.remove("x-amz-copy-source");
        None
    };
    let world = World::over(quick(), ignores).await;
    assert!(world.rewrite().await.unwrap().is_none());
    assert!(world.objects.open_uploads() == 0 && !world.is_rewritten());
}
