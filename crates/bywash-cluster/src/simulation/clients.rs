//! Clients of the nodes, and the origin.

use std::time::Duration;

use rand::RngExt;

use super::world::{DRIFT, Happening, MS, Operation, Run, World};
use crate::direct::{Purpose, Question};
use crate::message::{Believed, Event, OpId, Outcome, Source, WriteResult};
use crate::names::Key;
use crate::node::Node;

impl World {
    pub(super) fn client(&mut self, run: Run, reads: bool) {
        if !self.is_running(run) {
            return;
        }
        let mean = if reads {
            self.plan.reads
        } else {
            self.plan.writes
        };
        let next = self.exponential(mean);
        let again = if reads {
            Happening::Read(run)
        } else {
            Happening::Write(run)
        };
        self.after(next, again);
        let key = self.rng.random_range(0..self.keys.len());
        self.ids += 1;
        let op = OpId(self.ids);
        // Clocks that run slow lengthen a window.
        let window = (self.plan.window as f64 / (1.0 - DRIFT)) as u64 + MS;
        let start = self.now.saturating_sub(window);
        let floor = reads.then(|| self.oracles[key].floor(self.now, start));
        let operation = Operation {
            key,
            floor,
            began: self.now,
            version: None,
        };
        self.machines[run.at].operations.insert(op, operation);
        let window = Duration::from_micros(self.plan.window);
        let name = self.keys[key].clone();
        let event = if reads {
            self.counts.reads += 1;
            Event::Read(op, name, window)
        } else {
            Event::Write(op, name, window)
        };
        self.deliver(run, event);
    }

    pub(super) fn origin_commits(&mut self, by: Option<(Run, OpId)>, key: usize) {
        let Some((run, op)) = by else {
            self.oracles[key].commit(self.now);
            return;
        };
        let refused = self.chance(2.0);
        let lost = self.chance(2.0);
        let mut result = WriteResult::Failed;
        if !refused {
            let version = self.oracles[key].commit(self.now);
            result = WriteResult::Written;
            if let Some(operation) = self.machines[run.at].operations.get_mut(&op) {
                operation.version = Some(version);
            }
        }
        if lost {
            result = WriteResult::InDoubt;
        }
        let delay = self.origin_delay(5.0, &[3 * MS, 8 * MS, 20 * MS]);
        // All nodes have the same window.
        let written = Event::Written(op, result, Believed::default());
        self.after(delay, Happening::Event(run, written));
    }

    pub(super) fn origin_delay(&mut self, slow: f64, usual: &[u64]) -> u64 {
        if self.chance(slow) {
            self.exponential(1500 * MS).min(4000 * MS)
        } else {
            self.pick(usual)
        }
    }

    pub(super) fn finish(&mut self, run: Run, op: OpId, outcome: Outcome<u64>) {
        let Some(operation) = self.machines[run.at].operations.remove(&op) else {
            return;
        };
        let oracle = &mut self.oracles[operation.key];
        match outcome {
            Outcome::Version(version, source) => {
                match source {
                    Source::Lease => self.counts.leases += 1,
                    Source::Holder => self.counts.holder += 1,
                    Source::Peer => self.counts.peers += 1,
                    Source::Origin => {}
                }
                let what = format!("node {} by {source:?}", run.at);
                oracle.read(operation.floor.unwrap(), version, self.now, &what);
            }
            Outcome::Acknowledged { waited } => {
                self.counts.acknowledged += 1;
                self.counts.waited += u64::from(waited);
                oracle.acknowledge(operation.version.unwrap());
            }
            Outcome::ReadFailed | Outcome::SlowDown | Outcome::WriteFailed(_) => {}
        }
    }

    /// Longest time that an operation has been in progress at the end.
    pub(super) fn oldest_operation(&self) -> u64 {
        let operations = self.machines.iter().flat_map(|of| of.operations.values());
        operations
            .map(|operation| self.now - operation.began)
            .max()
            .unwrap_or(0)
    }
}

/// Number of questions about `key` that a node has in progress without authority.
pub(super) fn direct_questions(node: &Node<u64>, key: &Key) -> usize {
    let is_direct = |of: &&Question| of.key == *key && matches!(of.purpose, Purpose::Direct(_));
    node.questions.values().filter(is_direct).count()
}
