//! Nodes, a network, etcd and an origin on one queue of events, drawn from a seed.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::chaos::Fault;
use super::clients::direct_questions;
use super::etcd::Etcd;
use super::oracle::{Floor, Oracle};
use super::plan::Plan;
use crate::message::{
    Action, CallId, EtcdReply, EtcdRequest, Event, OpId, Outcome, PeerRequest, PeerResponse,
    QuestionId,
};
use crate::names::{Key, NodeId, Shard};
use crate::node::{Node, Settings};
use crate::placement::shard_of;
use crate::rules::Rules;

pub(super) const MS: u64 = 1000;
pub(super) const SECOND: u64 = 1_000_000;
pub(super) const NODES: usize = 3;
/// Time of the first fault.
pub(super) const FIRST_FAULT: u64 = 6500 * MS;
/// Time after the last fault.
const CALM: u64 = 30 * SECOND;
/// Part by which clocks run slow or fast.
pub(super) const DRIFT: f64 = 0.08;

/// Something that happens at a time.
#[derive(Debug)]
pub(super) enum Happening {
    Tick(Run),
    Event(Run, Event<u64>),
    /// An output that leaves late.
    Depart(Run, Action<u64>),
    EtcdGets(Run, CallId, EtcdRequest),
    EtcdReplies(Run, CallId, EtcdReply),
    PeerGets(Run, usize, u64, PeerRequest),
    PeerReplies(u64, usize, PeerResponse<u64>),
    PeerLimit(u64),
    Frame(u64, usize),
    OriginReads(Run, QuestionId, usize),
    OriginCommits(Option<(Run, OpId)>, usize),
    Read(Run),
    Write(Run),
    Expire,
    List,
    Chaos,
    Start(usize),
    Stop(usize, u64),
}

/// A process of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) at: usize,
    pub(super) number: u64,
}

#[derive(Debug)]
pub(super) struct Machine {
    pub(super) node: Option<Node<u64>>,
    pub(super) run: Run,
    pub(super) stopped: u64,
    /// Until when requests to it get no response. Its own do.
    pub(super) deaf: u64,
    rate: f64,
    /// When its timer is due in the queue.
    tick: Option<u64>,
    /// The watch delivers in order.
    pub(super) feed: u64,
    pub(super) operations: HashMap<OpId, Operation>,
}

#[derive(Debug)]
pub(super) struct Operation {
    pub(super) key: usize,
    pub(super) floor: Option<Floor>,
    pub(super) began: u64,
    pub(super) version: Option<u64>,
}

/// Counts of a run.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) reads: u64,
    pub(super) leases: u64,
    pub(super) holder: u64,
    pub(super) peers: u64,
    pub(super) questions: u64,
    /// The most questions without authority that a node had in progress about a key.
    pub(super) direct: usize,
    pub(super) acknowledged: u64,
    pub(super) waited: u64,
    pub(super) stale: u64,
    pub(super) old: u64,
    pub(super) back: u64,
    pub(super) claims: u64,
    pub(super) refused: u64,
    /// Faults that were drawn, by their kind.
    pub(super) faults: BTreeMap<Fault, u64>,
    /// Stops after a look at the clock.
    pub(super) stops: u64,
    /// False responses to keepalives.
    pub(super) lies: u64,
    /// Requests to other nodes with a lost message.
    pub(super) lost: u64,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) rng: StdRng,
    pub(super) now: u64,
    queue: BTreeMap<(u64, u64), Happening>,
    queued: u64,
    pub(super) machines: Vec<Machine>,
    pub(super) etcd: Etcd,
    pub(super) etcd_down: u64,
    /// Links that are cut, and until when. Number [`NODES`] is etcd.
    pub(super) cuts: HashMap<(usize, usize), u64>,
    /// Requests to other nodes, with the node that is asked.
    pub(super) calls: HashMap<u64, (Run, CallId, usize)>,
    /// Requests with a lost message: no further frame arrives.
    pub(super) lost: HashSet<u64>,
    pub(super) etcd_calls: HashSet<(usize, u64, CallId)>,
    pub(super) keys: Vec<Key>,
    pub(super) oracles: Vec<Oracle>,
    pub(super) counts: Counts,
    pub(super) ids: u64,
}

impl World {
    pub(super) fn new(plan: Plan) -> Self {
        let mut rng = StdRng::seed_from_u64(plan.seed);
        let machine = |at, rng: &mut StdRng| Machine {
            node: None,
            run: Run { at, number: 0 },
            stopped: 0,
            deaf: 0,
            rate: 1.0
                + match plan.extreme_clocks {
                    true => [-DRIFT, DRIFT][rng.random_range(0..2)],
                    false => rng.random_range(-DRIFT..DRIFT),
                },
            tick: None,
            feed: 0,
            operations: HashMap::new(),
        };
        let machines = (0..NODES).map(|at| machine(at, &mut rng)).collect();
        let keys = 1 + plan.seed as usize % 2;
        let mut etcd = Etcd::new(plan.timing.lease.as_micros() as u64);
        etcd.claims_are_guarded = !plan.unguarded;
        // Until views agree on the first holders, a write may go to the origin without a begin, and the origin may take 4 s for it.
        let oracle = || Oracle::new(14 * SECOND);
        let mut world = Self {
            rng,
            now: 0,
            queue: BTreeMap::new(),
            queued: 0,
            machines,
            etcd,
            etcd_down: 0,
            cuts: HashMap::new(),
            calls: HashMap::new(),
            lost: HashSet::new(),
            etcd_calls: HashSet::new(),
            keys: (0..keys)
                .map(|key| Key::new("bucket", key.to_string()))
                .collect(),
            oracles: (0..keys).map(|_| oracle()).collect(),
            counts: Counts::default(),
            ids: 0,
            plan,
        };
        for at in 0..NODES {
            world.at(at as u64, Happening::Start(at));
        }
        world.at(0, Happening::Expire);
        world.at(5 * SECOND, Happening::List);
        world.at(FIRST_FAULT, Happening::Chaos);
        world
    }

    pub(super) fn at(&mut self, time: u64, what: Happening) {
        self.queued += 1;
        self.queue.insert((time.max(self.now), self.queued), what);
    }

    pub(super) fn after(&mut self, delay: u64, what: Happening) {
        self.at(self.now + delay, what);
    }

    pub(super) fn chance(&mut self, percent: f64) -> bool {
        self.rng.random::<f64>() * 100.0 < percent
    }

    pub(super) fn exponential(&mut self, mean: u64) -> u64 {
        let drawn: f64 = self.rng.random_range(1e-9..1.0);
        (-drawn.ln() * mean as f64) as u64
    }

    pub(super) fn pick(&mut self, of: &[u64]) -> u64 {
        of[self.rng.random_range(0..of.len())]
    }

    pub(super) fn linked(&self, a: usize, b: usize) -> bool {
        let cut = |pair| self.cuts.get(&pair).is_some_and(|until| self.now < *until);
        !cut((a, b)) && !cut((b, a))
    }

    pub(super) fn is_running(&self, run: Run) -> bool {
        let machine = &self.machines[run.at];
        machine.run == run && machine.node.is_some()
    }

    fn clock(&self, at: usize) -> Duration {
        let micros = self.now as f64 * self.machines[at].rate;
        Duration::from_micros(micros as u64) + Duration::from_secs(1000 * at as u64)
    }

    /// Runs until the end of the faults and a calm time after them.
    pub(super) fn run(&mut self) {
        while let Some(((time, _), what)) = self.queue.pop_first() {
            if time > self.plan.end + CALM {
                break;
            }
            self.now = time;
            self.happen(what);
        }
        for oracle in &self.oracles {
            self.counts.stale += oracle.stale;
            self.counts.old += oracle.old;
            self.counts.back += oracle.back;
        }
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::Tick(run) => {
                if self.machines[run.at]
                    .tick
                    .is_some_and(|tick| tick <= self.now)
                {
                    self.machines[run.at].tick = None;
                }
                self.deliver(run, Event::Tick);
            }
            Happening::Event(run, event) => self.deliver(run, event),
            Happening::Depart(run, action) => self.depart(run, action),
            Happening::EtcdGets(run, call, request) => self.etcd_gets(run, call, request),
            Happening::EtcdReplies(run, call, reply) => {
                let linked = reply == EtcdReply::Unknown || self.linked(run.at, NODES);
                let key = (run.at, run.number, call);
                if linked && self.etcd_calls.remove(&key) {
                    self.deliver(run, Event::Etcd(call, reply));
                }
            }
            Happening::PeerGets(from, to, wire, request) => self.peer_gets(from, to, wire, request),
            Happening::PeerReplies(wire, from, response) => {
                let Some(&(run, call, _)) = self.calls.get(&wire) else {
                    return;
                };
                if self.linked(run.at, from) && self.now >= self.machines[from].deaf {
                    self.calls.remove(&wire);
                    self.deliver(run, Event::Response(call, Some(response)));
                } else {
                    self.lose(wire);
                }
            }
            Happening::PeerLimit(wire) => {
                if let Some((run, call, _)) = self.calls.remove(&wire) {
                    self.deliver(run, Event::Response(call, None));
                }
            }
            Happening::Frame(wire, to) => self.frame(wire, to),
            Happening::OriginReads(run, question, key) => {
                let version = self.oracles[key].current;
                let failed = self.chance(1.0);
                let delay = self.origin_delay(self.plan.slow, &[3 * MS, 8 * MS, 20 * MS]);
                let event = Event::Version(question, (!failed).then_some(version));
                self.after(delay, Happening::Event(run, event));
            }
            Happening::OriginCommits(by, key) => self.origin_commits(by, key),
            Happening::Read(run) => self.client(run, true),
            Happening::Write(run) => self.client(run, false),
            Happening::Expire => {
                if self.now >= self.etcd_down {
                    self.etcd.expire(self.now);
                    self.watch();
                }
                let next = self.rng.random_range(1..500 * MS);
                self.after(next, Happening::Expire);
            }
            Happening::List => {
                let list = (self.etcd.revision, self.etcd.list());
                for at in 0..NODES {
                    self.feed(at, &list);
                }
                self.after(5 * SECOND, Happening::List);
            }
            Happening::Chaos => self.chaos(),
            Happening::Start(at) => self.start(at),
            Happening::Stop(at, time) => {
                let machine = &mut self.machines[at];
                machine.stopped = machine.stopped.max(self.now + time);
            }
        }
    }

    fn start(&mut self, at: usize) {
        let mut settings = Settings::new(NodeId(at as u64 + 1), self.rng.random(), 100);
        settings.shards = 2;
        settings.timing = self.plan.timing;
        let rules = Rules::without(&self.plan.left_out);
        let node = Node::with_rules(settings, self.clock(at), rules);
        let list = (self.etcd.revision, self.etcd.list());
        let now = self.now;
        let machine = &mut self.machines[at];
        machine.node = Some(node);
        machine.feed = now;
        machine.tick = None;
        let run = machine.run;
        self.feed(at, &list);
        self.after(0, Happening::Tick(run));
        self.after(0, Happening::Read(run));
        self.after(0, Happening::Write(run));
    }

    /// The process ends without a word.
    pub(super) fn kill(&mut self, at: usize) {
        let machine = &mut self.machines[at];
        machine.node = None;
        machine.operations.clear();
        machine.run.number += 1;
        machine.stopped = 0;
        // Its connections are reset.
        let to = self.calls.iter().filter(|(_, of)| of.2 == at);
        self.lost.extend(to.map(|(wire, _)| *wire));
    }

    pub(super) fn deliver(&mut self, run: Run, event: Event<u64>) {
        if !self.is_running(run) {
            return;
        }
        let stopped = self.machines[run.at].stopped;
        if self.now < stopped {
            let late = self.rng.random_range(0..20);
            return self.at(stopped + late, Happening::Event(run, event));
        }
        let clock = self.clock(run.at);
        let Some(node) = &mut self.machines[run.at].node else {
            return;
        };
        let actions = handle(node, clock, event);
        for action in &actions {
            if let Action::AskOrigin(_, key) = action {
                self.counts.direct = self.counts.direct.max(direct_questions(node, key));
            }
        }
        self.schedule_tick(run);
        for action in actions {
            // The process may be stopped after it looked at its clock.
            if !self.plan.calm && self.now < self.plan.end && self.chance(self.plan.stopped) {
                let time = self.pick(self.plan.stops) * MS;
                let time = self.rng.random_range(0..time);
                self.machines[run.at].stopped = self.now + time;
                self.counts.stops += 1;
            }
            self.depart(run, action);
        }
    }

    pub(super) fn schedule_tick(&mut self, run: Run) {
        let machine = &self.machines[run.at];
        let Some(next) = machine.node.as_ref().and_then(Node::next_timer) else {
            return;
        };
        let local = next.saturating_sub(Duration::from_secs(1000 * run.at as u64));
        let time = (local.as_micros() as f64 / machine.rate).ceil() as u64 + 1;
        let time = time.max(self.now + 1);
        if machine.tick.is_none_or(|tick| time < tick) {
            self.machines[run.at].tick = Some(time);
            self.at(time, Happening::Tick(run));
        }
    }

    pub(super) fn shards(&self) -> Vec<Shard> {
        self.keys.iter().map(|key| shard_of(key, 2)).collect()
    }
}

/// Handles an event. A read that is served without a question is the same by [`Node::current`], and no other is.
fn handle(node: &mut Node<u64>, clock: Duration, event: Event<u64>) -> Vec<Action<u64>> {
    let Event::Read(op, key, window) = &event else {
        return node.handle(clock, event);
    };
    let op = *op;
    let mut actions = node.handle(clock, Event::Tick);
    let current = node.current(clock, key, *window);
    let read = node.handle(clock, event);
    let at_once = read.iter().find_map(|action| match action {
        Action::Finish(of, Outcome::Version(version, source)) if *of == op => {
            Some((*version, *source))
        }
        _ => None,
    });
    assert_eq!(current, at_once);
    actions.extend(read);
    actions
}
