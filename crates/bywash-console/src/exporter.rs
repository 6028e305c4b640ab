//! `/metrics` on an address of its own, for a Prometheus on another machine.
//!
//! Every request requires a key: web pages with a name that was rebound to this address have none.

use std::fmt;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::get;
use hyper_util::service::TowerToHyperService;

use crate::access::{ask_for_key, given_pair, same};
use crate::report::Report;
use crate::{AdminService, NO_STORE, Shared, metrics, metrics_text};

/// A key that may read metrics.
#[derive(Clone)]
pub struct MetricsReader {
    /// The access key id.
    pub access_key: String,
    /// The secret key.
    pub secret_key: String,
    /// Buckets with metrics visible for this key; `None`: all.
    pub buckets: Option<Vec<String>>,
}

impl fmt::Debug for MetricsReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The secret is never logged.
        f.debug_struct("MetricsReader")
            .field("access_key", &self.access_key)
            .field("buckets", &self.buckets)
            .finish_non_exhaustive()
    }
}

impl MetricsReader {
    fn is(&self, access_key: &str, secret_key: &str) -> bool {
        same(access_key, &self.access_key) & same(secret_key, &self.secret_key)
    }

    pub(crate) fn sees(&self, bucket: &str) -> bool {
        let buckets = self.buckets.as_ref();
        buckets.is_none_or(|buckets| buckets.iter().any(|known| known == bucket))
    }
}

/// A reader and the metrics that it sees.
type Seen = (Arc<MetricsReader>, Report);

type Exporter = State<(Shared, Arc<[Seen]>)>;

/// The service: `/metrics` for `readers`, and `/healthz` without a key.
pub(crate) fn service(shared: Shared, readers: Vec<MetricsReader>) -> AdminService {
    let readers = readers.into_iter().map(|reader| {
        let report = Report::new(metrics::CONTENT_TYPE, metrics_text);
        (Arc::new(reader), report)
    });
    let router = Router::new()
        .route("/healthz", get(|| async { ([NO_STORE], "ok\n") }))
        .route("/metrics", get(read))
        .fallback(|| async { (StatusCode::NOT_FOUND, "there are /metrics and /healthz\n") })
        .with_state((shared, readers.collect()));
    TowerToHyperService::new(router)
}

async fn read(State((shared, readers)): Exporter, request: Request) -> Response {
    let pair = given_pair(request.headers());
    let reader = pair.and_then(|(key, secret)| {
        let mut readers = readers.iter();
        readers.find(|(reader, _)| reader.is(&key, &secret))
    });
    match reader {
        Some((reader, report)) => {
            let reader = Arc::clone(reader);
            report
                .response(&shared, move |bucket| reader.sees(bucket))
                .await
        }
        None => ask_for_key(),
    }
}
