//! Names of versions on the disk.

use bywash_disk::{VersionKey, VersionRecord};

use crate::versions::Version;

/// A version as the tier names it.
#[derive(Debug)]
pub(crate) struct DiskVersion {
    pub(super) record: VersionRecord,
    pub(super) key: VersionKey,
}

impl DiskVersion {
    /// Returns the name of a version, or `None` if the tier does not keep it. `identity`: see
    /// [`bywash_store::StoreIdentity::reads`].
    pub(crate) fn of(identity: &str, version: &Version, block_size: u64) -> Option<Self> {
        let record = VersionRecord {
            url: identity.to_owned(),
            object: version.meta.location.to_string(),
            validator: version.strong_etag()?.to_owned(),
            size: version.meta.size,
            block_size: u32::try_from(block_size).ok()?,
        };
        let key = VersionKey::of(&record);
        Some(Self { record, key })
    }
}
