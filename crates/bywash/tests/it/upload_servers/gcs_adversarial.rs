//! The hardest cases of Google's Java client that concern sessions; the writer's own behaviour is tested with the
//! writer.

use std::sync::Arc;

use bywash::origin::SessionStatus;
use bywash::upload::UploadOptions;
use bywash::{Consistency, Engine, OriginError};
use bywash_sim::server::ServerFault;
use bywash_support::pattern;
use object_store::PutMode;
use object_store::path::Path;

use crate::numbered_parts::SendChunk;
use crate::upload_servers::drive::{drive, may_pass};
use crate::upload_servers::gcs::{UNIT, chunk, client, ending, world};

#[tokio::test]
async fn resumes_after_a_503_with_k_bytes_stored_for_every_k() {
    let world = world().await;
    let bytes = pattern(1, 2 * UNIT + 100);
    for kept in [0, 1, UNIT / 2, UNIT - 1, UNIT] {
        let session = world.open(PutMode::Overwrite).await.unwrap();
        let _ = world.server.take_log();
        let fault = ServerFault::UnavailableAfter(kept as u64);
        world.server.script("bytes 262144-524287/*", fault);
        let done = drive(&*session, &bytes, UNIT).await.unwrap();
        assert_eq!(done.resent, (UNIT - kept) as u64, "{kept}");
        let log = world.server.take_log();
        let ranges: Vec<&str> = log
            .iter()
            .filter_map(|one| one.content_range.as_deref())
            .collect();
        let again = UNIT + kept;
        let next = match kept {
            UNIT => "bytes 524288-524387/524388".to_owned(),
            _ => format!("bytes {again}-524287/*"),
        };
        assert_eq!(
            ranges[1..4],
            ["bytes 262144-524287/*", "bytes */*", &next],
            "{kept}"
        );
        assert_eq!(world.object(), Some(bytes.clone()), "{kept}");
    }
}

#[tokio::test]
async fn lost_response_of_the_finalizing_put() {
    let world = world().await;
    let bytes = pattern(2, UNIT + 100);
    // The object exists.
    let session = world.open(PutMode::Create).await.unwrap();
    world.server.script("/262244", ServerFault::LoseResponse);
    let done = drive(&*session, &bytes, UNIT).await.unwrap();
    assert_eq!(done.finished.length, Some(bytes.len() as u64));
    assert_eq!(world.object(), Some(bytes.clone()));

    // All bytes are stored, and the object is not final: the store's status is no success.
    let changed = pattern(3, UNIT + 100);
    let session = world.open(PutMode::Overwrite).await.unwrap();
    world
        .server
        .script("/262244", ServerFault::UnavailableAfter(100));
    session.send(&chunk(&changed, 0, UNIT)).await.unwrap();
    let tail = chunk(&changed, UNIT, changed.len());
    let error = session
        .finish(&ending(&changed, Some(tail)))
        .await
        .unwrap_err();
    assert!(may_pass(&error), "{error}");
    let status = session.status().await.unwrap();
    assert!(
        matches!(status, SessionStatus::Open(kept) if kept[0].range.end == changed.len() as u64)
    );
    assert_eq!(world.object(), Some(bytes));
    session.finish(&ending(&changed, None)).await.unwrap();
    assert_eq!(world.object(), Some(changed));

    // An empty object, once before the store processed the request and once after.
    let empty = pattern(4, 0);
    for fault in [ServerFault::Unavailable, ServerFault::LoseResponse] {
        let session = world.open(PutMode::Overwrite).await.unwrap();
        world.server.script("bytes */0", fault);
        let done = drive(&*session, &empty, UNIT).await.unwrap();
        assert_eq!(done.finished.length, Some(0));
        assert_eq!(world.object(), Some(empty.clone()));
        world.gcs.objects().delete("data", "p/a");
    }
}

#[tokio::test]
async fn server_stores_less_than_a_unit_or_nothing() {
    let world = world().await;
    let bytes = pattern(5, 2 * UNIT + 1);
    for kept in [0, 1, 1000, UNIT as u64 - 1] {
        let session = world.open(PutMode::Overwrite).await.unwrap();
        world
            .server
            .script("bytes 0-", ServerFault::StoreAtMost(kept));
        world.server.script("/524289", ServerFault::StoreAtMost(0));
        let done = drive(&*session, &bytes, UNIT).await.unwrap();
        assert_eq!(done.resent, UNIT as u64 - kept + 1);
        assert_eq!(world.object(), Some(bytes.clone()));
        world.gcs.objects().delete("data", "p/a");
    }
}

#[tokio::test]
async fn server_reports_less_than_it_stored() {
    let world = world().await;
    let bytes = pattern(6, 2 * UNIT + 1);
    for less in [1, UNIT as u64] {
        let session = world.open(PutMode::Overwrite).await.unwrap();
        world
            .server
            .script("bytes 0-", ServerFault::AcknowledgeLess(less));
        let done = drive(&*session, &bytes, UNIT).await.unwrap();
        assert_eq!(done.resent, less);
        assert_eq!(world.object(), Some(bytes.clone()));
        world.gcs.objects().delete("data", "p/a");
    }
}

#[tokio::test]
async fn acknowledgement_beyond_the_sent_bytes_is_an_error() {
    let world = world().await;
    let bytes = pattern(7, 2 * UNIT + 1);
    let session = world.open(PutMode::Overwrite).await.unwrap();
    world
        .server
        .script("bytes 0-", ServerFault::AcknowledgeMore(1));
    let error = drive(&*session, &bytes, UNIT).await.unwrap_err();
    assert!(
        matches!(
            OriginError::find(&error),
            Some(OriginError::UploadDamaged { .. })
        ),
        "{error}"
    );
    assert!(error.to_string().contains("(S.7)"), "{error}");
    assert_eq!(world.object(), None);
}

#[tokio::test]
async fn server_that_regresses_is_an_error() {
    let world = world().await;
    let bytes = pattern(8, 3 * UNIT);
    let session = world.open(PutMode::Overwrite).await.unwrap();
    session.send(&chunk(&bytes, 0, UNIT)).await.unwrap();
    world
        .server
        .script("bytes */*", ServerFault::LoseBytes(UNIT as u64));
    assert_eq!(
        session.status().await.unwrap(),
        SessionStatus::Open(Vec::new())
    );
    // A client that does not query gets an error about the gap, which is not transient.
    let error = session
        .send(&chunk(&bytes, UNIT, 2 * UNIT))
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("(S.5)") && !may_pass(&error),
        "{error}"
    );
    // Nor does a completion that leaves out the lost bytes succeed.
    let error = session.finish(&ending(&bytes, None)).await.unwrap_err();
    assert!(
        error.to_string().contains("(S.3)") && !may_pass(&error),
        "{error}"
    );
    assert_eq!(world.object(), None);
}

#[tokio::test]
async fn unknown_session_may_have_become_the_object() {
    let world = world().await;
    let engine = Engine::builder().memory(32 << 20).build().unwrap();
    let store = Arc::new(client(&world.server));
    let bucket = engine.mount("test", store, Consistency::default()).unwrap();
    let options = || UploadOptions {
        chunk: Some(UNIT as u64),
        ..UploadOptions::default()
    };
    let path = Path::from("a");
    let bytes = pattern(9, UNIT + 1);
    // The completion is processed, its response lost, and then the session is unknown: the object proves it.
    world.server.script("/262145", ServerFault::LoseResponse);
    world.server.script("bytes */*", ServerFault::ForgetUpload);
    let mut upload = bucket.upload(&path, options()).await.unwrap();
    upload.write(bytes.clone()).await.unwrap();
    assert_eq!(upload.finish().await.unwrap().length, bytes.len() as u64);
    assert_eq!(world.object(), Some(bytes.clone()));
    // The completion is not processed: an older object of the same length proves nothing.
    world.server.script("/262145", ServerFault::Unavailable);
    world.server.script("bytes */*", ServerFault::ForgetUpload);
    let mut upload = bucket.upload(&path, options()).await.unwrap();
    upload.write(pattern(10, UNIT + 1)).await.unwrap();
    let error = upload.finish().await.unwrap_err();
    assert!(
        matches!(
            OriginError::find(&error),
            Some(OriginError::UploadLost { .. })
        ),
        "{error}"
    );
    assert_eq!(world.object(), Some(bytes));
}
