//! Files as the end of a copy: written beside their place, so that no reader sees half of one.

use std::fs::{File, FileTimes, Permissions};
use std::io;
use std::path::{Path as FsPath, PathBuf};
use std::time::SystemTime;

use indicatif::ProgressBar;
use object_store::PutMode;
use tokio::io::AsyncWriteExt;

use crate::beneath::{Tree, refuse_own_name};
use crate::failure::{Failure, Kind};
use crate::source::Source;
use crate::staged::StagedFile;

/// The place of a file that is there or will be.
#[derive(Debug)]
pub(crate) struct Place {
    /// As the user wrote it.
    path: PathBuf,
    /// A link stays a link: this is what it points to. In a tree the file takes the link's place.
    pub(crate) target: PathBuf,
    /// The target's folder; it exists.
    pub(crate) folder: PathBuf,
    pub(crate) permissions: Permissions,
    /// Whether a file is there, whose permissions stay.
    pub(crate) replaces: bool,
}

impl Place {
    /// Makes the folders above `path`. `None` if what is there is no regular file, but a pipe or a device, which is written to
    /// as it is.
    ///
    /// `tree`: the tree that `path` is a file of, whose name a store may have chosen.
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
        let (target, existing) = match tree {
            Some(tree) => {
                let target = tree.place(path)?;
                let found = std::fs::symlink_metadata(&target).ok();
                (target, found.filter(|meta| !meta.is_symlink()))
            }
            None => {
                refuse_own_name(path).map_err(|why| {
                    Failure::usage(format!("cannot write {}: {why}", path.display()))
                })?;
                let target = path.canonicalize().unwrap_or_else(|_| path.to_owned());
                (target, std::fs::metadata(path).ok())
            }
        };
        if existing.as_ref().is_some_and(|meta| !meta.is_file()) {
            return Ok(None);
        }
        let folder = target
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty())
            .map_or_else(|| PathBuf::from("."), PathBuf::from);
        let place = Self {
            replaces: existing.is_some(),
            path: path.to_owned(),
            target,
            folder,
            permissions: existing.map_or_else(default_permissions, |meta| meta.permissions()),
        };
        if *mode == PutMode::Create && place.target.symlink_metadata().is_ok() {
            return Err(place.taken());
        }
        match std::fs::create_dir_all(&place.folder) {
            Ok(()) => Ok(Some(place)),
            Err(error) => Err(place.failed(&error)),
        }
    }

    pub(crate) fn failed(&self, error: &io::Error) -> Failure {
        Failure::io(format!("cannot write {}", self.path.display()), error)
    }

    /// The failure of a copy that must not replace what is there.
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

/// What `open` gives a new file, before the umask.
fn default_permissions() -> Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(0o666)
}

/// Gives a file the time of what it is a copy of.
pub(crate) fn set_modified(file: &File, modified: Option<SystemTime>) -> io::Result<()> {
    match modified {
        Some(modified) => file.set_times(FileTimes::new().set_modified(modified)),
        None => Ok(()),
    }
}

/// Writes all of `source` to the file at `path`; returns its bytes.
pub(crate) async fn write(
    source: &mut Source,
    (path, tree): (&FsPath, Option<&Tree>),
    mode: &PutMode,
    bar: &ProgressBar,
) -> Result<u64, Failure> {
    let Some(place) = Place::prepare(path, mode, tree)? else {
        let failed =
            |error: &io::Error| Failure::io(format!("cannot write {}", path.display()), error);
        let file = std::fs::OpenOptions::new()
            .write(true)
            .open(path)
            .map_err(|error| failed(&error))?;
        return write_parts(source, file, bar, failed).await;
    };
    let failed = |error: &io::Error| place.failed(error);
    let staged = StagedFile::create(&place.folder, &place.permissions);
    let staged = staged.map_err(|error| failed(&error))?;
    if place.replaces {
        // Creating it, the umask took some away.
        let kept = staged.file().set_permissions(place.permissions.clone());
        kept.map_err(|error| failed(&error))?;
    }
    let file = staged.file().try_clone().map_err(|error| failed(&error))?;
    let bytes = write_parts(source, file, bar, failed).await?;
    set_modified(staged.file(), source.modified).map_err(|error| failed(&error))?;
    match staged.place(&place.target, *mode != PutMode::Create) {
        Ok(()) => Ok(bytes),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(place.taken()),
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
        file.write_all(&part)
            .await
            .map_err(|error| failed(&error))?;
        bytes += part.len() as u64;
        bar.inc(part.len() as u64);
    }
    file.flush().await.map_err(|error| failed(&error))?;
    Ok(bytes)
}
