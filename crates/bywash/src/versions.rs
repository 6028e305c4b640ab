//! What a bucket knows of its objects: which version is current, and since when we know.
//!
//! The table says which [`Version`] is current. An answer is recorded only if no write through this
//! bucket ended between asking and recording: otherwise a slow answer could bring back what a write
//! just replaced.
//!
//! A version that was replaced leaves the table, not the pool: a read that began with it may finish
//! with it, and no new read can find its blocks, so the pool's clock takes them.

mod absent;
mod table;
mod version;

use std::collections::BTreeMap;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Duration;

use bywash_mem::{BlockPool, Reservation, Share};
use foldhash::fast::RandomState;
use object_store::path::Path;
use object_store::{Attributes, ObjectMeta};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::limits::{MAX_UNCHARGED_TABLE_BYTES, max_absent_bytes, max_known_bytes};
use crate::stats::ObjectStats;
use absent::AbsentKey;
use table::{Entry, Table};
pub(crate) use version::{SharedFile, Version};

/// Locks for recording, of all buckets. Keys that share one also share a count of writes, and a write to one keeps a response
/// about the other from being recorded; so there are far more than threads.
const LOCKS: usize = 1024;
/// Blocks of a version that are erased one by one, some 100 ns each. For more, the pool would look through all of its blocks,
/// some 10 ns each.
const ERASED_SINGLY_BLOCKS: u32 = 1024;

/// Current version of an object.
#[derive(Debug)]
struct Known {
    version: Arc<Version>,
    /// When the request was sent whose response last confirmed it.
    confirmed: Instant,
}

impl Entry for Known {
    fn key(&self) -> (u32, &Path) {
        (self.version.store(), &self.version.meta.location)
    }

    fn bytes(&self) -> usize {
        self.version.bytes()
    }
}

/// What the buckets of an engine know of their objects, in memory bounded for all of them together.
#[derive(Debug)]
pub(crate) struct KnownObjects {
    known: Table<Known>,
    /// No key is known as well.
    absent: Table<AbsentKey>,
    /// Writes ended so far, by hash of bucket and key. Locked while recording and forgetting.
    writes: Box<[Mutex<u64>]>,
    hasher: RandomState,
    /// Charge for what the bounds of both tables exceed [`MAX_UNCHARGED_TABLE_BYTES`] by. Locked while the bounds change.
    charge: Mutex<Option<Reservation>>,
}

impl KnownObjects {
    /// For an engine with the memory ceiling of `pool`, which is charged.
    pub(crate) fn new(pool: &BlockPool) -> Self {
        let objects = Self {
            known: Table::new(max_known_bytes(0)),
            absent: Table::new(max_absent_bytes(0)),
            charge: Mutex::new(None),
            writes: (0..LOCKS).map(|_| Mutex::new(0)).collect(),
            hasher: RandomState::default(),
        };
        objects.follow(pool, u64::MAX);
        objects
    }

    /// Sizes of the tables. Locks each of their shards in turn.
    pub(crate) fn stats(&self) -> ObjectStats {
        let (known, known_bytes) = self.known.size();
        let (absent, absent_bytes) = self.absent.size();
        ObjectStats {
            known: known as u64,
            known_bytes: known_bytes as u64,
            known_limit_bytes: self.known.max_bytes(),
            absent: absent as u64,
            absent_bytes: absent_bytes as u64,
            absent_limit_bytes: self.absent.max_bytes(),
        }
    }

    /// Returns what is known of the first `max` objects by the rank of their bucket, then by key. `rank` is given the number of a
    /// bucket and a key; `None` leaves an object out. Looks at every entry of the engine: for people, not for requests.
    pub(crate) fn first(
        &self,
        max: usize,
        rank: impl Fn(u32, &Path) -> Option<usize>,
    ) -> Vec<(usize, Remembered)> {
        let mut first = BTreeMap::new();
        let _: Vec<()> = self.known.collect(|known| {
            let (store, path) = known.key();
            let rank = rank(store, path)?;
            let last: Option<&(usize, Path)> = first.last_key_value().map(|(last, _)| last);
            if first.len() < max || last.is_some_and(|last| (rank, path) < (last.0, &last.1)) {
                first.insert((rank, path.clone()), Remembered::of(known));
                if first.len() > max {
                    first.pop_last();
                }
            }
            None
        });
        let first = first.into_iter();
        first.map(|((rank, _), known)| (rank, known)).collect()
    }

    /// Gives the tables the bounds of a memory ceiling of at most `memory` bytes, or of the pool's if that is lower. Where there is no
    /// room for a higher charge, for example because readers wait for memory, the bounds stay as they are.
    pub(crate) fn follow(&self, pool: &BlockPool, memory: u64) {
        let mut charge = self.charge.lock();
        let memory = memory.min(pool.budget().limit());
        let (known, absent) = (max_known_bytes(memory), max_absent_bytes(memory));
        let due = (known + absent).saturating_sub(MAX_UNCHARGED_TABLE_BYTES);
        let held = charge.as_ref().map_or(0, Reservation::bytes);
        if due > held {
            // Charged before the tables may grow.
            let Some(more) = pool.try_reserve(Share::Download, due - held) else {
                return;
            };
            match charge.as_mut() {
                Some(charge) => charge.merge(more),
                None => *charge = Some(more),
            }
        }
        self.known.set_max_bytes(known);
        self.absent.set_max_bytes(absent);
        if let Some(charge) = charge.as_mut() {
            charge.shrink_to(due);
        }
    }
}

/// A version, and when the question was asked whose answer last confirmed it.
#[derive(Debug)]
pub(crate) struct Remembered {
    pub(crate) version: Arc<Version>,
    pub(crate) validated: Instant,
}

impl Remembered {
    fn of(known: &Known) -> Self {
        Self {
            version: Arc::clone(&known.version),
            validated: known.confirmed,
        }
    }
}

/// The moment before a request to the origin, to be shown when its answer is recorded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    pub(crate) at: Instant,
    writes: u64,
}

/// The current versions of a bucket's objects.
#[derive(Debug)]
pub(crate) struct Versions {
    /// Those of all buckets of the engine.
    objects: Arc<KnownObjects>,
    pool: Arc<BlockPool>,
    /// This bucket's number in the pool's keys.
    store: u32,
    block_size: u64,
    /// How long an absence is trusted. `None`: objects never change; but one that is not there may come at any time.
    window: Option<Duration>,
}

impl Versions {
    pub(crate) fn new(
        pool: Arc<BlockPool>,
        objects: Arc<KnownObjects>,
        store: u32,
        block_size: u64,
        window: Option<Duration>,
    ) -> Self {
        Self {
            objects,
            pool,
            store,
            block_size,
            window,
        }
    }

    /// The number of its bucket.
    pub(crate) fn store(&self) -> u32 {
        self.store
    }

    fn known(&self) -> &Table<Known> {
        &self.objects.known
    }

    fn absent(&self) -> &Table<AbsentKey> {
        &self.objects.absent
    }

    fn lock_of(&self, path: &Path) -> &Mutex<u64> {
        let hash = self.objects.hasher.hash_one((self.store, path.as_ref()));
        &self.objects.writes[hash as usize % LOCKS]
    }

    /// To be called before asking the origin about `path`.
    pub(crate) fn asking(&self, path: &Path) -> Asked {
        Asked {
            at: Instant::now(),
            writes: *self.lock_of(path).lock(),
        }
    }

    /// The version last known, and whether it was confirmed within `max_age` (`None`: any age).
    pub(crate) fn get(
        &self,
        path: &Path,
        max_age: Option<Duration>,
    ) -> Option<(Arc<Version>, bool)> {
        let (version, confirmed) = self.known().get(self.store, path, |found| {
            (Arc::clone(&found.version), found.confirmed)
        })?;
        let fresh = max_age.is_none_or(|age| confirmed.elapsed() <= age);
        Some((version, fresh))
    }

    /// What is known of objects whose keys begin with `prefix`, in no order. Looks at every entry of the engine: for people, not
    /// for requests.
    pub(crate) fn remembered(&self, prefix: &str) -> Vec<Remembered> {
        self.known().collect(|known| {
            let (store, path) = known.key();
            let matches = store == self.store && path.as_ref().starts_with(prefix);
            matches.then(|| Remembered::of(known))
        })
    }

    /// What is known of one object.
    pub(crate) fn remembered_one(&self, path: &Path) -> Option<Remembered> {
        self.known().peek(self.store, path, Remembered::of)
    }

    /// Whether the origin said within the window that there is no such object.
    pub(crate) fn is_absent(&self, path: &Path) -> bool {
        self.window.is_some_and(|window| {
            let asked = self.absent().get(self.store, path, |key| key.asked);
            asked.is_some_and(|asked| asked.elapsed() <= window)
        })
    }

    /// Records a response of the origin and returns the version it describes: the one already known if it is the same, so that
    /// its blocks stay in use. A response to a request older than the one that was last recorded changes nothing, nor does one
    /// that a write overtook.
    pub(crate) fn learn(
        &self,
        asked: Asked,
        meta: ObjectMeta,
        attributes: Attributes,
    ) -> Arc<Version> {
        let writes = self.lock_of(&meta.location).lock();
        let old = self.remembered_one(&meta.location);
        let overtaken = old.as_ref().is_some_and(|old| old.validated > asked.at)
            || self.is_absent_since(&meta.location, asked.at);
        let version = match old.map(|old| old.version) {
            Some(old) if old.is(&meta) && old.attributes == attributes => old,
            Some(old) if old.is(&meta) => Arc::new(old.with_headers(meta, attributes)),
            _ => Arc::new(Version::new(self.store, meta, attributes)),
        };
        if *writes == asked.writes && !overtaken {
            self.absent()
                .remove_if(self.store, &version.meta.location, |_| true);
            self.known().insert(Known {
                version: Arc::clone(&version),
                confirmed: asked.at,
            });
        }
        version
    }

    /// Whether a request sent after `asked` found no such object.
    fn is_absent_since(&self, path: &Path, asked: Instant) -> bool {
        let absent = self.absent().peek(self.store, path, |key| key.asked);
        absent.is_some_and(|absent| absent > asked)
    }

    /// Takes in an entry of a listing: confirms the known version, or forgets it. Objects not
    /// known are not added, so listing a large bucket costs nothing here.
    pub(crate) fn listed(&self, asked_at: Instant, meta: &ObjectMeta) {
        let path = &meta.location;
        self.absent()
            .remove_if(self.store, path, |key| key.asked < asked_at);
        let older = |known: &Known| known.confirmed < asked_at;
        if !self.known().peek(self.store, path, older).unwrap_or(false) {
            return;
        }
        let _writes = self.lock_of(path).lock();
        let same = self.remembered_one(path).filter(|old| old.version.is(meta));
        match same {
            Some(old) if old.validated < asked_at => self.known().insert(Known {
                version: old.version,
                confirmed: asked_at,
            }),
            Some(_) => {}
            None => {
                self.known().remove_if(self.store, path, older);
            }
        }
    }

    /// A write to `path` ended (well or not): what was known no longer holds, and answers to
    /// questions asked before now will not be recorded.
    pub(crate) fn written(&self, path: &Path) {
        let mut writes = self.lock_of(path).lock();
        *writes += 1;
        self.known().remove_if(self.store, path, |_| true);
        self.absent().remove_if(self.store, path, |_| true);
    }

    /// The origin says there is no such object; holds unless a write ended, or a later answer came, since it was asked.
    pub(crate) fn gone(&self, asked: Asked, path: &Path) {
        let writes = self.lock_of(path).lock();
        let newer = |known: &Known| known.confirmed > asked.at;
        if *writes != asked.writes
            || self.known().peek(self.store, path, newer).unwrap_or(false)
            || self.is_absent_since(path, asked.at)
        {
            return;
        }
        self.known().remove_if(self.store, path, |_| true);
        if self.window.is_some() {
            self.absent().insert(AbsentKey {
                store: self.store,
                path: path.clone(),
                asked: asked.at,
            });
        }
    }

    /// The origin no longer has `version`: it is not offered again, also not by a response to a request sent before now. Its
    /// first [`ERASED_SINGLY_BLOCKS`] blocks go at once. No new read can find the others, and they leave by eviction: a walk
    /// over the pool has no place in a request. A newer version that was learned meanwhile stays.
    pub(crate) fn forget(&self, version: &Version) {
        self.forget_version(version);
        for block in 0..version.blocks(self.block_size).min(ERASED_SINGLY_BLOCKS) {
            self.pool.erase(version.key(block));
        }
    }

    /// As [`Self::forget`], and all blocks go at once. May look at every block of the pool: for people, not for requests.
    pub(crate) fn drop_blocks(&self, version: &Version) {
        self.forget(version);
        if version.blocks(self.block_size) > ERASED_SINGLY_BLOCKS {
            self.pool.erase_object(self.store, version.id());
        }
    }

    fn forget_version(&self, version: &Version) {
        let path = &version.meta.location;
        let mut writes = self.lock_of(path).lock();
        *writes += 1;
        let same = |known: &Known| known.version.id() == version.id();
        self.known().remove_if(self.store, path, same);
    }

    /// The bucket is gone, and what the pool has of it goes. What is known of its objects can be found no more, for no bucket
    /// gets its number again, and leaves the table as the oldest.
    pub(crate) fn forget_all(&self) {
        self.pool.erase_store(self.store);
    }
}

#[cfg(test)]
mod tests;
