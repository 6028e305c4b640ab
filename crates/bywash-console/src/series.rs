//! Names and points of series by HTTP.
//!
//! Sources and metrics may be patterns: `*` stands for any characters, `?` for one.

use std::fmt;
use std::ops::RangeInclusive;
use std::panic::resume_unwind;
use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use bywash::{Engine, Reservation, Share};
use bywash_series::{
    Aggregate, LeftOut, Pattern, SelectedPoints, Selector, SeriesDb, SeriesError, SeriesNames,
    SeriesPoints,
};
use serde::{Deserialize, Serialize, Serializer as _};

use crate::charged::{charge_written, hold_written, written};
use crate::clock::{self, now};
use crate::content::{Content, naming};
use crate::limits::MAX_ROWS;
use crate::{History, Shared};

/// Bytes of a point in memory while its row is rendered, in a list that grew by doubling.
const ROW_BYTES: u64 = 32;
/// Bytes of a rendered row of points without the names.
const ROW_TEXT_BYTES: u64 = 96;
/// Bytes of a name in memory without its characters.
const NAME_BYTES: u64 = 96;
/// Bytes of a rendered name without its characters.
const NAME_TEXT_BYTES: u64 = 32;
/// Bytes of a rendered table without its rows: brackets, or the heading.
const TABLE_TEXT_BYTES: u64 = 64;

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
    /// The response needs more than all memory of responses.
    TooLarge {
        /// Bytes that it needs.
        bytes: u64,
        /// Bytes that all responses may have.
        max: u64,
    },
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
            Self::TooLarge { bytes, max } => write!(
                f,
                "the response needs {} MiB of memory, and --memory leaves at most {} MiB for responses; ask for fewer series, a shorter time or a step",
                bytes.div_ceil(1 << 20),
                max >> 20
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
            Self::Request(_) | Self::TooLarge { .. } => StatusCode::BAD_REQUEST,
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
    let table = Table::charged(&shared.engine, values, text)?;
    let write = move |table: &Table| {
        let _turn = turn;
        let names = found.iter().flat_map(SeriesNames::iter).map(Name::from);
        table.rendered(format, &["source", "metric"], names)
    };
    Ok(naming(table.off_workers(write).await, &damaged))
}

/// A response of rows, charged before it is rendered into one buffer.
struct Table {
    charge: Reservation,
    /// Bytes of the buffer. The text does not exceed it.
    room: u64,
}

impl Table {
    /// Charges `values` bytes of rows and `text` bytes of their text.
    fn charged(engine: &Engine, values: u64, text: u64) -> Result<Self, SeriesRequestError> {
        let room = text + TABLE_TEXT_BYTES;
        let charge = charge_written(engine, values, room).ok_or_else(|| {
            let (bytes, max) = (values + room, engine.budget().max_of_share(Share::Upload));
            if bytes > max {
                SeriesRequestError::TooLarge { bytes, max }
            } else {
                SeriesRequestError::NoMemory
            }
        })?;
        Ok(Self { charge, room })
    }

    fn rendered<T: Serialize>(
        &self,
        format: Format,
        heading: &[&str],
        rows: impl Iterator<Item = T>,
    ) -> Response {
        let text = Vec::with_capacity(self.room as usize);
        match format {
            Format::Json => json_rows(text, rows),
            Format::Csv => csv_rows(text, heading, rows),
        }
    }

    /// Renders on a blocking thread: a hundred megabytes of text would delay all other clients of a worker. Permits of `write` and the
    /// charge last until `write` returns, also after the client has left.
    async fn off_workers<W>(self, write: W) -> Response
    where
        W: FnOnce(&Self) -> Response + Send + 'static,
    {
        let written = tokio::task::spawn_blocking(move || (write(&self), self));
        match written.await {
            Ok((response, table)) => hold_written(response, table.charge, table.room).await,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                // The server stops.
                Err(_) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
            },
        }
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
    let table = Table::charged(&shared.engine, count as u64 * ROW_BYTES, text.sum())?;
    let write = move |table: &Table| {
        let _turn = turn;
        let rows = found
            .iter()
            .flat_map(|found| found.iter())
            .flat_map(Row::of);
        table.rendered(format, &["source", "metric", "timestamp", "value"], rows)
    };
    Ok(naming(table.off_workers(write).await, &damaged))
}

/// Writes rows as an array.
fn json_rows<T: Serialize>(text: Vec<u8>, rows: impl Iterator<Item = T>) -> Response {
    let mut writer = serde_json::Serializer::new(text);
    match writer.collect_seq(rows) {
        Ok(()) => ([(CONTENT_TYPE, "application/json")], writer.into_inner()).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

/// Writes rows under a heading, which is written without rows too.
fn csv_rows<T: Serialize>(
    text: Vec<u8>,
    heading: &[&str],
    mut rows: impl Iterator<Item = T>,
) -> Response {
    let write = || {
        let mut table = csv::WriterBuilder::new()
            .has_headers(false)
            .from_writer(text);
        table.write_record(heading)?;
        rows.try_for_each(|row| table.serialize(row))?;
        table
            .into_inner()
            .map_err(|error| csv::Error::from(error.into_error()))
    };
    match write() {
        Ok(text) => ([(CONTENT_TYPE, "text/csv; charset=utf-8")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn response_that_never_fits_is_refused_with_its_size_and_one_that_may_fit_for_now() {
        let engine = Engine::builder().memory(64 << 20).build().unwrap();
        let status = |bytes| {
            let refused = Table::charged(&engine, bytes, 0).err().unwrap();
            let text = refused.to_string();
            (refused.into_response().status().as_u16(), text)
        };
        let (code, text) = status(1 << 30);
        assert_eq!(code, 400);
        assert!(
            text.contains("1025 MiB") && text.contains("a step"),
            "{text}"
        );
        let taken = Table::charged(&engine, 8 << 20, 0).unwrap();
        let max = engine.budget().max_of_share(Share::Upload);
        let (code, text) = status(max - (4 << 20));
        assert_eq!(code, 503);
        assert!(text.contains("send the request again"), "{text}");
        drop(taken);
        Table::charged(&engine, max - (4 << 20), 0).unwrap();
    }

    #[test]
    fn rows_of_any_names_and_values_fit_the_room_that_was_charged() {
        let names = [
            "",
            "m",
            "a \"quoted\" name, with a comma",
            "tab\tand\u{1}control",
            "ümläut/✓",
        ];
        let values = [
            f64::MIN,
            f64::MIN_POSITIVE,
            -0.1,
            f64::NAN,
            f64::INFINITY,
            5e-324,
        ];
        let rows = || {
            let pairs = names
                .iter()
                .flat_map(|name| values.iter().map(move |value| (*name, *value)));
            pairs.map(|(name, value)| Row {
                source: name,
                metric: name,
                timestamp: i64::MIN,
                value,
            })
        };
        let needed: u64 = rows()
            .map(|row| ROW_TEXT_BYTES + written(row.source) + written(row.metric))
            .sum();
        let room = (needed + TABLE_TEXT_BYTES) as usize;
        for format in [Format::Json, Format::Csv] {
            let engine = Engine::builder().memory(64 << 20).build().unwrap();
            let table = Table::charged(&engine, 0, needed).unwrap();
            assert_eq!(table.room as usize, room);
            let heading = ["source", "metric", "timestamp", "value"];
            let response = table.rendered(format, &heading, rows());
            let length = axum::body::HttpBody::size_hint(response.body())
                .exact()
                .unwrap();
            assert!(
                length <= room as u64 && length > room as u64 / 3,
                "{length} of {room}"
            );
        }
    }
}
