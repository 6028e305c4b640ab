//! Random writes, rolls, seals, merges, starts and crashes beside a sorted map.

use std::ops::RangeInclusive;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::log::{truncate, used};
use super::*;
use crate::{Selector, SeriesNames};

const NAMES: [(&str, &str); 4] = [("", ""), ("a", "b"), ("ab", ""), ("日本", "/")];
const HOUR: i64 = 3_600_000_000_000;
const STEPS: usize = 60;

/// By series and timestamp: the bits of the values.
type Model = BTreeMap<(usize, i64), u64>;

/// `BYWASH_SEED=N` plays one, `BYWASH_SEEDS=A..B` others.
fn seeds() -> std::ops::Range<u64> {
    let number = |text: &str| text.parse::<u64>().expect("a seed is a number");
    if let Ok(one) = std::env::var("BYWASH_SEED") {
        return number(&one)..number(&one) + 1;
    }
    let seeds = std::env::var("BYWASH_SEEDS").unwrap_or_else(|_| "0..3".to_owned());
    let (from, to) = seeds.split_once("..").expect("BYWASH_SEEDS=A..B");
    number(from)..number(to)
}

struct Run {
    random: StdRng,
    world: World,
    db: SeriesDb,
    model: Model,
}

impl Run {
    async fn new(seed: u64) -> Self {
        let world = World::new();
        Self {
            random: StdRng::seed_from_u64(seed),
            db: world.open().await.unwrap(),
            world,
            model: Model::new(),
        }
    }

    /// Some rows: mostly in order, some late, some of timestamps that were written before, and some of the ends of time.
    fn rows(&mut self) -> Vec<(usize, i64, f64)> {
        let count = [1, 1, 7, 300][self.random.random_range(0..4)];
        let from = self.random.random_range(-3..3) * 2 * HOUR;
        let mut series = 0;
        (0..count)
            .map(|n| {
                if self.random.random_bool(0.2) {
                    series = self.random.random_range(0..NAMES.len());
                }
                let timestamp = match self.random.random_range(0..40) {
                    0 => i64::MIN + n,
                    1 => i64::MAX - n,
                    2..8 => from + self.random.random_range(0..20),
                    _ => from + n,
                };
                (series, timestamp, f64::from_bits(self.random.random()))
            })
            .collect()
    }

    fn insert(&mut self, rows: &[(usize, i64, f64)]) {
        let named = |&(series, timestamp, value): &(usize, i64, f64)| {
            let (source, metric) = NAMES[series];
            row(source, metric, timestamp, value)
        };
        let rows: Vec<Row<'_>> = rows.iter().map(named).collect();
        self.db.insert_rows(&rows).unwrap();
    }

    fn expect(&mut self, rows: &[(usize, i64, f64)]) {
        let rows = rows
            .iter()
            .map(|&(series, timestamp, value)| ((series, timestamp), value.to_bits()));
        self.model.extend(rows);
    }

    /// The process is killed while it writes these rows: the log ends at any byte of their frames.
    async fn crash(&mut self) {
        let rows = self.rows();
        let end = |world: &World| {
            let path = world.segments().pop()?;
            let used = used(&path);
            Some((path, used))
        };
        let before = end(&self.world);
        self.insert(&rows);
        let (path, after) = end(&self.world).unwrap();
        let from = match before {
            Some((same, before)) if same == path => before,
            _ => 0,
        };
        let cut = self.random.random_range(from..=after);
        let crashed = self.world.copy();
        truncate(&crashed.segments().pop().unwrap(), cut as u64);
        self.world = crashed;
        self.db = self.world.open().await.unwrap();
        // Their frame is the last; without its last byte it is none.
        if cut == after {
            self.expect(&rows);
        }
    }

    async fn step(&mut self) {
        match self.random.random_range(0..20) {
            0 => {
                self.db.0.gate.close();
            }
            1 | 2 => self.db.flush().await.unwrap(),
            3 => self.db.tidy().await.unwrap(),
            4 => {
                self.db.close().await.unwrap();
                self.db = {
                    let closed = self.world.copy();
                    self.world = closed;
                    self.world.open().await.unwrap()
                };
                assert!(!self.db.stats().unclean_stop);
            }
            5 | 6 => self.crash().await,
            _ => {
                let rows = self.rows();
                self.insert(&rows);
                self.expect(&rows);
            }
        }
    }

    async fn compare(&self) {
        let mut found = Model::new();
        for (series, (source, metric)) in NAMES.into_iter().enumerate() {
            let mut points = self.db.iterator(source, metric);
            while let Some(point) = points.next().await.unwrap() {
                let twice = found.insert((series, point.timestamp), point.value.to_bits());
                assert_eq!(
                    twice, None,
                    "of {source:?} {metric:?} at {}",
                    point.timestamp
                );
            }
        }
        let different = self
            .model
            .iter()
            .find(|&(key, bits)| found.get(key) != Some(bits));
        assert_eq!(
            different,
            None,
            "{} rows beside {}",
            self.model.len(),
            found.len()
        );
        assert_eq!(found.len(), self.model.len());
        for from in (-4..4).map(|from| from * 2 * HOUR + 5) {
            for range in [from..=from, from..=from + 50, from - 100..=from + HOUR, ALL] {
                self.compare_names(range).await;
            }
        }
    }

    /// Of memory, those are listed that have a row in the range. Of files, those with rows around it may be too.
    async fn compare_names(&self, range: RangeInclusive<i64>) {
        let content = content(&self.db);
        let inside = content
            .keys()
            .filter(|(.., timestamp)| range.contains(timestamp));
        let mut expected: Vec<_> = inside
            .map(|(source, metric, _)| (&**source, &**metric))
            .collect();
        expected.dedup();
        let in_memory = SeriesNames::in_memory(&self.db.0.head, &Selector::all(), &range);
        assert!(in_memory.iter().eq(expected), "{in_memory:?} in {range:?}");

        let all = self.db.list(&Selector::all(), range.clone()).await.unwrap();
        assert!(all.iter().is_sorted() && all.iter().all(|names| NAMES.contains(&names)));
        for (series, names) in NAMES.into_iter().enumerate() {
            let listed = all.iter().any(|found| found == names);
            let rows = self.model.range((series, i64::MIN)..=(series, i64::MAX));
            let mut times = rows.map(|((_, timestamp), _)| timestamp);
            let (first, last) = (times.clone().next(), times.clone().next_back());
            let around = first <= Some(range.end()) && last >= Some(range.start());
            let has = times.any(|timestamp| range.contains(timestamp));
            assert!(listed || !has, "{names:?} in {range:?}");
            assert!(around || !listed, "{names:?} in {range:?}");
        }
    }
}

#[tokio::test]
async fn whatever_happens_the_rows_are_those_of_a_sorted_map() {
    for seed in seeds() {
        println!(
            "repeat with BYWASH_SEED={seed} cargo test -p bywash-series --lib db::tests::model"
        );
        let mut run = Run::new(seed).await;
        for step in 0..STEPS {
            run.step().await;
            if step % 5 == 0 {
                run.compare().await;
            }
        }
        run.compare().await;
    }
}
