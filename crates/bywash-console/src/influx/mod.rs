//! `POST /write` and `POST /api/v2/write`: values by the Influx line protocol. `GET /ping`, by which its clients find a server.
//!
//! | of a line | becomes |
//! |---|---|
//! | measurement and tags, tags by their keys | the source: `weather,place=garden` |
//! | a field | a metric of it: `temperature` |
//! | a number, `3i`, `3u`, `t`, `false` | the value; booleans are 1 and 0 |
//! | a string | nothing: it is left out and counted, also if it is the only field |
//! | the timestamp, in the unit of `precision` | nanoseconds since 1970; without one, the time of the request |

mod batch;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod line;
mod receive;

use std::borrow::Cow;
use std::fmt;
use std::io::Read;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use axum::Json;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_ENCODING, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use bywash_series::{Row, SeriesDb, SeriesError, WriteBatch};
use flate2::read::MultiGzDecoder;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use crate::Shared;
use crate::clock::now;
use crate::limits::{MAX_NAME_WAIT, MAX_WRITE_BYTES, MAX_WRITES_AT_ONCE};
use batch::{Outcome, Precision};
pub use batch::{RefusedLine, RefusedLines};
use line::Line;
pub(crate) use line::OWN_MEASUREMENT;
use receive::Received;

/// Rows passed to the database at once; the last line's fields may exceed it.
const ROWS_AT_ONCE: usize = 1024;

const NO_PRECISION: &str = "the precision is none of ns, us, ms, s, m, h";

/// Responds to a client of InfluxDB that looks for a server.
pub(crate) async fn ping() -> Response {
    let headers = [
        (CACHE_CONTROL, "no-store"),
        (HeaderName::from_static("x-influxdb-version"), VERSION),
        (HeaderName::from_static("x-influxdb-build"), "bywash"),
    ];
    (StatusCode::NO_CONTENT, headers).into_response()
}

/// Version of the protocol, as clients compare it, and of this program.
const VERSION: &str = concat!("1.8-bywash-", env!("CARGO_PKG_VERSION"));

/// Counters of writes since the start. Read for metrics only, so every access is relaxed.
#[derive(Debug)]
pub(crate) struct WriteMetrics {
    turns: Semaphore,
    pub(crate) lines: AtomicU64,
    pub(crate) values: AtomicU64,
    pub(crate) strings: AtomicU64,
    pub(crate) refused_lines: AtomicU64,
    pub(crate) refused_requests: AtomicU64,
}

impl Default for WriteMetrics {
    fn default() -> Self {
        Self {
            turns: Semaphore::new(MAX_WRITES_AT_ONCE),
            lines: AtomicU64::default(),
            values: AtomicU64::default(),
            strings: AtomicU64::default(),
            refused_lines: AtomicU64::default(),
            refused_requests: AtomicU64::default(),
        }
    }
}

impl WriteMetrics {
    fn note(&self, outcome: &Outcome) {
        self.lines.fetch_add(outcome.lines, Relaxed);
        self.values.fetch_add(outcome.values, Relaxed);
        self.strings.fetch_add(outcome.strings, Relaxed);
        self.refused_lines.fetch_add(outcome.refused, Relaxed);
    }
}

/// Parameters of a write; databases, buckets and organisations of Influx are ignored.
#[derive(Debug, Deserialize)]
pub(crate) struct Params {
    precision: Option<String>,
}

/// Reason for which a request was not stored, or not completely.
#[derive(Debug)]
enum Refused {
    Request(StatusCode, Cow<'static, str>),
    Database(SeriesError),
}

pub(crate) async fn write(
    State(shared): State<Shared>,
    Query(params): Query<Params>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    match take(&shared, &params, &headers, body).await {
        Ok(outcome) => {
            shared.write_metrics.note(&outcome);
            response(outcome)
        }
        Err(refused) => {
            shared.write_metrics.refused_requests.fetch_add(1, Relaxed);
            refused.into_response()
        }
    }
}

async fn take(
    shared: &Shared,
    params: &Params,
    headers: &HeaderMap,
    body: Body,
) -> Result<Outcome, Refused> {
    let db = shared.values().map_err(|error| {
        Refused::Request(StatusCode::SERVICE_UNAVAILABLE, error.to_string().into())
    })?;
    let precision = Precision::named(params.precision.as_deref()).ok_or(Refused::Request(
        StatusCode::BAD_REQUEST,
        NO_PRECISION.into(),
    ))?;
    let packed = match headers
        .get(CONTENT_ENCODING)
        .map(|encoding| encoding.as_bytes())
    {
        None | Some(b"identity") => false,
        Some(b"gzip") => true,
        Some(_) => {
            let reason = "the body is neither plain nor gzip";
            return Err(Refused::Request(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                reason.into(),
            ));
        }
    };
    let mut body = Received::all(&shared.engine, headers, body).await?;
    // The semaphore is never closed.
    let _turn = shared.write_metrics.turns.acquire().await;
    if packed {
        // Unpacked it may have the maximum length.
        body.reserve(&shared.engine, MAX_WRITE_BYTES)?;
    }
    let (db, came) = (db.clone(), now());
    let work = tokio::task::spawn_blocking(move || insert(&db, &body, packed, precision, came));
    work.await.unwrap_or_else(|error| {
        Err(Refused::Request(
            StatusCode::INTERNAL_SERVER_ERROR,
            error.to_string().into(),
        ))
    })
}

fn too_large() -> Refused {
    let reason = format!("the lines take more than {MAX_WRITE_BYTES} bytes; send fewer at once");
    Refused::Request(StatusCode::PAYLOAD_TOO_LARGE, reason.into())
}

/// Unpacks, parses and inserts. Blocks like the database.
fn insert(
    db: &SeriesDb,
    body: &Received,
    packed: bool,
    precision: Precision,
    came: i64,
) -> Result<Outcome, Refused> {
    let plain = packed.then(|| unpacked(&body.bytes)).transpose()?;
    let lines = plain.as_ref().unwrap_or(&body.bytes);
    let rows = db.batch().with_name_timeout(MAX_NAME_WAIT);
    insert_body(rows, lines, precision, came).map_err(Refused::Database)
}

/// Reason for which not all lines were written.
#[derive(Debug)]
pub enum InsertError {
    /// The precision is unknown.
    Precision,
    /// Some lines are invalid; the others are stored.
    Refused(RefusedLines),
    /// Error of the database. Lines before it may be stored; writing all lines again changes
    /// nothing.
    Database(SeriesError),
}

impl fmt::Display for InsertError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Precision => f.write_str(NO_PRECISION),
            Self::Refused(lines) => lines.fmt(f),
            Self::Database(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for InsertError {}

/// Writes the values of `lines` to a database, as `POST /write` does; `precision` is the unit of their timestamps. Blocks like the
/// database.
///
/// # Errors
/// [`InsertError`].
pub fn insert_lines(db: &SeriesDb, lines: &[u8], precision: &str) -> Result<(), InsertError> {
    let precision = Precision::named(Some(precision)).ok_or(InsertError::Precision)?;
    let outcome =
        insert_body(db.batch(), lines, precision, now()).map_err(InsertError::Database)?;
    outcome
        .refused_lines()
        .map_or(Ok(()), |refused| Err(InsertError::Refused(refused)))
}

fn insert_body(
    mut rows: WriteBatch<'_>,
    body: &[u8],
    precision: Precision,
    came: i64,
) -> Result<Outcome, SeriesError> {
    let mut held: Vec<(Line<'_>, i64)> = Vec::new();
    let mut values = 0;
    let outcome = batch::read(body, precision, came, |line, at| {
        values += line.fields.len();
        held.push((line, at));
        if values < ROWS_AT_ONCE {
            return Ok(());
        }
        values = 0;
        insert_rows(&mut rows, &std::mem::take(&mut held))
    })?;
    insert_rows(&mut rows, &held)?;
    rows.commit()?;
    Ok(outcome)
}

fn insert_rows(batch: &mut WriteBatch<'_>, lines: &[(Line<'_>, i64)]) -> Result<(), SeriesError> {
    let rows = lines.iter().flat_map(|(line, timestamp)| {
        line.fields.iter().map(|(metric, value)| Row {
            source: &line.source,
            metric,
            timestamp: *timestamp,
            value: *value,
        })
    });
    batch.insert_rows(&rows.collect::<Vec<_>>())
}

fn unpacked(body: &[u8]) -> Result<Vec<u8>, Refused> {
    let mut plain = Vec::new();
    let limit = MAX_WRITE_BYTES as u64 + 1;
    MultiGzDecoder::new(body)
        .take(limit)
        .read_to_end(&mut plain)
        .map_err(|error| {
            Refused::Request(
                StatusCode::BAD_REQUEST,
                format!("the body is not gzip: {error}").into(),
            )
        })?;
    if plain.len() > MAX_WRITE_BYTES {
        return Err(too_large());
    }
    Ok(plain)
}

/// Renders a refusal with the fields of both versions of the protocol.
#[derive(Debug, Serialize)]
struct Refusal<'a> {
    error: &'a str,
    code: &'static str,
    message: &'a str,
    #[serde(flatten)]
    lines: Option<RefusedLines>,
}

impl<'a> Refusal<'a> {
    fn new(code: &'static str, text: &'a str) -> Self {
        Self {
            error: text,
            code,
            message: text,
            lines: None,
        }
    }
}

/// Returns 204, or 400 with the refused lines; the others are stored.
fn response(outcome: Outcome) -> Response {
    let Some(lines) = outcome.refused_lines() else {
        return StatusCode::NO_CONTENT.into_response();
    };
    // Clients log it: the first one suffices.
    let first = lines.refused.first();
    let first = first.map(|first| format!(": line {}: {}", first.line, first.reason));
    let text = format!(
        "partial write: {} of {} lines are refused{}",
        lines.refused_lines,
        lines.kept_lines + lines.refused_lines,
        first.unwrap_or_default()
    );
    let body = Refusal {
        lines: Some(lines),
        ..Refusal::new("invalid", &text)
    };
    (StatusCode::BAD_REQUEST, Json(body)).into_response()
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let (status, text) = match self {
            Self::Request(status, text) => (status, text),
            // Lines before the error may be stored; sending all lines again changes nothing.
            Self::Database(error @ SeriesError::NameTooLong { .. }) => {
                (StatusCode::UNPROCESSABLE_ENTITY, error.to_string().into())
            }
            Self::Database(error) => {
                tracing::warn!(%error, "values cannot be written");
                (
                    StatusCode::SERVICE_UNAVAILABLE,
                    format!("{error}; send the request again").into(),
                )
            }
        };
        let code = if status.is_server_error() {
            "unavailable"
        } else {
            "invalid"
        };
        let body = Json(Refusal::new(code, &text));
        if status == StatusCode::SERVICE_UNAVAILABLE {
            return (status, [(RETRY_AFTER, "5")], body).into_response();
        }
        (status, body).into_response()
    }
}
