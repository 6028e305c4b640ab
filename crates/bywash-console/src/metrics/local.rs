//! Metrics of the local door.

use bywash::LocalStats;

use super::{Family, counters, gauges};

const COUNTERS: [Family<LocalStats>; 6] = [
    (
        "bywash_local_requests_total",
        "Requests of local clients.",
        |s| s.requests,
    ),
    (
        "bywash_local_failures_total",
        "Requests of local clients that failed.",
        |s| s.failures,
    ),
    (
        "bywash_local_shared_bytes_total",
        "Bytes of objects that local clients read in this server's memory.",
        |s| s.shared_bytes,
    ),
    (
        "bywash_local_copied_bytes_total",
        "Bytes of objects copied to local clients.",
        |s| s.copied_bytes,
    ),
    (
        "bywash_local_refused_leases_total",
        "Reads of local clients copied for lack of loans or memory.",
        |s| s.refused,
    ),
    (
        "bywash_local_rejected_connections_total",
        "Local connections refused: of another user, of another protocol, beyond their limit.",
        |s| s.rejected,
    ),
];

const GAUGES: [Family<LocalStats>; 4] = [
    (
        "bywash_local_clients",
        "Open connections of local clients.",
        |s| s.clients,
    ),
    (
        "bywash_local_leases",
        "Leases held by local clients.",
        |s| s.leases,
    ),
    (
        "bywash_local_leased_bytes",
        "Bytes of frames that leases keep in memory.",
        |s| s.leased_bytes,
    ),
    (
        "bywash_local_oldest_lease_seconds",
        "Time since the oldest lease began.",
        |s| s.oldest_lease_seconds,
    ),
];

pub(super) fn write(text: &mut String, stats: &LocalStats) {
    counters(text, &COUNTERS, stats);
    gauges(text, &GAUGES, stats);
}
