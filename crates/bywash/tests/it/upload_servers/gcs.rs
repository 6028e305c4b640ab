//! Sessions of the `gs://` origin, at a server that follows Google's protocol.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use bywash::origin::gcs::{GcsStore, open_signed_session};
use bywash::origin::{Chunk, CompleteRequest, SessionOptions, SessionStatus, UploadSession};
use bywash::{Origin, OriginError, StatusError};
use bywash_sim::advance_clock_by_ticks;
use bywash_sim::server::gcs::Gcs;
use bywash_sim::server::objects::crc32c;
use bywash_sim::server::{Server, ServerFault};
use bywash_support::pattern;
use http::{HeaderMap, HeaderValue};
use object_store::client::{Signer, StaticCredentialProvider};
use object_store::gcp::{
    GcpCredential, GcpSigningCredential, GoogleCloudStorageBuilder, ServiceAccountKey,
};
use object_store::path::Path;
use object_store::{Attribute, Attributes, Error, ObjectStoreExt, PutMode, UpdateVersion};

use crate::numbered_parts::SendChunk;
use crate::upload_servers::drive::{drive, may_pass};

pub(crate) const UNIT: usize = 256 * 1024;

/// A store behind a server, and its client.
pub(crate) struct World {
    pub(crate) gcs: Arc<Gcs>,
    pub(crate) server: Server,
    pub(crate) store: GcsStore,
}

pub(crate) fn client(server: &Server) -> GcsStore {
    let builder = GoogleCloudStorageBuilder::new()
        .with_bucket_name("data")
        .with_base_url(&server.url())
        .with_credentials(token("TOKEN"))
        .with_signing_credentials(Arc::new(StaticCredentialProvider::new(signing())));
    let store = GcsStore::from_builder(builder, "data", &Path::from("p")).unwrap();
    store.with_conditional_delete(Some("generation")).unwrap()
}

fn token(bearer: &str) -> Arc<StaticCredentialProvider<GcpCredential>> {
    Arc::new(StaticCredentialProvider::new(GcpCredential {
        bearer: bearer.to_owned(),
    }))
}

/// Signs with an invalid signature.
struct Reversed;

impl Signer for Reversed {
    fn sign(&self, text: &[u8]) -> object_store::Result<Vec<u8>> {
        Ok(text.iter().rev().take(4).copied().collect())
    }
}

fn signing() -> GcpSigningCredential {
    GcpSigningCredential {
        email: "who@example.com".to_owned(),
        private_key: Some(ServiceAccountKey::new(Box::new(Reversed))),
    }
}

/// One runtime per test: a pause of the machine is no stall of the store.
pub(crate) async fn world() -> World {
    advance_clock_by_ticks();
    let gcs = Gcs::new();
    let server = Server::start(Arc::clone(&gcs) as _).await.unwrap();
    let store = client(&server);
    World { gcs, server, store }
}

impl World {
    pub(crate) async fn open(&self, mode: PutMode) -> object_store::Result<Box<dyn UploadSession>> {
        let options = SessionOptions {
            mode,
            ..SessionOptions::default()
        };
        self.store.open_session(&Path::from("a"), &options).await
    }

    /// Returns the bytes of the object, if it exists.
    pub(crate) fn object(&self) -> Option<Bytes> {
        Some(self.gcs.objects().get("data", "p/a")?.bytes)
    }
}

pub(crate) fn chunk(bytes: &Bytes, at: usize, end: usize) -> Chunk {
    let piece = bytes.slice(at..end);
    Chunk {
        index: (at / UNIT) as u64,
        offset: at as u64,
        crc32c: crc32c(&piece),
        pieces: vec![piece],
    }
}

pub(crate) fn ending(bytes: &Bytes, tail: Option<Chunk>) -> CompleteRequest {
    CompleteRequest {
        attributes: Attributes::new(),
        parts: None,
        digest: None,
        length: bytes.len() as u64,
        crc32c: crc32c(bytes),
        tail,
    }
}

#[tokio::test]
async fn anonymous_client_looks_for_no_credentials() {
    let gcs = Gcs::new();
    let server = Server::start(Arc::clone(&gcs) as _).await.unwrap();
    let builder = GoogleCloudStorageBuilder::new()
        .with_bucket_name("data")
        .with_base_url(&server.url())
        .with_skip_signature(true);
    let store = GcsStore::from_builder(builder, "data", &Path::default()).unwrap();
    let path = Path::from("a");
    store.put(&path, "small".into()).await.unwrap();
    let session = store
        .open_session(&path, &SessionOptions::default())
        .await
        .unwrap();
    let bytes = Bytes::from_static(b"longer");
    let tail = Some(chunk(&bytes, 0, bytes.len()));
    session.finish(&ending(&bytes, tail)).await.unwrap();
    assert_eq!(
        store.get(&path).await.unwrap().bytes().await.unwrap(),
        bytes
    );
}

fn damaged(error: &Error) -> bool {
    matches!(
        OriginError::find(error),
        Some(OriginError::UploadDamaged { .. })
    )
}

fn lost(error: &Error) -> bool {
    matches!(
        OriginError::find(error),
        Some(OriginError::UploadLost { .. })
    )
}

#[tokio::test]
async fn session_becomes_the_object_with_its_metadata() {
    let world = world().await;
    world.gcs.require_token("TOKEN");
    let bytes = pattern(1, 2 * UNIT + 5);
    let mut attributes = Attributes::new();
    attributes.insert(Attribute::ContentType, "text/plain".into());
    attributes.insert(Attribute::Metadata("owner".into()), "me".into());
    let options = SessionOptions {
        attributes,
        length: Some(bytes.len() as u64),
        ..SessionOptions::default()
    };
    let path = Path::from("a");
    let session = world.store.open_session(&path, &options).await.unwrap();
    let rule = world.store.capabilities().chunk_rule;
    assert_eq!((rule.granule, rule.parallel), (UNIT as u64, false));
    let done = drive(&*session, &bytes, UNIT).await.unwrap();
    assert_eq!(done.resent, 0);
    assert_eq!(done.finished.length, Some(bytes.len() as u64));
    assert_eq!(done.finished.crc32c, Some(crc32c(&bytes)));
    assert_eq!(
        world.store.stat(&path).await.unwrap(),
        Some(done.finished.clone())
    );
    assert_eq!(world.store.stat(&Path::from("b")).await.unwrap(), None);
    // Reads return the attributes of the upload.
    let read = world.store.get(&path).await.unwrap();
    assert_eq!(read.meta.e_tag, done.finished.e_tag);
    assert_eq!(read.meta.version, done.finished.version);
    assert_eq!(
        read.attributes
            .get(&Attribute::ContentType)
            .unwrap()
            .as_ref(),
        "text/plain"
    );
    let owner = Attribute::Metadata("owner".into());
    assert_eq!(read.attributes.get(&owner).unwrap().as_ref(), "me");
    assert_eq!(read.bytes().await.unwrap(), bytes);

    let log = world.server.take_log();
    let with = |name: &str| {
        log.iter()
            .map(|one| one.headers.contains_key(name))
            .collect::<Vec<_>>()
    };
    // The token opens the session and the hash is sent with the completion; no other request contains either.
    assert_eq!(with("authorization")[..4], [true, false, false, false]);
    assert_eq!(with("x-goog-hash")[..4], [false, false, false, true]);
    assert_eq!(log[0].headers["x-upload-content-length"], "524293");
    let ranges: Vec<_> = log
        .iter()
        .filter_map(|one| one.content_range.as_deref())
        .collect();
    let expected = [
        "bytes 0-262143/*",
        "bytes 262144-524287/*",
        "bytes 524288-524292/524293",
    ];
    assert_eq!(ranges, expected);
}

#[tokio::test]
async fn upload_without_valid_credentials_is_unauthenticated() {
    let world = world().await;
    world.gcs.require_token("ANOTHER");
    let error = world.open(PutMode::Overwrite).await.unwrap_err();
    assert!(matches!(error, Error::Unauthenticated { .. }), "{error}");
}

#[tokio::test]
async fn conditions_are_checked_when_the_object_becomes_visible() {
    let world = world().await;
    let bytes = pattern(2, 10);
    let first = world.open(PutMode::Create).await.unwrap();
    let second = world.open(PutMode::Create).await.unwrap();
    let done = drive(&*first, &bytes, UNIT).await.unwrap().finished;
    let error = drive(&*second, &bytes, UNIT).await.unwrap_err();
    assert!(matches!(error, Error::AlreadyExists { .. }), "{error}");
    // Its bytes stay until it is aborted.
    assert!(
        matches!(second.status().await.unwrap(), SessionStatus::Open(kept) if kept[0].range == (0..10))
    );

    let known = |e_tag: &Option<String>, version: &Option<String>| {
        PutMode::Update(UpdateVersion {
            e_tag: e_tag.clone(),
            version: version.clone(),
        })
    };
    let by_e_tag = world.open(known(&done.e_tag, &None)).await.unwrap();
    let late = world.open(known(&None, &done.version)).await.unwrap();
    drive(&*by_e_tag, &pattern(3, 10), UNIT).await.unwrap();
    let error = drive(&*late, &bytes, UNIT).await.unwrap_err();
    assert!(matches!(error, Error::Precondition { .. }), "{error}");
    let error = world.open(known(&done.e_tag, &None)).await.unwrap_err();
    assert!(matches!(error, Error::Precondition { .. }), "{error}");
    assert_eq!(world.object(), Some(pattern(3, 10)));
}

#[tokio::test]
async fn another_process_continues_at_the_acknowledged_offset() {
    let world = world().await;
    let bytes = pattern(4, 3 * UNIT);
    let token = {
        let session = world.open(PutMode::Create).await.unwrap();
        session.send(&chunk(&bytes, 0, UNIT)).await.unwrap();
        session.token()
    };
    assert_eq!(format!("{token:?}"), "SessionToken(secret)");
    let options = SessionOptions {
        mode: PutMode::Create,
        ..SessionOptions::default()
    };
    let store = client(&world.server);
    let path = Path::from("a");
    let resumed = store.resume_session(&path, &options, &token).await;
    let session = resumed.unwrap();
    assert!(
        matches!(session.status().await.unwrap(), SessionStatus::Open(kept) if kept[0].range.end == UNIT as u64)
    );
    session.send(&chunk(&bytes, UNIT, 2 * UNIT)).await.unwrap();
    let tail = chunk(&bytes, 2 * UNIT, 3 * UNIT);
    session.finish(&ending(&bytes, Some(tail))).await.unwrap();
    assert_eq!(world.object(), Some(bytes));
}

#[tokio::test]
async fn aborted_and_forgotten_sessions_are_lost() {
    let world = world().await;
    let bytes = pattern(5, 2 * UNIT);
    let session = world.open(PutMode::Overwrite).await.unwrap();
    session.send(&chunk(&bytes, 0, UNIT)).await.unwrap();
    session.abort().await.unwrap();
    // Repeating it is no error.
    session.abort().await.unwrap();
    assert_eq!(session.status().await.unwrap(), SessionStatus::Gone);
    assert_eq!(world.gcs.open_sessions(), 0);

    let session = world.open(PutMode::Overwrite).await.unwrap();
    world.gcs.forget_sessions();
    assert!(lost(
        &session.send(&chunk(&bytes, 0, UNIT)).await.unwrap_err()
    ));
    assert!(lost(
        &session.finish(&ending(&bytes, None)).await.unwrap_err()
    ));
    assert_eq!(world.object(), None);
}

#[tokio::test]
async fn errors_and_debug_output_contain_no_session_url() {
    let world = world().await;
    let bytes = pattern(6, UNIT);
    let faults = [
        ServerFault::Unavailable,
        ServerFault::ResetAfter(9),
        ServerFault::LoseResponse,
        ServerFault::StallResponse,
        ServerFault::AcknowledgeMore(1),
        ServerFault::LoseBytes(1),
        ServerFault::ForgetUpload,
    ];
    for fault in faults {
        let session = world.open(PutMode::Overwrite).await.unwrap();
        assert!(session.token().0.contains("SECRET"));
        world.server.script("bytes 0-", fault);
        let mut shown = vec![format!("{session:?}")];
        if let Err(error) = session.send(&chunk(&bytes, 0, UNIT)).await {
            shown.extend([error.to_string(), format!("{error:?}")]);
        }
        for text in shown {
            assert!(
                !text.contains("SECRET") && !text.contains("upload_id"),
                "{text}"
            );
        }
    }
    let bad = bywash::origin::SessionToken("SECRET not an address".to_owned());
    let options = SessionOptions::default();
    let resumed = world
        .store
        .resume_session(&Path::from("a"), &options, &bad)
        .await;
    let error = resumed.unwrap_err();
    assert!(!format!("{error} {error:?}").contains("SECRET"), "{error}");
}

#[tokio::test]
async fn damaged_object_is_rejected_by_its_hash() {
    let world = world().await;
    let bytes = pattern(7, UNIT + 1);
    let session = world.open(PutMode::Overwrite).await.unwrap();
    world.server.script("bytes 0-", ServerFault::FlipBit);
    let error = drive(&*session, &bytes, UNIT).await.unwrap_err();
    let status = StatusError::find(&error).map(|found| found.status.as_u16());
    assert_eq!(status, Some(400), "{error}");
    assert!(!may_pass(&error));
    assert_eq!(world.object(), None);
}

#[tokio::test]
async fn signed_url_opens_one_upload_without_credentials() {
    let world = world().await;
    world.gcs.require_token("only for starts with credentials");
    let mut headers = HeaderMap::new();
    headers.insert("x-goog-if-generation-match", HeaderValue::from_static("0"));
    let path = Path::from("a");
    let validity = Duration::from_secs(600);
    let url = world
        .store
        .sign_upload(&path, validity, &headers)
        .await
        .unwrap();
    let part = |name: &str| {
        let pair = url.query_pairs().find(|(known, _)| known == name);
        pair.unwrap_or_else(|| panic!("no {name} in {url}"))
            .1
            .into_owned()
    };
    assert_eq!(url.path(), "/data/p/a");
    assert_eq!(part("X-Goog-Algorithm"), "GOOG4-RSA-SHA256");
    assert_eq!(part("X-Goog-Expires"), "600");
    assert!(part("X-Goog-Credential").starts_with("who@example.com/"));
    assert!(part("X-Goog-Credential").ends_with("/auto/storage/goog4_request"));
    assert_eq!(part("X-Goog-Date").len(), "20260101T000000Z".len());
    assert_eq!(
        part("X-Goog-SignedHeaders"),
        "host;x-goog-if-generation-match;x-goog-resumable"
    );
    assert!(!part("X-Goog-Signature").is_empty());

    let error = open_signed_session(&url, HeaderMap::new())
        .await
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("not given: x-goog-if-generation-match"),
        "{error}"
    );
    let session = open_signed_session(&url, headers.clone()).await.unwrap();
    let bytes = pattern(8, UNIT + 3);
    let done = drive(&*session, &bytes, UNIT).await.unwrap().finished;
    assert_eq!(done.length, Some(bytes.len() as u64));
    assert_eq!(done.crc32c, Some(crc32c(&bytes)));
    assert_eq!(world.object(), Some(bytes.clone()));
    let session = open_signed_session(&url, headers).await.unwrap();
    let error = drive(&*session, &bytes, UNIT).await.unwrap_err();
    assert!(matches!(error, Error::AlreadyExists { .. }), "{error}");
}

#[tokio::test]
async fn store_that_loses_acknowledged_bytes_is_an_error() {
    let world = world().await;
    let bytes = pattern(9, 3 * UNIT);
    let session = world.open(PutMode::Overwrite).await.unwrap();
    world
        .server
        .script("bytes 262144-", ServerFault::LoseBytes(1));
    let error = drive(&*session, &bytes, UNIT).await.unwrap_err();
    assert!(
        damaged(&error) && error.to_string().contains("(S.5)"),
        "{error}"
    );
    assert_eq!(world.object(), None);
}
