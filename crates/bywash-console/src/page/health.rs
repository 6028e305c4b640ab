//! Health of the server: the reasons for which it is degraded.

use std::collections::BTreeMap;
use std::time::Duration;

use bywash::DamagedFile;
use bywash::origin::{OriginErrorKind, OriginStats};

use super::format::{count, lasted};

/// Consecutive failures at which an origin counts as failing. Single ones are retried, and no client sees them.
const FAILING: u64 = 3;
/// Age at which a failure no longer counts: without a request since, the state of the origin is unknown.
const FORGOTTEN: Duration = Duration::from_secs(600);
/// Percentage of failed requests in the last minute at which the server counts as degraded.
const FAILED_PERCENT: u64 = 1;
/// Maximum failing origins named; more are only counted.
const NAMED: usize = 5;

/// Inputs of the decision.
#[derive(Debug, Default)]
pub(super) struct Signals {
    pub(super) origins: BTreeMap<String, OriginStats>,
    /// Seconds since 1970.
    pub(super) now: u64,
    /// Requests that wait for memory.
    pub(super) waiting: u64,
    /// Requests of the last minute, and those with a 5xx response.
    pub(super) requests: u64,
    pub(super) failed: u64,
    /// Points of the server's history dropped in the last minute.
    pub(super) dropped_points: u64,
    /// Open uploads that nothing will complete.
    pub(super) stuck_uploads: usize,
    /// Why the disk tier does not do all of its work.
    pub(super) disk: Option<String>,
    /// Why the cluster does not do all of its work.
    pub(super) cluster: Option<String>,
    /// Why rows of series do not come into their store, or cannot be read from it.
    pub(super) series: Vec<String>,
    /// Files without which the server runs.
    pub(super) damaged: Vec<DamagedFile>,
}

/// The reasons for which the server is degraded; none if it is healthy.
pub(super) fn reasons(signals: &Signals) -> Vec<String> {
    let failing: Vec<String> = signals
        .origins
        .iter()
        .filter_map(|(bucket, stats)| failing(bucket, stats, signals.now))
        .collect();
    let more = failing.len().saturating_sub(NAMED);
    let mut reasons: Vec<_> = failing.into_iter().take(NAMED).collect();
    let mut add = |applies: bool, reason: String| {
        if applies {
            reasons.push(reason);
        }
    };
    add(more > 0, format!("{more} more origins fail"));
    let waiting = count(signals.waiting as f64);
    add(
        signals.waiting > 0,
        format!("{waiting} requests wait for memory; raise --memory if this lasts"),
    );
    let (failed, requests) = (signals.failed, signals.requests);
    add(
        failed > 0 && failed * 100 >= requests * FAILED_PERCENT,
        format!("{failed} of {requests} requests of the last minute failed with 5xx"),
    );
    add(
        signals.dropped_points > 0,
        "points of the server's history were dropped in the last minute: the disk of the data folder is slow or full".to_owned(),
    );
    let stuck = signals.stuck_uploads;
    add(
        stuck > 0,
        format!(
            "{stuck} open uploads are stuck: older than a day, or left by a process that is gone; see bywash uploads"
        ),
    );
    reasons.extend(signals.disk.clone());
    reasons.extend(signals.cluster.clone());
    reasons.extend_from_slice(&signals.series);
    let damaged = signals.damaged.iter().take(NAMED);
    reasons.extend(damaged.map(|damaged| {
        let DamagedFile {
            file,
            reason,
            effect,
        } = damaged;
        format!("{file} is damaged ({reason}): {effect}")
    }));
    reasons
}

fn failing(bucket: &str, stats: &OriginStats, now: u64) -> Option<String> {
    let last = stats.last_failure.as_ref()?;
    let ago = Duration::from_secs(now.saturating_sub(last.at));
    let in_a_row = stats.failures_in_a_row;
    let min_failures = if last.kind == OriginErrorKind::Disk {
        1
    } else {
        FAILING
    };
    let fails = in_a_row >= min_failures && ago < FORGOTTEN;
    fails.then(|| {
        format!(
            "the origin of bucket {bucket} fails: {in_a_row} times in a row, last {} ago ({}): {}",
            lasted(ago),
            last.kind.name(),
            last.text
        )
    })
}

#[cfg(test)]
mod tests {
    use bywash::origin::OriginFailure;

    use super::*;

    fn origin(kind: OriginErrorKind, in_a_row: u64, at: u64) -> OriginStats {
        OriginStats {
            failures_in_a_row: in_a_row,
            last_failure: Some(OriginFailure {
                kind,
                text: "access denied".to_owned(),
                at,
            }),
            ..OriginStats::default()
        }
    }

    fn with(origin: OriginStats) -> Vec<String> {
        reasons(&Signals {
            origins: [("shop".to_owned(), origin)].into(),
            now: 1000,
            ..Signals::default()
        })
    }

    #[test]
    fn origin_fails_after_three_failures_in_a_row_and_for_ten_minutes() {
        let denied = OriginErrorKind::Denied;
        assert_eq!(with(origin(denied, 2, 990)).len(), 0);
        assert_eq!(with(origin(denied, 3, 400)).len(), 0, "long ago");
        assert_eq!(
            with(origin(denied, 3, 990)),
            [
                "the origin of bucket shop fails: 3 times in a row, last 10 s ago (denied): access denied"
            ]
        );
        assert_eq!(
            with(origin(OriginErrorKind::Disk, 1, 990)).len(),
            1,
            "a full disk at once"
        );
    }

    #[test]
    fn each_signal_is_a_reason_for_being_degraded() {
        assert_eq!(reasons(&Signals::default()), Vec::<String>::new());
        let requests = |failed| Signals {
            requests: 1000,
            failed,
            ..Signals::default()
        };
        assert_eq!(reasons(&requests(9)).len(), 0, "below one percent");
        let found = reasons(&Signals {
            waiting: 7,
            dropped_points: 1,
            stuck_uploads: 2,
            series: vec!["the store of series is down".to_owned()],
            damaged: vec![DamagedFile {
                file: "data/series".to_owned(),
                reason: "cut".to_owned(),
                effect: "values are not read".to_owned(),
            }],
            ..requests(10)
        });
        let parts = [
            "7 requests wait",
            "10 of 1000 requests",
            "history were dropped",
            "2 open uploads",
            "series is down",
            "data/series is damaged (cut): values are not read",
        ];
        assert_eq!(found.len(), parts.len());
        for (reason, part) in found.iter().zip(parts) {
            assert!(reason.contains(part), "{reason}");
        }
    }

    #[test]
    fn many_failing_origins_are_counted() {
        let failing = origin(OriginErrorKind::Timeout, 9, 1000);
        let origins = (0..20).map(|number| (format!("b{number:02}"), failing.clone()));
        let found = reasons(&Signals {
            origins: origins.collect(),
            now: 1000,
            ..Signals::default()
        });
        assert_eq!(found.len(), NAMED + 1);
        assert_eq!(found[NAMED], "15 more origins fail");
    }
}
