//! Read leases that this node has from holders.

use std::collections::HashMap;
use std::hash::BuildHasher as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use foldhash::fast::RandomState;
use parking_lot::{Mutex, MutexGuard};

use crate::message::CallId;
use crate::names::{Key, KeyParts};
use crate::node::Node;
use crate::timers::Timer;

/// Parts of the table, each with a lock of its own: reads of other objects do not wait for each other.
const PARTS: usize = 64;

/// Versions that this node may use without a question, each until a time of its own clock. The machine changes it; reads look at it
/// without the lock of the machine.
#[derive(Debug)]
pub(crate) struct LeaseTable<V> {
    parts: Box<[Part<V>]>,
    hasher: RandomState,
    /// Number of leases, ended ones included.
    len: AtomicUsize,
    max: usize,
}

/// On cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Part<V>(Mutex<HashMap<Key, Lease<V>, RandomState>>);

#[derive(Debug)]
struct Lease<V> {
    version: V,
    until: Duration,
}

/// Result of [`LeaseTable::put`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Put {
    /// The lease is the first of its key.
    First,
    /// The key had one, which lasts as long now.
    Again,
    /// There are as many leases as there may be. The key has none.
    Full,
}

impl<V: Clone> LeaseTable<V> {
    fn new(max: usize) -> Self {
        let hasher = RandomState::default();
        let part = || Part(Mutex::new(HashMap::with_hasher(hasher.clone())));
        Self {
            parts: (0..PARTS).map(|_| part()).collect(),
            len: AtomicUsize::new(0),
            hasher: hasher.clone(),
            max,
        }
    }

    fn part(&self, key: &dyn KeyParts) -> MutexGuard<'_, HashMap<Key, Lease<V>, RandomState>> {
        // The maps use the lower bits, and the highest ones.
        let part = (self.hasher.hash_one(key) >> 32) as usize % PARTS;
        self.parts[part].0.lock()
    }

    /// Version that may be used at `now`.
    pub(crate) fn get(&self, key: &dyn KeyParts, now: Duration) -> Option<V> {
        let part = self.part(key);
        let lease = part.get(key)?;
        (now < lease.until).then(|| lease.version.clone())
    }

    fn put(&self, key: &Key, version: V, until: Duration) -> Put {
        let lease = Lease { version, until };
        let mut part = self.part(key);
        match part.get_mut(key) {
            // A response to an earlier request may come later.
            Some(old) if old.until >= until => Put::Again,
            Some(old) => {
                *old = lease;
                Put::Again
            }
            // Relaxed here and below: only the machine changes it.
            None if self.len.load(Relaxed) >= self.max => Put::Full,
            None => {
                self.len.fetch_add(1, Relaxed);
                part.insert(key.clone(), lease);
                Put::First
            }
        }
    }

    /// Ends the lease of a key. Its timer removes it.
    fn end(&self, key: &Key) {
        if let Some(lease) = self.part(key).get_mut(key) {
            lease.until = Duration::ZERO;
        }
    }

    /// Ends the leases of all keys of a bucket.
    fn end_bucket(&self, bucket: &str) {
        for Part(part) in &self.parts {
            let mut part = part.lock();
            let of_bucket = part.iter_mut().filter(|(key, _)| *key.bucket == *bucket);
            for (_, lease) in of_bucket {
                lease.until = Duration::ZERO;
            }
        }
    }

    /// Removes a lease that has ended at `now`. Returns the end of one that has not.
    fn sweep(&self, key: &Key, now: Duration) -> Option<Duration> {
        let mut part = self.part(key);
        let until = part.get(key)?.until;
        if now < until {
            return Some(until);
        }
        part.remove(key);
        self.len.fetch_sub(1, Relaxed);
        None
    }
}

/// Read leases of the machine.
#[derive(Debug)]
pub(crate) struct ReadLeases<V> {
    pub(crate) table: Arc<LeaseTable<V>>,
    /// Requests to holders in progress, by key, and whether the key was dropped since.
    asked: HashMap<Key, Vec<(CallId, bool)>>,
}

impl<V: Clone> ReadLeases<V> {
    /// At most `max` leases.
    pub(crate) fn new(max: usize) -> Self {
        Self {
            table: Arc::new(LeaseTable::new(max)),
            asked: HashMap::new(),
        }
    }

    pub(crate) fn get(&self, key: &Key, now: Duration) -> Option<V> {
        self.table.get(key, now)
    }

    pub(crate) fn asked(&mut self, key: &Key, call: CallId) {
        let asked = self.asked.entry(key.clone()).or_default();
        asked.push((call, false));
    }

    /// Removes a request that has ended. Returns whether its key was dropped since it was sent.
    pub(crate) fn ended(&mut self, key: &Key, call: CallId) -> bool {
        let Some(asked) = self.asked.get_mut(key) else {
            return true;
        };
        let found = asked.iter().position(|(found, _)| *found == call);
        let dropped = found.is_none_or(|found| asked.swap_remove(found).1);
        if asked.is_empty() {
            self.asked.remove(key);
        }
        dropped
    }

    /// Uses no lease of `key` any more, nor one that is on its way.
    pub(crate) fn drop_key(&mut self, key: &Key) {
        self.table.end(key);
        for (_, dropped) in self.asked.get_mut(key).into_iter().flatten() {
            *dropped = true;
        }
    }

    /// As [`Self::drop_key`], for all keys of a bucket.
    pub(crate) fn drop_bucket(&mut self, bucket: &str) {
        self.table.end_bucket(bucket);
        let asked = self.asked.iter_mut();
        for (_, asked) in asked.filter(|(key, _)| *key.bucket == *bucket) {
            for (_, dropped) in asked {
                *dropped = true;
            }
        }
    }
}

impl<V: Clone> Node<V> {
    /// Keeps a lease, unless there are as many as there may be: then the next read asks the holder again.
    pub(crate) fn keep_lease(&mut self, key: &Key, version: V, until: Duration) {
        if self.now < until && self.leases.table.put(key, version, until) == Put::First {
            self.timers.set(until, Timer::LeaseSweep(key.clone()));
        }
    }

    /// Removes a lease that has ended: at most one timer a key, set by its first lease.
    pub(crate) fn sweep_lease(&mut self, key: Key) {
        if let Some(until) = self.leases.table.sweep(&key, self.now) {
            self.timers.set(until, Timer::LeaseSweep(key));
        }
    }
}
