//! Objects that no manifest names: left behind by crashes between a file and its manifest, or between a manifest and a deletion.

use std::time::Duration;

use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};

use super::SealedFiles;
use super::manifest::FILES;
use super::swap::load;
use crate::SeriesError;

impl SealedFiles {
    /// Deletes what lies among the files, is named by no manifest, and was written longer ago than `grace` at `now` (nanoseconds
    /// since the Unix epoch). Answers how many objects.
    ///
    /// Spared are the files this process is about to name, and those a snapshot still reads. Refuses with
    /// [`SeriesError::AnotherWriter`] if another process has the store: then its files are not ours to judge.
    pub(crate) async fn collect_orphans(
        &self,
        grace: Duration,
        now: i64,
    ) -> Result<u64, SeriesError> {
        let store = &self.0.store;
        let failed = |doing: &str| {
            let doing = doing.to_owned();
            move |source| SeriesError::Store { doing, source }
        };
        let found: Vec<ObjectMeta> = store
            .list(Some(&Path::from(FILES)))
            .try_collect()
            .await
            .map_err(failed("list files"))?;
        // Read after the list: whatever another process named meanwhile is in it.
        let manifest = load(&**store).await?.map(|stored| stored.manifest);
        let Some(manifest) = manifest.filter(|manifest| manifest.writer == self.0.writer) else {
            return Err(SeriesError::AnotherWriter);
        };
        let grace = i64::try_from(grace.as_nanos()).unwrap_or(i64::MAX);
        let before = now.saturating_sub(grace);
        let mut deleted = 0;
        for object in found {
            let name = object.location.filename().unwrap_or_default();
            let written = object
                .last_modified
                .timestamp_nanos_opt()
                .unwrap_or(i64::MAX);
            let named = manifest.files.iter().any(|file| file.name == name);
            if named || written >= before || self.knows(name) {
                continue;
            }
            store
                .delete(&object.location)
                .await
                .map_err(failed("delete a file"))?;
            deleted += 1;
        }
        Ok(deleted)
    }

    fn knows(&self, name: &str) -> bool {
        let state = self.0.state.lock();
        let held = state.doomed.iter().chain(state.current.files());
        state.unnamed.contains(name) || held.into_iter().any(|file| file.entry().name == name)
    }
}
