//! Read leases that this node has from holders.

use std::collections::HashMap;
use std::time::Duration;

use crate::message::CallId;
use crate::names::Key;
use crate::node::Node;
use crate::timers::Timer;

/// Versions that this node may use without a question, each until a time of its own clock.
#[derive(Debug)]
pub(crate) struct ReadLeases<V> {
    by_key: HashMap<Key, Lease<V>>,
    /// Requests to holders in progress, by key, and whether the key was dropped since.
    asked: HashMap<Key, Vec<(CallId, bool)>>,
}

#[derive(Debug)]
struct Lease<V> {
    version: V,
    until: Duration,
}

impl<V> Default for ReadLeases<V> {
    fn default() -> Self {
        Self {
            by_key: HashMap::new(),
            asked: HashMap::new(),
        }
    }
}

impl<V: Clone> ReadLeases<V> {
    pub(crate) fn get(&self, key: &Key, now: Duration) -> Option<V> {
        let lease = self.by_key.get(key)?;
        (now < lease.until).then(|| lease.version.clone())
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

    /// Returns whether the lease is the first of its key.
    pub(crate) fn put(&mut self, key: &Key, version: V, until: Duration) -> bool {
        let lease = Lease { version, until };
        match self.by_key.get_mut(key) {
            // A response to an earlier request may come later.
            Some(old) if old.until >= until => false,
            Some(old) => {
                *old = lease;
                false
            }
            None => self.by_key.insert(key.clone(), lease).is_none(),
        }
    }

    /// Uses no lease of `key` any more, nor one that is on its way.
    pub(crate) fn drop_key(&mut self, key: &Key) {
        // Its timer removes it.
        if let Some(lease) = self.by_key.get_mut(key) {
            lease.until = Duration::ZERO;
        }
        for (_, dropped) in self.asked.get_mut(key).into_iter().flatten() {
            *dropped = true;
        }
    }
}

impl<V: Clone> Node<V> {
    pub(crate) fn keep_lease(&mut self, key: &Key, version: V, until: Duration) {
        if self.now < until && self.leases.put(key, version, until) {
            self.timers.set(until, Timer::LeaseSweep(key.clone()));
        }
    }

    /// Removes a lease that has ended: at most one timer a key, set by its first lease.
    pub(crate) fn sweep_lease(&mut self, key: Key) {
        match self.leases.by_key.get(&key).map(|lease| lease.until) {
            Some(until) if self.now < until => self.timers.set(until, Timer::LeaseSweep(key)),
            Some(_) => drop(self.leases.by_key.remove(&key)),
            None => {}
        }
    }
}
