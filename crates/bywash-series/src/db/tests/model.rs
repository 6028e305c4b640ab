//! Random writes, flushes, compactions, restarts and crashes, compared with a sorted map.

use std::ops::RangeInclusive;

use bywash_support::proof::Proof;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::log::{truncate, used};
use super::*;
use crate::{Selector, SeriesNames};

const NAMES: [(&str, &str); 4] = [("", ""), ("a", "b"), ("ab", ""), ("日本", "/")];
const HOUR: i64 = 3_600_000_000_000;
const STEPS: usize = 60;
/// Classes of the first steps.
const CLASSES: [&str; 7] = [
    "new generation",
    "flush",
    "flush",
    "compaction",
    "restart",
    "torn log",
    "torn log",
];

/// Bits of the values by series and timestamp.
type Model = BTreeMap<(usize, i64), u64>;

struct Run {
    random: StdRng,
    database: TestDatabase,
    db: SeriesDb,
    model: Model,
    /// Steps of each class.
    steps: BTreeMap<&'static str, u64>,
}

impl Run {
    async fn new(seed: u64) -> Self {
        let database = TestDatabase::new();
        Self {
            random: StdRng::seed_from_u64(seed),
            db: database.open().await.unwrap(),
            database,
            model: Model::new(),
            steps: BTreeMap::new(),
        }
    }

    /// Random rows: mostly in order, some late, some duplicates, some at both ends of time.
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

    /// Kills the process during a write: the log ends at any byte of its frames.
    async fn crash(&mut self) {
        let rows = self.rows();
        let end = |database: &TestDatabase| {
            let path = database.segments().pop()?;
            let used = used(&path);
            Some((path, used))
        };
        let before = end(&self.database);
        self.insert(&rows);
        let (path, after) = end(&self.database).unwrap();
        let from = match before {
            Some((same, before)) if same == path => before,
            _ => 0,
        };
        let cut = self.random.random_range(from..=after);
        let crashed = self.database.copy();
        truncate(&crashed.segments().pop().unwrap(), cut as u64);
        self.database = crashed;
        self.db = self.database.open().await.unwrap();
        // Their frame is the last one: without its last byte it is invalid.
        if cut == after {
            self.expect(&rows);
        }
    }

    async fn step(&mut self) {
        let step = self.random.random_range(0..20);
        if let Some(class) = CLASSES.get(step) {
            *self.steps.entry(class).or_default() += 1;
        }
        match step {
            0 => {
                self.db.0.gate.close();
            }
            1 | 2 => self.db.flush().await.unwrap(),
            3 => self.db.compact().await.unwrap(),
            4 => {
                self.db.close().await.unwrap();
                self.db = {
                    let closed = self.database.copy();
                    self.database = closed;
                    self.database.open().await.unwrap()
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

    /// Listings of memory are exact. Listings of files may include series with rows only around the range.
    async fn compare_names(&self, range: RangeInclusive<i64>) {
        let content = content(&self.db);
        let inside = content
            .keys()
            .filter(|(.., timestamp)| range.contains(timestamp));
        let mut expected: Vec<_> = inside
            .map(|(source, metric, _)| (&**source, &**metric))
            .collect();
        expected.dedup();
        let in_memory = SeriesNames::in_memory(
            &self.db.0.memtable,
            &Selector::all(),
            &range,
            &self.db.read_charge(),
        );
        let in_memory = in_memory.unwrap();
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
async fn database_matches_a_sorted_map_under_random_operations() {
    let repeat = "cargo test -p bywash-series --lib db::tests::model";
    let proof = Proof::new("series-log", repeat, 0..3, &CLASSES);
    while let Some(mut trial) = proof.next() {
        let mut run = Run::new(trial.seed()).await;
        for step in 0..STEPS {
            run.step().await;
            if step % 5 == 0 {
                run.compare().await;
            }
        }
        run.compare().await;
        trial.operations(STEPS as u64);
        for (class, hits) in run.steps {
            trial.fault(class, hits);
        }
    }
}
