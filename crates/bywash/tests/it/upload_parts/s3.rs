//! Uploads to S3 by its protocol: parts, part lists, and a completion that may fail in any way.

use std::sync::Arc;

use bytes::Bytes;
use bywash::origin::s3::S3Store;
use bywash::origin::{SessionOptions, SessionStatus, SessionToken};
use bywash::{Origin, OriginError, Upload, UploadOptions, UploadToken};
use bywash_sim::advance_clock_by_ticks;
use bywash_sim::server::s3::S3;
use bywash_sim::server::{Server, ServerFault};
use bywash_support::pattern;
use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use object_store::{Attribute, Attributes, Error, ObjectStoreExt, PutMode};

use super::{CHUNK, STALL, bucket};

use crate::numbered_parts::NumberedParts;

const BUCKET: &str = "data";

async fn store(protocol: &Arc<S3>) -> (Server, S3Store) {
    let server = Server::start(Arc::<S3>::clone(protocol)).await.unwrap();
    let store = store_at(&server, "p");
    (server, store)
}

fn store_at(server: &Server, prefix: &str) -> S3Store {
    let builder = AmazonS3Builder::new()
        .with_bucket_name(BUCKET)
        .with_endpoint(server.url())
        .with_region("us-east-1")
        .with_access_key_id("key")
        .with_secret_access_key("secret");
    let store = S3Store::from_builder(builder, BUCKET, &Path::from(prefix)).unwrap();
    store.with_joining_time(STALL).with_min_part(CHUNK)
}

fn small(protocol: Arc<S3>) -> Arc<S3> {
    protocol.with_limits(2, usize::try_from(CHUNK).unwrap())
}

fn both() -> [Arc<S3>; 2] {
    [small(S3::new()), small(S3::plain())]
}

fn object(protocol: &S3, path: &Path) -> Option<Bytes> {
    let stored = protocol.objects().get(BUCKET, &format!("p/{path}"));
    stored.map(|stored| stored.bytes)
}

#[tokio::test]
async fn session_request_without_response_ends_after_the_stall_limit_of_the_retry_policy() {
    advance_clock_by_ticks();
    // Long enough that a slow line may take many times the stall limit.
    let (body, path) = (pattern(7, 3 << 20), Path::from("a"));
    let options = UploadOptions {
        chunk: Some(2 << 20),
        ..UploadOptions::default()
    };
    let [begin, part, list] = ["POST", "partNumber=1&", "max-parts="];
    let [complete, abort] = ["POST", "DELETE"];
    for (name, while_sending, at_the_end) in [
        ("begin", Some(begin), None),
        ("part", Some(part), None),
        ("list of parts", Some(list), None),
        ("completion", None, Some(complete)),
        ("abort", None, Some(abort)),
    ] {
        let protocol = small(S3::new());
        let (server, store) = store(&protocol).await;
        if while_sending == Some(list) {
            // After a lost response the parts are listed.
            server.script(part, ServerFault::LoseResponse);
        }
        let stall = |what: Option<&str>| {
            if let Some(what) = what {
                server.script(what, ServerFault::StallResponse);
            }
        };
        stall(while_sending);
        let begun = tokio::time::Instant::now();
        let bucket = bucket(Arc::new(store));
        let mut upload = bucket.upload(&path, options.clone()).await.unwrap();
        upload.write(body.clone()).await.unwrap();
        stall(at_the_end);
        let expected = if at_the_end == Some(abort) {
            upload.abort().await.unwrap();
            None
        } else {
            upload.finish().await.unwrap();
            Some(body.clone())
        };
        let took = begun.elapsed();
        assert!((STALL..8 * STALL).contains(&took), "{name}: {took:?}");
        assert_eq!(object(&protocol, &path), expected, "{name}");
    }
}

/// Lets the client take back the connection of a response that has ended: all that is left to do for it is ready to run.
async fn connection_is_idle() {
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn reads_parts_and_sessions_share_one_connection() {
    let protocol = small(S3::new());
    let (server, store) = store(&protocol).await;
    let path = Path::from("a");
    store.put(&path, "object".into()).await.unwrap();
    connection_is_idle().await;
    store.get(&path).await.unwrap().bytes().await.unwrap();
    connection_is_idle().await;
    let id = store.begin_upload(&path, Default::default()).await;
    let id = id.unwrap();
    connection_is_idle().await;
    let body = futures::stream::iter([Ok(Bytes::from_static(b"part"))]);
    let part = store.send_part(&path, &id, 1, 4, Box::pin(body));
    part.await.unwrap();
    connection_is_idle().await;
    let options = SessionOptions::default();
    let session = store.open_session(&path, &options).await.unwrap();
    connection_is_idle().await;
    session.abort().await.unwrap();
    assert_eq!(server.connections(), 1);
}

/// Begins an upload of five and a half chunks, sends four, and drops it as a killed process would.
async fn interrupted(store: &S3Store, path: &Path, body: &Bytes) -> UploadToken {
    let options = UploadOptions {
        mode: PutMode::Create,
        attributes: Attributes::from_iter([(Attribute::ContentType, "text/plain")]),
        chunk: Some(CHUNK),
        ..UploadOptions::default()
    };
    let mut upload = bucket(Arc::new(store.clone()))
        .upload(path, options)
        .await
        .unwrap();
    let sent = usize::try_from(4 * CHUNK).unwrap();
    upload.write(body.slice(..sent)).await.unwrap();
    upload.capture()
}

/// Continues an upload in another process, and writes all missing bytes.
async fn taken_over(store: S3Store, token: &UploadToken, body: &Bytes) -> Upload {
    let restored = bucket(Arc::new(store)).restore_upload(token).await;
    let mut upload = restored.unwrap();
    let at = usize::try_from(token.position()).unwrap();
    upload.write(body.slice(at..)).await.unwrap();
    upload
}

#[tokio::test]
async fn another_process_sends_only_missing_parts() {
    advance_clock_by_ticks();
    for protocol in both() {
        let (server, store) = store(&protocol).await;
        let (path, body) = (Path::from("a"), pattern(1, 5 * 8192 + 4096));
        let token = interrupted(&store, &path, &body).await;
        let _before = server.take_log();
        let mut upload = taken_over(store, &token, &body).await;
        let result = upload.finish().await.unwrap();
        assert_eq!(object(&protocol, &path), Some(body.clone()));
        assert!(result.sent_bytes <= body.len() as u64 - token.acknowledged());
        assert_eq!(protocol.open_uploads(), 0);
        let log = server.take_log();
        assert!(
            log.iter().any(|logged| logged.line.starts_with("GET")
                && logged.line.contains("part-number-marker"))
        );
    }
}

#[tokio::test]
async fn part_that_differs_from_its_acknowledgement_is_detected_at_takeover() {
    advance_clock_by_ticks();
    for protocol in both() {
        let (server, store) = store(&protocol).await;
        let (path, body) = (Path::from("a"), pattern(5, 5 * 8192 + 4096));
        server.script("PUT /data/p/a?partNumber=2", ServerFault::FlipBit);
        let token = interrupted(&store, &path, &body).await;
        let token = UploadToken::from_bytes(token.to_bytes().unwrap().into()).unwrap();
        assert!(token.acknowledged() >= 2 * CHUNK);
        let mut upload = taken_over(store, &token, &body).await;
        let error = upload.finish().await.unwrap_err();
        let found = OriginError::find(&error);
        assert!(
            matches!(found, Some(OriginError::UploadDamaged { .. })),
            "{error}"
        );
        assert_eq!(object(&protocol, &path), None);
    }
}

#[tokio::test]
async fn lost_completion_response_still_succeeds() {
    advance_clock_by_ticks();
    for protocol in both() {
        for fault in [
            ServerFault::LoseResponse,
            ServerFault::StallResponse,
            ServerFault::BadBody,
        ] {
            let (server, store) = store(&protocol).await;
            let path = Path::from(format!("{fault:?}"));
            let body = pattern(2, 3 * 8192);
            server.script(&format!("POST /data/p/{path}?uploadId"), fault);
            let options = UploadOptions {
                mode: PutMode::Create,
                chunk: Some(CHUNK),
                ..UploadOptions::default()
            };
            let mut upload = bucket(Arc::new(store))
                .upload(&path, options)
                .await
                .unwrap();
            upload.write(body.clone()).await.unwrap();
            upload.finish().await.unwrap();
            assert_eq!(object(&protocol, &path), Some(body), "{fault:?}");
        }
    }
}

#[tokio::test]
async fn condition_is_checked_at_the_end_of_an_upload() {
    advance_clock_by_ticks();
    for protocol in both() {
        let (_server, store) = store(&protocol).await;
        let (path, body) = (Path::from("a"), pattern(3, 6 * 8192));
        let token = interrupted(&store, &path, &body).await;
        store.put(&path, "first".into()).await.unwrap();
        let mut upload = taken_over(store, &token, &body).await;
        let error = upload.finish().await.unwrap_err();
        assert!(matches!(error, Error::AlreadyExists { .. }), "{error}");
        assert_eq!(object(&protocol, &path), Some(Bytes::from_static(b"first")));
        upload.abort().await.unwrap();
        assert_eq!(protocol.open_uploads(), 0);
    }
}

#[tokio::test]
async fn upload_unknown_to_the_store_is_reported_lost() {
    advance_clock_by_ticks();
    let protocol = small(S3::new());
    let (_server, store) = store(&protocol).await;
    let (path, body) = (Path::from("a"), pattern(4, 6 * 8192));
    let token = interrupted(&store, &path, &body).await;
    protocol.forget_uploads();
    let mut upload = bucket(Arc::new(store.clone()))
        .restore_upload(&token)
        .await
        .unwrap();
    let at = usize::try_from(token.position()).unwrap();
    let error = match upload.write(body.slice(at..)).await {
        Ok(()) => upload.finish().await.unwrap_err(),
        Err(error) => error,
    };
    assert!(
        matches!(
            OriginError::find(&error),
            Some(OriginError::UploadLost { .. })
        ),
        "{error}"
    );
    let options = SessionOptions::default();
    let unknown = SessionToken("md5 unknown".to_owned());
    let session = store
        .resume_session(&path, &options, &unknown)
        .await
        .unwrap();
    assert_eq!(session.status().await.unwrap(), SessionStatus::Gone);
    session.abort().await.unwrap();
}

#[tokio::test]
async fn open_uploads_are_listed_over_pages_and_dropped() {
    advance_clock_by_ticks();
    for protocol in both() {
        let (server, store) = store(&protocol).await;
        let bucket = bucket(Arc::new(store.clone()));
        assert_eq!(bucket.open_sessions().await.unwrap(), []);
        let names = ["a", "b c+d/é%&=", "e"];
        let options = SessionOptions::default();
        let mut tokens = Vec::new();
        for name in names {
            let session = store.open_session(&Path::from(name), &options).await;
            tokens.push(session.unwrap().token());
        }
        // Another mount's, whose prefix begins like ours.
        let beside = store_at(&server, "p2");
        beside
            .open_session(&Path::from("a"), &options)
            .await
            .unwrap();
        let _before = server.take_log();
        let found = bucket.open_sessions().await.unwrap();
        let lists = server.take_log();
        assert_eq!(lists.len(), 2, "three uploads on pages of two");
        assert!(lists[1].line.contains("key-marker") && lists[1].line.contains("upload-id-marker"));
        let keys: Vec<_> = found.iter().map(|open| open.object.clone()).collect();
        assert_eq!(keys, names.map(Path::from));
        for (open, token) in found.iter().zip(&tokens) {
            assert!(bucket.is_session(open, token), "{}", open.object);
        }
        assert!(!bucket.is_session(&found[0], &tokens[1]));

        // One that has ended by then is no error.
        for open in [&found[0], &found[1], &found[0]] {
            bucket.abort_session(open).await.unwrap();
        }
        assert_eq!(protocol.open_keys(BUCKET), ["p/e", "p2/a"]);
    }
}
