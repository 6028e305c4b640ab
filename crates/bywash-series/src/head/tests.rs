//! Rows in memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bywash_mem::{BlockPool, PoolConfig};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::{Point, Selector};

const SECOND: i64 = 1_000_000_000;

fn head(limit: u64) -> Head {
    let pool = BlockPool::new(PoolConfig::new(64 << 20)).unwrap();
    let span = Span::new(Duration::from_secs(10)).unwrap();
    Head::new(span, Charge::new(pool.budget().clone(), limit))
}

fn write(head: &Head, generation: u64, rows: &[(i64, f64)]) -> usize {
    let handle = head.catalog.handle("host", "cpu", &head.charge);
    let series = head.catalog.series(handle.unwrap()).unwrap();
    let points = rows
        .iter()
        .map(|&(timestamp, value)| Point { timestamp, value });
    series
        .turn(generation)
        .write(head.span, &head.charge, points)
}

/// Partition, generation and points.
type Rows = (i64, u64, Vec<(i64, f64)>);

fn read(head: &Head, range: RangeInclusive<i64>) -> Vec<Rows> {
    let mut runs: Vec<_> = head
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
fn of_rows_with_one_timestamp_the_last_written_wins_in_order_or_late() {
    let head = head(1 << 20);
    assert_eq!(
        write(
            &head,
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
        read(&head, 0..=10),
        [(0, 1, vec![(5, 6.0), (6, 4.0), (7, 5.0), (8, 7.0)])]
    );
}

#[test]
fn rows_that_come_late_by_any_distance_are_a_sorted_map() {
    for (seed, distance) in [1, 2, 7, 8, 9, 30, 127, 128, 129, 1000]
        .into_iter()
        .enumerate()
    {
        let head = head(1 << 20);
        let mut random = StdRng::seed_from_u64(seed as u64);
        let mut map = BTreeMap::new();
        for n in 0..3000 {
            // Every second timestamp, so that some are new and some were there.
            let timestamp = (n - random.random_range(0..distance)) / 2 * 2 + n % 2;
            map.insert(timestamp, n as f64);
            write(&head, 1, &[(timestamp, n as f64)]);
            if n % 97 == 0 {
                let rows: Vec<_> = read(&head, 0..=SECOND)
                    .into_iter()
                    .flat_map(|run| run.2)
                    .collect();
                let wanted = map
                    .range(0..)
                    .map(|(&timestamp, &value)| (timestamp, value));
                assert_eq!(rows, wanted.collect::<Vec<_>>(), "late by up to {distance}");
            }
        }
    }
}

#[test]
fn each_partition_and_generation_is_a_run_whatever_order_rows_come_in() {
    let head = head(1 << 20);
    let rows = [
        (-1, 1.0),
        (0, 2.0),
        (10 * SECOND, 3.0),
        (1, 4.0),
        (i64::MIN, 5.0),
        (i64::MAX, 6.0),
        (-2, 7.0),
    ];
    write(&head, 1, &rows);
    write(&head, 2, &[(0, 8.0)]);
    let found = read(&head, -10..=20 * SECOND);
    assert_eq!(
        found,
        [
            (-1, 1, vec![(-2, 7.0), (-1, 1.0)]),
            (0, 1, vec![(0, 2.0), (1, 4.0)]),
            (0, 2, vec![(0, 8.0)]),
            (1, 1, vec![(10 * SECOND, 3.0)]),
        ]
    );
    assert_eq!(read(&head, i64::MIN..=i64::MIN)[0].2, [(i64::MIN, 5.0)]);
    assert_eq!(read(&head, i64::MAX..=i64::MAX)[0].2, [(i64::MAX, 6.0)]);
    assert_eq!(
        head.catalog.select(&Selector::all(), &(2..=SECOND)).1.len(),
        0
    );
    assert_eq!(head.catalog.select(&Selector::all(), &(0..=0)).1.len(), 1);
}

#[test]
fn what_is_forgotten_is_gone_with_its_charge_and_the_rest_stays() {
    let head = head(1 << 20);
    let rows: Vec<(i64, f64)> = (0..1000).map(|n| (n, n as f64)).collect();
    write(&head, 1, &[]);
    let empty = head.charge.used();
    write(&head, 1, &rows);
    write(&head, 2, &[(5, -1.0)]);
    let places = head.places(1);
    let (&place, series) = places.first_key_value().unwrap();
    let frozen = head.frozen(place, series);
    assert_eq!(
        (places.len(), frozen.partition, frozen.generation),
        (1, 0, 1)
    );
    assert_eq!(frozen.series[0].timestamps, (0..1000).collect::<Vec<i64>>());
    head.forget(place, series);
    assert_eq!(read(&head, 0..=10), [(0, 2, vec![(5, -1.0)])]);
    let places = head.places(2);
    let (&place, series) = places.first_key_value().unwrap();
    head.forget(place, series);
    assert_eq!((read(&head, 0..=10).len(), head.charge.used()), (0, empty));
}

#[test]
fn rows_beyond_memory_are_refused_and_those_before_stay() {
    let head = head(64 << 10);
    let rows: Vec<(i64, f64)> = (0..10_000).map(|n| (n, n as f64)).collect();
    let stored = write(&head, 1, &rows);
    assert!(
        (3000..4100).contains(&stored),
        "{stored} rows of 16 bytes in 64 KiB"
    );
    assert_eq!(read(&head, 0..=SECOND)[0].2, rows[..stored]);
    assert!(head.charge.used() <= 64 << 10);
}

#[test]
fn a_reader_beside_a_writer_sees_a_prefix_of_what_is_written() {
    let head = Arc::new(head(32 << 20));
    write(&head, 1, &[(0, 0.0)]);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            for n in 1..200_000 {
                write(&head, 1, &[(n, n as f64)]);
            }
        });
        let mut seen = 0;
        while seen < 200_000 {
            let points = read(&head, 0..=SECOND).remove(0).2;
            assert!(points.len() >= seen);
            seen = points.len();
            assert!((0..).zip(&points).all(|(n, point)| *point == (n, n as f64)));
        }
    });
}
