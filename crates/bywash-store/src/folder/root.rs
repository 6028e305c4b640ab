//! The folder as a capability: every path is resolved below one open descriptor.
//!
//! On Linux one call of `openat2` with `RESOLVE_BENEATH` follows relative symbolic links that stay inside, and
//! rejects links that leave and absolute ones. Where it is missing (old kernels, strict seccomp filters, macOS) each
//! component is opened in turn and no link is followed.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::error::{is_absent, is_unreadable, unreadable};
use super::handle::{FOLDER, Handle};
use super::identity::Identity;
use super::names::is_own;
use crate::omissions::Omission;
use crate::staged_file::sync_folder;

/// `NONBLOCK`: a pipe under a key's name must not hang the open. Regular files ignore it.
const READ: OFlags = OFlags::RDONLY
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// Kind of a folder entry, links resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryKind {
    File,
    Folder,
}

/// The folder, opened when needed.
#[derive(Debug)]
pub struct Root {
    folder: Handle,
    beneath: bool,
}

impl Root {
    /// Opens the folder at `path`.
    pub fn open(path: PathBuf) -> Result<Self, Errno> {
        let folder = Handle::open(path)?;
        let beneath = beneath::open(&*folder.fd()?, ".", FOLDER).is_ok();
        Ok(Self { folder, beneath })
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Returns device and inode: the same for every store opened over this folder.
    pub(super) fn node(&self) -> (u64, u64) {
        self.folder.node()
    }

    fn open_at(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        let path = if path.is_empty() { "." } else { path };
        if self.beneath {
            beneath::open(&*self.folder.fd()?, path, flags)
        } else {
            self.open_walking(path, flags)
        }
    }

    fn open_walking(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        if path.split('/').any(|part| part == "..") {
            return Err(Errno::XDEV);
        }
        let root = self.folder.fd()?;
        let mut folder: Option<OwnedFd> = None;
        let (parents, last) = path.rsplit_once('/').unwrap_or(("", path));
        for part in parents.split('/').filter(|part| !part.is_empty()) {
            let at = folder.as_ref().unwrap_or(&root);
            let next = rustix::fs::openat(at, part, FOLDER | OFlags::NOFOLLOW, Mode::empty())?;
            folder = Some(next);
        }
        let at = folder.as_ref().unwrap_or(&root);
        rustix::fs::openat(at, last, flags | OFlags::NOFOLLOW, Mode::empty())
    }

    pub(super) fn open_folder(&self, path: &str) -> Result<OwnedFd, Errno> {
        self.open_at(path, FOLDER)
    }

    /// Opens a regular file to read; `None` without one at the path.
    pub(super) fn open_file(&self, path: &str) -> Result<Option<(File, Identity)>, Errno> {
        let fd = match self.open_at(path, READ) {
            Ok(fd) => fd,
            Err(errno) if is_absent(errno) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        let stat = rustix::fs::fstat(&fd)?;
        Ok(is_file(&stat).then(|| (File::from(fd), Identity::of(&stat))))
    }

    /// Returns the identity of the file now at `path`, without opening it. Follows links anywhere, so use it only to
    /// compare with an identity from [`Self::open_file`], or below listed folders.
    pub(super) fn identity(&self, path: &str) -> Result<Option<Identity>, Errno> {
        match rustix::fs::statat(self.folder.fd()?, path, AtFlags::empty()) {
            Ok(stat) => Ok(is_file(&stat).then(|| Identity::of(&stat))),
            Err(errno) if is_absent(errno) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Returns the identity of the file at `path`; `None` if there is a link, no file, or an error.
    pub(super) fn identity_nofollow(&self, path: &str) -> Option<Identity> {
        let root = self.folder.fd().ok()?;
        let stat = rustix::fs::statat(root, path, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        is_file(&stat).then(|| Identity::of(&stat))
    }

    /// Opens the parent folder of `path`; returns it with the last component.
    pub(super) fn parent<'a>(&self, path: &'a str) -> Result<(OwnedFd, &'a str), Errno> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.open_folder(parent)?, name))
    }

    /// Opens the folder of a path, and creates missing folders durably.
    pub fn make_parent<'a>(&self, path: &'a str) -> Result<(OwnedFd, &'a str), Errno> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.make_folder(parent)?, name))
    }

    /// Opens a folder; creates it and its parents if missing.
    pub(super) fn make_folder(&self, path: &str) -> Result<OwnedFd, Errno> {
        match self.open_folder(path) {
            Err(Errno::NOENT) if !path.is_empty() => {}
            result => return result,
        }
        let (parent, name) = self.make_parent(path)?;
        match rustix::fs::mkdirat(&parent, name, Mode::from(0o777)) {
            Ok(()) => sync_folder(&parent)?,
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        self.open_folder(path)
    }

    /// Removes the parent folder of `path` if it is empty, and so on upwards, but not `base`.
    pub(super) fn prune(&self, path: &str, base: &str) {
        let mut path = path;
        while let Some((folder, _)) = path.rsplit_once('/') {
            if folder.len() <= base.len() {
                return;
            }
            let Ok((parent, name)) = self.parent(folder) else {
                return;
            };
            if rustix::fs::unlinkat(&parent, name, AtFlags::REMOVEDIR).is_err() {
                return;
            }
            path = folder;
        }
    }

    /// Calls `each` with every name in `folder` that can be part of a key, until it returns `false`. An absent folder
    /// has no names.
    pub(super) fn read_folder(
        &self,
        folder: &str,
        each: impl FnMut(&str, EntryKind) -> bool,
    ) -> Result<Option<(u64, u64)>, Errno> {
        self.read_folder_noting(folder, each, |_, _| ())
    }

    /// As [`Self::read_folder`], and calls `left_out` with the names that it leaves out, shown as text.
    pub(super) fn read_folder_noting(
        &self,
        folder: &str,
        mut each: impl FnMut(&str, EntryKind) -> bool,
        mut left_out: impl FnMut(&str, Omission),
    ) -> Result<Option<(u64, u64)>, Errno> {
        let fd = match self.open_folder(folder) {
            Ok(fd) => fd,
            Err(errno) if is_absent(errno) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        let node = Identity::of(&rustix::fs::fstat(&fd)?).node();
        let mut names = Dir::new(fd)?;
        while let Some(entry) = names.read() {
            let entry = entry?;
            let bytes = entry.file_name().to_bytes();
            // A key is UTF-8 without control characters: other names cannot be served.
            let name = match std::str::from_utf8(bytes) {
                Ok("." | "..") => continue,
                Ok(name) if !name.chars().any(|c| c.is_ascii_control()) => name,
                _ => {
                    left_out(&String::from_utf8_lossy(bytes), Omission::NotAKey);
                    continue;
                }
            };
            let kind = match entry.file_type() {
                FileType::RegularFile => Some(EntryKind::File),
                FileType::Directory => Some(EntryKind::Folder),
                FileType::Symlink | FileType::Unknown if !is_own(name) => {
                    match self.kind(&join(folder, name)) {
                        Err(errno) if is_unreadable(errno) => {
                            left_out(name, unreadable(errno));
                            continue;
                        }
                        kind => kind?,
                    }
                }
                _ => None,
            };
            if let Some(kind) = kind
                && !each(name, kind)
            {
                break;
            }
        }
        Ok(Some(node))
    }

    /// Resolves a link, or a name on a file system that does not list kinds.
    fn kind(&self, path: &str) -> Result<Option<EntryKind>, Errno> {
        match self.open_at(path, READ) {
            Ok(fd) => match FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode) {
                FileType::RegularFile => Ok(Some(EntryKind::File)),
                FileType::Directory => Ok(Some(EntryKind::Folder)),
                _ => Ok(None),
            },
            Err(errno) if is_absent(errno) => Ok(None),
            Err(errno) => Err(errno),
        }
    }
}

/// Joins `name` to `folder`, both relative to the root; `folder` may be empty or end with a slash.
pub(super) fn join(folder: &str, name: &str) -> String {
    if folder.is_empty() || folder.ends_with('/') {
        format!("{folder}{name}")
    } else {
        format!("{folder}/{name}")
    }
}

pub(super) fn is_file(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

#[cfg(target_os = "linux")]
mod beneath {
    use std::os::fd::OwnedFd;

    use rustix::fs::{Mode, OFlags, ResolveFlags};
    use rustix::io::Errno;

    /// The kernel returns `EAGAIN` when a rename elsewhere may have defeated its check of `..`.
    const TRIES: usize = 64;

    pub(super) fn open(at: &OwnedFd, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        for _ in 1..TRIES {
            match rustix::fs::openat2(at, path, flags, Mode::empty(), resolve) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                result => return result,
            }
        }
        rustix::fs::openat2(at, path, flags, Mode::empty(), resolve)
    }
}

#[cfg(not(target_os = "linux"))]
mod beneath {
    use std::os::fd::OwnedFd;

    use rustix::fs::OFlags;
    use rustix::io::Errno;

    pub(super) fn open(_at: &OwnedFd, _path: &str, _flags: OFlags) -> Result<OwnedFd, Errno> {
        Err(Errno::NOSYS)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_out_of_the_folder_are_rejected_with_and_without_openat2() {
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("secret"), "s").unwrap();
        let inside = tempfile::tempdir().unwrap();
        std::fs::create_dir(inside.path().join("d")).unwrap();
        std::fs::write(inside.path().join("d/file"), "f").unwrap();
        symlink(outside.path(), inside.path().join("out")).unwrap();
        symlink("../..", inside.path().join("d/up")).unwrap();
        symlink("d/file", inside.path().join("in")).unwrap();

        let mut root = Root::open(inside.path().to_owned()).unwrap();
        let found = |root: &Root, path: &str| root.open_file(path).unwrap().is_some();
        if root.beneath {
            assert!(found(&root, "in"));
        }
        for beneath in [root.beneath, false] {
            root.beneath = beneath;
            assert!(found(&root, "d/file"));
            assert!(!found(&root, "out/secret"));
            assert!(!found(&root, "d/up/etc/hostname"));
            assert!(!found(&root, "../secret"), "beneath={beneath}");
        }
        assert!(!found(&root, "in"));
    }
}
