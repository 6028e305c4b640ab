//! Flush: immutable memtables to data files.

use std::sync::Arc;

use object_store::ObjectStoreExt;

use crate::manifest::DataFiles;
use crate::manifest::{FileEntry, path_of};
use crate::memtable::{ImmutableMemtable, SeriesColumns};
use crate::parquet::FileWriter;
use crate::parquet::WrittenFile;
use crate::{Profile, SeriesError};

impl DataFiles {
    /// Makes rows durable: writes a file for each immutable memtable, then one manifest that names them all.
    ///
    /// Afterwards the log is not needed for these rows. Memtables that were flushed before are skipped, so a failed
    /// call can be repeated unchanged. Generations of one partition must be flushed in order. `flushed_below`: all
    /// rows of lower generations are flushed, which keeps the list of flushed generations short.
    pub(crate) async fn flush(
        &self,
        memtables: Vec<Arc<ImmutableMemtable>>,
        flushed_below: u64,
    ) -> Result<(), SeriesError> {
        let version_before = self.version();
        let mut files = Vec::new();
        for memtable in memtables {
            let (partition, generation) = (memtable.partition, memtable.generation);
            if version_before.is_flushed(partition, generation) {
                continue;
            }
            let profile = self.0.profile;
            let written = blocking(move || write_file(profile, &memtable.series)).await?;
            let Some(written) = written else { continue };
            let partitions = (partition, partition);
            files.push(
                self.upload(partitions, (generation, generation), written)
                    .await?,
            );
        }
        let flushed = self.edit(|version| {
            let mut new = version.manifest().clone();
            for file in &files {
                let (partition, generation) = (file.partitions.0, file.generations.0);
                if !version.is_flushed(partition, generation) {
                    new.flushed.insert((partition, generation));
                    new.files.push(file.clone());
                }
            }
            new.flushed_below = new.flushed_below.max(flushed_below);
            let below = new.flushed_below;
            new.flushed.retain(|(_, generation)| *generation >= below);
            (new != *version.manifest()).then_some(new)
        });
        flushed.await?;
        self.delete_obsolete().await;
        Ok(())
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
