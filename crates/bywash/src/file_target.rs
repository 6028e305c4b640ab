//! Files that downloads go to: names that they may have, and their folders.

use std::ffi::OsString;
use std::fs::Permissions;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path as FsPath, PathBuf};

use bywash_store::{
    folder::{FolderStore, Root},
    staged_file::open_folder,
};
use rustix::fs::{AtFlags, FileType};
use rustix::io::Errno;

use crate::error::EngineError;

/// Permissions of a new file, before the umask.
const NEW_FILE_MODE: u32 = 0o666;

pub(crate) fn new_permissions() -> Permissions {
    Permissions::from_mode(NEW_FILE_MODE)
}

/// Returns `path` if it may be a target. `within`: the folder that it must stay in.
///
/// # Errors
/// [`EngineError::InvalidSetting`].
pub(crate) fn checked(path: &FsPath, within: Option<&FsPath>) -> Result<PathBuf, EngineError> {
    let refused = |reason: String| EngineError::InvalidSetting {
        setting: "path",
        reason: format!("{}: {reason}", path.display()),
    };
    let own = |name: &std::ffi::OsStr| FolderStore::is_own_name(&name.to_string_lossy());
    let Some(name) = path.file_name() else {
        return Err(refused("it names no file".to_owned()));
    };
    let Some(folder) = within else {
        return if own(name) {
            Err(refused("this is a name of Bywash's own files".to_owned()))
        } else {
            Ok(path.to_owned())
        };
    };
    for component in path.components() {
        match component {
            Component::Normal(name) if own(name) => {
                return Err(refused(format!(
                    "{} is a name of Bywash's own files",
                    name.display()
                )));
            }
            Component::Normal(name) if name.to_str().is_some() => {}
            Component::Normal(_) => return Err(refused("it is not UTF-8".to_owned())),
            Component::RootDir | Component::Prefix(_) => {
                return Err(refused(format!(
                    "it is absolute; write it relative to {}",
                    folder.display()
                )));
            }
            Component::ParentDir | Component::CurDir => {
                return Err(refused(
                    "it has . or .. in it; write plain names".to_owned(),
                ));
            }
        }
    }
    if path.as_os_str().to_string_lossy().ends_with('/') {
        Err(refused("it ends with /; name the file".to_owned()))
    } else {
        Ok(path.to_owned())
    }
}

/// A name in an open folder.
#[derive(Debug)]
pub(crate) struct FileTarget {
    pub(crate) folder: OwnedFd,
    pub(crate) name: OsString,
}

impl FileTarget {
    /// Opens the folder of a [`checked`] path. With `within`, creates missing folders, and follows no link out of it.
    pub(crate) fn open(path: &FsPath, within: Option<&FsPath>) -> io::Result<Self> {
        let name = path.file_name().unwrap_or_default().to_owned();
        let Some(within) = within else {
            let folder = path
                .parent()
                .filter(|folder| !folder.as_os_str().is_empty());
            let folder = open_folder(folder.unwrap_or(FsPath::new(".")))?;
            return Ok(Self { folder, name });
        };
        let text = path.to_str().ok_or(io::ErrorKind::InvalidInput)?;
        let opened = Root::open(within.to_owned()).and_then(|root| Ok(root.make_parent(text)?.0));
        match opened {
            Ok(folder) => Ok(Self { folder, name }),
            Err(Errno::XDEV | Errno::LOOP) => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("a link in it leads out of {}", within.display()),
            )),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The permissions of the file that has the name now.
    pub(crate) fn permissions(&self) -> io::Result<Option<Permissions>> {
        match rustix::fs::statat(&self.folder, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
            Ok(stat) => {
                let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
                Ok(is_file.then(|| Permissions::from_mode(stat.st_mode & 0o7777)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_lead_out_of_the_folder_are_refused_by_name() {
        let within = Some(FsPath::new("/srv/fetched"));
        for (path, reason) in [
            ("/etc/passwd", "absolute"),
            ("../up", ".."),
            ("a/../../up", ".."),
            ("./a", "plain names"),
            ("a/", "name the file"),
            ("", "names no file"),
            ("..", "names no file"),
            ("a/.bywash/b", "own files"),
            (".k.bywash-part", "own files"),
        ] {
            let refused = checked(FsPath::new(path), within);
            let text = refused.map_err(|error| error.to_string());
            let is_named = text.as_ref().is_err_and(|text| text.contains(reason));
            assert!(is_named, "{path:?}: {text:?}");
        }
        for path in ["a", "a/b", "a b/.c"] {
            assert!(checked(FsPath::new(path), within).is_ok(), "{path:?}");
        }
        assert!(checked(FsPath::new("/tmp/file"), None).is_ok());
    }
}
