//! What of a bucket's objects is in memory, why it is or is not, and how to change that.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{GetOptions, ObjectStore, Result};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::bucket::{CacheOutcome, Shared};
use crate::cost::Cost;
use crate::limits::{MAX_FAILURES_NAMED, MAX_WARMED_AT_ONCE};
use crate::versions::Remembered;
use crate::{Bucket, Engine};

/// Warming stops when it has read this part of the memory: more would push out what it read first.
const WARMED_MEMORY_PERCENT: u64 = 75;

/// What is known of an object, and what of it is in memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedObject {
    /// Its key.
    pub key: String,
    /// Its length in bytes.
    pub size: u64,
    /// The version known: the origin's ETag, or what stands for it.
    pub version: String,
    /// How long ago the origin was asked whether it is current, in milliseconds.
    pub validated_ms_ago: u64,
    /// Whether a read trusts that answer and asks no more.
    pub fresh: bool,
    /// Blocks it has.
    pub blocks: u32,
    /// Those of them in memory.
    pub resident_blocks: u32,
    /// Bytes of it in memory.
    pub resident_bytes: u64,
    /// What it has cost the origin since this version became known.
    pub cost: Cost,
}

/// Some of the objects whose version is known, in the order of their buckets and keys.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedPage {
    /// Objects by the name of their bucket.
    pub buckets: BTreeMap<String, Vec<CachedObject>>,
    /// Bucket and key of the last one, `bucket/key`, if there are more: the next page comes after it.
    pub next: Option<String>,
}

/// What a read of a whole object would find now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Why {
    /// The key asked about.
    pub key: String,
    /// `hit`, `partial` or `miss`.
    pub outcome: String,
    /// Where the bytes that are here lie: `memory`, or `none`.
    pub tier: String,
    /// The reasons, a sentence each.
    pub reasons: Vec<String>,
    /// What is known of the object, if anything is.
    pub object: Option<CachedObject>,
}

/// What warming or dropping did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// Objects read, or dropped.
    pub objects: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Objects left out because memory would not have held them.
    pub left_out: u64,
    /// Objects that could not be read, the first [`MAX_FAILURES_NAMED`] of them, each with its error.
    pub failed: Vec<String>,
}

impl Engine {
    /// The first `max` objects after `after`, the `next` of an earlier page, whose keys begin with `prefix` and whose version is
    /// known: of `bucket`, or of all open ones. Looks at all that is known, and at each block of these objects, some 100 ns each.
    #[must_use]
    pub fn cached_page(
        &self,
        bucket: Option<&Bucket>,
        prefix: &str,
        after: Option<&str>,
        max: usize,
    ) -> CachedPage {
        // By their names.
        let buckets = bucket.map_or_else(|| self.open_buckets(), |bucket| vec![bucket.clone()]);
        let numbers = buckets
            .iter()
            .map(|bucket| bucket.shared().versions.store());
        let ranks: HashMap<u32, usize> = numbers.zip(0..).collect();
        let after = after.map(|after| after.split_once('/').unwrap_or((after, "")));
        let mut known = self
            .shared()
            .objects
            .first(max.saturating_add(1), |store, path| {
                let rank = *ranks.get(&store)?;
                let key = path.as_ref();
                let follows = after.is_none_or(|after| (buckets[rank].name(), key) > after);
                (follows && key.starts_with(prefix)).then_some(rank)
            });
        let more = known.len() > max;
        known.truncate(max);
        let mut page = CachedPage::default();
        if let Some((rank, last)) = known.last().filter(|_| more) {
            let key = &last.version.meta.location;
            page.next = Some(format!("{}/{key}", buckets[*rank].name()));
        }
        for (rank, known) in &known {
            let bucket = &buckets[*rank];
            let objects = page.buckets.entry(bucket.name().to_owned()).or_default();
            objects.push(describe(bucket.shared(), known));
        }
        page
    }
}

impl Bucket {
    /// Objects whose keys begin with `prefix` and whose version is known, by key. Looks at each of their blocks, some 100 ns
    /// each; uses none.
    #[must_use]
    pub fn cached(&self, prefix: &str) -> Vec<CachedObject> {
        let shared = self.shared();
        let known = shared.versions.remembered(prefix);
        let mut objects: Vec<_> = known.iter().map(|known| describe(shared, known)).collect();
        objects.sort_unstable_by(|one, other| one.key.cmp(&other.key));
        objects
    }

    /// Whether a read of this object would be answered from memory, and why. Asks the origin nothing.
    #[must_use]
    pub fn why(&self, path: &Path) -> Why {
        let shared = self.shared();
        let known = shared.versions.remembered_one(path);
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
            Some(object) if cacheable => reasons(object, shared.consistency.max_age()),
            Some(_) => vec![
                "the origin gives it neither a strong ETag nor a date, so nothing ties two requests to one version: each \
                 read is one request to the origin, and nothing of it is kept"
                    .to_owned(),
            ],
            None => vec![
                "nothing is known of it: nobody has read it through this server since it started, or it was written, \
                 deleted or dropped since; the first read asks the origin once and keeps what comes"
                    .to_owned(),
            ],
        };
        let here = object
            .as_ref()
            .is_some_and(|object| object.resident_blocks > 0);
        Why {
            key: path.to_string(),
            outcome: outcome.to_string(),
            tier: if here { "memory" } else { "none" }.to_owned(),
            reasons,
            object,
        }
    }

    /// Forgets all that is known of objects whose keys begin with `prefix`, and what of them is in memory. Reads in progress
    /// go on.
    #[must_use]
    pub fn drop_cached(&self, prefix: &str) -> Changed {
        let shared = self.shared();
        let mut dropped = Changed::default();
        for known in shared.versions.remembered(prefix) {
            dropped.objects += 1;
            dropped.bytes += describe(shared, &known).resident_bytes;
            shared.versions.drop_blocks(&known.version);
        }
        dropped
    }

    /// Reads all objects whose keys begin with `prefix` into memory, a few at once, until three quarters of it are read.
    ///
    /// # Errors
    /// That of the listing. Objects that cannot be read are named in the answer.
    pub async fn warm(&self, prefix: &str) -> Result<Changed> {
        let folder = prefix
            .rsplit_once('/')
            .map(|(folder, _)| Path::from(folder));
        let limit = self.shared().engine.pool.budget().limit() / 100 * WARMED_MEMORY_PERCENT;
        let mut warmed = Changed::default();
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
        }
        Ok(bytes)
    }
}

fn describe(bucket: &Arc<Shared>, known: &Remembered) -> CachedObject {
    let Remembered { version, validated } = known;
    let age = Instant::now().saturating_duration_since(*validated);
    let fresh = bucket.consistency.max_age().is_none_or(|most| age <= most);
    let mut object = CachedObject {
        key: version.meta.location.to_string(),
        size: version.meta.size,
        version: version.label(),
        validated_ms_ago: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
        fresh,
        blocks: version.blocks(bucket.block_size),
        resident_blocks: 0,
        resident_bytes: 0,
        cost: version.cost.read(),
    };
    for block in 0..object.blocks {
        if bucket.engine.pool.contains(version.key(block)) {
            object.resident_blocks += 1;
            object.resident_bytes += version.block_len(block, bucket.block_size) as u64;
        }
    }
    object
}

/// Why a read of a cacheable object would be what it would be.
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
    let left = object
        .cost
        .blocks
        .saturating_sub(u64::from(here))
        .min(absent);
    if left > 0 {
        reasons.push(format!("{left} were here and left to make room for others"));
    }
    if absent > left {
        let never = absent - left;
        reasons.push(format!("{never} were never read, or are on their way"));
    }
    let ago = Duration::from_millis(object.validated_ms_ago);
    reasons.push(match trusted {
        None => format!("its bucket is immutable, so the version seen {ago:?} ago is trusted for good"),
        Some(window) if object.fresh => {
            format!("the origin was asked for its version {ago:?} ago, and its bucket trusts that for {window:?}")
        }
        Some(window) => format!(
            "the origin was asked for its version {ago:?} ago, longer than the {window:?} its bucket trusts that: a read \
             asks again, once, and keeps the blocks if the version is the same"
        ),
    });
    reasons
}
