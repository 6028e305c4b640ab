//! A bucket as the authority asks it: for the version at the origin, and to forget.

use std::sync::{Arc, Weak};

use async_trait::async_trait;
use object_store::path::Path;
use object_store::{Error, Result};

use super::{CurrentVersion, VersionSource};
use crate::read::request_version;
use crate::shared::BucketShared;

/// A bucket of the engine. The authority does not keep it from being removed.
#[derive(Debug)]
pub(crate) struct BucketSource(Weak<BucketShared>);

impl BucketSource {
    pub(crate) fn of(bucket: &Arc<BucketShared>) -> Arc<Self> {
        Arc::new(Self(Arc::downgrade(bucket)))
    }
}

#[async_trait]
impl VersionSource for BucketSource {
    async fn request(&self, path: &Path) -> Result<CurrentVersion> {
        let Some(bucket) = self.0.upgrade() else {
            return Err(Error::Generic {
                store: "Bywash",
                source: format!("{path}: its bucket was removed from this node").into(),
            });
        };
        request_version(&bucket, path).await
    }

    fn forget(&self, path: &Path) {
        if let Some(bucket) = self.0.upgrade() {
            bucket.invalidate(path);
        }
    }
}
