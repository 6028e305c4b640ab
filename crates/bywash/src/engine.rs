//! The engine: one budget, one pool, many buckets.

mod builder;
mod reserve;
mod root;

use std::collections::BTreeMap;
use std::path::{Path as FsPath, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use bywash_mem::{BlockPool, Budget, Frame, FrameError, Share};
use chrono::{DateTime, Utc};
use futures::StreamExt;
use object_store::path::Path;
use object_store::{Error as StoreError, ObjectStore, Result as StoreResult};
use parking_lot::RwLock;

use crate::bucket::{Bucket, BucketOptions};
use crate::consistency::Consistency;
use crate::error::EngineError;
use crate::origin::folder::FolderStore;
use crate::origin::{Origin, OriginUrl};
use crate::read::{AbandonedMemory, Ahead, Loans};
use crate::retry::RetryPolicy;
use crate::stats::{BudgetStats, PoolStats, Stats};
use crate::traffic::Traffic;
use crate::upload::journal::Journal;
use crate::versions::KnownObjects;
use builder::{ahead_limits, check_block_size, check_memory};
use root::{check_bucket_name, remove_empty_bucket};

pub use builder::EngineBuilder;

/// The smallest part S3 takes, but for the last of an upload.
const S3_LEAST_PART_BYTES: u64 = 5 << 20;

/// What all handles and buckets of an engine share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) pool: Arc<BlockPool>,
    /// Bytes of a cached block of a bucket that says nothing else.
    block_size: u64,
    /// Bytes of an upload chunk.
    pub(crate) chunk_size: u64,
    /// Bytes of one ranged GET of a bucket whose block is not larger.
    pub(crate) shard_size: u64,
    /// What bodies have in memory, or on its way, ahead of the block they read.
    pub(crate) ahead: Arc<Ahead>,
    /// What bodies leave in memory with their consumers.
    pub(crate) loans: Arc<Loans>,
    /// What is known of the objects of all buckets.
    pub(crate) objects: Arc<KnownObjects>,
    pub(crate) root: Option<PathBuf>,
    /// Where open uploads are written down.
    pub(crate) journal: Option<Journal>,
    pub(crate) retry: RetryPolicy,
    /// Whether slow requests are sent a second time.
    pub(crate) hedge: bool,
    pub(crate) admission_deadline: Duration,
    /// Memory of requests that go on without readers.
    pub(crate) abandoned: AbandonedMemory,
    /// What passes the endpoints.
    traffic: Arc<Traffic>,
    /// Numbers buckets in the pool's keys; only uniqueness matters, hence relaxed.
    stores: AtomicU32,
}

impl Shared {
    /// The number of a new bucket.
    pub(crate) fn next_store(&self) -> u32 {
        self.stores.fetch_add(1, Relaxed)
    }

    /// A frame for a block of `length` bytes, waiting in order until the admission deadline.
    pub(crate) async fn frame(
        &self,
        length: usize,
        operation: &'static str,
        object: &Path,
    ) -> StoreResult<Frame> {
        let mut frames = self
            .frames(Share::Download, length, 1, operation, object)
            .await?;
        Ok(frames
            .pop()
            .expect("at least the one frame asked for was granted"))
    }

    /// `count` frames of `length` bytes each, all or none, waiting in order until the deadline.
    pub(crate) async fn frames(
        &self,
        share: Share,
        length: usize,
        count: usize,
        operation: &'static str,
        object: &Path,
    ) -> StoreResult<Vec<Frame>> {
        if let Some(frames) = self.pool.try_frames(share, length, count, count) {
            return Ok(frames);
        }
        // Who must wait needs it more than who reads ahead.
        self.ahead.give_up();
        let wait = self.pool.frames(share, length, count, count);
        let deadline = self.admission_deadline;
        match tokio::time::timeout(deadline, wait).await {
            Ok(Ok(frames)) => Ok(frames),
            Ok(Err(error @ FrameError::TooLarge { .. })) => Err(EngineError::InvalidSetting {
                setting: "memory",
                reason: error.to_string(),
            }
            .into()),
            Ok(Err(_)) | Err(_) => Err(self.slow_down(operation, object)),
        }
    }

    /// The error for who waited for memory until the deadline.
    pub(crate) fn slow_down(&self, operation: &'static str, object: &Path) -> StoreError {
        EngineError::SlowDown {
            operation,
            object: object.to_string(),
            waited_s: self.admission_deadline.as_secs(),
        }
        .into()
    }
}

#[derive(Debug, Clone)]
struct Mounted {
    bucket: Bucket,
    created: DateTime<Utc>,
    /// Found under the root folder, so it can be deleted.
    in_root: bool,
}

/// A bucket's name and age.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketInfo {
    /// The name.
    pub name: String,
    /// When it was created, or mounted.
    pub created: DateTime<Utc>,
}

/// The engine; cheap to clone.
#[derive(Debug, Clone)]
pub struct Engine {
    shared: Arc<Shared>,
    /// Apart from what buckets share, which must not own them.
    buckets: Arc<RwLock<BTreeMap<String, Mounted>>>,
}

impl Engine {
    /// Settings at their defaults.
    #[must_use]
    pub fn builder() -> EngineBuilder {
        EngineBuilder::new()
    }

    /// Makes `origin` the bucket `name`. A [`Consistency`] alone stands for options that are the defaults otherwise.
    pub fn mount(
        &self,
        name: &str,
        origin: Arc<dyn Origin>,
        options: impl Into<BucketOptions>,
    ) -> Result<Bucket, EngineError> {
        let options = options.into();
        check_bucket_name(name)?;
        let block_size = options
            .block_size
            .map_or(Ok(self.shared.block_size), check_block_size)?;
        let chunk_size = self.shared.chunk_size;
        if origin.kind() == "s3" && chunk_size < S3_LEAST_PART_BYTES {
            let reason = format!(
                "{chunk_size} bytes are too few for parts of {origin}, which takes none below 5 MiB; \
                 raise the chunk size, or the memory to at least 20 MiB"
            );
            return Err(EngineError::InvalidSetting {
                setting: "chunk_size",
                reason,
            });
        }
        let bucket = Bucket::new(
            name,
            origin,
            options.consistency,
            block_size,
            Arc::clone(&self.shared),
        );
        self.insert(bucket, Utc::now(), false)
    }

    /// Opens the origin at `url` and makes it the bucket `name`. Sends no request.
    pub fn mount_url(
        &self,
        name: &str,
        url: &OriginUrl,
        options: impl Into<BucketOptions>,
    ) -> Result<Bucket, EngineError> {
        let origin = url.open().map_err(|source| origin_error(name, source))?;
        self.mount(name, origin, options)
    }

    /// The bucket `name`: mounted, or a sub-folder of the root. Looks at the file system only for
    /// a name it has not seen.
    #[must_use]
    pub fn bucket(&self, name: &str) -> Option<Bucket> {
        if let Some(mounted) = self.buckets.read().get(name) {
            return Some(mounted.bucket.clone());
        }
        let folder = self.shared.root.as_ref()?.join(name);
        check_bucket_name(name).ok()?;
        folder.is_dir().then_some(())?;
        self.mount_folder(name, &folder).ok()
    }

    /// All buckets, by name. Reads the root folder; buckets found there are not opened.
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

    /// The buckets that were opened so far, by their names. Others have nothing in memory.
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

    pub(crate) fn shared(&self) -> &Arc<Shared> {
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
        // Looks at each block of the pool.
        let forgotten = tokio::task::spawn_blocking(move || bucket.shared().versions.forget_all());
        // An error is a panic of that, and the bucket is gone all the same.
        let _ = forgotten.await;
        Ok(())
    }

    /// Changes the memory ceiling while the engine works: upwards at once, as far as the machine has memory; downwards by
    /// evicting blocks.
    ///
    /// # Errors
    /// [`EngineError::InvalidSetting`] if it is out of range, or if readers and writers hold more now; the ceiling is as it
    /// was then. May look at every block.
    pub fn set_memory(&self, bytes: u64) -> Result<(), EngineError> {
        let shared = &self.shared;
        let buckets = self.buckets.read();
        let blocks = buckets
            .values()
            .map(|mounted| mounted.bucket.shared().block_size);
        check_memory(bytes, blocks.fold(shared.block_size, u64::max))?;
        let invalid = |reason| EngineError::InvalidSetting {
            setting: "memory",
            reason,
        };
        let chunk_size = shared.chunk_size;
        if chunk_size > bytes / 2 {
            return Err(invalid(format!(
                "{bytes} bytes are less than two upload chunks of {chunk_size}"
            )));
        }
        // The tables' charge would keep a lower ceiling from being taken.
        shared.objects.follow(&shared.pool, bytes);
        let changed = shared.pool.set_limit(bytes);
        shared.objects.follow(&shared.pool, u64::MAX);
        changed.map_err(|error| invalid(error.to_string()))?;
        let limits = ahead_limits(bytes);
        shared.loans.set_downloads(limits.downloads);
        shared.ahead.set_limits(limits);
        Ok(())
    }

    /// The budget that all of the engine's memory is charged to, for others who keep things in memory.
    #[must_use]
    pub fn budget(&self) -> &Budget {
        self.shared.pool.budget()
    }

    /// What passes the endpoints over this engine, noted by them.
    #[must_use]
    pub fn traffic(&self) -> &Arc<Traffic> {
        &self.shared.traffic
    }

    /// The counters of this moment.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let buckets = self.buckets.read();
        let buckets = buckets
            .iter()
            .map(|(name, mounted)| (name.clone(), mounted.bucket.shared().counters.snapshot()));
        let pool = self.shared.pool.stats();
        let budget = self.shared.pool.budget();
        Stats {
            buckets: buckets.collect(),
            pool: PoolStats {
                flights: pool.flights,
                evictions: pool.evictions,
                resident_blocks: pool.resident_blocks,
                resident_bytes: pool.resident_bytes,
            },
            budget: BudgetStats {
                used: budget.used(),
                limit: budget.limit(),
                waiting: budget.waiting(),
                idle: budget.idle(),
            },
            objects: self.shared.objects.stats(),
        }
    }

    fn mount_folder(&self, name: &str, folder: &FsPath) -> Result<Bucket, EngineError> {
        let store = FolderStore::open(folder).map_err(|source| origin_error(name, source))?;
        let bucket = Bucket::new(
            name,
            Arc::new(store),
            Consistency::default(),
            self.shared.block_size,
            Arc::clone(&self.shared),
        );
        match self.insert(bucket, created(folder), true) {
            // Another thread mounted the same folder in between: its handle is as good.
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
        // With the buckets locked, so that the memory cannot shrink meanwhile.
        check_memory(self.budget().limit(), bucket.shared().block_size)?;
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

/// When a bucket's folder was made, as far as the file system knows.
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

    #[test]
    fn the_memory_goes_with_the_last_handle() {
        let engine = Engine::builder().memory(16 << 20).build().unwrap();
        let origin = Arc::new(crate::origin::memory::MemoryStore::new());
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
