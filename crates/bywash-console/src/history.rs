//! The server's own history: its counters and latencies, written as series.
//!
//! | source | content |
//! |---|---|
//! | `bywash` | the endpoints, all buckets together, memory |
//! | `bywash,bucket=NAME` | one bucket |
//!
//! A point of a counter is its increase since the previous point: sums over any span are right, and a restart is no jump. Of
//! gauges it is the level. Of latencies it is a quantile of the responses since the previous point, in seconds; without responses
//! there is no point.
//!
//! Requests only add to counters: writing history never makes one wait. A point that cannot be written in time is dropped
//! and counted, and its increases go into a later one.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bywash::traffic::{Latencies, RequestKind, TrafficStats};
use bywash::{BucketStats, Engine, Stats};
use bywash_series::{Row, SeriesDb, SeriesError};
use serde::Serialize;
use tokio::time::MissedTickBehavior;

use crate::clock::now;
pub(crate) use crate::influx::OWN_MEASUREMENT as OWN;

/// Default interval between two points.
pub const HISTORY_EVERY: Duration = Duration::from_secs(10);
/// Quantiles recorded of latencies, and their names.
pub(crate) const QUANTILES: [(f64, &str); 3] = [(0.5, "p50"), (0.9, "p90"), (0.99, "p99")];
/// Max buckets with a history of their own, first by name: a server of thousands would have more history than data.
pub(crate) const BUCKETS: usize = 256;

/// Starts of the server: one point each, of the time of the start.
pub(crate) const STARTS: &str = "starts";
/// Metric of dropped points.
pub(crate) const DROPPED_POINTS: &str = "history_dropped_points";

/// The source of a bucket's series.
pub(crate) fn bucket_source(bucket: &str) -> String {
    format!("{OWN},bucket={bucket}")
}

/// The metric of a latency's quantile.
pub(crate) fn latency_metric(kind: RequestKind, quantile: &str) -> String {
    format!("{}_latency_{quantile}", kind.name())
}

/// The server's own history: its database and counters. A cheap handle.
#[derive(Debug, Clone)]
pub struct History {
    db: SeriesDb,
    counters: Arc<Counters>,
}

/// Read for metrics and for the history itself only, so every access is relaxed.
#[derive(Debug, Default)]
struct Counters {
    points: AtomicU64,
    dropped_points: AtomicU64,
}

/// Counters of the history's points.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct HistoryStats {
    /// Points written, each in all series.
    pub points: u64,
    /// Points dropped: the disk or the store was busy with an earlier one, or failed.
    pub dropped_points: u64,
}

impl History {
    /// Creates a history in `db`. Its [`write_timeout`](bywash_series::SeriesOptions::write_timeout) should be zero: a point that has to wait is
    /// better dropped.
    #[must_use]
    pub fn new(db: SeriesDb) -> Self {
        Self {
            db,
            counters: Arc::default(),
        }
    }

    /// Its database.
    #[must_use]
    pub fn db(&self) -> &SeriesDb {
        &self.db
    }

    /// Its counters.
    #[must_use]
    pub fn stats(&self) -> HistoryStats {
        HistoryStats {
            points: self.counters.points.load(Relaxed),
            dropped_points: self.counters.dropped_points.load(Relaxed),
        }
    }

    fn drop_point(&self) {
        self.counters.dropped_points.fetch_add(1, Relaxed);
    }

    /// Writes a point of `engine`'s counters at each interval `every` until `shutdown` resolves, then a last one.
    pub async fn record(
        self,
        engine: Engine,
        every: Duration,
        shutdown: impl Future<Output = ()> + Send,
    ) {
        let mut ticks = tokio::time::interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        // The first tick is immediate.
        ticks.tick().await;
        let recorder = Recorder::new(engine, self.clone());
        // At most one point is being written, on a thread where it may be stuck.
        let mut writing = tokio::task::spawn_blocking(|| recorder);
        tokio::pin!(shutdown);
        loop {
            let last = tokio::select! {
                _ = ticks.tick() => false,
                () = &mut shutdown => true,
            };
            if !last && !writing.is_finished() {
                self.drop_point();
                continue;
            }
            let recorder = match writing.await {
                Ok(recorder) => recorder,
                Err(error) => {
                    tracing::error!(%error, "the server's history ends here");
                    return;
                }
            };
            writing = tokio::task::spawn_blocking(move || recorder.recorded());
            if last {
                // A failure was logged.
                let _ = writing.await;
                return;
            }
        }
    }
}

/// Snapshot of all counters.
#[derive(Debug, Clone, Default)]
pub(crate) struct CounterSnapshot {
    pub(crate) history: HistoryStats,
    pub(crate) traffic: TrafficStats,
    pub(crate) latencies: [Latencies; RequestKind::ALL.len()],
    pub(crate) stats: Stats,
}

impl CounterSnapshot {
    /// Takes a snapshot. Without a history its counters are zero.
    pub(crate) fn now(engine: &Engine, history: Option<&History>) -> Self {
        let traffic = engine.traffic();
        Self {
            history: history.map(History::stats).unwrap_or_default(),
            traffic: traffic.stats(),
            latencies: RequestKind::ALL.map(|kind| traffic.latencies(kind)),
            stats: engine.stats(),
        }
    }
}

/// Rows of a point: sources, their metrics, time and values.
type Rows = Vec<(String, String, i64, f64)>;

#[derive(Debug)]
struct Recorder {
    engine: Engine,
    history: History,
    /// Time of the start, until it is written.
    started: Option<i64>,
    /// Counters of the last point written; counters of a new engine begin at 0.
    written: CounterSnapshot,
    /// A point that failed, possibly with some rows stored: written again unchanged, no row counts twice.
    unwritten: Option<(CounterSnapshot, Rows)>,
}

impl Recorder {
    fn new(engine: Engine, history: History) -> Self {
        Self {
            engine,
            history,
            started: Some(now()),
            written: CounterSnapshot::default(),
            unwritten: None,
        }
    }

    /// Writes one point of each series. Blocks like the database.
    fn recorded(mut self) -> Self {
        if let Err(error) = self.record() {
            self.history.drop_point();
            tracing::warn!(%error, "the server's history misses a point");
        }
        self
    }

    fn record(&mut self) -> Result<(), SeriesError> {
        self.write()?;
        let counted = CounterSnapshot::now(&self.engine, Some(&self.history));
        let mut rows = self.rows(&counted, now());
        if let Some(started) = self.started.take() {
            rows.push((OWN.to_owned(), STARTS.to_owned(), started, 1.0));
        }
        self.unwritten = Some((counted, rows));
        self.write()
    }

    fn write(&mut self) -> Result<(), SeriesError> {
        let Some((counted, rows)) = self.unwritten.take() else {
            return Ok(());
        };
        // By names: a series that is written seldom leaves memory in between, and its handle would be refused.
        let named = rows.iter().map(|(source, metric, timestamp, value)| Row {
            source,
            metric,
            timestamp: *timestamp,
            value: *value,
        });
        let named: Vec<_> = named.collect();
        if let Err(error) = self.history.db.insert_rows(&named) {
            self.unwritten = Some((counted, rows));
            return Err(error);
        }
        self.written = counted;
        self.history.counters.points.fetch_add(1, Relaxed);
        Ok(())
    }

    fn rows(&self, counted: &CounterSnapshot, at: i64) -> Rows {
        let mut rows = Vec::new();
        for (source, metrics) in points(&self.written, counted) {
            let row = |(metric, value)| (source.clone(), metric, at, value);
            rows.extend(metrics.into_iter().map(row));
        }
        rows
    }
}

type Metrics = Vec<(String, f64)>;

/// The metrics of a point by source.
fn points(before: &CounterSnapshot, now: &CounterSnapshot) -> BTreeMap<String, Metrics> {
    let mut points = BTreeMap::new();
    let mut all = BucketStats::default();
    for (index, (name, counters)) in now.stats.buckets.iter().enumerate() {
        let before = before.stats.buckets.get(name).copied().unwrap_or_default();
        let grown = grown(&before, counters);
        all = sum(&all, &grown);
        if index < BUCKETS {
            points.insert(bucket_source(name), bucket_metrics(&grown));
        }
    }
    let mut own = bucket_metrics(&all);
    // `requests` of all buckets are the endpoints', below.
    own.retain(|(metric, _)| metric != "requests");
    let (was, is) = (&before.traffic, &now.traffic);
    let (pool, budget) = (&now.stats.pool, &now.stats.budget);
    let added = [
        ("requests", is.requests, was.requests),
        ("failed_requests", is.failed, was.failed),
        ("received_bytes", is.received, was.received),
        ("sent_bytes", is.sent, was.sent),
        ("evictions", pool.evictions, before.stats.pool.evictions),
        (
            DROPPED_POINTS,
            now.history.dropped_points,
            before.history.dropped_points,
        ),
    ];
    own.extend(added.map(|(metric, is, was)| (metric.to_owned(), is.saturating_sub(was) as f64)));
    let levels = [
        ("memory_used", budget.used),
        ("memory_limit", budget.limit),
        ("memory_waiting", budget.waiting),
        ("resident_bytes", pool.resident_bytes),
    ];
    own.extend(levels.map(|(metric, level)| (metric.to_owned(), level as f64)));
    for (kind, (is, was)) in RequestKind::ALL
        .into_iter()
        .zip(now.latencies.iter().zip(&before.latencies))
    {
        let span = is.since(was);
        for (quantile, name) in QUANTILES {
            if let Some(latency) = span.quantile(quantile) {
                own.push((latency_metric(kind, name), latency.as_secs_f64()));
            }
        }
    }
    points.insert(OWN.to_owned(), own);
    points
}

/// Applies `join` to each field of two [`BucketStats`].
fn joined(a: &BucketStats, b: &BucketStats, join: fn(u64, u64) -> u64) -> BucketStats {
    BucketStats {
        requests: join(a.requests, b.requests),
        bytes: join(a.bytes, b.bytes),
        hits: join(a.hits, b.hits),
        misses: join(a.misses, b.misses),
        absences: join(a.absences, b.absences),
        origin_requests: join(a.origin_requests, b.origin_requests),
        origin_data_requests: join(a.origin_data_requests, b.origin_data_requests),
        origin_bytes: join(a.origin_bytes, b.origin_bytes),
        retries: join(a.retries, b.retries),
        hedges: join(a.hedges, b.hedges),
        hedges_won: join(a.hedges_won, b.hedges_won),
        digest_mismatches: join(a.digest_mismatches, b.digest_mismatches),
        left_out: join(a.left_out, b.left_out),
        stale_reads: join(a.stale_reads, b.stale_reads),
        peer_hits: join(a.peer_hits, b.peer_hits),
        peer_bytes: join(a.peer_bytes, b.peer_bytes),
        peer_fallbacks: join(a.peer_fallbacks, b.peer_fallbacks),
        peer_served_bytes: join(a.peer_served_bytes, b.peer_served_bytes),
    }
}

pub(crate) fn sum(a: &BucketStats, b: &BucketStats) -> BucketStats {
    joined(a, b, u64::saturating_add)
}

/// The increase since `before`; a bucket that was deleted and created again starts at 0.
pub(crate) fn grown(before: &BucketStats, now: &BucketStats) -> BucketStats {
    if now.requests < before.requests {
        return *now;
    }
    joined(now, before, u64::saturating_sub)
}

fn bucket_metrics(counters: &BucketStats) -> Metrics {
    let metrics = [
        ("requests", counters.requests),
        ("bytes", counters.bytes),
        ("hits", counters.hits),
        ("misses", counters.misses),
        ("absences", counters.absences),
        ("origin_requests", counters.origin_requests),
        ("origin_data_requests", counters.origin_data_requests),
        ("origin_bytes", counters.origin_bytes),
        ("retries", counters.retries),
        ("hedges", counters.hedges),
        ("hedges_won", counters.hedges_won),
        ("digest_mismatches", counters.digest_mismatches),
        ("left_out", counters.left_out),
        ("stale_reads", counters.stale_reads),
    ];
    metrics
        .map(|(metric, value)| (metric.to_owned(), value as f64))
        .to_vec()
}
