//! Descriptors of served folders: few are open at once, however many folders are served.
//!
//! A folder that was not used for long is closed, and reopened by its path when needed. It must still be the folder
//! opened first; another folder of that name is not served in its place.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::identity::Identity;
use crate::limits::MAX_OPEN_FOLDERS;

pub(super) const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);

/// Open folders of the process, in the order in which they are considered for closing.
static OPEN: Mutex<VecDeque<Weak<FolderFd>>> = Mutex::new(VecDeque::new());

#[derive(Debug)]
struct FolderFd {
    fd: Mutex<Option<Arc<OwnedFd>>>,
    /// Whether it was used since the last check. A hint, hence relaxed.
    used: AtomicBool,
}

/// A folder of one identity, opened when needed.
#[derive(Debug)]
pub(super) struct Handle {
    path: PathBuf,
    /// Device and inode.
    node: (u64, u64),
    slot: Arc<FolderFd>,
}

impl Handle {
    pub(super) fn open(path: PathBuf) -> Result<Self, Errno> {
        let fd = rustix::fs::open(&path, FOLDER, Mode::empty())?;
        let handle = Self {
            path,
            node: node_of(&fd)?,
            slot: Arc::new(FolderFd {
                fd: Mutex::new(Some(Arc::new(fd))),
                used: AtomicBool::new(true),
            }),
        };
        opened(&handle.slot);
        Ok(handle)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn node(&self) -> (u64, u64) {
        self.node
    }

    /// The open descriptor, which stays open while the caller holds it.
    ///
    /// # Errors
    /// `STALE` if it had to be reopened and the path now names another folder; errors of opening.
    pub(super) fn fd(&self) -> Result<Arc<OwnedFd>, Errno> {
        let mut slot = self.slot.fd.lock();
        self.slot.used.store(true, Relaxed);
        if let Some(fd) = &*slot {
            return Ok(Arc::clone(fd));
        }
        let fd = rustix::fs::open(&self.path, FOLDER, Mode::empty())?;
        if node_of(&fd)? != self.node {
            return Err(Errno::STALE);
        }
        let fd = Arc::new(fd);
        *slot = Some(Arc::clone(&fd));
        drop(slot);
        opened(&self.slot);
        Ok(fd)
    }
}

fn node_of(fd: &OwnedFd) -> Result<(u64, u64), Errno> {
    Ok(Identity::of(&rustix::fs::fstat(fd)?).node())
}

/// Registers an opened folder, and closes others while there are too many. A folder used since the last check is
/// skipped once.
fn opened(slot: &Arc<FolderFd>) {
    let mut open = OPEN.lock();
    open.push_back(Arc::downgrade(slot));
    for _ in 0..2 * open.len() {
        if open.len() <= MAX_OPEN_FOLDERS {
            return;
        }
        let Some(oldest) = open.pop_front() else {
            return;
        };
        let Some(slot) = oldest.upgrade() else {
            continue;
        };
        // If the lock is taken, its descriptor is being requested.
        let unused = !slot.used.swap(false, Relaxed);
        match slot.fd.try_lock() {
            Some(mut fd) if unused => drop(fd.take()),
            _ => open.push_back(oldest),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn is_open(handle: &Handle) -> bool {
        handle.slot.fd.lock().is_some()
    }

    #[test]
    fn folders_past_the_limit_are_closed_and_opened_again() {
        let root = tempfile::tempdir().unwrap();
        let handles: Vec<_> = (0..3 * MAX_OPEN_FOLDERS)
            .map(|number| {
                let path = root.path().join(number.to_string());
                std::fs::create_dir(&path).unwrap();
                std::fs::write(path.join("file"), number.to_string()).unwrap();
                Handle::open(path).unwrap()
            })
            .collect();
        let open = || handles.iter().filter(|handle| is_open(handle)).count();
        assert!(open() <= MAX_OPEN_FOLDERS, "{}", open());
        for handle in &handles {
            let fd = handle.fd().unwrap();
            assert_eq!(node_of(&fd).unwrap(), handle.node());
        }
        assert!(open() <= MAX_OPEN_FOLDERS, "{}", open());
    }

    #[test]
    fn another_folder_of_the_same_name_is_not_served() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("bucket");
        std::fs::create_dir(&path).unwrap();
        let handle = Handle::open(path.clone()).unwrap();
        std::fs::rename(&path, root.path().join("moved")).unwrap();
        std::fs::create_dir(&path).unwrap();
        // While open, the handle stays at the folder that was opened.
        handle.fd().unwrap();
        *handle.slot.fd.lock() = None;
        assert_eq!(handle.fd().unwrap_err(), Errno::STALE);
        std::fs::remove_dir(&path).unwrap();
        std::fs::rename(root.path().join("moved"), &path).unwrap();
        assert_eq!(node_of(&handle.fd().unwrap()).unwrap(), handle.node());
    }
}
