//! Orphans: objects that no manifest names, left by a crash between upload and manifest, or between manifest and
//! deletion.

use std::time::Duration;

use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};

use crate::SeriesError;
use crate::manifest::{DataFiles, FILES};

impl DataFiles {
    /// Deletes objects among the data files that no manifest names and that are older than `grace` at `now`
    /// (nanoseconds since the Unix epoch). Returns their number.
    ///
    /// Skips files being uploaded and files that a snapshot reads. Fails with [`SeriesError::AnotherWriter`] if
    /// another process took over the store, as its files would look like orphans. A read could miss that, so before
    /// anything is deleted the manifest is replaced, on condition, by an equal one.
    pub(crate) async fn delete_orphans(
        &self,
        grace: Duration,
        now: i64,
    ) -> Result<u64, SeriesError> {
        let store = &self.0.store;
        let failed = |operation: &str| {
            let operation = operation.to_owned();
            move |source| SeriesError::Store { operation, source }
        };
        let found: Vec<ObjectMeta> = store
            .list(Some(&Path::from(FILES)))
            .try_collect()
            .await
            .map_err(failed("list files"))?;
        let grace = i64::try_from(grace.as_nanos()).unwrap_or(i64::MAX);
        let before = now.saturating_sub(grace);
        // After listing: the version has all files that were named during it.
        let manifest = self.version();
        let manifest = manifest.manifest();
        let mut orphans = Vec::new();
        for object in found {
            let name = object.location.filename().unwrap_or_default();
            let written = object
                .last_modified
                .timestamp_nanos_opt()
                .unwrap_or(i64::MAX);
            let named = manifest.files.iter().any(|file| file.name == name);
            if named || written >= before || self.is_referenced(name) {
                continue;
            }
            orphans.push(object.location);
        }
        if !orphans.is_empty() {
            self.renew().await?;
        }
        for orphan in &orphans {
            let deleted = store.delete(orphan).await;
            deleted.map_err(failed("delete a file"))?;
        }
        Ok(orphans.len() as u64)
    }
}
