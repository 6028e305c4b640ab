//! Sealed rows: Parquet files in a store, and the manifest that names them.
//!
//! Nothing is ever changed in place. A file is written whole under a name of its own; it counts from the moment a manifest
//! names it; the manifest is one object, replaced on condition that it is still the one that was read. Who loses that race
//! stops: one process writes to a store of series.

mod cache;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod index;
mod layout;
mod manifest;
mod merge;
mod names;
mod orphans;
mod page;
mod read;
mod retain;
mod seal;
mod swap;
mod version;
mod write;

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::Arc;

use bywash_mem::Budget;
use object_store::{ObjectStore, ObjectStoreExt, UpdateVersion};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

pub(crate) use layout::Layout;
pub(crate) use read::FileReader;
pub(crate) use version::{SealedFile, Version};
pub(crate) use write::FileWriter;

use cache::LayoutCache;
use manifest::Manifest;
use swap::{Stored, SwapError, load, swap};

use crate::span::Span;
use crate::{Profile, SeriesError};

fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// The sealed files of one store, written by this process. A cheap handle.
#[derive(Debug, Clone)]
pub(crate) struct SealedFiles(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Arc<dyn ObjectStore>,
    budget: Budget,
    span: Span,
    profile: Profile,
    /// Names this process in its manifests.
    writer: String,
    layouts: Arc<LayoutCache>,
    state: Mutex<State>,
    /// One permit: manifests are replaced one after the other.
    turn: Semaphore,
}

#[derive(Debug)]
struct State {
    current: Arc<Version>,
    /// Of the manifest's object.
    at: UpdateVersion,
    /// No manifest names them any more; snapshots may.
    doomed: Vec<Arc<SealedFile>>,
    /// Uploaded or about to be, and not named by a manifest yet.
    unnamed: HashSet<String>,
    /// Whether another process has taken the store over.
    replaced: bool,
}

impl SealedFiles {
    /// Opens a store to write to it, from now on alone: a process that had it open before is refused at its next change.
    ///
    /// Costs a read and a conditional put of the manifest. Fails with [`SeriesError::NoConditionalPut`] if the store has none,
    /// [`SeriesError::OtherSpan`] if its partitions have another length.
    pub(crate) async fn open(
        store: Arc<dyn ObjectStore>,
        budget: Budget,
        span: Span,
        profile: Profile,
    ) -> Result<Self, SeriesError> {
        let writer = format!("{:032x}", rand::random::<u128>());
        let found = load(&*store).await?;
        let (mut manifest, at) = match found {
            Some(Stored { manifest, version }) => (manifest, Some(version)),
            None => (Manifest::empty(span.nanos()), None),
        };
        if manifest.span != span.nanos() {
            return Err(SeriesError::OtherSpan {
                stored: manifest.span,
            });
        }
        manifest.number += 1;
        manifest.writer.clone_from(&writer);
        let stored = match swap(&*store, at.as_ref(), manifest).await {
            Ok(stored) => stored,
            Err(SwapError::Found(_)) => return Err(SeriesError::AnotherWriter),
            Err(SwapError::Failed(failed)) => return Err(failed),
        };
        let layouts = Arc::new(LayoutCache::new(Arc::clone(&store), budget.clone()));
        let state = State {
            current: Version::new(stored.manifest, None, &layouts),
            at: stored.version,
            doomed: Vec::new(),
            unnamed: HashSet::new(),
            replaced: false,
        };
        Ok(Self(Arc::new(Inner {
            store,
            budget,
            span,
            profile,
            writer,
            layouts,
            state: Mutex::new(state),
            turn: Semaphore::new(1),
        })))
    }

    /// What is sealed now. Its files stay as long as it is held.
    pub(crate) fn version(&self) -> Arc<Version> {
        Arc::clone(&self.0.state.lock().current)
    }

    /// Replaces the manifest by what `change` makes of it; `None`: it is well as it is.
    ///
    /// After an error the old version holds here, though the store may have the new one: then the next change finds it, takes
    /// it for its own and goes on from there. `change` may thus be called again, with what it did already done.
    async fn edit(&self, change: impl Fn(&Version) -> Option<Manifest>) -> Result<(), SeriesError> {
        let turn = self.0.turn.acquire().await;
        let _turn = turn.expect("the semaphore is never closed");
        loop {
            let (current, at) = {
                let state = self.0.state.lock();
                if state.replaced {
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
                Err(SwapError::Found(stored)) if stored.manifest.writer == self.0.writer => {
                    self.publish(*stored);
                }
                Err(SwapError::Found(_)) => {
                    self.0.state.lock().replaced = true;
                    return Err(SeriesError::AnotherWriter);
                }
                Err(SwapError::Failed(failed)) => return Err(failed),
            }
        }
    }

    fn publish(&self, stored: Stored) {
        let mut state = self.0.state.lock();
        let new = Version::new(stored.manifest, Some(&state.current), &self.0.layouts);
        let old = std::mem::replace(&mut state.current, new);
        state.at = stored.version;
        let current = Arc::clone(&state.current);
        let gone = old.files().iter().filter(|file| !current.has(file));
        state.doomed.extend(gone.cloned());
        for file in current.files() {
            state.unnamed.remove(&file.entry().name);
        }
    }

    /// Deletes the files that no manifest names and no snapshot holds. What cannot be deleted is tried again next time.
    async fn delete_doomed(&self) {
        let free = {
            let mut state = self.0.state.lock();
            // Only a version or a reader can give out another reference, and both hold one themselves.
            let (free, held) = std::mem::take(&mut state.doomed)
                .into_iter()
                .partition::<Vec<_>, _>(|file| Arc::strong_count(file) == 1);
            state.doomed = held;
            free
        };
        for file in free {
            self.0.layouts.forget(&file.entry().name);
            let path = file.entry().path();
            match self.0.store.delete(&path).await {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
                Err(failed) => {
                    tracing::warn!(%path, %failed, "a file of series that nobody needs was not deleted");
                    self.0.state.lock().doomed.push(file);
                }
            }
        }
    }
}
