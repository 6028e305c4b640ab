//! The protocol, run by seeds: three nodes with clocks of their own, a network, etcd, an origin, faults, and a judge of each read.
//!
//! `BYWASH_SEEDS=A..B` runs other seeds, `BYWASH_SEED=N` one; `cargo xtask soak cluster-rules` runs many.

#![allow(clippy::unwrap_used, reason = "tests")]

mod cases;
mod chaos;
mod clients;
mod controls;
mod etcd;
mod network;
mod oracle;
mod plan;
mod world;

use std::thread;

use bywash_support::proof::{Proof, Trial, class};

use chaos::Fault;
use plan::Plan;
use world::{Counts, SECOND, World};

fn run(plan: Plan) -> World {
    let mut world = World::new(plan);
    world.run();
    world
}

/// Runs plans in parallel, and returns the result of `of` for each world, in order.
fn run_all<T: Send>(plans: &[Plan], of: impl Fn(&World) -> T + Sync) -> Vec<T> {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let size = plans.len().div_ceil(threads).max(1);
    let of = &of;
    thread::scope(|scope| {
        let part = |part| {
            move || -> Vec<T> {
                let part: &[Plan] = part;
                part.iter().map(|plan| of(&run(plan.clone()))).collect()
            }
        };
        let threads: Vec<_> = plans.chunks(size).map(|of| scope.spawn(part(of))).collect();
        let ends = threads.into_iter().map(|thread| thread.join().unwrap());
        ends.flatten().collect()
    })
}

/// Seeds of the gate; a soak runs more.
const SEEDS: u64 = 150;

/// Classes of faults that [`Fault`] does not name.
const STOPS: &str = "stop after a look at the clock";
const LIES: &str = "false keepalive";
const LOST: &str = "lost message";

fn proof() -> Proof {
    let classes = Fault::DRAWN.iter().map(class);
    let others = [STOPS, LIES, LOST].map(str::to_owned);
    let classes: Vec<_> = classes.chain(others).collect();
    let repeat = "cargo test -p bywash-cluster --lib simulation::no_read_is_stale";
    Proof::new("cluster-rules", repeat, 0..SEEDS, &classes)
}

/// Judges a run, and counts its operations and faults.
fn judge(world: &World, trial: &mut Trial<'_>) {
    let seed = world.plan.seed;
    for oracle in &world.oracles {
        if let Some(first) = &oracle.first {
            panic!("BYWASH_SEED={seed}: {first}");
        }
    }
    // Half a minute after the last fault, nothing hangs and each shard has a holder with authority.
    let oldest = world.oldest_operation();
    assert!(oldest < 20 * SECOND, "BYWASH_SEED={seed}: {oldest} us");
    let held = |machine: &world::Machine| machine.node.as_ref().map_or(0, |of| of.status().shards);
    let held: usize = world.machines.iter().map(held).sum();
    assert_eq!(held, 2, "BYWASH_SEED={seed}: shards held");
    let counts = &world.counts;
    assert!(
        counts.direct <= 2,
        "BYWASH_SEED={seed}: {} questions",
        counts.direct
    );
    trial.operations(counts.reads + counts.acknowledged);
    for (kind, hits) in &counts.faults {
        trial.fault(class(kind), *hits);
    }
    trial.fault(STOPS, counts.stops);
    trial.fault(LIES, counts.lies);
    trial.fault(LOST, counts.lost);
}

/// Plays seeds until the last one, and returns the counts of each.
fn play(proof: &Proof) -> Vec<Counts> {
    let mut ends = Vec::new();
    while let Some(mut trial) = proof.next() {
        let world = run(Plan::new(trial.seed()));
        judge(&world, &mut trial);
        ends.push(world.counts);
    }
    ends
}

#[test]
fn no_read_is_stale_or_older_than_the_window() {
    let proof = proof();
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let ends: Vec<Counts> = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(|| play(&proof))).collect();
        let ends = threads.into_iter().map(|thread| thread.join().unwrap());
        ends.flatten().collect()
    });
    let mut all = Counts::default();
    for counts in &ends {
        all.reads += counts.reads;
        all.leases += counts.leases;
        all.holder += counts.holder;
        all.peers += counts.peers;
        all.questions += counts.questions;
        all.direct = all.direct.max(counts.direct);
        all.acknowledged += counts.acknowledged;
        all.waited += counts.waited;
        all.back += counts.back;
        all.claims += counts.claims;
    }
    println!("{} seeds: {all:?}", ends.len());
    // The runs reach the cases that they are for.
    if ends.len() >= 100 {
        assert!(all.leases > all.reads / 10 && all.peers > 0 && all.holder > all.reads / 10);
        assert!(all.waited > 0 && all.waited < all.acknowledged / 2);
        assert!(all.claims > 3 * ends.len() as u64);
    }
}

#[test]
fn seed_gives_the_same_run_twice() {
    let counts = |seed| run(Plan::new(seed)).counts;
    assert_eq!(counts(7), counts(7));
    assert_ne!(counts(7), counts(8));
}

/// Without faults and changes by others, no read moves back in time: not even during a write, once
/// shards have holders.
#[test]
fn reads_are_linearizable_while_holders_stay() {
    let plans: Vec<Plan> = (0..20).map(controls::calm).collect();
    let back: u64 = run_all(&plans, |world| world.counts.back).iter().sum();
    assert_eq!(back, 0);
}
