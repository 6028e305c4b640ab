//! Names and points of series by HTTP.
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
use bywash_series::{
    Aggregate, LeftOut, Pattern, SelectedPoints, Selector, SeriesDb, SeriesError, SeriesNames,
    SeriesPoints,
};
use serde::{Deserialize, Serialize};

use crate::charged::{charge, hold, written};
use crate::clock::{self, now};
use crate::content::{Content, naming};
use crate::limits::MAX_ROWS;
use crate::{History, Shared};

/// Bytes of a row of points in memory while it is rendered.
const ROW_BYTES: u64 = 64;
/// Bytes of a rendered row of points without the names.
const ROW_TEXT_BYTES: u64 = 96;
/// Bytes of a name in memory without its characters.
const NAME_BYTES: u64 = 96;
/// Bytes of a rendered name without its characters.
const NAME_TEXT_BYTES: u64 = 32;

/// Name of a series.
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
    /// The databases: of received values, then of the server's own history.
    fn databases(&self) -> impl Iterator<Item = (Content, &SeriesDb)> {
        let history = self.history.as_ref().map(History::db);
        let values = self.series.iter().map(|db| (Content::Values, db));
        values.chain(history.map(|db| (Content::History, db)))
    }

    /// The databases that can have a source of this selection.
    pub(crate) fn databases_of(
        &self,
        source: &Pattern,
    ) -> impl Iterator<Item = (Content, &SeriesDb)> {
        self.databases()
            .filter(|(content, _)| content.may_have(source))
    }

    /// Returns the database of received values if such a source needs it.
    ///
    /// # Errors
    /// If it is damaged, and not open.
    fn require_values(&self, source: &Pattern) -> Result<(), SeriesRequestError> {
        if Content::Values.may_have(source) {
            self.values()?;
        }
        Ok(())
    }

    /// Returns the database of received values.
    ///
    /// # Errors
    /// If it is damaged, and not open.
    pub(crate) fn values(&self) -> Result<&SeriesDb, SeriesRequestError> {
        self.series.as_ref().ok_or(SeriesRequestError::Damaged)
    }
}

/// Format of rows.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Format {
    #[default]
    Json,
    Csv,
}

/// Parameters of `/series/list` and `/series/query`. Others are refused: ignoring a misspelled one would return everything.
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

/// Reason for which a request fails.
#[derive(Debug)]
pub enum SeriesRequestError {
    /// The request is invalid; states a valid form.
    Request(String),
    /// Error of the database.
    Database(SeriesError),
    /// The database of received values is damaged: the server runs without it.
    Damaged,
    /// No memory for the response now.
    NoMemory,
}

impl fmt::Display for SeriesRequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(reason) => f.write_str(reason),
            Self::Database(error) => error.fmt(f),
            Self::Damaged => f.write_str(
                "the database of received values is damaged, and the server runs without it; /readyz names its files",
            ),
            Self::NoMemory => f.write_str(
                "there is no memory for the response now; send the request again, or for less",
            ),
        }
    }
}

impl std::error::Error for SeriesRequestError {}

impl From<SeriesError> for SeriesRequestError {
    fn from(error: SeriesError) -> Self {
        match error {
            SeriesError::Query(reason) => Self::Request(reason.to_owned()),
            SeriesError::TooManyPoints { .. } | SeriesError::TooManySelected { .. } => {
                Self::Request(error.to_string())
            }
            SeriesError::NoMemory { .. } => Self::NoMemory,
            error => Self::Database(error),
        }
    }
}

impl IntoResponse for SeriesRequestError {
    fn into_response(self) -> Response {
        let status = match self {
            Self::Request(_) => StatusCode::BAD_REQUEST,
            Self::Database(_) | Self::Damaged | Self::NoMemory => {
                tracing::warn!(error = %self, "series cannot be read");
                StatusCode::SERVICE_UNAVAILABLE
            }
        };
        (status, format!("{self}\n")).into_response()
    }
}

/// Selection of series and of their points, as text. Missing fields select everything.
#[derive(Debug, Clone, Default)]
pub struct SeriesRequest {
    /// A source, or a pattern of sources.
    pub source: Option<String>,
    /// A metric, or a pattern of metrics.
    pub metric: Option<String>,
    /// First time: nanoseconds since 1970, RFC 3339, `now`, or `-15m`.
    pub start: Option<String>,
    /// Last time, likewise.
    pub end: Option<String>,
    /// Duration whose points are aggregated to one, as `10s`; none: single points.
    pub step: Option<String>,
    /// Aggregation: `avg` (default), `min`, `max`, `sum`, `count`, `first` or `last`.
    pub agg: Option<String>,
}

impl SeriesRequest {
    /// Returns source and metric of each selected series, in order.
    ///
    /// # Errors
    /// [`SeriesRequestError`].
    pub async fn list(&self, db: &SeriesDb) -> Result<SeriesNames, SeriesRequestError> {
        Ok(db.list(&self.selector(), self.range()?).await?)
    }

    /// Returns the selected points by series.
    ///
    /// # Errors
    /// [`SeriesRequestError`].
    pub async fn query(&self, db: &SeriesDb) -> Result<SelectedPoints, SeriesRequestError> {
        let (range, step, aggregate) = (self.range()?, self.step()?, self.aggregate()?);
        Ok(db.query(&self.selector(), range, step, aggregate).await?)
    }

    /// As [`Self::query`], with at most `max` points, and without damaged files.
    async fn query_readable(
        &self,
        max: usize,
        db: &SeriesDb,
    ) -> Result<(SelectedPoints, LeftOut), SeriesRequestError> {
        let (range, step, aggregate) = (self.range()?, self.step()?, self.aggregate()?);
        let selector = self.selector();
        let found = db.query_readable(max, &selector, range, step, aggregate);
        Ok(found.await?)
    }

    /// Whether a database of this kind can have a selected series.
    #[must_use]
    pub fn concerns(&self, content: Content) -> bool {
        content.may_have(&self.selector().source)
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
                    format!("agg {other:?} is not one of avg, min, max, sum, count, first, last");
                return Err(SeriesRequestError::Request(reason));
            }
        })
    }
}

/// `GET /series/list`: returns rows of source and metric.
pub(crate) async fn list(
    State(shared): State<Shared>,
    Query(parameters): Query<Parameters>,
) -> Result<Response, SeriesRequestError> {
    let (request, format) = parameters.parts();
    let turn = Arc::clone(&shared.reads).acquire_owned().await;
    let (selector, range) = (request.selector(), request.range()?);
    shared.require_values(&selector.source)?;
    let (mut found, mut count, mut damaged) = (Vec::new(), 0, Vec::new());
    for (content, db) in shared.databases_of(&selector.source) {
        let (names, left_out) = db.list_readable(&selector, range.clone()).await?;
        shared.note_left_out(content, &left_out);
        damaged.push((content, left_out));
        count += names.len();
        found.push(names);
    }
    if count > MAX_ROWS {
        return Err(SeriesError::TooManySelected { max: MAX_ROWS }.into());
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
    Ok(naming(off_workers(write).await, &damaged))
}

/// Renders a response on a blocking thread: a hundred megabytes of text would delay all other clients of a worker. `write` keeps its
/// permits and charges until it is done, also after the client has left.
async fn off_workers<W>(write: W) -> Response
where
    W: FnOnce() -> (Response, Reservation) + Send + 'static,
{
    match tokio::task::spawn_blocking(write).await {
        Ok((response, charged)) => hold(response, charged).await,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            // The server stops.
            Err(_) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
        },
    }
}

/// A point with the name of its series. A value that is not finite is null in JSON.
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

/// `GET /series/query`: returns rows of points by series and time.
pub(crate) async fn query(
    State(shared): State<Shared>,
    Query(parameters): Query<Parameters>,
) -> Result<Response, SeriesRequestError> {
    let (request, format) = parameters.parts();
    let turn = Arc::clone(&shared.reads).acquire_owned().await;
    let source = request.selector().source;
    shared.require_values(&source)?;
    let (mut found, mut count, mut damaged) = (Vec::new(), 0, Vec::new());
    for (content, db) in shared.databases_of(&source) {
        let (more, left_out) = request.query_readable(MAX_ROWS, db).await?;
        shared.note_left_out(content, &left_out);
        damaged.push((content, left_out));
        count += more.iter().map(|series| series.points.len()).sum::<usize>();
        found.push(more);
    }
    if count > MAX_ROWS {
        return Err(SeriesError::TooManyPoints { max: MAX_ROWS }.into());
    }
    let series = || found.iter().flat_map(|found| found.iter());
    let text = series().map(|series| {
        let names = written(&series.source) + written(&series.metric);
        series.points.len() as u64 * (ROW_TEXT_BYTES + names)
    });
    let charged = charge(&shared.engine, count as u64 * ROW_BYTES, text.sum())
        .ok_or(SeriesRequestError::NoMemory)?;
    let write = move || {
        let _turn = turn;
        let rows = found
            .iter()
            .flat_map(|found| found.iter())
            .flat_map(Row::of);
        let response = match format {
            Format::Json => Json(rows.collect::<Vec<_>>()).into_response(),
            Format::Csv => csv(&["source", "metric", "timestamp", "value"], rows),
        };
        (response, charged)
    };
    Ok(naming(off_workers(write).await, &damaged))
}

/// Writes rows under a heading, which is written without rows too.
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
