//! What a bucket knows of its objects: which version is current, and since when we know.
//!
//! The table says which [`Version`] is current. An answer is recorded only if no write through this
//! bucket ended between asking and recording: otherwise a slow answer could bring back what a write
//! just replaced.
//!
//! A version that was replaced leaves the table, not the pool: a read that began with it may finish
//! with it, and no new read can find its blocks, so the pool's clock takes them.

mod absent;
mod version;

use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Duration;

use bywash_mem::BlockPool;
use foldhash::fast::RandomState;
use object_store::path::Path;
use object_store::{Attributes, ObjectMeta};
use parking_lot::Mutex;
use tokio::time::Instant;

use absent::Absent;
pub(crate) use version::Version;

/// Memory, in bytes, for which one object's version is remembered. An entry takes about 0.5 KiB that
/// the budget does not see, so the table stays below a thirty-second of the ceiling.
const MEMORY_AN_OBJECT_BYTES: u64 = 16 << 10;
/// How many objects of one bucket are remembered, at least and at most, whatever the memory.
const KNOWN_OBJECTS: std::ops::RangeInclusive<u64> = 16_384..=200_000;
/// Locks for recording. Paths that share one also share a count of writes, and a write to one keeps
/// an answer about the other from being recorded; so there are far more than threads.
const LOCKS: usize = 1024;
/// Up to so many blocks of a version that goes are erased one by one, some 100 ns each; of a larger one the pool is asked to
/// look through its blocks, some 10 ns each.
const ERASED_SINGLY_BLOCKS: u32 = 1024;

#[derive(Debug, Clone)]
struct Known {
    version: Arc<Version>,
    /// When the question was asked whose answer last confirmed it.
    confirmed: Instant,
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
    at: Instant,
    writes: u64,
}

/// The current versions of a bucket's objects.
pub(crate) struct Versions {
    known: papaya::HashMap<Path, Known, RandomState>,
    /// None of these is known as well.
    absent: Absent,
    /// Writes ended so far, by hash of the path. Held while recording and forgetting.
    writes: Box<[Mutex<u64>]>,
    hasher: RandomState,
    pool: Arc<BlockPool>,
    /// This bucket's number in the pool's keys.
    store: u32,
    block_size: u64,
    /// The most objects remembered.
    limit: usize,
}

impl std::fmt::Debug for Versions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Versions")
            .field("known", &self.known.len())
            .finish_non_exhaustive()
    }
}

impl Versions {
    pub(crate) fn new(
        pool: Arc<BlockPool>,
        store: u32,
        block_size: u64,
        window: Option<Duration>,
    ) -> Self {
        let hasher = RandomState::default();
        let limit = pool.budget().limit() / MEMORY_AN_OBJECT_BYTES;
        let limit = limit.clamp(*KNOWN_OBJECTS.start(), *KNOWN_OBJECTS.end()) as usize;
        Self {
            known: papaya::HashMap::with_hasher(hasher.clone()),
            absent: Absent::new(window, hasher.clone()),
            writes: (0..LOCKS).map(|_| Mutex::new(0)).collect(),
            hasher,
            pool,
            store,
            block_size,
            limit,
        }
    }

    fn lock_of(&self, path: &Path) -> &Mutex<u64> {
        &self.writes[self.hasher.hash_one(path) as usize % LOCKS]
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
        let known = self.known.pin();
        let found = known.get(path)?;
        let fresh = max_age.is_none_or(|age| found.confirmed.elapsed() <= age);
        Some((Arc::clone(&found.version), fresh))
    }

    /// What is known of objects whose keys begin with `prefix`, in no order. Looks at every entry of the table.
    pub(crate) fn remembered(&self, prefix: &str) -> Vec<Remembered> {
        let known = self.known.pin();
        let matching = known
            .iter()
            .filter(|(path, _)| path.as_ref().starts_with(prefix));
        matching.map(|(_, known)| Remembered::of(known)).collect()
    }

    /// What is known of one object.
    pub(crate) fn remembered_one(&self, path: &Path) -> Option<Remembered> {
        self.known.pin().get(path).map(Remembered::of)
    }

    /// Whether the origin said within the window that there is no such object.
    pub(crate) fn is_absent(&self, path: &Path) -> bool {
        self.absent.has(path)
    }

    /// Takes in an answer of the origin and returns the version it describes: the one already
    /// known if it is the same, so that its blocks stay in use.
    pub(crate) fn learn(
        &self,
        asked: Asked,
        meta: ObjectMeta,
        attributes: Attributes,
    ) -> Arc<Version> {
        let writes = self.lock_of(&meta.location).lock();
        let known = self.known.pin();
        let old = known
            .get(&meta.location)
            .map(|found| Arc::clone(&found.version));
        let path = meta.location.clone();
        let version = match &old {
            Some(old) if old.is(&meta) && old.attributes == attributes => Arc::clone(old),
            Some(old) if old.is(&meta) => Arc::new(old.with_headers(meta, attributes)),
            _ => Arc::new(Version::new(self.store, meta, attributes)),
        };
        if *writes == asked.writes {
            if known.len() >= self.limit {
                self.make_room();
            }
            self.absent.remove(&path);
            known.insert(
                path,
                Known {
                    version: Arc::clone(&version),
                    confirmed: asked.at,
                },
            );
        }
        version
    }

    /// Takes in an entry of a listing: confirms the known version, or forgets it. Objects not
    /// known are not added, so listing a large bucket costs nothing here.
    pub(crate) fn listed(&self, asked_at: Instant, meta: &ObjectMeta) {
        self.absent.listed(&meta.location, asked_at);
        let known = self.known.pin();
        if known.get(&meta.location).is_none() {
            return;
        }
        let _writes = self.lock_of(&meta.location).lock();
        match known.get(&meta.location) {
            Some(found) if found.confirmed >= asked_at => {}
            Some(found) if found.version.is(meta) => {
                let version = Arc::clone(&found.version);
                known.insert(
                    meta.location.clone(),
                    Known {
                        version,
                        confirmed: asked_at,
                    },
                );
            }
            _ => {
                known.remove(&meta.location);
            }
        }
    }

    /// A write to `path` ended (well or not): what was known no longer holds, and answers to
    /// questions asked before now will not be recorded.
    pub(crate) fn written(&self, path: &Path) {
        let mut writes = self.lock_of(path).lock();
        *writes += 1;
        self.known.pin().remove(path);
        self.absent.remove(path);
    }

    /// The origin says there is no such object; holds unless a write ended, or a later answer came, since it was asked.
    pub(crate) fn gone(&self, asked: Asked, path: &Path) {
        let writes = self.lock_of(path).lock();
        if *writes != asked.writes {
            return;
        }
        let known = self.known.pin();
        if known
            .get(path)
            .is_some_and(|found| found.confirmed > asked.at)
        {
            return;
        }
        known.remove(path);
        self.absent.add(path, asked.at);
    }

    /// The origin no longer has `version`: it is not offered again, and its blocks go. A newer
    /// version that was learned meanwhile stays.
    pub(crate) fn forget(&self, version: &Version) {
        {
            let _writes = self.lock_of(&version.meta.location).lock();
            let known = self.known.pin();
            if known
                .get(&version.meta.location)
                .is_some_and(|found| found.version.id() == version.id())
            {
                known.remove(&version.meta.location);
            }
        }
        let blocks = version.blocks(self.block_size);
        if blocks > ERASED_SINGLY_BLOCKS {
            self.pool.erase_object(self.store, version.id());
            return;
        }
        for block in 0..blocks {
            self.pool.erase(version.key(block));
        }
    }

    /// The bucket is gone, and what the pool has of it goes.
    pub(crate) fn forget_all(&self) {
        self.known.pin().clear();
        self.absent.clear();
        self.pool.erase_store(self.store);
    }

    /// Drops a quarter of the table, whichever comes first: with this many objects any of them
    /// is unlikely to be the next one asked for.
    fn make_room(&self) {
        let known = self.known.pin();
        for path in known.keys().take(self.limit / 4) {
            known.remove(path);
        }
    }
}
