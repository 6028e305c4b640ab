//! A file that gets its name when it is whole, so that a copy that is killed leaves nothing in the folder.

use std::fs::{File, Permissions};
use std::io;
use std::path::Path as FsPath;

use tempfile::TempPath;

/// How names begin that a file has for a moment.
const PREFIX: &str = ".bywash-cp-";

/// A file on its way. It has no name until it is placed, or a temporary one where the file system has no files without names.
#[derive(Debug)]
pub(crate) struct StagedFile {
    file: File,
    name: Option<TempPath>,
}

impl StagedFile {
    /// Creates an empty file in `folder`; the umask takes from its permissions.
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

    /// Gives the file its name. With `replaces`, what has that name is replaced in one step; otherwise that is an error,
    /// `AlreadyExists`.
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

    /// Creates a file without a name; `None` where the file system has none such, or they could get no name.
    pub(super) fn create(folder: &FsPath, permissions: &Permissions) -> Option<File> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(permissions.mode());
        let file = File::from(rustix::fs::open(folder, flags, mode).ok()?);
        link_of(&file).exists().then_some(file)
    }

    /// Gives the file a name that nothing has.
    pub(super) fn link(file: &File, name: &FsPath) -> io::Result<()> {
        let flags = AtFlags::SYMLINK_FOLLOW;
        Ok(rustix::fs::linkat(CWD, link_of(file), CWD, name, flags)?)
    }

    /// The kernel's own link to an open file.
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
