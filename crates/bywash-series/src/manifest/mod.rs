//! The set of data files: Parquet objects in a store, and the manifest that lists them.
//!
//! Objects are never changed in place. A data file is written whole under a unique name and becomes part of the
//! database once a manifest names it. The manifest is one object, replaced by a conditional put. A process that loses
//! this race stops: a store has one writing process, the one that opened it last.

mod format;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod opening;
mod swap;
mod takeover;
mod version;

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bywash_mem::Budget;
use object_store::{ObjectStore, ObjectStoreExt, UpdateVersion};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

pub(crate) use format::{FILES, FileEntry, Manifest, epoch_of, path_of};
pub(crate) use opening::Opening;
pub(crate) use takeover::new_writer;
pub(crate) use version::{DataFile, Version};

use swap::{StoredManifest, SwapError, load, swap};

use crate::parquet::LayoutCache;
use crate::partition::PartitionWidth;
#[cfg(test)]
use crate::wal::LogFolder;
use crate::{Profile, SeriesError};

/// Writer of the manifests that are only read: no process has it as its id.
const READER: &str = "";

/// The data files of one store, written by this process. A cheap handle.
#[derive(Debug, Clone)]
pub(crate) struct DataFiles(pub(crate) Arc<FilesInner>);

#[derive(Debug)]
pub(crate) struct FilesInner {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) budget: Budget,
    pub(crate) width: PartitionWidth,
    pub(crate) profile: Profile,
    /// Id of this process in its manifests.
    pub(crate) writer: String,
    layouts: Arc<LayoutCache>,
    state: Mutex<VersionState>,
    /// One permit: manifests are replaced one at a time.
    edit_permit: Semaphore,
}

#[derive(Debug)]
struct VersionState {
    current: Arc<Version>,
    /// Version of the manifest object.
    at: UpdateVersion,
    /// Files that no manifest names any more. Snapshots may still read them.
    obsolete: Vec<Arc<DataFile>>,
    /// Files being uploaded, not named by a manifest yet.
    pending_files: HashSet<String>,
    /// Whether another process took over the store.
    superseded: bool,
}

impl DataFiles {
    /// Opens a store as its only writer, without a replay before: see [`Opening`].
    #[cfg(test)]
    pub(crate) async fn open(
        store: Arc<dyn ObjectStore>,
        budget: Budget,
        format: (PartitionWidth, Profile),
        writer: String,
        log: Option<Arc<LogFolder>>,
    ) -> Result<Self, SeriesError> {
        let opening = Opening::begin(store, budget, format, writer, log);
        opening.await?.take_over().await
    }

    /// Opens a store to read its files as they are now. Changes nothing, so that a writer
    /// continues; its later changes are not seen, and files that it deletes cannot be read.
    ///
    /// Fails with [`SeriesError::NoDatabase`] if the store has no manifest.
    pub(crate) async fn open_to_read(
        store: Arc<dyn ObjectStore>,
        budget: Budget,
    ) -> Result<Self, SeriesError> {
        let stored = load(&*store).await?.ok_or(SeriesError::NoDatabase)?;
        let span = u64::try_from(stored.manifest.span).unwrap_or(0);
        let width = PartitionWidth::new(Duration::from_nanos(span));
        let width = width.ok_or(SeriesError::PartitionWidthMismatch {
            stored: stored.manifest.span,
        })?;
        let opened = (READER.to_owned(), stored);
        let files = Self::new(store, budget, (width, Profile::default()), opened);
        files.0.state.lock().superseded = true;
        Ok(files)
    }

    fn new(
        store: Arc<dyn ObjectStore>,
        budget: Budget,
        (width, profile): (PartitionWidth, Profile),
        (writer, stored): (String, StoredManifest),
    ) -> Self {
        let layouts = Arc::new(LayoutCache::new(Arc::clone(&store), budget.clone()));
        let state = VersionState {
            current: Version::new(stored.manifest, None, &layouts),
            at: stored.version,
            obsolete: Vec::new(),
            pending_files: HashSet::new(),
            superseded: false,
        };
        Self(Arc::new(FilesInner {
            store,
            budget,
            width,
            profile,
            writer,
            layouts,
            state: Mutex::new(state),
            edit_permit: Semaphore::new(1),
        }))
    }

    /// Fails with [`SeriesError::AnotherWriter`] if another process has taken the store over.
    ///
    /// Reads the manifest. A store that answers with an older one hides another writer until the next change.
    pub(crate) async fn check_writer(&self) -> Result<(), SeriesError> {
        let manifest = load(&*self.0.store).await?.map(|stored| stored.manifest);
        let is_own = manifest.is_some_and(|manifest| manifest.writer == self.0.writer);
        let mut state = self.0.state.lock();
        state.superseded |= !is_own;
        if state.superseded {
            Err(SeriesError::AnotherWriter)
        } else {
            Ok(())
        }
    }

    /// Replaces the manifest by an equal one, which proves that no other process has taken the store over.
    pub(crate) async fn renew(&self) -> Result<(), SeriesError> {
        self.edit(|version| Some(version.manifest().clone())).await
    }

    /// Current version. Its files are not deleted while it is held.
    pub(crate) fn version(&self) -> Arc<Version> {
        Arc::clone(&self.0.state.lock().current)
    }

    /// Replaces the manifest by the result of `change`; `None` leaves it unchanged.
    ///
    /// After an error the old version stays current here, though the store may have the new one. The next edit then
    /// finds its own manifest and continues from it. So `change` may be called again on a version that already has
    /// the change.
    pub(crate) async fn edit(
        &self,
        change: impl Fn(&Version) -> Option<Manifest>,
    ) -> Result<(), SeriesError> {
        let permit = self.0.edit_permit.acquire().await;
        let _permit = permit.expect("the semaphore is never closed");
        loop {
            let (current, at) = {
                let state = self.0.state.lock();
                if state.superseded {
                    return Err(SeriesError::AnotherWriter);
                }
                (Arc::clone(&state.current), state.at.clone())
            };
            let Some(mut new) = change(&current) else {
                return Ok(());
            };
            new.number = current.manifest().number + 1;
            match swap(&*self.0.store, Some(&at), new).await {
                Ok(stored) => {
                    self.publish(stored);
                    return Ok(());
                }
                Err(SwapError::Conflict(stored)) if stored.manifest.writer == self.0.writer => {
                    self.publish(*stored);
                }
                Err(SwapError::Conflict(_)) => {
                    self.0.state.lock().superseded = true;
                    return Err(SeriesError::AnotherWriter);
                }
                Err(SwapError::Failed(failed)) => return Err(failed),
            }
        }
    }

    fn publish(&self, stored: StoredManifest) {
        let mut state = self.0.state.lock();
        let new = Version::new(stored.manifest, Some(&state.current), &self.0.layouts);
        let old = std::mem::replace(&mut state.current, new);
        state.at = stored.version;
        let current = Arc::clone(&state.current);
        let removed = old.files().iter().filter(|file| !current.has(file));
        state.obsolete.extend(removed.cloned());
        for file in current.files() {
            state.pending_files.remove(&file.entry().name);
        }
    }

    /// Deletes obsolete files that no snapshot holds. Failed deletions are repeated at the next call.
    pub(crate) async fn delete_obsolete(&self) {
        let free = {
            let mut state = self.0.state.lock();
            // With one reference left, none can be added: only versions and readers hand them out.
            let (free, held) = std::mem::take(&mut state.obsolete)
                .into_iter()
                .partition::<Vec<_>, _>(|file| Arc::strong_count(file) == 1);
            state.obsolete = held;
            free
        };
        for file in free {
            self.0.layouts.remove(&file.entry().name);
            let path = file.entry().path();
            match self.0.store.delete(&path).await {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
                Err(failed) => {
                    tracing::warn!(%path, %failed, "an obsolete file of series was not deleted; it is retried");
                    self.0.state.lock().obsolete.push(file);
                }
            }
        }
    }

    /// Excludes a file from orphan collection, until a manifest names it or the process ends.
    pub(crate) fn register_pending(&self, name: &str) {
        self.0.state.lock().pending_files.insert(name.to_owned());
    }

    /// Whether this process, its current version or a snapshot still needs the file.
    pub(crate) fn is_referenced(&self, name: &str) -> bool {
        let state = self.0.state.lock();
        let held = state.obsolete.iter().chain(state.current.files());
        state.pending_files.contains(name) || held.into_iter().any(|file| file.entry().name == name)
    }
}
