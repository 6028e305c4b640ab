//! Timers of the state machine, ordered by time.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::message::OpId;
use crate::names::{Boot, Epoch, Key, NodeId, Shard};

/// An action that is due at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Timer {
    Register,
    Keepalive(Boot),
    Claims,
    Rebalance,
    /// The read leases of a shard that is given on have ended.
    Drained(Shard, Epoch),
    /// The entry with this number may be unused.
    Sweep(Key, u64),
    /// A read lease that was not dropped has ended.
    LeaseOver(u64, NodeId),
    /// The next question without authority may be sent while one is in progress.
    AskNext(Key),
    BeginLimit(OpId),
    Renew(OpId),
    EndRetry(OpId),
    EndDeadline(OpId),
    /// A read lease may have ended.
    LeaseSweep(Key),
}

/// Timers by their time. Timers of one time are due in the order in which they were set.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    by_time: BTreeMap<(Duration, u64), Timer>,
    set: u64,
}

impl Timers {
    pub(crate) fn set(&mut self, at: Duration, timer: Timer) {
        self.set += 1;
        self.by_time.insert((at, self.set), timer);
    }

    pub(crate) fn next(&self) -> Option<Duration> {
        self.by_time.first_key_value().map(|((at, _), _)| *at)
    }

    /// Removes the first timer that is due at `now`.
    pub(crate) fn pop(&mut self, now: Duration) -> Option<Timer> {
        let first = self.by_time.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }
}
