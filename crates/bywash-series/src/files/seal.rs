//! From frozen rows to files that a manifest names.

use std::sync::Arc;

use object_store::ObjectStoreExt;

use super::manifest::{FileEntry, path_of};
use super::write::WrittenFile;
use super::{FileWriter, SealedFiles};
use crate::frozen::{Frozen, FrozenSeries};
use crate::{Profile, SeriesError};

impl SealedFiles {
    /// Makes rows durable: a file for each of `frozen`, then one manifest that names them all.
    ///
    /// When this returns, the log is needed for none of them. Those already sealed are left out, so a call that failed is
    /// repeated as it was. Of one partition, a generation is sealed before the higher ones. `sealed_below`: of no lower
    /// generation is there a row left that is not sealed; this is what keeps the list of sealed generations short.
    pub(crate) async fn seal(
        &self,
        frozen: Vec<Arc<Frozen>>,
        sealed_below: u64,
    ) -> Result<(), SeriesError> {
        let known = self.version();
        let mut files = Vec::new();
        for frozen in frozen {
            let (partition, generation) = (frozen.partition, frozen.generation);
            if known.is_sealed(partition, generation) {
                continue;
            }
            let profile = self.0.profile;
            let written = blocking(move || write_file(profile, &frozen.series)).await?;
            let Some(written) = written else { continue };
            let partitions = (partition, partition);
            files.push(
                self.upload(partitions, (generation, generation), written)
                    .await?,
            );
        }
        let sealed = self.edit(|version| {
            let mut new = version.manifest().clone();
            for file in &files {
                let (partition, generation) = (file.partitions.0, file.generations.0);
                if !version.is_sealed(partition, generation) {
                    new.sealed.insert((partition, generation));
                    new.files.push(file.clone());
                }
            }
            new.sealed_below = new.sealed_below.max(sealed_below);
            let below = new.sealed_below;
            new.sealed.retain(|(_, generation)| *generation >= below);
            (new != *version.manifest()).then_some(new)
        });
        sealed.await?;
        self.delete_doomed().await;
        Ok(())
    }

    /// Puts a file under a name of its own. Collecting orphans spares it for as long as this process lives.
    pub(super) async fn upload(
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
        self.0.state.lock().unnamed.insert(name.clone());
        let path = path_of(&name);
        let put = self.0.store.put(&path, written.bytes.clone().into()).await;
        let put = put.map_err(|source| SeriesError::Store {
            doing: format!("write {path}"),
            source,
        })?;
        let mut entry = FileEntry::new(name, partitions, generations, &written);
        entry.e_tag = put.e_tag;
        Ok(entry)
    }
}

fn write_file(
    profile: Profile,
    series: &[FrozenSeries],
) -> Result<Option<WrittenFile>, SeriesError> {
    let mut writer = FileWriter::new(profile)?;
    for of in series {
        writer.append(&of.source, &of.metric, &of.timestamps, &of.values)?;
    }
    writer.finish()
}

/// Runs what would hold up other tasks on a thread of its own.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SeriesError> + Send + 'static,
) -> Result<T, SeriesError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(failed) => std::panic::resume_unwind(failed.into_panic()),
    }
}
