//! The download of a large object into a file, which another process can go on with.
//!
//! Beside the file's place stands `.NAME.bywash-part`, with each part at its offset. The data folder has the state: a first line
//! with the version of the object and the identity of that file, then a line for each part that was written, with its SHA-256.
//! A later process reads the parts again and keeps those that match. Nothing is taken from a file that the state does not name:
//! anything may have been put in its place. Both files are locked by the process that works on them.

mod state;

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, PermissionsExt};
use std::path::{Path as FsPath, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use indicatif::ProgressBar;
use object_store::PutMode;

use crate::address::Address;
use crate::failure::{Failure, Kind};
use crate::file::{Place, set_modified};
use crate::object::Object;
use crate::output::Output;
use crate::source::{PART_MIN_BYTES, ahead, part_bytes};
use crate::stores::Stores;

use state::{Staged, Version};

/// Below the data folder.
const STATES: &str = "downloads";

/// What a download did.
#[derive(Debug)]
pub(crate) struct Downloaded {
    pub(crate) bytes: u64,
    /// Those of them that an earlier process had brought.
    pub(crate) resumed_bytes: u64,
}

/// Whether it is worth a state file, and a later version can be told from this one.
pub(crate) fn can_resume(object: &Object) -> bool {
    let strong = |tag: &String| !tag.starts_with("W/");
    object.meta.size > PART_MIN_BYTES && object.meta.e_tag.as_ref().is_some_and(strong)
}

/// A download to be made.
#[derive(Debug)]
pub(crate) struct Download<'a> {
    pub(crate) object: Object,
    pub(crate) address: &'a Address,
    pub(crate) place: Arc<Place>,
    pub(crate) mode: &'a PutMode,
    /// Where its state is kept.
    pub(crate) states: PathBuf,
    pub(crate) stores: &'a Stores,
}

/// Returns the folder of the states of downloads, made if missing, for its owner only. `None` if it cannot be had: then a
/// download starts over when it is interrupted.
pub(crate) fn states(data_dir: &FsPath) -> Option<PathBuf> {
    let states = data_dir.join(STATES);
    let mut builder = std::fs::DirBuilder::new();
    let made = builder.recursive(true).mode(0o700).create(&states);
    let owned =
        made.and_then(|()| std::fs::set_permissions(&states, Permissions::from_mode(0o700)));
    match owned {
        Ok(()) => Some(states),
        Err(error) => {
            let states = states.display();
            tracing::warn!(
                "interrupted downloads will start over: {states} cannot be used: {error}"
            );
            None
        }
    }
}

impl Download<'_> {
    /// Brings the object to its place. After a failure what came stays, for the next try.
    pub(crate) async fn run(
        self,
        bar: &ProgressBar,
        output: Output,
    ) -> Result<Downloaded, Failure> {
        let (object, place, url) = (&self.object, &self.place, self.address.to_string());
        let version = Version {
            endpoint: self.stores.remote.endpoint().map(|url| url.to_string()),
            e_tag: object.meta.e_tag.clone(),
            version: object.meta.version.clone(),
            bytes: object.meta.size,
            part_bytes: part_bytes(object.meta.size),
            url,
        };
        let url = &version.url;
        let mut fresh = false;
        loop {
            let staged = blocking(place, {
                let (place, version) = (Arc::clone(place), version.clone());
                let states = self.states.clone();
                move || Staged::open(&place, version, &states, fresh)
            });
            let staged = Arc::new(staged.await?);
            if staged.begun_anew && !fresh {
                output.note(&format!(
                    "what came of {url} before was of another version or endpoint: starting over"
                ));
            }
            bar.inc(staged.resumed_bytes);
            bar.reset_eta();
            let fetched = fetch(object, place, &staged, bar).await;
            fetched.map_err(|failure| can_go_on(failure, &staged))?;
            if staged.resumed_bytes > 0 && !self.proven(&staged).await? {
                output.note(&format!(
                    "what came of {url} before does not have the store's checksum: starting over"
                ));
                bar.inc_length(version.bytes);
                fresh = true;
                continue;
            }
            let (mode, modified) = (self.mode.clone(), object.meta.last_modified.into());
            blocking(place, {
                let (place, staged) = (Arc::clone(place), Arc::clone(&staged));
                move || finish(&place, &staged, &mode, modified)
            })
            .await?;
            return Ok(Downloaded {
                bytes: version.bytes,
                resumed_bytes: staged.resumed_bytes,
            });
        }
    }

    /// Returns whether the file has the checksum that the store keeps of the object; true if it keeps none.
    async fn proven(&self, staged: &Arc<Staged>) -> Result<bool, Failure> {
        let e_tag = self.object.meta.e_tag.as_deref();
        let Some(expected) = self.stores.crc32c(self.address, e_tag).await? else {
            return Ok(true);
        };
        let staged = Arc::clone(staged);
        let found = blocking(&self.place, move || staged.crc32c()).await?;
        Ok(found == expected)
    }
}

/// Brings each part that is missing to its offset, in any order.
async fn fetch(
    object: &Object,
    place: &Arc<Place>,
    staged: &Arc<Staged>,
    bar: &ProgressBar,
) -> Result<(), Failure> {
    let at_once = ahead(staged.version.part_bytes);
    stream::iter(staged.missing())
        .map(|part| async move {
            let bytes = object.part(staged.version.range(part)).await?;
            let length = bytes.len() as u64;
            let staged = Arc::clone(staged);
            blocking(place, move || staged.keep(part, &bytes)).await?;
            bar.inc(length);
            Ok(())
        })
        .buffer_unordered(at_once)
        .try_collect()
        .await
}

/// Makes the whole file visible in one step, and safe on the disk before that.
fn finish(place: &Place, staged: &Staged, mode: &PutMode, modified: SystemTime) -> io::Result<()> {
    let data = &staged.data;
    staged.check_name()?;
    if place.replaces {
        data.set_permissions(place.permissions.clone())?;
    }
    set_modified(data, Some(modified))?;
    data.sync_all()?;
    match mode {
        PutMode::Create => {
            std::fs::hard_link(&staged.data_path, &place.target)?;
            std::fs::remove_file(&staged.data_path)?;
        }
        _ => std::fs::rename(&staged.data_path, &place.target)?,
    }
    File::open(&place.folder)?.sync_all()?;
    std::fs::remove_file(&staged.state_path)
}

/// File operations of a download, aside from the threads that carry its bytes.
async fn blocking<T: Send + 'static>(
    place: &Arc<Place>,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, Failure> {
    let outcome = tokio::task::spawn_blocking(work).await;
    let outcome = outcome
        .map_err(io::Error::other)
        .and_then(|outcome| outcome);
    outcome.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => place.taken(),
        _ => place.failed(&error),
    })
}

fn can_go_on(mut failure: Failure, staged: &Staged) -> Failure {
    if failure.kind != Kind::NotFound {
        failure.message = format!(
            "{}; what came is kept in {}, and the same command goes on from there",
            failure.message,
            staged.data_path.display()
        );
    }
    failure
}

impl Staged {
    /// Writes a part, then notes that it is there.
    fn keep(&self, part: u64, bytes: &Bytes) -> io::Result<()> {
        self.data
            .write_all_at(bytes, self.version.range(part).start)?;
        self.note(part, bytes)
    }
}
