//! Selects the charts of a page, and queries their points.

use std::collections::BTreeMap;

use bywash::traffic::RequestKind;
use bywash_series::{Aggregate, Pattern, Selector, SeriesDb, SeriesError};

use super::chart::{Chart, LINES, Line};
use super::format::Unit;
use super::range::Range;
use crate::Shared;
use crate::content::Content;
use crate::history::{
    DROPPED_POINTS, HISTORY_EVERY, OWN, QUANTILES, STARTS, bucket_source, latency_metric,
};
use crate::limits::MAX_ROWS;

/// A database whose points are drawn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Database<'a> {
    pub(super) shared: &'a Shared,
    pub(super) content: Content,
    pub(super) db: &'a SeriesDb,
}

/// Time span and step of charts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Drawing {
    /// First and last nanosecond.
    pub(super) span: (i64, i64),
    /// Nanoseconds between points.
    step: i64,
}

impl Drawing {
    pub(super) fn new(range: Range, now: i64) -> Self {
        let every = HISTORY_EVERY.as_nanos() as i64;
        Self {
            span: range.span(now, every),
            step: range.step(every),
        }
    }

    fn chart(self, title: &str, unit: Unit, lines: Vec<Line>) -> Chart {
        Chart {
            title: title.to_owned(),
            unit,
            lines,
            span: self.span,
            step: self.step,
            starts: Vec::new(),
        }
    }

    /// Returns the times at which the server started, at most one a step.
    pub(super) async fn starts(self, history: Database<'_>) -> Result<Vec<i64>, SeriesError> {
        let starts = Selector::series(OWN, STARTS);
        let found = self.points(history, &starts, Aggregate::Max).await?;
        Ok(own(&found, STARTS).into_iter().map(|(at, _)| at).collect())
    }

    /// Returns the points of each selected series by source and metric.
    async fn points(
        self,
        database: Database<'_>,
        selector: &Selector,
        aggregate: Aggregate,
    ) -> Result<BTreeMap<(String, String), Points>, SeriesError> {
        let range = self.span.0..=self.span.1;
        let step = Some(self.step);
        let Database {
            shared,
            content,
            db,
        } = database;
        let (found, left_out) = db
            .query_readable(MAX_ROWS, selector, range, step, aggregate)
            .await?;
        shared.note_left_out(content, &left_out);
        let series = found.iter().map(|series| {
            let points = series
                .points
                .iter()
                .map(|point| (point.timestamp, point.value))
                .collect();
            (
                (series.source.to_string(), series.metric.to_string()),
                points,
            )
        });
        Ok(series.collect())
    }
}

/// Nanoseconds since 1970 and values, by time.
type Points = Vec<(i64, f64)>;

/// Returns the charts of the server's own history.
pub(super) async fn history_charts(
    history: Database<'_>,
    drawing: &Drawing,
) -> Result<Vec<Chart>, SeriesError> {
    let sums = drawing
        .points(history, &Selector::parse(OWN, "*"), Aggregate::Sum)
        .await?;
    let peaks = drawing
        .points(history, &Selector::parse(OWN, "*"), Aggregate::Max)
        .await?;
    let seconds = drawing.step as f64 / 1e9;
    let rate = |label: &str, metric: &str| Line {
        label: label.to_owned(),
        points: own(&sums, metric)
            .into_iter()
            .map(|(at, sum)| (at, sum / seconds))
            .collect(),
    };
    let peak = |label: &str, metric: &str| Line {
        label: label.to_owned(),
        points: own(&peaks, metric),
    };
    let latency = |title: &str, kind: RequestKind| {
        let lines = QUANTILES.map(|(share, name)| {
            peak(&format!("{} %", share * 100.0), &latency_metric(kind, name))
        });
        drawing.chart(title, Unit::Time, lines.to_vec())
    };
    let mut charts = vec![
        drawing.chart(
            "Traffic",
            Unit::ByteRate,
            vec![
                rate("sent to clients", "sent_bytes"),
                rate("from origins", "origin_bytes"),
                rate("received from clients", "received_bytes"),
            ],
        ),
        drawing.chart(
            "Requests",
            Unit::Rate,
            vec![
                rate("of clients", "requests"),
                rate("to origins", "origin_requests"),
                rate("failed", "failed_requests"),
                rate("repeated to origins", "retries"),
            ],
        ),
        drawing.chart(
            "Hit ratio by bucket",
            Unit::Share,
            hit_ratios(history, drawing).await?,
        ),
        latency("Latency of reads", RequestKind::Read),
        latency("Latency of writes", RequestKind::Write),
        drawing.chart(
            "Memory",
            Unit::Bytes,
            vec![peak("used", "memory_used"), peak("limit", "memory_limit")],
        ),
        drawing.chart("Evictions", Unit::Rate, vec![rate("blocks", "evictions")]),
        drawing.chart(
            "Waiting for memory",
            Unit::Count,
            vec![peak("requests", "memory_waiting")],
        ),
    ];
    charts.extend(missing(drawing, own(&sums, DROPPED_POINTS)));
    Ok(charts)
}

/// Returns the charts of one bucket.
pub(super) async fn bucket_charts(
    history: Database<'_>,
    bucket: &str,
    drawing: &Drawing,
) -> Result<Vec<Chart>, SeriesError> {
    let source = bucket_source(bucket);
    let every = Selector {
        source: Pattern::Exact(source.clone()),
        metric: Pattern::parse("*"),
    };
    let sums = drawing.points(history, &every, Aggregate::Sum).await?;
    let seconds = drawing.step as f64 / 1e9;
    let rate = |label: &str, metric: &str| {
        let points = sums.get(&(source.clone(), metric.to_owned()));
        let points = points.into_iter().flatten();
        Line {
            label: label.to_owned(),
            points: points.map(|(at, sum)| (*at, sum / seconds)).collect(),
        }
    };
    let traffic = vec![
        rate("to readers", "bytes"),
        rate("from the origin", "origin_bytes"),
    ];
    let requests = vec![
        rate("of readers and writers", "requests"),
        rate("to the origin", "origin_requests"),
        rate("repeated", "retries"),
    ];
    let blocks = vec![rate("hits", "hits"), rate("misses", "misses")];
    Ok(vec![
        drawing.chart("Traffic", Unit::ByteRate, traffic),
        drawing.chart("Requests", Unit::Rate, requests),
        drawing.chart("Blocks", Unit::Rate, blocks),
    ])
}

/// The points of a metric of the whole server.
fn own(points: &BTreeMap<(String, String), Points>, metric: &str) -> Points {
    points
        .get(&(OWN.to_owned(), metric.to_owned()))
        .cloned()
        .unwrap_or_default()
}

/// The chart of points missing in the others, if any are.
fn missing(drawing: &Drawing, dropped: Points) -> Option<Chart> {
    let any = dropped.iter().any(|(_, count)| *count > 0.0);
    let line = Line {
        label: "points".to_owned(),
        points: dropped,
    };
    any.then(|| drawing.chart("Missing in these charts", Unit::Count, vec![line]))
}

/// Returns the hit ratios of the buckets with the most reads.
async fn hit_ratios(history: Database<'_>, drawing: &Drawing) -> Result<Vec<Line>, SeriesError> {
    let any = bucket_source("*");
    let hits = drawing
        .points(history, &Selector::parse(&any, "hits"), Aggregate::Sum)
        .await?;
    let misses = drawing
        .points(history, &Selector::parse(&any, "misses"), Aggregate::Sum)
        .await?;
    let mut buckets: Vec<(f64, Line)> = Vec::new();
    for ((source, _), hits) in &hits {
        let misses = misses.get(&(source.clone(), "misses".to_owned()));
        let misses: BTreeMap<i64, f64> = misses.into_iter().flatten().copied().collect();
        let blocks = hits.iter().map(|(at, hits)| {
            (
                *at,
                *hits,
                hits + misses.get(at).copied().unwrap_or_default(),
            )
        });
        let wanted: Vec<_> = blocks.filter(|(_, _, wanted)| *wanted > 0.0).collect();
        let label = source
            .strip_prefix(&bucket_source(""))
            .unwrap_or(source)
            .to_owned();
        let points = wanted
            .iter()
            .map(|(at, hits, wanted)| (*at, hits / wanted))
            .collect();
        buckets.push((
            wanted.iter().map(|(_, _, wanted)| wanted).sum(),
            Line { label, points },
        ));
    }
    buckets.retain(|(_, line)| !line.points.is_empty());
    buckets.sort_by(|a, b| b.0.total_cmp(&a.0));
    Ok(buckets
        .into_iter()
        .take(LINES)
        .map(|(_, line)| line)
        .collect())
}

/// Returns the charts of the series of this name. A slash may be part of a source or of a metric, so each is tried as the separator.
pub(super) async fn series_charts(
    shared: &Shared,
    name: &str,
    drawing: &Drawing,
) -> Result<Vec<Chart>, SeriesError> {
    let mut charts = Vec::new();
    for (slash, _) in name.match_indices('/') {
        let selector = Selector::series(&name[..slash], &name[slash + 1..]);
        for (content, db) in shared.databases_of(&selector.source) {
            let database = Database {
                shared,
                content,
                db,
            };
            let found = drawing.points(database, &selector, Aggregate::Avg).await?;
            for ((source, metric), points) in found {
                let title = format!("{source}/{metric}");
                let mut chart = drawing.chart(
                    &title,
                    Unit::Count,
                    vec![Line {
                        label: metric,
                        points,
                    }],
                );
                chart.step = chart.step.max(usual_gap(&chart.lines[0].points));
                charts.push(chart);
            }
        }
    }
    Ok(charts)
}

/// The median distance of points in nanoseconds: rare points are drawn as a line.
fn usual_gap(points: &[(i64, f64)]) -> i64 {
    let mut gaps: Vec<_> = points
        .windows(2)
        .map(|pair| pair[1].0.saturating_sub(pair[0].0))
        .collect();
    gaps.sort_unstable();
    gaps.get(gaps.len() / 2).copied().unwrap_or_default()
}
