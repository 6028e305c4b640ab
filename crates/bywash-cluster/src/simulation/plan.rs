//! Parameters of a run.

use super::chaos::Fault;
use super::world::{MS, SECOND};
use crate::rules::Rule;
use crate::timing::Timing;

/// Settings of a run.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) window: u64,
    /// End of the faults.
    pub(super) end: u64,
    pub(super) timing: Timing,
    pub(super) left_out: Vec<Rule>,
    /// Claims are not guarded by the revision at etcd.
    pub(super) unguarded: bool,
    /// No faults, no changes by others.
    pub(super) calm: bool,
    /// Responses of etcd take up to the limit of a request, and keepalives are never wrong.
    pub(super) slow_etcd: bool,
    /// Percent of the origin's responses that are slow.
    pub(super) slow: f64,
    /// Mean time between two faults.
    pub(super) faults: u64,
    /// The kinds of faults; all, with their weights, if empty.
    pub(super) only: &'static [Fault],
    /// Percent of islands on which the holder's lease ends early.
    pub(super) revoked: f64,
    /// Percent of keepalives with a wrong response.
    pub(super) lies: f64,
    /// Percent of actions before which a process stops, after its look at the clock, and the longest such stops.
    pub(super) stopped: f64,
    pub(super) stops: &'static [u64],
    /// From the first fault on, node 0 learns a minute late of changes at etcd.
    pub(super) late_watch: bool,
    /// Clocks run as slow and as fast as they may.
    pub(super) extreme_clocks: bool,
    /// Mean times between two reads and two writes of a node.
    pub(super) reads: u64,
    pub(super) writes: u64,
}

impl Plan {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            seed,
            window: if seed.is_multiple_of(4) {
                4 * SECOND
            } else {
                SECOND
            },
            end: 40 * SECOND,
            timing: Timing::DEFAULT,
            left_out: Vec::new(),
            unguarded: false,
            calm: false,
            slow_etcd: false,
            slow: 5.0,
            faults: [900, 2500, 6000][seed as usize % 3] * MS,
            only: &[],
            revoked: 40.0,
            lies: 10.0,
            stopped: 0.02,
            stops: &[300, 1500, 4000, 9000],
            late_watch: false,
            extreme_clocks: false,
            reads: 25 * MS,
            writes: 1500 * MS,
        }
    }

    pub(super) fn without(mut self, rule: Rule) -> Self {
        self.left_out.push(rule);
        self
    }
}
