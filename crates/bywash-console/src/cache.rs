//! Objects in memory: lists, explanations and changes.
//!
//! | path | parameters | response |
//! |---|---|---|
//! | `GET /cache` | `bucket` (default: all), `prefix`, `limit`, `after`, `disk=true` (also objects that only the disk tier knows) | a page of the known objects by bucket, and `next`: the `after` of the next page |
//! | `GET /cache/why` | `bucket`, `key` | whether a read would be a hit, and why |
//! | `POST /cache/warm` | JSON: `bucket`, `prefix` | counts of the objects read, when all are in memory |
//! | `POST /cache/drop` | the same | counts of the objects dropped |
//! | `POST /cache/verify` | JSON: `rate`, in bytes a second (default: no limit) | the findings on the disk tier, when all of it was read; 409 while another pass is running |
//! | `POST /cache/fetch` | see `fetch` | the file, when it is durable |
//! | `GET /cache/limit` | | the limits |
//! | `POST /cache/limit` | JSON: `memory`, `disk`, in bytes | the limits after the change; 409 if more is held than the new limit |
//!
//! Changes are JSON only: a page of another site can send that after a preflight request only, which is never granted.

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use bywash::{
    Bucket, CacheChange, CacheExplanation, CachedObject, Engine, EngineError, LimitError,
};
use object_store::path::Path;
use serde::{Deserialize, Serialize};

use crate::charged::{charge, hold, written};
use crate::limits::MAX_CACHED_OBJECTS;
use crate::{NO_STORE, Shared, body};

/// Bytes of an object's JSON without its key and version: names of fields, and numbers.
const OBJECT_TEXT_BYTES: u64 = 384;

pub(crate) fn routes() -> Router<Shared> {
    Router::new()
        .route("/cache", get(list))
        .route("/cache/why", get(why))
        .route("/cache/warm", body::small(post(warm)))
        .route("/cache/drop", body::small(post(forget)))
        .route("/cache/verify", body::small(post(verify)))
        .route(
            "/cache/limit",
            get(limits).merge(body::small(post(set_limits))),
        )
}

#[derive(Debug, Deserialize)]
struct ListQuery {
    bucket: Option<String>,
    #[serde(default)]
    prefix: String,
    limit: Option<usize>,
    after: Option<String>,
    /// Also the objects that only the disk tier knows.
    #[serde(default)]
    disk: bool,
}

async fn list(
    State(shared): State<Shared>,
    Query(query): Query<ListQuery>,
) -> Result<Response, Refusal> {
    let engine = &shared.engine;
    let _turn = shared.reads.acquire().await;
    let name = query.bucket.as_deref();
    let bucket = name.map(|name| bucket(engine, name)).transpose()?;
    let max = query.limit.unwrap_or(MAX_CACHED_OBJECTS);
    let max = max.clamp(1, MAX_CACHED_OBJECTS);
    let page = blocking({
        let engine = engine.clone();
        move || {
            let after = query.after.as_deref();
            engine.cached_page(bucket.as_ref(), &query.prefix, after, max, query.disk)
        }
    });
    let page = page.await?;
    let (mut values, mut text) = (0, 0);
    for object in page.buckets.values().flatten() {
        values += (size_of::<CachedObject>() + object.key.len() + object.version.len()) as u64;
        text += OBJECT_TEXT_BYTES + written(&object.key) + written(&object.version);
    }
    let charged = charge(engine, values, text).ok_or_else(|| {
        let text = "there is no memory for the list now; send the request again, or for a bucket or a prefix";
        Refusal(StatusCode::SERVICE_UNAVAILABLE, text.to_owned())
    })?;
    Ok(hold(json(&page), charged).await)
}

#[derive(Debug, Deserialize)]
struct WhyQuery {
    bucket: String,
    key: String,
}

async fn why(
    State(engine): State<Engine>,
    Query(query): Query<WhyQuery>,
) -> Result<Response, Refusal> {
    Ok(json(&explain(&engine, &query.bucket, &query.key).await?))
}

async fn explain(engine: &Engine, bucket: &str, key: &str) -> Result<CacheExplanation, Refusal> {
    let bucket = self::bucket(engine, bucket)?;
    let path = object(key)?;
    blocking(move || bucket.explain(&path)).await
}

/// Returns the outcome that a read of the object would have in memory, or why it is unknown.
pub(crate) async fn explained(
    engine: &Engine,
    bucket: &str,
    key: &str,
) -> Result<CacheExplanation, String> {
    let explained = explain(engine, bucket, key).await;
    explained.map_err(|Refusal(_, reason)| reason)
}

/// Objects to warm or drop. An empty prefix selects the whole bucket.
#[derive(Debug, Deserialize)]
pub(crate) struct CacheTarget {
    pub(crate) bucket: String,
    #[serde(default)]
    pub(crate) prefix: String,
}

async fn warm(
    State(engine): State<Engine>,
    Json(target): Json<CacheTarget>,
) -> Result<Response, Refusal> {
    Ok(json(&warmed(&engine, &target).await?))
}

/// Reads the selected objects into memory.
pub(crate) async fn warmed(engine: &Engine, target: &CacheTarget) -> Result<CacheChange, Refusal> {
    let warmed = bucket(engine, &target.bucket)?.warm(&target.prefix).await;
    warmed.map_err(|error| Refusal(StatusCode::BAD_GATEWAY, error.to_string()))
}

async fn forget(
    State(engine): State<Engine>,
    Json(target): Json<CacheTarget>,
) -> Result<Response, Refusal> {
    Ok(json(&dropped(&engine, target).await?))
}

/// Drops the selected objects from memory.
pub(crate) async fn dropped(engine: &Engine, target: CacheTarget) -> Result<CacheChange, Refusal> {
    let bucket = bucket(engine, &target.bucket)?;
    blocking(move || bucket.drop_cached(&target.prefix)).await
}

/// How to verify the disk tier.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct VerifyOptions {
    /// Maximum bytes a second.
    rate: Option<u64>,
}

async fn verify(
    State(engine): State<Engine>,
    Json(options): Json<VerifyOptions>,
) -> Result<Response, Refusal> {
    let verified = engine.verify_disk(options.rate).await;
    verified.map(|found| json(&found)).map_err(|error| {
        let status = match &error {
            EngineError::DiskVerifying => StatusCode::CONFLICT,
            EngineError::InvalidSetting { .. } => StatusCode::BAD_REQUEST,
            EngineError::SlowDown { .. } => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Refusal(status, error.to_string())
    })
}

/// Limits to change; those left out stay.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitChange {
    /// Bytes of memory.
    memory: Option<u64>,
    /// Bytes of the disk tier.
    disk: Option<u64>,
}

async fn limits(State(engine): State<Engine>) -> Response {
    json(&engine.cache_limits())
}

async fn set_limits(
    State(engine): State<Engine>,
    Json(change): Json<LimitChange>,
) -> Result<Response, Refusal> {
    let changed = blocking({
        let engine = engine.clone();
        move || {
            // The one that more often is refused first: a refusal then changes neither.
            change
                .memory
                .map_or(Ok(()), |bytes| engine.set_memory(bytes))?;
            change.disk.map_or(Ok(()), |bytes| engine.set_disk(bytes))
        }
    });
    changed.await?.map_err(|error| {
        let status = match &error {
            EngineError::MemoryLimit(LimitError::Held { .. }) => StatusCode::CONFLICT,
            _ => StatusCode::BAD_REQUEST,
        };
        Refusal(status, error.to_string())
    })?;
    tracing::info!(
        memory = change.memory,
        disk = change.disk,
        "limits were changed"
    );
    Ok(json(&engine.cache_limits()))
}

/// A refused request: its status, and the reason in a sentence.
#[derive(Debug)]
pub(crate) struct Refusal(pub(crate) StatusCode, pub(crate) String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let body = serde_json::json!({ "error": self.1 });
        (self.0, [NO_STORE], Json(body)).into_response()
    }
}

/// Parses a key.
pub(crate) fn object(key: &str) -> Result<Path, Refusal> {
    Path::parse(key).map_err(|error| {
        let text = format!("the key {key:?} cannot be named: {error}");
        Refusal(StatusCode::BAD_REQUEST, text)
    })
}

pub(crate) fn bucket(engine: &Engine, name: &str) -> Result<Bucket, Refusal> {
    let missing = || Refusal(StatusCode::NOT_FOUND, format!("there is no bucket {name}"));
    engine.bucket(name).ok_or_else(missing)
}

/// Runs `work`, which looks up every block of many objects, on a blocking thread.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Refusal> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Refusal(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
}

pub(crate) fn json(value: &impl Serialize) -> Response {
    ([NO_STORE], Json(value)).into_response()
}
