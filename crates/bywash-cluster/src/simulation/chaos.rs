//! Faults: stops, kills, cuts, islands, etcd away, leases that end early, shards handed over, changes by others.

use rand::RngExt;

use super::world::{Happening, MS, NODES, SECOND, World};
use crate::names::NodeId;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fault {
    Stop,
    CutNodes,
    CutEtcd,
    Restart,
    Revoke,
    /// All leases end early, while one node has no etcd, and requests to it get no response.
    RevokeAll,
    EtcdAway,
    ChangeByOthers,
    Island,
    HandOver,
}

impl Fault {
    /// All that a run draws, if its plan has not its own.
    pub(super) const DRAWN: [Self; 9] = [
        Self::Stop,
        Self::CutNodes,
        Self::CutEtcd,
        Self::Restart,
        Self::Revoke,
        Self::EtcdAway,
        Self::ChangeByOthers,
        Self::Island,
        Self::HandOver,
    ];
}

/// As often as they are drawn.
const WEIGHTED: [Fault; 15] = [
    Fault::Stop,
    Fault::Stop,
    Fault::CutNodes,
    Fault::CutEtcd,
    Fault::Restart,
    Fault::Revoke,
    Fault::EtcdAway,
    Fault::ChangeByOthers,
    Fault::ChangeByOthers,
    Fault::ChangeByOthers,
    Fault::Island,
    Fault::Island,
    Fault::Island,
    Fault::HandOver,
    Fault::HandOver,
];

impl World {
    pub(super) fn chaos(&mut self) {
        if self.plan.calm || self.now > self.plan.end {
            return;
        }
        let next = self.exponential(self.plan.faults);
        self.after(next, Happening::Chaos);
        let at = self.rng.random_range(0..NODES);
        let kinds = match self.plan.only {
            [] => &WEIGHTED[..],
            only => only,
        };
        let drawn = self.rng.random_range(0..kinds.len() as i32);
        let kind = kinds[drawn as usize];
        *self.counts.faults.entry(kind).or_default() += 1;
        match kind {
            Fault::Stop => {
                let time = self.pick(&[300, 1500, 4000, 7000, 12_000]) * MS * 13 / 10;
                let time = self.rng.random_range(0..time);
                self.after(0, Happening::Stop(at, time));
            }
            Fault::CutNodes => self.cut(at, (at + 1) % NODES),
            Fault::CutEtcd => self.cut(at, NODES),
            Fault::Restart => self.kill_and_start(at),
            Fault::Revoke => self.revoke(at),
            Fault::RevokeAll => {
                let until = self.now + 4 * SECOND;
                self.cuts.insert((at, NODES), until);
                self.machines[at].deaf = until;
                (0..NODES).for_each(|at| self.revoke(at));
            }
            Fault::EtcdAway => {
                let time = self.pick(&[500, 4000, 9000]) * MS;
                self.etcd_down = self.now + time;
                self.etcd.extend_all(self.etcd_down + 5 * SECOND);
            }
            Fault::ChangeByOthers => {
                let key = self.rng.random_range(0..self.keys.len());
                self.after(0, Happening::OriginCommits(None, key));
            }
            Fault::Island => self.island(),
            Fault::HandOver => self.hand_over(),
        }
    }

    fn cut(&mut self, a: usize, b: usize) {
        let time = self.pick(&[500, 3000, 9000]) * MS;
        self.cuts.insert((a, b), self.now + time);
    }

    fn kill_and_start(&mut self, at: usize) {
        if self.machines[at].node.is_none() {
            return;
        }
        self.kill(at);
        let time = self.pick(&[200, 3000, 8000]) * MS;
        self.after(time, Happening::Start(at));
    }

    fn revoke(&mut self, at: usize) {
        let node = NodeId(at as u64 + 1);
        let members: Vec<_> = self.etcd.members().collect();
        for member in members.into_iter().filter(|member| member.node == node) {
            self.etcd.revoke(member, self.now);
        }
        self.watch();
    }

    /// Cuts the holder of a shard and one more node off from etcd and from the third. The holder's lease may end early.
    fn island(&mut self) {
        let shards = self.shards();
        let shard = shards[self.rng.random_range(0..shards.len())];
        let Some(holder) = self.etcd.holder(shard) else {
            return;
        };
        let holder = holder.node.0 as usize - 1;
        let turn = self.rng.random_range(1..NODES);
        let (with, other) = ((holder + turn) % NODES, (holder + NODES - turn) % NODES);
        let until = self.now + self.pick(&[4000, 9000, 14_000]) * MS;
        for at in [holder, with] {
            self.cuts.insert((at, NODES), until);
            self.cuts.insert((at, other), until);
        }
        if self.chance(self.plan.revoked) {
            self.revoke(holder);
        }
    }

    /// A holder gives a shard on, regardless of the ranks; the shard returns later.
    fn hand_over(&mut self) {
        let shards = self.shards();
        let shard = shards[self.rng.random_range(0..shards.len())];
        let Some(holder) = self.etcd.holder(shard) else {
            return;
        };
        let at = holder.node.0 as usize - 1;
        let to = NodeId((at as u64 + 1) % NODES as u64 + 1);
        let now = self.now;
        let machine = &mut self.machines[at];
        if now < machine.stopped {
            return;
        }
        let run = machine.run;
        if let Some(node) = &mut machine.node {
            node.give(shard, to);
            self.schedule_tick(run);
        }
    }
}
