//! The admin endpoints of Bywash: health, counters, history, series, and a page that shows them.
//!
//! | path | response |
//! |---|---|
//! | `GET /healthz` | `ok` while the process serves |
//! | `GET /readyz` | `ready` if requests may be sent here, followed by the damaged files without which it serves; 503 while a node of a
//! cluster joins or leaves |
//! | `GET /metrics` | the counters as Prometheus text |
//! | `GET /stats` | the counters as JSON: the fields of [`bywash::Stats`], as `history` the fields of [`HistoryStats`], as `series` the databases', as `origins` the errors by bucket |
//! | `GET /cache`, `GET /cache/why` | the objects in memory and on the disk tier, and why an object is or is not (`cache`), with the key |
//! | `POST /cache/warm`, `POST /cache/drop` | changes that, with the key |
//! | `POST /cache/verify` | reads the disk tier and drops damaged blocks, with the key |
//! | `POST /cache/fetch` | downloads an object to a file below the folder that the operator allowed, with the key |
//! | `GET /cache/limit`, `POST /cache/limit` | the limits of memory and disk tier, and their change, with the key |
//! | `GET /` | the page, with the key |
//! | `POST /actions/...` | its buttons, from the page itself only |
//! | `POST /write`, `POST /api/v2/write` | values by the Influx line protocol, with the key |
//! | `GET /series/list`, `GET /series/query` | the names and the points of series, with the key |
//!
//! The first three need no key. The listener must be bound to a loopback address, and every
//! request must name a loopback host (see `host`), so that a web page whose name was rebound to 127.0.0.1 cannot read them.

#![forbid(unsafe_code)]

mod access;
mod body;
mod cache;
mod charged;
mod clock;
mod content;
mod csrf;
mod databases;
mod exporter;
mod fetch;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod history;
mod host;
mod influx;
mod labelled;
mod limits;
mod metrics;
mod page;
mod recent;
mod report;
mod series;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use axum::extract::{FromRef, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Router, middleware};
use bywash::origin::OriginStats;
use bywash::traffic::TrafficStats;
use bywash::{DamagedFile, Engine, Stats};
use bywash_series::SeriesDb;
use hyper_util::service::TowerToHyperService;
use serde::Serialize;
use tokio::sync::Semaphore;

pub use access::Access;
use access::Guard;
pub use content::Content;
use databases::DatabaseStates;
pub use exporter::MetricsReader;
pub use fetch::FetchedFile;
pub use history::{HISTORY_EVERY, History, HistoryStats};
use influx::WriteMetrics;
pub use influx::{InsertError, RefusedLine, RefusedLines, insert_lines};
use labelled::Counted;
use limits::MAX_READS_AT_ONCE;
pub use limits::{MAX_ADMIN_CONNECTIONS, MAX_METRICS_CONNECTIONS};
pub use page::{Aborting, ClientUpload, ListedUploads, OpenUpload, OpenUploads};
use recent::Recent;
use report::{Report, ReportMemory};
pub use series::{SeriesRequest, SeriesRequestError};

/// Counters change at any time: responses must not be cached.
const NO_STORE: (HeaderName, &str) = (CACHE_CONTROL, "no-store");
/// Pages load their own style, script and picture only, and cannot be framed.
const CONTENT_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Everything that the console shows, and its access.
#[derive(Debug)]
pub struct Console {
    /// The engine whose counters are shown.
    pub engine: Engine,
    /// Requests that may see the page and the series.
    pub access: Access,
    /// The database of values received; `None` if it is damaged.
    pub series: Option<SeriesDb>,
    /// The server's own history, if it keeps one.
    pub history: Option<History>,
    /// Lists and aborts the open uploads.
    pub uploads: OpenUploads,
    /// Folder below which objects may be downloaded to files.
    pub fetch_folder: Option<PathBuf>,
}

/// State shared by all requests.
#[derive(Debug, Clone)]
struct Shared(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    engine: Engine,
    guard: Guard,
    series: Option<SeriesDb>,
    history: Option<History>,
    uploads: OpenUploads,
    fetch_folder: Option<PathBuf>,
    write_metrics: WriteMetrics,
    recent: Recent,
    /// Permits of requests for lists and points.
    reads: Arc<Semaphore>,
    report_memory: ReportMemory,
    /// The texts of `/metrics` and `/stats`.
    metrics: Report,
    stats: Report,
}

impl Inner {
    /// The counters of the history; zero without one.
    fn history_stats(&self) -> HistoryStats {
        self.history
            .as_ref()
            .map(History::stats)
            .unwrap_or_default()
    }
}

impl FromRef<Shared> for Engine {
    fn from_ref(shared: &Shared) -> Self {
        shared.engine.clone()
    }
}

impl std::ops::Deref for Shared {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

/// The admin endpoints, to be served by HTTP/1.1.
pub type AdminService = TowerToHyperService<Router>;

/// Returns the admin endpoints for a listener bound to `address`, and a second service that has `/metrics` only, for any address.
///
/// The second one requires a key of `readers`. Its listener should have TLS if others can reach it. The listeners must hold connections
/// to limits: at most [`MAX_ADMIN_CONNECTIONS`] and [`MAX_METRICS_CONNECTIONS`], deadlines of heads, and an end to responses that their
/// clients do not read.
///
/// # Errors
///
/// `InvalidInput` if `address` is not loopback.
///
/// # Panics
///
/// Outside a runtime of tokio: a task records the counters of the last minute until the services are dropped.
pub fn admin_and_metrics(
    console: Console,
    address: SocketAddr,
    readers: Vec<MetricsReader>,
) -> std::io::Result<(AdminService, AdminService)> {
    if !address.ip().is_loopback() {
        return Err(std::io::Error::new(
            std::io::ErrorKind::InvalidInput,
            format!(
                "admin address {address} is not loopback; bind the admin endpoints to 127.0.0.1 or [::1]"
            ),
        ));
    }
    let shared = Shared::new(console, address);
    tokio::spawn(recent::record(Arc::downgrade(&shared.0)));
    let metrics = exporter::service(shared.clone(), readers);
    Ok((TowerToHyperService::new(router(shared)), metrics))
}

impl Shared {
    fn new(console: Console, address: SocketAddr) -> Self {
        let recent = Recent::new(&console.engine, console.history.as_ref());
        Self(Arc::new(Inner {
            recent,
            report_memory: ReportMemory::new(&console.engine),
            metrics: Report::new(metrics::CONTENT_TYPE, metrics_text),
            stats: Report::new("application/json", stats_text),
            engine: console.engine,
            guard: Guard::new(console.access, address),
            series: console.series,
            history: console.history,
            uploads: console.uploads,
            fetch_folder: console.fetch_folder,
            write_metrics: WriteMetrics::default(),
            reads: Arc::new(Semaphore::new(MAX_READS_AT_ONCE)),
        }))
    }
}

fn router(shared: Shared) -> Router {
    let guarded = Router::new()
        .route("/", get(page::index))
        .route("/uploads", get(page::uploads))
        .route("/write", post(influx::write))
        .route("/api/v2/write", post(influx::write))
        .route("/series/list", get(series::list))
        .route("/series/query", get(series::query))
        .merge(cache::routes())
        .merge(fetch::routes())
        .merge(page::actions::routes())
        .route_layer(middleware::from_fn_with_state(
            shared.clone(),
            access::require_key,
        ));
    Router::new()
        .route("/healthz", get(|| async { ([NO_STORE], "ok\n") }))
        .route("/readyz", get(ready))
        .route("/ping", get(influx::ping))
        .route("/metrics", get(metrics))
        .route("/stats", get(stats))
        .route("/login", get(access::form).merge(body::small(post(access::login))))
        .route("/logout", post(access::logout))
        .route("/assets/{name}", get(page::asset))
        .merge(guarded)
        .fallback(|| async {
            (
                StatusCode::NOT_FOUND,
                "no such page; there are /, /healthz, /readyz, /metrics, /stats, /cache, /uploads, /write, /series/list and /series/query\n",
            )
        })
        .layer(middleware::from_fn(csrf::refuse_other_sites))
        .layer(middleware::from_fn(host::require_loopback))
        .layer(middleware::map_response(restrict_browsers))
        .with_state(shared)
}

/// Adds the headers that restrict browsers to each response.
async fn restrict_browsers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    let restrictions = [
        (CONTENT_SECURITY_POLICY, CONTENT_POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // Not `no-referrer`: with that the browser sends `Origin: null` with forms of this page.
        (REFERRER_POLICY, "same-origin"),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
    ];
    for (name, value) in restrictions {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers
        .entry(CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    response
}

/// Whether a load balancer may send requests here: not while a node of a cluster joins or leaves.
async fn ready(State(engine): State<Engine>) -> impl IntoResponse {
    match engine.cluster_status() {
        Some(status) if status.state != "up" => {
            let reason = status.etcd_failure.map(|failure| format!(": {failure}"));
            let text = format!("{}{}\n", status.state, reason.unwrap_or_default());
            (StatusCode::SERVICE_UNAVAILABLE, [NO_STORE], text)
        }
        _ => {
            let mut text = "ready\n".to_owned();
            for damaged in engine.damaged_files() {
                let DamagedFile { file, effect, .. } = damaged;
                text += &format!("damaged {file}: {effect}\n");
            }
            (StatusCode::OK, [NO_STORE], text)
        }
    }
}

async fn metrics(State(shared): State<Shared>) -> Response {
    shared.metrics.response(&shared, |_| true).await
}

/// Renders the metrics in a buffer of this length.
fn metrics_text(shared: &Shared, counted: &Counted, capacity: usize) -> Vec<u8> {
    let mut text = String::with_capacity(capacity);
    let sources = metrics::Sources {
        stats: &counted.stats,
        traffic: shared.engine.traffic(),
        origins: &counted.origins,
        write_metrics: &shared.write_metrics,
        history: &shared.history_stats(),
        databases: &shared.database_states(),
    };
    metrics::render(&mut text, &sources);
    text.into_bytes()
}

/// Response of `/stats`.
#[derive(Debug, Serialize)]
struct StatsResponse<'a> {
    #[serde(flatten)]
    engine: &'a Stats,
    endpoint: TrafficStats,
    history: HistoryStats,
    series: DatabaseStates,
    origins: &'a BTreeMap<String, OriginStats>,
}

async fn stats(State(shared): State<Shared>) -> Response {
    shared.stats.response(&shared, |_| true).await
}

/// Renders the counters as JSON in a buffer of this length.
fn stats_text(shared: &Shared, counted: &Counted, capacity: usize) -> Vec<u8> {
    let mut text = Vec::with_capacity(capacity);
    let response = StatsResponse {
        engine: &counted.stats,
        endpoint: shared.engine.traffic().stats(),
        history: shared.history_stats(),
        series: shared.database_states(),
        origins: &counted.origins,
    };
    serde_json::to_writer(&mut text, &response)
        .expect("its keys are text, and a Vec can be written");
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests;
