//! Shards of the versions: holding, handing over, claiming.
//!
//! etcd's key of a shard names its holder. It has no lease, so it never changes but by a transaction, and its revision is the
//! epoch. Its holder is alive exactly while the holder's own key is there.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::message::{ClaimGuard, EtcdReply, EtcdRequest, PeerRequest};
use crate::names::{Epoch, Key, Member, NodeId, Shard};
use crate::node::{EtcdCall, Node, PeerCall};
use crate::placement::{Candidate, first, rank_of, shard_hash};
use crate::rules::Rule;
use crate::timers::Timer;

/// This node's knowledge of a shard, and its own role in it.
#[derive(Debug, Default)]
pub(crate) struct ShardState {
    /// Holder in etcd, as last seen.
    pub(crate) holder: Option<(Member, Epoch)>,
    pub(crate) holding: Holding,
    /// Number of this node's current time as holder.
    pub(crate) serial: u64,
    /// When the holder's own key was first seen gone.
    gone: Option<Duration>,
    /// End of the read leases that this process has given for keys of the shard.
    pub(crate) leases_end: Duration,
    /// A claim is in progress.
    claiming: bool,
}

/// Whether this node holds a shard, or is giving it on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Holding {
    #[default]
    No,
    Serving,
    /// Without authority already: the shard is to be given to this member.
    Giving(Member),
}

/// An unbroken time with authority over a shard. Knowledge of another tenure is not believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tenure {
    serial: u64,
    lapses: u64,
}

/// Whether holders that are gone have confirmed the end of their authority and of their read leases.
pub(crate) type Words = BTreeMap<Member, Word>;

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Word {
    asked: Option<Duration>,
    given: bool,
}

impl<V: Clone> Node<V> {
    fn state(&mut self, shard: Shard) -> &mut ShardState {
        &mut self.shards[usize::from(shard.0)]
    }

    /// Holder of the shard of `key` in this node's view.
    #[must_use]
    pub fn holder_of(&self, key: &Key) -> Option<Member> {
        self.holder(self.shard(key))
    }

    /// Number of shards that have this node's registration as their holder at etcd, with authority
    /// or without.
    #[must_use]
    pub fn named(&self) -> usize {
        let me = self.me();
        let named =
            |state: &&ShardState| state.holder.is_some_and(|(holder, _)| Some(holder) == me);
        if me.is_none() {
            return 0;
        }
        self.shards.iter().filter(named).count()
    }

    /// Number of shards that this node is giving to other nodes.
    #[must_use]
    pub fn giving(&self) -> usize {
        let giving = |state: &&ShardState| matches!(state.holding, Holding::Giving(_));
        self.shards.iter().filter(giving).count()
    }

    /// Holder of the shard in this node's view.
    pub(crate) fn holder(&self, shard: Shard) -> Option<Member> {
        let state = &self.shards[usize::from(shard.0)];
        state.holder.map(|(holder, _)| holder)
    }

    /// Returns this node's authority over the shard: etcd's key names its registration, as far as it knows, and its own deadline
    /// has not passed.
    pub(crate) fn tenure(&self, shard: Shard) -> Option<Tenure> {
        self.tenure_at(self.now, shard)
    }

    pub(crate) fn tenure_at(&self, now: Duration, shard: Shard) -> Option<Tenure> {
        let state = &self.shards[usize::from(shard.0)];
        let serving = state.holding == Holding::Serving && self.in_time_at(now);
        serving.then_some(Tenure {
            serial: state.serial,
            lapses: self.membership.lapses,
        })
    }

    /// Records the holder of a shard. An epoch that is older than the known one is an old report.
    pub(crate) fn adopt(&mut self, shard: Shard, holder: Member, epoch: Epoch) {
        let me = self.me();
        let state = self.state(shard);
        if state.holder.is_some_and(|(_, known)| known >= epoch) {
            return;
        }
        state.holder = Some((holder, epoch));
        state.holding = Holding::No;
        state.gone = None;
        if Some(holder) == me {
            self.take(shard);
        }
        self.note_gone(shard);
    }

    /// Begins to serve a shard. The tenure is new, so nothing known before is believed. The list of read leases given before
    /// stays: a write must end those too.
    fn take(&mut self, shard: Shard) {
        let serial = self.next_id();
        let kept = self.rules.holds(Rule::LeasesKept);
        let state = self.state(shard);
        state.serial = serial;
        state.holding = Holding::Serving;
        if !kept {
            self.forget_leases(shard);
        }
    }

    /// Takes the shards that were given to this registration before its response came.
    pub(crate) fn take_given(&mut self) {
        for shard in 0..self.settings.shards {
            let shard = Shard(shard);
            if self.holder(shard) == self.me() && self.state(shard).holding == Holding::No {
                self.take(shard);
            }
        }
    }

    /// Ends serving all shards, after the registration was lost.
    pub(crate) fn drop_shards(&mut self) {
        for state in &mut self.shards {
            state.holding = Holding::No;
        }
    }

    /// Forgets all holders. The read leases that this process gave last on.
    pub(crate) fn forget_shards(&mut self) {
        for state in &mut self.shards {
            *state = ShardState {
                leases_end: state.leases_end,
                ..ShardState::default()
            };
        }
    }

    pub(crate) fn note_all_gone(&mut self) {
        for shard in 0..self.settings.shards {
            self.note_gone(Shard(shard));
        }
    }

    /// Notes since when the holder's own key is gone. It existed at the epoch, and a deleted key
    /// never returns: so it counts only in a view that is at least as new.
    fn note_gone(&mut self, shard: Shard) {
        let Some((holder, epoch)) = self.state(shard).holder else {
            return;
        };
        let gone = self.view.revision >= epoch.0 && !self.view.contains(holder);
        let now = self.now;
        let state = self.state(shard);
        state.gone = if gone { state.gone.or(Some(now)) } else { None };
    }

    /// Claims shards without a living holder that are this node's by rank, or by rank and a delay each.
    pub(crate) fn claims(&mut self) {
        let timing = self.settings.timing;
        self.timers
            .set(self.now + timing.claim_pause, Timer::Claims);
        let (Some(me), true) = (self.me(), self.in_time()) else {
            return;
        };
        if self.membership.leaving || self.now < self.membership.claims_from {
            return;
        }
        let candidates = self.view.candidates();
        let mut words = Words::new();
        for shard in (0..self.settings.shards).map(Shard) {
            let Some((guard, late)) = self.claimable(shard, &candidates) else {
                continue;
            };
            let ready = match guard {
                ClaimGuard::NoKey => {
                    self.now >= self.membership.registered + timing.first_claim() + late
                }
                ClaimGuard::Gone(holder, _) => self.may_claim(shard, holder, late, &mut words),
            };
            if ready {
                self.state(shard).claiming = true;
                let to = me;
                let request = EtcdRequest::Claim { shard, guard, to };
                self.ask_etcd(EtcdCall::Claim(shard, to), request);
            }
        }
        self.words = words;
    }

    /// Returns the guard for a claim of the shard, and this node's delay after the first in rank.
    fn claimable(
        &mut self,
        shard: Shard,
        candidates: &[Candidate],
    ) -> Option<(ClaimGuard, Duration)> {
        let state = self.state(shard);
        let guard = match state.holder {
            None => ClaimGuard::NoKey,
            Some((holder, epoch)) => {
                state.gone?;
                ClaimGuard::Gone(holder, epoch)
            }
        };
        if state.claiming {
            return None;
        }
        let rank = rank_of(shard_hash(shard), self.settings.node, candidates)?;
        Some((guard, self.settings.timing.next_in_rank * rank))
    }

    /// Returns whether the former holder's authority and read leases have ended: by its own word, or after the claim delay. Asks
    /// it for its word.
    fn may_claim(
        &mut self,
        shard: Shard,
        holder: Member,
        late: Duration,
        words: &mut Words,
    ) -> bool {
        let timing = self.settings.timing;
        if !self.rules.holds(Rule::ClaimDelay) {
            return true;
        }
        let gone = self.state(shard).gone.unwrap_or(self.now);
        if self.now >= gone + timing.claim_delay + late {
            return true;
        }
        if !late.is_zero() {
            return false;
        }
        if holder.node == self.settings.node {
            // Leases of this process stay in its list, so its own writes still end them.
            return self.membership.was(holder.boot) || self.is_quiet();
        }
        let known = self.words.get(&holder).copied().unwrap_or_default();
        let now = self.now;
        let word = words.entry(holder).or_insert(known);
        if word.given {
            return true;
        }
        if word
            .asked
            .is_none_or(|asked| now >= asked + timing.word_pause)
        {
            word.asked = Some(now);
            let request = PeerRequest::Released(holder.boot);
            self.send(
                holder.node,
                PeerCall::Released(holder),
                request,
                timing.word_limit,
            );
        }
        false
    }

    pub(crate) fn word(&mut self, holder: Member, given: bool) {
        if let Some(word) = self.words.get_mut(&holder) {
            word.given |= given;
        }
    }

    pub(crate) fn claimed(&mut self, shard: Shard, to: Member, reply: EtcdReply) {
        self.state(shard).claiming = false;
        match reply {
            // The registration that claimed it may be lost by now: then its key is gone as well.
            EtcdReply::Done(epoch) => self.adopt(shard, to, epoch),
            EtcdReply::Refused(Some((holder, epoch))) => self.adopt(shard, holder, epoch),
            // Claimed again with the same guard. If it was done, or will be, the next response or the view shows it.
            _ => {}
        }
    }

    /// Hands shards over that are another node's by rank: some at a time, after the members have settled, or all if the process
    /// is to end.
    pub(crate) fn rebalance(&mut self) {
        let timing = self.settings.timing;
        self.timers
            .set(self.now + Duration::from_secs(1), Timer::Rebalance);
        let leaving = self.membership.leaving;
        if !leaving && self.now < self.view.changed + timing.settle {
            return;
        }
        let mut candidates = self.view.candidates();
        if leaving {
            candidates.retain(|candidate| candidate.node != self.settings.node);
        }
        let max = if leaving {
            usize::MAX
        } else {
            timing.handovers
        };
        let mut given = 0;
        for shard in (0..self.settings.shards).map(Shard) {
            if given == max {
                break;
            }
            if self.tenure(shard).is_some() {
                let to = first(shard_hash(shard), &candidates);
                given += usize::from(to.is_some_and(|to| self.give(shard, to)));
            }
        }
    }

    /// Begins to give a shard to another node. Authority ends at once; the shard is given when the read leases have ended.
    pub(crate) fn give(&mut self, shard: Shard, to: NodeId) -> bool {
        let Some(to) = self.view.newest(to) else {
            return false;
        };
        if to.node == self.settings.node || self.tenure(shard).is_none() {
            return false;
        }
        let (now, drain) = (self.now, self.rules.holds(Rule::Drain));
        let state = self.state(shard);
        let Some((_, epoch)) = state.holder else {
            return false;
        };
        state.holding = Holding::Giving(to);
        let drained = if drain {
            state.leases_end.max(now)
        } else {
            now
        };
        self.timers.set(drained, Timer::Drained(shard, epoch));
        true
    }

    pub(crate) fn hand(&mut self, shard: Shard, epoch: Epoch) {
        let state = self.state(shard);
        let Holding::Giving(to) = state.holding else {
            return;
        };
        if state.holder.is_some_and(|(_, known)| known == epoch) {
            let request = EtcdRequest::Hand { shard, epoch, to };
            self.ask_etcd(EtcdCall::Hand(shard, epoch), request);
        }
    }

    pub(crate) fn handed(&mut self, shard: Shard, epoch: Epoch, reply: EtcdReply) {
        let state = self.state(shard);
        let Holding::Giving(to) = state.holding else {
            return;
        };
        let (holder, known) = match state.holder {
            Some((holder, known)) if known == epoch => (holder, known),
            _ => return,
        };
        match reply {
            EtcdReply::Done(epoch) => self.adopt(shard, to, epoch),
            // The other member is gone for good: an earlier transaction that is still on its way
            // fails as well.
            EtcdReply::Refused(Some(current)) if current == (holder, known) => {
                if self.me() == Some(holder) {
                    self.take(shard);
                }
            }
            EtcdReply::Refused(Some((holder, epoch))) => self.adopt(shard, holder, epoch),
            _ => {
                let again = self.now + self.settings.timing.etcd_pause;
                self.timers.set(again, Timer::Drained(shard, epoch));
            }
        }
    }

    /// The process is to end: all shards are handed over at once.
    pub(crate) fn leave(&mut self) {
        if self.membership.leaving {
            return;
        }
        self.membership.leaving = true;
        self.rebalance();
    }
}
