//! Random flushes, compactions, retention and failures, compared with a sorted map.

use std::collections::BTreeMap;

use bywash_support::proof::{Proof, class};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;
use bywash_support::faulty_store::{Fault, FaultyStore};

type Model = BTreeMap<(&'static str, i64), u64>;

const NAMES: [&str; 3] = ["", "a", "b/c"];
const STEPS: usize = 40;

struct Run {
    random: StdRng,
    store: FaultyStore,
    shared: Arc<dyn ObjectStore>,
    files: DataFiles,
    model: Model,
    generation: u64,
    /// Faults of each class.
    faults: BTreeMap<String, u64>,
}

const REOPEN: &str = "reopened";
const RETENTION: &str = "retention";

impl Run {
    fn note(&mut self, class: impl Into<String>) {
        *self.faults.entry(class.into()).or_default() += 1;
    }

    async fn new(seed: u64) -> Self {
        let store = FaultyStore::default();
        let shared = store.shared();
        Self {
            random: StdRng::seed_from_u64(seed),
            files: open(&shared).await,
            store,
            shared,
            model: Model::new(),
            generation: 0,
            faults: BTreeMap::new(),
        }
    }

    fn fail_sometimes(&mut self) {
        if self.random.random_bool(0.4) {
            let method = ["put", "put", "get"][self.random.random_range(0..3)];
            let part = ["manifest", "files/"][self.random.random_range(0..2)];
            let faults = [Fault::Fail, Fault::LoseResponse, Fault::DelayPut];
            let fault = faults[self.random.random_range(0..3)];
            // Only puts can be delayed, and a delayed file would be named before it exists.
            let fault = if fault == Fault::DelayPut && (method, part) != ("put", "manifest") {
                Fault::Fail
            } else {
                fault
            };
            self.store.fault(method, part, fault);
            self.note(class(fault));
        }
    }

    /// Flushes random rows of a few partitions, repeating until it succeeds.
    async fn flush(&mut self) {
        self.generation += 1;
        let mut rows: BTreeMap<(i64, &str), BTreeMap<i64, f64>> = BTreeMap::new();
        for _ in 0..self.random.random_range(1..200) {
            let name = NAMES[self.random.random_range(0..3)];
            let timestamp = self.random.random_range(-40..40) * 1_000_000_000_000;
            let value = f64::from_bits(self.random.random());
            let partition = span().partition(timestamp);
            rows.entry((partition, name))
                .or_default()
                .insert(timestamp, value);
            self.model.insert((name, timestamp), value.to_bits());
        }
        let mut parts: BTreeMap<i64, Vec<SeriesColumns>> = BTreeMap::new();
        for ((partition, name), points) in rows {
            let points: Vec<_> = points.into_iter().collect();
            parts
                .entry(partition)
                .or_default()
                .push(series(name, "x", &points));
        }
        let all: Vec<_> = parts
            .into_iter()
            .map(|(p, rows)| immutable(p, self.generation, rows))
            .collect();
        loop {
            self.fail_sometimes();
            let flushed = self.files.flush(all.clone(), self.generation).await;
            self.store.complete_delayed().await;
            if flushed.is_ok() {
                break;
            }
            self.reopen_sometimes().await;
        }
    }

    async fn reopen_sometimes(&mut self) {
        if self.random.random_bool(0.3) {
            self.note(REOPEN);
            self.store.clear_faults();
            self.files = open(&self.shared).await;
        }
    }

    async fn compact(&mut self) {
        self.fail_sometimes();
        let now = self.random.random_range(-40..40) * 1_000_000_000_000;
        // A failed compaction has no effect that readers see.
        let _ = self.files.compact(now, &no_rows()).await;
        self.store.complete_delayed().await;
    }

    /// Applies retention, and removes the rows from the model that the files lost.
    async fn apply_retention(&mut self) {
        let now = self.random.random_range(-60..0) * 1_000_000_000_000;
        let age = Some(Duration::from_secs(1000));
        self.note(RETENTION);
        self.store.clear_faults();
        self.files
            .apply_retention(Retention { age, bytes: None }, now)
            .await
            .unwrap();
        let oldest = now - 1_000_000_000_000;
        let mut left = Model::new();
        for name in NAMES {
            for point in rows(&self.files, (name, "x"), i64::MIN..=i64::MAX).await {
                left.insert((name, point.timestamp), point.value.to_bits());
            }
        }
        for (key, value) in &self.model {
            let kept = left.get(key);
            assert!(
                kept == Some(value) || kept.is_none() && key.1 < oldest,
                "{key:?} at {oldest}"
            );
        }
        assert!(left.keys().all(|key| self.model.contains_key(key)));
        self.model = left;
    }

    async fn compare(&mut self) {
        self.store.clear_faults();
        let ends = [
            self.random.random_range(-45..45),
            self.random.random_range(-45..45),
        ];
        let range = ends[0] * 1_000_000_000_000..=ends[1] * 1_000_000_000_000;
        for name in NAMES {
            let found = bits(&rows(&self.files, (name, "x"), range.clone()).await);
            let expected = self
                .model
                .iter()
                .filter(|((of, at), _)| *of == name && range.contains(at));
            let expected: Vec<_> = expected.map(|((_, at), bits)| (*at, *bits)).collect();
            assert_eq!(found, expected, "{name} in {range:?}");
        }
    }
}

#[tokio::test]
async fn files_match_a_sorted_map_under_failures_compaction_and_retention() {
    let repeat = "cargo test -p bywash-series --lib files_match_a_sorted_map";
    let classes = ["fail", "lose response", "delay put", REOPEN, RETENTION];
    let proof = Proof::new("series-files", repeat, 0..8, &classes);
    while let Some(mut trial) = proof.next() {
        let mut run = Run::new(trial.seed()).await;
        for _ in 0..STEPS {
            match run.random.random_range(0..10) {
                0..4 => run.flush().await,
                4..6 => run.compact().await,
                6 => run.apply_retention().await,
                7 => run.reopen_sometimes().await,
                _ => run.compare().await,
            }
        }
        run.compare().await;
        run.store.clear_faults();
        let files = open(&run.shared).await;
        run.files = files;
        run.files
            .delete_orphans(Duration::ZERO, i64::MAX)
            .await
            .unwrap();
        assert_eq!(
            objects(&run.shared).await.len(),
            run.files.version().files().len()
        );
        run.compare().await;
        trial.operations(STEPS as u64);
        for (class, hits) in run.faults {
            trial.fault(class, hits);
        }
    }
}
