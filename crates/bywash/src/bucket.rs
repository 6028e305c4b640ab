//! A bucket: the handle of one origin behind the cache. `store_trait.rs` implements `ObjectStore` for it.

use std::fmt;
use std::sync::Arc;

use object_store::path::Path;

use crate::consistency::Consistency;
use crate::read::ResidentObject;
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

    /// Returns the kind of its store, see [`crate::Origin::kind`].
    #[must_use]
    pub fn origin_kind(&self) -> &'static str {
        self.shared.origin.kind()
    }

    /// Returns whether attributes that are known only when a write ends are kept whatever its length; see
    /// [`crate::Origin::takes_late_attributes`].
    #[must_use]
    pub fn takes_late_attributes(&self) -> bool {
        self.shared.origin.takes_late_attributes()
    }

    /// Returns whether its store keeps tags beside the objects; see [`crate::Origin::has_tags`].
    #[must_use]
    pub fn has_tags(&self) -> bool {
        self.shared.origin.has_tags()
    }

    /// Returns whether `path` here and `other_path` of `other` are one object: the buckets may be parts of one store.
    #[must_use]
    pub fn is_same_object(&self, path: &Path, other: &Self, other_path: &Path) -> bool {
        if Arc::ptr_eq(&self.shared, &other.shared) {
            return path == other_path;
        }
        let place = self.shared.origin.place_of(path);
        place.is_some() && place == other.shared.origin.place_of(other_path)
    }

    /// Returns the bucket's name.
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
