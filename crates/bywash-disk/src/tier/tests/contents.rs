//! Contents of the tier, by version.

use std::collections::BTreeMap;

use super::*;

/// Blocks of each object.
fn contents(tier: &Tier) -> BTreeMap<String, u32> {
    let mut found = BTreeMap::new();
    tier.for_each_version(|record, blocks| {
        let before = found.insert(record.object.clone(), blocks);
        assert!(before.is_none_or(|before| before == blocks));
    });
    found
}

#[test]
fn versions_are_visited_in_sealed_and_open_segments_also_after_a_restart() {
    let storage = Arc::default();
    let tier = open(&storage, 8);
    let mut right = BTreeMap::new();
    for object in 0..30 {
        for number in 0..=object % 3 {
            write(&tier, &[(object, number)]).unwrap();
        }
        right.insert(record(object).object, object % 3 + 1);
    }
    assert!(tier.stats().segments > 2);
    assert_eq!(contents(&tier), right);
    drop(tier);
    let tier = open(&storage, 8);
    assert_eq!(contents(&tier), right);
    tier.erase(VersionKey::of(&record(7)));
    right.remove(&record(7).object);
    assert_eq!(contents(&tier), right);
    // Replaced blocks are not there.
    for number in 0..500 {
        write(&tier, &[(99, number)]).unwrap();
    }
    let left = contents(&tier);
    assert_eq!(left.keys().collect::<Vec<_>>(), [&record(99).object]);
    assert_eq!(u64::from(left[&record(99).object]), tier.stats().blocks);
}
