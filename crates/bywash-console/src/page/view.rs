//! Content of the page, before it is rendered.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use bywash::origin::OriginStats;
use bywash::traffic::{HotObject, Latencies, ReadLatencies, RequestKind, TrafficStats};
use bywash::{BucketStats, CacheExplanation, Stats};
use bywash_series::{SeriesError, SeriesNames};
use serde::Deserialize;

use super::ListedUploads;
use super::chart::Chart;
use super::charts::{Database, Drawing, bucket_charts, history_charts, series_charts};
use super::health::{Signals, reasons};
use super::range::Range;
use super::{cluster, disk};
use crate::Shared;
use crate::cache::explained;
use crate::clock::now;
use crate::content::Content;
use crate::history::CounterSnapshot;
use crate::recent::Minute;
use crate::series::Name;

/// Max rows of the tables of uploads, of objects and of buckets; more are only counted.
pub(super) const ROWS: usize = 20;
/// Max names of series listed.
pub(crate) const NAMES: usize = 200;

/// Time after which the page is shown without charts and names of series.
const READ_DEADLINE: Duration = Duration::from_secs(10);

/// Query of the page's address.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct PageQuery {
    range: Option<String>,
    /// Two times in the server's zone, instead of a preset range.
    from: Option<String>,
    to: Option<String>,
    /// Source and metric with a slash between them: only this series is drawn.
    series: Option<String>,
    /// Only this bucket is shown.
    bucket: Option<String>,
    /// Of the bucket, the object to explain.
    why: Option<String>,
}

/// Content of the page.
#[derive(Debug)]
pub(super) struct View {
    /// Address of the admin endpoints.
    pub(super) address: SocketAddr,
    pub(super) range: Range,
    /// Error of the range in the address; the default range is shown then.
    pub(super) wrong_range: Option<String>,
    /// Range that the form offers, in nanoseconds.
    pub(super) inputs: (i64, i64),
    /// The requested series: nothing else is shown then.
    pub(super) only: Option<String>,
    /// The requested bucket.
    pub(super) bucket: Option<String>,
    /// Explanation of the requested object; an error in a sentence.
    pub(super) why: Option<Result<CacheExplanation, String>>,
    /// Reasons for which the server is degraded.
    pub(super) reasons: Vec<String>,
    pub(super) charts: Vec<Chart>,
    pub(super) stats: Stats,
    pub(super) traffic: TrafficStats,
    pub(super) latencies: Vec<(RequestKind, Latencies)>,
    pub(super) minute: Minute,
    /// Counts of the shown buckets in that minute.
    pub(super) grown: BucketStats,
    pub(super) origins: BTreeMap<String, OriginStats>,
    /// Latencies of reads by bucket.
    pub(super) reads: BTreeMap<String, ReadLatencies>,
    /// Responses by status.
    pub(super) statuses: Vec<(u16, u64)>,
    /// Time since the start of the server.
    pub(super) uptime: Duration,
    pub(super) uploads: ListedUploads,
    pub(super) hottest: Vec<HotObject>,
    /// The first names of received series.
    pub(super) series: Vec<Name>,
    /// Whether there are more.
    pub(super) more_series: bool,
}

/// Collects the content of the page.
pub(super) async fn gather(shared: Shared, query: PageQuery) -> Result<View, SeriesError> {
    let name = query.range.as_deref();
    let (range, wrong_range) =
        match Range::of_address(name, query.from.as_deref(), query.to.as_deref()) {
            Ok(range) => (range, None),
            Err(wrong) => (Range::named(name), Some(wrong)),
        };
    let only = query.series.filter(|name| !name.is_empty());
    let bucket = query.bucket.filter(|name| !name.is_empty());
    let drawing = Drawing::new(range, now());
    let reading = charts_and_names(&shared, range, &drawing, only.as_deref(), bucket.as_deref());
    let ((charts, names), unread) = unless_down(reading).await?;
    let list = shared.uploads.clone();
    let uploads = tokio::task::spawn_blocking(move || (list.list)(ROWS))
        .await
        .unwrap_or_default();
    let counted = CounterSnapshot::now(&shared.engine, shared.history.as_ref());
    let minute = shared.recent.minute(&counted.total());
    let origins = shared.engine.origins();
    let signals = Signals {
        stuck_uploads: uploads.stuck,
        series: failing_databases(&shared).chain(unread).collect(),
        damaged: shared.engine.damaged_files(),
        ..signals(&counted, &minute, &origins)
    };
    let reasons = reasons(&signals);
    let traffic = shared.engine.traffic();
    let mut hottest = traffic.hottest(usize::MAX);
    hottest.retain(|hot| bucket.as_ref().is_none_or(|name| *name == hot.bucket));
    hottest.truncate(ROWS);
    let grown = grown(&minute, &counted, bucket.as_deref());
    let why = match (&bucket, query.why.filter(|key| !key.is_empty())) {
        (Some(bucket), Some(key)) => Some(explained(&shared.engine, bucket, &key).await),
        _ => None,
    };
    Ok(View {
        address: shared.guard.address(),
        range,
        wrong_range,
        inputs: match range {
            Range::Between(from, to) => (from, to),
            Range::Last(_) => drawing.span,
        },
        only,
        bucket,
        why,
        reasons,
        charts,
        grown,
        minute,
        origins,
        reads: traffic.reads(),
        statuses: traffic.statuses(),
        uptime: shared.recent.uptime(),
        traffic: counted.traffic,
        latencies: RequestKind::ALL
            .into_iter()
            .zip(counted.latencies)
            .collect(),
        uploads,
        hottest,
        more_series: names.len() > NAMES,
        series: names.iter().take(NAMES).map(Name::from).collect(),
        stats: counted.stats,
    })
}

/// The counts of a bucket, or of all, in the last minute.
fn grown(minute: &Minute, counted: &CounterSnapshot, bucket: Option<&str>) -> BucketStats {
    let Some(name) = bucket else {
        return minute.total;
    };
    let counters = counted.stats.buckets.get(name).copied();
    let grown = minute.bucket(name, &counters.unwrap_or_default());
    grown.unwrap_or_default()
}

/// Returns the charts, and the first names of received series.
async fn charts_and_names(
    shared: &Shared,
    range: Range,
    drawing: &Drawing,
    only: Option<&str>,
    bucket: Option<&str>,
) -> Result<(Vec<Chart>, SeriesNames), SeriesError> {
    let charts = charts(shared, range, drawing, only, bucket).await?;
    let everything = i64::MIN..=i64::MAX;
    let names = match &shared.series {
        Some(series) => {
            let (names, left_out) = series.list_first(NAMES + 1, everything).await?;
            shared.note_left_out(Content::Values, &left_out);
            names
        }
        None => SeriesNames::default(),
    };
    Ok((charts, names))
}

/// Returns why rows of series do not come into their stores.
fn failing_databases(shared: &Shared) -> impl Iterator<Item = String> + use<> {
    let databases = shared.database_states().into_iter();
    databases.filter_map(|(name, state)| state.reason(name))
}

/// Returns the charts of a series, of a bucket, or of the server.
async fn charts(
    shared: &Shared,
    range: Range,
    drawing: &Drawing,
    series: Option<&str>,
    bucket: Option<&str>,
) -> Result<Vec<Chart>, SeriesError> {
    // A long range takes a turn with the queries of other clients.
    let _turn = match range {
        Range::Between(..) => shared.reads.acquire().await.ok(),
        Range::Last(_) => None,
    };
    let history = shared.history.as_ref().map(|history| Database {
        shared,
        content: Content::History,
        db: history.db(),
    });
    let mut charts = match (series, history, bucket) {
        (Some(name), _, _) => series_charts(shared, name, drawing).await?,
        (None, Some(history), Some(name)) => bucket_charts(history, name, drawing).await?,
        (None, Some(history), None) => history_charts(history, drawing).await?,
        (None, None, _) => Vec::new(),
    };
    if let Some(history) = history {
        let starts = drawing.starts(history).await?;
        for chart in &mut charts {
            chart.starts.clone_from(&starts);
        }
    }
    Ok(charts)
}

fn signals(
    counted: &CounterSnapshot,
    minute: &Minute,
    origins: &BTreeMap<String, OriginStats>,
) -> Signals {
    let (now, before) = (counted, &minute.before.counted);
    let since = |now: u64, before: u64| now.saturating_sub(before);
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Signals {
        origins: origins.clone(),
        now: time.unwrap_or_default().as_secs(),
        waiting: now.stats.budget.waiting,
        requests: since(now.traffic.requests, before.traffic.requests),
        failed: since(now.traffic.failed, before.traffic.failed),
        dropped_points: since(now.history.dropped_points, before.history.dropped_points),
        disk: now.stats.disk.as_ref().and_then(disk::reason),
        cluster: now.stats.cluster.as_ref().and_then(cluster::reason),
        ..Signals::default()
    }
}

/// Returns the result of a read of series; without it, and with the reason, if their store is down
/// or memory is full. The page is needed most then.
async fn unless_down<T: Default>(
    reading: impl Future<Output = Result<T, SeriesError>>,
) -> Result<(T, Option<String>), SeriesError> {
    let reason = match tokio::time::timeout(READ_DEADLINE, reading).await {
        Ok(Ok(read)) => return Ok((read, None)),
        Ok(Err(
            error @ (SeriesError::Store { .. }
            | SeriesError::NoMemory { .. }
            | SeriesError::DamagedFile { .. }
            | SeriesError::MissingFile { .. }),
        )) => error.with_causes(),
        Ok(Err(error)) => return Err(error),
        Err(_) => format!("no response in {} s", READ_DEADLINE.as_secs()),
    };
    let reason =
        format!("charts and names of series are missing, because they cannot be read: {reason}");
    Ok((T::default(), Some(reason)))
}

impl View {
    /// The names of the buckets to show, in order.
    pub(super) fn shown_buckets(&self) -> impl Iterator<Item = &str> {
        let names = self.stats.buckets.keys().map(String::as_str);
        names.filter(|name| self.bucket.as_deref().is_none_or(|only| only == *name))
    }
}

/// The ratio of blocks found in memory; `None` before the first read.
pub(super) fn hit_ratio(counters: &BucketStats) -> Option<f64> {
    let wanted = counters.hits + counters.misses;
    (wanted > 0).then(|| counters.hits as f64 / wanted as f64)
}

/// The bytes read that the origin did not send.
pub(super) fn saved(counters: &BucketStats) -> u64 {
    counters.bytes.saturating_sub(counters.origin_bytes)
}
