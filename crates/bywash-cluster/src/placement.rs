//! Placement by weighted rendezvous hashing: each member draws a score for each item, and the highest one has it.
//!
//! A member that joins takes its part from all others, and one that leaves gives its part to all others; nothing moves
//! between the rest. The version of an object is not hashed: a write moves no bytes. Two machines may differ in the last bit of a
//! logarithm. That is a wrong placement, which costs a request and never a wrong byte; of a shard etcd alone names the holder.

use crate::names::{Key, KeyParts, NodeId, Shard};

/// Shards of the versions of a cluster. Enough that 100 nodes get at most about 1.5 times their part, few enough that all keys
/// are listed within tens of milliseconds.
pub const SHARDS: u16 = 4096;
/// Bytes of an object that are placed at one node. Stripe 0 is placed at the holder of the object's
/// shard instead, so that a cold read is one request.
pub const STRIPE_BYTES: u64 = 8 << 20;

/// A node that may have items, and its weight: mebibytes of cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// The node.
    pub node: NodeId,
    /// Its weight. A node without weight has nothing while another has one.
    pub weight: u32,
}

/// Finalizer of SplitMix64: each bit of the result depends on each bit of `bits`.
fn mix(bits: u64) -> u64 {
    let mut bits = bits.wrapping_add(0x9E37_79B9_7F4A_7C15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

/// FNV-1a of the bucket, a zero byte, which no bucket's name has, and the path. It is part of the protocol: all versions of
/// the program must compute the same.
fn hash(key: &dyn KeyParts) -> u64 {
    let (bucket, path) = key.parts();
    let bytes = bucket.bytes().chain([0]).chain(path.bytes());
    bytes.fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
    })
}

/// Shard of `key` among `shards`, which is [`SHARDS`] outside tests and at least 1.
#[must_use]
pub fn shard_of(key: &Key, shards: u16) -> Shard {
    shard_of_parts(key, shards)
}

/// As [`shard_of`].
pub(crate) fn shard_of_parts(key: &dyn KeyParts, shards: u16) -> Shard {
    Shard((mix(hash(key)) % u64::from(shards.max(1))) as u16)
}

/// Hash of the stripe `stripe` of an object, for [`ranked`].
#[must_use]
pub fn stripe_hash(key: &Key, stripe: u64) -> u64 {
    mix(hash(key) ^ mix(stripe))
}

/// Hash of a shard, for [`ranked`].
pub(crate) fn shard_hash(shard: Shard) -> u64 {
    mix(u64::from(shard.0) | 1 << 40)
}

/// Score of `candidate` for the item `hash`. The logarithm makes the probability of the highest score proportional to the weight.
fn score(hash: u64, candidate: Candidate) -> f64 {
    let drawn = mix(hash ^ mix(candidate.node.0)) >> 11;
    // Within 0 and 1, both excluded.
    let drawn = (drawn as f64 + 0.5) / (1u64 << 53) as f64;
    -f64::from(candidate.weight) / drawn.ln()
}

/// Whether `a` precedes `b`. Equal scores, of nodes without weight, are ordered by node.
fn precedes(hash: u64, a: Candidate, b: Candidate) -> bool {
    let order = score(hash, a).total_cmp(&score(hash, b));
    order.then_with(|| b.node.cmp(&a.node)).is_gt()
}

/// Candidates in the order in which they are asked for the item `hash`.
#[must_use]
pub fn ranked(hash: u64, candidates: &[Candidate]) -> Vec<NodeId> {
    let mut ranked = candidates.to_vec();
    ranked.sort_by(|a, b| {
        let order = score(hash, *b).total_cmp(&score(hash, *a));
        order.then_with(|| a.node.cmp(&b.node))
    });
    ranked.iter().map(|candidate| candidate.node).collect()
}

/// Candidate with the highest score.
pub(crate) fn first(hash: u64, candidates: &[Candidate]) -> Option<NodeId> {
    let better = |best: Candidate, next: Candidate| {
        if precedes(hash, next, best) {
            next
        } else {
            best
        }
    };
    candidates
        .iter()
        .copied()
        .reduce(better)
        .map(|best| best.node)
}

/// The two candidates with the highest scores, without allocation: asked for each block.
pub(crate) fn first_two(hash: u64, candidates: &[Candidate]) -> [Option<NodeId>; 2] {
    let mut best: [Option<(f64, Candidate)>; 2] = [None; 2];
    for &next in candidates {
        let scored = (score(hash, next), next);
        let beats = |other: Option<(f64, Candidate)>| {
            other.is_none_or(|(value, other)| {
                let order = scored.0.total_cmp(&value);
                order.then_with(|| other.node.cmp(&next.node)).is_gt()
            })
        };
        if beats(best[0]) {
            best = [Some(scored), best[0]];
        } else if beats(best[1]) {
            best[1] = Some(scored);
        }
    }
    best.map(|best| best.map(|(_, candidate)| candidate.node))
}

/// Number of candidates that precede `node`; `None` if it is not a candidate.
pub(crate) fn rank_of(hash: u64, node: NodeId, candidates: &[Candidate]) -> Option<u32> {
    let own = *candidates.iter().find(|other| other.node == node)?;
    let before = candidates
        .iter()
        .filter(|other| precedes(hash, **other, own));
    Some(before.count() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(count: u64) -> Vec<Candidate> {
        let node = |n| Candidate {
            node: NodeId(mix(n)),
            weight: 1024,
        };
        (0..count).map(node).collect()
    }

    fn placed(items: u64, candidates: &[Candidate]) -> Vec<NodeId> {
        let key = Key::new("bucket", "a/b");
        let place = |item| first(stripe_hash(&key, item), candidates).unwrap();
        (0..items).map(place).collect()
    }

    fn count(placed: &[NodeId], node: NodeId) -> f64 {
        placed.iter().filter(|&&at| at == node).count() as f64
    }

    #[test]
    fn items_are_spread_by_weight() {
        let mut candidates = nodes(10);
        candidates[3].weight *= 4;
        let placed = placed(40_000, &candidates);
        for candidate in &candidates {
            let part = f64::from(candidate.weight) / (13.0 * 1024.0);
            let ratio = count(&placed, candidate.node) / (40_000.0 * part);
            assert!((0.93..1.07).contains(&ratio), "{candidate:?}: {ratio}");
        }
    }

    #[test]
    fn shards_are_spread_over_nodes() {
        let candidates = nodes(10);
        let shards = (0..SHARDS).map(|shard| shard_hash(Shard(shard)));
        let placed: Vec<_> = shards
            .map(|hash| first(hash, &candidates).unwrap())
            .collect();
        for candidate in &candidates {
            let ratio = count(&placed, candidate.node) * 10.0 / f64::from(SHARDS);
            assert!((0.8..1.2).contains(&ratio), "{candidate:?}: {ratio}");
        }
    }

    #[test]
    fn join_and_leave_move_only_the_part_of_that_node() {
        let candidates = nodes(10);
        let (before, after) = (
            placed(20_000, &candidates[..9]),
            placed(20_000, &candidates),
        );
        let newcomer = candidates[9].node;
        let moved = before.iter().zip(&after).filter(|(old, new)| old != new);
        let to: Vec<_> = moved.map(|(_, new)| *new).collect();
        assert!(to.iter().all(|node| *node == newcomer));
        let part = to.len() as f64 / 2000.0;
        assert!((0.9..1.1).contains(&part), "{part} of a tenth moved");
    }

    #[test]
    fn ranks_agree_with_the_order_and_nodes_without_weight_come_last() {
        let mut candidates = nodes(7);
        candidates[2].weight = 0;
        candidates[5].weight = 0;
        for item in 0..200 {
            let order = ranked(item, &candidates);
            assert_eq!(first(item, &candidates), Some(order[0]));
            assert_eq!(
                first_two(item, &candidates),
                [Some(order[0]), Some(order[1])]
            );
            for (rank, node) in order.iter().enumerate() {
                assert_eq!(rank_of(item, *node, &candidates), Some(rank as u32));
            }
            let last: Vec<_> = order[5..].iter().collect();
            assert!(last.contains(&&candidates[2].node) && last.contains(&&candidates[5].node));
        }
        assert_eq!(first(1, &[]), None);
        assert_eq!(rank_of(1, NodeId(1), &candidates), None);
    }

    #[test]
    fn hashes_are_those_of_the_protocol() {
        let key = Key::new("bucket", "a/b");
        assert_eq!(hash(&Key::new("", "")), 0xAF63_BD4C_8601_B7DF);
        assert_ne!(
            shard_of(&Key::new("a", "b"), SHARDS),
            shard_of(&Key::new("ab", ""), SHARDS)
        );
        assert_eq!(shard_of(&key, SHARDS), shard_of(&key.clone(), SHARDS));
        assert_eq!(shard_of(&key, 1), Shard(0));
    }
}
