//! One version of one object.
//!
//! It never changes, and its id is half of the key of its blocks in the pool: blocks of two versions cannot be mixed.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};

use bywash_mem::BlockKey;
use chrono::{DateTime, Utc};
use object_store::{Attribute, AttributeValue, Attributes, GetOptions, GetResult, ObjectMeta};
use parking_lot::Mutex;

use crate::cost::Costs;
use crate::origin::folder::HeldFile;

/// Source of pool ids; only uniqueness matters, nothing is published, hence relaxed.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// What ties a request to one version.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Validator {
    /// Sent as `If-Match`; byte equality is promised by the origin.
    StrongETag(String),
    /// Sent as `If-Unmodified-Since`; the rest of the metadata is compared on every answer.
    Modified(DateTime<Utc>),
    /// Nothing: two requests can not be tied together, so the object is never cached.
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

/// The open file of one version in a folder, shared by the reads of it: it is closed with the last of them. Empty until an
/// origin opened one, and of other origins.
#[derive(Debug, Default)]
pub(crate) struct SharedFile(OnceLock<HeldFile>);

impl SharedFile {
    /// Takes the open file from a response, if it has one and none is here.
    pub(crate) fn keep_from(&self, result: &GetResult) {
        if let Some(file) = result.extensions.get::<HeldFile>() {
            self.0.get_or_init(|| file.clone());
        }
    }
}

/// One version of one object: everything about it but its bytes.
#[derive(Debug)]
pub(crate) struct Version {
    /// Number of the bucket it is in.
    store: u32,
    id: u64,
    pub(crate) meta: ObjectMeta,
    pub(crate) attributes: Attributes,
    validator: Validator,
    pub(crate) cost: Arc<Costs>,
    /// Kept by its reads.
    file: Mutex<Weak<SharedFile>>,
}

impl Version {
    pub(super) fn new(store: u32, meta: ObjectMeta, attributes: Attributes) -> Self {
        let validator = Validator::of(&meta);
        Self {
            store,
            id: NEXT_ID.fetch_add(1, Relaxed),
            meta,
            attributes,
            validator,
            cost: Arc::default(),
            file: Mutex::default(),
        }
    }

    /// The same bytes with other headers: the blocks stay valid, so the id does too. `meta` describes this version.
    pub(super) fn with_headers(&self, meta: ObjectMeta, attributes: Attributes) -> Self {
        Self {
            store: self.store,
            id: self.id,
            validator: self.validator.clone(),
            meta,
            attributes,
            cost: Arc::clone(&self.cost),
            file: Mutex::default(),
        }
    }

    /// Returns the place of its open file, for a read to keep for as long as it may send requests.
    pub(crate) fn file(&self) -> Arc<SharedFile> {
        let mut file = self.file.lock();
        file.upgrade().unwrap_or_else(|| {
            let new = Arc::default();
            *file = Arc::downgrade(&new);
            new
        })
    }

    /// Whether blocks of this version may be kept.
    pub(crate) fn cacheable(&self) -> bool {
        self.validator != Validator::None
    }

    /// Whether `meta`, of another answer, describes this very version.
    pub(crate) fn is(&self, meta: &ObjectMeta) -> bool {
        let same = self.meta.size == meta.size && self.meta.e_tag == meta.e_tag;
        match self.validator {
            Validator::StrongETag(_) => same,
            Validator::Modified(date) => same && date == meta.last_modified,
            Validator::None => false,
        }
    }

    /// Ties a request to this version, and lends it the open file that a read keeps.
    pub(crate) fn tie(&self, options: &mut GetOptions) {
        let file = self.file.lock().upgrade();
        if let Some(file) = file.as_ref().and_then(|file| file.0.get()) {
            options.extensions.insert(file.clone());
        }
        match &self.validator {
            Validator::StrongETag(tag) => options.if_match = Some(tag.clone()),
            Validator::Modified(date) => options.if_unmodified_since = Some(*date),
            Validator::None => {}
        }
    }

    /// What a person or a log calls this version.
    pub(crate) fn label(&self) -> String {
        match (&self.meta.e_tag, &self.validator) {
            (Some(tag), _) => tag.clone(),
            (None, Validator::Modified(date)) => {
                format!("{}-{}", date.timestamp_millis(), self.meta.size)
            }
            (None, _) => "unknown".to_owned(),
        }
    }

    /// The pool's key of block `block`.
    pub(crate) fn key(&self, block: u32) -> BlockKey {
        BlockKey {
            store: self.store,
            object: self.id,
            block,
        }
    }

    /// Number of its bucket.
    pub(super) fn store(&self) -> u32 {
        self.store
    }

    /// Bytes of memory that it takes, with what it owns: an upper estimate, which counts an allocator's own bytes.
    pub(super) fn bytes(&self) -> usize {
        /// What an allocator adds to one allocation, and rounds up to.
        const ALLOCATION: usize = 24;
        let text = |text: &str| text.len() + ALLOCATION;
        let meta = &self.meta;
        let tags = [&meta.e_tag, &meta.version].into_iter().flatten();
        let mut bytes = size_of::<Self>() + size_of::<Costs>() + 2 * ALLOCATION;
        bytes += text(meta.location.as_ref()) + tags.map(|tag| text(tag)).sum::<usize>();
        if let Validator::StrongETag(tag) = &self.validator {
            bytes += text(tag);
        }
        for (name, value) in &self.attributes {
            let name = match name {
                Attribute::Metadata(name) => text(name),
                _ => 0,
            };
            // Two places in the map for one attribute, as it doubles when it grows.
            bytes += 2 * size_of::<(Attribute, AttributeValue)>() + name + text(value);
        }
        bytes
    }

    /// Its number: no two versions of an engine have the same.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// The number of blocks of `block_size` bytes.
    pub(crate) fn blocks(&self, block_size: u64) -> u32 {
        u32::try_from(self.meta.size.div_ceil(block_size)).unwrap_or(u32::MAX)
    }

    /// The length in bytes of block `block`: `block_size`, or less at the object's end.
    pub(crate) fn block_len(&self, block: u32, block_size: u64) -> usize {
        let start = u64::from(block) * block_size;
        (self.meta.size.saturating_sub(start)).min(block_size) as usize
    }
}
