//! Uploads to Azure by its protocol: blocks, block lists, and a commit.

use std::sync::Arc;

use bytes::Bytes;
use bywash::origin::azure::AzureStore;
use bywash::origin::{SessionOptions, SessionStatus};
use bywash::{Origin, OriginError, UploadOptions, UploadedPart};
use bywash_sim::advance_clock_by_ticks;
use bywash_sim::server::azure::Azure;
use bywash_sim::server::{FaultPlan, LoggedRequest, Server, ServerFault, ServerFaultKind};
use bywash_support::pattern;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::path::Path;
use object_store::{Attribute, Attributes, Error, PutMode};

use super::seeded::{is_honest, upload_all};
use super::{CHUNK, bucket};

use crate::numbered_parts::NumberedParts;

async fn store(protocol: &Arc<Azure>) -> (Server, AzureStore) {
    let server = Server::start(Arc::<Azure>::clone(protocol)).await.unwrap();
    let builder = MicrosoftAzureBuilder::new()
        .with_account("account")
        .with_access_key("c2VjcmV0")
        .with_container_name("data")
        .with_endpoint(format!("{}/account", server.url()));
    let store = AzureStore::from_builder(builder, "data", &Path::from("p")).unwrap();
    (server, store)
}

fn object(protocol: &Azure, path: &Path) -> Option<Bytes> {
    let stored = protocol.objects().get("account", &format!("data/p/{path}"));
    stored.map(|stored| stored.bytes)
}

#[tokio::test]
async fn seeded_faults_that_pass_never_stop_an_upload() {
    advance_clock_by_ticks();
    let kinds = ServerFaultKind::TRANSIENT.map(|kind| (kind, 0.05));
    for seed in 0..16 {
        let protocol = Azure::new();
        let (server, store) = store(&protocol).await;
        server.set_fault_plan(FaultPlan::seeded(seed, &kinds, 12));
        for tried in upload_all(seed, &bucket(Arc::new(store))).await {
            let at = format!("seed {seed}, {}, {} bytes", tried.path, tried.body.len());
            tried
                .outcome
                .unwrap_or_else(|error| panic!("{at}: {error}"));
            assert_eq!(object(&protocol, &tried.path), Some(tried.body), "{at}");
        }
    }
}

#[tokio::test]
async fn seeded_losses_never_pass_for_success() {
    advance_clock_by_ticks();
    let kinds = [
        ServerFaultKind::ForgetUpload,
        ServerFaultKind::LoseBytes,
        ServerFaultKind::LoseResponse,
    ]
    .map(|kind| (kind, 0.06));
    let mut failed = 0;
    for seed in 0..16 {
        let protocol = Azure::new();
        let (server, store) = store(&protocol).await;
        server.set_fault_plan(FaultPlan::seeded(seed, &kinds, 12));
        for tried in upload_all(seed, &bucket(Arc::new(store))).await {
            let at = format!("seed {seed}, {}, {} bytes", tried.path, tried.body.len());
            match tried.outcome {
                Ok(()) => assert_eq!(object(&protocol, &tried.path), Some(tried.body), "{at}"),
                Err(error) => {
                    failed += 1;
                    assert!(is_honest(&error), "{at}: {error}");
                }
            }
        }
    }
    assert!(failed > 0, "no fault ever mattered");
}

fn options() -> UploadOptions {
    UploadOptions {
        mode: PutMode::Create,
        attributes: Attributes::from_iter([(Attribute::ContentType, "text/plain")]),
        chunk: Some(CHUNK),
        ..UploadOptions::default()
    }
}

#[tokio::test]
async fn another_process_sends_only_missing_parts() {
    advance_clock_by_ticks();
    let protocol = Azure::new();
    let (server, store) = store(&protocol).await;
    let (path, body) = (Path::from("a"), pattern(1, 5 * 8192 + 4096));
    let mut upload = bucket(Arc::new(store.clone()))
        .upload(&path, options())
        .await
        .unwrap();
    upload.write(body.slice(..4 * 8192)).await.unwrap();
    let token = upload.capture();
    drop(upload);
    let sent: u64 = server.take_log().iter().map(|logged| logged.received).sum();
    let mut upload = bucket(Arc::new(store))
        .restore_upload(&token)
        .await
        .unwrap();
    upload
        .write(body.slice(usize::try_from(token.position()).unwrap()..))
        .await
        .unwrap();
    let result = upload.finish().await.unwrap();
    assert_eq!(object(&protocol, &path), Some(body.clone()));
    assert!(sent > 0 && result.sent_bytes <= body.len() as u64 - token.acknowledged());
    let stored = protocol.objects().get("account", "data/p/a").unwrap();
    assert_eq!(
        stored.headers.get("content-type").map(String::as_str),
        Some("text/plain")
    );
}

#[tokio::test]
async fn lost_commit_response_succeeds_despite_existing_object() {
    advance_clock_by_ticks();
    for fault in [ServerFault::LoseResponse, ServerFault::StallResponse] {
        let protocol = Azure::new();
        let (server, store) = store(&protocol).await;
        let (path, body) = (Path::from("a"), pattern(2, 3 * 8192));
        server.script("comp=blocklist", fault);
        let mut upload = bucket(Arc::new(store))
            .upload(&path, options())
            .await
            .unwrap();
        upload.write(body.clone()).await.unwrap();
        upload.finish().await.unwrap();
        assert_eq!(object(&protocol, &path), Some(body), "{fault:?}");
    }
}

#[tokio::test]
async fn condition_holds_at_the_commit_and_dropped_blocks_are_reported_lost() {
    advance_clock_by_ticks();
    let protocol = Azure::new();
    let (_server, store) = store(&protocol).await;
    let (path, body) = (Path::from("a"), pattern(3, 3 * 8192));
    let mut upload = bucket(Arc::new(store.clone()))
        .upload(&path, options())
        .await
        .unwrap();
    upload.write(body.clone()).await.unwrap();
    let first = Bytes::from_static(b"first");
    let none = std::collections::BTreeMap::new();
    protocol
        .objects()
        .put("account", "data/p/a", first.clone(), none, |_| true)
        .unwrap();
    let error = upload.finish().await.unwrap_err();
    assert!(matches!(error, Error::AlreadyExists { .. }), "{error}");
    assert_eq!(object(&protocol, &path), Some(first));

    let path = Path::from("b");
    let mut upload = bucket(Arc::new(store.clone()))
        .upload(&path, options())
        .await
        .unwrap();
    upload.write(body).await.unwrap();
    protocol.drop_uncommitted_blocks();
    let error = upload.finish().await.unwrap_err();
    assert!(
        matches!(
            OriginError::find(&error),
            Some(OriginError::UploadLost { .. })
        ),
        "{error}"
    );
    assert_eq!(object(&protocol, &path), None);
    let fresh = store
        .open_session(&path, &SessionOptions::default())
        .await
        .unwrap();
    assert_eq!(
        fresh.status().await.unwrap(),
        SessionStatus::Open(Vec::new())
    );
}

#[tokio::test]
async fn client_parts_arrive_in_any_order_and_are_listed_at_completion() {
    advance_clock_by_ticks();
    let protocol = Azure::new();
    let (server, store) = store(&protocol).await;
    let path = Path::from("a");
    let attributes = Attributes::from_iter([(Attribute::ContentType, "text/plain")]);
    let id = store.begin_upload(&path, attributes.into()).await.unwrap();
    let mut parts = Vec::new();
    for (number, text) in [(7, "world"), (3, "hello "), (3, "Hello ")] {
        let body = futures::stream::iter([Ok(Bytes::from_static(text.as_bytes()))]);
        let length = text.len() as u64;
        let sent = store.send_part(&path, &id, number, length, Box::pin(body));
        let e_tag = sent.await.unwrap();
        parts.push(UploadedPart { number, e_tag });
    }
    let named = [parts[2].clone(), parts[0].clone()];
    let done = store.complete_parts(&path, &id, &named, PutMode::Create.into());
    assert!(done.await.unwrap().e_tag.is_some());
    assert_eq!(
        object(&protocol, &path),
        Some(Bytes::from_static(b"Hello world"))
    );
    let again = store.complete_parts(&path, &id, &parts[1..2], PutMode::Overwrite.into());
    let error = again.await.unwrap_err();
    assert!(
        matches!(
            OriginError::find(&error),
            Some(OriginError::InvalidPart { number: 3, .. })
        ),
        "{error}"
    );
    // Azure refuses a request with two lengths.
    let lengths = |logged: &LoggedRequest| logged.headers.get_all("content-length").iter().count();
    assert!(server.take_log().iter().all(|logged| lengths(logged) == 1));
}
