//! Known objects: the current version of each object, and when it was last confirmed. Whether a read asks the origin again is
//! decided in `read/resolve.rs`.
//!
//! A response is recorded only if no write through this bucket ended between its request and its recording. Otherwise
//! a slow response could bring back a version that a write just replaced.
//!
//! A version that was replaced leaves the table but not the pool. Reads that began with it may finish with it. No new
//! read finds its blocks, so they are evicted.

mod absent;
mod table;
mod version;

use std::collections::BTreeMap;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Duration;

use bywash_mem::{BlockPool, Reservation, Share};
use bywash_store::TagCount;
use object_store::path::Path;
use object_store::{Attributes, GetResult, ObjectMeta};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::limits::{MAX_UNCHARGED_TABLE_BYTES, max_absent_bytes, max_known_bytes};
use crate::stats::ObjectStats;
use absent::AbsentKey;
use table::{BoundedTable, HashState, TableEntry};
pub(crate) use version::{SharedFile, Version, next_object_id};

/// Locks for recording, of all buckets. Keys that share a lock share a count of writes: a write to one keeps a
/// response about the other from being recorded. So there are far more locks than threads.
const LOCKS: usize = 1024;
/// Blocks of a version that are erased one by one, some 100 ns each. For more, the pool would scan all of its blocks,
/// some 10 ns each.
const ERASED_SINGLY_BLOCKS: u32 = 1024;

/// Current version of an object.
#[derive(Debug)]
struct Known {
    version: Arc<Version>,
    /// Send time of the request with the response that last confirmed it.
    confirmed: Instant,
}

impl TableEntry for Known {
    fn key(&self) -> (u32, &Path) {
        (self.version.store(), &self.version.meta.location)
    }

    fn bytes(&self) -> usize {
        self.version.bytes()
    }
}

/// Known objects of all buckets of an engine, in bounded memory.
#[derive(Debug)]
pub(crate) struct KnownObjects {
    known: BoundedTable<Known>,
    /// Keys known to be absent; none is in `known` as well.
    absent: BoundedTable<AbsentKey>,
    /// Number of writes that ended, by hash of bucket and key. Locked while a response is recorded or dropped.
    writes: Box<[Mutex<u64>]>,
    hasher: HashState,
    /// When the tables were made.
    created: Instant,
    /// Charge for the part of both tables' bounds above [`MAX_UNCHARGED_TABLE_BYTES`]. Locked while the bounds
    /// change.
    charge: Mutex<Option<Reservation>>,
}

impl KnownObjects {
    /// Empty tables for an engine with the memory ceiling of `pool`, which is charged.
    pub(crate) fn new(pool: &BlockPool) -> Self {
        let objects = Self {
            known: BoundedTable::new(max_known_bytes(0)),
            absent: BoundedTable::new(max_absent_bytes(0)),
            charge: Mutex::new(None),
            writes: (0..LOCKS).map(|_| Mutex::new(0)).collect(),
            hasher: HashState::default(),
            created: Instant::now(),
        };
        objects.resize(pool, u64::MAX);
        objects
    }

    /// The sizes of the tables. Locks each of their shards in turn.
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

    /// Returns the first `max` known objects, ordered by the rank of their bucket, then by key. `rank` receives a bucket's
    /// number and a key, and leaves an object out by `None`. Scans all entries of the engine: for administrators, not
    /// for requests.
    pub(crate) fn first(
        &self,
        max: usize,
        rank: impl Fn(u32, &Path) -> Option<usize>,
    ) -> Vec<(usize, KnownVersion)> {
        let mut first = BTreeMap::new();
        let _: Vec<()> = self.known.collect(|known| {
            let (store, path) = known.key();
            let rank = rank(store, path)?;
            let last: Option<&(usize, Path)> = first.last_key_value().map(|(last, _)| last);
            if first.len() < max || last.is_some_and(|last| (rank, path) < (last.0, &last.1)) {
                first.insert((rank, path.clone()), KnownVersion::of(known));
                if first.len() > max {
                    first.pop_last();
                }
            }
            None
        });
        let first = first.into_iter();
        first.map(|((rank, _), known)| (rank, known)).collect()
    }

    /// Sets the tables' bounds for a memory ceiling of at most `memory` bytes, or the pool's if that is lower. If a
    /// higher charge finds no memory, for example because readers wait for it, the bounds stay.
    pub(crate) fn resize(&self, pool: &BlockPool, memory: u64) {
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

/// A version, and the send time of the request that last confirmed it.
#[derive(Debug)]
pub(crate) struct KnownVersion {
    pub(crate) version: Arc<Version>,
    pub(crate) validated: Instant,
}

impl KnownVersion {
    fn of(known: &Known) -> Self {
        Self {
            version: Arc::clone(&known.version),
            validated: known.confirmed,
        }
    }
}

/// State before a request to the origin, needed to record its response.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestStamp {
    pub(crate) at: Instant,
    writes: u64,
}

/// The current versions of a bucket's objects.
#[derive(Debug)]
pub(crate) struct Versions {
    /// Table shared by all buckets of the engine.
    objects: Arc<KnownObjects>,
    pool: Arc<BlockPool>,
    /// This bucket's number in the pool's keys.
    store: u32,
    block_size: u64,
    /// Time for which an absent key stays known as absent. `None`: objects never change, but an absent one may appear at
    /// any time.
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

    fn known(&self) -> &BoundedTable<Known> {
        &self.objects.known
    }

    fn absent(&self) -> &BoundedTable<AbsentKey> {
        &self.objects.absent
    }

    fn lock_of(&self, path: &Path) -> &Mutex<u64> {
        let hash = self.objects.hasher.hash_one((self.store, path.as_ref()));
        &self.objects.writes[hash as usize % LOCKS]
    }

    /// Returns the stamp of a request about `path` that is sent now.
    pub(crate) fn stamp(&self, path: &Path) -> RequestStamp {
        RequestStamp {
            at: Instant::now(),
            writes: *self.lock_of(path).lock(),
        }
    }

    /// Returns the version last known, and whether it was confirmed within `max_age` (`None`: any age).
    pub(crate) fn get(
        &self,
        path: impl AsRef<str>,
        max_age: Option<Duration>,
    ) -> Option<(Arc<Version>, bool)> {
        let (version, confirmed) = self.known().get(self.store, path, |found| {
            (Arc::clone(&found.version), found.confirmed)
        })?;
        let times = if planted!("engine-window-twice-as-long") {
            2
        } else {
            1
        };
        let fresh = max_age.is_none_or(|age| confirmed.elapsed() <= age * times);
        Some((version, fresh))
    }

    /// Returns the known objects with keys that begin with `prefix`, unordered. Scans all entries of the engine: for
    /// administrators, not for requests.
    pub(crate) fn known_objects(&self, prefix: &str) -> Vec<KnownVersion> {
        self.known().collect(|known| {
            let (store, path) = known.key();
            let matches = store == self.store && path.as_ref().starts_with(prefix);
            matches.then(|| KnownVersion::of(known))
        })
    }

    /// Returns the known version of one object.
    pub(crate) fn known_object(&self, path: &Path) -> Option<KnownVersion> {
        self.known().peek(self.store, path, KnownVersion::of)
    }

    /// Returns whether a response within the window showed that there is no such object.
    pub(crate) fn is_absent(&self, path: &Path) -> bool {
        self.window.is_some_and(|window| {
            let sent_at = self.absent().get(self.store, path, |key| key.sent_at);
            sent_at.is_some_and(|sent_at| {
                sent_at.elapsed() <= window || planted!("engine-absence-forever")
            })
        })
    }

    /// Records a response and returns the version it describes: the known one if it is the same, so that its blocks
    /// stay in use. A response to an older request than the one last recorded changes nothing, nor does one overtaken
    /// by a write. `meta`: as in the response, with the bucket's own path.
    pub(crate) fn record(
        &self,
        stamp: RequestStamp,
        meta: ObjectMeta,
        response: &GetResult,
    ) -> Arc<Version> {
        let attributes = response.attributes.clone();
        self.record_version(stamp, meta, attributes, TagCount::of(response))
    }

    /// As [`Self::record`], of a version that something else than a response describes.
    pub(crate) fn record_version(
        &self,
        stamp: RequestStamp,
        meta: ObjectMeta,
        attributes: Attributes,
        tags: TagCount,
    ) -> Arc<Version> {
        let writes = self.lock_of(&meta.location).lock();
        let old = self.known_object(&meta.location);
        let superseded = old.as_ref().is_some_and(|old| old.validated > stamp.at)
            || self.is_absent_since(&meta.location, stamp.at);
        let version = match old.map(|old| old.version) {
            Some(old) if old.matches(&meta) && old.is_described_by(&meta, &attributes, tags) => old,
            Some(old) if old.matches(&meta) => Arc::new(old.with_headers(meta, attributes, tags)),
            _ => Arc::new(Version::new(self.store, meta, attributes, tags)),
        };
        let overtaken = *writes != stamp.writes && !planted!("engine-overtaken-response-recorded");
        if !overtaken && (!superseded || planted!("engine-older-response-recorded")) {
            self.absent()
                .remove_if(self.store, &version.meta.location, |_| true);
            self.known().insert(Known {
                version: Arc::clone(&version),
                confirmed: stamp.at,
            });
        }
        version
    }

    /// Returns the version with this ETag, which is strong, and length: the known one, or a new one in its place. Another node
    /// has known it as the current one `age` ago; `None`: no longer. As for [`Self::record`], nothing replaces a version that was
    /// confirmed later; the result is `None` then.
    pub(crate) fn record_partial(
        &self,
        meta: ObjectMeta,
        age: Option<Duration>,
    ) -> Option<Arc<Version>> {
        let path = meta.location.clone();
        let _writes = self.lock_of(&path).lock();
        let known = self.known_object(&path);
        if let Some(known) = known.as_ref().filter(|known| known.version.matches(&meta)) {
            return Some(Arc::clone(&known.version));
        }
        // Nothing is known from before the start of the engine.
        let earliest = self.objects.created;
        let confirmed = Instant::now().checked_sub(age?).unwrap_or(earliest);
        let confirmed = confirmed.max(earliest);
        let superseded = known.is_some_and(|known| known.validated > confirmed)
            || self.is_absent_since(&path, confirmed);
        if superseded {
            return None;
        }
        let version = Arc::new(Version::partial(self.store, meta));
        self.absent().remove_if(self.store, &path, |_| true);
        self.known().insert(Known {
            version: Arc::clone(&version),
            confirmed,
        });
        Some(version)
    }

    /// Returns how long ago `version` was recorded as the current one; `None` if it is no longer known as that.
    pub(crate) fn age(&self, version: &Version) -> Option<Duration> {
        let known = self.known_object(&version.meta.location)?;
        (known.version.id() == version.id()).then(|| known.validated.elapsed())
    }

    /// Returns whether a request sent after `sent_at` found no such object.
    fn is_absent_since(&self, path: &Path, sent_at: Instant) -> bool {
        let absent = self.absent().peek(self.store, path, |key| key.sent_at);
        absent.is_some_and(|absent| absent > sent_at)
    }

    /// Records an entry of a listing: confirms the known version, or drops it. Unknown objects are not added, so
    /// listing a large bucket costs nothing here.
    pub(crate) fn record_listed(&self, sent_at: Instant, meta: &ObjectMeta) {
        let path = &meta.location;
        self.absent()
            .remove_if(self.store, path, |key| key.sent_at < sent_at);
        let older = |known: &Known| known.confirmed < sent_at;
        if !self.known().peek(self.store, path, older).unwrap_or(false) {
            return;
        }
        let _writes = self.lock_of(path).lock();
        let same = self
            .known_object(path)
            .filter(|old| old.version.matches(meta));
        match same {
            Some(old) if old.validated < sent_at => self.known().insert(Known {
                version: old.version,
                confirmed: sent_at,
            }),
            Some(_) => {}
            None => {
                self.known().remove_if(self.store, path, older);
            }
        }
    }

    /// Drops the known version of `path` after a write to it, successful or not. Responses to requests sent before now
    /// are not recorded.
    pub(crate) fn invalidate(&self, path: &Path) {
        let mut writes = self.lock_of(path).lock();
        *writes += 1;
        self.known().remove_if(self.store, path, |_| {
            !planted!("engine-written-version-kept")
        });
        self.absent().remove_if(self.store, path, |_| true);
    }

    /// Records that there is no such object, unless a write ended or a later response came since the request was
    /// sent.
    pub(crate) fn record_absent(&self, stamp: RequestStamp, path: &Path) {
        let writes = self.lock_of(path).lock();
        let newer = |known: &Known| known.confirmed > stamp.at;
        if *writes != stamp.writes
            || self.known().peek(self.store, path, newer).unwrap_or(false)
            || self.is_absent_since(path, stamp.at)
        {
            return;
        }
        self.known().remove_if(self.store, path, |_| true);
        if self.window.is_some() {
            self.absent().insert(AbsentKey {
                store: self.store,
                path: path.clone(),
                sent_at: stamp.at,
            });
        }
    }

    /// Drops `version`, which the origin no longer has; responses to requests sent before now do not bring it back.
    /// Erases its first [`ERASED_SINGLY_BLOCKS`] blocks. No new read finds the others, which are evicted in time: a
    /// scan of the pool is too long for a request. A newer version recorded since stays.
    pub(crate) fn forget(&self, version: &Version) {
        self.forget_version(version);
        for block in 0..version.blocks(self.block_size).min(ERASED_SINGLY_BLOCKS) {
            self.pool.erase(version.key(block));
        }
    }

    /// As [`Self::forget`], and erases all blocks at once. May scan the pool: for administrators, not for requests.
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

    /// Erases the bucket's blocks after its deletion. Its entries stay until they are evicted as the oldest; no read
    /// finds them, for bucket numbers are not reused.
    pub(crate) fn forget_all(&self) {
        self.pool.erase_store(self.store);
    }
}

#[cfg(test)]
mod tests;
