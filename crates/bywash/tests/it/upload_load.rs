//! Load test for `cargo xtask soak uploads`: 4,096 objects of 128 KiB to 2 GiB by 16 threads in chunks of 16 MiB, to
//! a folder, each read back at the end.
//!
//! All of it would take a terabyte, so sizes are skewed to fit the disk: the smallest and the largest stay, and the
//! logarithms between them are spread by a power that makes the sum fit.

use std::path::Path as FsPath;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use bytes::Bytes;
use bywash::origin::folder::FolderStore;
use bywash::upload::UploadOptions;
use bywash::{Bucket, Consistency, Engine};
use bywash_support::pattern;
use bywash_support::settings::setting;
use object_store::ObjectStoreExt;
use object_store::path::Path;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const THREADS: usize = 16;
const OBJECTS: usize = 4096;
const SMALLEST: f64 = 128.0 * 1024.0;
const LARGEST: f64 = (2_u64 << 30) as f64;
/// Maximum fraction of all bytes for the largest object.
const LARGEST_PART: f64 = 0.25;
const CHUNK: u64 = 16 << 20;
/// A chunk per upload, and the engine's other memory.
const MEMORY: u64 = THREADS as u64 * CHUNK + (64 << 20);
/// Period of an object's bytes; each object starts at its own offset. A prime, so that no chunk or object equals
/// another.
const CONTENT: usize = 8_388_593;
const LARGEST_WRITE: usize = 256 << 10;

/// Returns sizes of the objects in random order, at most `bytes` in all.
fn sizes(seed: u64, objects: usize, bytes: f64) -> Vec<u64> {
    let mut dice = StdRng::seed_from_u64(seed);
    let mut places: Vec<f64> = (0..objects).map(|_| dice.random_range(0.0..1.0)).collect();
    places[0] = 1.0;
    let largest = LARGEST.min(bytes * LARGEST_PART).max(SMALLEST);
    let span = (largest / SMALLEST).ln();
    let skewed = |power: f64| -> Vec<u64> {
        let size = |place: &f64| (SMALLEST * (span * place.powf(power)).exp()) as u64;
        places.iter().map(size).collect()
    };
    let sum = |sizes: &[u64]| sizes.iter().sum::<u64>() as f64;
    let mut power = 1.0;
    let mut found = skewed(power);
    // 10^4: all but the largest are the smallest.
    while sum(&found) > bytes && power < 1e4 {
        power *= 1.05;
        found = skewed(power);
    }
    assert!(
        sum(&found) <= bytes,
        "{objects} objects do not fit {bytes} bytes; request fewer"
    );
    found
}

/// Bytes of an object: the same cycle for all, from an offset of its own.
struct Content {
    cycle: Bytes,
    at: usize,
    left: u64,
}

impl Content {
    fn of(cycle: &Bytes, object: usize, size: u64) -> Self {
        Self {
            cycle: cycle.clone(),
            at: object.wrapping_mul(7919) % cycle.len(),
            left: size,
        }
    }

    /// Returns the next bytes, at most `max`; none at the end.
    fn next(&mut self, max: usize) -> Bytes {
        let until_wrap = self.cycle.len() - self.at;
        let count = max
            .min(until_wrap)
            .min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let bytes = self.cycle.slice(self.at..self.at + count);
        self.at = (self.at + count) % self.cycle.len();
        self.left -= count as u64;
        bytes
    }
}

async fn upload(bucket: &Bucket, cycle: &Bytes, object: usize, size: u64, seed: u64) {
    let mut dice = StdRng::seed_from_u64(seed ^ object as u64);
    // Every other one does not announce its length.
    let options = UploadOptions {
        length: object.is_multiple_of(2).then_some(size),
        chunk: Some(CHUNK),
        ..UploadOptions::default()
    };
    let mut upload = bucket.upload(&key(object), options).await.unwrap();
    let mut content = Content::of(cycle, object, size);
    loop {
        let bytes = content.next(dice.random_range(1..=LARGEST_WRITE));
        if bytes.is_empty() {
            break;
        }
        upload.write(bytes).await.unwrap();
    }
    let stored = upload.finish().await.unwrap();
    assert_eq!(
        (stored.length, stored.resent_bytes),
        (size, 0),
        "object {object}"
    );
}

async fn check(bucket: &Bucket, cycle: &Bytes, object: usize, size: u64) {
    use futures::StreamExt;
    let found = bucket.get(&key(object)).await.unwrap();
    assert_eq!(found.meta.size, size, "object {object}");
    let mut expected = Content::of(cycle, object, size);
    let mut body = found.into_stream();
    while let Some(piece) = body.next().await {
        let mut piece = piece.unwrap();
        while !piece.is_empty() {
            let wanted = expected.next(piece.len());
            let same = !wanted.is_empty() && piece.split_to(wanted.len()) == wanted;
            assert!(
                same,
                "object {object} differs in its last {} bytes",
                expected.left
            );
        }
    }
    assert_eq!(expected.left, 0, "object {object}");
}

fn key(object: usize) -> Path {
    format!("load/{:02}/{object}", object % 64).into()
}

/// Runs `work` for every object on several threads, the largest first, so that all threads work for the longest time.
fn on_threads(sizes: &[u64], work: impl Fn(usize, u64) + Sync) {
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_unstable_by_key(|object| std::cmp::Reverse(sizes[*object]));
    // Relaxed: it hands out indexes and orders nothing else.
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some(object) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                    work(*object, sizes[*object]);
                }
            });
        }
    });
}

/// Returns the free bytes of a folder's disk for unprivileged processes.
fn free_bytes(folder: &FsPath) -> u64 {
    let found = rustix::fs::statvfs(folder).unwrap();
    found.f_bavail * found.f_frsize
}

fn run(seed: u64, objects: usize, scale: f64) {
    let home = tempfile::tempdir().unwrap();
    let bytes = free_bytes(home.path()) as f64 * scale;
    let sizes = sizes(seed, objects, bytes);
    let total: u64 = sizes.iter().sum();
    println!("seed {seed}: {objects} objects, {} MiB in all", total >> 20);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let handle = runtime.handle();
    let engine = Engine::builder().memory(MEMORY).build().unwrap();
    let origin = Arc::new(FolderStore::open(home.path()).unwrap());
    let bucket = engine
        .mount("load", origin, Consistency::default())
        .unwrap();
    let cycle = pattern(seed, CONTENT);

    let begun = Instant::now();
    on_threads(&sizes, |object, size| {
        handle.block_on(upload(&bucket, &cycle, object, size, seed));
    });
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "uploaded in {seconds:.1} s, {:.0} MiB/s",
        (total >> 20) as f64 / seconds
    );
    on_threads(&sizes, |object, size| {
        handle.block_on(check(&bucket, &cycle, object, size));
    });
    println!("all content is exact");
}

#[test]
fn small_load_is_stored_exactly() {
    let sizes = sizes(7, 100, 64e6);
    assert!(sizes.iter().sum::<u64>() <= 64_000_000);
    assert!(sizes.iter().any(|size| *size < 256 << 10));
    assert!(sizes.iter().any(|size| *size > 8 << 20));
    let free = free_bytes(&std::env::temp_dir()) as f64;
    run(7, 24, 48e6 / free);
}

#[test]
#[ignore = "as long as the disk is large: cargo xtask soak uploads"]
fn load_of_the_given_seed() {
    run(
        setting("BYWASH_SEED", 1),
        setting("BYWASH_LOAD_OBJECTS", OBJECTS),
        setting("BYWASH_LOAD_SCALE", 0.4),
    );
}
