//! The most requested objects, in fixed memory.
//!
//! A space-saving sketch: a fixed number of counters, where an object without one takes over the smallest, count
//! included. So a hot object is never missing, and a count is too high by at most the smallest one. (Metwally,
//! Agrawal, El Abbadi: Efficient computation of frequent and top-k elements in data streams, 2005.)

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use crate::limits::MAX_HOT_OBJECTS;
use parking_lot::Mutex;
use serde::Serialize;

/// Time in which counts halve, so that objects that were hot yesterday make room.
const HALF_LIFE: Duration = Duration::from_secs(600);

/// An object and its recent requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HotObject {
    /// Its bucket.
    pub bucket: String,
    /// Its key.
    pub key: String,
    /// Recent reads; older ones count less.
    pub requests: u64,
    /// Bytes sent for them.
    pub bytes: u64,
}

#[derive(Debug)]
pub(super) struct Hottest {
    sketch: Mutex<Sketch>,
    hasher: RandomState,
}

impl Default for Hottest {
    fn default() -> Self {
        Self {
            sketch: Mutex::new(Sketch {
                hashes: Vec::with_capacity(MAX_HOT_OBJECTS),
                objects: Vec::with_capacity(MAX_HOT_OBJECTS),
                halved: Instant::now(),
            }),
            hasher: RandomState::new(),
        }
    }
}

#[derive(Debug)]
struct Sketch {
    /// Hashes of `objects`, so that a lookup reads few cache lines.
    hashes: Vec<u64>,
    objects: Vec<HotObject>,
    halved: Instant,
}

impl Hottest {
    /// Counts a read. Skipped when the lock is taken: no request waits for statistics.
    pub(super) fn note(&self, bucket: &str, key: &str, bytes: u64) {
        let Some(mut sketch) = self.sketch.try_lock() else {
            return;
        };
        let hash = self.hasher.hash_one((bucket, key));
        sketch.fade(Instant::now());
        sketch.count(hash, bucket, key, bytes);
    }

    pub(super) fn top(&self, max: usize) -> Vec<HotObject> {
        let mut objects = {
            let mut sketch = self.sketch.lock();
            sketch.fade(Instant::now());
            sketch.objects.clone()
        };
        objects.retain(|object| object.requests > 0);
        objects.sort_by(|a, b| {
            (b.requests, b.bytes, &a.bucket, &a.key).cmp(&(a.requests, a.bytes, &b.bucket, &b.key))
        });
        objects.truncate(max);
        objects
    }
}

impl Sketch {
    fn count(&mut self, hash: u64, bucket: &str, key: &str, bytes: u64) {
        let known = self
            .hashes
            .iter()
            .zip(&self.objects)
            .position(|(found, object)| {
                *found == hash && object.bucket == bucket && object.key == key
            });
        if let Some(at) = known {
            let object = &mut self.objects[at];
            object.requests += 1;
            object.bytes += bytes;
            return;
        }
        let mut object = HotObject {
            bucket: bucket.to_owned(),
            key: key.to_owned(),
            requests: 1,
            bytes,
        };
        if self.objects.len() < MAX_HOT_OBJECTS {
            self.hashes.push(hash);
            self.objects.push(object);
            return;
        }
        let counts = self
            .objects
            .iter()
            .map(|object| object.requests)
            .enumerate();
        let (at, min) = counts
            .min_by_key(|(_, requests)| *requests)
            .expect("the sketch is full");
        object.requests += min;
        self.hashes[at] = hash;
        self.objects[at] = object;
    }

    fn fade(&mut self, now: Instant) {
        while now.duration_since(self.halved) >= HALF_LIFE {
            self.halved += HALF_LIFE;
            for object in &mut self.objects {
                object.requests /= 2;
                object.bytes /= 2;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hot_objects_are_found_among_many_cold_ones() {
        let hottest = Hottest::default();
        for round in 0..2000 {
            for hot in 0..4 {
                hottest.note("data", &format!("hot-{hot}"), 10);
            }
            hottest.note("data", &format!("cold-{round}"), 1);
        }
        let mut keys: Vec<_> = hottest
            .top(4)
            .into_iter()
            .map(|object| object.key)
            .collect();
        keys.sort();
        assert_eq!(keys, ["hot-0", "hot-1", "hot-2", "hot-3"]);
        assert!(hottest.top(usize::MAX).len() <= MAX_HOT_OBJECTS);
    }

    #[test]
    fn same_keys_of_two_buckets_are_two_objects() {
        let hottest = Hottest::default();
        for bucket in ["a", "b", "b"] {
            hottest.note(bucket, "key", 5);
        }
        let top: Vec<_> = hottest
            .top(9)
            .into_iter()
            .map(|hot| (hot.bucket, hot.requests, hot.bytes))
            .collect();
        assert_eq!(top, [("b".to_owned(), 2, 10), ("a".to_owned(), 1, 5)]);
    }

    #[test]
    fn count_of_an_old_object_fades() {
        let hottest = Hottest::default();
        for _ in 0..8 {
            hottest.note("data", "old", 1);
        }
        let mut sketch = hottest.sketch.lock();
        let later = sketch.halved + 3 * HALF_LIFE;
        sketch.fade(later);
        assert_eq!(sketch.objects[0].requests, 1);
        sketch.fade(later + HALF_LIFE);
        assert_eq!(sketch.objects[0].requests, 0);
    }
}
