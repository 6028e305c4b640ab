//! The state machine of one node.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::mem;
use std::time::Duration;

use crate::authority::Entry;
use crate::direct::{Direct, Question};
use crate::leases::ReadLeases;
use crate::membership::Membership;
use crate::message::{
    Action, CallId, EtcdReply, Event, OpId, Outcome, PeerRequest, PeerResponse, QuestionId,
    ViewChange,
};
use crate::names::{Boot, Epoch, Key, Member, NodeId, Shard};
use crate::placement::{SHARDS, shard_of};
use crate::read::{Read, Suspects};
use crate::revoke::{EndedWrites, Revocation};
use crate::rules::Rules;
use crate::shards::{ShardState, Words};
use crate::timers::{Timer, Timers};
use crate::timing::Timing;
use crate::view::View;
use crate::write::Write;

/// Settings of a node.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The node.
    pub node: NodeId,
    /// Random number of this process.
    pub process: u64,
    /// Shards of the cluster, [`SHARDS`] outside tests.
    pub shards: u16,
    /// Durations.
    pub timing: Timing,
    /// Maximum number of objects that the node keeps state of as their holder, not counting objects
    /// being written, and maximum number of read leases that it has of others. The caller has
    /// charged their memory. Beyond it, readers are sent to the origin, and versions of other
    /// holders are used for one read without a lease.
    pub max_objects: usize,
}

impl Settings {
    /// Settings of the product for a node.
    #[must_use]
    pub fn new(node: NodeId, process: u64, max_objects: usize) -> Self {
        Self {
            node,
            process,
            shards: SHARDS,
            timing: Timing::DEFAULT,
            max_objects,
        }
    }
}

/// A request to etcd in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EtcdCall {
    Register { sent: Duration },
    Keepalive { boot: Boot, sent: Duration },
    Revoke(Member),
    Hand(Shard, Epoch),
    Claim(Shard, Member),
}

/// A request to another node in progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PeerCall {
    Open {
        op: OpId,
        key: Key,
        sent: Duration,
    },
    Begin(OpId),
    End(OpId),
    /// Of a write that has ended, or continues without it.
    Unheeded,
    Drop(u64),
    Released(Member),
}

/// One node's part in the protocol. `V` is a version of an object, or its absence.
///
/// Not to be kept across a restart: a node that starts knows nothing but its [`NodeId`].
#[derive(Debug)]
pub struct Node<V> {
    pub(crate) settings: Settings,
    pub(crate) rules: Rules,
    pub(crate) started: Duration,
    /// Time of the event that is handled.
    pub(crate) now: Duration,
    pub(crate) out: Vec<Action<V>>,
    pub(crate) timers: Timers,
    pub(crate) membership: Membership,
    pub(crate) view: View,
    pub(crate) shards: Vec<ShardState>,
    pub(crate) words: Words,
    pub(crate) entries: HashMap<Key, Entry<V>>,
    /// Keys with a known version, oldest first; some have none any more.
    pub(crate) known: VecDeque<Key>,
    pub(crate) leases: ReadLeases<V>,
    pub(crate) reads: HashMap<OpId, Read>,
    pub(crate) writes: HashMap<OpId, Write>,
    pub(crate) direct: HashMap<Key, Direct>,
    pub(crate) questions: HashMap<QuestionId, Question>,
    pub(crate) revocations: BTreeMap<u64, Revocation>,
    pub(crate) ended_writes: EndedWrites,
    pub(crate) calls: HashMap<CallId, (NodeId, PeerCall)>,
    pub(crate) etcd_calls: BTreeMap<CallId, EtcdCall>,
    pub(crate) suspects: Suspects,
    pub(crate) ids: u64,
}

/// State of a node for its operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The registration, if there is one.
    pub member: Option<Member>,
    /// Members in the node's view.
    pub members: usize,
    /// Shards that the node holds.
    pub shards: usize,
    /// Time until authority ends without another keepalive.
    pub authority_left: Duration,
    /// Objects that the node keeps state of as their holder.
    pub objects: usize,
}

impl<V: Clone> Node<V> {
    /// A node that starts at `now`. Its first timer is due at once.
    #[must_use]
    pub fn new(settings: Settings, now: Duration) -> Self {
        Self::with_rules(settings, now, Rules::of_process())
    }

    pub(crate) fn with_rules(settings: Settings, now: Duration, rules: Rules) -> Self {
        let mut timers = Timers::default();
        timers.set(now, Timer::Register);
        timers.set(now + settings.timing.claim_pause, Timer::Claims);
        timers.set(now + settings.timing.settle, Timer::Rebalance);
        let shards = (0..settings.shards).map(|_| ShardState::default());
        Self {
            shards: shards.collect(),
            leases: ReadLeases::new(settings.max_objects),
            settings,
            rules,
            started: now,
            now,
            out: Vec::new(),
            timers,
            membership: Membership::default(),
            view: View::default(),
            words: Words::default(),
            entries: HashMap::new(),
            known: VecDeque::new(),
            reads: HashMap::new(),
            writes: HashMap::new(),
            direct: HashMap::new(),
            questions: HashMap::new(),
            revocations: BTreeMap::new(),
            ended_writes: EndedWrites::default(),
            calls: HashMap::new(),
            etcd_calls: BTreeMap::new(),
            suspects: Suspects::default(),
            ids: 0,
        }
    }

    /// Returns when [`Event::Tick`] is due.
    #[must_use]
    pub fn next_timer(&self) -> Option<Duration> {
        self.timers.next()
    }

    /// Handles an event at `now`, the time of a clock that runs while the process is stopped and the machine sleeps. The clock is
    /// read after the event came in. Timers that are due come first.
    pub fn handle(&mut self, now: Duration, event: Event<V>) -> Vec<Action<V>> {
        self.now = self.now.max(now);
        while let Some(timer) = self.timers.pop(self.now) {
            self.due(timer);
        }
        match event {
            Event::Tick => {}
            Event::Etcd(call, reply) => self.etcd_replied(call, reply),
            Event::View(revision, change) => self.viewed(revision, change),
            Event::ClusterChanged => self.cluster_changed(),
            Event::Read(op, key, window) => self.read(op, key, window),
            Event::Write(op, key, window) => self.write(op, key, window),
            Event::Version(question, version) => self.answered(question, version),
            Event::Written(op, result, believed) => self.written(op, result, believed),
            Event::Request(from, call, request) => self.requested(from, call, request),
            Event::Response(call, response) => {
                self.note_message(call, response.is_some());
                self.responded(call, response);
            }
            Event::Further(call, response) => self.responded(call, response),
            Event::Silent(call) => self.silent(call),
            Event::Forget(bucket) => self.forget_bucket(&bucket),
            Event::Leave => self.leave(),
        }
        mem::take(&mut self.out)
    }

    /// State of the node, as of the last event.
    #[must_use]
    pub fn status(&self) -> Status {
        let held = |shard: &u16| self.tenure(Shard(*shard)).is_some();
        Status {
            member: self.me(),
            members: self.view.len(),
            shards: (0..self.settings.shards).filter(held).count(),
            authority_left: self.membership.until.saturating_sub(self.now),
            objects: self.entries.len(),
        }
    }

    fn due(&mut self, timer: Timer) {
        match timer {
            Timer::Register => self.register(),
            Timer::Keepalive(boot) => self.keep_alive(boot),
            Timer::Claims => self.claims(),
            Timer::Rebalance => self.rebalance(),
            Timer::Drained(shard, epoch) => self.hand(shard, epoch),
            Timer::Sweep(key, serial) => self.sweep(key, serial),
            Timer::LeaseOver(revocation, node) => self.lease_over(revocation, node),
            Timer::AskNext(key) => self.ask_next(&key),
            Timer::BeginLimit(op) => self.begun(op),
            Timer::Renew(op) => self.renew(op),
            Timer::EndRetry(op) => self.try_end(op),
            Timer::EndDeadline(op) => self.end_deadline(op),
            Timer::LeaseSweep(key) => self.sweep_lease(key),
        }
    }

    fn etcd_replied(&mut self, call: CallId, reply: EtcdReply) {
        match self.etcd_calls.remove(&call) {
            Some(EtcdCall::Register { sent }) => self.registered(sent, reply),
            Some(EtcdCall::Keepalive { boot, sent }) => self.kept_alive(boot, sent, reply),
            Some(EtcdCall::Hand(shard, epoch)) => self.handed(shard, epoch, reply),
            Some(EtcdCall::Claim(shard, to)) => self.claimed(shard, to, reply),
            Some(EtcdCall::Revoke(_)) | None => {}
        }
    }

    fn viewed(&mut self, revision: u64, change: ViewChange) {
        // A resumed watch may repeat changes that a list had shown.
        if revision < self.view.revision {
            return;
        }
        let me = self.me();
        let was_seen = me.is_some_and(|me| self.view.contains(me));
        self.view.revision = revision;
        match change {
            ViewChange::Listed { members, shards } => {
                self.view.list(&members, self.now);
                for (shard, holder, epoch) in shards {
                    self.adopt(shard, holder, epoch);
                }
                self.note_all_gone();
            }
            ViewChange::Up(member, weight, up) => self.view.up(member, weight, up, self.now),
            ViewChange::Down(member) => {
                self.view.down(member, self.now);
                self.note_all_gone();
            }
            ViewChange::Shard(shard, holder, epoch) => self.adopt(shard, holder, epoch),
        }
        if was_seen && me.is_some_and(|me| !self.view.contains(me)) {
            self.lose_membership();
        }
        self.revoke_others();
    }

    /// Discards everything that the former etcd showed. The node registers again. It claims nothing
    /// for a while, not even shards that the new etcd has as its own: another node may have held
    /// them at the former one, and may have authority still.
    fn cluster_changed(&mut self) {
        // Requests in progress at the former etcd are ignored.
        self.etcd_calls.clear();
        self.lose_membership();
        self.view = View::default();
        self.view.changed = self.now;
        self.words = Words::default();
        self.forget_shards();
        self.membership.claims_from = self.now + self.settings.timing.claim_delay;
        self.register();
    }

    fn requested(&mut self, from: NodeId, call: CallId, request: PeerRequest) {
        match request {
            PeerRequest::Open { key, window } => self.opened(from, call, key, window),
            PeerRequest::Begin { token, key } => self.begin_for(from, call, token, key),
            PeerRequest::End { token, key } => self.end_for(from, call, token, key),
            PeerRequest::Drop { key } => {
                self.leases.drop_key(&key);
                self.reply(from, call, PeerResponse::Dropped);
            }
            PeerRequest::Released(boot) => {
                let released = self.released(boot);
                self.reply(from, call, PeerResponse::Released(released));
            }
        }
    }

    fn note_message(&mut self, call: CallId, done: bool) {
        if let Some((node, _)) = self.calls.get(&call) {
            self.suspects
                .note(*node, done, self.now, &self.settings.timing);
        }
    }

    fn responded(&mut self, call: CallId, response: Option<PeerResponse<V>>) {
        let Some((node, of)) = self.calls.remove(&call) else {
            return;
        };
        match of {
            PeerCall::Open { op, key, sent } => self.open_done(call, op, &key, sent, response),
            PeerCall::Begin(op) => self.begun(op),
            PeerCall::End(op) => {
                self.end_responded(op, matches!(response, Some(PeerResponse::Done)))
            }
            PeerCall::Unheeded => {}
            PeerCall::Drop(revocation) => {
                if matches!(response, Some(PeerResponse::Dropped)) {
                    self.lease_over(revocation, node);
                }
            }
            PeerCall::Released(member) => {
                self.word(
                    member,
                    matches!(response, Some(PeerResponse::Released(true))),
                );
            }
        }
    }

    pub(crate) fn shard(&self, key: &Key) -> Shard {
        shard_of(key, self.settings.shards)
    }

    pub(crate) fn next_id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }

    pub(crate) fn next_call(&mut self) -> CallId {
        CallId(self.next_id())
    }

    pub(crate) fn send(
        &mut self,
        to: NodeId,
        of: PeerCall,
        request: PeerRequest,
        limit: Duration,
    ) -> CallId {
        let call = self.next_call();
        self.calls.insert(call, (to, of));
        self.out.push(Action::Send(to, call, request, limit));
        call
    }

    pub(crate) fn reply(&mut self, to: NodeId, call: CallId, response: PeerResponse<V>) {
        self.out.push(Action::Reply(to, call, response));
    }

    pub(crate) fn finish(&mut self, op: OpId, outcome: Outcome<V>) {
        self.out.push(Action::Finish(op, outcome));
    }
}

#[cfg(test)]
mod tests;
