//! Open files held by readers, so that a read of several requests stays at one version.

use std::fmt;
use std::fs::File;
use std::sync::Arc;

use object_store::Attributes;
use object_store::path::Path;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::identity::Identity;
use super::names::Area;
use crate::limits::MAX_HELD_FILES;

/// Permits of held files, of all stores of the process.
static HELD: Semaphore = Semaphore::const_new(MAX_HELD_FILES);

/// An object's open file.
#[derive(Debug)]
pub(super) struct Located {
    pub(super) area: Area,
    /// Path relative to the root.
    pub(super) path: String,
    pub(super) file: File,
    pub(super) identity: Identity,
}

/// One version of an object, with its open file.
#[derive(Debug)]
pub(super) struct OpenObject {
    pub(super) key: Path,
    pub(super) located: Located,
    pub(super) attributes: Attributes,
    pub(super) e_tag: String,
}

/// The open file of one version of an object, from the extensions of a response.
///
/// A request with it in its extensions reads that version, even after the object was replaced or deleted. The file is
/// closed with the last clone.
#[derive(Clone)]
pub struct HeldFile {
    object: Arc<OpenObject>,
    _permit: Arc<SemaphorePermit<'static>>,
}

impl HeldFile {
    /// Holds the file of `object`; `None` if the maximum number of files is held.
    pub(super) fn try_new(object: &Arc<OpenObject>) -> Option<Self> {
        let permit = HELD.try_acquire().ok()?;
        Some(Self {
            object: Arc::clone(object),
            _permit: Arc::new(permit),
        })
    }

    /// Returns the version if it is one of `key`.
    pub(super) fn object(&self, key: &Path) -> Option<Arc<OpenObject>> {
        (self.object.key == *key).then(|| Arc::clone(&self.object))
    }
}

impl fmt::Debug for HeldFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HeldFile").field(&self.object.key).finish()
    }
}
