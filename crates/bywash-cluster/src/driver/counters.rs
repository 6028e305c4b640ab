//! Counts for the operator.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::message::{Outcome, Source};
use crate::transport::PeerError;

/// Counts since the start.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) peer_hits: Count,
    pub(super) peeks: Count,
    pub(super) peek_hits: Count,
    pub(super) own: Count,
    pub(super) suspect: Count,
    pub(super) full: Count,
    pub(super) unreachable: Count,
    pub(super) foreign: Count,
    pub(super) other_settings: Count,
    pub(super) busy: Count,
    pub(super) absent: Count,
    pub(super) by_lease: Count,
    pub(super) as_holder: Count,
    pub(super) by_holder: Count,
    pub(super) by_origin: Count,
    pub(super) failed_reads: Count,
    pub(super) writes: Count,
    pub(super) writes_waited: Count,
    pub(super) writes_unconfirmed: Count,
}

/// A number that grows.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub(super) fn add(&self) {
        // Relaxed: a count alone, nothing is published by it.
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        // Relaxed as above.
        self.0.load(Ordering::Relaxed)
    }
}

impl Counters {
    /// Counts the end of a read or a write.
    pub(super) fn ended<V>(&self, outcome: &Outcome<V>) {
        let count = match outcome {
            Outcome::Version(_, source) => return self.served(*source),
            Outcome::ReadFailed => &self.failed_reads,
            Outcome::Acknowledged { waited } => {
                self.writes.add();
                if !waited {
                    return;
                }
                &self.writes_waited
            }
            Outcome::SlowDown => &self.writes_unconfirmed,
            Outcome::WriteFailed(_) => return,
        };
        count.add();
    }

    /// Counts a version that was returned.
    pub(super) fn served(&self, source: Source) {
        let count = match source {
            Source::Lease => &self.by_lease,
            Source::Holder => &self.as_holder,
            Source::Peer => &self.by_holder,
            Source::Origin => &self.by_origin,
        };
        count.add();
    }

    /// Counts why another node gave nothing.
    pub(super) fn failed(&self, error: PeerError) {
        let count = match error {
            PeerError::Unreachable => &self.unreachable,
            PeerError::Foreign => &self.foreign,
            PeerError::OtherSettings => &self.other_settings,
            PeerError::Busy => &self.busy,
            PeerError::Absent => &self.absent,
        };
        count.add();
    }
}
