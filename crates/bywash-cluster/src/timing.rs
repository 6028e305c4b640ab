//! Durations of the protocol, each with its reason.

use std::time::Duration;

/// Durations of the protocol. All nodes of a cluster must have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Time to live of a node's etcd lease. etcd grants whole seconds, at least 2.
    pub lease: Duration,
    /// Time between two keepalives. Five fit into a lease, so that one that fails costs nothing.
    pub keepalive: Duration,
    /// Pause before a failed registration is sent again.
    pub register_pause: Duration,
    /// Time for which a node has authority, from the *sending* of its last successful keepalive. Shorter than the lease: the
    /// node stops before etcd lets another begin.
    pub authority: Duration,
    /// Maximum duration of a read lease. A write waits for it if its reader does not respond, so it is short.
    pub read_lease: Duration,
    /// Part by which a duration is lengthened or shortened, in percent, where two clocks compare it. chrony slews by up to 8.3 %;
    /// two clocks may differ by twice that.
    pub margin_percent: u32,
    /// Delay from the moment at which a holder's key is first seen gone to a claim without the holder's word. At least
    /// `(authority + read_lease) * (1 + margin)`, after which the holder's authority and its leases have ended, counted from its last
    /// keepalive. Two seconds more for a leader of etcd that was cut off and confirms keepalives of leases that are revoked. So
    /// the protocol does not depend on etcd keeping a lease for its time, which it does not always do.
    pub claim_delay: Duration,
    /// Delay after `claim_delay` at which the next node in rank claims instead of the first, per rank.
    pub next_in_rank: Duration,
    /// Time between two looks for shards to claim.
    pub claim_pause: Duration,
    /// Time between two questions to a node that is gone, whether its authority has ended.
    pub word_pause: Duration,
    /// Limit of that question.
    pub word_limit: Duration,
    /// Time without a change of members after which shards are handed over.
    pub settle: Duration,
    /// Shards handed over at once, in each second.
    pub handovers: usize,
    /// Time between two lists of members and shards. A connection of the watch that died is silent.
    pub list: Duration,
    /// Maximum age of the list of a node to which etcd responds. A window that is longer than the others' is used longer than this after it
    /// was published. Two seconds above [`Self::list`], for lists that fail.
    pub list_age: Duration,
    /// Time after which a transaction without a definite result is sent again.
    pub etcd_pause: Duration,
    /// Time after which a reader that got no frame from the holder asks the origin as well.
    pub patience: Duration,
    /// Limit of a request to the holder for a version. The origin is asked long before.
    pub open_limit: Duration,
    /// Time for which a node is passed by after [`Self::suspect_after`] failures.
    pub suspect: Duration,
    /// Consecutive failures after which a node is passed by.
    pub suspect_after: u32,
    /// Limit of a request to drop a key. Beyond it, the lease is waited out, which is at most `read_lease` with margin.
    pub drop_limit: Duration,
    /// Limit of the begin or the end of a write at the holder. Longer than a read lease with margin.
    pub write_limit: Duration,
    /// Pause before the end of a write is sent again.
    pub end_pause: Duration,
    /// Time that a mark of a write lasts after its last begin. A writer that died leaves its keys uncached for this long.
    pub mark: Duration,
    /// Time between two begins of a long write.
    pub renew: Duration,
    /// Added to a window that is waited out, for the rounding of clocks.
    pub wait_slack: Duration,
    /// Maximum window that a write waits out.
    pub max_waited_window: Duration,
    /// Time after the origin's response until a write without an end is an error, if its window is longer.
    pub give_up: Duration,
}

impl Timing {
    /// The durations of the product.
    pub const DEFAULT: Self = Self {
        lease: Duration::from_secs(5),
        keepalive: Duration::from_secs(1),
        register_pause: Duration::from_millis(200),
        authority: Duration::from_secs(3),
        read_lease: Duration::from_secs(1),
        margin_percent: 20,
        claim_delay: Duration::from_secs(7),
        next_in_rank: Duration::from_secs(5),
        claim_pause: Duration::from_millis(100),
        word_pause: Duration::from_millis(500),
        word_limit: Duration::from_millis(200),
        settle: Duration::from_secs(2),
        handovers: 64,
        list: Duration::from_secs(5),
        list_age: Duration::from_secs(7),
        etcd_pause: Duration::from_millis(100),
        patience: Duration::from_millis(150),
        open_limit: Duration::from_secs(30),
        suspect: Duration::from_secs(1),
        suspect_after: 3,
        drop_limit: Duration::from_millis(100),
        write_limit: Duration::from_millis(2500),
        end_pause: Duration::from_millis(100),
        mark: Duration::from_secs(20),
        renew: Duration::from_secs(5),
        wait_slack: Duration::from_millis(50),
        max_waited_window: Duration::from_secs(5),
        give_up: Duration::from_secs(15),
    };

    /// Returns `time` lengthened by the margin: at least `time` on any other clock.
    #[must_use]
    pub fn longer(&self, time: Duration) -> Duration {
        time * (100 + self.margin_percent) / 100
    }

    /// Returns `time` shortened by the margin: at most `time` on any other clock.
    #[must_use]
    pub fn shorter(&self, time: Duration) -> Duration {
        time * 100u32.saturating_sub(self.margin_percent) / 100
    }

    /// Time from the start of a process after which all read leases of its predecessor have ended.
    /// The predecessor gave them before, for `read_lease`, which readers shorten; twice the margin,
    /// for the clock of this process may run fast too.
    #[must_use]
    pub fn quiet(&self) -> Duration {
        self.longer(self.longer(self.read_lease))
    }

    /// Time from registration after which a shard without a key may be claimed. Nodes of an etcd
    /// that was lost or restored have lost their authority, and the leases they gave have ended.
    #[must_use]
    pub fn first_claim(&self) -> Duration {
        self.longer(self.lease)
    }

    /// Time after a node was first seen to have a window, from which on each other one to which
    /// etcd responds waits its writes out by it: its list is younger.
    #[must_use]
    pub fn seen_by_all(&self) -> Duration {
        self.longer(self.list_age)
    }

    /// Time after the origin's response at which a write may be acknowledged without the holder. By
    /// then each version that a node uses was asked for after the response, on its own clock.
    #[must_use]
    pub fn wait_out(&self, window: Duration) -> Duration {
        self.longer(window) + self.wait_slack
    }
}

impl Default for Timing {
    fn default() -> Self {
        Self::DEFAULT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_durations_satisfy_the_inequalities_of_the_argument() {
        let timing = Timing::DEFAULT;
        assert!(timing.authority < timing.lease);
        let ended = timing.longer(timing.authority + timing.read_lease);
        assert!(timing.claim_delay >= ended + Duration::from_secs(2));
        assert!(timing.first_claim() >= ended);
        assert!(timing.write_limit > timing.longer(timing.read_lease) + timing.drop_limit);
        assert!(timing.renew * 3 < timing.mark);
        assert!(timing.keepalive * 2 < timing.authority);
        assert!(timing.list_age >= timing.list + Duration::from_secs(2));
    }

    #[test]
    fn margins_cover_clocks_that_differ_by_less() {
        let timing = Timing::DEFAULT;
        let second = Duration::from_secs(1);
        assert_eq!(timing.longer(second), Duration::from_millis(1200));
        assert_eq!(timing.shorter(second), Duration::from_millis(800));
        assert_eq!(timing.quiet(), Duration::from_millis(1440));
        assert_eq!(timing.wait_out(second), Duration::from_millis(1250));
    }
}
