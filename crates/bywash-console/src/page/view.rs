//! What a page shows, before it is HTML.

use std::net::SocketAddr;
use std::time::Duration;

use bywash::traffic::{HotObject, Latencies, RequestKind, TrafficStats};
use bywash::{BucketStats, Stats};
use bywash_series::SeriesError;
use serde::Deserialize;

use super::ListedUploads;
use super::chart::Chart;
use super::charts::{Drawing, history_charts, series_charts};
use super::range::Range;
use crate::Shared;
use crate::clock::now;
use crate::history::Counted;
use crate::recent::Minute;
use crate::series::Name;

/// Rows of the tables of uploads, of objects and of buckets; more are only counted.
pub(super) const ROWS: usize = 20;
/// Names of series that are listed.
pub(crate) const NAMES: usize = 200;

/// The page's address.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Asked {
    range: Option<String>,
    /// Source and metric with a slash between them: only this series is drawn.
    series: Option<String>,
}

/// All that is on the page.
#[derive(Debug)]
pub(super) struct View {
    /// Of the admin endpoints.
    pub(super) address: SocketAddr,
    pub(super) range: Range,
    /// The series asked for, and nothing else then.
    pub(super) only: Option<String>,
    pub(super) charts: Vec<Chart>,
    pub(super) stats: Stats,
    pub(super) traffic: TrafficStats,
    pub(super) latencies: Vec<(RequestKind, Latencies)>,
    pub(super) minute: Minute,
    /// Time since the start of the server.
    pub(super) uptime: Duration,
    pub(super) uploads: ListedUploads,
    pub(super) hottest: Vec<HotObject>,
    /// The first names of what came in.
    pub(super) series: Vec<Name>,
    /// Whether there are more.
    pub(super) more_series: bool,
}

/// Reads it all.
pub(super) async fn gather(shared: Shared, asked: Asked) -> Result<View, SeriesError> {
    let range = Range::named(asked.range.as_deref());
    let only = asked.series.filter(|name| !name.is_empty());
    let drawing = Drawing::new(range, now());
    let charts = match (&only, &shared.history) {
        (Some(name), _) => series_charts(&shared, name, &drawing).await?,
        (None, Some(history)) => history_charts(history.db(), &drawing).await?,
        (None, None) => Vec::new(),
    };
    let everything = i64::MIN..=i64::MAX;
    let names = shared.series.list_first(NAMES + 1, everything).await?;
    let list = shared.uploads.clone();
    let uploads = tokio::task::spawn_blocking(move || (list.0)(ROWS))
        .await
        .unwrap_or_default();
    let counted = Counted::now(&shared.engine, shared.history.as_ref());
    let minute = shared.recent.minute(&counted.total());
    let Counted {
        traffic,
        latencies,
        stats,
        ..
    } = counted;
    Ok(View {
        address: shared.guard.address(),
        range,
        only,
        charts,
        minute,
        uptime: shared.recent.uptime(),
        traffic,
        latencies: RequestKind::ALL.into_iter().zip(latencies).collect(),
        uploads,
        hottest: shared.engine.traffic().hottest(ROWS),
        more_series: names.len() > NAMES,
        series: names.iter().take(NAMES).map(Name::from).collect(),
        stats,
    })
}

/// Blocks found in memory, of all that were wanted; nothing before the first.
pub(super) fn hit_ratio(counters: &BucketStats) -> Option<f64> {
    let wanted = counters.hits + counters.misses;
    (wanted > 0).then(|| counters.hits as f64 / wanted as f64)
}

/// Bytes that readers got and the origin did not have to send.
pub(super) fn saved(counters: &BucketStats) -> u64 {
    counters.bytes.saturating_sub(counters.origin_bytes)
}
