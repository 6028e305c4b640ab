//! Cache administration: shows, explains, drops and warms cached objects.

mod on_disk;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bywash_store::MAX_FAILURES_NAMED;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{GetOptions, ObjectStore, Result};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::bucket_options::Caching;
use crate::cost::Cost;
use crate::error::EngineError;
use crate::limits::MAX_WARMED_AT_ONCE;
use crate::outcome::CacheOutcome;
use crate::shared::BucketShared;
use crate::versions::KnownVersion;
use crate::{Bucket, Engine};

/// Percentage of the memory that warming reads at most: more would evict its first blocks.
const WARMED_MEMORY_PERCENT: u64 = 75;
/// Percentage of the disk tier that warming reads at most: summaries, and blocks rounded up to pages, take the rest.
const WARMED_DISK_PERCENT: u64 = 90;
/// Pause of a warming read while the disk tier is behind.
const DISK_PAUSE: Duration = Duration::from_millis(5);
/// Maximum pauses after one piece of a body.
const DISK_PAUSES: u32 = 20;

/// A known object, and how much of it is in memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedObject {
    /// Its key.
    pub key: String,
    /// Its length in bytes.
    pub size: u64,
    /// The known version: the origin's ETag, or a substitute for it.
    pub version: String,
    /// Milliseconds since the origin last confirmed the version; `None` if it has not since the start.
    pub validated_ms_ago: Option<u64>,
    /// Whether a read uses this version without asking the origin.
    pub fresh: bool,
    /// Number of its blocks.
    pub blocks: u32,
    /// Number of its blocks in memory.
    pub resident_blocks: u32,
    /// Bytes of it in memory.
    pub resident_bytes: u64,
    /// Number of its blocks on the disk tier.
    #[serde(default)]
    pub disk_blocks: u32,
    /// Bytes of it on the disk tier.
    #[serde(default)]
    pub disk_bytes: u64,
    /// Its cost at the origin since this version became known.
    pub cost: Cost,
}

/// One page of the known objects, ordered by bucket and key.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedPage {
    /// Objects by the name of their bucket.
    pub buckets: BTreeMap<String, Vec<CachedObject>>,
    /// Bucket and key of the last object, `bucket/key`, if there are more: the next page starts after it.
    pub next: Option<String>,
}

/// Blocks that a read of a whole object would find in the cache, and the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheExplanation {
    /// The object's key.
    pub key: String,
    /// `hit`, `partial` or `miss`.
    pub outcome: String,
    /// Location of the cached bytes: `memory`, `disk`, `memory+disk` or `none`.
    pub tier: String,
    /// The reasons, a sentence each.
    pub reasons: Vec<String>,
    /// The object, if it is known.
    pub object: Option<CachedObject>,
}

/// Result of warming or dropping.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheChange {
    /// Objects read or dropped. Each version that only the disk tier knew counts as one.
    pub objects: u64,
    /// Bytes of these objects.
    pub bytes: u64,
    /// Objects skipped because they would not fit the memory.
    pub left_out: u64,
    /// Objects that could not be read, with their errors; at most [`MAX_FAILURES_NAMED`].
    pub failed: Vec<String>,
}

impl Engine {
    /// Returns at most `max` known objects of `bucket`, or of all open buckets, with keys that begin with `prefix`.
    /// Starts after `after`, the `next` of the previous page. Scans all known objects, and looks up each block of the
    /// returned ones, some 100 ns each. `with_disk`: also objects that only the disk tier knows, since an earlier run. Then it
    /// blocks the thread for a read of the contents of each segment.
    #[must_use]
    pub fn cached_page(
        &self,
        bucket: Option<&Bucket>,
        prefix: &str,
        after: Option<&str>,
        max: usize,
        with_disk: bool,
    ) -> CachedPage {
        // In the order of their names.
        let buckets = bucket.map_or_else(|| self.open_buckets(), |bucket| vec![bucket.clone()]);
        let numbers = buckets
            .iter()
            .map(|bucket| bucket.shared().versions.store());
        let ranks: HashMap<u32, usize> = numbers.zip(0..).collect();
        let after = after.map(|after| after.split_once('/').unwrap_or((after, "")));
        let follows = |rank: usize, key: &str| {
            let follows = after.is_none_or(|after| (buckets[rank].name(), key) > after);
            follows && key.starts_with(prefix)
        };
        let wanted = max.saturating_add(1);
        let known = self.shared().objects.first(wanted, |store, path| {
            let rank = *ranks.get(&store)?;
            follows(rank, path.as_ref()).then_some(rank)
        });
        let mut objects = if with_disk {
            on_disk::first(self.shared(), &buckets, wanted, follows)
        } else {
            BTreeMap::new()
        };
        for (rank, known) in &known {
            let object = describe(buckets[*rank].shared(), known);
            objects.insert((*rank, object.key.clone()), object);
        }
        let mut page = CachedPage::default();
        let more = objects.len() > max;
        let mut last = None;
        for ((rank, key), object) in objects.into_iter().take(max) {
            let name = buckets[rank].name();
            last = Some(format!("{name}/{key}"));
            let objects = page.buckets.entry(name.to_owned()).or_default();
            objects.push(object);
        }
        page.next = last.filter(|_| more);
        page
    }
}

impl Bucket {
    /// Returns the known objects with keys that begin with `prefix`, by key. Looks up each of their blocks, some 100 ns
    /// each, without counting as a use.
    #[must_use]
    pub fn cached(&self, prefix: &str) -> Vec<CachedObject> {
        let shared = self.shared();
        let known = shared.versions.known_objects(prefix);
        let mut objects: Vec<_> = known.iter().map(|known| describe(shared, known)).collect();
        objects.sort_unstable_by(|one, other| one.key.cmp(&other.key));
        objects
    }

    /// Explains whether a read of this object would be served from memory. Sends no request.
    #[must_use]
    pub fn explain(&self, path: &Path) -> CacheExplanation {
        let shared = self.shared();
        let known = shared.versions.known_object(path);
        let object = known.as_ref().map(|known| describe(shared, known));
        let cacheable = known
            .as_ref()
            .is_some_and(|known| known.version.cacheable());
        let outcome = match &object {
            Some(object) if cacheable && object.resident_blocks == object.blocks => {
                CacheOutcome::Hit
            }
            Some(object) if object.resident_blocks > 0 => CacheOutcome::Partial,
            _ => CacheOutcome::Miss,
        };
        let reasons = match &object {
            Some(object) if cacheable => {
                let mut reasons = reasons(object, shared.consistency.max_age());
                reasons.extend(disk_refusal(shared, known.as_ref(), object));
                reasons
            }
            Some(_) => vec![
                "the origin sends neither a strong ETag nor a date for it, so two requests cannot be bound to one version: each \
                 read is one request to the origin, and none of its bytes are cached"
                    .to_owned(),
            ],
            None => vec![
                "it is unknown: it has not been read through this server since the start, or it was written, \
                 deleted or dropped since; the first read sends one request to the origin and caches the bytes"
                    .to_owned(),
            ],
        };
        let found = object.as_ref();
        let found = found.map_or((0, 0), |object| {
            (object.resident_blocks, object.disk_blocks)
        });
        let tier = match found {
            (0, 0) => "none",
            (_, 0) => "memory",
            (0, _) => "disk",
            (_, _) => "memory+disk",
        };
        CacheExplanation {
            key: path.to_string(),
            outcome: outcome.to_string(),
            tier: tier.to_owned(),
            reasons,
            object,
        }
    }

    /// Drops the objects with keys that begin with `prefix`, and their blocks: known versions, and all versions on the disk
    /// tier. Reads in progress continue. Blocks the thread: reads the contents of the tier, and waits up to five seconds until the tier
    /// has a record of it.
    #[must_use]
    pub fn drop_cached(&self, prefix: &str) -> CacheChange {
        let shared = self.shared();
        let mut dropped = CacheChange::default();
        for known in shared.versions.known_objects(prefix) {
            dropped.objects += 1;
            dropped.bytes += describe(shared, &known).resident_bytes;
            shared.drop_blocks(&known.version);
        }
        if let Some((disk, identity)) = shared.disk() {
            dropped.objects += disk.erase_objects(identity, prefix);
            if dropped.objects > 0 && !disk.wait_for_erasures() {
                tracing::warn!("dropped objects may be on the disk tier again after a crash");
            }
        }
        dropped
    }

    /// Reads all objects with keys that begin with `prefix`, a few at once: up to three quarters of the memory, or nine
    /// tenths of the disk tier if that is more and keeps blocks of this bucket. Waits up to 100 ms a block for a disk that
    /// does not keep up.
    ///
    /// # Errors
    /// Errors of the listing; [`EngineError::InvalidSetting`] for a bucket with [`Caching::WhileRead`]. Objects that cannot be read are
    /// named in the result.
    pub async fn warm(&self, prefix: &str) -> Result<CacheChange> {
        let folder = prefix
            .rsplit_once('/')
            .map(|(folder, _)| Path::from(folder));
        let shared = self.shared();
        if shared.caching == Caching::WhileRead {
            let reason = format!(
                "bucket {} keeps blocks only while they are read; there is nothing to warm",
                self.name()
            );
            let setting = "cache";
            return Err(EngineError::InvalidSetting { setting, reason }.into());
        }
        let memory = shared.engine.pool.budget().limit() / 100 * WARMED_MEMORY_PERCENT;
        // Blocks that leave the memory are on the disk then.
        let disk = shared.disk().map_or(0, |(disk, _)| disk.size()) / 100 * WARMED_DISK_PERCENT;
        let limit = memory.max(disk);
        let mut warmed = CacheChange::default();
        let mut taken = 0;
        let objects: Vec<_> = self.list(folder.as_ref()).try_collect().await?;
        let mut wanted = Vec::new();
        for meta in objects {
            if !meta.location.as_ref().starts_with(prefix) {
                continue;
            }
            taken += meta.size;
            if taken > limit {
                taken -= meta.size;
                warmed.left_out += 1;
            } else {
                wanted.push(meta.location);
            }
        }
        let mut reads = futures::stream::iter(wanted)
            .map(|path| async move { (self.read_through(&path).await, path) })
            .buffer_unordered(MAX_WARMED_AT_ONCE);
        while let Some((read, path)) = reads.next().await {
            match read {
                Ok(bytes) => {
                    warmed.objects += 1;
                    warmed.bytes += bytes;
                }
                Err(error) if warmed.failed.len() < MAX_FAILURES_NAMED => {
                    warmed.failed.push(format!("{path}: {error}"));
                }
                Err(_) => {}
            }
        }
        Ok(warmed)
    }

    async fn read_through(&self, path: &Path) -> Result<u64> {
        let mut body = self
            .get_opts(path, GetOptions::default())
            .await?
            .into_stream();
        let mut bytes = 0;
        while let Some(piece) = body.try_next().await? {
            bytes += piece.len() as u64;
            drop(piece);
            // A disk that hangs delays this by a limited time.
            for _ in 0..DISK_PAUSES {
                if !self
                    .shared()
                    .disk()
                    .is_some_and(|(disk, _)| disk.is_behind())
                {
                    break;
                }
                tokio::time::sleep(DISK_PAUSE).await;
            }
        }
        Ok(bytes)
    }
}

fn describe(bucket: &Arc<BucketShared>, known: &KnownVersion) -> CachedObject {
    let KnownVersion { version, validated } = known;
    let age = Instant::now().saturating_duration_since(*validated);
    let fresh = bucket.consistency.max_age().is_none_or(|max| age <= max);
    let mut object = CachedObject {
        key: version.meta.location.to_string(),
        size: version.meta.size,
        version: version.display(),
        validated_ms_ago: Some(u64::try_from(age.as_millis()).unwrap_or(u64::MAX)),
        fresh,
        blocks: version.blocks(bucket.block_size),
        resident_blocks: 0,
        resident_bytes: 0,
        disk_blocks: 0,
        disk_bytes: 0,
        cost: version.cost.read(),
    };
    let disk = bucket.disk_version(version);
    for block in 0..object.blocks {
        let on_disk = disk
            .as_ref()
            .is_some_and(|(disk, stored)| disk.contains(stored, version.key(block)));
        if on_disk {
            object.disk_blocks += 1;
            object.disk_bytes += version.block_len(block, bucket.block_size) as u64;
        }
        if bucket.engine.pool.contains(version.key(block)) {
            object.resident_blocks += 1;
            object.resident_bytes += version.block_len(block, bucket.block_size) as u64;
        }
    }
    object
}

/// Returns why blocks of an object do not reach the disk tier now, if some are not there.
fn disk_refusal(
    bucket: &BucketShared,
    known: Option<&KnownVersion>,
    object: &CachedObject,
) -> Option<String> {
    let (disk, _) = bucket.disk_version(&known?.version)?;
    (object.disk_blocks < object.blocks)
        .then(|| disk.refusal())
        .flatten()
}

/// Returns the reasons for the outcome of a read of a cacheable object.
fn reasons(object: &CachedObject, trusted: Option<Duration>) -> Vec<String> {
    let CachedObject {
        blocks,
        resident_blocks: here,
        ..
    } = *object;
    let absent = u64::from(blocks - here);
    let mut reasons = vec![match absent {
        0 => format!("all of its blocks are in memory ({blocks})"),
        _ => format!("{here} of its {blocks} blocks are in memory"),
    }];
    if object.disk_blocks > 0 {
        reasons.push(format!("{} are on disk", object.disk_blocks));
    }
    let left = object
        .cost
        .blocks
        .saturating_sub(u64::from(here))
        .min(absent);
    if left > 0 {
        reasons.push(format!("{left} were loaded and evicted since"));
    }
    // A lower bound of their number on the disk.
    let on_disk = u64::from(object.disk_blocks.saturating_sub(here));
    let known = left.max(on_disk);
    if absent > known {
        let never = absent - known;
        reasons.push(format!("{never} were never read, or are loading"));
    }
    let ago = Duration::from_millis(object.validated_ms_ago.unwrap_or_default());
    reasons.push(match trusted {
        None => format!("its bucket is immutable, so the version confirmed {ago:?} ago is never revalidated"),
        Some(window) if object.fresh => {
            format!("its version was confirmed {ago:?} ago, and its bucket trusts that for {window:?}")
        }
        Some(window) => format!(
            "its version was confirmed {ago:?} ago, longer than the {window:?} its bucket trusts that: a read \
             revalidates it by one request, and keeps the blocks if the version is the same"
        ),
    });
    reasons
}
