//! The engine: one memory budget, one block pool, many buckets.

mod builder;
mod byte_limit;
mod checks;
mod damage;
mod disk;
mod idle;
mod memory;
mod reserve;
mod root;
mod scratch;
mod shares;
mod wrap;

use std::collections::BTreeMap;
use std::path::Path as FsPath;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

use bywash_mem::{Budget, Share, SharedMemory, StoreStats};
use bywash_store::{Origin, OriginStats, OriginUrl, folder::FolderStore};
use chrono::{DateTime, Utc};
use futures::StreamExt;
use object_store::ObjectStore;
use parking_lot::RwLock;

use crate::block_kind::BlockKind;
use crate::bucket::Bucket;
use crate::bucket_options::{BucketOptions, Caching};
use crate::cluster::{BucketSource, ClusterStatus};
use crate::disk::DiskTier;
use crate::error::EngineError;
use crate::shared::{BucketShared, EngineShared};
use crate::stats::{
    BucketMemory, BudgetStats, KindStats, LocalStats, LocalStatsSource, MemoryStats, PoolStats,
    Stats,
};
use crate::traffic::Traffic;
use crate::upload::journal::Journal;
use crate::verify::Verify;
use checks::{S3_MIN_PART_BYTES, check_block_size, check_memory};
use root::{check_bucket_name, check_new_bucket_name, remove_empty_bucket};

pub use builder::EngineBuilder;
pub use byte_limit::{ByteCharge, ByteLimit};
pub use memory::{CacheLimits, DiskLimit, MemoryLimit};
pub use shares::MemoryShares;
pub use wrap::WrapOptions;

#[derive(Debug, Clone)]
struct Mounted {
    bucket: Bucket,
    created: DateTime<Utc>,
    /// Its folder is under the root, so it can be deleted.
    in_root: bool,
}

/// A bucket's name and creation time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketInfo {
    /// The name.
    pub name: String,
    /// Time of its creation or of its mount.
    pub created: DateTime<Utc>,
}

/// The engine; cheap to clone.
#[derive(Debug, Clone)]
pub struct Engine {
    shared: Arc<EngineShared>,
    /// Separate from the state shared with buckets, which must not own buckets.
    buckets: Arc<RwLock<BTreeMap<String, Mounted>>>,
}

impl Engine {
    /// Returns a builder with default settings.
    #[must_use]
    pub fn builder() -> EngineBuilder {
        EngineBuilder::new()
    }

    /// Mounts `origin` as the bucket `name`. A [`crate::Consistency`] can be given instead of options; the others are then
    /// the defaults.
    pub fn mount(
        &self,
        name: &str,
        origin: Arc<dyn Origin>,
        options: impl Into<BucketOptions>,
    ) -> Result<Bucket, EngineError> {
        let options = options.into();
        check_bucket_name(name)?;
        options.block_size.map(check_block_size).transpose()?;
        self.check_caching(options.caching)?;
        let chunk_size = self.shared.max_chunk_size;
        if origin.capabilities().kind == "s3" && chunk_size < S3_MIN_PART_BYTES {
            let reason = format!(
                "{chunk_size} bytes are too few for parts of {origin}, which takes none below 5 MiB; \
                 raise the chunk size, or the memory to at least 20 MiB"
            );
            return Err(EngineError::InvalidSetting {
                setting: "chunk_size",
                reason,
            });
        }
        let bucket = Bucket::new(BucketShared::new(
            name,
            origin,
            &options,
            Arc::clone(&self.shared),
        ));
        self.insert(bucket, Utc::now(), false)
    }

    fn check_caching(&self, caching: Caching) -> Result<(), EngineError> {
        let needs_blocks = if self.shared.cluster.is_some() {
            "a cluster, whose nodes keep blocks for each other"
        } else if self.shared.verify == Verify::Always {
            "reads that are always verified, which compare blocks in memory"
        } else {
            return Ok(());
        };
        match caching {
            Caching::Kept => Ok(()),
            Caching::WhileRead => Err(EngineError::InvalidSetting {
                setting: "cache",
                reason: format!("while-read cannot be combined with {needs_blocks}"),
            }),
        }
    }

    /// Opens the origin at `url` and mounts it as the bucket `name`. Sends no request.
    pub fn mount_url(
        &self,
        name: &str,
        url: &OriginUrl,
        options: impl Into<BucketOptions>,
    ) -> Result<Bucket, EngineError> {
        let origin = url.open().map_err(|source| origin_error(name, source))?;
        self.mount(name, origin, options)
    }

    /// Returns the bucket `name`: mounted, or a sub-folder of the root. Reads the file system only for a name that is
    /// not mounted yet.
    #[must_use]
    pub fn bucket(&self, name: &str) -> Option<Bucket> {
        if let Some(open) = self.open_bucket(name) {
            return Some(open);
        }
        let folder = self.shared.root.as_ref()?.join(name);
        check_bucket_name(name).ok()?;
        folder.is_dir().then_some(())?;
        self.mount_folder(name, &folder).ok()
    }

    /// All buckets, by name. Reads the root folder; does not open the buckets found there.
    #[must_use]
    pub fn buckets(&self) -> Vec<BucketInfo> {
        let buckets = self.buckets.read();
        let mut found: Vec<_> = buckets
            .iter()
            .map(|(name, mounted)| BucketInfo {
                name: name.clone(),
                created: mounted.created,
            })
            .collect();
        drop(buckets);
        let mounted = found.len();
        let root = self.shared.root.as_ref();
        let entries = root.and_then(|root| std::fs::read_dir(root).ok());
        for entry in entries.into_iter().flatten().flatten() {
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            let known = found[..mounted]
                .binary_search_by(|bucket| bucket.name.cmp(&name))
                .is_ok()
                || check_bucket_name(&name).is_err();
            let path = entry.path();
            if !known && path.is_dir() {
                let created = created(&path);
                found.push(BucketInfo { name, created });
            }
        }
        found.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        found
    }

    /// Returns the bucket `name` if it was opened. Others have nothing in memory.
    #[must_use]
    pub fn open_bucket(&self, name: &str) -> Option<Bucket> {
        let buckets = self.buckets.read();
        buckets.get(name).map(|mounted| mounted.bucket.clone())
    }

    /// The buckets opened so far, by name. Others have nothing in memory.
    #[must_use]
    pub fn open_buckets(&self) -> Vec<Bucket> {
        let buckets = self.buckets.read();
        buckets
            .values()
            .map(|mounted| mounted.bucket.clone())
            .collect()
    }

    /// Creates a bucket under the root folder.
    pub fn create_bucket(&self, name: &str) -> Result<Bucket, EngineError> {
        check_bucket_name(name)?;
        if self.bucket(name).is_some() {
            return Err(EngineError::BucketExists(name.to_owned()));
        }
        check_new_bucket_name(name)?;
        let root = self
            .shared
            .root
            .as_ref()
            .ok_or_else(|| EngineError::NoRoot(name.to_owned()))?;
        let folder = root.join(name);
        match std::fs::create_dir(&folder) {
            Ok(()) => self.mount_folder(name, &folder),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                Err(EngineError::BucketExists(name.to_owned()))
            }
            Err(source) => Err(EngineError::Io {
                bucket: name.to_owned(),
                source,
            }),
        }
    }

    pub(crate) fn shared(&self) -> &Arc<EngineShared> {
        &self.shared
    }

    /// The journal of uploads, if there is one.
    #[must_use]
    pub fn journal(&self) -> Option<&Journal> {
        self.shared.journal.as_ref()
    }

    /// Deletes an empty bucket of the root folder.
    pub async fn delete_bucket(&self, name: &str) -> Result<(), EngineError> {
        let bucket = self
            .bucket(name)
            .ok_or_else(|| EngineError::NoSuchBucket(name.to_owned()))?;
        let in_root = self
            .buckets
            .read()
            .get(name)
            .is_some_and(|mounted| mounted.in_root);
        let root = self.shared.root.as_ref().filter(|_| in_root);
        let root = root.ok_or_else(|| EngineError::NoRoot(name.to_owned()))?;
        match bucket.list(None).next().await {
            None => {}
            Some(Ok(_)) => return Err(EngineError::BucketNotEmpty(name.to_owned())),
            Some(Err(source)) => return Err(origin_error(name, source)),
        }
        remove_empty_bucket(root, name)?;
        self.buckets.write().remove(name);
        if let Some(cluster) = &self.shared.cluster {
            cluster.versions.detach(name);
        }
        // Scans the pool.
        let forgotten = tokio::task::spawn_blocking(move || bucket.shared().versions.forget_all());
        // An error means that the scan panicked; the bucket is deleted all the same.
        let _ = forgotten.await;
        Ok(())
    }

    /// The budget to which all of the engine's memory is charged, for other users of memory.
    #[must_use]
    pub fn budget(&self) -> &Budget {
        self.shared.pool.budget()
    }

    /// The memory that other processes can map to read leased blocks, with [`EngineBuilder::shared_memory`].
    #[must_use]
    pub fn shared_memory(&self) -> Option<SharedMemory<'_>> {
        self.shared.pool.shared_memory()
    }

    /// The bytes of memory that leases keep from being evicted. A frame that several leases hold counts once.
    #[must_use]
    pub fn leased_bytes(&self) -> u64 {
        self.shared.loans.leased_bytes()
    }

    /// The statistics of the endpoints' requests, which the endpoints record.
    #[must_use]
    pub fn traffic(&self) -> &Arc<Traffic> {
        &self.shared.traffic
    }

    /// Adds the statistics of a local door to [`Self::stats`], while it lives. Only the first call has an effect.
    pub fn observe_local(&self, door: Weak<dyn LocalStatsSource>) {
        let _ = self.shared.local.set(door);
    }

    /// The state and counters of the local door, if there is one.
    #[must_use]
    pub fn local_stats(&self) -> Option<LocalStats> {
        let door = self.shared.local.get().and_then(Weak::upgrade)?;
        Some(door.local_stats())
    }

    /// A snapshot of the counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let stores = self.shared.pool.store_stats();
        let (mut buckets, mut memory) = (BTreeMap::new(), BTreeMap::new());
        for (name, mounted) in self.buckets.read().iter() {
            let bucket = mounted.bucket.shared();
            buckets.insert(name.clone(), bucket.counters.snapshot());
            let StoreStats { blocks, bytes } = stores
                .get(&bucket.versions.store())
                .copied()
                .unwrap_or_default();
            memory.insert(name.clone(), BucketMemory { blocks, bytes });
        }
        let pool = self.shared.pool.stats();
        let budget = self.shared.pool.budget();
        Stats {
            buckets,
            memory: MemoryStats {
                kinds: self.kind_stats(),
                buckets: memory,
            },
            pool: PoolStats {
                flights: pool.flights,
                evictions: pool.evictions,
                slow_evictions: pool.slow_evictions,
                idle_evicted_bytes: self.shared.idle_evicted_bytes.load(Relaxed),
                resident_blocks: pool.resident_blocks,
                resident_bytes: pool.resident_bytes,
            },
            budget: BudgetStats {
                used: budget.used(),
                limit: budget.limit(),
                waiting: budget.waiting(),
                idle: budget.idle(),
                downloads: budget.held(Share::Download),
                uploads: budget.held(Share::Upload),
                refused: self.shared.refused.load(Relaxed),
            },
            objects: self.shared.objects.stats(),
            file_downloads: self.shared.file_downloads.snapshot(),
            disk: self.shared.disk.as_ref().map(DiskTier::stats),
            cluster: self.cluster_status(),
            local: self.local_stats(),
            damaged: self.damaged_files(),
        }
    }

    /// The state of this node of a cluster, if the engine belongs to one.
    #[must_use]
    pub fn cluster_status(&self) -> Option<ClusterStatus> {
        let mut status = self.shared.cluster.as_ref()?.versions.status()?;
        for mounted in self.buckets.read().values() {
            let counted = mounted.bucket.shared().counters.snapshot();
            status.peer_bytes += counted.peer_bytes;
            status.served_bytes += counted.peer_served_bytes;
        }
        status.heated = self.shared.foreign.heated();
        Some(status)
    }

    fn kind_stats(&self) -> BTreeMap<&'static str, KindStats> {
        let of = |kind: BlockKind| {
            let counted = self.shared.pool.tag_stats(kind.tag());
            let stats = KindStats {
                blocks: counted.used_blocks,
                bytes: counted.used_bytes,
                evicted_blocks: counted.evicted_blocks,
                evicted_bytes: counted.evicted_bytes,
            };
            (kind.name(), stats)
        };
        BlockKind::ALL.into_iter().map(of).collect()
    }

    /// The errors of the origins that had any, by bucket.
    #[must_use]
    pub fn origins(&self) -> BTreeMap<String, OriginStats> {
        let buckets = self.buckets.read();
        let stats = buckets
            .iter()
            .map(|(name, mounted)| (name, mounted.bucket.shared().health.snapshot()));
        stats
            .filter(|(_, stats)| *stats != OriginStats::default())
            .map(|(name, stats)| (name.clone(), stats))
            .collect()
    }

    fn mount_folder(&self, name: &str, folder: &FsPath) -> Result<Bucket, EngineError> {
        let store = FolderStore::open(folder).map_err(|source| origin_error(name, source))?;
        let bucket = Bucket::new(BucketShared::new(
            name,
            Arc::new(store),
            &BucketOptions::default(),
            Arc::clone(&self.shared),
        ));
        match self.insert(bucket, created(folder), true) {
            // Another thread mounted the same folder in between: its handle is equivalent.
            Err(EngineError::BucketExists(_)) => {
                let buckets = self.buckets.read();
                buckets
                    .get(name)
                    .map(|mounted| mounted.bucket.clone())
                    .ok_or_else(|| EngineError::NoSuchBucket(name.to_owned()))
            }
            other => other,
        }
    }

    fn insert(
        &self,
        bucket: Bucket,
        created: DateTime<Utc>,
        in_root: bool,
    ) -> Result<Bucket, EngineError> {
        let mut buckets = self.buckets.write();
        let name = bucket.name().to_owned();
        if buckets.contains_key(&name) {
            return Err(EngineError::BucketExists(name));
        }
        // Under the lock of the buckets, under which a lower limit is announced.
        check_memory(self.lowest_limit(), bucket.shared().block_size)?;
        if let Some(cluster) = &self.shared.cluster {
            let window = bucket.consistency().max_age();
            let source = BucketSource::of(bucket.shared());
            cluster.versions.attach(&name, window, source);
        }
        buckets.insert(
            name,
            Mounted {
                bucket: bucket.clone(),
                created,
                in_root,
            },
        );
        Ok(bucket)
    }
}

/// Returns the creation time of a bucket's folder, as far as the file system records it.
fn created(folder: &FsPath) -> DateTime<Utc> {
    let metadata = std::fs::metadata(folder);
    let created = metadata.and_then(|data| data.created().or_else(|_| data.modified()));
    created.map_or_else(|_| Utc::now(), DateTime::<Utc>::from)
}

fn origin_error(bucket: &str, source: object_store::Error) -> EngineError {
    EngineError::Origin {
        bucket: bucket.to_owned(),
        source: Box::new(source),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::Consistency;

    #[test]
    fn memory_is_freed_with_the_last_handle() {
        let engine = Engine::builder().memory(16 << 20).build().unwrap();
        let origin = Arc::new(bywash_store::memory::MemoryStore::new());
        let bucket = engine
            .mount("test", origin, Consistency::Immutable)
            .unwrap();
        let pool = Arc::downgrade(&engine.shared.pool);
        drop(engine);
        assert!(pool.upgrade().is_some(), "a bucket is a handle");
        drop(bucket);
        assert!(pool.upgrade().is_none());
    }
}
