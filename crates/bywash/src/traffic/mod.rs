//! Statistics of the endpoints' requests: latencies, bytes, and the most requested objects.
//!
//! Endpoints record requests here; the console reads them. Recording only adds to counters, and never waits for
//! another request.

mod hottest;
mod latency;
mod named;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

pub use hottest::HotObject;
use hottest::Hottest;
pub(crate) use latency::Histogram;
pub use latency::Latencies;
use named::NamedTable;
use serde::Serialize;

use crate::limits::{MAX_COUNTED_OPERATIONS, MAX_TIMED_BUCKETS};
use crate::outcome::CacheOutcome;
pub use bywash_store::OriginRequest;

/// Kind of work of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestKind {
    /// Reads object data.
    Read,
    /// Writes object data.
    Write,
    /// Everything else: metadata, listings, deletes.
    Other,
}

impl RequestKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Other];

    /// Returns the kind's name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Other => "other",
        }
    }
}

/// Summary of one finished request.
#[derive(Debug, Clone, Copy)]
pub struct RequestSummary<'a> {
    /// Kind of work requested.
    pub kind: RequestKind,
    /// Name of the operation; `None` if the request was rejected before it had one.
    pub operation: Option<&'static str>,
    /// Whether object data came from memory, if object data was read.
    pub cache: Option<CacheOutcome>,
    /// Time from the request's head to the response's head; `None` if the client left before.
    pub latency: Option<Duration>,
    /// HTTP status of the response; 0 if the client left before.
    pub status: u16,
    /// Bytes of the request's body.
    pub received: u64,
    /// Bytes of the response's body.
    pub sent: u64,
    /// Bucket and key, if object data was read.
    pub object: Option<(&'a str, &'a str)>,
}

/// Reason for which an endpoint closed a connection that its client would have kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionEnd {
    /// Its client's address had reached its limit.
    AddressFull,
    /// It was idle, the limit of connections was reached, and a new one came.
    Reclaimed,
    /// Unfinished request heads had reached their memory limit.
    HeadsFull,
}

/// Counters of requests at the endpoints of an engine.
///
/// Written by any thread, read by snapshots. They order nothing, hence relaxed.
#[derive(Debug, Default)]
pub struct Traffic {
    begun: AtomicU64,
    connections: AtomicU64,
    requests: AtomicU64,
    failed: AtomicU64,
    received: AtomicU64,
    sent: AtomicU64,
    refused_connections: AtomicU64,
    reclaimed_connections: AtomicU64,
    refused_heads: AtomicU64,
    slow_bodies: AtomicU64,
    dropped_records: AtomicU64,
    removed_uploads: AtomicU64,
    latencies: [Histogram; RequestKind::ALL.len()],
    origins: [Histogram; OriginRequest::ALL.len()],
    operations: Operations,
    statuses: Statuses,
    buckets: TimedBuckets,
    hottest: Hottest,
}

/// Latencies of an operation's responses, by cache outcome; the first are of responses without one.
#[derive(Debug, Default)]
struct ByOutcome([Histogram; 4]);

impl ByOutcome {
    const OUTCOMES: [Option<CacheOutcome>; 4] = [
        None,
        Some(CacheOutcome::Hit),
        Some(CacheOutcome::Miss),
        Some(CacheOutcome::Partial),
    ];

    fn of(&self, outcome: Option<CacheOutcome>) -> &Histogram {
        let at = Self::OUTCOMES.iter().position(|known| *known == outcome);
        &self.0[at.expect("all outcomes are listed")]
    }
}

#[derive(Debug)]
struct Operations(NamedTable<ByOutcome>);

impl Default for Operations {
    fn default() -> Self {
        let table = NamedTable::new(MAX_COUNTED_OPERATIONS);
        // For requests without an operation, and for all operations that a full table lacks.
        table.entry("");
        Self(table)
    }
}

/// Latencies of the reads of buckets.
#[derive(Debug)]
struct TimedBuckets(NamedTable<ReadHistograms>);

impl Default for TimedBuckets {
    fn default() -> Self {
        Self(NamedTable::new(MAX_TIMED_BUCKETS))
    }
}

#[derive(Debug, Default)]
struct ReadHistograms {
    hits: Histogram,
    misses: Histogram,
}

/// Responses by HTTP status; the first counts requests of clients that left before.
#[derive(Debug)]
struct Statuses(Box<[AtomicU64]>);

impl Default for Statuses {
    fn default() -> Self {
        Self((0..600).map(|_| AtomicU64::new(0)).collect())
    }
}

/// Latencies of one operation's responses with one cache outcome.
#[derive(Debug, Clone)]
pub struct OperationLatencies {
    /// S3 name of the operation. Empty: rejected before it had one, or the table of operations is full.
    pub operation: String,
    /// Whether object data came from memory, if object data was read.
    pub cache: Option<CacheOutcome>,
    /// The latencies.
    pub latencies: Latencies,
}

/// Latencies of the reads of one bucket.
#[derive(Debug, Clone, Default)]
pub struct ReadLatencies {
    /// Reads that found all blocks in memory.
    pub hits: Latencies,
    /// All other reads.
    pub misses: Latencies,
}

/// Snapshot of [`Traffic`], without latencies and objects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct TrafficStats {
    /// Requests that are not finished.
    pub in_flight: u64,
    /// Connections open now.
    pub connections: u64,
    /// Finished requests.
    pub requests: u64,
    /// Requests with a 5xx response.
    pub failed: u64,
    /// Bytes of request bodies.
    pub received: u64,
    /// Bytes of response bodies.
    pub sent: u64,
    /// Connections refused because their client's address had too many.
    pub refused_connections: u64,
    /// Idle connections closed to accept a new one.
    pub reclaimed_connections: u64,
    /// Connections closed because unfinished request heads took too much memory.
    pub refused_heads: u64,
    /// Request bodies that failed because they sent too little while others waited for the memory that they held.
    pub slow_bodies: u64,
    /// Access records dropped because the access log's file was too slow.
    pub dropped_access_records: u64,
    /// Records of multipart uploads of a cluster that this node removed, because their origin has forgotten the upload.
    pub removed_upload_records: u64,
}

/// An open connection, counted until this is dropped.
#[derive(Debug)]
pub struct OpenConnection(Arc<Traffic>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Relaxed);
    }
}

impl Traffic {
    /// Counts a connection until the result is dropped.
    #[must_use]
    pub fn open_connection(self: &Arc<Self>) -> OpenConnection {
        self.connections.fetch_add(1, Relaxed);
        OpenConnection(Arc::clone(self))
    }

    /// Counts a request that begins; [`Self::note`] ends it.
    pub fn begin_request(&self) {
        self.begun.fetch_add(1, Relaxed);
    }

    /// Counts a finished request.
    pub fn note(&self, request: &RequestSummary<'_>) {
        self.requests.fetch_add(1, Relaxed);
        let failed = u64::from(request.status >= 500);
        self.failed.fetch_add(failed, Relaxed);
        if let Some(count) = self.statuses.0.get(usize::from(request.status)) {
            count.fetch_add(1, Relaxed);
        }
        self.received.fetch_add(request.received, Relaxed);
        self.sent.fetch_add(request.sent, Relaxed);
        if let Some(latency) = request.latency {
            self.latencies[request.kind as usize].record(latency);
            let operations = &self.operations.0;
            let named = operations.entry(request.operation.unwrap_or_default());
            if let Some(operation) = named.or_else(|| operations.entry("")) {
                operation.of(request.cache).record(latency);
            }
            self.note_read(request, latency);
        }
        if let Some((bucket, key)) = request.object {
            self.hottest.note(bucket, key, request.sent);
        }
    }

    fn note_read(&self, request: &RequestSummary<'_>, latency: Duration) {
        let (Some((bucket, _)), Some(cache)) = (request.object, request.cache) else {
            return;
        };
        if let Some(bucket) = self.buckets.0.entry(bucket) {
            match cache {
                CacheOutcome::Hit => bucket.hits.record(latency),
                CacheOutcome::Miss | CacheOutcome::Partial => bucket.misses.record(latency),
            }
        }
    }

    /// Counts a connection that was closed because of a limit.
    pub fn note_connection(&self, end: ConnectionEnd) {
        let count = match end {
            ConnectionEnd::AddressFull => &self.refused_connections,
            ConnectionEnd::Reclaimed => &self.reclaimed_connections,
            ConnectionEnd::HeadsFull => &self.refused_heads,
        };
        count.fetch_add(1, Relaxed);
    }

    /// Counts a request body that sent too little while others waited for the memory that it held.
    pub fn note_slow_body(&self) {
        self.slow_bodies.fetch_add(1, Relaxed);
    }

    /// Counts access records that were dropped.
    pub fn note_dropped_records(&self, records: u64) {
        self.dropped_records.fetch_add(records, Relaxed);
    }

    /// Counts records of multipart uploads that were removed, because their origin has forgotten the upload.
    pub fn note_removed_uploads(&self, records: u64) {
        self.removed_uploads.fetch_add(records, Relaxed);
    }

    /// A snapshot of the counters.
    #[must_use]
    pub fn stats(&self) -> TrafficStats {
        let requests = self.requests.load(Relaxed);
        TrafficStats {
            in_flight: self.begun.load(Relaxed).saturating_sub(requests),
            connections: self.connections.load(Relaxed),
            requests,
            failed: self.failed.load(Relaxed),
            received: self.received.load(Relaxed),
            sent: self.sent.load(Relaxed),
            refused_connections: self.refused_connections.load(Relaxed),
            reclaimed_connections: self.reclaimed_connections.load(Relaxed),
            refused_heads: self.refused_heads.load(Relaxed),
            slow_bodies: self.slow_bodies.load(Relaxed),
            dropped_access_records: self.dropped_records.load(Relaxed),
            removed_upload_records: self.removed_uploads.load(Relaxed),
        }
    }

    /// Returns the latencies of a kind's responses since the start.
    #[must_use]
    pub fn latencies(&self, kind: RequestKind) -> Latencies {
        self.latencies[kind as usize].snapshot()
    }

    /// The latencies by operation and cache outcome, without empty ones.
    #[must_use]
    pub fn operations(&self) -> Vec<OperationLatencies> {
        let mut found = Vec::new();
        for (operation, histograms) in self.operations.0.iter() {
            for cache in ByOutcome::OUTCOMES {
                let latencies = histograms.of(cache).snapshot();
                if latencies.count() > 0 {
                    let operation = operation.to_owned();
                    found.push(OperationLatencies {
                        operation,
                        cache,
                        latencies,
                    });
                }
            }
        }
        found
    }

    /// Records the time from a request to an origin to its response.
    pub(crate) fn note_origin(&self, request: OriginRequest, latency: Duration) {
        self.origins[request as usize].record(latency);
    }

    /// Returns the latencies of the responses of all origins to requests of a kind.
    #[must_use]
    pub fn origin(&self, request: OriginRequest) -> Latencies {
        self.origins[request as usize].snapshot()
    }

    /// Returns HTTP statuses with their number of responses, if there are any. 0 counts clients that left
    /// before the response.
    #[must_use]
    pub fn statuses(&self) -> Vec<(u16, u64)> {
        let counts = self.statuses.0.iter().map(|count| count.load(Relaxed));
        (0..).zip(counts).filter(|(_, count)| *count > 0).collect()
    }

    /// The latencies of reads by bucket, for the first [`MAX_TIMED_BUCKETS`] buckets read.
    #[must_use]
    pub fn reads(&self) -> BTreeMap<String, ReadLatencies> {
        let reads = self.buckets.0.iter().map(|(bucket, reads)| {
            let latencies = ReadLatencies {
                hits: reads.hits.snapshot(),
                misses: reads.misses.snapshot(),
            };
            (bucket.to_owned(), latencies)
        });
        reads.collect()
    }

    /// Returns the objects read most recently and most often, at most `max`, the hottest first.
    #[must_use]
    pub fn hottest(&self, max: usize) -> Vec<HotObject> {
        self.hottest.top(max)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn summary(operation: &'static str, bucket: &'static str) -> RequestSummary<'static> {
        RequestSummary {
            kind: RequestKind::Read,
            operation: Some(operation),
            cache: Some(CacheOutcome::Hit),
            latency: Some(Duration::from_millis(1)),
            status: 200,
            received: 0,
            sent: 5,
            object: Some((bucket, "key")),
        }
    }

    #[test]
    fn operations_outcomes_and_statuses_are_counted_apart() {
        let traffic = Traffic::default();
        for _ in 0..3 {
            traffic.note(&summary("GetObject", "a"));
        }
        traffic.note(&RequestSummary {
            cache: Some(CacheOutcome::Partial),
            ..summary("GetObject", "b")
        });
        let refused = RequestSummary {
            operation: None,
            cache: None,
            object: None,
            status: 503,
            ..summary("", "")
        };
        traffic.note(&refused);
        let left = RequestSummary {
            latency: None,
            status: 0,
            ..refused
        };
        traffic.note(&left);
        let counts =
            |of: &OperationLatencies| (of.operation.clone(), of.cache, of.latencies.count());
        let found: Vec<_> = traffic.operations().iter().map(counts).collect();
        let get = "GetObject".to_owned();
        assert_eq!(
            found,
            [
                (String::new(), None, 1),
                (get.clone(), Some(CacheOutcome::Hit), 3),
                (get, Some(CacheOutcome::Partial), 1)
            ]
        );
        assert_eq!(traffic.statuses(), [(0, 1), (200, 4), (503, 1)]);
        assert_eq!((traffic.stats().requests, traffic.stats().failed), (6, 1));
        let reads = traffic.reads();
        assert_eq!((reads["a"].hits.count(), reads["a"].misses.count()), (3, 0));
        assert_eq!((reads["b"].hits.count(), reads["b"].misses.count()), (0, 1));
    }

    #[test]
    fn names_of_operations_and_buckets_are_bounded() {
        let traffic = Traffic::default();
        let names: Vec<&'static str> = (0..200)
            .map(|number| &*Box::leak(format!("name {number}").into_boxed_str()))
            .collect();
        for name in names {
            traffic.note(&summary(name, name));
        }
        let operations = traffic.operations();
        assert_eq!(operations.len(), MAX_COUNTED_OPERATIONS);
        // The first has no name and counts all others.
        let others = 200 - (MAX_COUNTED_OPERATIONS - 1) as u64;
        assert_eq!(operations[0].operation, "");
        assert_eq!(operations[0].latencies.count(), others);
        assert_eq!(traffic.reads().len(), MAX_TIMED_BUCKETS);
    }
}
