//! Completions from different lists, at several nodes at once, with faults of origin and records: at most one list ever succeeds.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::SeqCst;

use bywash_support::settings::setting;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{Cluster, Kind, TARGET};
use crate::multipart::{complete, completion};

/// Seeds a run; `BYWASH_SEED` is the first.
const SEEDS: u64 = 8;
const ROUNDS: usize = 5;

/// Requests completions at random nodes, in rounds with faults and one without. Returns the contents of the lists that succeeded, and the
/// object.
async fn run(cluster: &Cluster, seed: u64) -> (BTreeSet<&'static str>, Option<String>) {
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
        for fault in [&cluster.records.down, &cluster.records.lost] {
            fault.store(!calm && rng.random_bool(0.3), SeqCst);
        }
        if !calm && rng.random_bool(0.5) {
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
    let first = setting("BYWASH_SEED", 1);
    for kind in [Kind::S3, Kind::Gcs] {
        let mut proven = 0;
        for seed in first..first + SEEDS {
            let cluster = Cluster::of(kind).await;
            let (succeeded, object) = run(&cluster, seed).await;
            let at = format!("{kind:?} BYWASH_SEED={seed}: {succeeded:?}, {object:?}");
            assert!(object.is_some(), "{at}: the last round has no faults");
            assert!(
                succeeded
                    .iter()
                    .all(|list| Some(*list) == object.as_deref()),
                "{at}"
            );
            proven += succeeded.len() as u64;
        }
        // Over S3 each list is proven by its ETag.
        assert!(
            proven > 0 && (kind != Kind::S3 || proven == SEEDS),
            "{kind:?}: {proven}"
        );
    }
}

/// The negative control: a store of records that loses one attempt lets a list succeed that is not the object.
#[tokio::test]
async fn lost_record_of_an_attempt_lets_two_lists_succeed() {
    for seed in 1..=8 * SEEDS {
        let cluster = Cluster::of(Kind::Gcs).await;
        cluster.records.drops_attempt.store(true, SeqCst);
        let (succeeded, object) = run(&cluster, seed).await;
        if succeeded
            .iter()
            .any(|list| Some(*list) != object.as_deref())
        {
            return;
        }
    }
    panic!("no record is ever needed");
}
