#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use bywash::origin::OriginErrorKind;
use bywash::traffic::{RequestKind, RequestSummary};
use bywash::{BucketMemory, KindStats};
use bywash_series::SeriesStats;

use super::*;
use crate::databases::{DatabaseState, FailingStore};

fn rendered(stats: &Stats) -> String {
    let history = HistoryStats {
        points: 12,
        dropped_points: 13,
    };
    let (traffic, write_metrics) = (Traffic::default(), WriteMetrics::default());
    traffic.note(&RequestSummary {
        kind: RequestKind::Read,
        operation: Some("GetObject"),
        cache: Some(CacheOutcome::Hit),
        latency: Some(Duration::from_micros(300)),
        status: 206,
        received: 0,
        sent: 1,
        object: None,
    });
    let origin = OriginStats {
        errors: vec![(OriginErrorKind::Denied, 3)],
        ..OriginStats::default()
    };
    let mut values = SeriesStats::default();
    values.failed_flushes = 21;
    values.wal_limit = 22;
    let failing = FailingStore {
        failures: 21,
        seconds: 23,
        reason: "it is down".to_owned(),
    };
    let values = DatabaseState {
        stats: values,
        store_failure: Some(failing),
    };
    let mut text = String::new();
    let sources = Sources {
        stats,
        traffic: &traffic,
        origins: &[("data".to_owned(), origin)].into(),
        write_metrics: &write_metrics,
        history: &history,
        databases: &[("values", values)].into(),
    };
    render(&mut text, &sources);
    text
}

fn bucket_counters() -> BucketStats {
    BucketStats {
        requests: 1,
        bytes: 2,
        hits: 3,
        misses: 4,
        absences: 7,
        origin_requests: 5,
        origin_data_requests: 6,
        origin_bytes: u64::MAX,
        hedges: 10,
        hedges_won: 11,
        digest_mismatches: 13,
        left_out: 19,
        stale_reads: 20,
        retries: 12,
        ..BucketStats::default()
    }
}

#[test]
fn writes_each_counter_under_its_name() {
    let mut stats = Stats::default();
    stats.buckets.insert("data".to_owned(), bucket_counters());
    stats.pool.evictions = 8;
    stats.pool.idle_evicted_bytes = 14;
    stats.pool.slow_evictions = 15;
    stats.budget.limit = 9;
    stats.budget.refused = 24;
    stats.file_downloads.finished = 16;
    stats.file_downloads.waiting_bytes = 17;
    stats.file_downloads.finished_ms = 18;
    let text = rendered(&stats);
    for line in [
        "bywash_requests_total{bucket=\"data\"} 1",
        "bywash_bytes_total{bucket=\"data\"} 2",
        "bywash_hits_total{bucket=\"data\"} 3",
        "bywash_misses_total{bucket=\"data\"} 4",
        "bywash_absences_total{bucket=\"data\"} 7",
        "bywash_origin_requests_total{bucket=\"data\"} 5",
        "bywash_origin_data_requests_total{bucket=\"data\"} 6",
        "bywash_origin_bytes_total{bucket=\"data\"} 18446744073709551615",
        "bywash_hedges_total{bucket=\"data\"} 10",
        "bywash_hedges_won_total{bucket=\"data\"} 11",
        "bywash_digest_mismatches_total{bucket=\"data\"} 13",
        "bywash_left_out_total{bucket=\"data\"} 19",
        "bywash_stale_reads_total{bucket=\"data\"} 20",
        "bywash_retries_total{bucket=\"data\"} 12",
        "bywash_pool_evictions_total 8",
        "bywash_idle_evicted_bytes_total 14",
        "bywash_slow_evictions_total 15",
        "bywash_budget_limit_bytes 9",
        "bywash_budget_refused_total 24",
        "bywash_file_downloads_finished_total 16",
        "bywash_file_downloads_waiting_bytes 17",
        "bywash_file_downloads_finished_seconds_total 0.018",
        "bywash_endpoint_requests_total 1",
        "bywash_series_refused_lines_total 0",
        "bywash_endpoint_responses_total{status=\"206\"} 1",
        "bywash_endpoint_request_duration_seconds_bucket{operation=\"GetObject\",cache=\"hit\",le=\"0.000256\"} 0",
        "bywash_endpoint_request_duration_seconds_bucket{operation=\"GetObject\",cache=\"hit\",le=\"0.000512\"} 1",
        "bywash_endpoint_request_duration_seconds_bucket{operation=\"GetObject\",cache=\"hit\",le=\"+Inf\"} 1",
        "bywash_endpoint_request_duration_seconds_sum{operation=\"GetObject\",cache=\"hit\"} 0.0003",
        "bywash_endpoint_request_duration_seconds_count{operation=\"GetObject\",cache=\"hit\"} 1",
        "bywash_origin_request_duration_seconds_count{request=\"read\"} 0",
        "bywash_origin_errors_total{bucket=\"data\",kind=\"denied\"} 3",
        "bywash_history_points_total 12",
        "bywash_history_dropped_points_total 13",
        "bywash_series_failed_flushes_total{database=\"values\"} 21",
        "bywash_series_log_limit_bytes{database=\"values\"} 22",
        "bywash_series_store_failing_seconds{database=\"values\"} 23",
        "# TYPE bywash_requests_total counter",
        "# TYPE bywash_budget_limit_bytes gauge",
    ] {
        assert!(
            text.lines().any(|found| found == line),
            "{line} is not in\n{text}"
        );
    }
}

#[test]
fn writes_memory_by_kind_and_by_bucket() {
    let mut stats = Stats::default();
    let footers = KindStats {
        bytes: 16,
        evicted_bytes: 17,
        ..KindStats::default()
    };
    stats.memory.kinds.insert("footer", footers);
    let of_bucket = BucketMemory {
        blocks: 1,
        bytes: 18,
    };
    stats.memory.buckets.insert("data".to_owned(), of_bucket);
    let text = rendered(&stats);
    for line in [
        "bywash_kind_resident_bytes{kind=\"footer\"} 16",
        "bywash_kind_evicted_bytes_total{kind=\"footer\"} 17",
        "bywash_bucket_resident_bytes{bucket=\"data\"} 18",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
}

#[test]
fn every_sample_follows_its_help_and_type() {
    let mut stats = Stats::default();
    stats.buckets.insert("a".to_owned(), BucketStats::default());
    stats.buckets.insert("b".to_owned(), BucketStats::default());
    let text = rendered(&stats);
    let mut family = "";
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            family = help.split(' ').next().unwrap_or_default();
            // As promtool does: times are in seconds.
            assert!(
                !family.contains("milli") && !family.contains("nano"),
                "{family}"
            );
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            assert_eq!(kind.split(' ').next(), Some(family));
        } else {
            let name = line.split(['{', ' ']).next().unwrap();
            let parts = ["", "_bucket", "_sum", "_count"];
            assert!(
                parts.iter().any(|part| name == format!("{family}{part}")),
                "{line}"
            );
        }
    }
}

#[test]
fn labels_are_escaped() {
    assert_eq!(escape("a\\b\"c\nd"), r#"a\\b\"c\nd"#);
}
