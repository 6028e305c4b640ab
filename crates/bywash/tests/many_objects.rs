//! More objects and absent keys than the engine's tables hold: each request completes in short time, and memory is
//! bounded.
//!
//! `BYWASH_KEYS` sets the number of distinct keys, 72,000 by default; absent keys are two fifths as many.
//!
//! A process of its own: it measures the memory of the process.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bywash::origin::memory::MemoryStore;
use bywash::{Bucket, Consistency, Engine, ObjectStats};
use bywash_sim::WrappedMemory;
use bywash_support::settings::setting;
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, GetOptions, GetResult, ObjectStore, ObjectStoreExt as _, PutOptions,
    PutPayload, PutResult, Result,
};

const MEMORY: u64 = 64 << 20;
/// Memory of the process beyond its engine's.
const MARGIN: u64 = 64 << 20;
/// Length of each object, in bytes.
const LENGTH: usize = 100;
/// A request that takes longer is stuck: a thousand times its duration on a loaded machine.
const STUCK: Duration = Duration::from_secs(60);

/// A store with the one object of its `store` under each key below `there/`, and none elsewhere.
#[derive(Debug)]
struct Same {
    store: MemoryStore,
    requests: AtomicU64,
}

impl fmt::Display for Same {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("same")
    }
}

bywash_support::forward_object_store! {
    impl[] ObjectStore for Same => store {
        async fn put_opts(
            &self,
            path: &Path,
            payload: PutPayload,
            options: PutOptions,
        ) -> Result<PutResult> {
            self.store.put_opts(path, payload, options).await
        }

        async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
            self.requests.fetch_add(1, Relaxed);
            let there = path.as_ref().starts_with("there/");
            let stored = if there { Path::from("object") } else { path.clone() };
            let mut result = self.store.get_opts(&stored, options).await?;
            result.meta.location = path.clone();
            Ok(result)
        }
    }
}

struct World {
    origin: Arc<Same>,
    engine: Engine,
}

impl World {
    /// An origin whose objects carry this many bytes of user metadata.
    async fn new(metadata: usize) -> Self {
        let origin = Arc::new(Same {
            store: MemoryStore::new(),
            requests: AtomicU64::new(0),
        });
        let mut attributes = Attributes::new();
        if metadata > 0 {
            attributes.insert(
                Attribute::Metadata("note".into()),
                "x".repeat(metadata).into(),
            );
        }
        let options = PutOptions {
            attributes,
            ..PutOptions::default()
        };
        let body = PutPayload::from(vec![7; LENGTH]);
        let path = Path::from("object");
        origin.store.put_opts(&path, body, options).await.unwrap();
        let engine = Engine::builder().memory(MEMORY).build().unwrap();
        Self { origin, engine }
    }

    fn bucket(&self, name: &str) -> Bucket {
        let same: Arc<dyn ObjectStore> = Arc::<Same>::clone(&self.origin);
        let origin = WrappedMemory::new(same, self.origin.store.clone());
        let hour = Consistency::Revalidate(Duration::from_secs(3600));
        self.engine.mount(name, Arc::new(origin), hour).unwrap()
    }

    /// Checks that the tables are within their bounds.
    fn objects(&self) -> ObjectStats {
        let objects = self.engine.stats().objects;
        assert!(
            objects.known_bytes <= objects.known_limit_bytes,
            "{objects:?}"
        );
        assert!(
            objects.absent_bytes <= objects.absent_limit_bytes,
            "{objects:?}"
        );
        objects
    }
}

fn keys() -> u64 {
    setting("BYWASH_KEYS", 72_000)
}

/// Number of absent keys requested: some thousands more than their table holds.
fn absent_keys() -> u64 {
    keys() * 2 / 5
}

/// Anonymous memory of this process, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kib: u64 = line
        .unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap();
    kib << 10
}

/// Reads the object of a key, which exists or not as its name indicates.
async fn read(bucket: &Bucket, path: &Path) {
    let answer = bucket.get(path).await;
    if path.as_ref().starts_with("there/") {
        assert_eq!(answer.unwrap().bytes().await.unwrap().len(), LENGTH);
    } else {
        assert!(matches!(answer, Err(object_store::Error::NotFound { .. })));
    }
}

/// Runs `work` in a runtime of its own. It calls its argument at each step; without a call for [`STUCK`] the test
/// fails, even if a thread is in an endless loop.
fn watched<F: Future<Output = ()>>(work: impl FnOnce(Box<dyn Fn()>) -> F + Send + 'static) {
    let (alive, steps) = mpsc::sync_channel(16);
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build();
        let step = move || alive.send(()).unwrap();
        runtime.unwrap().block_on(work(Box::new(step)));
    });
    loop {
        match steps.recv_timeout(STUCK) {
            Ok(()) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("no request ended for {STUCK:?}"),
        }
    }
    thread.join().unwrap();
}

/// Requests distinct objects and absent keys, one after the other.
#[test]
fn keys_far_beyond_the_tables_are_served_in_bounded_time_and_memory() {
    watched(async |step| {
        let world = World::new(0).await;
        let bucket = world.bucket("test");
        let before = resident();
        let mut latencies = Vec::new();
        let mut known = 0;
        for number in 0..keys() {
            let absent = (number < absent_keys()).then(|| format!("absent/{number}"));
            for path in [Some(format!("there/{number}")), absent]
                .into_iter()
                .flatten()
            {
                let begun = Instant::now();
                read(&bucket, &Path::from(path)).await;
                latencies.push(begun.elapsed());
            }
            if number.is_multiple_of(1000) {
                step();
                let objects = world.objects();
                let grown = resident().saturating_sub(before);
                assert!(
                    grown <= MEMORY + MARGIN,
                    "{grown} bytes after {number} keys"
                );
                known = known.max(objects.known);
            }
        }
        let objects = world.objects();
        assert!(
            objects.known < keys() && objects.absent < absent_keys(),
            "{objects:?}"
        );
        assert!(
            objects.known > 4096 && objects.absent > 4096,
            "the tables are in use: {objects:?}"
        );
        latencies.sort_unstable();
        let late = latencies[latencies.len() * 999 / 1000];
        assert!(
            late < Duration::from_millis(500),
            "99.9 of 100 within {late:?}"
        );
        println!(
            "{objects:?}, 99.9 % within {late:?}, {} bytes more",
            resident().saturating_sub(before)
        );
        // The newest are known, and the oldest of both tables are requested again.
        let newest = (keys() - 1, absent_keys() - 1);
        for ((there, absent), asked) in [(newest, 0), ((0, 0), 1)] {
            for path in [format!("there/{there}"), format!("absent/{absent}")] {
                let requests = world.origin.requests.load(Relaxed);
                read(&bucket, &Path::from(path.as_str())).await;
                let now = world.origin.requests.load(Relaxed);
                assert_eq!(now - requests, asked, "{path}");
            }
        }
    });
}

/// Keys of full length and objects with all the metadata that S3 allows: counts alone would not bound their memory.
#[test]
fn long_keys_and_metadata_are_bounded_by_their_bytes() {
    watched(async |step| {
        let world = World::new(2048).await;
        // Many buckets share one bound.
        let buckets: Vec<_> = (0..16)
            .map(|number| world.bucket(&format!("bucket-{number}")))
            .collect();
        for number in 0..6000 {
            let key = format!("{number}-{}", "k".repeat(1000));
            let bucket = &buckets[number % buckets.len()];
            read(bucket, &Path::from(format!("there/{key}"))).await;
            read(bucket, &Path::from(format!("absent/{key}"))).await;
            if number.is_multiple_of(100) {
                step();
                world.objects();
            }
        }
        let objects = world.objects();
        assert!(objects.known < 4000 && objects.known > 1000, "{objects:?}");
    });
}

/// The same keys written, read and deleted over and over.
#[test]
fn keys_written_and_deleted_repeatedly_leave_no_entries() {
    watched(async |step| {
        let world = World::new(0).await;
        let bucket = world.bucket("test");
        for round in 0..100 {
            for number in 0..50 {
                let path = Path::from(format!("come/{number}"));
                bucket.put(&path, vec![1; LENGTH].into()).await.unwrap();
                bucket.get(&path).await.unwrap().bytes().await.unwrap();
                bucket.delete(&path).await.unwrap();
                if round % 2 == 0 {
                    read(&bucket, &path).await;
                }
            }
            step();
        }
        let objects = world.objects();
        assert_eq!(
            (objects.known, objects.absent),
            (0, 0),
            "the last round left nothing"
        );
    });
}
