//! The engine: one budget, one pool, many buckets.

use std::collections::BTreeMap;
use std::path::{Path as FsPath, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use bywash_mem::{BlockPool, Frame, FrameError, PoolConfig, Share};
use chrono::{DateTime, Utc};
use futures::StreamExt;
use object_store::path::Path;
use object_store::{ObjectStore, Result as StoreResult};
use parking_lot::RwLock;

use crate::bucket::Bucket;
use crate::consistency::Consistency;
use crate::error::EngineError;
use crate::machine::available_memory;
use crate::origin::folder::FolderStore;
use crate::origin::{Origin, OriginUrl};
use crate::read::Ahead;
use crate::retry::RetryPolicy;
use crate::stats::{BudgetStats, PoolStats, Stats};

/// The default share of the machine's memory: enough to matter, small enough to be a guest.
const DEFAULT_MEMORY_DIVISOR: u64 = 4;
/// The default block: large enough to amortise a request, small enough to read at random.
const DEFAULT_BLOCK_BYTES: usize = 1 << 20;
/// The default upload chunk, and the largest body that is one atomic put.
const DEFAULT_CHUNK_BYTES: u64 = 16 << 20;
/// The default length of one ranged GET: long enough that a request costs little beside it.
const DEFAULT_SHARD_BYTES: u64 = 8 << 20;
/// Ranged GETs in flight of one bucket: enough to fill a fast line, few enough for any origin.
pub(crate) const SHARDS_IN_FLIGHT: usize = 16;
/// Shards one body keeps on their way.
const SHARDS_AHEAD: u64 = 4;
/// One shard, and what a body reads ahead, take at most this share of the memory, so that one
/// reader does not push out what others are about to read.
const AHEAD_MEMORY_DIVISOR: u64 = 16;
/// What all bodies together hold ahead of themselves, at most: the rest of the downloads' share is
/// for what they read now, and for what is worth keeping.
const ALL_AHEAD_MEMORY_DIVISOR: u64 = 2;
/// The least memory, in blocks: a block for a reader, one for what it reads next, and the same
/// again in each guaranteed share.
const LEAST_MEMORY_BLOCKS: u64 = 8;
/// Block sizes the pool has frames for.
const BLOCK_BYTES: std::ops::RangeInclusive<usize> = (4 << 10)..=(4 << 20);
/// The smallest part S3 takes, but for the last of an upload.
const S3_LEAST_PART_BYTES: u64 = 5 << 20;
/// Bucket names: the rules of S3.
const BUCKET_NAME_BYTES: std::ops::RangeInclusive<usize> = 3..=63;

/// Settings of an [`Engine`]. Checked by [`EngineBuilder::build`].
#[derive(Debug, Clone)]
pub struct EngineBuilder {
    memory: Option<u64>,
    block_size: usize,
    chunk_size: Option<u64>,
    root: Option<PathBuf>,
    retry: RetryPolicy,
    admission_deadline: Duration,
}

impl EngineBuilder {
    /// The memory ceiling in bytes: blocks, downloads in flight and upload buffers together.
    /// Default: a quarter of what the machine or its control group allows.
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = Some(bytes);
        self
    }

    /// The size of a cached block in bytes, a power of two from 4 KiB to 4 MiB. Default 1 MiB.
    #[must_use]
    pub fn block_size(mut self, bytes: usize) -> Self {
        self.block_size = bytes;
        self
    }

    /// The size of an upload chunk in bytes; longer bodies become uploads in parts. Default
    /// 16 MiB, or a quarter of the memory if that is less.
    #[must_use]
    pub fn chunk_size(mut self, bytes: usize) -> Self {
        self.chunk_size = Some(bytes as u64);
        self
    }

    /// A folder whose sub-folders are buckets that can be created and deleted. Default: none.
    #[must_use]
    pub fn root(mut self, folder: impl Into<PathBuf>) -> Self {
        self.root = Some(folder.into());
        self
    }

    /// How failed requests to origins are repeated.
    #[must_use]
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.retry = policy;
        self
    }

    /// How long a request may wait for memory before it is told to slow down. Default 60 s.
    #[must_use]
    pub fn admission_deadline(mut self, deadline: Duration) -> Self {
        self.admission_deadline = deadline;
        self
    }

    /// Checks the settings and makes the engine. Creates the root folder if it is missing.
    pub fn build(self) -> Result<Engine, EngineError> {
        let memory = self
            .memory
            .unwrap_or_else(|| available_memory() / DEFAULT_MEMORY_DIVISOR);
        let invalid =
            |setting, reason: String| Err(EngineError::InvalidSetting { setting, reason });
        if !self.block_size.is_power_of_two() || !BLOCK_BYTES.contains(&self.block_size) {
            return invalid(
                "block_size",
                format!(
                    "{} is not a power of two from 4 KiB to 4 MiB",
                    self.block_size
                ),
            );
        }
        let block_size = self.block_size as u64;
        if memory < LEAST_MEMORY_BLOCKS * block_size {
            let least = LEAST_MEMORY_BLOCKS * block_size;
            return invalid(
                "memory",
                format!("{memory} bytes are too few: at least {least} are needed"),
            );
        }
        let chunk_size = self
            .chunk_size
            .unwrap_or_else(|| DEFAULT_CHUNK_BYTES.min(memory / 4));
        if chunk_size == 0 || chunk_size > memory / 2 {
            return invalid(
                "chunk_size",
                format!("{chunk_size} is not between 1 and half of the memory ({memory})"),
            );
        }
        if let Some(root) = &self.root {
            std::fs::create_dir_all(root).map_err(|source| EngineError::Io {
                bucket: root.display().to_string(),
                source,
            })?;
        }
        let config = PoolConfig::new(memory);
        let blocks = |bytes: u64| u32::try_from(bytes / block_size).unwrap_or(u32::MAX);
        let pool = BlockPool::new(config).map_err(|error| EngineError::InvalidSetting {
            setting: "memory",
            reason: error.to_string(),
        })?;
        let shard_size = DEFAULT_SHARD_BYTES
            .min(memory / AHEAD_MEMORY_DIVISOR)
            .max(block_size);
        let ahead = (SHARDS_AHEAD * DEFAULT_SHARD_BYTES).min(memory / AHEAD_MEMORY_DIVISOR);
        let shared = Shared {
            pool,
            block_size,
            chunk_size,
            shard_size: shard_size / block_size * block_size,
            ahead: Ahead::new(
                blocks(ahead),
                blocks(memory / ALL_AHEAD_MEMORY_DIVISOR),
                blocks(memory - config.upload_guarantee),
            ),
            root: self.root,
            retry: self.retry,
            admission_deadline: self.admission_deadline,
            stores: AtomicU32::new(0),
            buckets: RwLock::default(),
        };
        Ok(Engine {
            shared: Arc::new(shared),
        })
    }
}

/// What all handles of an engine share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) pool: Arc<BlockPool>,
    /// Bytes of a cached block.
    pub(crate) block_size: u64,
    /// Bytes of an upload chunk.
    pub(crate) chunk_size: u64,
    /// Bytes of one ranged GET, a multiple of the block size.
    pub(crate) shard_size: u64,
    /// What bodies have in memory, or on its way, ahead of the block they read.
    pub(crate) ahead: Arc<Ahead>,
    pub(crate) root: Option<PathBuf>,
    pub(crate) retry: RetryPolicy,
    pub(crate) admission_deadline: Duration,
    /// Numbers buckets in the pool's keys; only uniqueness matters, hence relaxed.
    stores: AtomicU32,
    buckets: RwLock<BTreeMap<String, Mounted>>,
}

impl Shared {
    /// The number of a new bucket.
    pub(crate) fn next_store(&self) -> u32 {
        self.stores.fetch_add(1, Relaxed)
    }

    /// Blocks of one ranged GET, at least 1.
    pub(crate) fn shard_blocks(&self) -> u32 {
        (self.shard_size / self.block_size) as u32
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
            Ok(Err(_)) | Err(_) => {
                let object = object.to_string();
                Err(EngineError::SlowDown {
                    operation,
                    object,
                    waited_s: deadline.as_secs(),
                }
                .into())
            }
        }
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
}

impl Engine {
    /// Settings at their defaults.
    #[must_use]
    pub fn builder() -> EngineBuilder {
        EngineBuilder {
            memory: None,
            block_size: DEFAULT_BLOCK_BYTES,
            chunk_size: None,
            root: None,
            retry: RetryPolicy::default(),
            admission_deadline: Duration::from_secs(60),
        }
    }

    /// Makes `origin` the bucket `name`.
    pub fn mount(
        &self,
        name: &str,
        origin: Arc<dyn Origin>,
        consistency: Consistency,
    ) -> Result<Bucket, EngineError> {
        check_bucket_name(name)?;
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
        let bucket = Bucket::new(name, origin, consistency, Arc::clone(&self.shared));
        self.insert(bucket, Utc::now(), false)
    }

    /// Opens the origin at `url` and makes it the bucket `name`. Sends no request.
    pub fn mount_url(
        &self,
        name: &str,
        url: &OriginUrl,
        consistency: Consistency,
    ) -> Result<Bucket, EngineError> {
        let origin = url.open().map_err(|source| origin_error(name, source))?;
        self.mount(name, origin, consistency)
    }

    /// The bucket `name`: mounted, or a sub-folder of the root. Looks at the file system only for
    /// a name it has not seen.
    #[must_use]
    pub fn bucket(&self, name: &str) -> Option<Bucket> {
        if let Some(mounted) = self.shared.buckets.read().get(name) {
            return Some(mounted.bucket.clone());
        }
        let folder = self.shared.root.as_ref()?.join(name);
        check_bucket_name(name).ok()?;
        folder.is_dir().then_some(())?;
        self.mount_folder(name, &folder).ok()
    }

    /// All buckets, by name.
    #[must_use]
    pub fn buckets(&self) -> Vec<BucketInfo> {
        if let Some(entries) = self
            .shared
            .root
            .as_ref()
            .and_then(|root| std::fs::read_dir(root).ok())
        {
            for entry in entries.flatten() {
                // Mounts it, if it is a bucket not seen yet.
                let _ = self.bucket(&entry.file_name().to_string_lossy());
            }
        }
        let buckets = self.shared.buckets.read();
        buckets
            .iter()
            .map(|(name, mounted)| BucketInfo {
                name: name.clone(),
                created: mounted.created,
            })
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

    /// Deletes an empty bucket of the root folder.
    pub async fn delete_bucket(&self, name: &str) -> Result<(), EngineError> {
        let bucket = self
            .bucket(name)
            .ok_or_else(|| EngineError::NoSuchBucket(name.to_owned()))?;
        let in_root = self
            .shared
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
        self.shared.buckets.write().remove(name);
        bucket.shared().versions.forget_all();
        Ok(())
    }

    /// The counters of this moment.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let buckets = self.shared.buckets.read();
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
        }
    }

    fn mount_folder(&self, name: &str, folder: &FsPath) -> Result<Bucket, EngineError> {
        let store = FolderStore::open(folder).map_err(|source| origin_error(name, source))?;
        let bucket = Bucket::new(
            name,
            Arc::new(store),
            Consistency::default(),
            Arc::clone(&self.shared),
        );
        let metadata = std::fs::metadata(folder);
        let created = metadata.and_then(|data| data.created().or_else(|_| data.modified()));
        let created = created.map_or_else(|_| Utc::now(), DateTime::<Utc>::from);
        match self.insert(bucket, created, true) {
            // Another thread mounted the same folder in between: its handle is as good.
            Err(EngineError::BucketExists(_)) => {
                let buckets = self.shared.buckets.read();
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
        let mut buckets = self.shared.buckets.write();
        let name = bucket.name().to_owned();
        if buckets.contains_key(&name) {
            return Err(EngineError::BucketExists(name));
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

/// Removes a bucket's folder that has nothing in it but the store's own housekeeping.
///
/// The own folder is moved aside first. An object written meanwhile then makes the removal fail,
/// or shows in what was moved; either way all of it is put back.
fn remove_empty_bucket(root: &FsPath, name: &str) -> Result<(), EngineError> {
    let io = |source| EngineError::Io {
        bucket: name.to_owned(),
        source,
    };
    let folder = root.join(name);
    let own = folder.join(FolderStore::OWN_FOLDER);
    // No bucket's name begins with a dot.
    let aside = root.join(format!(".deleting-{name}"));
    if aside.exists() {
        std::fs::remove_dir_all(&aside).map_err(io)?;
    }
    let had_own = own.exists();
    if had_own {
        std::fs::rename(&own, &aside).map_err(io)?;
    }
    let busy = had_own && has_files(&aside.join("keys"));
    let removed = if busy {
        Ok(())
    } else {
        std::fs::remove_dir(&folder)
    };
    match removed {
        Ok(()) if !busy => {
            if had_own {
                std::fs::remove_dir_all(&aside).map_err(io)?;
            }
            Ok(())
        }
        removed => {
            if had_own {
                std::fs::rename(&aside, &own).map_err(io)?;
            }
            match removed {
                Err(source) if source.kind() != std::io::ErrorKind::DirectoryNotEmpty => {
                    Err(io(source))
                }
                _ => Err(EngineError::BucketNotEmpty(name.to_owned())),
            }
        }
    }
}

/// Whether there is any file below `folder`.
fn has_files(folder: &FsPath) -> bool {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .into_iter()
        .any(|entry| !entry.path().is_dir() || has_files(&entry.path()))
}

fn origin_error(bucket: &str, source: object_store::Error) -> EngineError {
    EngineError::Origin {
        bucket: bucket.to_owned(),
        source: Box::new(source),
    }
}

fn check_bucket_name(name: &str) -> Result<(), EngineError> {
    let bad = |reason| {
        Err(EngineError::InvalidBucketName {
            name: name.to_owned(),
            reason,
        })
    };
    if !BUCKET_NAME_BYTES.contains(&name.len()) {
        return bad("a name has 3 to 63 characters");
    }
    if !name
        .bytes()
        .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'.' || c == b'-')
    {
        return bad("only lower-case letters, digits, '.' and '-' are allowed");
    }
    let edge = |c: Option<u8>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    if !edge(name.bytes().next()) || !edge(name.bytes().last()) || name.contains("..") {
        return bad("a name begins and ends with a letter or digit and has no '..'");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn bucket_names_follow_the_rules() {
        for good in ["abc", "a-b.c", "0ab", &"a".repeat(63)] {
            assert!(check_bucket_name(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "ab",
            "Abc",
            "a_b",
            "-ab",
            "ab.",
            "a..b",
            "../x",
            "a/b",
            &"a".repeat(64),
        ] {
            assert!(check_bucket_name(bad).is_err(), "{bad}");
        }
    }
}
