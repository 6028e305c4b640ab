#![allow(clippy::unwrap_used, reason = "tests")]
use std::collections::HashMap;
use std::sync::Arc;
use std::thread;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;

/// An entry that owns `bytes`.
#[derive(Debug, Clone, PartialEq)]
struct Item {
    store: u32,
    path: Path,
    value: u64,
    bytes: usize,
}

impl TableEntry for Item {
    fn key(&self) -> (u32, &Path) {
        (self.store, &self.path)
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

fn item(key: u64, value: u64, bytes: usize) -> Item {
    let path = Path::from(format!("key/{key}"));
    Item {
        store: (key % 3) as u32,
        path,
        value,
        bytes,
    }
}

fn value(table: &BoundedTable<Item>, key: u64) -> Option<u64> {
    let wanted = item(key, 0, 0);
    table.get(wanted.store, &wanted.path, |item| item.value)
}

/// Checks the invariants of each shard, which hold at any time.
fn check(table: &BoundedTable<Item>) {
    for shard in &table.shards {
        let shard = shard.read();
        let max = table.max_shard_bytes.load(Relaxed);
        assert!(shard.charged(0) <= max, "{} of {max}", shard.charged(0));
        let entries = || shard.slots.iter().filter_map(|slot| slot.entry.as_ref());
        let bytes: usize = entries().map(TableEntry::bytes).sum();
        assert_eq!(shard.bytes, bytes);
        assert_eq!(shard.index.len(), entries().count());
        let (mut at, mut older, mut queued) = (shard.oldest, NONE, 0);
        while at != NONE {
            let slot = &shard.slots[at as usize];
            assert!(slot.entry.is_some());
            assert_eq!(slot.older, older);
            (older, at) = (at, slot.newer);
            queued += 1;
        }
        assert_eq!(shard.newest, older);
        assert_eq!(queued, entries().count());
        let (mut at, mut free) = (shard.free, 0);
        while at != NONE {
            assert!(shard.slots[at as usize].entry.is_none());
            at = shard.slots[at as usize].newer;
            free += 1;
        }
        assert_eq!(queued + free, shard.slots.len());
    }
}

#[test]
fn random_operations_agree_with_a_map_except_evictions() {
    for (seed, max_bytes) in [(1, 1 << 30), (2, 200 << 10), (3, 64 << 10), (4, 0)] {
        let mut random = StdRng::seed_from_u64(seed);
        let table = BoundedTable::new(max_bytes);
        let mut model = HashMap::new();
        for step in 0..60_000_u64 {
            let key = random.random_range(0..4000);
            match random.random_range(0..10) {
                0..4 => {
                    table.insert(item(key, step, random.random_range(1..200)));
                    model.insert(key, step);
                }
                4 => {
                    let gone = item(key, 0, 0);
                    let expected = model.get(&key).copied();
                    let removed = table.remove_if(gone.store, &gone.path, |item| {
                        assert_eq!(Some(item.value), expected);
                        item.value.is_multiple_of(2)
                    });
                    if removed || expected.is_some_and(|value| value.is_multiple_of(2)) {
                        model.remove(&key);
                    }
                }
                _ => match value(&table, key) {
                    None => assert!(max_bytes < 1 << 30 || !model.contains_key(&key)),
                    found => assert_eq!(found, model.get(&key).copied(), "key {key}"),
                },
            }
            if step.is_multiple_of(10_000) {
                check(&table);
            }
        }
        check(&table);
        if max_bytes == 1 << 30 {
            assert_eq!(table.size().0, model.len());
        }
    }
}

#[test]
fn bound_holds_for_any_stream_of_keys_and_any_sizes() {
    let max_bytes = 256 << 10;
    let table = BoundedTable::new(max_bytes);
    // Distinct keys; one key over and over; keys that come and go; small entries before large ones.
    let streams: [fn(u64) -> Item; 4] = [
        |n| item(n, n, 100),
        |n| item(1, n, (n % 400) as usize),
        |n| item(n % 50, n, 300),
        |n| item(n, n, if n < 10_000 { 1 } else { 450 }),
    ];
    for stream in streams {
        for n in 0..20_000 {
            let entry = stream(n);
            let (store, path) = (entry.store, entry.path.clone());
            table.insert(entry);
            if n.is_multiple_of(7) {
                table.remove_if(store, &path, |_| true);
            }
            if n.is_multiple_of(1000) {
                check(&table);
                assert!(table.size().1 as u64 <= max_bytes);
            }
        }
    }
    assert!(
        table.size().1 as u64 > max_bytes / 2,
        "the table is in use: {:?}",
        table.size()
    );
}

#[test]
fn evicts_the_oldest_unused_entry() {
    let table = BoundedTable::new(256 << 10);
    table.insert(item(0, 7, 100));
    for n in 1..100_000 {
        table.insert(item(n, n, 100));
        // Of another shard than the newest, most of the time: used entries stay.
        assert_eq!(value(&table, 0), Some(7), "used before each insertion");
    }
    assert_eq!(value(&table, 99_999), Some(99_999), "the newest is here");
    assert_eq!(value(&table, 1), None, "what was not used is gone");
    check(&table);
}

#[test]
fn insertion_into_a_table_of_used_entries_scans_few() {
    // 60,000 entries, all used: without a bound on scanned one insertion would go round a shard of a thousand.
    let table = BoundedTable::new(64 << 20);
    for n in 0..60_000 {
        table.insert(item(n, n, 100));
    }
    table.set_max_bytes(table.size().1 as u64);
    let first = |table: &BoundedTable<Item>| {
        let shard = table.shards[0].read();
        shard.oldest
    };
    for n in 0..60_000 {
        value(&table, n);
    }
    let mut n = 60_000;
    let before = table.shards[0].read().index.len();
    let oldest = first(&table);
    while first(&table) == oldest {
        table.insert(item(n, n, 100));
        n += 1;
    }
    let shard = table.shards[0].read();
    let marked = shard.slots.iter().filter(|slot| slot.used.load(Relaxed));
    assert!(before > 500 && marked.count() + 2 * MAX_SCANNED > before);
}

#[test]
fn lower_bound_takes_effect_at_once_and_frees_slots() {
    let table = BoundedTable::new(8 << 20);
    for n in 0..20_000 {
        table.insert(item(n, n, 1));
    }
    assert!(table.size().1 > 1 << 20);
    for max_bytes in [256 << 10, 4 << 10, 0] {
        table.set_max_bytes(max_bytes);
        check(&table);
        assert!(table.size().1 as u64 <= max_bytes);
    }
    table.set_max_bytes(1 << 20);
    table.insert(item(1, 1, 1));
    assert_eq!(value(&table, 1), Some(1));
}

#[test]
fn oversized_entry_evicts_only_its_own_key() {
    let table = BoundedTable::new(1 << 20);
    for n in 0..100 {
        table.insert(item(n, n, 10));
    }
    table.insert(item(5, 6, 1 << 20));
    assert_eq!(value(&table, 5), None);
    assert_eq!(table.size().0, 99);
    check(&table);
}

#[test]
fn concurrent_operations_keep_the_bound_and_return_whole_entries() {
    let table = Arc::new(BoundedTable::new(256 << 10));
    let threads: Vec<_> = (0..4)
        .map(|seed| {
            let table = Arc::clone(&table);
            thread::spawn(move || {
                let mut random = StdRng::seed_from_u64(seed);
                for _ in 0..50_000 {
                    let key = random.random_range(0..2000);
                    match random.random_range(0..4) {
                        0 => table.insert(item(key, key, 120)),
                        1 => {
                            let gone = item(key, 0, 0);
                            table.remove_if(gone.store, &gone.path, |item| item.value == key);
                        }
                        _ => assert!(value(&table, key).is_none_or(|value| value == key)),
                    }
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    check(&table);
}
