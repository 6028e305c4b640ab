//! Completions from different lists, at several nodes at once, with faults of origin and records: at most one list ever succeeds.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::SeqCst;

use bywash_support::proof::{Proof, Trial};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{Cluster, Kind, TARGET};
use crate::multipart::{complete, completion};

const SEEDS: u64 = 8;
const ROUNDS: usize = 5;

/// Classes of faults.
const DOWN: &str = "records are away";
const LOST: &str = "response of the records is lost";
const LOST_COMPLETION: &str = "response of the origin is lost";

/// Requests completions at random nodes, in rounds with faults and one without. Returns the contents of the lists that succeeded, and the
/// object.
async fn run(
    cluster: &Cluster,
    seed: u64,
    mut trial: Option<&mut Trial<'_>>,
) -> (BTreeSet<&'static str>, Option<String>) {
    let mut note = |class, hits: bool| {
        if let Some(trial) = &mut trial {
            trial.fault(class, u64::from(hits));
        }
    };
    let mut rng = StdRng::seed_from_u64(seed);
    let id = cluster.begin(TARGET).await;
    let contents = ["one", "two"];
    let mut lists = Vec::new();
    for (number, content) in (1..).zip(contents) {
        let e_tag = cluster.part(&id, number, content.as_bytes()).await;
        lists.push(completion(&[(number, &e_tag)]));
    }
    let nodes = [cluster.node().await, cluster.node().await];
    let mut succeeded = BTreeSet::new();
    for round in 0..=ROUNDS {
        let calm = round == ROUNDS;
        let records = &cluster.records;
        for (class, fault) in [(DOWN, &records.down), (LOST, &records.lost)] {
            let hits = !calm && rng.random_bool(0.3);
            note(class, hits);
            fault.store(hits, SeqCst);
        }
        if !calm && rng.random_bool(0.5) {
            note(LOST_COMPLETION, true);
            cluster.lose_completion();
        }
        let (first, second) = if calm {
            (0, 1)
        } else {
            (rng.random_range(0..2), rng.random_range(0..2))
        };
        let (one, two) = tokio::join!(
            complete(&nodes[0], TARGET, &id, &[], &lists[first]),
            complete(&nodes[1], TARGET, &id, &[], &lists[second])
        );
        for (list, reply) in [(first, one), (second, two)] {
            match reply.status {
                200 => _ = succeeded.insert(contents[list]),
                404 | 500 | 503 => {}
                other => panic!("seed {seed}: {other} {}", reply.text()),
            }
        }
    }
    let found = cluster.get(TARGET).await;
    (succeeded, (found.status == 200).then(|| found.text()))
}

#[tokio::test]
async fn at_most_one_list_of_parts_ever_succeeds() {
    let repeat = "cargo test -p bywash-gateway --test it at_most_one_list_of_parts";
    let classes = [DOWN, LOST, LOST_COMPLETION];
    let proof = Proof::new("cluster-uploads", repeat, 1..1 + SEEDS, &classes);
    let mut proven = [0, 0];
    let mut played = 0;
    while let Some(mut trial) = proof.next() {
        let seed = trial.seed();
        for (kind, proven) in [Kind::S3, Kind::Gcs].into_iter().zip(&mut proven) {
            let cluster = Cluster::of(kind).await;
            let (succeeded, object) = run(&cluster, seed, Some(&mut trial)).await;
            trial.operations(2 * (ROUNDS as u64 + 1));
            let at = format!("{kind:?} BYWASH_SEED={seed}: {succeeded:?}, {object:?}");
            assert!(object.is_some(), "{at}: the last round has no faults");
            assert!(
                succeeded
                    .iter()
                    .all(|list| Some(*list) == object.as_deref()),
                "{at}"
            );
            *proven += succeeded.len() as u64;
        }
        played += 1;
    }
    // Over S3 each list is proven by its ETag.
    assert_eq!(proven[0], played, "over S3");
    assert!(!proof.is_fixed() || proven[1] > 0, "over GCS");
}

/// The negative control: a store of records that loses one attempt lets a list succeed that is not the object.
#[tokio::test]
async fn lost_record_of_an_attempt_lets_two_lists_succeed() {
    for seed in 1..=8 * SEEDS {
        let cluster = Cluster::of(Kind::Gcs).await;
        cluster.records.drops_attempt.store(true, SeqCst);
        let (succeeded, object) = run(&cluster, seed, None).await;
        if succeeded
            .iter()
            .any(|list| Some(*list) != object.as_deref())
        {
            return;
        }
    }
    panic!("no record is ever needed");
}
