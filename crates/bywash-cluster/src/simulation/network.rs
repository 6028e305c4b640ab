//! Messages between nodes and to etcd: delays, cuts, limits and losses.

use std::time::Duration;

use rand::RngExt;

use super::world::{FIRST_FAULT, Happening, MS, NODES, Run, SECOND, World};
use crate::message::{Action, CallId, EtcdReply, EtcdRequest, Event, PeerRequest, ViewChange};
use crate::names::{Key, NodeId};

/// Longest delay of a message in a run without faults: two such delays are within the limit of a
/// keepalive, and of a begin with the read lease that it waits for. Longer delays are a fault: they
/// end a holder's authority for a moment, and a write that begins then reaches the origin while
/// read leases last, as during a change of the holder.
const CALM_DELAY: u64 = 300 * MS;

impl World {
    /// Sends the changes of etcd to all nodes, each in order and after a delay of its own.
    pub(super) fn watch(&mut self) {
        for change in std::mem::take(&mut self.etcd.changes) {
            for at in 0..NODES {
                self.feed(at, &change);
            }
        }
    }

    pub(super) fn feed(&mut self, at: usize, change: &(u64, ViewChange)) {
        let slow = if self.chance(10.0) {
            self.exponential(800 * MS)
        } else {
            0
        };
        let cut = self.cuts.get(&(at, NODES)).copied().unwrap_or(0);
        let late = self.plan.late_watch && at == 0 && self.now > FIRST_FAULT;
        let from = self.now.max(cut).max(self.etcd_down) + u64::from(late) * 60 * SECOND;
        let time = from + self.network() + slow;
        let machine = &mut self.machines[at];
        machine.feed = time.max(machine.feed + 1);
        let (time, run) = (machine.feed, machine.run);
        let event = Event::View(change.0, change.1.clone());
        self.at(time, Happening::Event(run, event));
    }

    pub(super) fn depart(&mut self, run: Run, action: Action<u64>) {
        if !self.is_running(run) {
            return;
        }
        let stopped = self.machines[run.at].stopped;
        if self.now < stopped {
            return self.at(stopped, Happening::Depart(run, action));
        }
        match action {
            Action::Etcd(call, request) => {
                self.etcd_calls.insert((run.at, run.number, call));
                let delay = self.network();
                self.after(delay, Happening::EtcdGets(run, call, request));
                self.after(
                    700 * MS,
                    Happening::EtcdReplies(run, call, EtcdReply::Unknown),
                );
            }
            Action::Send(to, call, request, limit) => self.send(run, to, call, request, limit),
            Action::Reply(_, CallId(wire), response) => {
                let delay = self.network();
                self.after(delay, Happening::PeerReplies(wire, run.at, response));
            }
            Action::AskOrigin(question, key) => {
                self.counts.questions += 1;
                let key = self.index(&key);
                let delay = self.origin_delay(3.0, &[3 * MS, 8 * MS, 20 * MS]);
                self.after(delay, Happening::OriginReads(run, question, key));
            }
            Action::WriteOrigin(op) => {
                let Some(operation) = self.machines[run.at].operations.get(&op) else {
                    return;
                };
                let key = operation.key;
                let delay = self.origin_delay(5.0, &[5 * MS, 20 * MS, 60 * MS]);
                self.after(delay, Happening::OriginCommits(Some((run, op)), key));
            }
            Action::Finish(op, outcome) => self.finish(run, op, outcome),
        }
    }

    pub(super) fn index(&self, key: &Key) -> usize {
        self.keys.iter().position(|known| known == key).unwrap()
    }

    pub(super) fn send(
        &mut self,
        run: Run,
        to: NodeId,
        call: CallId,
        request: PeerRequest,
        limit: Duration,
    ) {
        self.ids += 1;
        let (wire, to) = (self.ids, to.0 as usize - 1);
        self.calls.insert(wire, (run, call, to));
        let delay = self.network();
        if matches!(request, PeerRequest::Open { .. }) {
            let patience = self.plan.timing.patience.as_micros() as u64;
            self.after(patience, Happening::Frame(wire, to));
        }
        self.after(delay, Happening::PeerGets(run, to, wire, request));
        let limit = limit.as_micros() as u64;
        self.after(limit, Happening::PeerLimit(wire));
    }

    /// Looks whether the holder sends frames. A node that is reached and runs does, but for some that are lost.
    pub(super) fn frame(&mut self, wire: u64, to: usize) {
        let Some(&(run, call, _)) = self.calls.get(&wire) else {
            return;
        };
        let machine = &self.machines[to];
        let alive = machine.node.is_some() && self.now >= machine.stopped;
        let lost = self.lost.contains(&wire) || self.chance(5.0);
        if !alive || !self.linked(run.at, to) || lost {
            self.deliver(run, Event::Silent(call));
        } else {
            self.after(50 * MS, Happening::Frame(wire, to));
        }
    }

    pub(super) fn peer_gets(&mut self, from: Run, to: usize, wire: u64, request: PeerRequest) {
        let hears = self.now >= self.machines[to].deaf && self.machines[to].node.is_some();
        if self.linked(from.at, to) && hears {
            let node = NodeId(from.at as u64 + 1);
            let event = Event::Request(node, CallId(wire), request);
            self.deliver(self.machines[to].run, event);
        } else {
            self.lose(wire);
        }
    }

    /// Notes that a message of a request to another node is lost.
    pub(super) fn lose(&mut self, wire: u64) {
        self.lost.insert(wire);
        self.counts.lost += 1;
    }

    pub(super) fn etcd_gets(&mut self, run: Run, call: CallId, request: EtcdRequest) {
        if !self.linked(run.at, NODES) || self.now < self.etcd_down {
            return;
        }
        let honest = self.plan.calm || self.plan.slow_etcd;
        let lie = !honest && self.chance(self.plan.lies);
        self.counts.lies += u64::from(lie && matches!(request, EtcdRequest::Keepalive(_)));
        let from = NodeId(run.at as u64 + 1);
        let reply = self.etcd.request(from, request, self.now, lie);
        if matches!(
            (request, reply),
            (EtcdRequest::Claim { .. }, EtcdReply::Done(_))
        ) {
            self.counts.claims += 1;
        }
        if matches!(
            (request, reply),
            (EtcdRequest::Claim { .. }, EtcdReply::Refused(_))
        ) {
            self.counts.refused += 1;
        }
        self.watch();
        let delay = match request {
            EtcdRequest::Keepalive(_) if self.plan.slow_etcd => {
                self.rng.random_range(300 * MS..690 * MS)
            }
            _ => self.network(),
        };
        self.after(delay, Happening::EtcdReplies(run, call, reply));
    }

    pub(super) fn network(&mut self) -> u64 {
        if self.chance(3.0) {
            let delay = self.exponential(300 * MS);
            match self.plan.calm {
                true => delay.min(CALM_DELAY),
                false => delay,
            }
        } else {
            self.pick(&[200, 500, MS, MS, 3 * MS])
        }
    }
}
