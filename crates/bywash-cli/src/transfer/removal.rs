//! Deletion of a file or an object that was copied: only if its place still has the version that was read.
//!
//! A file is compared, renamed to a name of Bywash's own in its folder, compared again and only then unlinked: a file that another
//! program puts in its place in between keeps its name, or gets it back. If the process ends in between, a later run puts the file
//! back ([`put_back`]). While the process works, it locks the file, so that another one does not take it for a leftover.

use std::ffi::{OsStr, OsString};
use std::fs::{File, TryLockError};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path as FsPath, PathBuf};

use bywash::origin::folder::FileIdentity;
use bywash::staged_file::rename_exclusive;
use bywash::{Bucket, DeleteCondition};
use object_store::path::Path;
use object_store::{Error, ObjectStoreExt};
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use crate::failure::Failure;
use crate::transfer::download::hex;
use crate::transfer::version::{FileVersion, ObjectVersion};

/// Prefix of the name of a file that is about to be deleted, before its own name.
const ASIDE: &str = ".bywash-mv-";
/// The same before a hash of a name that would be too long with [`ASIDE`].
const ASIDE_HASHED: &str = ".bywash-mv.";

/// Deletes an object whose copy is complete, if it still is the version that was read: by one conditional request, where the store
/// has one.
pub(crate) async fn remove_object(
    store: &Bucket,
    path: &Path,
    what: &str,
    read: &ObjectVersion,
) -> Result<(), Failure> {
    let failed = |error: Error| Failure::store(format!("cannot delete {what}"), &error);
    if !read.is_known() {
        return Err(Failure::failed(format!(
            "{what} was copied but not deleted: its store states neither ETags nor dates, so a newer object cannot be distinguished; \
             delete it with rm"
        )));
    }
    let now = store.head(path).await.map_err(failed)?;
    if !read.is(&ObjectVersion::from(&now)) {
        return Err(changed(what, Since::Copied));
    }
    let conditional = match read.strong_e_tag() {
        Some(e_tag) => {
            let condition = DeleteCondition {
                e_tag: Some(e_tag.to_owned()),
                version: now.version,
                ..DeleteCondition::default()
            };
            store.delete_if(path, condition).await
        }
        None => store.delete(path).await,
    };
    match conditional {
        // Gone already.
        Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
        Err(Error::NotImplemented { .. }) => store.delete(path).await.map_err(failed),
        Err(Error::Precondition { .. }) => Err(changed(what, Since::Copied)),
        Err(error) => Err(failed(error)),
    }
}

/// When a version was the one to be deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Since {
    /// When its copy began.
    Copied,
    /// When it was listed.
    Listed,
}

/// Deletes a file if it still is the version that was read. Blocks.
pub(crate) fn remove_file(path: &FsPath, read: &FileVersion, since: Since) -> Result<(), Failure> {
    let (what, beside) = (path.display(), |name| path.with_file_name(name));
    match remove_if_same(path, read) {
        Ok(Outcome::Removed) => Ok(()),
        Ok(Outcome::Changed) => Err(changed(&what.to_string(), since)),
        Ok(Outcome::Aside(name)) => Err(Failure::failed(format!(
            "{what} changed while it was to be deleted, and another file has its name now: the changed file is {}",
            beside(name).display()
        ))),
        Ok(Outcome::Taken(name)) => Err(Failure::failed(format!(
            "{what} is left: {} is a file that an interrupted mv set aside; compare it with {what}, and remove or rename it",
            beside(name).display()
        ))),
        Err(error) => Err(Failure::io(format!("cannot delete {what}"), &error)),
    }
}

/// The failure of a deletion of another version than there is.
pub(crate) fn changed(what: &str, since: Since) -> Failure {
    Failure::failed(match since {
        Since::Copied => format!(
            "{what} changed while it was copied and is left; if the destination is the same place by another address, there is nothing \
             to move, else try again"
        ),
        Since::Listed => format!("{what} changed since it was listed and is left; try again"),
    })
}

/// The file at a destination under a second name, while the source is deleted: that may be the same file by another address.
///
/// If the process ends in between, a later run puts the file back as one set aside.
#[derive(Debug)]
pub(crate) struct Kept {
    path: PathBuf,
    folder: OwnedFd,
    aside: OsString,
    /// Whether the file system has no second names, so that the file was renamed.
    renamed: bool,
}

impl Kept {
    /// Blocks.
    ///
    /// # Errors
    /// `AlreadyExists` if a leftover has the name for files set aside.
    pub(crate) fn new(path: &FsPath) -> io::Result<Self> {
        let path = path.canonicalize()?;
        let (folder, name) = parent(&path)?;
        let mut aside = aside_name(name);
        let link =
            |aside: &OsStr| rustix::fs::linkat(&folder, name, &folder, aside, AtFlags::empty());
        let mut linked = link(&aside);
        if linked == Err(Errno::NAMETOOLONG) {
            aside = hashed_aside_name(name);
            linked = link(&aside);
        }
        let renamed = match linked {
            Ok(()) => false,
            Err(Errno::EXIST) => return Err(Errno::EXIST.into()),
            Err(_) => {
                aside = set_aside(&folder, name)?;
                true
            }
        };
        Ok(Self {
            path,
            folder,
            aside,
            renamed,
        })
    }

    /// Gives the file its own name alone. Returns whether it had lost that name. Blocks.
    pub(crate) fn end(self) -> io::Result<bool> {
        let name = self.path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        match rename_exclusive((&self.folder, &self.aside), (&self.folder, name)) {
            Ok(()) => Ok(!self.renamed),
            Err(Errno::EXIST) => {
                rustix::fs::unlinkat(&self.folder, &self.aside, AtFlags::empty())?;
                Ok(false)
            }
            Err(errno) => Err(errno.into()),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Removed,
    /// Another version has the name.
    Changed,
    /// The file changed after it had been set aside under this name, and its own name is taken.
    Aside(OsString),
    /// A leftover has the name for files set aside.
    Taken(OsString),
}

fn remove_if_same(path: &FsPath, read: &FileVersion) -> io::Result<Outcome> {
    if !read.is_at(path)? {
        return Ok(Outcome::Changed);
    }
    let (folder, name) = parent(path)?;
    let held = open(&folder, name);
    // Whether another program has locked the file does not matter: the lock marks it as in use.
    let _locked = held.as_ref().map(File::try_lock);
    let aside = match set_aside(&folder, name) {
        Ok(aside) => aside,
        Err(Errno::EXIST) => return Ok(Outcome::Taken(aside_name(name))),
        // A full disk has no room for the longer name. Deleting makes room.
        Err(Errno::NOSPC | Errno::DQUOT) => {
            rustix::fs::unlinkat(&folder, name, AtFlags::empty())?;
            return Ok(Outcome::Removed);
        }
        Err(errno) => return Err(errno.into()),
    };
    let now = rustix::fs::statat(&folder, &aside, AtFlags::SYMLINK_NOFOLLOW);
    match now.map(|stat| FileIdentity::of(&stat).is_renamed(read.named())) {
        Ok(true) => {}
        Ok(false) => {
            return Ok(match rename_exclusive((&folder, &aside), (&folder, name)) {
                Ok(()) => Outcome::Changed,
                Err(_) => Outcome::Aside(aside),
            });
        }
        // Another run took it for a leftover, on a file system without locks, and put it back.
        Err(Errno::NOENT) => return Ok(Outcome::Changed),
        Err(errno) => return Err(errno.into()),
    }
    match rustix::fs::unlinkat(&folder, &aside, AtFlags::empty()) {
        Ok(()) => Ok(Outcome::Removed),
        Err(Errno::NOENT) => Ok(Outcome::Changed),
        Err(errno) => Err(errno.into()),
    }
}

/// Renames a file to the name for files set aside, which it returns. `EXIST` if a leftover has it.
fn set_aside(folder: &OwnedFd, name: &OsStr) -> Result<OsString, Errno> {
    let whole = aside_name(name);
    match rename_to(folder, name, &whole) {
        // The file system allows less than others do.
        Err(Errno::NAMETOOLONG) => {
            let hashed = hashed_aside_name(name);
            rename_to(folder, name, &hashed).map(|()| hashed)
        }
        renamed => renamed.map(|()| whole),
    }
}

fn rename_to(folder: &OwnedFd, from: &OsStr, to: &OsStr) -> Result<(), Errno> {
    match rustix::fs::renameat_with(folder, from, folder, to, RenameFlags::NOREPLACE) {
        // The file system or the kernel lacks such a rename.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            match rustix::fs::statat(folder, to, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => rustix::fs::renameat(folder, from, folder, to),
                Ok(_) => Err(Errno::EXIST),
                Err(errno) => Err(errno),
            }
        }
        renamed => renamed,
    }
}

/// Bytes of a name that file systems allow.
const NAME_BYTES: usize = 255;

/// The name that a file has while it is set aside.
fn aside_name(name: &OsStr) -> OsString {
    if ASIDE.len() + name.len() > NAME_BYTES {
        return hashed_aside_name(name);
    }
    let mut aside = OsString::from(ASIDE);
    aside.push(name);
    aside
}

fn hashed_aside_name(name: &OsStr) -> OsString {
    let hash = Sha256::digest(name.as_bytes());
    format!("{ASIDE_HASHED}{}", hex(&hash[..16])).into()
}

/// Whether a name is the name of a file set aside.
pub(crate) fn is_aside(name: &OsStr) -> bool {
    let name = name.as_bytes();
    name.starts_with(ASIDE.as_bytes()) || name.starts_with(ASIDE_HASHED.as_bytes())
}

/// The own name of a file set aside; `None` if only its hash is known.
pub(crate) fn own_name(aside: &OsStr) -> Option<&OsStr> {
    let own = aside.as_bytes().strip_prefix(ASIDE.as_bytes())?;
    (!own.is_empty()).then(|| OsStr::from_bytes(own))
}

/// Puts back a file that an interrupted move set aside from the name of `path`, if there is one. Blocks.
///
/// # Errors
/// `AlreadyExists` if another file has the name now, `WouldBlock` if a process moves the file or has it locked.
pub(crate) fn put_back(path: &FsPath) -> io::Result<Option<PathBuf>> {
    let (folder, name) = parent(path)?;
    for aside in [aside_name(name), hashed_aside_name(name)] {
        match rustix::fs::statat(&folder, &aside, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => {}
            Err(Errno::NOENT | Errno::NAMETOOLONG) => continue,
            Err(errno) => return Err(errno.into()),
        }
        let file = open(&folder, &aside);
        if let Some(Err(TryLockError::WouldBlock)) = file.as_ref().map(File::try_lock) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        rename_exclusive((&folder, &aside), (&folder, name))?;
        return Ok(Some(path.with_file_name(aside)));
    }
    Ok(None)
}

/// Opens a regular file to lock it; `None` if that is not possible, as for a symbolic link.
fn open(folder: &OwnedFd, name: &OsStr) -> Option<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(folder, name, flags, Mode::empty()).ok()?;
    Some(File::from(file))
}

/// Opens the folder of a file, which stays the same when a link on its path is changed.
fn parent(path: &FsPath) -> io::Result<(OwnedFd, &OsStr)> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    #[cfg(target_os = "linux")]
    let access = OFlags::PATH;
    #[cfg(not(target_os = "linux"))]
    let access = OFlags::RDONLY;
    let flags = access | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(folder.unwrap_or(FsPath::new(".")), flags, Mode::empty())?;
    Ok((folder, name))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::sync::Barrier;

    use bywash::origin::folder::FolderStore;
    use bywash::{Consistency, Engine, OriginUrl};

    use super::*;

    fn version(path: &FsPath) -> FileVersion {
        FileVersion::at(path, FileIdentity::from(&path.metadata().unwrap())).unwrap()
    }

    fn names(folder: &FsPath) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// Another program puts a new file in the place at some moment of the deletion.
    #[test]
    fn file_put_in_the_place_during_the_deletion_is_never_deleted() {
        let home = tempfile::tempdir().unwrap();
        let (path, beside) = (home.path().join("file"), home.path().join("beside"));
        let mut removed = 0;
        for round in 0..2000 {
            std::fs::write(&path, "old").unwrap();
            std::fs::write(&beside, "new").unwrap();
            let (read, start) = (version(&path), Barrier::new(2));
            let outcome = std::thread::scope(|threads| {
                threads.spawn(|| {
                    start.wait();
                    for _ in 0..round % 400 {
                        std::hint::spin_loop();
                    }
                    std::fs::rename(&beside, &path).unwrap();
                });
                start.wait();
                remove_if_same(&path, &read).unwrap()
            });
            let left = names(home.path());
            assert_eq!(left, ["file"], "{round}: {outcome:?}");
            assert_eq!(
                std::fs::read(&path).unwrap(),
                b"new",
                "{round}: {outcome:?}"
            );
            removed += u32::from(outcome == Outcome::Removed);
        }
        assert!(removed > 0, "the other program was first in each round");
    }

    #[test]
    fn changed_files_and_leftovers_are_kept() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("file");
        std::fs::write(&path, "old").unwrap();
        let read = version(&path);
        std::fs::write(&path, "other").unwrap();
        assert_eq!(remove_if_same(&path, &read).unwrap(), Outcome::Changed);
        assert_eq!(std::fs::read(&path).unwrap(), b"other");
        // A leftover has the name that the file would get.
        let aside = path.with_file_name(aside_name("file".as_ref()));
        std::fs::write(&aside, "left").unwrap();
        let outcome = remove_if_same(&path, &version(&path)).unwrap();
        assert_eq!(outcome, Outcome::Taken(aside_name("file".as_ref())));
        assert_eq!(std::fs::read(&aside).unwrap(), b"left");
        assert_eq!(
            put_back(&path).unwrap_err().kind(),
            io::ErrorKind::AlreadyExists
        );
        std::fs::remove_file(&path).unwrap();
        assert_eq!(put_back(&path).unwrap(), Some(aside));
        assert_eq!(std::fs::read(&path).unwrap(), b"left");
        assert_eq!(put_back(&path).unwrap(), None);
        assert_eq!(
            remove_if_same(&path, &version(&path)).unwrap(),
            Outcome::Removed
        );
        assert_eq!(names(home.path()), [""; 0]);
    }

    #[test]
    fn names_set_aside_are_found_again() {
        let long = "n".repeat(NAME_BYTES);
        for (name, own) in [
            ("a", Some("a")),
            (&long[..244], Some(&long[..244])),
            (&long, None),
        ] {
            let aside = aside_name(name.as_ref());
            assert!(is_aside(&aside) && aside.len() <= NAME_BYTES, "{name}");
            assert!(FolderStore::is_own_name(aside.to_str().unwrap()), "{name}");
            assert_eq!(own_name(&aside), own.map(OsStr::new), "{name}");
        }
        assert!(!is_aside("file".as_ref()) && !is_aside(".bywash-cp-1".as_ref()));
    }

    #[tokio::test]
    async fn object_that_was_replaced_is_not_deleted() {
        let engine = Engine::builder().memory(64 << 20).build().unwrap();
        let origin = OriginUrl::Memory.open().unwrap();
        let bucket = engine
            .mount("objects", origin, Consistency::Immutable)
            .unwrap();
        let path = Path::from("key");
        bucket.put(&path, "old".into()).await.unwrap();
        let read = ObjectVersion::from(&bucket.head(&path).await.unwrap());
        bucket.put(&path, "new".into()).await.unwrap();
        let failure = remove_object(&bucket, &path, "key", &read)
            .await
            .unwrap_err();
        assert!(
            failure.message.contains("changed while it was copied"),
            "{failure:?}"
        );
        let now = ObjectVersion::from(&bucket.head(&path).await.unwrap());
        remove_object(&bucket, &path, "key", &now).await.unwrap();
        assert!(bucket.head(&path).await.is_err());
    }
}
