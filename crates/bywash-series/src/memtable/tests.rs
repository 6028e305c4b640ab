//! Tests of rows in memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bywash_mem::{BlockPool, PoolConfig};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::{Point, Selector};

const SECOND: i64 = 1_000_000_000;

fn memtable(limit: u64) -> Memtable {
    let pool = BlockPool::new(PoolConfig::new(64 << 20)).unwrap();
    let width = PartitionWidth::new(Duration::from_secs(10)).unwrap();
    Memtable::new(width, MemoryReservation::new(pool.budget().clone(), limit))
}

fn write(memtable: &Memtable, generation: u64, rows: &[(i64, f64)]) -> usize {
    let catalog = memtable.directory.current();
    let handle = catalog.handle("host", "cpu", memtable);
    let series = catalog.series(handle.unwrap()).unwrap();
    let points: Vec<Point> = rows
        .iter()
        .map(|&(timestamp, value)| Point { timestamp, value })
        .collect();
    series
        .lock(generation)
        .write(memtable.width, &memtable.memory, &points)
}

/// Partition, generation and points.
type Rows = (i64, u64, Vec<(i64, f64)>);

fn read(memtable: &Memtable, range: RangeInclusive<i64>) -> Vec<Rows> {
    let mut runs: Vec<_> = memtable
        .runs("host", "cpu", &range)
        .into_iter()
        .map(|run| {
            let points = run.blocks.iter().flat_map(|block| block.iter());
            let points = points.map(|point| (point.timestamp, point.value)).collect();
            (run.partition, run.generation, points)
        })
        .collect();
    runs.sort_by_key(|&(partition, generation, _)| (partition, generation));
    runs
}

#[test]
fn late_row_that_finds_no_memory_changes_neither_rows_nor_charges() {
    // Room for the names, a first block and some blocks in frames.
    let memtable = memtable(192 << 10);
    let mut written = 0;
    while write(&memtable, 1, &[(written * 10, 0.0)]) == 1 {
        written += 1;
    }
    assert!(written > 256, "{written}");
    // The block being filled is full, and the row belongs before its last one.
    let (used, before) = (memtable.memory.used(), read(&memtable, 0..=i64::MAX));
    for _ in 0..3 {
        assert_eq!(write(&memtable, 1, &[((written - 2) * 10 + 1, 1.0)]), 0);
        assert_eq!(memtable.memory.used(), used);
        assert_eq!(read(&memtable, 0..=i64::MAX), before);
    }
    let handle = memtable
        .directory
        .current()
        .handle("host", "cpu", &memtable);
    memtable.drop_partitions(1, &[0], &[handle.unwrap()]);
    assert_eq!(memtable.row_bytes(), 0);
    assert_eq!(write(&memtable, 2, &[(1, 1.0)]), 1);
}

#[test]
fn last_write_of_a_timestamp_wins_in_order_or_late() {
    let memtable = memtable(1 << 20);
    assert_eq!(
        write(
            &memtable,
            1,
            &[
                (5, 1.0),
                (7, 2.0),
                (5, 3.0),
                (6, 4.0),
                (7, 5.0),
                (5, 6.0),
                (8, 7.0)
            ]
        ),
        7
    );
    assert_eq!(
        read(&memtable, 0..=10),
        [(0, 1, vec![(5, 6.0), (6, 4.0), (7, 5.0), (8, 7.0)])]
    );
}

#[test]
fn late_rows_of_any_distance_match_a_sorted_map() {
    for (seed, distance) in [1, 2, 7, 8, 9, 30, 127, 128, 129, 1000]
        .into_iter()
        .enumerate()
    {
        let memtable = memtable(1 << 20);
        let mut random = StdRng::seed_from_u64(seed as u64);
        let mut map = BTreeMap::new();
        for n in 0..3000 {
            // Every second timestamp, so that both new and existing ones occur.
            let timestamp = (n - random.random_range(0..distance)) / 2 * 2 + n % 2;
            map.insert(timestamp, n as f64);
            write(&memtable, 1, &[(timestamp, n as f64)]);
            if n % 97 == 0 {
                let rows: Vec<_> = read(&memtable, 0..=SECOND)
                    .into_iter()
                    .flat_map(|run| run.2)
                    .collect();
                let expected = map
                    .range(0..)
                    .map(|(&timestamp, &value)| (timestamp, value));
                assert_eq!(
                    rows,
                    expected.collect::<Vec<_>>(),
                    "late by up to {distance}"
                );
            }
        }
    }
}

#[test]
fn late_runs_over_blocks_and_partitions_match_a_sorted_map() {
    const WIDTH: i64 = 10 * SECOND;
    // The last one ends before its width does.
    for start in [-WIDTH, i64::MAX - WIDTH / 2] {
        for len in [1, 3, 127, 300] {
            let memtable = memtable(8 << 20);
            let mut random = StdRng::seed_from_u64(len as u64);
            let mut maps: BTreeMap<i64, BTreeMap<i64, f64>> = BTreeMap::new();
            let (mut bounds, catalog) = ((i64::MAX, i64::MIN), memtable.directory.current());
            for n in 0..40_i64 {
                // Of two writers one is ahead; runs descend now and then.
                let late = n % 2 * random.random_range(0..WIDTH / 4);
                let first = start + n * WIDTH / 100 - late;
                let mut rows: Vec<_> = (0..len)
                    .map(|at| first.saturating_add(at as i64 * WIDTH / 200))
                    .zip((0..).map(|at| (n * 1000 + at) as f64))
                    .collect();
                if n % 5 == 4 {
                    rows.reverse();
                }
                assert_eq!(write(&memtable, 1, &rows), rows.len());
                for &(timestamp, value) in &rows {
                    bounds = (bounds.0.min(timestamp), bounds.1.max(timestamp));
                    let of = maps.entry(memtable.width.partition(timestamp));
                    of.or_default().insert(timestamp, value);
                }
                let expected = maps.iter().map(|(&partition, map)| {
                    let rows = map.iter().map(|(&timestamp, &value)| (timestamp, value));
                    (partition, 1, rows.collect())
                });
                let expected: Vec<Rows> = expected.collect();
                assert_eq!(read(&memtable, i64::MIN..=i64::MAX), expected, "{len} {n}");
                let found = |range| catalog.select(&Selector::all(), &range).1.len();
                assert_eq!(found(i64::MIN..=bounds.0), 1);
                assert_eq!(found(bounds.1..=i64::MAX), 1);
                assert_eq!(found(i64::MIN..=bounds.0 - 1), 0);
                assert_eq!(
                    found(bounds.1.saturating_add(1)..=i64::MAX),
                    usize::from(bounds.1 == i64::MAX)
                );
            }
        }
    }
}

#[test]
fn rows_are_grouped_by_partition_and_generation_in_any_order() {
    let memtable = memtable(1 << 20);
    let rows = [
        (-1, 1.0),
        (0, 2.0),
        (10 * SECOND, 3.0),
        (1, 4.0),
        (i64::MIN, 5.0),
        (i64::MAX, 6.0),
        (-2, 7.0),
    ];
    write(&memtable, 1, &rows);
    write(&memtable, 2, &[(0, 8.0)]);
    let found = read(&memtable, -10..=20 * SECOND);
    assert_eq!(
        found,
        [
            (-1, 1, vec![(-2, 7.0), (-1, 1.0)]),
            (0, 1, vec![(0, 2.0), (1, 4.0)]),
            (0, 2, vec![(0, 8.0)]),
            (1, 1, vec![(10 * SECOND, 3.0)]),
        ]
    );
    let catalog = memtable.directory.current();
    assert_eq!(read(&memtable, i64::MIN..=i64::MIN)[0].2, [(i64::MIN, 5.0)]);
    assert_eq!(read(&memtable, i64::MAX..=i64::MAX)[0].2, [(i64::MAX, 6.0)]);
    assert_eq!(catalog.select(&Selector::all(), &(2..=SECOND)).1.len(), 0);
    assert_eq!(catalog.select(&Selector::all(), &(0..=0)).1.len(), 1);
}

#[test]
fn dropped_partition_releases_its_memory_and_others_stay() {
    let memtable = memtable(1 << 20);
    let rows: Vec<(i64, f64)> = (0..1000).map(|n| (n, n as f64)).collect();
    write(&memtable, 1, &[]);
    let empty = memtable.memory.used();
    write(&memtable, 1, &rows);
    write(&memtable, 2, &[(5, -1.0)]);
    let partitions = memtable.partitions(1);
    let (key, of_partition) = partitions.first_key_value().unwrap();
    assert_eq!((key.partition, of_partition.rows), (0, 1000));
    let series = &of_partition.series;
    let immutable = memtable.freeze(key.generation, vec![key.partition], series);
    assert_eq!(
        (
            partitions.len(),
            &*immutable.partitions,
            immutable.generation
        ),
        (1, &[0][..], 1)
    );
    assert_eq!(
        immutable.series[0].timestamps,
        (0..1000).collect::<Vec<i64>>()
    );
    memtable.drop_partitions(key.generation, &[key.partition], series);
    assert_eq!(read(&memtable, 0..=10), [(0, 2, vec![(5, -1.0)])]);
    let partitions = memtable.partitions(2);
    let (key, rows) = partitions.first_key_value().unwrap();
    memtable.drop_partitions(key.generation, &[key.partition], &rows.series);
    assert_eq!(
        (read(&memtable, 0..=10).len(), memtable.memory.used()),
        (0, empty)
    );
}

#[test]
fn rows_above_the_memory_limit_are_rejected_and_earlier_ones_stay() {
    const LIMIT: u64 = 256 << 10;
    let memtable = memtable(LIMIT);
    let rows: Vec<(i64, f64)> = (0..20_000).map(|n| (n, n as f64)).collect();
    let stored = write(&memtable, 1, &rows);
    let room = (LIMIT - memtable.directory.bytes()) as usize / 16;
    assert!(
        (room * 3 / 4..=room).contains(&stored),
        "{stored} rows of 16 bytes, {room} fit"
    );
    assert_eq!(read(&memtable, 0..=SECOND)[0].2, rows[..stored]);
    assert!(memtable.memory.used() <= LIMIT);
}

#[test]
fn concurrent_reader_sees_a_prefix_of_the_writes() {
    let memtable = Arc::new(memtable(32 << 20));
    write(&memtable, 1, &[(0, 0.0)]);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            for n in 1..200_000 {
                write(&memtable, 1, &[(n, n as f64)]);
            }
        });
        let mut seen = 0;
        while seen < 200_000 {
            let points = read(&memtable, 0..=SECOND).remove(0).2;
            assert!(points.len() >= seen);
            seen = points.len();
            assert!((0..).zip(&points).all(|(n, point)| *point == (n, n as f64)));
        }
    });
}
