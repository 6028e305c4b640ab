//! A bucket: the handle of one origin behind the cache. `store_trait.rs` implements `ObjectStore` for it.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bywash_store::TextHeaders;
use object_store::path::Path;
use object_store::{GetOptions, Result};

use crate::consistency::Consistency;
use crate::read::{Lease, LeasedRead, ResidentObject};
use crate::shared::BucketShared;

/// One bucket of an [`crate::Engine`]; cheap to clone.
#[derive(Debug, Clone)]
pub struct Bucket {
    shared: Arc<BucketShared>,
}

impl Bucket {
    pub(crate) fn new(shared: BucketShared) -> Self {
        Self {
            shared: Arc::new(shared),
        }
    }

    /// The kind of its store, see [`bywash_store::Capabilities::kind`].
    #[must_use]
    pub fn origin_kind(&self) -> &'static str {
        self.shared.origin.capabilities().kind
    }

    /// Whether attributes that are known only when a write ends are kept for any length; see
    /// [`bywash_store::Capabilities::takes_late_attributes`].
    #[must_use]
    pub fn takes_late_attributes(&self) -> bool {
        self.shared.origin.capabilities().takes_late_attributes
    }

    /// The writes that may have content headers that are not ASCII; see [`bywash_store::Capabilities::text_headers`].
    #[must_use]
    pub fn text_headers(&self) -> TextHeaders {
        self.shared.origin.capabilities().text_headers
    }

    /// Whether memory for the whole body of a part is held while it arrives; see [`bywash_store::Capabilities::gathers_parts`].
    #[must_use]
    pub fn gathers_parts(&self) -> bool {
        self.shared.origin.capabilities().gathers_parts
    }

    /// Whether its store keeps tags of the objects; see [`bywash_store::Capabilities::has_tags`].
    #[must_use]
    pub fn has_tags(&self) -> bool {
        self.shared.origin.capabilities().has_tags
    }

    /// Whether `path` here and `other_path` of `other` are one object: the buckets may be parts of one store.
    #[must_use]
    pub fn is_same_object(&self, path: &Path, other: &Self, other_path: &Path) -> bool {
        if Arc::ptr_eq(&self.shared, &other.shared) {
            return path == other_path;
        }
        let place = self.shared.origin.place_of(path);
        place.is_some() && place == other.shared.origin.place_of(other_path)
    }

    /// The bucket's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Returns how long this bucket trusts a known version.
    #[must_use]
    pub fn consistency(&self) -> Consistency {
        self.shared.consistency
    }

    /// Returns the object at `path` if its version is known, fresh and cacheable. Sends no request and counts nothing.
    #[must_use]
    pub fn resident(&self, path: &str) -> Option<ResidentObject> {
        ResidentObject::find(&self.shared, path)
    }

    /// Reads a range as pinned blocks in memory that other processes can map ([`crate::EngineBuilder::shared_memory`]), or as a body
    /// where that is not possible: beyond half of the downloads' memory, for objects that are never cached, and for blocks above 1 MiB.
    /// Waits until all blocks are loaded; drop the future to end the wait.
    ///
    /// # Errors
    /// As [`object_store::ObjectStore::get_opts`].
    pub async fn lease(&self, path: &Path, options: GetOptions) -> Result<LeasedRead> {
        crate::read::lease(&self.shared, path, options).await
    }

    /// Reads many ranges of one version as one lease. Returns `None` if they cannot be leased: read them one by one.
    ///
    /// # Errors
    /// As [`object_store::ObjectStore::get_ranges`].
    pub async fn lease_ranges(
        &self,
        path: &Path,
        ranges: &[Range<u64>],
        options: &GetOptions,
    ) -> Result<Option<Lease>> {
        crate::read::lease_ranges(&self.shared, path, ranges, options).await
    }

    pub(crate) fn shared(&self) -> &Arc<BucketShared> {
        &self.shared
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "bywash bucket {} over {}",
            self.shared.name, self.shared.origin
        )
    }
}
