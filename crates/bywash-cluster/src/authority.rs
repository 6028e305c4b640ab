//! A holder's knowledge of the keys of its shards, and the read leases it gives.
//!
//! A version is known by the time at which the origin was *asked* for it. It is believed for the bucket's window from then on, in
//! the tenure in which it was asked, and until the next write begins or ends.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::direct::{Purpose, Question};
use crate::message::{Action, CallId, OpId, Outcome, PeerResponse, QuestionId, Source, Token};
use crate::names::{Key, KeyParts, NodeId, Shard};
use crate::node::Node;
use crate::placement::shard_of_parts;
use crate::rules::Rule;
use crate::shards::Tenure;
use crate::timers::Timer;

/// State of a key at its holder. It stays while it is in use: see [`Node::sweep`].
#[derive(Debug)]
pub(crate) struct Entry<V> {
    known: Option<Known<V>>,
    /// Begins and ends of writes since the entry was made.
    pub(crate) writes: u64,
    /// Writes in progress, each with the time at which it is given up.
    pub(crate) marks: BTreeMap<Token, Duration>,
    /// Read leases given, with their ends.
    pub(crate) leases: Vec<(NodeId, Duration)>,
    /// The newest question to the origin.
    question: Option<QuestionId>,
    /// Questions and revocations in progress, which count on [`Self::writes`].
    pub(crate) in_use: usize,
    /// Number of the entry; its timer has a copy.
    serial: u64,
}

#[derive(Debug)]
struct Known<V> {
    version: V,
    asked: Duration,
    window: Duration,
    tenure: Tenure,
}

impl<V> Entry<V> {
    fn new(serial: u64) -> Self {
        Self {
            serial,
            known: None,
            writes: 0,
            marks: BTreeMap::new(),
            leases: Vec::new(),
            question: None,
            in_use: 0,
        }
    }

    /// A write begins or ends, or the bucket is detached: nothing known or asked before is believed.
    pub(crate) fn forget(&mut self) {
        self.known = None;
        self.writes += 1;
    }

    fn is_used(&self) -> bool {
        self.in_use > 0 || self.known.is_some() || !self.leases.is_empty() || !self.marks.is_empty()
    }

    fn is_marked(&self, now: Duration) -> bool {
        self.marks.values().any(|until| now < *until)
    }

    /// Known version, if it was asked for within `window` and in this tenure.
    fn fresh(&self, now: Duration, window: Duration, tenure: Tenure) -> Option<&Known<V>> {
        let known = self.known.as_ref()?;
        (known.tenure == tenure && now.saturating_sub(known.asked) <= window).then_some(known)
    }
}

/// A reader that waits for a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asker {
    /// A read of this node.
    Own(OpId),
    /// A request of another node.
    Peer(NodeId, CallId),
}

/// A question of a holder to the origin, and its askers.
#[derive(Debug)]
pub(crate) struct HolderQuestion {
    writes: u64,
    tenure: Tenure,
    window: Duration,
    askers: Vec<Asker>,
}

/// Time between looks whether an entry is still in use. Longer than a read lease, so that most are found unused at the first look.
const SWEEP: Duration = Duration::from_secs(2);

impl<V: Clone> Node<V> {
    /// Version that a read of `key` would return at `now` without a question to any other, and its
    /// source: a read lease, or this node's knowledge as the holder. Changes nothing, so it decides
    /// by the same rules as [`crate::Event::Read`] and may be called for each read.
    #[must_use]
    pub fn current(&self, now: Duration, key: &Key, window: Duration) -> Option<(V, Source)> {
        if let Some(version) = self.leases.get(key, self.now.max(now)) {
            return Some((version, Source::Lease));
        }
        let version = self.known(now, key, window)?;
        Some((version, Source::Holder))
    }

    /// As [`Self::current`], only by this node's knowledge as the holder.
    pub(crate) fn known(&self, now: Duration, key: &dyn KeyParts, window: Duration) -> Option<V> {
        let now = self.now.max(now);
        let shard = shard_of_parts(key, self.settings.shards);
        let tenure = self.tenure_at(now, shard)?;
        let entry = self
            .entries
            .get(key)
            .filter(|entry| !entry.is_marked(now))?;
        let known = entry.fresh(now, window, tenure)?;
        Some(known.version.clone())
    }

    /// Returns the entry of `key`, created if it is missing.
    pub(crate) fn entry(&mut self, key: &Key) -> &mut Entry<V> {
        if !self.entries.contains_key(key) {
            self.ids += 1;
            let timer = Timer::Sweep(key.clone(), self.ids);
            self.timers.set(self.now + SWEEP, timer);
        }
        let serial = self.ids;
        let entry = self.entries.entry(key.clone());
        entry.or_insert_with(|| Entry::new(serial))
    }

    /// Returns whether an entry of `key` may be made for a reader: within the maximum, or in place of the oldest known version.
    fn has_room(&mut self, key: &Key) -> bool {
        /// Maximum number of old entries to examine. Entries with another use end within seconds.
        const LOOKS: usize = 8;
        if self.entries.contains_key(key) || self.entries.len() < self.settings.max_objects {
            return true;
        }
        for _ in 0..LOOKS {
            let Some(oldest) = self.known.pop_front() else {
                return false;
            };
            let Some(entry) = self.entries.get_mut(&oldest) else {
                continue;
            };
            entry.known = None;
            if !entry.is_used() {
                self.entries.remove(&oldest);
                return true;
            }
        }
        false
    }

    /// Answers a reader with the current version: the known one, or the origin's. The node has authority in `tenure`.
    ///
    /// A reader joins a question that was asked after the last write and within the window: its response is as good as a known
    /// version. So the origin gets one question a window from the whole cluster, or one more while it takes longer than that.
    pub(crate) fn answer_as_holder(
        &mut self,
        asker: Asker,
        key: &Key,
        window: Duration,
        tenure: Tenure,
    ) {
        let now = self.now;
        if !self.has_room(key) {
            return self.answer(asker, key, None);
        }
        let entry = self.entry(key);
        if entry.is_marked(now) {
            return self.answer(asker, key, None);
        }
        if let Some(known) = entry.fresh(now, window, tenure) {
            let (version, asked) = (known.version.clone(), known.asked);
            return self.answer(asker, key, Some((version, asked, window)));
        }
        let (newest, writes) = (entry.question, entry.writes);
        let any_age = !self.rules.holds(Rule::JoinWindow);
        if let Some(question) = newest.and_then(|id| self.questions.get_mut(&id))
            && let Purpose::Holder(of) = &mut question.purpose
            && of.tenure == tenure
            && of.writes == writes
            && (now.saturating_sub(question.sent) <= window || any_age)
        {
            return of.askers.push(asker);
        }
        let id = QuestionId(self.next_id());
        let purpose = Purpose::Holder(HolderQuestion {
            writes,
            tenure,
            window,
            askers: vec![asker],
        });
        let entry = self.entry(key);
        entry.question = Some(id);
        entry.in_use += 1;
        let question = Question {
            key: key.clone(),
            sent: now,
            purpose,
        };
        self.questions.insert(id, question);
        self.out.push(Action::AskOrigin(id, key.clone()));
    }

    /// The origin has responded to a holder's question. The version is recorded and given only if authority lasted and no write
    /// came since it was asked for; otherwise its readers ask the origin themselves.
    pub(crate) fn holder_answered(
        &mut self,
        id: QuestionId,
        key: &Key,
        sent: Duration,
        question: HolderQuestion,
        version: Option<V>,
    ) {
        let (now, shard) = (self.now, self.shard(key));
        let since = self.rules.holds(Rule::WriteSince);
        let tenure = self.tenure(shard);
        let entry = self.entry(key);
        entry.in_use -= 1;
        if entry.question == Some(id) {
            entry.question = None;
        }
        let valid = tenure == Some(question.tenure)
            && (entry.writes == question.writes && !entry.is_marked(now) || !since);
        let found = version.filter(|_| valid);
        let mut found = found.map(|version| (version, sent, question.window));
        if let Some((version, ..)) = &found {
            let newer = |known: &&Known<V>| known.tenure == question.tenure && known.asked > sent;
            if let Some(known) = entry.known.as_ref().filter(newer) {
                // A response to an older question came later.
                found = Some((known.version.clone(), known.asked, question.window));
            } else {
                let known = Known {
                    version: version.clone(),
                    asked: sent,
                    window: question.window,
                    tenure: question.tenure,
                };
                let first = entry.known.replace(known).is_none();
                self.note_known(key, first);
            }
        }
        for asker in question.askers {
            self.answer(asker, key, found.clone());
        }
    }

    /// Queues a key whose version has become known. A key may be queued twice: then it counts as old too early.
    fn note_known(&mut self, key: &Key, first: bool) {
        if !first {
            return;
        }
        self.known.push_back(key.clone());
        while self.known.len() > self.settings.max_objects {
            let oldest = self.known.pop_front();
            if let Some(entry) = oldest.and_then(|oldest| self.entries.get_mut(&oldest)) {
                entry.known = None;
            }
        }
    }

    /// Answers a reader: with a version, the time at which it was asked for and the window, or that it is to ask the origin.
    fn answer(&mut self, asker: Asker, key: &Key, found: Option<(V, Duration, Duration)>) {
        match (asker, found) {
            (Asker::Own(op), Some((version, ..))) => {
                self.finish_read(op, Outcome::Version(version, Source::Holder));
            }
            (Asker::Own(op), None) => self.read_directly(op),
            (Asker::Peer(node, call), Some((version, asked, window))) => {
                let lease = self.lend(node, key, asked, window);
                self.reply(node, call, PeerResponse::Version { version, lease });
            }
            (Asker::Peer(node, call), None) => self.reply(node, call, PeerResponse::AskOrigin),
        }
    }

    /// Gives a read lease, and returns its duration. It ends a window after the version was asked for, so that a change behind the
    /// cluster's back is seen by then at all nodes. This node counts it longer than the reader does.
    fn lend(&mut self, node: NodeId, key: &Key, asked: Duration, window: Duration) -> Duration {
        let timing = self.settings.timing;
        let age = if self.rules.holds(Rule::LeaseAge) {
            self.now.saturating_sub(asked)
        } else {
            Duration::ZERO
        };
        let lease = window.saturating_sub(age).min(timing.read_lease);
        if lease.is_zero() {
            return lease;
        }
        let counted = if self.rules.holds(Rule::LeaseMargin) {
            timing.longer(lease)
        } else {
            lease
        };
        let until = self.now + counted;
        let shard = self.shard(key);
        let entry = self.entry(key);
        match entry.leases.iter_mut().find(|(to, _)| *to == node) {
            Some((_, end)) => *end = until.max(*end),
            None => entry.leases.push((node, until)),
        }
        let state = &mut self.shards[usize::from(shard.0)];
        state.leases_end = state.leases_end.max(until);
        self.membership.leases_end = self.membership.leases_end.max(until);
        lease
    }

    /// Another node asks for a version.
    pub(crate) fn opened(&mut self, from: NodeId, call: CallId, key: Key, window: Duration) {
        match self.tenure(self.shard(&key)) {
            Some(tenure) => {
                self.answer_as_holder(Asker::Peer(from, call), &key, window, tenure);
            }
            None => self.reply(from, call, PeerResponse::NotMine),
        }
    }

    /// Forgets the known versions of the objects of a bucket, here and by read leases, and the
    /// questions in progress. Scans all entries of the node.
    pub(crate) fn forget_bucket(&mut self, bucket: &str) {
        self.leases.drop_bucket(bucket);
        let entries = self.entries.iter_mut();
        for (_, entry) in entries.filter(|(key, _)| *key.bucket == *bucket) {
            entry.forget();
        }
    }

    /// Removes expired parts of an entry, and the entry once it is unused. Each entry has one
    /// timer.
    pub(crate) fn sweep(&mut self, key: Key, serial: u64) {
        let now = self.now;
        let Some(entry) = self.entries.get_mut(&key).filter(|of| of.serial == serial) else {
            return;
        };
        entry.leases.retain(|(_, end)| now < *end);
        entry.marks.retain(|_, until| now < *until);
        entry
            .known
            .take_if(|known| now.saturating_sub(known.asked) > known.window);
        if entry.is_used() {
            self.timers.set(now + SWEEP, Timer::Sweep(key, serial));
        } else {
            self.entries.remove(&key);
        }
    }

    /// Forgets the read leases given for keys of a shard; only without [`Rule::LeasesKept`].
    pub(crate) fn forget_leases(&mut self, shard: Shard) {
        let shards = self.settings.shards;
        let of = |key: &Key| crate::placement::shard_of(key, shards) == shard;
        for (_, entry) in self.entries.iter_mut().filter(|(key, _)| of(key)) {
            entry.leases.clear();
        }
    }
}
