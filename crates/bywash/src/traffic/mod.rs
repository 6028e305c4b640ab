//! Statistics of the endpoints' requests: latencies, bytes, and the most requested objects.
//!
//! Endpoints record requests here; the console reads them. Recording only adds to counters, and never waits for
//! another request.

mod hottest;
mod latency;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

pub use hottest::HotObject;
use hottest::Hottest;
use latency::Histogram;
pub use latency::Latencies;
use serde::Serialize;

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
    /// Time from the request's head to the response's head; `None` if the client left before.
    pub latency: Option<Duration>,
    /// Whether the response was a server error (5xx).
    pub failed: bool,
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
    requests: AtomicU64,
    failed: AtomicU64,
    received: AtomicU64,
    sent: AtomicU64,
    refused_connections: AtomicU64,
    reclaimed_connections: AtomicU64,
    refused_heads: AtomicU64,
    dropped_records: AtomicU64,
    latencies: [Histogram; RequestKind::ALL.len()],
    hottest: Hottest,
}

/// Snapshot of [`Traffic`], without latencies and objects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct TrafficStats {
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
    /// Access records dropped because the access log's file was too slow.
    pub dropped_access_records: u64,
}

impl Traffic {
    /// Counts a finished request.
    pub fn note(&self, request: &RequestSummary<'_>) {
        self.requests.fetch_add(1, Relaxed);
        self.failed.fetch_add(u64::from(request.failed), Relaxed);
        self.received.fetch_add(request.received, Relaxed);
        self.sent.fetch_add(request.sent, Relaxed);
        if let Some(latency) = request.latency {
            self.latencies[request.kind as usize].record(latency);
        }
        if let Some((bucket, key)) = request.object {
            self.hottest.note(bucket, key, request.sent);
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

    /// Counts access records that were dropped.
    pub fn note_dropped_records(&self, records: u64) {
        self.dropped_records.fetch_add(records, Relaxed);
    }

    /// Returns a snapshot of the counters.
    #[must_use]
    pub fn stats(&self) -> TrafficStats {
        TrafficStats {
            requests: self.requests.load(Relaxed),
            failed: self.failed.load(Relaxed),
            received: self.received.load(Relaxed),
            sent: self.sent.load(Relaxed),
            refused_connections: self.refused_connections.load(Relaxed),
            reclaimed_connections: self.reclaimed_connections.load(Relaxed),
            refused_heads: self.refused_heads.load(Relaxed),
            dropped_access_records: self.dropped_records.load(Relaxed),
        }
    }

    /// Returns the latencies of a kind's responses since the start.
    #[must_use]
    pub fn latencies(&self, kind: RequestKind) -> Latencies {
        self.latencies[kind as usize].snapshot()
    }

    /// Returns the objects read most recently and most often, at most `max`, the hottest first.
    #[must_use]
    pub fn hottest(&self, max: usize) -> Vec<HotObject> {
        self.hottest.top(max)
    }
}
