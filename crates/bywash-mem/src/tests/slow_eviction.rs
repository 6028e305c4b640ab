//! The report of slow evictions.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::{MIB, begin, key, load};
use crate::{BlockOptions, BlockPool, Keep, PoolConfig, Spill, Spilled};

const PAGE: u64 = 4096;

#[derive(Clone, Default)]
struct LogText(Arc<Mutex<Vec<u8>>>);

impl io::Write for LogText {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs with a pool, and returns its log of slow evictions.
fn slow_eviction_log(config: PoolConfig, run: impl FnOnce(&Arc<BlockPool>)) -> String {
    // With one subscriber, tracing asks the first thread that reaches an event whether it is enabled, and never
    // again. A thread of another test has no subscriber and would disable it for all. With two it asks both.
    let _second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
    let log = LogText::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, || {
        run(&BlockPool::new(config).unwrap());
    });
    let log = log.0.lock().unwrap();
    String::from_utf8(log.clone()).unwrap()
}

/// The default thresholds, without the limit of time: a test may be paused.
fn by_rounds() -> PoolConfig {
    PoolConfig {
        slow_eviction: Duration::MAX,
        ..PoolConfig::new(MIB)
    }
}

#[test]
fn pass_over_pinned_blocks_is_slow_by_the_default_number_of_rounds() {
    let log = slow_eviction_log(by_rounds(), |pool| {
        let pins: Vec<_> = (0..20)
            .map(|object| load(pool, key(object), b"pinned"))
            .collect();
        drop(load(pool, key(20), b"not pinned"));
        assert!(pool.cache.evict(10 * PAGE));
        assert_eq!(pool.stats().slow_evictions, 1);
        for _ in 0..100 {
            assert!(!pool.cache.evict(10 * PAGE));
        }
        assert_eq!(pool.stats().slow_evictions, 101);
        drop(pins);
        assert!(pool.cache.evict(10 * PAGE));
        assert_eq!(pool.stats().slow_evictions, 101);
    });
    assert!(log.lines().count() < 50, "one a second: {log}");
    for part in [
        "WARN",
        "eviction was slow: most of the blocks it looked at are pinned",
        "blocks=21",
        "blocks_evicted=1",
        "bytes_wanted=40960",
        "bytes_freed=4096",
        "used_before=86016",
        "used_after=86016",
        "looks=",
        "looks_at_pinned=",
        "elapsed_ms=",
    ] {
        assert!(log.contains(part), "{part} in {log}");
    }
}

/// Blocks that are all on probation are looked at twice, not three times.
#[test]
fn pass_over_pinned_blocks_on_probation_is_slow() {
    let log = slow_eviction_log(by_rounds(), |pool| {
        let fill = || -> Vec<_> {
            (0..100)
                .map(|object| load(pool, key(object), b"x"))
                .collect()
        };
        drop(fill());
        assert!(pool.cache.evict(100 * PAGE));
        let pins = fill();
        assert!(!pool.cache.evict(PAGE));
        assert_eq!(pool.stats().slow_evictions, 1);
        drop(pins);
    });
    assert_eq!(log.lines().count(), 1, "{log}");
}

#[test]
fn normal_evictions_are_not_slow() {
    let log = slow_eviction_log(by_rounds(), |pool| {
        // A scan of many times the memory, with a part of it in use.
        for object in 0..2000 {
            drop(load(pool, key(object), b"scan"));
            drop(pool.get(key(object % 100)));
        }
        // All blocks are in steady use: the first pass ages every block.
        for round in 0..20 {
            for _ in 0..8 {
                (0..2000).for_each(|object| drop(pool.get(key(object))));
            }
            drop(load(pool, key(5000 + round), b"new"));
        }
        // One pass evicts many.
        assert!(pool.cache.evict(100 * PAGE));
        pool.set_limit(MIB / 4).unwrap();
        assert!(pool.cache.evict(u64::MAX));
        assert!(!pool.cache.evict(PAGE), "nothing is left");
        assert!(pool.stats().evictions > 2000);
        assert_eq!(pool.stats().slow_evictions, 0);
    });
    assert_eq!(log, "");
}

/// A spill hook that takes longer than the limit to decline a block.
#[derive(Debug)]
struct SlowTier(Duration);

impl Spill for SlowTier {
    fn spill(&self, block: Spilled) -> Result<(), Spilled> {
        let started = Instant::now();
        while started.elapsed() <= self.0 {
            std::hint::spin_loop();
        }
        Err(block)
    }
}

#[test]
fn pass_is_slow_above_the_limit_of_time() {
    assert_eq!(
        PoolConfig::new(MIB).slow_eviction,
        Duration::from_millis(1000)
    );
    let limit = Duration::from_millis(20);
    let config = PoolConfig {
        slow_eviction: limit,
        slow_eviction_rounds: u32::MAX,
        ..PoolConfig::new(MIB)
    };
    let log = slow_eviction_log(config, |pool| {
        assert!(pool.set_spill(Arc::new(SlowTier(limit))));
        let mut load = begin(pool, key(1), 10);
        load.set_options(BlockOptions {
            keep: Keep::Spill,
            ..BlockOptions::default()
        });
        load.write(&[1; 10]);
        drop(load.publish().unwrap());
        assert!(pool.cache.evict(PAGE));
        assert_eq!(pool.stats().slow_evictions, 1);
    });
    assert_eq!(log.lines().count(), 1, "{log}");
    // No block was pinned.
    for part in ["blocks=1 ", "looks_at_pinned=0", "took long"] {
        assert!(log.contains(part), "{part} in {log}");
    }
    assert!(!log.contains("are pinned"), "{log}");
}
