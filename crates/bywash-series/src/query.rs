//! Points of many series, in steps of time.

use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::selector::Selector;
use crate::snapshot::Names;
use crate::{Point, SeriesDb, SeriesError};

/// Points of an answer at most when nothing is said: 256 MiB of them.
const MOST_POINTS: usize = 16 << 20;

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
        self.query_at_most(MOST_POINTS, selector, range, step, aggregate)
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
        let mut answer = Vec::new();
        let mut room = most;
        let mut batch = Vec::new();
        for names in names {
            let mut rows = snapshot.rows(&names);
            let mut steps = step.map(|step| Steps::new(start, step, aggregate));
            let mut points = Vec::new();
            loop {
                batch.clear();
                rows.next(&mut batch).await?;
                if batch.is_empty() {
                    break;
                }
                match &mut steps {
                    None => points.extend_from_slice(&batch),
                    Some(steps) => steps.add(&batch, &mut points),
                }
                if points.len() > room {
                    return Err(SeriesError::TooManyPoints { most });
                }
            }
            if let Some(steps) = steps {
                steps.end(&mut points);
            }
            room = room
                .checked_sub(points.len())
                .ok_or(SeriesError::TooManyPoints { most })?;
            if !points.is_empty() {
                let (source, metric) = names;
                answer.push(SeriesPoints {
                    source,
                    metric,
                    points,
                });
            }
        }
        Ok(answer)
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
