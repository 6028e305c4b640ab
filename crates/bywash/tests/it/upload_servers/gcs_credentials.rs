//! Credentials of the `gs://` origin, found as Google's clients find them. They are read from the environment, so
//! each case runs this program again in an environment of its own.

use std::process::{Command, Stdio};
use std::sync::Arc;

use bywash::Origin;
use bywash::origin::SessionOptions;
use bywash::origin::gcs::GcsStore;
use bywash_sim::server::gcs::Gcs;
use bywash_sim::server::{HttpRequest, HttpResponse, Protocol, Server};
use bywash_support::pattern;
use object_store::path::Path;

use crate::upload_servers::drive::drive;
use crate::upload_servers::gcs::UNIT;

/// Set for the second process only.
const SECOND: &str = "BYWASH_TEST_CREDENTIALS";

/// The metadata server of Google's cloud.
struct Metadata;

impl Protocol for Metadata {
    fn respond(&self, request: &HttpRequest) -> HttpResponse {
        let known = request.path == "/computeMetadata/v1/instance/service-accounts/default/token"
            && request.header("metadata-flavor") == Some("Google");
        if !known {
            return HttpResponse::status(404);
        }
        let token = r#"{"access_token":"OF THE MACHINE","expires_in":3600,"token_type":"Bearer"}"#;
        HttpResponse::status(200)
            .with("content-type", "application/json")
            .body(token)
    }
}

/// Uploads from another process, in this environment only.
async fn upload_with(environment: &[(&str, &str)]) {
    let folder = tempfile::tempdir().unwrap();
    let mut second = Command::new(std::env::current_exe().unwrap());
    second
        .args([
            "--exact",
            "upload_servers::gcs_credentials::second_process",
            "--ignored",
            "--nocapture",
        ])
        .env_clear()
        // No login of the current user.
        .env("HOME", folder.path())
        .env(SECOND, "1")
        .envs(environment.iter().copied())
        .stdin(Stdio::null());
    // The servers work until it ends.
    let run = tokio::task::spawn_blocking(move || second.output());
    let child = run.await.unwrap().unwrap();
    let text = String::from_utf8_lossy(&child.stdout) + String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success(), "{text}");
    assert!(text.contains("1 passed"), "{text}");
}

#[tokio::test]
#[ignore = "run by the other tests, in an environment of its own"]
async fn second_process() {
    if std::env::var_os(SECOND).is_none() {
        return;
    }
    let store = GcsStore::from_env("data", &Path::from("p")).unwrap();
    let opened = store
        .open_session(&Path::from("a"), &SessionOptions::default())
        .await;
    let session = opened.unwrap();
    drive(&*session, &pattern(1, UNIT + 1), UNIT).await.unwrap();
}

#[tokio::test]
async fn cloud_machine_gets_credentials_from_the_metadata_server() {
    let gcs = Gcs::new();
    gcs.require_token("OF THE MACHINE");
    let server = Server::start(Arc::clone(&gcs) as _).await.unwrap();
    let metadata = Server::start(Arc::new(Metadata)).await.unwrap();
    let host = metadata.url().replace("http://", "");
    upload_with(&[
        ("GOOGLE_BASE_URL", &server.url()),
        ("GCE_METADATA_HOST", &host),
    ])
    .await;
    assert_eq!(
        gcs.objects().get("data", "p/a").unwrap().bytes,
        pattern(1, UNIT + 1)
    );
}

#[tokio::test]
async fn emulator_requests_have_no_credentials() {
    let gcs = Gcs::new();
    let server = Server::start(Arc::clone(&gcs) as _).await.unwrap();
    let host = server.url().replace("http://", "");
    upload_with(&[("STORAGE_EMULATOR_HOST", &host)]).await;
    let log = server.take_log();
    assert!(!log.is_empty());
    assert!(
        log.iter()
            .all(|one| !one.headers.contains_key("authorization"))
    );
    assert_eq!(
        gcs.objects().get("data", "p/a").unwrap().bytes,
        pattern(1, UNIT + 1)
    );
}
