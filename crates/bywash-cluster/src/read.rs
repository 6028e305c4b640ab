//! A read of this node, up to the version that it returns.

use std::collections::HashMap;
use std::time::Duration;

use crate::authority::Asker;
use crate::message::{CallId, OpId, Outcome, PeerRequest, PeerResponse, Source};
use crate::names::{Key, NodeId};
use crate::node::{Node, PeerCall};
use crate::rules::Rule;
use crate::timing::Timing;

/// A read in progress.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) key: Key,
    /// The origin was asked without authority.
    pub(crate) direct: bool,
}

/// Nodes that did not respond.
#[derive(Debug, Clone, Default)]
pub(crate) struct Suspects(HashMap<NodeId, (u32, Duration)>);

impl Suspects {
    /// Notes a response of `node`, or that there was none.
    pub(crate) fn note(&mut self, node: NodeId, responded: bool, now: Duration, timing: &Timing) {
        if responded {
            self.0.remove(&node);
            return;
        }
        let (failures, until) = self.0.entry(node).or_default();
        *failures += 1;
        if *failures >= timing.suspect_after {
            *until = now + timing.suspect;
        }
    }

    /// Whether `node` is to be passed by.
    pub(crate) fn has(&self, node: NodeId, now: Duration) -> bool {
        self.0.get(&node).is_some_and(|(_, until)| now < *until)
    }
}

impl<V: Clone> Node<V> {
    /// A read begins: by a lease, as the holder, by the holder, else from the origin.
    pub(crate) fn read(&mut self, op: OpId, key: Key, window: Duration) {
        if let Some(version) = self.leases.get(&key, self.now) {
            return self.finish(op, Outcome::Version(version, Source::Lease));
        }
        let shard = self.shard(&key);
        let read = Read {
            key: key.clone(),
            direct: false,
        };
        self.reads.insert(op, read);
        if window.is_zero() {
            // Nothing that is known is believed. A holder would ask for each read, and questions without authority are shared.
            return self.read_directly(op);
        }
        if let Some(tenure) = self.tenure(shard) {
            return self.answer_as_holder(Asker::Own(op), &key, window, tenure);
        }
        let holder = self.holder(shard).filter(|holder| {
            holder.node != self.settings.node && !self.suspects.has(holder.node, self.now)
        });
        let Some(holder) = holder else {
            return self.read_directly(op);
        };
        let request = PeerRequest::Open {
            key: key.clone(),
            window,
        };
        let limit = self.settings.timing.open_limit;
        let of = PeerCall::Open {
            op,
            key: key.clone(),
            sent: self.now,
        };
        let call = self.send(holder.node, of, request, limit);
        self.leases.asked(&key, call);
    }

    /// The holder is silent. Its response may still come: the first one counts.
    pub(crate) fn silent(&mut self, call: CallId) {
        if let Some((node, PeerCall::Open { op, .. })) = self.calls.get(&call) {
            let (node, op) = (*node, *op);
            let timing = self.settings.timing;
            self.suspects.note(node, false, self.now, &timing);
            self.read_directly(op);
        }
    }

    /// The holder has responded to a read. However late, its version serves this read. A lease counts from the sending, and not
    /// at all if the key was dropped since.
    pub(crate) fn open_done(
        &mut self,
        call: CallId,
        op: OpId,
        key: &Key,
        sent: Duration,
        response: Option<PeerResponse<V>>,
    ) {
        let dropped = self.leases.ended(key, call) && self.rules.holds(Rule::LeaseDropped);
        let Some(PeerResponse::Version { version, lease }) = response else {
            return self.read_directly(op);
        };
        // A holder with another maximum, or a damaged response, gives no more than this node would.
        let lease = lease.min(self.settings.timing.read_lease);
        let lease = if self.rules.holds(Rule::LeaseMargin) {
            self.settings.timing.shorter(lease)
        } else {
            lease
        };
        let from = if self.rules.holds(Rule::LeaseFromSending) {
            sent
        } else {
            self.now
        };
        if !dropped && !lease.is_zero() {
            self.keep_lease(key, version.clone(), from + lease);
        }
        self.finish_read(op, Outcome::Version(version, Source::Peer));
    }

    /// Ends a read, unless it has ended.
    pub(crate) fn finish_read(&mut self, op: OpId, outcome: Outcome<V>) {
        if self.reads.remove(&op).is_some() {
            self.finish(op, outcome);
        }
    }
}
