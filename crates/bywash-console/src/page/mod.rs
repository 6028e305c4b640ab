//! `GET /`: the page that shows the activity of the server, and its actions.

pub(crate) mod actions;
mod chart;
mod charts;
mod cluster;
mod disk;
mod format;
mod health;
mod local;
mod range;
mod render;
mod tables;
mod view;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{Html, IntoResponse, Response};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::charged::{charge, charged_text, hold};
use crate::{Shared, report};

pub(crate) use format::lasted;
#[cfg(test)]
pub(crate) use view::NAMES;

/// An upload that has not ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenUpload {
    /// The object's bucket and key, or URL.
    pub target: String,
    /// Time of its start.
    pub began: Option<DateTime<Utc>>,
    /// Bytes stored, if known.
    pub bytes: Option<u64>,
    /// Bytes of the whole object, if known.
    pub length: Option<u64>,
    /// The process or client that sends it, and remarks.
    pub note: String,
    /// The upload of an S3 client, which the page can abort.
    pub client: Option<ClientUpload>,
    /// Its id at the store, of an upload of an S3 client.
    pub session: Option<String>,
}

/// Name of an upload of an S3 client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientUpload {
    /// The object's bucket.
    pub bucket: String,
    /// The object's key.
    pub key: String,
    /// The id that the client has.
    pub upload: String,
}

/// Open uploads: the newest, and counts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedUploads {
    /// The newest, newest first.
    pub newest: Vec<OpenUpload>,
    /// Number of all.
    pub total: usize,
    /// Number of stuck ones: left by a process that is gone, or begun long ago.
    pub stuck: usize,
    /// Whether some are missing: the nodes of a cluster share more than are shown at once, or cannot list them now.
    pub partial: bool,
}

/// The result of an abort; the error is a sentence.
pub type Aborting = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// Lists the open uploads, and aborts uploads of S3 clients.
#[derive(Clone)]
pub struct OpenUploads {
    list: Arc<dyn Fn(usize) -> ListedUploads + Send + Sync>,
    abort: Arc<dyn Fn(ClientUpload) -> Aborting + Send + Sync>,
}

impl OpenUploads {
    /// Lists by `list`, which is called for each page with the number of uploads to return at most. It may block on the file system.
    /// Aborts by `abort`.
    pub fn new(
        list: impl Fn(usize) -> ListedUploads + Send + Sync + 'static,
        abort: impl Fn(ClientUpload) -> Aborting + Send + Sync + 'static,
    ) -> Self {
        Self {
            list: Arc::new(list),
            abort: Arc::new(abort),
        }
    }
}

impl Default for OpenUploads {
    fn default() -> Self {
        let missing = || Err("There is no such upload.".to_owned());
        Self::new(
            |_| ListedUploads::default(),
            move |_| Box::pin(async move { missing() }),
        )
    }
}

impl fmt::Debug for OpenUploads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OpenUploads")
    }
}

/// Bytes of an open upload in memory, and as JSON: keys are rarely longer than 200 bytes, and stand in it twice.
const UPLOAD_BYTES: u64 = 1 << 10;
const UPLOAD_TEXT_BYTES: u64 = 1 << 10;
/// Bytes of a page and of its content without the counters of buckets.
const PAGE_BYTES: u64 = 256 << 10;
/// Bytes of a bucket's counters while a page is made.
const PAGE_BUCKET_BYTES: u64 = 1 << 10;

pub(crate) async fn index(
    State(shared): State<Shared>,
    Query(query): Query<view::PageQuery>,
) -> Response {
    let anonymous = shared.guard.is_anonymous();
    let bytes = PAGE_BYTES + shared.recent.buckets() as u64 * PAGE_BUCKET_BYTES;
    let Some(mut charge) = shared.report_memory.charge(bytes) else {
        return report::no_memory();
    };
    match view::gather(shared, query).await {
        Ok(view) => {
            let text = render::page(&view, anonymous).into_string();
            charge.shrink_to(text.capacity() as u64);
            Html(Body::from(charged_text(text.into(), charge))).into_response()
        }
        Err(reason) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("the page cannot be made: {reason}\n"),
        )
            .into_response(),
    }
}

/// Lists all open uploads as JSON, for the command line.
pub(crate) async fn uploads(State(shared): State<Shared>) -> Response {
    let (list, engine) = (shared.uploads.clone(), shared.engine.clone());
    let listed = tokio::task::spawn_blocking(move || {
        // Charged by their number before they are listed.
        let total = (list.list)(0).total as u64;
        let charged = charge(&engine, total * UPLOAD_BYTES, total * UPLOAD_TEXT_BYTES)?;
        Some(((list.list)(usize::MAX), charged))
    });
    match listed.await {
        Ok(Some((listed, charged))) => hold(Json(listed).into_response(), charged).await,
        Ok(None) => report::no_memory(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// The login form; `next` is its target.
pub(crate) fn login(next: &str, wrong: Option<&str>) -> Response {
    html(render::login(next, wrong))
}

fn html(page: maud::Markup) -> Response {
    Html(page.into_string()).into_response()
}

/// `GET /assets/NAME`: style, script and picture of the page.
pub(crate) async fn asset(Path(name): Path<String>) -> Response {
    let (kind, content) = match name.as_str() {
        "console.css" => (
            "text/css; charset=utf-8",
            include_str!("../assets/console.css"),
        ),
        "console.js" => (
            "text/javascript; charset=utf-8",
            include_str!("../assets/console.js"),
        ),
        "icon.svg" => ("image/svg+xml", include_str!("../assets/icon.svg")),
        _ => return (StatusCode::NOT_FOUND, "no such file\n").into_response(),
    };
    // Requested again at the latest an hour after an update of the server.
    (
        [
            (CONTENT_TYPE, kind),
            (CACHE_CONTROL, "private, max-age=3600"),
        ],
        content,
    )
        .into_response()
}
