//! The rules of the protocol by name, so that a test can leave one out and see the simulation fail. So can a program built with the
//! feature `rules-left-out`, for the negative controls of the soak with processes. Outside those two there is no way to leave one out,
//! and no switch in the compiled code.

/// A rule that a control can leave out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Authority ends at the node's own deadline, regardless of etcd's keys.
    OwnDeadline,
    /// A shard is claimed with the word of its holder, or after the claim delay.
    ClaimDelay,
    /// Read leases end before a shard is handed over.
    Drain,
    /// Read leases that a process gave stay in its list when it takes a shard again.
    LeasesKept,
    /// A process does not answer for its predecessor before that one's read leases have ended.
    Quiet,
    /// Known versions are not believed after authority has lapsed, even if authority returns.
    Forget,
    /// A holder marks the key of a write before the origin has it.
    Begin,
    /// A holder forgets the key of a write before it is acknowledged.
    End,
    /// Without the holder, a write waits for the window.
    WaitOut,
    /// A reader counts a lease from the sending of its request.
    LeaseFromSending,
    /// A lease ends a window after the version was asked for.
    LeaseAge,
    /// A lease whose key was dropped while its response was on its way is not used.
    LeaseDropped,
    /// A holder counts a lease longer, and its reader shorter, than it is.
    LeaseMargin,
    /// The end of a write removes only the leases it has waited for.
    WaitedLeases,
    /// A response is not recorded if a write to its key came since it was asked for.
    WriteSince,
    /// A read joins no question that was asked more than a window ago.
    JoinWindow,
    /// A node without authority joins no question that was asked before the read.
    JoinUnsent,
    /// A node without authority has at most two questions about a key in progress. A rule for the
    /// origin's load, not for the results of reads.
    TwoQuestions,
    /// Authority counts from the sending of a keepalive.
    KeepaliveSent,
}

#[cfg(any(test, feature = "rules-left-out"))]
impl Rule {
    /// Whether the rule is left out as a planted fault.
    fn is_planted(self) -> bool {
        match self {
            Self::OwnDeadline => planted!("cluster-own-deadline"),
            Self::ClaimDelay => planted!("cluster-claim-delay"),
            Self::Drain => planted!("cluster-drain"),
            Self::Forget => planted!("cluster-forget"),
            Self::Begin => planted!("cluster-begin"),
            Self::End => planted!("cluster-end"),
            Self::WaitOut => planted!("cluster-wait-out"),
            Self::LeaseFromSending => planted!("cluster-lease-from-sending"),
            Self::LeaseAge => planted!("cluster-lease-age"),
            Self::LeaseDropped => planted!("cluster-lease-dropped"),
            Self::WriteSince => planted!("cluster-write-since"),
            Self::KeepaliveSent => planted!("cluster-keepalive-sent"),
            _ => false,
        }
    }
}

/// Which rules hold: all, but for at most a few that a control leaves out.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rules {
    #[cfg(any(test, feature = "rules-left-out"))]
    left_out: Vec<Rule>,
}

impl Rules {
    /// All rules but these.
    #[cfg(test)]
    pub(crate) fn without(left_out: &[Rule]) -> Self {
        Self {
            left_out: left_out.to_vec(),
        }
    }

    /// Rules of a process: all.
    #[cfg(not(feature = "rules-left-out"))]
    pub(crate) fn of_process() -> Self {
        Self::default()
    }

    #[cfg(any(test, feature = "rules-left-out"))]
    pub(crate) fn holds(&self, rule: Rule) -> bool {
        !self.left_out.contains(&rule) && !rule.is_planted()
    }

    /// Whether the rule is followed: always.
    #[cfg(not(any(test, feature = "rules-left-out")))]
    #[expect(clippy::unused_self, reason = "controls leave rules out")]
    pub(crate) const fn holds(&self, _rule: Rule) -> bool {
        true
    }
}

/// The build for controls with processes.
#[cfg(feature = "rules-left-out")]
mod left_out {
    use super::{Rule, Rules};

    /// Names of the rules that are left out, separated by commas.
    const VARIABLE: &str = "BYWASH_CLUSTER_LEAVE_OUT";

    /// Rules whose absence processes show, by name.
    const NAMES: [(&str, Rule); 11] = [
        ("begin", Rule::Begin),
        ("claim-delay", Rule::ClaimDelay),
        ("drain", Rule::Drain),
        ("end", Rule::End),
        ("join-unsent", Rule::JoinUnsent),
        ("lease-age", Rule::LeaseAge),
        ("lease-dropped", Rule::LeaseDropped),
        ("leases-kept", Rule::LeasesKept),
        ("own-deadline", Rule::OwnDeadline),
        ("wait-out", Rule::WaitOut),
        ("write-since", Rule::WriteSince),
    ];

    impl Rules {
        /// Rules of a process: all except the rules that the environment names.
        ///
        /// # Panics
        /// If a name is unknown: a control without its effect must not pass.
        pub(crate) fn of_process() -> Self {
            let text = std::env::var(VARIABLE).unwrap_or_default();
            let names = text.split(',').filter(|name| !name.is_empty());
            let left_out = names.map(|name| {
                let known = NAMES.iter().find(|(known, _)| *known == name);
                known.map_or_else(|| panic!("{VARIABLE}: no rule {name:?}"), |(_, rule)| *rule)
            });
            Self {
                left_out: left_out.collect(),
            }
        }
    }
}
