//! Opening a store for writing, in two steps: reading the manifest, and taking the store over once the log is replayed.
//!
//! The former writer keeps the store until the second step: a log that cannot be replayed stops no other process.

use std::sync::Arc;

use bywash_mem::Budget;
use object_store::{ObjectStore, UpdateVersion};

use super::swap::{StoredManifest, SwapError, load, require_conditions, swap};
use super::takeover::{OwnLog, taken_over};
use super::{DataFiles, Manifest, Version};
use crate::flush::blocking;
use crate::parquet::LayoutCache;
use crate::partition::PartitionWidth;
use crate::wal::{LogFolder, list};
use crate::{Profile, SeriesError};

/// Max attempts to replace the manifest while the current writer replaces it too.
const TAKEOVER_ATTEMPTS: usize = 8;

/// A store about to be taken over. It is unchanged until [`Self::take_over`].
#[derive(Debug)]
pub(crate) struct Opening {
    store: Arc<dyn ObjectStore>,
    budget: Budget,
    format: (PartitionWidth, Profile),
    /// Id of this process in its manifests.
    writer: String,
    log: Option<Arc<LogFolder>>,
    prepared: Prepared,
}

/// A manifest with which a writer takes the store over.
#[derive(Debug)]
struct Prepared {
    manifest: Manifest,
    /// Version of the manifest that it replaces.
    at: Option<UpdateVersion>,
    /// Id by which the replaced manifest knows the log.
    known: Option<String>,
    /// Whether there are no rows to replay.
    is_empty: bool,
}

impl Prepared {
    async fn load(
        store: &dyn ObjectStore,
        width: PartitionWidth,
        writer: &str,
        log: Option<&Arc<LogFolder>>,
    ) -> Result<Self, SeriesError> {
        let (found, at) = match load(store).await? {
            Some(StoredManifest { manifest, version }) => (Some(manifest), Some(version)),
            None => (None, None),
        };
        let Some(folder) = log.cloned() else {
            let manifest = taken_over(found, width.nanos(), writer, None)?;
            return Ok(Self {
                manifest,
                at,
                known: None,
                is_empty: true,
            });
        };
        let writer = writer.to_owned();
        blocking(move || {
            let writers = folder.writers()?;
            let own = OwnLog {
                folder: &folder.path,
                writers: &writers,
                is_empty: list(&folder.path)?.is_empty(),
                shared_store: folder.shared_store,
            };
            let known = found.as_ref().and_then(|found| own.known_as(found));
            let known = known.map(str::to_owned);
            let is_empty = own.is_empty;
            let manifest = taken_over(found, width.nanos(), &writer, Some(own))?;
            Ok(Self {
                manifest,
                at,
                known,
                is_empty,
            })
        })
        .await
    }

    /// Whether the log is replayed alike by both manifests: they name the same rows as flushed.
    fn has_same_replay(&self, other: &Self) -> bool {
        let flushed = |of: &Self| (of.manifest.flushed_below, of.manifest.flushed.clone());
        self.known == other.known && (self.is_empty || flushed(self) == flushed(other))
    }
}

impl Opening {
    /// Reads the manifest's record of `log`, the log of the process `writer`, if it has one.
    /// Changes nothing.
    ///
    /// Fails with [`SeriesError::PartitionWidthMismatch`] if the store's partitions have another
    /// width, and with [`SeriesError::ForeignLog`] if the log's rows belong to another store.
    pub(crate) async fn begin(
        store: Arc<dyn ObjectStore>,
        budget: Budget,
        format: (PartitionWidth, Profile),
        writer: String,
        log: Option<Arc<LogFolder>>,
    ) -> Result<Self, SeriesError> {
        let prepared = Prepared::load(&*store, format.0, &writer, log.as_ref()).await?;
        Ok(Self {
            store,
            budget,
            format,
            writer,
            log,
            prepared,
        })
    }

    /// Version by which the log is replayed.
    pub(crate) fn version(&self) -> Arc<Version> {
        let layouts = LayoutCache::new(Arc::clone(&self.store), self.budget.clone());
        Version::new(self.prepared.manifest.clone(), None, &Arc::new(layouts))
    }

    /// Takes the store over: a process that has it open fails at its next change.
    ///
    /// A log that the manifest knows names the writer before the manifest does, in addition to the
    /// writer before: after a crash it has the id that the manifest has, whichever that is. Any
    /// other log names it afterwards only: without an id it counts as new.
    ///
    /// Costs two conditional puts of the manifest; the second must fail. Fails with
    /// [`SeriesError::NoConditionalPut`] if the store has no conditional puts or ignores their
    /// conditions.
    pub(crate) async fn take_over(mut self) -> Result<DataFiles, SeriesError> {
        let stored = self.replace().await?;
        // Record the id before anything else can fail: the next start would not know the log
        // without it. The former id is removed, since the manifest no longer has it.
        if let Some(log) = self.log.clone() {
            let writer = self.writer.clone();
            blocking(move || log.record_writer(None, &writer)).await?;
        }
        require_conditions(&*self.store, self.prepared.at.as_ref(), &stored.manifest).await?;
        let opened = (self.writer, stored);
        Ok(DataFiles::new(self.store, self.budget, self.format, opened))
    }

    /// Replaces the manifest. Tries again if its writer has replaced it since, as long as the
    /// replay stays valid.
    async fn replace(&mut self) -> Result<StoredManifest, SeriesError> {
        for _ in 0..TAKEOVER_ATTEMPTS {
            if let (Some(log), Some(known)) = (self.log.clone(), self.prepared.known.clone()) {
                let writer = self.writer.clone();
                blocking(move || log.record_writer(Some(&known), &writer)).await?;
            }
            let at = self.prepared.at.as_ref();
            match swap(&*self.store, at, self.prepared.manifest.clone()).await {
                Ok(stored) => return Ok(stored),
                Err(SwapError::Conflict(_)) => {}
                Err(SwapError::Failed(failed)) => return Err(failed),
            }
            let log = self.log.as_ref();
            let again = Prepared::load(&*self.store, self.format.0, &self.writer, log).await?;
            if !again.has_same_replay(&self.prepared) {
                return Err(SeriesError::AnotherWriter);
            }
            self.prepared = again;
        }
        Err(SeriesError::AnotherWriter)
    }
}
