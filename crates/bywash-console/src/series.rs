//! Series by HTTP: their names and their points.
//!
//! Sources and metrics may be patterns: `*` stands for any characters, `?` for one.

use std::fmt;
use std::ops::RangeInclusive;
use std::panic::resume_unwind;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use bywash::Reservation;
use bywash_series::{Aggregate, Selector, SeriesDb, SeriesError, SeriesNames, SeriesPoints};
use serde::{Deserialize, Serialize};

use crate::charged::{charge, hold, written};
use crate::clock::{self, now};
use crate::limits::MAX_ROWS;
use crate::{History, Shared};

/// Memory of a row of points while it is written, in bytes: the point and the row.
const ROW_BYTES: u64 = 64;
/// Text of a row of points beside the names, in bytes.
const ROW_TEXT_BYTES: u64 = 96;
/// Memory of a name beside its characters, in bytes.
const NAME_BYTES: u64 = 96;
/// Text of a name beside its characters, in bytes.
const NAME_TEXT_BYTES: u64 = 32;

/// A series' name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct Name {
    pub(crate) source: String,
    pub(crate) metric: String,
}

impl From<(&str, &str)> for Name {
    fn from((source, metric): (&str, &str)) -> Self {
        Self {
            source: source.to_owned(),
            metric: metric.to_owned(),
        }
    }
}

impl Shared {
    /// Of what came in and, after it, of the server's own history.
    pub(crate) fn databases(&self) -> impl Iterator<Item = &SeriesDb> {
        let history = self.history.as_ref().map(History::db);
        [&self.series].into_iter().chain(history)
    }
}

/// How rows are written.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Format {
    #[default]
    Json,
    Csv,
}

/// Parameters of `/series/list` and `/series/query`. Others are refused: a misspelled one would be answered with all there is.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Parameters {
    source: Option<String>,
    metric: Option<String>,
    start: Option<String>,
    end: Option<String>,
    step: Option<String>,
    agg: Option<String>,
    #[serde(default)]
    format: Format,
}

impl Parameters {
    fn parts(self) -> (SeriesRequest, Format) {
        let Self {
            source,
            metric,
            start,
            end,
            step,
            agg,
            format,
        } = self;
        let request = SeriesRequest {
            source,
            metric,
            start,
            end,
            step,
            agg,
        };
        (request, format)
    }
}

/// Why there is no answer.
#[derive(Debug)]
pub enum SeriesRequestError {
    /// The request's fault, and how to ask instead.
    Request(String),
    /// The database's.
    Database(SeriesError),
    /// There is no memory for the answer now.
    NoMemory,
}

impl fmt::Display for SeriesRequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(reason) => f.write_str(reason),
            Self::Database(error) => error.fmt(f),
            Self::NoMemory => {
                f.write_str("there is no memory for the answer now; ask again, or for less")
            }
        }
    }
}

impl std::error::Error for SeriesRequestError {}

impl From<SeriesError> for SeriesRequestError {
    fn from(error: SeriesError) -> Self {
        match error {
            SeriesError::Query(reason) => Self::Request(reason.to_owned()),
            SeriesError::TooManyPoints { .. } => Self::Request(error.to_string()),
            error => Self::Database(error),
        }
    }
}

impl IntoResponse for SeriesRequestError {
    fn into_response(self) -> Response {
        let status = match self {
            Self::Request(_) => StatusCode::BAD_REQUEST,
            Self::Database(_) | Self::NoMemory => {
                tracing::warn!(error = %self, "series cannot be read");
                StatusCode::SERVICE_UNAVAILABLE
            }
        };
        (status, format!("{self}\n")).into_response()
    }
}

/// Which series, and what of them; in the words of people. What is left out stands for all.
#[derive(Debug, Clone, Default)]
pub struct SeriesRequest {
    /// A source, or a pattern of sources.
    pub source: Option<String>,
    /// A metric, or a pattern of metrics.
    pub metric: Option<String>,
    /// The first moment: nanoseconds since 1970, a time as RFC 3339 writes it, `now`, or `-15m`.
    pub start: Option<String>,
    /// The last moment, likewise.
    pub end: Option<String>,
    /// Points of each such span become one, as `10s`; every point by itself when none is given.
    pub step: Option<String>,
    /// How: `avg`, `min`, `max`, `sum`, `count`, `first` or `last`; `avg` when none is given.
    pub agg: Option<String>,
}

impl SeriesRequest {
    /// Source and metric of each series meant, in order.
    ///
    /// # Errors
    /// [`SeriesRequestError`].
    pub async fn list(&self, db: &SeriesDb) -> Result<SeriesNames, SeriesRequestError> {
        Ok(db.list(&self.selector(), self.range()?).await?)
    }

    /// The points meant, by series.
    ///
    /// # Errors
    /// [`SeriesRequestError`].
    pub async fn query(&self, db: &SeriesDb) -> Result<Vec<SeriesPoints>, SeriesRequestError> {
        let (range, step, aggregate) = (self.range()?, self.step()?, self.aggregate()?);
        Ok(db.query(&self.selector(), range, step, aggregate).await?)
    }

    /// As [`Self::query`], of `most` points at most.
    async fn query_limited(
        &self,
        most: usize,
        db: &SeriesDb,
    ) -> Result<Vec<SeriesPoints>, SeriesRequestError> {
        let (range, step, aggregate) = (self.range()?, self.step()?, self.aggregate()?);
        let selector = self.selector();
        let found = db.query_limited(most, &selector, range, step, aggregate);
        Ok(found.await?)
    }

    fn selector(&self) -> Selector {
        let pattern = |name: &Option<String>| name.clone().unwrap_or_else(|| "*".to_owned());
        Selector::parse(&pattern(&self.source), &pattern(&self.metric))
    }

    fn range(&self) -> Result<RangeInclusive<i64>, SeriesRequestError> {
        clock::range(self.start.as_deref(), self.end.as_deref(), now())
            .map_err(SeriesRequestError::Request)
    }

    /// Nanoseconds.
    fn step(&self) -> Result<Option<i64>, SeriesRequestError> {
        let Some(text) = &self.step else {
            return Ok(None);
        };
        let plain = text.parse().ok().filter(|step| *step > 0);
        let step = plain.or_else(|| clock::span(text));
        let wrong = || format!("step {text:?} is no span; write nanoseconds, or 10s, 5m, 1h");
        step.map(Some)
            .ok_or_else(|| SeriesRequestError::Request(wrong()))
    }

    fn aggregate(&self) -> Result<Aggregate, SeriesRequestError> {
        Ok(match self.agg.as_deref().unwrap_or("avg") {
            "avg" => Aggregate::Avg,
            "min" => Aggregate::Min,
            "max" => Aggregate::Max,
            "sum" => Aggregate::Sum,
            "count" => Aggregate::Count,
            "first" => Aggregate::First,
            "last" => Aggregate::Last,
            other => {
                let reason =
                    format!("agg {other:?} is none of avg, min, max, sum, count, first, last");
                return Err(SeriesRequestError::Request(reason));
            }
        })
    }
}

/// `GET /series/list`: rows of source and metric.
pub(crate) async fn list(
    State(shared): State<Shared>,
    Query(parameters): Query<Parameters>,
) -> Result<Response, SeriesRequestError> {
    let (request, format) = parameters.parts();
    let turn = Arc::clone(&shared.reads).acquire_owned().await;
    let mut found = Vec::new();
    for db in shared.databases() {
        found.push(request.list(db).await?);
    }
    let (mut values, mut text) = (0, 0);
    for (source, metric) in found.iter().flat_map(SeriesNames::iter) {
        values += NAME_BYTES + (source.len() + metric.len()) as u64;
        text += NAME_TEXT_BYTES + written(source) + written(metric);
    }
    let charged = charge(&shared.engine, values, text).ok_or(SeriesRequestError::NoMemory)?;
    let write = move || {
        let _turn = turn;
        let names = found.iter().flat_map(SeriesNames::iter).map(Name::from);
        let response = match format {
            Format::Json => Json(names.collect::<Vec<_>>()).into_response(),
            Format::Csv => csv(&["source", "metric"], names),
        };
        (response, charged)
    };
    Ok(off_workers(write).await)
}

/// Writes a response on a blocking thread: a hundred megabytes of text would hold up every other client of a worker. What `write` has
/// of turns and charges it keeps until it is done, also when the client has left.
async fn off_workers<W>(write: W) -> Response
where
    W: FnOnce() -> (Response, Reservation) + Send + 'static,
{
    match tokio::task::spawn_blocking(write).await {
        Ok((response, charged)) => hold(response, charged).await,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            // The server ends.
            Err(_) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
        },
    }
}

/// A point with its series' name. A value that is no finite number is null in JSON.
#[derive(Debug, Serialize)]
struct Row<'a> {
    source: &'a str,
    metric: &'a str,
    /// Nanoseconds since 1970.
    timestamp: i64,
    value: f64,
}

impl<'a> Row<'a> {
    fn of(series: &'a SeriesPoints) -> impl Iterator<Item = Self> {
        series.points.iter().map(|point| Self {
            source: &series.source,
            metric: &series.metric,
            timestamp: point.timestamp,
            value: point.value,
        })
    }
}

/// `GET /series/query`: rows of points, by series and time.
pub(crate) async fn query(
    State(shared): State<Shared>,
    Query(parameters): Query<Parameters>,
) -> Result<Response, SeriesRequestError> {
    let (request, format) = parameters.parts();
    let turn = Arc::clone(&shared.reads).acquire_owned().await;
    let (mut found, mut count) = (Vec::new(), 0);
    for db in shared.databases() {
        let more = request.query_limited(MAX_ROWS, db).await?;
        count += more.iter().map(|series| series.points.len()).sum::<usize>();
        found.extend(more);
    }
    if count > MAX_ROWS {
        return Err(SeriesError::TooManyPoints { max: MAX_ROWS }.into());
    }
    let text = found.iter().map(|series| {
        let names = written(&series.source) + written(&series.metric);
        series.points.len() as u64 * (ROW_TEXT_BYTES + names)
    });
    let charged = charge(&shared.engine, count as u64 * ROW_BYTES, text.sum())
        .ok_or(SeriesRequestError::NoMemory)?;
    let write = move || {
        let _turn = turn;
        let rows = found.iter().flat_map(Row::of);
        let response = match format {
            Format::Json => Json(rows.collect::<Vec<_>>()).into_response(),
            Format::Csv => csv(&["source", "metric", "timestamp", "value"], rows),
        };
        (response, charged)
    };
    Ok(off_workers(write).await)
}

/// Rows under a heading, which is there without a row as well.
fn csv<T: Serialize>(heading: &[&str], rows: impl IntoIterator<Item = T>) -> Response {
    let write = || {
        let mut table = csv::WriterBuilder::new()
            .has_headers(false)
            .from_writer(Vec::new());
        table.write_record(heading)?;
        rows.into_iter().try_for_each(|row| table.serialize(row))?;
        table
            .into_inner()
            .map_err(|error| csv::Error::from(error.into_error()))
    };
    match write() {
        Ok(text) => ([(CONTENT_TYPE, "text/csv; charset=utf-8")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}
