//! Begin and end of a write at the holder: the key is forgotten, and the read leases given for it end.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use crate::limits::MAX_ENDED_WRITES;
use crate::message::{CallId, OpId, PeerRequest, PeerResponse, Token};
use crate::names::{Key, NodeId};
use crate::node::{Node, PeerCall};
use crate::rules::Rule;
use crate::shards::Tenure;
use crate::timers::Timer;

/// The writer that waits for a step of its write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writer {
    Own(OpId),
    /// Of this node; the write continues without it.
    Unheeded,
    Peer(NodeId, CallId),
}

/// A step of a write at the holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Begin,
    End,
}

/// A step in progress: it waits until no reader uses a lease for the key.
#[derive(Debug)]
pub(crate) struct Revocation {
    key: Key,
    token: Token,
    step: Step,
    writer: Writer,
    tenure: Tenure,
    /// Readers with a lease that has neither been dropped nor ended, and its end.
    waiting: Vec<(NodeId, Duration)>,
}

/// Writes of other nodes whose end was handled recently. A begin that arrives after the end, on
/// another connection, marks nothing.
#[derive(Debug, Default)]
pub(crate) struct EndedWrites {
    tokens: HashSet<Token>,
    /// In the order of their ends, each with the time at which it is forgotten.
    order: VecDeque<(Duration, Token)>,
}

impl EndedWrites {
    /// Whether an end of the write was handled recently.
    fn has(&self, token: &Token) -> bool {
        self.tokens.contains(token)
    }

    /// Number of writes that are remembered.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Remembers a write until the first that ends after `until`, or until [`MAX_ENDED_WRITES`] others have ended.
    fn note(&mut self, token: Token, now: Duration, until: Duration) {
        if !self.tokens.insert(token) {
            return;
        }
        self.order.push_back((until, token));
        while let Some((until, token)) = self.order.front().copied()
            && (until <= now || self.order.len() > MAX_ENDED_WRITES)
        {
            self.order.pop_front();
            self.tokens.remove(&token);
        }
    }
}

impl<V: Clone> Node<V> {
    pub(crate) fn begin_for(&mut self, from: NodeId, call: CallId, token: Token, key: Key) {
        // Late: its write has ended, and no other end would remove the mark.
        if self.ended_writes.has(&token) {
            return self.reply(from, call, PeerResponse::Done);
        }
        self.hold_step(Step::Begin, Writer::Peer(from, call), token, key);
    }

    pub(crate) fn end_for(&mut self, from: NodeId, call: CallId, token: Token, key: Key) {
        // A begin that is later still marks the key, for as long.
        let until = self.now + self.settings.timing.mark;
        self.ended_writes.note(token, self.now, until);
        self.hold_step(Step::End, Writer::Peer(from, call), token, key);
    }

    /// Does a step as the holder, which it may not be any more.
    ///
    /// At the begin the key is marked: it is not answered from memory, and no lease is given, until
    /// the end. At both, known versions and questions in progress are forgotten: a response on its
    /// way was made before, or may have been. An end of an unknown write does the same: its begin
    /// was at another holder, or was lost.
    pub(crate) fn hold_step(&mut self, step: Step, writer: Writer, token: Token, key: Key) {
        let Some(tenure) = self.tenure(self.shard(&key)) else {
            return self.step_done(step, writer, false);
        };
        let (now, until) = (self.now, self.now + self.settings.timing.mark);
        let entry = self.entry(&key);
        entry.forget();
        if step == Step::Begin {
            entry.marks.insert(token, until);
        }
        entry.leases.retain(|(_, end)| now <= *end);
        entry.in_use += 1;
        let waiting = entry.leases.clone();
        let id = self.next_id();
        for &(node, end) in &waiting {
            let request = PeerRequest::Drop { key: key.clone() };
            let limit = self.settings.timing.drop_limit;
            self.send(node, PeerCall::Drop(id), request, limit);
            self.timers.set(end, Timer::LeaseOver(id, node));
        }
        let revocation = Revocation {
            key,
            token,
            step,
            writer,
            tenure,
            waiting,
        };
        self.revocations.insert(id, revocation);
        self.revoked(id);
    }

    /// A reader has dropped its lease, or the lease has ended.
    pub(crate) fn lease_over(&mut self, id: u64, node: NodeId) {
        let kept = self.rules.holds(Rule::WaitedLeases);
        let Some(revocation) = self.revocations.get_mut(&id) else {
            return;
        };
        let Some(at) = revocation.waiting.iter().position(|(to, _)| *to == node) else {
            return;
        };
        let (_, waited) = revocation.waiting.swap_remove(at);
        if let Some(entry) = self.entries.get_mut(&revocation.key) {
            // One given since is another lease.
            let other = |(to, end): &(NodeId, Duration)| *to != node || *end > waited && kept;
            entry.leases.retain(other);
        }
        self.revoked(id);
    }

    /// Ends the step if no lease is left. Authority must have lasted: otherwise the next holder may have given leases since.
    fn revoked(&mut self, id: u64) {
        let left = |revocation: &Revocation| !revocation.waiting.is_empty();
        if self.revocations.get(&id).is_none_or(left) {
            return;
        }
        let Some(of) = self.revocations.remove(&id) else {
            return;
        };
        let entry = self.entry(&of.key);
        entry.in_use -= 1;
        if of.step == Step::End {
            entry.marks.remove(&of.token);
        }
        let lasted = self.tenure(self.shard(&of.key)) == Some(of.tenure);
        self.step_done(of.step, of.writer, lasted);
    }

    fn step_done(&mut self, step: Step, writer: Writer, done: bool) {
        match writer {
            Writer::Own(op) if step == Step::Begin => self.begun(op),
            Writer::Own(op) => self.end_responded(op, done),
            Writer::Unheeded => {}
            Writer::Peer(node, call) => {
                let response = if done {
                    PeerResponse::Done
                } else {
                    PeerResponse::NotMine
                };
                self.reply(node, call, response);
            }
        }
    }
}
