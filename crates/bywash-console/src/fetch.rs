//! `POST /cache/fetch`: downloads an object to a file of the server's machine.
//!
//! The body is JSON: `bucket`, `key`, `path`, and optionally `sha256` in hexadecimal digits and
//! `create_only`. Files are written below the folder that the operator allowed, and nowhere else.
//! The response is sent when the file is durable; a client that leaves before cancels the download.

use std::time::Instant;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::post;
use axum::{Json, Router};
use bywash::origin::client_etag;
use bywash::{ContentDigest, EngineError, FileDownloadOptions};
use object_store::Error;
use serde::{Deserialize, Serialize};

use crate::cache::{Refusal, bucket, json, object};
use crate::{Shared, body};

pub(crate) fn routes() -> Router<Shared> {
    Router::new().route("/cache/fetch", body::small(post(fetch)))
}

/// The object, and the file that it is written to.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FetchRequest {
    bucket: String,
    key: String,
    path: String,
    sha256: Option<String>,
    #[serde(default)]
    create_only: bool,
}

/// A file that was fetched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchedFile {
    /// Bucket of the object.
    pub bucket: String,
    /// Key of the object.
    pub key: String,
    /// The file, on the server's machine.
    pub path: String,
    /// Bytes of it.
    pub bytes: u64,
    /// ETag of its version.
    pub e_tag: Option<String>,
    /// Milliseconds until it was durable.
    pub time_ms: u64,
}

async fn fetch(
    State(shared): State<Shared>,
    Json(request): Json<FetchRequest>,
) -> Result<Response, Refusal> {
    let began = Instant::now();
    let Some(folder) = &shared.fetch_folder else {
        let text = "this server writes no files; start it with --fetch-folder DIR";
        return Err(Refusal(StatusCode::FORBIDDEN, text.to_owned()));
    };
    let bucket = bucket(&shared.engine, &request.bucket)?;
    let key = object(&request.key)?;
    let digest = request.sha256.as_deref().map(ContentDigest::parse_sha256);
    let digest = digest
        .transpose()
        .map_err(|reason| Refusal(StatusCode::BAD_REQUEST, reason))?;
    let options = FileDownloadOptions {
        digest,
        within: Some(folder.clone()),
        replaces: !request.create_only,
        ..FileDownloadOptions::default()
    };
    let downloaded = Box::pin(bucket.download_to(&key, &request.path, options)).await;
    let file = downloaded.map_err(|error| refusal(&error))?;
    let path = folder.join(&request.path).display().to_string();
    tracing::info!(object = %key, path, bytes = file.meta.size, "fetched to a file");
    Ok(json(&FetchedFile {
        bucket: request.bucket,
        key: request.key,
        path,
        bytes: file.meta.size,
        e_tag: file
            .meta
            .e_tag
            .as_deref()
            .map(client_etag)
            .map(str::to_owned),
        time_ms: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
    }))
}

fn refusal(error: &Error) -> Refusal {
    let (status, text) = match (error, EngineError::find(error)) {
        (Error::NotFound { .. }, _) => (StatusCode::NOT_FOUND, error.to_string()),
        (_, Some(found @ EngineError::InvalidSetting { .. })) => {
            (StatusCode::BAD_REQUEST, found.to_string())
        }
        (_, Some(found @ (EngineError::File { .. } | EngineError::DigestMismatch { .. }))) => {
            (StatusCode::CONFLICT, found.to_string())
        }
        (_, Some(found)) => (StatusCode::BAD_GATEWAY, found.to_string()),
        (_, None) => (StatusCode::BAD_GATEWAY, error.to_string()),
    };
    Refusal(status, text)
}
