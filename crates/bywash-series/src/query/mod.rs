//! Queries: points of many series, optionally aggregated by time steps.

mod iterator;
mod left_out;
mod listing;
mod merge;
mod selector;
mod snapshot;

use std::ops::{Deref, RangeInclusive};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread;

use parking_lot::Mutex;
use tokio::task::{JoinError, JoinSet};

pub use self::iterator::SeriesIterator;
pub use self::left_out::LeftOut;
pub use self::listing::SeriesNames;
pub(crate) use self::merge::{FileReaders, MergeIterator, SortedRun};
pub use self::selector::{Pattern, Selector};
pub(crate) use self::snapshot::{Names, Snapshot, list_series, overlapping};
use crate::limits::{MAX_POINTS, MAX_QUERY_TASKS};
use crate::parquet::Charge;
use crate::{Point, SeriesDb, SeriesError};

/// Min series a task: for fewer, starting a task takes longer than reading.
const SERIES_PER_TASK: usize = 8;

/// Bytes of a series in a result in addition to its points, in a list that grows by doubling; its
/// names may belong to a file.
const RESULT_SERIES_BYTES: u64 = 256;
/// Memory of each point of a list that grows by doubling.
const GROWING: usize = 2;

/// Aggregation of the points of one step.
///
/// NaN values count as points, and may be first or last. Minimum, maximum, sum and average ignore them, and are NaN
/// if there is no other value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aggregate {
    /// The smallest value.
    Min,
    /// The largest value.
    Max,
    /// The sum of all values, in time order.
    Sum,
    /// The number of points.
    Count,
    /// The earliest value.
    First,
    /// The latest value.
    Last,
    /// The sum divided by the number of values.
    Avg,
}

/// One series of a result.
#[derive(Debug, Clone)]
pub struct SeriesPoints {
    /// Name of its source.
    pub source: Arc<str>,
    /// Name of its metric.
    pub metric: Arc<str>,
    /// By ascending timestamp; at least one.
    pub points: Vec<Point>,
}

impl SeriesDb {
    /// Returns the points of the selected series in `range`, both ends included, by source and metric. Omits series
    /// without points.
    ///
    /// With a `step` (in nanoseconds, above 0), each result point aggregates the points of `step` from its timestamp
    /// on. The first step begins at the start of the range; empty steps are omitted. Without a step, points are
    /// returned as they are and `aggregate` is ignored.
    ///
    /// Several series are read concurrently, by tasks of the current runtime.
    ///
    /// # Errors
    /// [`SeriesError::Query`] if the step is not above 0; [`SeriesError::TooManyPoints`] if the result has more than
    /// 16 Mi; [`SeriesError::TooManySelected`]; [`SeriesError::NoMemory`]; [`SeriesError::Store`]; [`SeriesError::DamagedFile`].
    pub async fn query(
        &self,
        selector: &Selector,
        range: RangeInclusive<i64>,
        step: Option<i64>,
        aggregate: Aggregate,
    ) -> Result<SelectedPoints, SeriesError> {
        self.query_limited(MAX_POINTS, selector, range, step, aggregate)
            .await
    }

    /// As [`Self::query`], with at most `max_points` points in the result and in memory, and of at most as many series.
    ///
    /// # Errors
    /// As [`Self::query`].
    pub async fn query_limited(
        &self,
        max_points: usize,
        selector: &Selector,
        range: RangeInclusive<i64>,
        step: Option<i64>,
        aggregate: Aggregate,
    ) -> Result<SelectedPoints, SeriesError> {
        let step = (step, aggregate);
        self.query_without(&LeftOut::default(), max_points, selector, range, step)
            .await
    }

    /// As [`Self::query_limited`], without the rows of files that are damaged or missing.
    ///
    /// # Errors
    /// As [`Self::query`]; [`SeriesError::DamagedFile`] past 16 such files.
    pub async fn query_readable(
        &self,
        max_points: usize,
        selector: &Selector,
        range: RangeInclusive<i64>,
        step: Option<i64>,
        aggregate: Aggregate,
    ) -> Result<(SelectedPoints, LeftOut), SeriesError> {
        let mut left_out = LeftOut::default();
        loop {
            let (range, step) = (range.clone(), (step, aggregate));
            match self
                .query_without(&left_out, max_points, selector, range, step)
                .await
            {
                Ok(found) => return Ok((found, left_out)),
                Err(error) => left_out.add(error)?,
            }
        }
    }

    async fn query_without(
        &self,
        left_out: &LeftOut,
        max_points: usize,
        selector: &Selector,
        range: RangeInclusive<i64>,
        (step, aggregate): (Option<i64>, Aggregate),
    ) -> Result<SelectedPoints, SeriesError> {
        if step.is_some_and(|step| step <= 0) {
            return Err(SeriesError::Query("the step must be above 0"));
        }
        let start = *range.start();
        if range.is_empty() {
            return Ok(SelectedPoints::default());
        }
        let charge = self.read_charge();
        let (memtable, files) = (&self.0.memtable, &self.0.files);
        let mut snapshot = Snapshot::take(memtable, files, selector, range, &charge)?;
        snapshot.leave_out(left_out);
        let names = match selector.exact() {
            Some(names) => SeriesNames::of_series(names, charge.again())?,
            None => snapshot.series(selector).await?,
        };
        // Each series of a result has a point.
        if names.len() > max_points {
            return Err(SeriesError::TooManySelected { max: max_points });
        }
        let run = Arc::new(QueryRun {
            snapshot,
            start,
            step,
            aggregate,
            max_points,
            points_found: AtomicUsize::new(0),
            charge: Mutex::new(charge),
        });
        let series = run.read(names.as_slice()).await?;
        let charge = run.charge.lock().take();
        Ok(SelectedPoints {
            series,
            _charge: Some(charge),
        })
    }

    /// A charge for reading series, still empty.
    pub(crate) fn read_charge(&self) -> Charge {
        Charge::new(Some(&self.0.files.0.budget))
    }
}

/// Points of the selected series, by source and metric, charged to the memory budget until they are dropped.
#[derive(Debug, Default)]
pub struct SelectedPoints {
    // Before the charge: memory is free before its charge is released.
    series: Vec<SeriesPoints>,
    _charge: Option<Charge>,
}

impl Deref for SelectedPoints {
    type Target = [SeriesPoints];

    fn deref(&self) -> &[SeriesPoints] {
        &self.series
    }
}

impl QueryRun {
    /// Returns the result for all series, read by several tasks if they are many.
    async fn read(self: &Arc<Self>, names: &[Names]) -> Result<Vec<SeriesPoints>, SeriesError> {
        let tasks = TASKS.min(names.len() / SERIES_PER_TASK);
        if tasks < 2 {
            return self.run(names).await;
        }
        // Dropping it cancels the tasks.
        let mut running = JoinSet::new();
        for (part, names) in names.chunks(names.len().div_ceil(tasks)).enumerate() {
            let (run, names) = (Arc::clone(self), names.to_vec());
            running.spawn(async move { run.run(&names).await.map(|run| (part, run)) });
        }
        let mut parts = Vec::new();
        while let Some(done) = running.join_next().await {
            parts.push(
                done.map_err(JoinError::into_panic)
                    .unwrap_or_else(|panic| resume_unwind(panic))?,
            );
        }
        parts.sort_unstable_by_key(|(part, _)| *part);
        Ok(parts.into_iter().flat_map(|(_, run)| run).collect())
    }
}

/// Number of concurrent tasks of a query. Determined once: the system call reads files, which takes half as long as a
/// query of one series.
static TASKS: LazyLock<usize> = LazyLock::new(|| {
    thread::available_parallelism().map_or(1, |cores| cores.get().min(MAX_QUERY_TASKS))
});

/// Series read by a task between two yields to other tasks of its worker.
const SERIES_PER_YIELD: usize = 64;

/// A query in progress, with the number of points found by all of its tasks.
struct QueryRun {
    snapshot: Snapshot,
    start: i64,
    step: Option<i64>,
    aggregate: Aggregate,
    max_points: usize,
    points_found: AtomicUsize,
    /// Of the result.
    charge: Mutex<Charge>,
}

impl QueryRun {
    /// Returns the result for these series, in order.
    async fn run(&self, names: &[Names]) -> Result<Vec<SeriesPoints>, SeriesError> {
        let readers = Arc::new(FileReaders::up_to(names.last()));
        let mut buffer = Vec::new();
        let mut run = Vec::new();
        for (number, names) in names.iter().enumerate() {
            if number % SERIES_PER_YIELD == 0 {
                // Rows in memory are returned without an await.
                tokio::task::yield_now().await;
            }
            let mut rows = self.snapshot.rows(names, &readers);
            let mut steps = self
                .step
                .map(|step| StepAggregator::new(self.start, step, self.aggregate));
            let mut points = Vec::new();
            loop {
                let before = points.len();
                let next = rows.next(&mut buffer).await?;
                if next.is_empty() {
                    break;
                }
                match &mut steps {
                    None => {
                        self.count(next.len())?;
                        points.extend_from_slice(next);
                    }
                    Some(steps) => {
                        steps.add(next, &mut points);
                        self.count(points.len() - before)?;
                    }
                }
            }
            let before = points.len();
            if let Some(steps) = steps {
                steps.end(&mut points);
            }
            self.count(points.len() - before)?;
            if !points.is_empty() {
                self.charge.lock().grow(RESULT_SERIES_BYTES)?;
                let (source, metric) = names.clone();
                run.push(SeriesPoints {
                    source,
                    metric,
                    points,
                });
            }
        }
        Ok(run)
    }

    fn count(&self, points: usize) -> Result<(), SeriesError> {
        // Relaxed: a count.
        let before = self.points_found.fetch_add(points, Ordering::Relaxed);
        if before + points > self.max_points {
            return Err(SeriesError::TooManyPoints {
                max: self.max_points,
            });
        }
        let bytes = points * size_of::<Point>() * GROWING;
        self.charge.lock().grow(bytes as u64)
    }
}

/// Aggregates points, in time order, into steps.
struct StepAggregator {
    start: i64,
    step: u64,
    aggregate: Aggregate,
    current: Option<StepState>,
}

/// State of the current step.
struct StepState {
    timestamp: i64,
    /// Last timestamp of the step.
    last: i64,
    count: u64,
    numbers: u64,
    sum: f64,
    min: f64,
    max: f64,
    first_value: f64,
    last_value: f64,
}

impl StepAggregator {
    fn new(start: i64, step: i64, aggregate: Aggregate) -> Self {
        Self {
            start,
            step: step.unsigned_abs(),
            aggregate,
            current: None,
        }
    }

    fn add(&mut self, mut points: &[Point], out: &mut Vec<Point>) {
        while let Some(first) = points.first() {
            let step = match &mut self.current {
                Some(step) if first.timestamp <= step.last => step,
                current => {
                    let begin = first.timestamp.abs_diff(self.start) / self.step * self.step;
                    let last = begin.saturating_add(self.step - 1);
                    let done = current.replace(StepState::new(
                        self.start.wrapping_add_unsigned(begin),
                        self.start.saturating_add_unsigned(last),
                        first.value,
                    ));
                    out.extend(done.map(|step| step.end(self.aggregate)));
                    current.as_mut().expect("it was just put there")
                }
            };
            let after = points.iter().position(|point| point.timestamp > step.last);
            let of_step;
            (of_step, points) = points.split_at(after.unwrap_or(points.len()));
            step.add(of_step);
        }
    }

    fn end(self, out: &mut Vec<Point>) {
        out.extend(self.current.map(|step| step.end(self.aggregate)));
    }
}

impl StepState {
    fn new(timestamp: i64, last: i64, first: f64) -> Self {
        Self {
            timestamp,
            last,
            count: 0,
            numbers: 0,
            sum: 0.0,
            min: f64::NAN,
            max: f64::NAN,
            first_value: first,
            last_value: first,
        }
    }

    fn add(&mut self, points: &[Point]) {
        self.count += points.len() as u64;
        self.last_value = points.last().map_or(self.last_value, |point| point.value);
        for point in points.iter().filter(|point| !point.value.is_nan()) {
            self.numbers += 1;
            self.sum += point.value;
            // `min` and `max` ignore NaN.
            self.min = self.min.min(point.value);
            self.max = self.max.max(point.value);
        }
    }

    fn end(self, aggregate: Aggregate) -> Point {
        let of_numbers = |value| if self.numbers == 0 { f64::NAN } else { value };
        let value = match aggregate {
            Aggregate::Min => self.min,
            Aggregate::Max => self.max,
            Aggregate::Sum => of_numbers(self.sum),
            Aggregate::Count => self.count as f64,
            Aggregate::First => self.first_value,
            Aggregate::Last => self.last_value,
            Aggregate::Avg => of_numbers(self.sum / self.numbers as f64),
        };
        Point {
            timestamp: self.timestamp,
            value,
        }
    }
}
