//! `hit-ratio`: hit ratios of seeded traces with the pool, LRU, `quick_cache` and moka, for caches of several sizes. Counted in
//! blocks, not timed.

use std::collections::HashMap;
use std::sync::Arc;

use bywash_mem::{BlockKey, BlockPool, Claim, MIN_FRAME, PoolConfig, Share};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::Failure;

/// Keys of the Zipf traces.
const KEYS: usize = 100_000;
/// First key of those that only scans, loops and hot sets have.
const APART: u64 = 1 << 40;

/// Settings.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// Requests of each trace
    #[arg(long, default_value_t = 1_000_000)]
    requests: usize,
    /// Sizes of the caches, in blocks
    #[arg(long, value_delimiter = ',', default_values_t = [1000, 5000, 20_000])]
    sizes: Vec<usize>,
    /// Seed of the traces
    #[arg(long, default_value_t = 7)]
    seed: u64,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    println!(
        "`cargo xtask bench hit-ratio --requests {} --seed {}`: hits of 100 requests. Best: the better of quick_cache and moka.\n",
        args.requests, args.seed
    );
    println!("| trace | blocks | Bywash | LRU | quick_cache | moka | to LRU | to the best |");
    println!("|---|--:|--:|--:|--:|--:|--:|--:|");
    let mut missed = Vec::new();
    for trace in TRACES {
        for &size in &args.sizes {
            let mut rng = StdRng::seed_from_u64(args.seed);
            let requests = (trace.requests)(&mut rng, args.requests, size);
            let ours = ratio(pool(size)?, &requests)?;
            let lru = ratio(lru(size), &requests)?;
            let quick = ratio(quick_cache(size), &requests)?;
            let moka = ratio(moka(size), &requests)?;
            let (to_lru, to_best) = (ours - lru, ours - quick.max(moka));
            println!(
                "| {} | {size} | {ours:.1} | {lru:.1} | {quick:.1} | {moka:.1} | {to_lru:+.1} | {to_best:+.1} |",
                trace.name
            );
            if to_lru < 0.0 || to_best < -1.0 {
                missed.push(format!("{} at {size}", trace.name));
            }
        }
    }
    println!("\nUnder LRU, or over 1 point under the best: {missed:?}");
    Ok(())
}

fn ratio(
    mut hit: impl FnMut(u64) -> Result<bool, Failure>,
    requests: &[u64],
) -> Result<f64, Failure> {
    let mut hits = 0_u32;
    for &key in requests {
        hits += u32::from(hit(key)?);
    }
    Ok(f64::from(hits) * 100.0 / requests.len() as f64)
}

struct Trace {
    name: &'static str,
    /// Returns `requests` requests, for a cache of this many blocks.
    requests: fn(&mut StdRng, usize, usize) -> Vec<u64>,
}

const TRACES: [Trace; 7] = [
    Trace {
        name: "Zipf 0.7 of 100,000 keys",
        requests: |rng, requests, _| zipf(0.7).take(rng, requests),
    },
    Trace {
        name: "Zipf 0.9",
        requests: |rng, requests, _| zipf(0.9).take(rng, requests),
    },
    Trace {
        name: "Zipf 1.1",
        requests: |rng, requests, _| zipf(1.1).take(rng, requests),
    },
    Trace {
        name: "Zipf 0.9, and after each 40,000 a scan of 10,000 new keys",
        requests: |rng, requests, _| {
            let zipf = zipf(0.9);
            let scan = |i: usize| i % 50_000 >= 40_000;
            let mut next = |i| {
                if scan(i) {
                    APART + i as u64
                } else {
                    zipf.draw(rng)
                }
            };
            (0..requests).map(&mut next).collect()
        },
    },
    Trace {
        name: "loop over 1.1 times the blocks",
        requests: |_, requests, size| {
            (0..requests)
                .map(|i| (i % (size * 11 / 10)) as u64)
                .collect()
        },
    },
    Trace {
        name: "hot set of 0.8 times the blocks (90 %), another one after 100 times the blocks",
        requests: |rng, requests, size| {
            let hot = size as u64 * 8 / 10;
            let mut next = |i| {
                if rng.random_ratio(9, 10) {
                    APART + (i / (size * 100)) as u64 * hot + rng.random_range(0..hot)
                } else {
                    rng.random_range(0..10 * KEYS as u64)
                }
            };
            (0..requests).map(&mut next).collect()
        },
    },
    Trace {
        name: "Zipf 0.9, all ranks dealt anew 4 times",
        requests: |rng, requests, _| {
            let zipf = zipf(0.9);
            let step = (KEYS / 5) as u64;
            let mut next = |i| (zipf.draw(rng) + (i * 5 / requests) as u64 * step) % KEYS as u64;
            (0..requests).map(&mut next).collect()
        },
    },
];

/// Ranks drawn with a probability of `1 / rank ^ exponent`.
struct Zipf {
    cumulative: Vec<f64>,
}

fn zipf(exponent: f64) -> Zipf {
    let mut sum = 0.0;
    let mut cumulative: Vec<f64> = (1..=KEYS)
        .map(|rank| {
            sum += (rank as f64).powf(-exponent);
            sum
        })
        .collect();
    cumulative.iter_mut().for_each(|value| *value /= sum);
    Zipf { cumulative }
}

impl Zipf {
    fn draw(&self, rng: &mut StdRng) -> u64 {
        let at: f64 = rng.random();
        self.cumulative.partition_point(|&value| value < at) as u64
    }

    fn take(&self, rng: &mut StdRng, requests: usize) -> Vec<u64> {
        (0..requests).map(|_| self.draw(rng)).collect()
    }
}

/// The pool itself, with blocks of one page.
fn pool(size: usize) -> Result<impl FnMut(u64) -> Result<bool, Failure>, Failure> {
    let config = PoolConfig {
        download_guarantee: 0,
        upload_guarantee: 0,
        ..PoolConfig::new((size * MIN_FRAME) as u64)
    };
    let pool: Arc<BlockPool> = BlockPool::new(config)?;
    Ok(move |object| {
        let key = BlockKey {
            store: 0,
            object,
            block: 0,
        };
        let Claim::Vacant(mut load) = pool.claim(key) else {
            return Ok(true);
        };
        let frame = pool
            .try_frames(Share::Download, 1, 1, 1)
            .and_then(|mut frames| frames.pop());
        load.attach(frame.ok_or("no block can be evicted")?, 1);
        load.advance(1);
        drop(load.publish()?);
        Ok(false)
    })
}

fn quick_cache(size: usize) -> impl FnMut(u64) -> Result<bool, Failure> {
    // One shard, for the highest accuracy.
    let mut cache = quick_cache::unsync::Cache::new(size);
    move |key| {
        let hit = cache.get(&key).is_some();
        if !hit {
            cache.insert(key, ());
        }
        Ok(hit)
    }
}

fn moka(size: usize) -> impl FnMut(u64) -> Result<bool, Failure> {
    let cache = moka::sync::Cache::builder()
        .max_capacity(size as u64)
        .build();
    let mut requests = 0_u32;
    move |key| {
        let hit = cache.get(&key).is_some();
        if !hit {
            cache.insert(key, ());
        }
        // Its maintenance is delayed, so it is run here.
        requests = requests.wrapping_add(1);
        if requests.is_multiple_of(4) {
            cache.run_pending_tasks();
        }
        Ok(hit)
    }
}

/// Exact LRU: a linked list in a table, whose first entry represents both ends.
fn lru(size: usize) -> impl FnMut(u64) -> Result<bool, Failure> {
    struct Entry {
        key: u64,
        prev: usize,
        next: usize,
    }
    let mut places: HashMap<u64, usize> = HashMap::new();
    let mut entries = vec![Entry {
        key: 0,
        prev: 0,
        next: 0,
    }];
    move |key| {
        let known = places.get(&key).copied();
        let place = match known {
            Some(place) => place,
            None if places.len() < size => {
                entries.push(Entry {
                    key,
                    prev: 0,
                    next: 0,
                });
                entries.len() - 1
            }
            None => {
                let oldest = entries[0].prev;
                places.remove(&entries[oldest].key);
                entries[oldest].key = key;
                oldest
            }
        };
        let Entry { prev, next, .. } = entries[place];
        // A new entry is not linked, and unlinking it would cut the list.
        if known.is_some() || place == entries[0].prev {
            entries[prev].next = next;
            entries[next].prev = prev;
        }
        let first = entries[0].next;
        (entries[place].prev, entries[place].next) = (0, first);
        entries[first].prev = place;
        entries[0].next = place;
        places.insert(key, place);
        Ok(known.is_some())
    }
}
