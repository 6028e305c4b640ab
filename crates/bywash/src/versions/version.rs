//! One version of one object.
//!
//! It is immutable, and its id is part of the key of its blocks in the pool, so blocks of two versions cannot be
//! mixed.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};

use bywash_mem::BlockKey;
use bywash_store::{ContentDigest, TagCount, folder::HeldFile, unmodified_since};
use chrono::{DateTime, Utc};
use object_store::{Attribute, AttributeValue, Attributes, GetOptions, GetResult, ObjectMeta};
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OnceCell};

use crate::cluster::ObjectVersion;
use crate::cost::Costs;

/// Source of version ids; only uniqueness matters, hence relaxed.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// Returns the number of an object in the pool's keys that no other has.
pub(crate) fn next_object_id() -> u64 {
    NEXT_ID.fetch_add(1, Relaxed)
}

/// Condition that binds a request to one version.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Validator {
    /// Sent as `If-Match`; the origin promises equal bytes.
    StrongETag(String),
    /// Sent as `If-Unmodified-Since`; the other metadata is compared in every response.
    Modified(DateTime<Utc>),
    /// None: two requests cannot be bound to one version, so the object is never cached.
    None,
}

impl Validator {
    fn of(meta: &ObjectMeta) -> Self {
        match &meta.e_tag {
            Some(tag) if !tag.starts_with("W/") && !tag.is_empty() => Self::StrongETag(tag.clone()),
            // object_store has no "unknown" date; origins without one report the epoch.
            _ if meta.last_modified.timestamp() > 0 => Self::Modified(meta.last_modified),
            _ => Self::None,
        }
    }
}

/// The open file of one version in a folder, shared by its reads and closed with the last read. Empty until the
/// origin has opened one, and for other origins.
#[derive(Debug, Default)]
pub(crate) struct SharedFile(OnceLock<HeldFile>);

impl SharedFile {
    /// Takes the open file from a response, if it has one and this is empty.
    pub(crate) fn keep_from(&self, result: &GetResult) {
        if let Some(file) = result.extensions.get::<HeldFile>() {
            self.0.get_or_init(|| file.clone());
        }
    }
}

/// Digest of a version's content, and whether its blocks in memory have it.
#[derive(Debug, Default)]
struct Integrity {
    /// From the first response that states one.
    digest: OnceLock<ContentDigest>,
    /// Set once it was requested.
    requested: OnceCell<()>,
    /// Number of blocks loaded, plus 1, when all blocks in memory last matched the digest; 0 if they never did.
    /// Orders nothing, hence relaxed: a load is counted before its block is published.
    verified: AtomicU64,
    /// Held by a read of the whole object that compares it before ranged reads.
    turn: AsyncMutex<()>,
}

/// One version of one object: all of it but its bytes.
#[derive(Debug)]
pub(crate) struct Version {
    /// Number of its bucket.
    store: u32,
    id: u64,
    /// Number of this version with these headers; no other has it.
    headers_id: u64,
    pub(crate) meta: ObjectMeta,
    pub(crate) attributes: Attributes,
    /// Number of its tags at the store when it was recorded: they change without the version.
    pub(crate) tags: TagCount,
    validator: Validator,
    pub(crate) cost: Arc<Costs>,
    integrity: Arc<Integrity>,
    /// Held by its reads.
    file: Mutex<Weak<SharedFile>>,
    /// Only its ETag and length are known, from the request of another node.
    partial: bool,
}

impl Version {
    pub(super) fn new(
        store: u32,
        meta: ObjectMeta,
        attributes: Attributes,
        tags: TagCount,
    ) -> Self {
        let validator = Validator::of(&meta);
        Self {
            store,
            id: next_object_id(),
            headers_id: next_object_id(),
            meta,
            attributes,
            tags,
            validator,
            cost: Arc::default(),
            integrity: Arc::default(),
            file: Mutex::default(),
            partial: false,
        }
    }

    /// A version with known ETag and length, and nothing else. Its blocks can be loaded; a read of this node needs the rest first.
    pub(super) fn partial(store: u32, meta: ObjectMeta) -> Self {
        Self {
            partial: true,
            ..Self::new(store, meta, Attributes::new(), TagCount::default())
        }
    }

    /// Returns the same version with other headers. Its bytes are the same, so the id is too. `meta` must describe
    /// this version.
    pub(super) fn with_headers(
        &self,
        meta: ObjectMeta,
        attributes: Attributes,
        tags: TagCount,
    ) -> Self {
        Self {
            store: self.store,
            id: self.id,
            headers_id: next_object_id(),
            validator: self.validator.clone(),
            meta,
            attributes,
            tags,
            cost: Arc::clone(&self.cost),
            integrity: Arc::clone(&self.integrity),
            file: Mutex::default(),
            partial: false,
        }
    }

    /// Keeps the digest that a response to a request for this version states, unless one is known.
    pub(crate) fn learn_digest(&self, response: &GetResult) {
        if let Some(digest) = response.extensions.get::<ContentDigest>() {
            self.learn(*digest);
        }
    }

    /// Keeps the digest of its content, unless one is known.
    pub(crate) fn learn(&self, digest: ContentDigest) {
        self.integrity.digest.get_or_init(|| digest);
    }

    /// As [`Self::learn_digest`], of the ETag and digest that `request` returns. Runs once for all copies of this version;
    /// concurrent calls wait for it.
    pub(crate) async fn request_digest(
        &self,
        request: impl Future<Output = Option<(String, ContentDigest)>>,
    ) {
        let learned = async {
            if let Some((e_tag, digest)) = request.await
                && self.meta.e_tag.as_ref() == Some(&e_tag)
            {
                self.integrity.digest.get_or_init(|| digest);
            }
        };
        self.integrity.requested.get_or_init(|| learned).await;
    }

    /// The digest of its content, if the store has stated one.
    pub(crate) fn digest(&self) -> Option<ContentDigest> {
        self.integrity.digest.get().copied()
    }

    /// Whether all of its blocks in memory were compared with its digest.
    pub(crate) fn is_verified(&self) -> bool {
        self.integrity.verified.load(Relaxed) == self.cost.blocks() + 1
    }

    /// Waits until no other read compares the whole object before ranged reads.
    pub(crate) async fn compare_turn(&self) -> impl Sized + '_ {
        self.integrity.turn.lock().await
    }

    /// Records that a read of the whole object, block by block, had its digest. `loads_before`: blocks loaded of it when
    /// the read began.
    pub(crate) fn record_verified(&self, loads_before: u64, block_size: u64) {
        let loads = self.cost.blocks();
        // Otherwise a block was loaded again since, perhaps after it was read.
        let as_read = loads == loads_before || loads == u64::from(self.blocks(block_size));
        if as_read {
            self.integrity.verified.store(loads + 1, Relaxed);
        }
    }

    /// The holder of its open file; a read keeps it while it may send requests.
    pub(crate) fn file(&self) -> Arc<SharedFile> {
        let mut file = self.file.lock();
        file.upgrade().unwrap_or_else(|| {
            let new = Arc::default();
            *file = Arc::downgrade(&new);
            new
        })
    }

    /// Whether blocks of this version may be cached.
    pub(crate) fn cacheable(&self) -> bool {
        self.validator != Validator::None
    }

    /// The ETag that names exactly these bytes, also in another process.
    pub(crate) fn strong_etag(&self) -> Option<&str> {
        match &self.validator {
            Validator::StrongETag(tag) => Some(tag),
            Validator::Modified(_) | Validator::None => None,
        }
    }

    /// Returns whether `meta`, of another response, describes this version.
    pub(crate) fn matches(&self, meta: &ObjectMeta) -> bool {
        let same = self.meta.size == meta.size && self.meta.e_tag == meta.e_tag;
        match self.validator {
            Validator::StrongETag(_) => same,
            Validator::Modified(date) => same && date == meta.last_modified,
            Validator::None => false,
        }
    }

    /// Whether only its ETag and length are known.
    pub(crate) fn is_partial(&self) -> bool {
        self.partial
    }

    /// Returns whether this is the version that `meta` describes, of the same write and with the same headers. Equal bytes that were
    /// written again have another date, and another name at stores that name versions.
    pub(crate) fn is_described_by(
        &self,
        meta: &ObjectMeta,
        attributes: &Attributes,
        tags: TagCount,
    ) -> bool {
        let same = match self.validator {
            // Two requests cannot be bound to it: no block of it is kept, only its metadata.
            Validator::None => self.meta.size == meta.size && self.meta.e_tag == meta.e_tag,
            _ => self.matches(meta),
        };
        let same_write =
            self.meta.last_modified == meta.last_modified && self.meta.version == meta.version;
        same && same_write && !self.partial && self.tags == tags && self.attributes == *attributes
    }

    /// As [`Self::is_described_by`], for the version of another response.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.is_described_by(&other.meta, &other.attributes, other.tags)
    }

    /// As [`Self::is_described_by`], for the version that the authority of a cluster states.
    pub(crate) fn is_as(&self, now: &ObjectVersion) -> bool {
        self.is_described_by(&now.meta, &now.attributes, TagCount(now.tag_count))
    }

    /// Makes a request conditional on this version, and adds the open file that a read holds.
    pub(crate) fn apply_precondition(&self, options: &mut GetOptions) {
        let file = self.file.lock().upgrade();
        if let Some(file) = file.as_ref().and_then(|file| file.0.get()) {
            options.extensions.insert(file.clone());
        }
        match &self.validator {
            Validator::StrongETag(tag) => options.if_match = Some(tag.clone()),
            Validator::Modified(date) => {
                options.if_unmodified_since = Some(unmodified_since(*date))
            }
            Validator::None => {}
        }
    }

    /// The name of this version in logs and responses.
    pub(crate) fn display(&self) -> String {
        match (&self.meta.e_tag, &self.validator) {
            (Some(tag), _) => tag.clone(),
            (None, Validator::Modified(date)) => {
                format!("{}-{}", date.timestamp_millis(), self.meta.size)
            }
            (None, _) => "unknown".to_owned(),
        }
    }

    /// Returns the pool's key of block `block`.
    pub(crate) fn key(&self, block: u32) -> BlockKey {
        BlockKey {
            store: self.store,
            object: self.id,
            block,
        }
    }

    /// The number of its bucket.
    pub(super) fn store(&self) -> u32 {
        self.store
    }

    /// The bytes of memory that it owns: an upper estimate, with the allocator's overhead.
    pub(super) fn bytes(&self) -> usize {
        /// Overhead of one allocation: the allocator's header and rounding.
        const ALLOCATION: usize = 24;
        let text = |text: &str| text.len() + ALLOCATION;
        let meta = &self.meta;
        let tags = [&meta.e_tag, &meta.version].into_iter().flatten();
        let mut bytes = size_of::<Self>() + size_of::<Costs>() + 3 * ALLOCATION;
        bytes += size_of::<Integrity>();
        bytes += text(meta.location.as_ref()) + tags.map(|tag| text(tag)).sum::<usize>();
        if let Validator::StrongETag(tag) = &self.validator {
            bytes += text(tag);
        }
        for (name, value) in &self.attributes {
            let name = match name {
                Attribute::Metadata(name) => text(name),
                _ => 0,
            };
            // Twice its size, as the map doubles when it grows.
            bytes += 2 * size_of::<(Attribute, AttributeValue)>() + name + text(value);
        }
        bytes
    }

    /// The number of this version with these headers, unique in the engine.
    pub(crate) fn headers_id(&self) -> u64 {
        self.headers_id
    }

    /// Its id, unique in the engine.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Returns the number of blocks of `block_size` bytes.
    pub(crate) fn blocks(&self, block_size: u64) -> u32 {
        u32::try_from(self.meta.size.div_ceil(block_size)).unwrap_or(u32::MAX)
    }

    /// Returns the length of block `block` in bytes: `block_size`, or less at the object's end.
    pub(crate) fn block_len(&self, block: u32, block_size: u64) -> usize {
        let start = u64::from(block) * block_size;
        (self.meta.size.saturating_sub(start)).min(block_size) as usize
    }
}
