//! The counters as Prometheus text.
//!
//! Format: <https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format>.
//! Counters of the engine are rendered from one [`Stats`], as in `/stats`.

mod cluster;
mod disk;
mod histogram;
mod local;
mod process;
mod series;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fmt::Write as _;
use std::sync::atomic::Ordering::Relaxed;

use bywash::origin::OriginStats;
use bywash::traffic::{OriginRequest, Traffic, TrafficStats};
use bywash::{
    BucketStats, BudgetStats, CacheOutcome, FileDownloadStats, MemoryStats, ObjectStats, PoolStats,
    Stats,
};
use process::Process;

use crate::databases::DatabaseStates;
use crate::history::HistoryStats;
use crate::influx::WriteMetrics;

/// The media type of [`render`]'s text.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// One family of metrics: name, help, and its value in a `T`.
type Family<T> = (&'static str, &'static str, fn(&T) -> u64);

/// Counters of each bucket. Names follow the fields of [`BucketStats`].
const BUCKET: [Family<BucketStats>; 18] = [
    (
        "bywash_requests_total",
        "Operations on the bucket, of all kinds.",
        |s| s.requests,
    ),
    (
        "bywash_bytes_total",
        "Bytes of object data returned to readers.",
        |s| s.bytes,
    ),
    (
        "bywash_hits_total",
        "Blocks of reads found in memory.",
        |s| s.hits,
    ),
    (
        "bywash_misses_total",
        "Blocks of reads that were absent from memory or still loading.",
        |s| s.misses,
    ),
    (
        "bywash_absences_total",
        "Reads of keys known to be absent, which sent no request to the origin.",
        |s| s.absences,
    ),
    (
        "bywash_origin_requests_total",
        "Requests sent to the origin, each attempt counted.",
        |s| s.origin_requests,
    ),
    (
        "bywash_origin_data_requests_total",
        "Requests for object data sent to the origin.",
        |s| s.origin_data_requests,
    ),
    (
        "bywash_origin_bytes_total",
        "Bytes of object data received from the origin.",
        |s| s.origin_bytes,
    ),
    (
        "bywash_retries_total",
        "Requests to the origin repeated after a failure or a stall.",
        |s| s.retries,
    ),
    (
        "bywash_hedges_total",
        "Requests sent a second time because the first was slower than its peers.",
        |s| s.hedges,
    ),
    (
        "bywash_hedges_won_total",
        "Second requests that returned the data first.",
        |s| s.hedges_won,
    ),
    (
        "bywash_digest_mismatches_total",
        "Whole reads whose bytes do not match the digest of the object.",
        |s| s.digest_mismatches,
    ),
    (
        "bywash_left_out_total",
        "Entries that listings left out, because they cannot be read or have a name that is that of no key.",
        |s| s.left_out,
    ),
    (
        "bywash_stale_reads_total",
        "Reads of versions that were not confirmed in time because the origin failed.",
        |s| s.stale_reads,
    ),
    (
        "bywash_peer_hits_total",
        "Requests for blocks to other nodes of the cluster that returned them.",
        |s| s.peer_hits,
    ),
    (
        "bywash_peer_bytes_total",
        "Bytes of blocks that other nodes of the cluster returned.",
        |s| s.peer_bytes,
    ),
    (
        "bywash_peer_fallbacks_total",
        "Requests for blocks to other nodes of the cluster that the origin answered in the end.",
        |s| s.peer_fallbacks,
    ),
    (
        "bywash_peer_served_bytes_total",
        "Bytes of blocks that this node served to other nodes of the cluster.",
        |s| s.peer_served_bytes,
    ),
];

/// Counters of the endpoints.
const TRAFFIC: [Family<TrafficStats>; 10] = [
    (
        "bywash_endpoint_requests_total",
        "Finished requests at the S3 endpoint.",
        |s| s.requests,
    ),
    (
        "bywash_endpoint_failed_requests_total",
        "Finished requests with a 5xx response.",
        |s| s.failed,
    ),
    (
        "bywash_endpoint_received_bytes_total",
        "Bytes of request bodies received.",
        |s| s.received,
    ),
    (
        "bywash_endpoint_sent_bytes_total",
        "Bytes of response bodies sent.",
        |s| s.sent,
    ),
    (
        "bywash_endpoint_refused_connections_total",
        "Connections closed at once because their client's address had too many.",
        |s| s.refused_connections,
    ),
    (
        "bywash_endpoint_reclaimed_connections_total",
        "Idle connections closed to let a new one in.",
        |s| s.reclaimed_connections,
    ),
    (
        "bywash_endpoint_refused_heads_total",
        "Connections closed because unfinished request heads took too much memory.",
        |s| s.refused_heads,
    ),
    (
        "bywash_endpoint_slow_bodies_total",
        "Request bodies that failed with RequestTimeout, because they sent too little while others waited for the memory that they held.",
        |s| s.slow_bodies,
    ),
    (
        "bywash_access_log_dropped_records_total",
        "Access records dropped because the log's file could not take them in time.",
        |s| s.dropped_access_records,
    ),
    (
        "bywash_upload_records_removed_total",
        "Records of multipart uploads of the cluster that this node removed, because their origin has forgotten the upload.",
        |s| s.removed_upload_records,
    ),
];

/// Counters of received series.
const WRITES: [Family<WriteMetrics>; 5] = [
    ("bywash_series_lines_total", "Lines read.", |s| {
        s.lines.load(Relaxed)
    }),
    ("bywash_series_values_total", "Values kept.", |s| {
        s.values.load(Relaxed)
    }),
    (
        "bywash_series_strings_total",
        "Fields left out because they are strings.",
        |s| s.strings.load(Relaxed),
    ),
    ("bywash_series_refused_lines_total", "Lines refused.", |s| {
        s.refused_lines.load(Relaxed)
    }),
    (
        "bywash_series_refused_requests_total",
        "Requests refused as a whole.",
        |s| s.refused_requests.load(Relaxed),
    ),
];

/// Counters of the server's own history.
const HISTORY: [Family<HistoryStats>; 2] = [
    (
        "bywash_history_points_total",
        "Points of the server's own history written.",
        |s| s.points,
    ),
    (
        "bywash_history_dropped_points_total",
        "Points of the server's own history dropped, because the disk or store was too slow or failed.",
        |s| s.dropped_points,
    ),
];

/// Counters of the block pool.
const POOL_COUNTERS: [Family<PoolStats>; 3] = [
    (
        "bywash_pool_evictions_total",
        "Blocks evicted since start.",
        |s| s.evictions,
    ),
    (
        "bywash_slow_evictions_total",
        "Passes of eviction that took too long, or looked at all blocks too often.",
        |s| s.slow_evictions,
    ),
    (
        "bywash_idle_evicted_bytes_total",
        "Bytes of blocks that left memory because they were not read for the idle age.",
        |s| s.idle_evicted_bytes,
    ),
];

/// Gauges of the block pool.
const POOL: [Family<PoolStats>; 3] = [
    ("bywash_pool_flights", "Loads in progress.", |s| s.flights),
    ("bywash_pool_resident_blocks", "Blocks in memory.", |s| {
        s.resident_blocks
    }),
    (
        "bywash_pool_resident_bytes",
        "Bytes of the frames that hold blocks.",
        |s| s.resident_bytes,
    ),
];

/// Gauges of the whole server.
const SERVER: [Family<Stats>; 1] = [(
    "bywash_damaged_files",
    "Files of the server that cannot be used, and without which it runs.",
    |s| s.damaged.len() as u64,
)];

/// Counters of the memory budget.
const BUDGET_COUNTERS: [Family<BudgetStats>; 1] = [(
    "bywash_budget_refused_total",
    "Requests that got no memory within the admission deadline.",
    |s| s.refused,
)];

/// Gauges of the memory budget.
const BUDGET: [Family<BudgetStats>; 6] = [
    (
        "bywash_budget_used_bytes",
        "Bytes charged to the memory budget, never above the limit.",
        |s| s.used,
    ),
    ("bywash_budget_limit_bytes", "The memory ceiling.", |s| {
        s.limit
    }),
    (
        "bywash_budget_waiting",
        "Requests that wait for memory.",
        |s| s.waiting,
    ),
    (
        "bywash_budget_idle_bytes",
        "Charged bytes that lie in free frames, ready for reuse.",
        |s| s.idle,
    ),
    (
        "bywash_budget_downloads_bytes",
        "Charged bytes of reads: blocks in memory, loads, and responses on their way.",
        |s| s.downloads,
    ),
    (
        "bywash_budget_uploads_bytes",
        "Charged bytes of writes and tables.",
        |s| s.uploads,
    ),
];

/// Gauges of the endpoint's load.
const LOAD: [Family<TrafficStats>; 2] = [
    (
        "bywash_endpoint_connections",
        "Connections open at the S3 endpoint.",
        |s| s.connections,
    ),
    (
        "bywash_endpoint_requests_in_flight",
        "Requests at the S3 endpoint that are not finished.",
        |s| s.in_flight,
    ),
];

/// Gauges of the known objects.
const OBJECTS: [Family<ObjectStats>; 6] = [
    (
        "bywash_objects_known",
        "Objects whose version is known.",
        |s| s.known,
    ),
    (
        "bywash_objects_known_bytes",
        "Bytes of memory of the known objects, never above the limit.",
        |s| s.known_bytes,
    ),
    (
        "bywash_objects_known_limit_bytes",
        "The limit of bywash_objects_known_bytes.",
        |s| s.known_limit_bytes,
    ),
    ("bywash_objects_absent", "Keys known to be absent.", |s| {
        s.absent
    }),
    (
        "bywash_objects_absent_bytes",
        "Bytes of memory of the keys known to be absent, never above the limit.",
        |s| s.absent_bytes,
    ),
    (
        "bywash_objects_absent_limit_bytes",
        "The limit of bywash_objects_absent_bytes.",
        |s| s.absent_limit_bytes,
    ),
];

/// Counters of downloads to files.
const FILE_DOWNLOAD_COUNTERS: [Family<FileDownloadStats>; 6] = [
    (
        "bywash_file_downloads_finished_total",
        "Files downloaded and durable.",
        |s| s.finished,
    ),
    (
        "bywash_file_downloads_finished_bytes_total",
        "Bytes of these files.",
        |s| s.finished_bytes,
    ),
    (
        "bywash_file_downloads_retried_total",
        "Attempts of downloads to files repeated after a failure or a wait for a full disk.",
        |s| s.retried,
    ),
    (
        "bywash_file_downloads_failed_total",
        "Downloads to files that failed.",
        |s| s.failed,
    ),
    (
        "bywash_file_downloads_cancelled_total",
        "Downloads to files that were cancelled.",
        |s| s.cancelled,
    ),
    (
        "bywash_file_downloads_refused_total",
        "Downloads to files refused because their targets may not be written.",
        |s| s.refused,
    ),
];

/// Gauges of downloads to files.
const FILE_DOWNLOADS: [Family<FileDownloadStats>; 2] = [
    (
        "bywash_file_downloads_in_progress",
        "Downloads to files in progress or waiting.",
        |s| s.in_progress,
    ),
    (
        "bywash_file_downloads_waiting_bytes",
        "Bytes of downloads to files that are not durable yet.",
        |s| s.waiting_bytes,
    ),
];

/// Sources of the metrics.
#[derive(Debug)]
pub(crate) struct Sources<'a> {
    pub(crate) stats: &'a Stats,
    pub(crate) traffic: &'a Traffic,
    pub(crate) origins: &'a BTreeMap<String, OriginStats>,
    pub(crate) write_metrics: &'a WriteMetrics,
    pub(crate) history: &'a HistoryStats,
    pub(crate) databases: &'a DatabaseStates,
}

/// Renders all metrics in a fixed order. Reads `/proc`.
pub(crate) fn render(text: &mut String, sources: &Sources<'_>) {
    let Sources {
        stats,
        traffic,
        origins,
        write_metrics,
        history,
        databases,
    } = sources;
    head(
        text,
        "bywash_build_info",
        "gauge",
        "Always 1; the version is a label.",
    );
    sample(
        text,
        "bywash_build_info",
        &[("version", env!("CARGO_PKG_VERSION"))],
        1,
    );
    for (name, help, read) in BUCKET {
        head(text, name, "counter", help);
        for (bucket, counters) in &stats.buckets {
            sample(text, name, &[("bucket", bucket)], read(counters));
        }
    }
    origin_errors(text, origins);
    let load = traffic.stats();
    counters(text, &TRAFFIC, &load);
    gauges(text, &LOAD, &load);
    endpoint(text, traffic);
    counters(text, &WRITES, write_metrics);
    counters(text, &HISTORY, history);
    series::write(text, databases);
    counters(text, &POOL_COUNTERS, &stats.pool);
    gauges(text, &SERVER, stats);
    gauges(text, &POOL, &stats.pool);
    memory(text, &stats.memory);
    gauges(text, &BUDGET, &stats.budget);
    counters(text, &BUDGET_COUNTERS, &stats.budget);
    gauges(text, &OBJECTS, &stats.objects);
    counters(text, &FILE_DOWNLOAD_COUNTERS, &stats.file_downloads);
    seconds(
        text,
        "bywash_file_downloads_finished_seconds_total",
        "counter",
        "Time from the beginnings of their downloads until they were durable.",
        stats.file_downloads.finished_ms,
    );
    gauges(text, &FILE_DOWNLOADS, &stats.file_downloads);
    seconds(
        text,
        "bywash_file_downloads_oldest_seconds",
        "gauge",
        "Time since the beginning of the oldest download to a file in progress or waiting.",
        stats.file_downloads.oldest_ms,
    );
    if let Some(stats) = &stats.disk {
        disk::write(text, stats);
    }
    if let Some(status) = &stats.cluster {
        cluster::write(text, status);
    }
    if let Some(stats) = &stats.local {
        local::write(text, stats);
    }
    if let Some(process) = Process::read() {
        process.render(text);
    }
}

/// Writes the memory of blocks by kind and by bucket.
fn memory(text: &mut String, memory: &MemoryStats) {
    const RESIDENT: &str = "bywash_kind_resident_bytes";
    const EVICTED: &str = "bywash_kind_evicted_bytes_total";
    const BUCKET: &str = "bywash_bucket_resident_bytes";
    head(text, RESIDENT, "gauge", "Memory of blocks by kind.");
    for (kind, stats) in &memory.kinds {
        sample(text, RESIDENT, &[("kind", kind)], stats.bytes);
    }
    head(
        text,
        EVICTED,
        "counter",
        "Evicted memory of blocks by kind.",
    );
    for (kind, stats) in &memory.kinds {
        sample(text, EVICTED, &[("kind", kind)], stats.evicted_bytes);
    }
    head(text, BUCKET, "gauge", "Memory of blocks by bucket.");
    for (bucket, stats) in &memory.buckets {
        sample(text, BUCKET, &[("bucket", bucket)], stats.bytes);
    }
}

/// Writes errors by bucket and kind, at most nine a bucket: kinds without errors are left out.
fn origin_errors(text: &mut String, origins: &BTreeMap<String, OriginStats>) {
    const NAME: &str = "bywash_origin_errors_total";
    head(
        text,
        NAME,
        "counter",
        "Errors of requests to origins, and requests without a response.",
    );
    for (bucket, stats) in origins {
        for (kind, count) in &stats.errors {
            let labels = [("bucket", bucket.as_str()), ("kind", kind.name())];
            sample(text, NAME, &labels, count);
        }
    }
}

/// Writes responses by status, and durations by operation and cache outcome. The program bounds the values of all labels.
fn endpoint(text: &mut String, traffic: &Traffic) {
    const RESPONSES: &str = "bywash_endpoint_responses_total";
    head(
        text,
        RESPONSES,
        "counter",
        "Finished requests at the S3 endpoint, by HTTP status of the response; none: the client left before.",
    );
    for (status, count) in traffic.statuses() {
        let status = match status {
            0 => "none".to_owned(),
            status => status.to_string(),
        };
        sample(text, RESPONSES, &[("status", &status)], count);
    }
    const DURATION: &str = "bywash_endpoint_request_duration_seconds";
    head(
        text,
        DURATION,
        "histogram",
        "Time from a request's head to the response's head, by S3 operation and by whether object data came from memory.",
    );
    for of in traffic.operations() {
        let operation = match of.operation.as_str() {
            "" => "other",
            operation => operation,
        };
        let cache = of.cache.map_or("none", CacheOutcome::name);
        let labels = [("operation", operation), ("cache", cache)];
        histogram::write(text, DURATION, &labels, &of.latencies);
    }
    const ORIGIN: &str = "bywash_origin_request_duration_seconds";
    head(
        text,
        ORIGIN,
        "histogram",
        "Time from a request to an origin to the head of its response, by kind of request.",
    );
    for request in OriginRequest::ALL {
        let labels = [("request", request.name())];
        histogram::write(text, ORIGIN, &labels, &traffic.origin(request));
    }
}

fn gauges<T>(text: &mut String, families: &[Family<T>], values: &T) {
    families_of(text, "gauge", families, values);
}

fn counters<T>(text: &mut String, families: &[Family<T>], values: &T) {
    families_of(text, "counter", families, values);
}

fn families_of<T>(text: &mut String, kind: &str, families: &[Family<T>], values: &T) {
    for (name, help, read) in families {
        head(text, name, kind, help);
        sample(text, name, &[], read(values));
    }
}

/// Writes a time in the unit of Prometheus.
fn seconds(text: &mut String, name: &str, kind: &str, help: &str, milliseconds: u64) {
    head(text, name, kind, help);
    sample(text, name, &[], milliseconds as f64 / 1e3);
}

fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    push(
        text,
        format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"),
    );
}

fn sample(text: &mut String, name: &str, labels: &[(&str, &str)], value: impl Display) {
    text.push_str(name);
    for (index, (label, content)) in labels.iter().enumerate() {
        text.push(if index == 0 { '{' } else { ',' });
        push(text, format_args!("{label}=\"{}\"", escape(content)));
    }
    if !labels.is_empty() {
        text.push('}');
    }
    push(text, format_args!(" {value}\n"));
}

/// Escapes backslashes, quotes and line ends of a label's value.
fn escape(content: &str) -> String {
    content
        .replace('\\', r"\\")
        .replace('"', "\\\"")
        .replace('\n', r"\n")
}

fn push(text: &mut String, part: impl Display) {
    write!(text, "{part}").expect("writing to a String cannot fail");
}

#[cfg(test)]
mod tests;
