//! Flush: immutable memtables to data files.

use std::sync::Arc;

use futures::StreamExt;
use object_store::ObjectStoreExt;

use crate::manifest::DataFiles;
use crate::manifest::{FileEntry, path_of};
use crate::memtable::{ImmutableMemtable, SeriesColumns};
use crate::parquet::FileWriter;
use crate::parquet::WrittenFile;
use crate::{Profile, SeriesError};

/// Files written at once: a store takes some milliseconds for each, mostly waiting.
const FILES_AT_ONCE: usize = 8;

impl DataFiles {
    /// Makes rows durable: writes a file for each immutable memtable, several at once, then one manifest that names them all.
    ///
    /// Afterwards the log is not needed for these rows. Memtables that were flushed before are skipped, so a failed
    /// call can be repeated unchanged; it has named the files before the first that failed. Generations of one partition must be
    /// flushed in order. `flushed_below`: all rows of lower generations are flushed, which keeps the list of flushed generations
    /// short.
    ///
    /// A memtable is left out if some of its partitions were flushed in another composition, by an
    /// attempt whose response was lost: see [`Version::is_flushed`].
    pub(crate) async fn flush(
        &self,
        memtables: Vec<Arc<ImmutableMemtable>>,
        flushed_below: u64,
    ) -> Result<(), SeriesError> {
        let before = self.version();
        let unflushed = memtables.into_iter().filter(|memtable| {
            let (partitions, generation) = (&memtable.partitions, memtable.generation);
            !partitions
                .iter()
                .all(|partition| before.is_flushed(*partition, generation))
        });
        let mut writing = futures::stream::iter(unflushed.map(|memtable| self.write(memtable)))
            .buffered(FILES_AT_ONCE);
        let (mut files, mut failed) = (Vec::new(), None);
        while let Some(written) = writing.next().await {
            match written {
                Ok(written) => files.extend(written),
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        drop(writing);
        let named = self.edit(|version| {
            let mut new = version.manifest().clone();
            let mut is_complete = failed.is_none();
            for (memtable, file) in &files {
                let keys = memtable.partitions.iter();
                let keys = keys.map(|partition| (*partition, memtable.generation));
                match keys
                    .clone()
                    .filter(|key| version.is_flushed(key.0, key.1))
                    .count()
                {
                    0 => {
                        new.flushed.extend(keys);
                        new.files.push(file.clone());
                    }
                    flushed => is_complete &= flushed == memtable.partitions.len(),
                }
            }
            if is_complete || planted!("series-flush-in-part-taken-for-whole") {
                new.flushed_below = new.flushed_below.max(flushed_below);
            }
            let below = new.flushed_below;
            new.flushed.retain(|(_, generation)| *generation >= below);
            (new != *version.manifest()).then_some(new)
        });
        named.await?;
        self.delete_obsolete().await;
        failed.map_or(Ok(()), Err)
    }

    /// Writes and uploads the file of a memtable; `None` if it has no row.
    async fn write(
        &self,
        memtable: Arc<ImmutableMemtable>,
    ) -> Result<Option<(Arc<ImmutableMemtable>, FileEntry)>, SeriesError> {
        let (profile, rows) = (self.0.profile, Arc::clone(&memtable));
        let written = blocking(move || write_file(profile, &rows.series)).await?;
        let Some(written) = written else {
            return Ok(None);
        };
        let (first, last) = (memtable.partitions.first(), memtable.partitions.last());
        let partitions = first.copied().zip(last.copied());
        let partitions = partitions.expect("a memtable has a partition");
        let generations = (memtable.generation, memtable.generation);
        let file = self.upload(partitions, generations, written).await?;
        Ok(Some((memtable, file)))
    }

    /// Uploads a file under a unique name. Orphan collection skips it while this process lives.
    pub(crate) async fn upload(
        &self,
        partitions: (i64, i64),
        generations: (u64, u64),
        written: WrittenFile,
    ) -> Result<FileEntry, SeriesError> {
        let name = format!(
            "{}-{}-{:016x}.parquet",
            partitions.0,
            generations.1,
            rand::random::<u64>()
        );
        self.register_pending(&name);
        let path = path_of(&name);
        let put = self.0.store.put(&path, written.bytes.clone().into()).await;
        put.map_err(|source| SeriesError::Store {
            operation: format!("write {path}"),
            source,
        })?;
        Ok(FileEntry::new(name, partitions, generations, &written))
    }
}

fn write_file(
    profile: Profile,
    series: &[SeriesColumns],
) -> Result<Option<WrittenFile>, SeriesError> {
    let mut writer = FileWriter::new(profile)?;
    for of in series {
        writer.append(&of.source, &of.metric, &of.timestamps, &of.values)?;
    }
    writer.finish()
}

/// Runs CPU-bound work on a blocking thread.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SeriesError> + Send + 'static,
) -> Result<T, SeriesError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(failed) => std::panic::resume_unwind(failed.into_panic()),
    }
}
