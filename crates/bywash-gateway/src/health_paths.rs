//! The paths at which deployments made for MinIO ask for its health, answered without a signature while no bucket is named `minio`.

use bywash::Engine;
use http::request::Parts;
use http::{Method, StatusCode};

/// The bucket that the paths would be in.
const BUCKET: &str = "minio";
/// Whether the process serves.
const LIVE: &str = "/minio/health/live";
/// Whether requests may be sent here: not while a node of a cluster joins or leaves.
const READY: [&str; 3] = [
    "/minio/health/ready",
    "/minio/health/cluster",
    "/minio/health/cluster/read",
];

/// The status of the response; `None` for all other requests.
pub(crate) fn health(engine: &Engine, parts: &Parts) -> Option<StatusCode> {
    let path = parts.uri.path();
    let asks_live = path == LIVE;
    let asks = (asks_live || READY.contains(&path))
        && [Method::GET, Method::HEAD].contains(&parts.method)
        && engine.bucket(BUCKET).is_none();
    let is_joining = || {
        let status = engine.cluster_status();
        status.is_some_and(|status| status.state != "up")
    };
    asks.then(|| {
        if !asks_live && is_joining() {
            StatusCode::SERVICE_UNAVAILABLE
        } else {
            StatusCode::OK
        }
    })
}
