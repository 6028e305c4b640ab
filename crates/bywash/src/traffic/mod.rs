//! What passes an endpoint: how long answers take, which objects are asked for most.
//!
//! Endpoints note requests here and pages read it. A request only adds to counters, and never waits for another one.

mod hottest;
mod latency;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

pub use hottest::HotObject;
use hottest::Hottest;
use latency::Histogram;
pub use latency::Latencies;
use serde::Serialize;

/// What kind of work a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestKind {
    /// Object data is read.
    Read,
    /// Object data is written.
    Write,
    /// All else: metadata, listings, deletes.
    Other,
}

impl RequestKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Other];

    /// The kind's name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Other => "other",
        }
    }
}

/// What an endpoint knows of one request when it is over.
#[derive(Debug, Clone, Copy)]
pub struct Passed<'a> {
    /// What was asked for.
    pub kind: RequestKind,
    /// From the request's head to the answer's head; `None` if the client left before.
    pub answered: Option<Duration>,
    /// Whether the answer was the server's fault (5xx).
    pub failed: bool,
    /// Bytes of the request's body.
    pub received: u64,
    /// Bytes of the answer's body.
    pub sent: u64,
    /// The bucket and the key that were read, if object data was.
    pub object: Option<(&'a str, &'a str)>,
}

/// Why an endpoint closed a connection that its client would have kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionEnd {
    /// Its client's address had as many as it may.
    AddressFull,
    /// It was idle, all connections were taken, and a new one came.
    Reclaimed,
    /// Unfinished request heads took all memory they may.
    HeadsFull,
}

/// Counters of requests at the endpoints of an engine.
///
/// Written by any thread, read by snapshots only. Nothing is published through them, so every access is relaxed.
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

/// A moment's [`Traffic`], but for latencies and objects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct TrafficStats {
    /// Requests that are over.
    pub requests: u64,
    /// Those of them answered 5xx.
    pub failed: u64,
    /// Bytes of their bodies.
    pub received: u64,
    /// Bytes of the bodies they were answered with.
    pub sent: u64,
    /// Connections closed at once because their client's address had too many.
    pub refused_connections: u64,
    /// Idle connections closed to let a new one in.
    pub reclaimed_connections: u64,
    /// Connections closed because unfinished request heads took too much memory.
    pub refused_heads: u64,
    /// Access records dropped because the access log's file could not take them in time.
    pub dropped_access_records: u64,
}

impl Traffic {
    /// Notes a request that is over.
    pub fn note(&self, passed: &Passed<'_>) {
        self.requests.fetch_add(1, Relaxed);
        self.failed.fetch_add(u64::from(passed.failed), Relaxed);
        self.received.fetch_add(passed.received, Relaxed);
        self.sent.fetch_add(passed.sent, Relaxed);
        if let Some(answered) = passed.answered {
            self.latencies[passed.kind as usize].record(answered);
        }
        if let Some((bucket, key)) = passed.object {
            self.hottest.note(bucket, key, passed.sent);
        }
    }

    /// Counts a connection that was closed for a limit.
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

    /// The counters of this moment.
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

    /// How long answers of a kind took, since the start.
    #[must_use]
    pub fn latencies(&self, kind: RequestKind) -> Latencies {
        self.latencies[kind as usize].snapshot()
    }

    /// The objects read most of late, at most `most`, the hottest first.
    #[must_use]
    pub fn hottest(&self, most: usize) -> Vec<HotObject> {
        self.hottest.top(most)
    }
}
