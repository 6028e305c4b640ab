//! Points of many series, in steps of time.

use std::ops::RangeInclusive;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread;

use tokio::task::{JoinError, JoinSet};

use crate::limits::{MAX_POINTS, MAX_QUERY_TASKS};
use crate::runs::Readers;
use crate::selector::Selector;
use crate::snapshot::{Names, Snapshot};
use crate::{Point, SeriesDb, SeriesError};

/// Series that a task of a question reads at least: fewer take less time than it takes to begin a task.
const SERIES_A_TASK: usize = 8;

/// What becomes of the points of one step.
///
/// Values that are no number count, and may be first or last; minimum, maximum, sum and average are of the others, and NaN if
/// there are none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aggregate {
    /// The smallest value.
    Min,
    /// The largest value.
    Max,
    /// All values added up, in the order of time.
    Sum,
    /// How many points.
    Count,
    /// The earliest value.
    First,
    /// The latest value.
    Last,
    /// The sum by the number of values.
    Avg,
}

/// One series of an answer.
#[derive(Debug, Clone)]
pub struct SeriesPoints {
    /// Its source's name.
    pub source: Arc<str>,
    /// Its metric's name.
    pub metric: Arc<str>,
    /// By ascending timestamp; at least one.
    pub points: Vec<Point>,
}

impl SeriesDb {
    /// The points of the selected series in `range`, both ends included, by source and metric. Series without any are left out.
    ///
    /// With a step (in nanoseconds, above 0) each answer point stands for the points of `step` from its timestamp on; the first
    /// step begins where the range does, and steps without points are left out. Without one, points come as they are and
    /// `aggregate` is not used.
    ///
    /// Of many series, several are read side by side, by tasks of the runtime that this is awaited on.
    ///
    /// # Errors
    /// [`SeriesError::Query`] if the step is not above 0; [`SeriesError::TooManyPoints`] if the answer has more than 16 Mi;
    /// [`SeriesError::Store`]; [`SeriesError::DamagedFile`].
    pub async fn query(
        &self,
        selector: &Selector,
        range: RangeInclusive<i64>,
        step: Option<i64>,
        aggregate: Aggregate,
    ) -> Result<Vec<SeriesPoints>, SeriesError> {
        self.query_at_most(MAX_POINTS, selector, range, step, aggregate)
            .await
    }

    /// As [`Self::query`], of an answer of `most` points: no more of them are ever held.
    ///
    /// # Errors
    /// As that.
    pub async fn query_at_most(
        &self,
        most: usize,
        selector: &Selector,
        range: RangeInclusive<i64>,
        step: Option<i64>,
        aggregate: Aggregate,
    ) -> Result<Vec<SeriesPoints>, SeriesError> {
        if step.is_some_and(|step| step <= 0) {
            return Err(SeriesError::Query("the step must be above 0"));
        }
        let start = *range.start();
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let snapshot = self.snapshot(selector, range);
        let names: Vec<Names> = match selector.exact() {
            Some((source, metric)) => vec![(source.into(), metric.into())],
            None => snapshot.series(selector).await?.owned().collect(),
        };
        let asked = Asked {
            snapshot,
            start,
            step,
            aggregate,
            most,
            found: AtomicUsize::new(0),
        };
        let tasks = TASKS.min(names.len() / SERIES_A_TASK);
        if tasks < 2 {
            return asked.answer(&names).await;
        }
        let asked = Arc::new(asked);
        // Dropped, it stops them.
        let mut running = JoinSet::new();
        for (part, names) in names.chunks(names.len().div_ceil(tasks)).enumerate() {
            let (asked, names) = (Arc::clone(&asked), names.to_vec());
            running.spawn(async move { asked.answer(&names).await.map(|answer| (part, answer)) });
        }
        let mut parts = Vec::new();
        while let Some(done) = running.join_next().await {
            parts.push(
                done.map_err(JoinError::into_panic)
                    .unwrap_or_else(|panic| resume_unwind(panic))?,
            );
        }
        parts.sort_unstable_by_key(|(part, _)| *part);
        Ok(parts.into_iter().flat_map(|(_, answer)| answer).collect())
    }
}

/// How many tasks read series of one question side by side, on the threads of the runtime. Asked once: the answer is read from
/// files, which takes half as long as a query of one series.
static TASKS: LazyLock<usize> = LazyLock::new(|| {
    thread::available_parallelism().map_or(1, |cores| cores.get().min(MAX_QUERY_TASKS))
});

/// Series that a task reads before it lets other tasks of its worker go first.
const SERIES_A_TURN: usize = 64;

/// A question, and how many points were found by all who read for it.
struct Asked {
    snapshot: Snapshot,
    start: i64,
    step: Option<i64>,
    aggregate: Aggregate,
    most: usize,
    found: AtomicUsize,
}

impl Asked {
    /// What is asked of these series, in their order.
    async fn answer(&self, names: &[Names]) -> Result<Vec<SeriesPoints>, SeriesError> {
        let readers = Arc::new(Readers::up_to(names.last()));
        let mut room = Vec::new();
        let mut answer = Vec::new();
        for (number, names) in names.iter().enumerate() {
            if number % SERIES_A_TURN == 0 {
                // Rows in memory come without a wait.
                tokio::task::yield_now().await;
            }
            let mut rows = self.snapshot.rows(names, &readers);
            let mut steps = self
                .step
                .map(|step| Steps::new(self.start, step, self.aggregate));
            let mut points = Vec::new();
            loop {
                let before = points.len();
                let next = rows.next(&mut room).await?;
                if next.is_empty() {
                    break;
                }
                match &mut steps {
                    None => points.extend_from_slice(next),
                    Some(steps) => steps.add(next, &mut points),
                }
                self.count(points.len() - before)?;
            }
            let before = points.len();
            if let Some(steps) = steps {
                steps.end(&mut points);
            }
            self.count(points.len() - before)?;
            if !points.is_empty() {
                let (source, metric) = names.clone();
                answer.push(SeriesPoints {
                    source,
                    metric,
                    points,
                });
            }
        }
        Ok(answer)
    }

    fn count(&self, points: usize) -> Result<(), SeriesError> {
        // Relaxed: a count.
        let before = self.found.fetch_add(points, Ordering::Relaxed);
        if before + points > self.most {
            return Err(SeriesError::TooManyPoints { most: self.most });
        }
        Ok(())
    }
}

/// Puts points into steps, in the order of time.
struct Steps {
    start: i64,
    step: u64,
    aggregate: Aggregate,
    current: Option<Step>,
}

/// The points of one step so far.
struct Step {
    timestamp: i64,
    /// The last timestamp of the step.
    last: i64,
    count: u64,
    numbers: u64,
    sum: f64,
    min: f64,
    max: f64,
    first_value: f64,
    last_value: f64,
}

impl Steps {
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
                    let done = current.replace(Step::new(
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

impl Step {
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
            // Of a NaN and a number, these give the number.
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
