//! Files as destinations of copies, replaced atomically, and standard output.

use std::ffi::OsStr;
use std::fs::{File, FileTimes, Permissions};
use std::io;
use std::path::{Path as FsPath, PathBuf};
use std::time::SystemTime;

use bywash::staged_file::{StagedFile, open_folder};
use indicatif::ProgressBar;
use object_store::PutMode;
use tokio::io::AsyncWriteExt;

use crate::failure::{Failure, Kind};
use crate::output::written;
use crate::transfer::confinement::{Tree, refuse_own_name};
use crate::transfer::source::Source;

/// Destination of a file copy, which may exist.
#[derive(Debug)]
pub(crate) struct FileTarget {
    /// Path as the user wrote it.
    path: PathBuf,
    /// The resolved path: the target of a link, which stays a link. In a tree copy the file replaces the link.
    pub(crate) resolved: PathBuf,
    /// Folder of `resolved`; exists.
    pub(crate) folder: PathBuf,
    pub(crate) permissions: Permissions,
    /// Whether a file exists, whose permissions are kept.
    pub(crate) replaces: bool,
}

impl FileTarget {
    /// Creates the folders of `path`. `None` if the destination is a pipe or device, which is written directly.
    ///
    /// `tree`: the tree copy that `path` belongs to, whose names a store may have chosen.
    pub(crate) fn prepare(
        path: &FsPath,
        mode: &PutMode,
        tree: Option<&Tree>,
    ) -> Result<Option<Self>, Failure> {
        if matches!(mode, PutMode::Update(_)) {
            return Err(Failure::usage(format!(
                "{}: a file has no ETag to match; --if-match is for objects",
                path.display()
            )));
        }
        let (resolved, existing) = match tree {
            Some(tree) => {
                let resolved = tree.confine(path)?;
                let found = std::fs::symlink_metadata(&resolved).ok();
                (resolved, found.filter(|meta| !meta.is_symlink()))
            }
            None => {
                refuse_own_name(path).map_err(|why| {
                    Failure::usage(format!("cannot write {}: {why}", path.display()))
                })?;
                let resolved = path.canonicalize().unwrap_or_else(|_| path.to_owned());
                (resolved, std::fs::metadata(path).ok())
            }
        };
        if existing.as_ref().is_some_and(|meta| !meta.is_file()) {
            return Ok(None);
        }
        let folder = resolved
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty())
            .map_or_else(|| PathBuf::from("."), PathBuf::from);
        let prepared = Self {
            replaces: existing.is_some(),
            path: path.to_owned(),
            resolved,
            folder,
            permissions: existing.map_or_else(default_permissions, |meta| meta.permissions()),
        };
        if *mode == PutMode::Create && prepared.resolved.symlink_metadata().is_ok() {
            return Err(prepared.taken());
        }
        match std::fs::create_dir_all(&prepared.folder) {
            Ok(()) => Ok(Some(prepared)),
            Err(error) => Err(prepared.failed(&error)),
        }
    }

    /// The name of the resolved path in its folder.
    pub(crate) fn name(&self) -> &OsStr {
        self.resolved.file_name().unwrap_or_default()
    }

    pub(crate) fn failed(&self, error: &io::Error) -> Failure {
        Failure::io(format!("cannot write {}", self.path.display()), error)
    }

    /// The failure of a copy that must not replace an existing file.
    pub(crate) fn taken(&self) -> Failure {
        Failure::new(
            Kind::Failed,
            format!(
                "cannot write {}: it exists already; leave --create-only out to replace it",
                self.path.display()
            ),
        )
    }
}

/// Permissions of a new file, before the umask.
fn default_permissions() -> Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(0o666)
}

/// Sets a file's modification time to its source's.
pub(crate) fn set_modified(file: &File, modified: Option<SystemTime>) -> io::Result<()> {
    match modified {
        Some(modified) => file.set_times(FileTimes::new().set_modified(modified)),
        None => Ok(()),
    }
}

/// Writes all of `source` to the file at `path`. Returns its length.
pub(crate) async fn write(
    source: &mut Source,
    (path, tree): (&FsPath, Option<&Tree>),
    mode: &PutMode,
    bar: &ProgressBar,
) -> Result<u64, Failure> {
    let Some(target) = FileTarget::prepare(path, mode, tree)? else {
        let failed =
            |error: &io::Error| Failure::io(format!("cannot write {}", path.display()), error);
        let file = std::fs::OpenOptions::new()
            .write(true)
            .open(path)
            .map_err(|error| failed(&error))?;
        return write_parts(source, file, bar, failed).await;
    };
    let failed = |error: &io::Error| target.failed(error);
    let folder = open_folder(&target.folder);
    let staged = folder.and_then(|folder| StagedFile::create(folder, &target.permissions));
    let staged = staged.map_err(|error| failed(&error))?;
    if target.replaces {
        // The umask reduced them at creation.
        let kept = staged.file().set_permissions(target.permissions.clone());
        kept.map_err(|error| failed(&error))?;
    }
    let file = staged.file().try_clone().map_err(|error| failed(&error))?;
    let bytes = write_parts(source, file, bar, failed).await?;
    set_modified(staged.file(), source.modified).map_err(|error| failed(&error))?;
    let (name, replaces) = (target.name().to_owned(), *mode != PutMode::Create);
    let published = tokio::task::spawn_blocking(move || staged.place(&name, replaces)).await;
    match published.map_err(io::Error::other).flatten() {
        Ok(()) => Ok(bytes),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(target.taken()),
        Err(error) => Err(failed(&error)),
    }
}

async fn write_parts(
    source: &mut Source,
    file: File,
    bar: &ProgressBar,
    failed: impl Fn(&io::Error) -> Failure,
) -> Result<u64, Failure> {
    let mut file = tokio::fs::File::from_std(file);
    let mut bytes = 0;
    while let Some(part) = source.next().await? {
        let length = part.len() as u64;
        for piece in part {
            let written = file.write_all(&piece).await;
            written.map_err(|error| failed(&error))?;
        }
        bytes += length;
        bar.inc(length);
    }
    file.flush().await.map_err(|error| failed(&error))?;
    Ok(bytes)
}

/// Writes all of `source` to standard output and returns the number of bytes. Calls `wrote` with each part's length.
pub(crate) async fn to_stdout(source: &mut Source, wrote: impl Fn(u64)) -> Result<u64, Failure> {
    let mut stdout = tokio::io::stdout();
    let mut bytes = 0;
    while let Some(part) = source.next().await? {
        let length = part.len() as u64;
        for piece in part {
            written(stdout.write_all(&piece).await)?;
        }
        bytes += length;
        wrote(length);
    }
    written(stdout.flush().await)?;
    Ok(bytes)
}
