//! Files that get their name when they are complete and on disk.
//!
//! A staged file is locked by its writer until the writer ends. [`remove_leftovers`] removes those without a lock.

use std::ffi::OsStr;
use std::fs::{File, Permissions, TryLockError};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path as FsPath;

use rustix::fs::{AtFlags, Dir, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::digest::{ContentDigest, RunningDigest};
use crate::time::unique_nanos;

/// Prefix of the names that staged files have where they cannot be without one.
const PREFIX: &str = ".bywash-cp-";
/// Bytes of a file that are digested at a time.
const DIGEST_PIECE_BYTES: usize = 256 << 10;

/// An incomplete file in the folder of its target, gone when dropped.
///
/// It has no name until it is placed, or a temporary one if the file system does not support unnamed files. All
/// functions block.
#[derive(Debug)]
pub struct StagedFile {
    folder: OwnedFd,
    file: File,
    /// Its temporary name, if it has one.
    name: Option<String>,
}

impl StagedFile {
    /// Creates an empty file in `folder`; the umask reduces its permissions.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn create(folder: OwnedFd, permissions: &Permissions) -> io::Result<Self> {
        let mode = Mode::from_raw_mode(permissions.mode());
        if let Some(file) = unnamed::create(&folder, mode)
            && is_held(&file)
        {
            return Ok(Self {
                folder,
                file,
                name: None,
            });
        }
        loop {
            let name = format!("{PREFIX}{}", unique_name());
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let file = File::from(rustix::fs::openat(&folder, &name, flags, mode)?);
            if hold(&file)? {
                return Ok(Self {
                    folder,
                    file,
                    name: Some(name),
                });
            }
        }
    }

    /// The file, open to read and to write.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Syncs the file and gives it the name `target`, durably. With `replaces`, an existing file is replaced
    /// atomically.
    ///
    /// # Errors
    /// `AlreadyExists` without `replaces` if there is such a name; errors of the file system.
    pub fn place(mut self, target: &OsStr, replaces: bool) -> io::Result<()> {
        self.file.sync_all()?;
        let Some(name) = self.name.clone() else {
            return match unnamed::link(&self.file, &self.folder, target) {
                Err(Errno::EXIST) if replaces => self.replace(target),
                linked => {
                    linked?;
                    Ok(sync_folder(&self.folder)?)
                }
            };
        };
        rename_durably(
            (&self.folder, name.as_ref()),
            (&self.folder, target),
            replaces,
        )?;
        self.name = None;
        Ok(())
    }

    /// As [`Self::place`], of a file without a name, over an existing file.
    fn replace(&mut self, target: &OsStr) -> io::Result<()> {
        let name = format!("{PREFIX}{}", unique_name());
        unnamed::link(&self.file, &self.folder, name.as_ref())?;
        // From here on removed when dropped.
        let name = self.name.insert(name);
        rename_durably(
            (&self.folder, OsStr::new(name)),
            (&self.folder, target),
            true,
        )?;
        self.name = None;
        Ok(())
    }
}

impl Drop for StagedFile {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            // A file that cannot be removed now is a leftover.
            let _ = rustix::fs::unlinkat(&self.folder, name, AtFlags::empty());
        }
    }
}

/// Syncs `file`, which has the name `from` in `folder`, and renames it to `to`, durably. Blocks.
///
/// # Errors
/// `AlreadyExists` without `replaces` if there is a name `to`; errors of the file system.
pub fn publish(
    file: &File,
    folder: &OwnedFd,
    (from, to): (&OsStr, &OsStr),
    replaces: bool,
) -> io::Result<()> {
    file.sync_all()?;
    Ok(rename_durably((folder, from), (folder, to), replaces)?)
}

/// Returns the digest of a whole file, of the algorithm of `like`. Blocks.
///
/// # Errors
/// Errors of the file system.
pub fn digest(file: &File, like: &ContentDigest) -> io::Result<ContentDigest> {
    let mut running = RunningDigest::like(like);
    let mut piece = vec![0; DIGEST_PIECE_BYTES];
    let mut offset = 0;
    loop {
        let read = file.read_at(&mut piece, offset)?;
        if read == 0 {
            return Ok(running.finish());
        }
        running.update(&piece[..read]);
        offset += read as u64;
    }
}

/// Opens a folder, to place files in it.
///
/// # Errors
/// Errors of the file system.
pub fn open_folder(path: &FsPath) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Removes the staged files of writers that were killed from `folder`. Reads all names of the folder.
///
/// # Errors
/// Errors of the file system.
pub fn remove_leftovers(folder: &OwnedFd) -> io::Result<()> {
    let mut names = Dir::read_from(folder)?;
    while let Some(entry) = names.read() {
        let entry = entry?;
        let name = entry.file_name();
        if !name.to_bytes().starts_with(PREFIX.as_bytes()) {
            continue;
        }
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(file) = rustix::fs::openat(folder, name, flags, Mode::empty()) else {
            continue;
        };
        if File::from(file).try_lock().is_ok() {
            rustix::fs::unlinkat(folder, name, AtFlags::empty())?;
            tracing::info!(name = %OsStr::from_bytes(name.to_bytes()).display(), "removed a leftover");
        }
    }
    Ok(())
}

/// Renames a file and makes that durable. Without `replaces`, fails with `EXIST` if the name is taken, also against
/// other processes.
pub fn rename_durably(
    from: (&OwnedFd, &OsStr),
    to: (&OwnedFd, &OsStr),
    replaces: bool,
) -> Result<(), Errno> {
    if replaces {
        rustix::fs::renameat(from.0, from.1, to.0, to.1)?
    } else {
        rename_exclusive(from, to)?
    }
    sync_folder(to.0)
}

/// Renames a file. Fails with `EXIST` if the name is taken, also against other processes.
///
/// # Errors
/// Errors of the file system.
pub fn rename_exclusive(from: (&OwnedFd, &OsStr), to: (&OwnedFd, &OsStr)) -> Result<(), Errno> {
    match rustix::fs::renameat_with(from.0, from.1, to.0, to.1, RenameFlags::NOREPLACE) {
        // The file system (or kernel) lacks such a rename. A hard link never replaces either.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            rustix::fs::linkat(from.0, from.1, to.0, to.1, AtFlags::empty())?;
            // Only a second name, a leftover.
            let _ = rustix::fs::unlinkat(from.0, from.1, AtFlags::empty());
            Ok(())
        }
        renamed => renamed,
    }
}

/// Makes renames and removals in a folder durable.
pub fn sync_folder(folder: impl AsFd) -> Result<(), Errno> {
    match rustix::fs::fsync(folder) {
        // File systems that cannot sync a folder return this; nothing more can be done.
        Err(Errno::INVAL) => Ok(()),
        result => result,
    }
}

/// Returns a unique file name: unique in the process, with the process id in it; the random part distinguishes
/// machines on one network folder.
pub fn unique_name() -> String {
    format!(
        "{:x}-{:x}-{:08x}",
        std::process::id(),
        unique_nanos(),
        rand::random::<u32>()
    )
}

/// Locks a new staged file or folder while it is open; returns `false` if it was removed as a leftover before.
pub fn hold(file: &File) -> Result<bool, Errno> {
    Ok(is_held(file) && rustix::fs::fstat(file)?.st_nlink > 0)
}

fn is_held(file: &File) -> bool {
    // On file systems without locks nothing is removed, or by age alone.
    !matches!(file.try_lock(), Err(TryLockError::WouldBlock))
}

#[cfg(target_os = "linux")]
mod unnamed {
    use std::ffi::OsStr;
    use std::fs::File;
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::path::PathBuf;

    use rustix::fs::{AtFlags, CWD, Mode, OFlags};
    use rustix::io::Errno;

    /// Creates an unnamed file; `None` if the file system does not support that, or cannot link it later.
    pub(super) fn create(folder: &OwnedFd, mode: Mode) -> Option<File> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat(folder, ".", flags, mode).ok()?);
        link_of(&file).exists().then_some(file)
    }

    /// Links the file to an unused name.
    pub(super) fn link(file: &File, folder: &OwnedFd, name: &OsStr) -> Result<(), Errno> {
        let flags = AtFlags::SYMLINK_FOLLOW;
        rustix::fs::linkat(CWD, link_of(file), folder, name, flags)
    }

    /// Path of the kernel's link to an open file.
    fn link_of(file: &File) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
    }
}

#[cfg(not(target_os = "linux"))]
mod unnamed {
    use std::ffi::OsStr;
    use std::fs::File;
    use std::os::fd::OwnedFd;

    use rustix::fs::Mode;
    use rustix::io::Errno;

    pub(super) fn create(_folder: &OwnedFd, _mode: Mode) -> Option<File> {
        None
    }

    pub(super) fn link(_file: &File, _folder: &OwnedFd, _name: &OsStr) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::io::Write;

    use super::*;

    fn names(folder: &FsPath) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        let name = |entry: io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
        let mut names: Vec<_> = entries
            .map(|entry| name(entry).into_string().unwrap())
            .collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn file_appears_when_placed_and_replaces_only_on_request() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("target");
        for (bytes, replaces, is_placed) in [
            ("one", false, true),
            ("two", false, false),
            ("three", true, true),
        ] {
            let folder = open_folder(home.path()).unwrap();
            let staged = StagedFile::create(folder, &Permissions::from_mode(0o644)).unwrap();
            staged.file().write_all(bytes.as_bytes()).unwrap();
            let placed = staged.place("target".as_ref(), replaces);
            assert_eq!(placed.is_ok(), is_placed, "{placed:?}");
            assert_eq!(names(home.path()), ["target"]);
        }
        assert_eq!(std::fs::read(&path).unwrap(), b"three");
    }

    #[test]
    fn leftovers_are_removed_and_files_of_live_writers_are_not() {
        let home = tempfile::tempdir().unwrap();
        let folder = open_folder(home.path()).unwrap();
        let (dead, live) = (
            home.path().join(".bywash-cp-dead"),
            home.path().join(".bywash-cp-live"),
        );
        for path in [&dead, &live, &home.path().join("other")] {
            std::fs::write(path, "x").unwrap();
        }
        let held = File::open(&live).unwrap();
        assert!(hold(&held).unwrap());
        remove_leftovers(&folder).unwrap();
        assert_eq!(names(home.path()), [".bywash-cp-live", "other"]);
    }
}
