//! Uploads to signed addresses: one PUT, parts of an upload, Google's resumable start, and Azure's shared access signature.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use bywash::origin::signed::{PartUrls, SignedStore, SignedTarget, SignedUrl};
use bywash::{
    Bucket, Consistency, Engine, EngineError, OriginError, RetryPolicy, Upload, UploadOptions,
    UploadToken,
};
use bywash_sim::server::azure::Azure;
use bywash_sim::server::gcs::Gcs;
use bywash_sim::server::s3::S3;
use bywash_sim::server::{HttpRequest, HttpResponse, Protocol, Server, ServerFault};
use bywash_support::pattern;
use chrono::{TimeDelta, Utc};
use http::{HeaderMap, HeaderValue, Method};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::signer::{SignedUrlOptions, Signer};
use object_store::{Attribute, Attributes, Error, PutMode, Result};

/// Google's unit; a chunk of the others too.
const CHUNK: usize = 256 << 10;

fn bucket(target: &SignedTarget) -> Bucket {
    bucket_of(&engine(), target)
}

fn bucket_of(engine: &Engine, target: &SignedTarget) -> Bucket {
    let store = SignedStore::open(target).unwrap();
    engine
        .mount("signed", Arc::new(store), Consistency::default())
        .unwrap()
}

fn engine() -> Engine {
    let retry = RetryPolicy {
        initial_backoff: Duration::from_millis(1),
        max_backoff: Duration::from_millis(5),
        deadline: Duration::from_secs(20),
        stall: Duration::from_secs(5),
    };
    Engine::builder()
        .memory(32 << 20)
        .chunk_size(CHUNK)
        .retry(retry)
        .build()
        .unwrap()
}

fn target(url: &str) -> SignedTarget {
    SignedTarget::Url(SignedUrl::new(url.parse().unwrap()).unwrap())
}

async fn upload(target: &SignedTarget, options: UploadOptions) -> Result<Upload> {
    bucket(target).upload(&target.object(), options).await
}

/// Writes all of `body` in odd pieces, and completes the upload.
async fn complete(upload: &mut Upload, body: &Bytes) -> Result<()> {
    for piece in body.chunks(30_011) {
        upload.write(Bytes::copy_from_slice(piece)).await?;
    }
    upload.finish().await.map(drop)
}

fn of_length(body: &Bytes) -> UploadOptions {
    UploadOptions {
        length: Some(body.len() as u64),
        ..UploadOptions::default()
    }
}

/// The token as another process gets it.
fn sent(token: &UploadToken) -> UploadToken {
    UploadToken::from_bytes(token.to_bytes().unwrap().into()).unwrap()
}

fn misused(error: &Error) -> String {
    match OriginError::find(error) {
        Some(OriginError::SignedAddress { reason, .. }) => reason.clone(),
        found => panic!("{found:?}: {error}"),
    }
}

const PUT_QUERY: &str = "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=SECRET&X-Amz-SignedHeaders=host&X-Amz-Signature=SECRET";

fn put_url(server: &Server) -> String {
    format!("{}/data/dir/object?{PUT_QUERY}", server.url())
}

#[tokio::test]
async fn one_put_stores_an_object_of_any_length_through_a_few_chunks_of_memory() {
    let s3 = S3::new();
    let server = Server::start(Arc::<S3>::clone(&s3)).await.unwrap();
    let target = target(&put_url(&server));
    assert!(!format!("{target} {target:?}").contains("SECRET"));
    for length in [0, 1, CHUNK, CHUNK + 1, 40 * CHUNK + 5] {
        let body = pattern(length as u64, length);
        let engine = engine();
        let bucket = bucket_of(&engine, &target);
        let mut upload = bucket
            .upload(&target.object(), of_length(&body))
            .await
            .unwrap();
        for piece in body.chunks(30_011) {
            upload.write(Bytes::copy_from_slice(piece)).await.unwrap();
            let budget = engine.stats().budget;
            assert!(budget.used - budget.idle <= 5 * CHUNK as u64, "{budget:?}");
        }
        let result = upload.finish().await.unwrap();
        let stored = s3.objects().get("data", "dir/object").unwrap();
        assert_eq!(stored.bytes, body);
        assert_eq!(result.put.e_tag.as_deref(), Some(&*stored.e_tag));
        let log = server.take_log();
        assert_eq!(log.len(), 1, "{log:?}");
        let has_md5 = log[0].headers.contains_key("content-md5");
        assert_eq!(
            has_md5,
            length <= CHUNK,
            "known before the first byte is sent"
        );
    }
}

#[tokio::test]
async fn short_put_is_repeated_and_a_long_one_says_that_it_cannot_be_resumed() {
    let s3 = S3::new();
    let server = Server::start(Arc::<S3>::clone(&s3)).await.unwrap();
    let target = target(&put_url(&server));
    let short = pattern(1, CHUNK);
    for fault in [
        ServerFault::Unavailable,
        ServerFault::ResetAfter(1000),
        ServerFault::LoseResponse,
    ] {
        server.script("PUT ", fault);
    }
    let mut repeated = upload(&target, of_length(&short)).await.unwrap();
    complete(&mut repeated, &short).await.unwrap();
    assert_eq!(server.take_log().len(), 4);
    let long = pattern(2, 40 * CHUNK);
    for fault in [
        ServerFault::Unavailable,
        ServerFault::ResetAfter(3 * CHUNK as u64),
        ServerFault::LoseResponse,
    ] {
        server.script("PUT ", fault);
        let mut upload = upload(&target, of_length(&long)).await.unwrap();
        let error = complete(&mut upload, &long).await.unwrap_err();
        let reason = misused(&error);
        assert!(reason.contains("cannot be resumed"), "{fault:?}: {reason}");
        assert!(reason.contains("presign --parts"), "{reason}");
        assert!(!format!("{error} {error:?}").contains("SECRET"), "{error}");
        upload.abort().await.unwrap();
        let _seen = server.take_log();
    }
    // Another process cannot continue either.
    let mut upload = upload(&target, of_length(&long)).await.unwrap();
    upload.write(long.slice(..2 * CHUNK)).await.unwrap();
    let token = sent(&upload.capture());
    drop(upload);
    let error = bucket(&target).restore_upload(&token).await.unwrap_err();
    assert!(misused(&error).contains("cannot be resumed"), "{error}");
}

#[tokio::test]
async fn long_put_of_unknown_or_wrong_length_stores_nothing() {
    let s3 = S3::new();
    let server = Server::start(Arc::<S3>::clone(&s3)).await.unwrap();
    let target = target(&put_url(&server));
    let body = pattern(3, 3 * CHUNK);
    let mut unknown = upload(&target, UploadOptions::default()).await.unwrap();
    let error = complete(&mut unknown, &body).await.unwrap_err();
    assert!(
        misused(&error).contains("length, which is not known"),
        "{error}"
    );
    let options = UploadOptions {
        length: Some(4 * CHUNK as u64),
        ..UploadOptions::default()
    };
    let mut short = upload(&target, options).await.unwrap();
    let error = complete(&mut short, &body).await.unwrap_err();
    let found = OriginError::find(&error);
    assert!(
        matches!(found, Some(OriginError::LengthMismatch { .. })),
        "{error}"
    );
    short.abort().await.unwrap();
    let options = UploadOptions {
        length: Some(6 << 30),
        ..UploadOptions::default()
    };
    let error = upload(&target, options).await.unwrap_err();
    assert!(
        misused(&error).contains("at most 5368709120 bytes"),
        "{error}"
    );
    assert!(s3.objects().get("data", "dir/object").is_none());
}

/// The store acknowledges other bytes than were sent, of a longer object too.
#[tokio::test]
async fn checksum_of_a_streamed_put_is_compared() {
    struct Flips(Arc<S3>);
    impl Protocol for Flips {
        fn respond(&self, request: &HttpRequest) -> HttpResponse {
            let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, &request.body[1..]);
            let crc = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, crc.to_be_bytes());
            let response = self.0.respond(request);
            response.with("x-amz-checksum-crc64nvme", &crc)
        }
    }
    let server = Server::start(Arc::new(Flips(S3::new()))).await.unwrap();
    let target = target(&put_url(&server));
    for length in [CHUNK, 3 * CHUNK] {
        let body = pattern(4, length);
        let mut upload = upload(&target, of_length(&body)).await.unwrap();
        let error = complete(&mut upload, &body).await.unwrap_err();
        let found = OriginError::find(&error);
        assert!(
            matches!(found, Some(OriginError::UploadDamaged { .. })),
            "{error}"
        );
    }
}

#[tokio::test]
async fn headers_of_a_put_are_those_that_were_signed() {
    let s3 = S3::new();
    let server = Server::start(Arc::<S3>::clone(&s3)).await.unwrap();
    let signed = put_url(&server).replace("=host&", "=content-type%3Bhost%3Bx-amz-meta-k&");
    let body = pattern(5, 10);
    let error = match upload(&target(&signed), of_length(&body)).await {
        Ok(mut upload) => complete(&mut upload, &body).await.unwrap_err(),
        Err(error) => error,
    };
    let reason = misused(&error);
    assert!(
        reason.contains("not given: content-type, x-amz-meta-k"),
        "{reason}"
    );
    let mut headers = HeaderMap::new();
    headers.insert("content-type", HeaderValue::from_static("text/plain"));
    headers.insert("x-amz-meta-k", HeaderValue::from_static("v"));
    let url = SignedUrl::new(signed.parse().unwrap()).unwrap();
    let with_headers = SignedTarget::Url(url.with_headers(headers));
    let mut upload1 = upload(&with_headers, of_length(&body)).await.unwrap();
    complete(&mut upload1, &body).await.unwrap();
    let stored = s3.objects().get("data", "dir/object").unwrap();
    assert_eq!(stored.headers["content-type"], "text/plain");
    assert_eq!(stored.headers["x-amz-meta-k"], "v");
    let options = UploadOptions {
        attributes: Attributes::from_iter([(Attribute::Metadata("other".into()), "v")]),
        ..of_length(&body)
    };
    let mut upload2 = upload(&target(&put_url(&server)), options).await.unwrap();
    let error = complete(&mut upload2, &body).await.unwrap_err();
    let reason = misused(&error);
    assert!(
        reason.contains("not signed for these headers: x-amz-meta-other"),
        "{reason}"
    );
}

/// A store that looks at the time until which an address is valid.
struct Expires(Arc<S3>);

impl Protocol for Expires {
    fn respond(&self, request: &HttpRequest) -> HttpResponse {
        let date = request.query("X-Amz-Date").unwrap();
        let date = chrono::NaiveDateTime::parse_from_str(date, "%Y%m%dT%H%M%SZ").unwrap();
        let seconds = request.query("X-Amz-Expires").unwrap().parse().unwrap();
        if date.and_utc() + TimeDelta::seconds(seconds) < Utc::now() {
            HttpResponse::status(403).body(
                "<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>",
            )
        } else {
            self.0.respond(request)
        }
    }
}

#[tokio::test]
async fn expired_address_is_named_with_its_time() {
    let s3 = S3::new();
    let server = Server::start(Arc::new(Expires(Arc::clone(&s3))))
        .await
        .unwrap();
    let base = put_url(&server);
    let valid = Utc::now().format("%Y%m%dT%H%M%SZ");
    let body = pattern(6, 3 * CHUNK);
    let fresh = target(&format!("{base}&X-Amz-Date={valid}&X-Amz-Expires=600"));
    let mut upload1 = upload(&fresh, of_length(&body)).await.unwrap();
    complete(&mut upload1, &body).await.unwrap();
    let old = target(&format!(
        "{base}&X-Amz-Date=20260102T030405Z&X-Amz-Expires=60"
    ));
    for length in [10, 3 * CHUNK] {
        let body = body.slice(..length);
        let mut upload = upload(&old, of_length(&body)).await.unwrap();
        let error = complete(&mut upload, &body).await.unwrap_err();
        assert!(matches!(error, Error::PermissionDenied { .. }), "{error}");
        let text = format!("{error} {error:?}");
        assert!(
            text.contains("was valid until 2026-01-02T03:05:05Z"),
            "{text}"
        );
        assert!(!text.contains("SECRET"), "{text}");
    }
}

fn signer(server: &Server) -> AmazonS3 {
    let builder = AmazonS3Builder::new()
        .with_bucket_name("data")
        .with_endpoint(server.url())
        .with_allow_http(true)
        .with_region("us-east-1")
        .with_access_key_id("key")
        .with_secret_access_key("SECRET");
    builder.build().unwrap()
}

/// The output of `bywash presign --parts`.
async fn part_urls(server: &Server, count: usize) -> PartUrls {
    let store = signer(server);
    let path = Path::from("dir/object");
    let id = store.create_multipart(&path).await.unwrap();
    let sign = async |method: Method, query: &[(&str, &str)]| -> String {
        let query = query.iter().copied();
        let options = SignedUrlOptions::new().with_query(query);
        let validity = Duration::from_secs(600);
        let url = store.signed_url_opts(method, &path, validity, &options);
        url.await.unwrap().to_string()
    };
    let upload = ("uploadId", &*id);
    let mut parts = Vec::new();
    for number in 1..=count {
        let number = number.to_string();
        parts.push(sign(Method::PUT, &[("partNumber", &*number), upload]).await);
    }
    let page = [("max-parts", "1000"), ("part-number-marker", "0"), upload];
    PartUrls {
        object: "s3://data/dir/object".to_owned(),
        parts,
        complete: sign(Method::POST, &[upload]).await,
        abort: Some(sign(Method::DELETE, &[upload]).await),
        list: vec![sign(Method::GET, &page).await],
        head: Some(sign(Method::HEAD, &[]).await),
        upload_id: id.clone(),
        expires: None,
        min_part_bytes: 1,
    }
}

async fn parts(count: usize) -> (Arc<S3>, Server, PartUrls) {
    let s3 = S3::new().with_limits(1000, 1);
    let server = Server::start(Arc::<S3>::clone(&s3)).await.unwrap();
    let urls = part_urls(&server, count).await;
    let _seen = server.take_log();
    (s3, server, urls)
}

fn target_of(urls: &PartUrls) -> SignedTarget {
    SignedTarget::Parts(Arc::new(urls.clone()))
}

#[tokio::test]
async fn signed_parts_are_sent_again_after_any_fault_and_completed_once() {
    for parallel in [1, 3] {
        for (text, fault) in [
            ("partNumber=2&", ServerFault::ResetAfter(1000)),
            ("partNumber=1&", ServerFault::LoseResponse),
            ("partNumber=5&", ServerFault::Unavailable),
            ("POST ", ServerFault::Unavailable),
            ("POST ", ServerFault::LoseResponse),
            ("max-parts", ServerFault::Unavailable),
        ] {
            let (s3, server, urls) = parts(40).await;
            server.script(text, fault);
            let target = target_of(&urls);
            let body = pattern(7, 5 * CHUNK + 9);
            let options = UploadOptions {
                parallel,
                ..of_length(&body)
            };
            let mut upload = upload(&target, options).await.unwrap();
            complete(&mut upload, &body).await.unwrap();
            let stored = s3.objects().get("data", "dir/object").unwrap();
            assert_eq!(stored.bytes, body, "{text}: {fault:?}");
            assert_eq!(s3.open_uploads(), 0);
            let log = server.take_log();
            let put = log.iter().filter(|request| request.line.starts_with("PUT"));
            for request in put {
                assert!(request.headers.contains_key("content-md5"));
            }
        }
    }
}

#[tokio::test]
async fn empty_object_and_one_of_unknown_length_go_by_signed_parts() {
    for length in [0, 1, 5 * CHUNK] {
        let (s3, _server, urls) = parts(20).await;
        let target = target_of(&urls);
        let body = pattern(8, length);
        let mut upload = upload(&target, UploadOptions::default()).await.unwrap();
        complete(&mut upload, &body).await.unwrap();
        assert_eq!(s3.objects().get("data", "dir/object").unwrap().bytes, body);
    }
}

/// A second process has the same addresses, with or without the first one's token.
#[tokio::test]
async fn another_process_sends_only_parts_that_the_store_does_not_have() {
    let body = pattern(9, 5 * CHUNK + 9);
    for lists in [true, false] {
        for with_token in [true, false] {
            let (s3, server, mut urls) = parts(40).await;
            if !lists {
                urls.list.clear();
            }
            let target = target_of(&urls);
            let mut first = upload(&target, of_length(&body)).await.unwrap();
            let until = 3 * CHUNK + 100;
            for piece in body.slice(..until).chunks(30_011) {
                first.write(Bytes::copy_from_slice(piece)).await.unwrap();
            }
            let token = sent(&first.capture());
            drop(first);
            let _seen = server.take_log();
            let (mut second, from) = if with_token {
                (bucket(&target).restore_upload(&token).await.unwrap(), until)
            } else {
                (upload(&target, of_length(&body)).await.unwrap(), 0)
            };
            complete(&mut second, &body.slice(from..)).await.unwrap();
            assert_eq!(s3.objects().get("data", "dir/object").unwrap().bytes, body);
            let log = server.take_log();
            let sent = log.iter().filter(|request| request.line.starts_with("PUT"));
            let expected = if lists || with_token { 3 } else { 6 };
            assert_eq!(sent.count(), expected, "lists {lists}, token {with_token}");
        }
    }
}

#[tokio::test]
async fn more_parts_than_were_signed_are_refused_and_an_abort_needs_its_address() {
    let (s3, server, mut urls) = parts(2).await;
    let target = target_of(&urls);
    let body = pattern(10, 3 * CHUNK);
    // Of known length: fewer, longer parts.
    let mut fits = upload(&target, of_length(&body)).await.unwrap();
    complete(&mut fits, &body).await.unwrap();
    let again = part_urls(&server, 2).await;
    let target = target_of(&again);
    let mut unknown = upload(&target, UploadOptions::default()).await.unwrap();
    let long = pattern(10, 8 * CHUNK);
    let error = complete(&mut unknown, &long).await.unwrap_err();
    let found = EngineError::find(&error);
    assert!(
        matches!(
            found,
            Some(EngineError::TooManyParts { limit_parts: 2, .. })
        ),
        "{error}"
    );
    unknown.abort().await.unwrap();
    assert_eq!(s3.open_uploads(), 0);
    urls = part_urls(&server, 2).await;
    urls.abort = None;
    let target = target_of(&urls);
    let mut left = upload(&target, of_length(&body)).await.unwrap();
    left.write(body.slice(..2 * CHUNK)).await.unwrap();
    let error = left.abort().await.unwrap_err();
    assert!(
        misused(&error).contains("no address was signed for DELETE"),
        "{error}"
    );
}

async fn google() -> (Arc<Gcs>, Server, SignedTarget) {
    let gcs = Gcs::new();
    let server = Server::start(Arc::<Gcs>::clone(&gcs)).await.unwrap();
    gcs.require_token("only for starts with credentials");
    let url = format!(
        "{}/data/dir/object?X-Goog-SignedHeaders=host%3Bx-goog-resumable&X-Goog-Signature=SECRET",
        server.url()
    );
    let target = target(&url);
    (gcs, server, target)
}

#[tokio::test]
async fn googles_signed_start_resumes_at_the_stored_offset_also_in_another_process() {
    for length in [0, 5, CHUNK, 3 * CHUNK + 9] {
        let (gcs, server, target) = google().await;
        let body = pattern(11, length);
        server.script("bytes 0-", ServerFault::StoreAtMost(1000));
        let mut upload = upload(&target, UploadOptions::default()).await.unwrap();
        complete(&mut upload, &body).await.unwrap();
        assert_eq!(gcs.objects().get("data", "dir/object").unwrap().bytes, body);
        assert_eq!(upload.finish().await.unwrap().length, length as u64);
    }
    let (gcs, server, target) = google().await;
    let body = pattern(12, 4 * CHUNK + 9);
    let mut first = upload(&target, UploadOptions::default()).await.unwrap();
    first.write(body.slice(..2 * CHUNK + 9)).await.unwrap();
    let token = sent(&first.capture());
    drop(first);
    let _seen = server.take_log();
    let mut second = bucket(&target).restore_upload(&token).await.unwrap();
    complete(&mut second, &body.slice(2 * CHUNK + 9..))
        .await
        .unwrap();
    assert_eq!(gcs.objects().get("data", "dir/object").unwrap().bytes, body);
    let log = server.take_log();
    let bytes: u64 = log.iter().map(|request| request.received).sum();
    assert_eq!(bytes, 2 * CHUNK as u64 + 9);
    assert!(log.iter().all(|request| !request.line.starts_with("POST")));
}

#[tokio::test]
async fn googles_signed_start_takes_only_signed_conditions() {
    let (_gcs, _server, target) = google().await;
    let options = UploadOptions {
        mode: PutMode::Create,
        ..UploadOptions::default()
    };
    let mut upload = upload(&target, options).await.unwrap();
    let error = complete(&mut upload, &pattern(1, 10)).await.unwrap_err();
    let reason = misused(&error);
    assert!(reason.contains("x-goog-if-generation-match"), "{reason}");
}

/// A container of Azure whose signatures allow no reads.
struct NoReads(Arc<Azure>);

impl Protocol for NoReads {
    fn respond(&self, request: &HttpRequest) -> HttpResponse {
        match request.method {
            Method::GET | Method::HEAD => {
                HttpResponse::status(403).with("x-ms-error-code", "AuthorizationPermissionMismatch")
            }
            _ => self.0.respond(request),
        }
    }
}

#[tokio::test]
async fn shared_access_signature_takes_blocks_also_without_the_right_to_list_them() {
    for (reads, fault) in [
        (true, ServerFault::LoseResponse),
        (false, ServerFault::LoseResponse),
        (false, ServerFault::ResetAfter(1000)),
    ] {
        let azure = Azure::new();
        let protocol: Arc<dyn Protocol> = if reads {
            Arc::<Azure>::clone(&azure)
        } else {
            Arc::new(NoReads(Arc::clone(&azure)))
        };
        let server = Server::start(protocol).await.unwrap();
        let url = format!(
            "{}/account/box/dir/a%20b?sv=2023-11-03&sr=b&sp=cw&sig=SECRET%2B%3D",
            server.url()
        );
        let target = target(&url);
        let body = pattern(13, 5 * CHUNK + 9);
        server.script("comp=block&", fault);
        let mut first = upload(&target, of_length(&body)).await.unwrap();
        first.write(body.slice(..3 * CHUNK + 9)).await.unwrap();
        let token = sent(&first.capture());
        assert!(!format!("{first:?} {token:?}").contains("SECRET"));
        drop(first);
        let _seen = server.take_log();
        let mut second = bucket(&target).restore_upload(&token).await.unwrap();
        complete(&mut second, &body.slice(3 * CHUNK + 9..))
            .await
            .unwrap();
        let stored = azure.objects().get("account", "box/dir/a b").unwrap();
        assert_eq!(stored.bytes, body);
        let log = server.take_log();
        let puts: Vec<_> = log
            .iter()
            .filter(|request| request.line.starts_with("PUT"))
            .collect();
        assert_eq!(puts.len(), 4, "three blocks and the list: {puts:?}");
        assert!(puts.iter().all(|put| put.line.contains("sig=SECRET")));
        // At most one chunk: one request, with its MD5.
        let small = pattern(14, 100);
        let mut upload = upload(&target, of_length(&small)).await.unwrap();
        complete(&mut upload, &small).await.unwrap();
        let log = server.take_log();
        assert_eq!(log.len(), 1);
        assert!(log[0].headers.contains_key("content-md5"));
    }
}

#[tokio::test]
async fn recorded_sessions_are_continued_without_the_address() {
    let (gcs, _server, target) = google().await;
    let body = pattern(15, 3 * CHUNK);
    let origin = SignedStore::open(&target).unwrap();
    let (options, object) = (Default::default(), target.object());
    let session = bywash::Origin::open_session(&origin, &object, &options).await;
    let token = session.unwrap().token();
    drop(origin);
    let recorded = SignedStore::recorded(&token).unwrap().unwrap();
    let session = bywash::Origin::resume_session(&recorded, &object, &options, &token);
    let session = session.await.unwrap();
    super::drive::drive(&*session, &body, CHUNK).await.unwrap();
    assert_eq!(gcs.objects().get("data", "dir/object").unwrap().bytes, body);
    let store_of_a_bucket = bywash::origin::SessionToken("md5 id".to_owned());
    assert!(SignedStore::recorded(&store_of_a_bucket).is_none());
    for damaged in ["signed-parts {}\nmd5 id", "signed-blob nowhere\nblocks x"] {
        let token = bywash::origin::SessionToken(damaged.to_owned());
        assert!(SignedStore::recorded(&token).unwrap().is_err(), "{damaged}");
    }
}

/// An address of a store that this test could reach only with its credentials.
#[tokio::test]
async fn signed_origin_refuses_reads() {
    let target = target("http://127.0.0.1:9/data/k?X-Amz-Signature=SECRET");
    let bucket = bucket(&target);
    let error = object_store::ObjectStoreExt::get(&bucket, &target.object()).await;
    let error = error.unwrap_err();
    assert!(error.to_string().contains("only be uploaded"), "{error}");
}
