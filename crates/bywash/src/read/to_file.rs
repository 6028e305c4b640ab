//! Downloads an object to a file: a body read through the cache, written next to its target and renamed.
//!
//! Blocks in memory or on the disk tier cost no request. Bytes from the origin become blocks before they are written,
//! so readers can use them at once, and an attempt that is repeated finds them. The order is: reserve space, write,
//! compare the digest, sync the file, rename it, sync its folder. Downloads of one object run one after the other. Each copies the
//! file of the one before it if that has the current version.

mod copy;
mod queue;
mod retries;
mod stats;

use std::fs::{File, FileTimes};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path as FsPath, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use bywash_store::{
    ContentDigest, RunningDigest,
    staged_file::{StagedFile, remove_leftovers},
};
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{Error, GetOptions, GetResult, ObjectMeta, Result};

use super::digest_check::{VerifyBody, is_digest_mismatch};
use super::get::get;
use super::pieces::PieceByPiece;
use super::ranged::is_version_change;
use super::resolve::resolve;
use crate::bucket::Bucket;
use crate::error::EngineError;
use crate::file_target::{FileTarget, checked, new_permissions};
use crate::shared::BucketShared;
use copy::{Copied, CopyError, copy_piece};
pub(crate) use queue::FileDownloadQueues;
use queue::{ActiveDownload, FinishedFile};
use retries::FileRetries;
use stats::CountedDownload;
pub(crate) use stats::FileDownloads;

/// Default time that a full disk may take to have space again.
const FULL_DISK_DEADLINE: Duration = Duration::from_secs(300);
/// Algorithm of the digest that shows whether a file is as a download wrote it.
const WRITTEN: ContentDigest = ContentDigest::Crc32c(0);

/// Options of [`Bucket::download_to`].
#[derive(Debug, Clone)]
pub struct FileDownloadOptions {
    /// Digest that the object must have. Default: the one that the store states, if
    /// [`crate::EngineBuilder::verify`] does not turn it off.
    pub digest: Option<ContentDigest>,
    /// Folder that the target is relative to and must stay in, links resolved. Missing folders below it are created.
    /// Default: none; then the folder of the target must exist.
    pub within: Option<PathBuf>,
    /// Whether an existing file is replaced. Default: yes.
    pub replaces: bool,
    /// Maximum time without progress on a full or read-only disk. Default 5 minutes.
    pub full_disk_deadline: Duration,
}

impl Default for FileDownloadOptions {
    fn default() -> Self {
        Self {
            digest: None,
            within: None,
            replaces: true,
            full_disk_deadline: FULL_DISK_DEADLINE,
        }
    }
}

/// A downloaded file, which is on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DownloadedFile {
    /// Metadata of the version that it has.
    pub meta: ObjectMeta,
}

impl Bucket {
    /// Downloads an object to the file `target`. When this returns, the file is complete, compared with its digest,
    /// and durable; its modification time is equal to that stated for the object. Until then, and after a failure, `target` is as it was
    /// before. If the future is dropped, so it is too, unless the file was complete and just being synced and named: that
    /// step is completed.
    ///
    /// Blocks in memory or on the disk tier are not requested from the origin, and requested blocks are cached.
    /// Concurrent downloads of one version read it once: each copies the file of the one before, and compares the copy
    /// with the bytes written there. A full or read-only disk is waited for; other failures of the file system are
    /// retried three times.
    ///
    /// # Errors
    /// Errors of a read; [`EngineError::DigestMismatch`] if the bytes do not have the object's digest in a second attempt
    /// either; [`EngineError::File`] if the file system failed; [`EngineError::InvalidSetting`] if `target` is not in
    /// the folder that it must stay in, or has a name reserved for Bywash.
    pub async fn download_to(
        &self,
        path: &Path,
        target: impl AsRef<FsPath>,
        options: FileDownloadOptions,
    ) -> Result<DownloadedFile> {
        let downloads = &self.shared().engine.file_downloads;
        let target = checked(target.as_ref(), options.within.as_deref())
            .inspect_err(|_| downloads.refuse())?;
        let mut job = FileJob {
            bucket: Arc::clone(self.shared()),
            path: path.clone(),
            counted: CountedDownload::new(downloads, path, &target),
            retries: FileRetries::new(options.full_disk_deadline),
            target,
            options,
        };
        let active = self.shared().file_queues.join(path).wait().await;
        let outcome = Box::pin(job.run(&active)).await;
        job.counted.end(outcome.is_ok());
        outcome
    }
}

/// Failure of one attempt.
enum Failure {
    /// Of reading the object.
    Object(Error),
    /// Of the file system.
    File(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::File(error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Object(error)
    }
}

struct FileJob {
    bucket: Arc<BucketShared>,
    path: Path,
    target: PathBuf,
    options: FileDownloadOptions,
    counted: CountedDownload,
    retries: FileRetries,
}

impl FileJob {
    /// Attempts the download until it succeeds or must fail.
    async fn run(&mut self, active: &ActiveDownload) -> Result<DownloadedFile> {
        let mut repeated = false;
        loop {
            let failure = match self.attempt(active).await {
                Ok(meta) => return Ok(DownloadedFile { meta }),
                Err(failure) => failure,
            };
            match failure {
                Failure::Object(error)
                    if !repeated && (is_version_change(&error) || is_digest_mismatch(&error)) =>
                {
                    repeated = true;
                    active.discard();
                }
                Failure::Object(error) => return Err(error),
                Failure::File(error) => {
                    let waited = self.retries.wait(error).await;
                    waited.map_err(|error| self.failed(error))?;
                }
            }
            self.counted.retry();
        }
    }

    fn failed(&self, source: io::Error) -> Error {
        if source.kind() == io::ErrorKind::InvalidInput {
            return EngineError::InvalidSetting {
                setting: "path",
                reason: format!("{}: {source}", self.target.display()),
            }
            .into();
        }
        EngineError::File {
            object: self.path.to_string(),
            path: self.target.clone(),
            source,
        }
        .into()
    }

    async fn attempt(&mut self, active: &ActiveDownload) -> Result<ObjectMeta, Failure> {
        let (target, staged) = self.stage().await?;
        let (meta, written) = match self.copied(active, &staged).await? {
            Some(finished) => (finished.meta, finished.written),
            None => self.fetch(&staged).await?,
        };
        let (file, modified) = (staged.file().try_clone()?, meta.last_modified.into());
        let replaces = self.options.replaces;
        blocking(move || {
            if let Some(permissions) = target.permissions()? {
                staged.file().set_permissions(permissions)?;
            }
            let times = FileTimes::new().set_modified(modified);
            staged.file().set_times(times)?;
            staged.place(&target.name, replaces)
        })
        .await?;
        active.finish(FinishedFile {
            meta: meta.clone(),
            file: Arc::new(file),
            written,
        });
        Ok(meta)
    }

    /// Opens the target's folder and creates a file in it.
    async fn stage(&self) -> io::Result<(FileTarget, StagedFile)> {
        let (path, within) = (self.target.clone(), self.options.within.clone());
        let downloads = Arc::clone(&self.bucket.engine.file_downloads);
        blocking(move || {
            let target = FileTarget::open(&path, within.as_deref())?;
            if downloads.are_leftovers_due(&target.folder)? {
                remove_leftovers(&target.folder)?;
            }
            let folder = target.folder.try_clone()?;
            let staged = StagedFile::create(folder, &new_permissions())?;
            Ok((target, staged))
        })
        .await
    }

    /// Returns the file of the download before this one, if it has the bytes of the current version, with the metadata of that.
    async fn finished(&self, active: &ActiveDownload) -> Result<Option<FinishedFile>> {
        let Some(finished) = active.finished() else {
            return Ok(None);
        };
        let head = GetOptions {
            head: true,
            ..GetOptions::default()
        };
        let now = resolve(&self.bucket, &self.path, &head, None).await?;
        Ok(now.version.matches(&finished.meta).then(|| FinishedFile {
            meta: now.version.meta.clone(),
            ..finished
        }))
    }

    /// Copies the file of the download before this one, if it has the current version and is as it was written. Else
    /// discards it, and leaves `staged` empty.
    async fn copied(
        &mut self,
        active: &ActiveDownload,
        staged: &StagedFile,
    ) -> Result<Option<FinishedFile>, Failure> {
        let Some(finished) = self.finished(active).await? else {
            return Ok(None);
        };
        match self.copy(&finished, staged).await {
            Ok(()) => Ok(Some(finished)),
            Err(CopyError::To(error)) => Err(error.into()),
            Err(CopyError::Object(error)) => Err(error.into()),
            Err(CopyError::From(reason)) => {
                tracing::info!(object = %self.path, reason, "not copied from the download before, but read again");
                active.discard();
                let file = staged.file().try_clone()?;
                blocking(move || file.set_len(0)).await?;
                Ok(None)
            }
        }
    }

    /// Copies a file and compares the copy with the bytes that the download before wrote, which were compared with the digest that
    /// the store states, and with the digest of this caller.
    async fn copy(
        &mut self,
        finished: &FinishedFile,
        staged: &StagedFile,
    ) -> Result<(), CopyError> {
        let size = finished.meta.size;
        self.counted.sized(size);
        let to = Arc::new(staged.file().try_clone().map_err(CopyError::To)?);
        let mut copied = Copied::new(&finished.written, self.options.digest.as_ref());
        while copied.bytes < size {
            let (from, to) = (Arc::clone(&finished.file), Arc::clone(&to));
            let piece = tokio::task::spawn_blocking(move || copy_piece(&from, &to, size, copied));
            copied = piece
                .await
                .map_err(|error| CopyError::To(io::Error::other(error)))??;
        }
        let (written, given) = copied.digests();
        if written != finished.written {
            return Err(CopyError::From("it was changed"));
        }
        match (given, self.options.digest) {
            (Some(got), Some(expected)) if got != expected => {
                self.bucket.counters.digest_mismatch();
                let object = self.path.to_string();
                let error = EngineError::DigestMismatch {
                    object,
                    expected,
                    got,
                };
                Err(CopyError::Object(error.into()))
            }
            _ => Ok(()),
        }
    }

    /// Writes the object to the file, as its bytes arrive. Returns the digest of the written bytes.
    async fn fetch(&mut self, staged: &StagedFile) -> Result<(ObjectMeta, ContentDigest), Failure> {
        let mut options = GetOptions::default();
        options.extensions.insert(PieceByPiece);
        options.extensions.insert(VerifyBody(self.options.digest));
        let result: GetResult = get(&self.bucket, &self.path, options).await?;
        let meta = result.meta.clone();
        self.counted.sized(meta.size);
        let file = Arc::new(staged.file().try_clone()?);
        reserve(&file, meta.size).await?;
        let mut body = result.into_stream();
        let (mut offset, mut next) = (0, body.try_next().await?);
        let mut digest = RunningDigest::like(&WRITTEN);
        while let Some(bytes) = next {
            let length = bytes.len() as u64;
            digest.update(&bytes);
            let (written, then) = tokio::join!(
                write(&file, offset, bytes, &mut self.retries),
                body.try_next()
            );
            written?;
            next = then?;
            offset += length;
        }
        Ok((meta, digest.finish()))
    }
}

/// Reserves space for a file, where the file system can: a full disk is found before anything is written.
async fn reserve(file: &Arc<File>, size: u64) -> io::Result<()> {
    if size == 0 {
        return Ok(());
    }
    let file = Arc::clone(file);
    blocking(move || {
        use rustix::fs::{FallocateFlags, fallocate};
        use rustix::io::Errno;
        match fallocate(&*file, FallocateFlags::empty(), 0, size) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(()),
            reserved => Ok(reserved?),
        }
    })
    .await
}

/// Writes at `offset`. A full disk is waited for here, as all written so far would be lost by another attempt.
async fn write(
    file: &Arc<File>,
    offset: u64,
    bytes: Bytes,
    retries: &mut FileRetries,
) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        let (file, rest) = (Arc::clone(file), bytes.slice(done..));
        let written = blocking(move || file.write_at(&rest, offset + done as u64)).await;
        match written {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                done += written;
                retries.progress();
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if retries::is_full(&error) => retries.wait(error).await?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Runs file operations on a blocking thread. They continue, once begun, when the future is dropped.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(io::Error::other).flatten()
}
