//! A node's registration in etcd, and the deadline of its authority.

use std::time::Duration;

use crate::message::{Action, CallId, EtcdReply, EtcdRequest};
use crate::names::{Boot, Member};
use crate::node::{EtcdCall, Node};
use crate::rules::Rule;
use crate::timers::Timer;

/// State of the registration.
#[derive(Debug, Default)]
pub(crate) struct Membership {
    /// The current registration.
    pub(crate) boot: Option<Boot>,
    /// When it was confirmed first.
    pub(crate) registered: Duration,
    /// Authority ends at this time, unless a later keepalive succeeds.
    pub(crate) until: Duration,
    /// Number of keepalives that succeeded after authority had ended. Knowledge from before is not
    /// believed.
    pub(crate) lapses: u64,
    /// End of all read leases that this process has given.
    pub(crate) leases_end: Duration,
    /// Earlier registrations of this process, with the end of the read leases given until they ended.
    ended: Vec<(Boot, Duration)>,
    /// No shard is claimed before, after a change of the cluster.
    pub(crate) claims_from: Duration,
    /// The process is to end.
    pub(crate) leaving: bool,
}

impl Membership {
    /// Whether `boot` was a registration of this process.
    pub(crate) fn was(&self, boot: Boot) -> bool {
        self.ended.iter().any(|(ended, _)| *ended == boot)
    }
}

impl<V: Clone> Node<V> {
    /// The node's registration.
    pub(crate) fn me(&self) -> Option<Member> {
        let boot = self.membership.boot?;
        Some(Member {
            node: self.settings.node,
            boot,
        })
    }

    /// Whether the node may have authority now. It is asked after a request was received: a process
    /// that was stopped looks at its clock before it responds.
    pub(crate) fn in_time(&self) -> bool {
        self.in_time_at(self.now)
    }

    pub(crate) fn in_time_at(&self, now: Duration) -> bool {
        self.membership.boot.is_some()
            && (now < self.membership.until || !self.rules.holds(Rule::OwnDeadline))
    }

    /// Whether `boot` is the current registration of this process, or was one.
    #[must_use]
    pub fn is_own(&self, boot: Boot) -> bool {
        self.membership.boot == Some(boot) || self.membership.was(boot)
    }

    pub(crate) fn register(&mut self) {
        let idle = self.membership.boot.is_none() && !self.membership.leaving;
        let asked = self
            .etcd_calls
            .values()
            .any(|call| matches!(call, EtcdCall::Register { .. }));
        if idle && !asked {
            let call = EtcdCall::Register { sent: self.now };
            self.ask_etcd(call, EtcdRequest::Register);
        }
    }

    pub(crate) fn keep_alive(&mut self, boot: Boot) {
        if self.membership.boot != Some(boot) {
            return;
        }
        let call = EtcdCall::Keepalive {
            boot,
            sent: self.now,
        };
        self.ask_etcd(call, EtcdRequest::Keepalive(boot));
        let next = self.now + self.settings.timing.keepalive;
        self.timers.set(next, Timer::Keepalive(boot));
    }

    pub(crate) fn registered(&mut self, sent: Duration, reply: EtcdReply) {
        let timing = self.settings.timing;
        let EtcdReply::Registered(boot) = reply else {
            // If it was done nevertheless, the view shows it, and it is revoked.
            let again = self.now + timing.register_pause;
            return self.timers.set(again, Timer::Register);
        };
        let membership = &mut self.membership;
        membership.boot = Some(boot);
        membership.registered = self.now;
        membership.lapses += 1;
        membership.until = sent + timing.authority;
        self.timers
            .set(sent + timing.keepalive, Timer::Keepalive(boot));
        self.take_given();
    }

    /// A keepalive has a result. Authority counts from its sending: etcd may have counted the lease from then on.
    pub(crate) fn kept_alive(&mut self, boot: Boot, sent: Duration, reply: EtcdReply) {
        if self.membership.boot != Some(boot) {
            return;
        }
        match reply {
            EtcdReply::Gone => self.lose_membership(),
            EtcdReply::Alive => {
                let counted = if self.rules.holds(Rule::KeepaliveSent) {
                    sent
                } else {
                    self.now
                };
                let until = counted + self.settings.timing.authority;
                // Others may have held the shards in between, and written.
                if self.now >= self.membership.until && self.rules.holds(Rule::Forget) {
                    self.membership.lapses += 1;
                }
                self.membership.until = self.membership.until.max(until);
            }
            _ => {}
        }
    }

    /// The registration is gone: all authority ends, and the node registers again.
    pub(crate) fn lose_membership(&mut self) {
        let Some(boot) = self.membership.boot.take() else {
            return;
        };
        let membership = &mut self.membership;
        membership.lapses += 1;
        membership.until = Duration::ZERO;
        // The read leases of the registration `KEPT` registrations ago have ended: each takes
        // longer than a round trip to etcd and a pause.
        const KEPT: usize = 64;
        if membership.ended.len() >= KEPT {
            membership.ended.remove(0);
        }
        membership.ended.push((boot, membership.leases_end));
        self.drop_shards();
        self.register();
    }

    /// Returns whether authority and read leases of the registration `boot` of this node have ended.
    ///
    /// A node that asks has seen the registration's key gone. A deleted key never returns, so if
    /// the registration is the current one, it is lost by that. Read leases of an earlier process
    /// are not known, only their longest duration.
    pub(crate) fn released(&mut self, boot: Boot) -> bool {
        if self.membership.boot == Some(boot) {
            self.lose_membership();
        }
        let found = self.membership.ended.iter().find(|(own, _)| *own == boot);
        match found {
            Some((_, end)) => self.now > *end,
            None => self.is_quiet(),
        }
    }

    /// Whether the read leases of the process before this one have ended. That process is dead: it
    /// held the lock of the data folder.
    pub(crate) fn is_quiet(&self) -> bool {
        let ended = self.started + self.settings.timing.quiet();
        self.now > ended || !self.rules.holds(Rule::Quiet)
    }

    /// Revokes registrations of this node that are not its current one: of an earlier process, or of a request whose response was
    /// lost. Claims of their shards wait as for any other that is gone.
    pub(crate) fn revoke_others(&mut self) {
        let me = self.me();
        let asked = |node: &Self, member| {
            let mut calls = node.etcd_calls.values();
            calls.any(|call| matches!(call, EtcdCall::Revoke(asked) if *asked == member))
        };
        // A registration in progress may be one of those seen.
        if me.is_none() {
            return;
        }
        let others: Vec<Member> = self
            .view
            .registrations(self.settings.node)
            .filter(|member| Some(*member) != me && !asked(self, *member))
            .collect();
        for member in others {
            self.ask_etcd(EtcdCall::Revoke(member), EtcdRequest::Revoke(member));
        }
    }

    pub(crate) fn ask_etcd(&mut self, call: EtcdCall, request: EtcdRequest) -> CallId {
        let id = self.next_call();
        self.etcd_calls.insert(id, call);
        self.out.push(Action::Etcd(id, request));
        id
    }
}
