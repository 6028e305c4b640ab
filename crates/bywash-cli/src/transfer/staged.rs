//! A file that becomes visible when it is complete, so that a killed copy leaves nothing behind.

use std::fs::{File, Permissions};
use std::io;
use std::path::Path as FsPath;

use tempfile::TempPath;

/// Prefix of temporary names.
const PREFIX: &str = ".bywash-cp-";

/// An incomplete file. It has no name until it is placed, or a temporary one if the file system does not support
/// unnamed files.
#[derive(Debug)]
pub(crate) struct StagedFile {
    file: File,
    name: Option<TempPath>,
}

impl StagedFile {
    /// Creates an empty file in `folder`; the umask reduces its permissions.
    pub(crate) fn create(folder: &FsPath, permissions: &Permissions) -> io::Result<Self> {
        if let Some(file) = unnamed::create(folder, permissions) {
            return Ok(Self { file, name: None });
        }
        let staged = tempfile::Builder::new()
            .prefix(PREFIX)
            .permissions(permissions.clone())
            .tempfile_in(folder)?;
        let (file, name) = staged.into_parts();
        Ok(Self {
            file,
            name: Some(name),
        })
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Gives the file its name. With `replaces`, an existing file is replaced atomically; otherwise it is an
    /// `AlreadyExists` error.
    pub(crate) fn place(self, target: &FsPath, replaces: bool) -> io::Result<()> {
        let Self { file, name } = self;
        let name = match name {
            Some(name) => name,
            None => match unnamed::link(&file, target) {
                Err(error) if replaces && error.kind() == io::ErrorKind::AlreadyExists => {
                    let folder = target.parent().unwrap_or(FsPath::new("."));
                    let link = |name: &FsPath| unnamed::link(&file, name);
                    let named = tempfile::Builder::new()
                        .prefix(PREFIX)
                        .make_in(folder, link);
                    named?.into_temp_path()
                }
                linked => return linked,
            },
        };
        let placed = match replaces {
            true => name.persist(target),
            false => name.persist_noclobber(target),
        };
        placed.map_err(|error| error.error)
    }
}

#[cfg(target_os = "linux")]
mod unnamed {
    use std::fs::{File, Permissions};
    use std::io;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::PermissionsExt;
    use std::path::{Path as FsPath, PathBuf};

    use rustix::fs::{AtFlags, CWD, Mode, OFlags};

    /// Creates an unnamed file; `None` if the file system does not support that, or cannot link it later.
    pub(super) fn create(folder: &FsPath, permissions: &Permissions) -> Option<File> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(permissions.mode());
        let file = File::from(rustix::fs::open(folder, flags, mode).ok()?);
        link_of(&file).exists().then_some(file)
    }

    /// Links the file to an unused name.
    pub(super) fn link(file: &File, name: &FsPath) -> io::Result<()> {
        let flags = AtFlags::SYMLINK_FOLLOW;
        Ok(rustix::fs::linkat(CWD, link_of(file), CWD, name, flags)?)
    }

    /// Path of the kernel's link to an open file.
    fn link_of(file: &File) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
    }
}

#[cfg(not(target_os = "linux"))]
mod unnamed {
    use std::fs::{File, Permissions};
    use std::io;
    use std::path::Path as FsPath;

    pub(super) fn create(_folder: &FsPath, _permissions: &Permissions) -> Option<File> {
        None
    }

    pub(super) fn link(_file: &File, _name: &FsPath) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
