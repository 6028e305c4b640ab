//! A write of this node: begin at the holder, the origin, end at the holder.
//!
//! The holder is asked for by key alone, so the begin and the end of one write may be at different holders. A write of several keys
//! is one write a key here; the driver puts the requests to one holder into one message.

use std::time::Duration;

use crate::message::{Action, Believed, OpId, Outcome, PeerRequest, Token, WriteResult};
use crate::names::Key;
use crate::node::{Node, PeerCall};
use crate::revoke::{Step, Writer};
use crate::rules::Rule;
use crate::timers::Timer;

/// A write in progress.
#[derive(Debug)]
pub(crate) struct Write {
    key: Key,
    window: Duration,
    phase: Phase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Beginning,
    Sending,
    Ending,
}

impl<V: Clone> Node<V> {
    /// A write begins. If the holder does not respond within the limit, the write continues: its
    /// end decides.
    pub(crate) fn write(&mut self, op: OpId, key: Key, window: Duration) {
        let write = Write {
            key,
            window,
            phase: Phase::Beginning,
        };
        self.writes.insert(op, write);
        let limit = self.now + self.settings.timing.write_limit;
        self.timers.set(limit, Timer::BeginLimit(op));
        if !self.rules.holds(Rule::Begin) || !self.step(op, Step::Begin, true) {
            self.begun(op);
        }
    }

    /// Does a step at the holder, if there is one in this node's view.
    fn step(&mut self, op: OpId, step: Step, heeded: bool) -> bool {
        let Some(write) = self.writes.get(&op) else {
            return false;
        };
        let key = write.key.clone();
        let token = Token {
            node: self.settings.node,
            process: self.settings.process,
            op,
        };
        let shard = self.shard(&key);
        if self.tenure(shard).is_some() {
            let writer = if heeded {
                Writer::Own(op)
            } else {
                Writer::Unheeded
            };
            self.hold_step(step, writer, token, key);
            return true;
        }
        let other = |node| node != self.settings.node;
        let Some(holder) = self.holder(shard).filter(|holder| other(holder.node)) else {
            return false;
        };
        let (request, call) = match step {
            Step::Begin => (PeerRequest::Begin { token, key }, PeerCall::Begin(op)),
            Step::End => (PeerRequest::End { token, key }, PeerCall::End(op)),
        };
        let call = if heeded { call } else { PeerCall::Unheeded };
        let limit = self.settings.timing.write_limit;
        self.send(holder.node, call, request, limit);
        true
    }

    /// The begin was done, failed, or took too long.
    pub(crate) fn begun(&mut self, op: OpId) {
        let Some(write) = self.writes.get_mut(&op) else {
            return;
        };
        if write.phase == Phase::Beginning {
            write.phase = Phase::Sending;
            self.out.push(Action::WriteOrigin(op));
            let renew = self.now + self.settings.timing.renew;
            self.timers.set(renew, Timer::Renew(op));
        }
    }

    /// Begins a long write again, at the holder of now.
    pub(crate) fn renew(&mut self, op: OpId) {
        let sending = |write: &Write| write.phase == Phase::Sending;
        if self.writes.get(&op).is_some_and(sending) && self.rules.holds(Rule::Begin) {
            self.step(op, Step::Begin, false);
            let renew = self.now + self.settings.timing.renew;
            self.timers.set(renew, Timer::Renew(op));
        }
    }

    /// The origin has responded to a write. An acknowledgement waits for the end at a holder, or
    /// for the window: the larger of the windows at the begin and now.
    pub(crate) fn written(&mut self, op: OpId, result: WriteResult, believed: Believed) {
        let timing = self.settings.timing;
        let Some(write) = self.writes.get_mut(&op) else {
            return;
        };
        write.phase = Phase::Ending;
        write.window = write.window.max(believed.window);
        let window = write.window;
        if result != WriteResult::Written {
            // The origin may have it all the same. Its client gets no acknowledgement, so nothing waits.
            self.step(op, Step::End, false);
            self.writes.remove(&op);
            return self.finish(op, Outcome::WriteFailed(result));
        }
        if !self.rules.holds(Rule::End) {
            return self.acknowledge(op, false);
        }
        let wait = if window > timing.max_waited_window {
            timing.give_up
        } else if self.rules.holds(Rule::WaitOut) {
            timing.wait_out(window)
        } else {
            timing.end_pause
        };
        let deadline = (self.now + wait).max(believed.until);
        self.timers.set(deadline, Timer::EndDeadline(op));
        self.try_end(op);
    }

    pub(crate) fn try_end(&mut self, op: OpId) {
        if self.writes.contains_key(&op) && !self.step(op, Step::End, true) {
            self.end_again(op);
        }
    }

    /// A holder has ended the write, or has not: then the holder of then is asked.
    pub(crate) fn end_responded(&mut self, op: OpId, done: bool) {
        if done {
            self.acknowledge(op, false);
        } else if self.writes.contains_key(&op) {
            self.end_again(op);
        }
    }

    fn end_again(&mut self, op: OpId) {
        let again = self.now + self.settings.timing.end_pause;
        self.timers.set(again, Timer::EndRetry(op));
    }

    /// No holder has ended the write in time. If its window has passed, each version that a node uses was asked for after the origin
    /// had it.
    pub(crate) fn end_deadline(&mut self, op: OpId) {
        let max = self.settings.timing.max_waited_window;
        let Some(write) = self.writes.get(&op) else {
            return;
        };
        if write.window <= max {
            return self.acknowledge(op, true);
        }
        self.writes.remove(&op);
        self.finish(op, Outcome::SlowDown);
    }

    fn acknowledge(&mut self, op: OpId, waited: bool) {
        if self.writes.remove(&op).is_some() {
            self.finish(op, Outcome::Acknowledged { waited });
        }
    }
}
