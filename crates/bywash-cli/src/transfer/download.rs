//! Resumable download of a large object into a file.
//!
//! A file `.NAME.bywash-part` next to the destination has each part at its offset. A state file in
//! the data folder has a header with the object's version and the part file's identity, then a line
//! with the SHA-256 of each part written. A later process rereads the parts and keeps the matching
//! ones. It never uses a part file that the state does not identify, because any other program may
//! have created it. The working process locks both files.

mod state;

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, PermissionsExt};
use std::path::{Path as FsPath, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use bywash::staged_file::{digest, open_folder, publish};
use bywash::{ContentDigest, Segments, Verify};
use futures::{StreamExt, TryStreamExt, stream};
use indicatif::ProgressBar;
use object_store::PutMode;
use sha2::{Digest, Sha256};

use crate::address::Address;
use crate::endpoint::Endpoint;
use crate::failure::{Failure, Kind};
use crate::output::Output;
use crate::transfer::file::{FileTarget, set_modified};
use crate::transfer::object::Object;
use crate::transfer::part::{PART_MIN_BYTES, ahead, part_bytes};
use crate::transfer::source::wrong_digest;

pub(crate) use state::hex;
use state::{Staged, Version};

/// Folder of the state files in the data folder.
const STATES: &str = "downloads";

/// Result of a download.
#[derive(Debug)]
pub(crate) struct Downloaded {
    pub(crate) bytes: u64,
    /// Bytes that an earlier process had stored.
    pub(crate) resumed_bytes: u64,
}

/// Whether the object is large enough to resume, and its version can be identified later.
pub(crate) fn can_resume(object: &Object) -> bool {
    object.meta.size > PART_MIN_BYTES && object.has_strong_e_tag()
}

/// Parameters of a download.
#[derive(Debug)]
pub(crate) struct Download<'a> {
    pub(crate) object: Object,
    pub(crate) address: &'a Address,
    pub(crate) target: Arc<FileTarget>,
    pub(crate) mode: &'a PutMode,
    /// Folder of the state files.
    pub(crate) states: PathBuf,
    pub(crate) endpoint: &'a Endpoint,
}

/// Returns the folder of the state files, created if missing, private to its owner. `None` if that fails: interrupted
/// downloads then start over.
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
    /// Downloads the object to its destination. After a failure the stored parts stay for the next attempt.
    pub(crate) async fn run(
        self,
        bar: &ProgressBar,
        output: Output,
    ) -> Result<Downloaded, Failure> {
        let (object, target, url) = (&self.object, &self.target, self.address.to_string());
        let version = Version {
            endpoint: self.endpoint.remote.endpoint().map(|url| url.to_string()),
            e_tag: object.meta.e_tag.clone(),
            version: object.meta.version.clone(),
            bytes: object.meta.size,
            part_bytes: part_bytes(object.meta.size),
            url,
        };
        let url = &version.url;
        let mut fresh = false;
        loop {
            let staged = blocking(target, {
                let (target, version) = (Arc::clone(target), version.clone());
                let states = self.states.clone();
                move || Staged::open(&target, version, &states, fresh)
            });
            let staged = Arc::new(staged.await?);
            if staged.restarted && !fresh {
                output.note(&format!(
                    "the stored parts of {url} are of another version or endpoint: starting over"
                ));
            }
            bar.inc(staged.resumed_bytes);
            bar.reset_eta();
            let fetched = fetch(object, target, &staged, bar).await;
            fetched.map_err(|failure| with_resume_hint(failure, &staged))?;
            if let Some(wrong) = self.wrong_digest(&staged).await? {
                if fresh {
                    let discarded = Arc::clone(&staged);
                    blocking(target, move || discarded.discard()).await?;
                    return Err(wrong);
                }
                output.note(&format!(
                    "the downloaded bytes of {url} do not match its digest: starting over"
                ));
                bar.inc_length(version.bytes);
                fresh = true;
                continue;
            }
            let (mode, modified) = (self.mode.clone(), object.meta.last_modified.into());
            blocking(target, {
                let (target, staged) = (Arc::clone(target), Arc::clone(&staged));
                move || finish(&target, &staged, &mode, modified)
            })
            .await?;
            return Ok(Downloaded {
                bytes: version.bytes,
                resumed_bytes: staged.resumed_bytes,
            });
        }
    }

    /// Digests the file, and returns the failure if the object has another digest. `None` also if none is known.
    async fn wrong_digest(&self, staged: &Arc<Staged>) -> Result<Option<Failure>, Failure> {
        let Some(expected) = self.expected().await? else {
            return Ok(None);
        };
        let staged = Arc::clone(staged);
        let got = blocking(&self.target, move || digest(&staged.data, &expected)).await?;
        let wrong = || wrong_digest(&self.address.to_string(), &expected, &got);
        Ok((got != expected && !planted!("cli-digest-not-compared")).then(wrong))
    }

    /// Returns the digest of the object; requests it if the store did not state it with the metadata.
    async fn expected(&self) -> Result<Option<ContentDigest>, Failure> {
        if self.object.digest.is_some() || self.endpoint.remote.verify == Verify::Off {
            return Ok(self.object.digest);
        }
        let e_tag = self.object.meta.e_tag.as_deref();
        self.endpoint.content_digest(self.address, e_tag).await
    }
}

/// Fetches all missing parts, in any order.
async fn fetch(
    object: &Object,
    target: &Arc<FileTarget>,
    staged: &Arc<Staged>,
    bar: &ProgressBar,
) -> Result<(), Failure> {
    let at_once = ahead(staged.version.part_bytes);
    stream::iter(staged.missing())
        .map(|part| async move {
            let bytes = object.part(staged.version.range(part)).await?;
            let length = bytes.len();
            let staged = Arc::clone(staged);
            blocking(target, move || staged.store_part(part, &bytes)).await?;
            bar.inc(length as u64);
            Ok(())
        })
        .buffer_unordered(at_once)
        .try_collect()
        .await
}

/// Publishes the complete file by a rename, after syncing it.
fn finish(
    target: &FileTarget,
    staged: &Staged,
    mode: &PutMode,
    modified: SystemTime,
) -> io::Result<()> {
    let data = &staged.data;
    staged.check_name()?;
    if target.replaces {
        data.set_permissions(target.permissions.clone())?;
    }
    set_modified(data, Some(modified))?;
    let from = staged.data_path.file_name().unwrap_or_default();
    let replaces = *mode != PutMode::Create;
    publish(
        data,
        &open_folder(&target.folder)?,
        (from, target.name()),
        replaces,
    )?;
    std::fs::remove_file(&staged.state_path)
}

/// Runs file operations on a blocking thread.
async fn blocking<T: Send + 'static>(
    target: &Arc<FileTarget>,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, Failure> {
    let outcome = tokio::task::spawn_blocking(work).await;
    let outcome = outcome
        .map_err(io::Error::other)
        .and_then(|outcome| outcome);
    outcome.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => target.taken(),
        _ => target.failed(&error),
    })
}

fn with_resume_hint(mut failure: Failure, staged: &Staged) -> Failure {
    if failure.kind != Kind::NotFound {
        failure.message = format!(
            "{}; the parts received so far are kept in {}; to resume, run the same command again",
            failure.message,
            staged.data_path.display()
        );
    }
    failure
}

impl Staged {
    /// Writes a part, then records it.
    fn store_part(&self, part: u64, bytes: &Segments) -> io::Result<()> {
        let mut offset = self.version.range(part).start;
        let mut digest = Sha256::new();
        for piece in bytes.iter() {
            self.data.write_all_at(piece, offset)?;
            digest.update(piece);
            offset += piece.len() as u64;
        }
        self.record_part(part, &hex(&digest.finalize()))
    }
}
