//! Admin endpoints of Bywash: health, metrics, stats.
//!
//! | path | answer |
//! |---|---|
//! | `GET /healthz` | `ok` while the process serves |
//! | `GET /metrics` | the counters as Prometheus text |
//! | `GET /stats` | the counters as JSON, the serialized form of [`bywash::Stats`] |
//! | `GET /cache`, `GET /cache/why` | what is in memory, and why it is or is not (`cache`) |
//! | `POST /cache/warm`, `POST /cache/drop` | changes that |
//!
//! These need no credentials, so two things keep strangers out: the listener must be bound to a
//! loopback address, and every request must name a loopback host (see `host`), so that a web page
//! whose name was rebound to 127.0.0.1 cannot read them.

#![forbid(unsafe_code)]

mod cache;
mod host;
mod metrics;

use std::future::Future;

use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderName, StatusCode};
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router, middleware};
use bywash::Engine;
use tokio::net::TcpListener;

/// Counters are of this moment: no cache may keep them.
const NO_STORE: (HeaderName, &str) = (CACHE_CONTROL, "no-store");

/// Serves the admin endpoints of `engine` until `shutdown` resolves, then lets the requests in
/// progress finish.
///
/// # Errors
///
/// `InvalidInput` if `listener` is not bound to a loopback address; otherwise an error of the
/// listener itself.
pub async fn serve_console(
    engine: Engine,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let address = listener.local_addr()?;
    if !address.ip().is_loopback() {
        return Err(std::io::Error::new(
            std::io::ErrorKind::InvalidInput,
            format!(
                "admin address {address} is not loopback; the admin endpoints need no credentials, so bind them to 127.0.0.1 or [::1]"
            ),
        ));
    }
    axum::serve(listener, router(engine))
        .with_graceful_shutdown(shutdown)
        .await
}

fn router(engine: Engine) -> Router {
    Router::new()
        .route("/healthz", get(|| async { ([NO_STORE], "ok\n") }))
        .route("/metrics", get(metrics))
        .route("/stats", get(stats))
        .merge(cache::routes())
        .fallback(|| async {
            (
                StatusCode::NOT_FOUND,
                "no such page; there are /healthz, /metrics, /stats and /cache\n",
            )
        })
        .layer(middleware::from_fn(host::refuse_other_sites))
        .layer(middleware::from_fn(host::require_loopback))
        .with_state(engine)
}

async fn metrics(State(engine): State<Engine>) -> impl IntoResponse {
    (
        [(CONTENT_TYPE, metrics::CONTENT_TYPE), NO_STORE],
        metrics::render(&engine.stats()),
    )
}

async fn stats(State(engine): State<Engine>) -> impl IntoResponse {
    ([NO_STORE], Json(engine.stats()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests;
