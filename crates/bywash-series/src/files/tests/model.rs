//! Random seals, merges, retention and failures beside a sorted map.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::cues::{Cue, CuedStore};
use super::*;

type Model = BTreeMap<(&'static str, i64), u64>;

const NAMES: [&str; 3] = ["", "a", "b/c"];
const STEPS: usize = 40;

/// `BYWASH_SEED=N` plays one, `BYWASH_SEEDS=A..B` others.
fn seeds() -> std::ops::Range<u64> {
    let number = |text: &str| text.parse::<u64>().expect("a seed is a number");
    if let Ok(one) = std::env::var("BYWASH_SEED") {
        return number(&one)..number(&one) + 1;
    }
    let seeds = std::env::var("BYWASH_SEEDS").unwrap_or_else(|_| "0..8".to_owned());
    let (from, to) = seeds.split_once("..").expect("BYWASH_SEEDS=A..B");
    number(from)..number(to)
}

struct Run {
    random: StdRng,
    store: CuedStore,
    shared: Arc<dyn ObjectStore>,
    files: SealedFiles,
    model: Model,
    generation: u64,
}

impl Run {
    async fn new(seed: u64) -> Self {
        let store = CuedStore::default();
        let shared: Arc<dyn ObjectStore> = Arc::new(store.clone());
        Self {
            random: StdRng::seed_from_u64(seed),
            files: open(&shared).await,
            store,
            shared,
            model: Model::new(),
            generation: 0,
        }
    }

    fn fail_sometimes(&mut self) {
        if self.random.random_bool(0.4) {
            let method = ["put", "put", "get"][self.random.random_range(0..3)];
            let part = ["manifest", "files/"][self.random.random_range(0..2)];
            let cues = [Cue::Fail, Cue::LoseAnswer, Cue::Delay];
            let cue = cues[self.random.random_range(0..3)];
            // A file that comes late would be named before it is there; only a manifest's put may.
            let cue = if part == "files/" && cue == Cue::Delay {
                Cue::Fail
            } else {
                cue
            };
            self.store.cue(method, part, cue);
        }
    }

    /// Some rows of a few partitions, repeated until they are sealed.
    async fn seal(&mut self) {
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
        let mut parts: BTreeMap<i64, Vec<FrozenSeries>> = BTreeMap::new();
        for ((partition, name), points) in rows {
            let points: Vec<_> = points.into_iter().collect();
            parts
                .entry(partition)
                .or_default()
                .push(series(name, "x", &points));
        }
        let all: Vec<_> = parts
            .into_iter()
            .map(|(p, rows)| frozen(p, self.generation, rows))
            .collect();
        loop {
            self.fail_sometimes();
            let sealed = self.files.seal(all.clone(), self.generation).await;
            self.store.arrive().await;
            if sealed.is_ok() {
                break;
            }
            self.reopen_sometimes().await;
        }
    }

    async fn reopen_sometimes(&mut self) {
        if self.random.random_bool(0.3) {
            self.store.calm();
            self.files = open(&self.shared).await;
        }
    }

    async fn merge(&mut self) {
        self.fail_sometimes();
        let now = self.random.random_range(-40..40) * 1_000_000_000_000;
        // A failed merge changes nothing that a reader sees.
        let _ = self.files.merge(now).await;
        self.store.arrive().await;
    }

    /// Drops what is old, and from the model what the files lost.
    async fn retain(&mut self) {
        let now = self.random.random_range(-60..0) * 1_000_000_000_000;
        let age = Some(Duration::from_secs(1000));
        self.store.calm();
        self.files
            .retain(Retention { age, bytes: None }, now)
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
        self.store.calm();
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
async fn files_are_a_sorted_map_through_failures_merges_and_retention() {
    for seed in seeds() {
        println!(
            "BYWASH_SEED={seed} cargo test -p bywash-series --lib sorted_map_through_failures"
        );
        let mut run = Run::new(seed).await;
        for _ in 0..STEPS {
            match run.random.random_range(0..10) {
                0..4 => run.seal().await,
                4..6 => run.merge().await,
                6 => run.retain().await,
                7 => run.reopen_sometimes().await,
                _ => run.compare().await,
            }
        }
        run.compare().await;
        run.store.calm();
        let files = open(&run.shared).await;
        run.files = files;
        run.files
            .collect_orphans(Duration::ZERO, i64::MAX)
            .await
            .unwrap();
        assert_eq!(
            objects(&run.shared).await.len(),
            run.files.version().files().len()
        );
        run.compare().await;
    }
}
