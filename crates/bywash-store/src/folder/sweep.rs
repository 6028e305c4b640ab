//! Removal of staged files of dead writers, while stores are open.
//!
//! A writer holds a lock (`flock`) on each file and folder it stages, or on the data of a transient session, so a file
//! without one is a leftover. One thread of the process checks the staging folders of all open stores.

use std::collections::VecDeque;
use std::fs::{File, TryLockError};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::names::STAGING;
use super::root::{EntryKind, Root};
use super::session::DATA;
use super::stage::remove_flat_folder;
use crate::limits::{MAX_FOLDERS_SWEPT, MAX_LEFTOVERS_SWEPT};

/// Time between two rounds of the sweep.
const PERIOD: Duration = Duration::from_secs(10);
/// Minimum age of a staged file to be checked. Protects short writes of machines that share the folder but not its
/// locks.
const GRACE: Duration = Duration::from_secs(10);
/// Age at which a staged file is removed on file systems without locks. A day, because another process may be writing
/// a slow part.
const AGE_WITHOUT_LOCKS: Duration = Duration::from_hours(24);

static SWEEPER: Mutex<Sweeper> = Mutex::new(Sweeper {
    stores: VecDeque::new(),
    running: false,
});

/// The open stores, in the order in which they are swept next.
#[derive(Debug)]
struct Sweeper {
    stores: VecDeque<Weak<Root>>,
    running: bool,
}

impl Sweeper {
    /// Returns the stores of the next round, and moves them to the end. Drops closed ones.
    fn round(&mut self) -> Vec<Weak<Root>> {
        self.stores.retain(|store| store.strong_count() > 0);
        let count = self.stores.len().min(MAX_FOLDERS_SWEPT);
        let round: Vec<_> = self.stores.iter().take(count).cloned().collect();
        self.stores.rotate_left(count);
        round
    }
}

/// Sweeps the staging folder of `store` soon, and then in each round, until the store is closed.
pub(super) fn register(store: &Arc<Root>) {
    let mut sweeper = SWEEPER.lock();
    sweeper.stores.push_front(Arc::downgrade(store));
    if !sweeper.running {
        let thread = std::thread::Builder::new().name("bywash-sweep".to_owned());
        // Without a thread leftovers take space until the next store is opened.
        sweeper.running = thread.spawn(run).is_ok();
    }
}

/// Sweeps round by round; ends when no store is open.
fn run() {
    loop {
        let round = {
            let mut sweeper = SWEEPER.lock();
            let round = sweeper.round();
            sweeper.running = !round.is_empty();
            round
        };
        if round.is_empty() {
            return;
        }
        for store in round {
            if let Some(store) = store.upgrade() {
                sweep(&store, GRACE);
            }
        }
        std::thread::park_timeout(PERIOD);
    }
}

/// Removes up to [`MAX_LEFTOVERS_SWEPT`] leftovers older than `grace`, and returns their number. Failures are left
/// for the next round.
fn sweep(root: &Root, grace: Duration) -> usize {
    let Ok(staging) = root.open_folder(STAGING) else {
        return 0;
    };
    let mut old = Vec::new();
    let listed = root.read_folder(STAGING, |name, kind| {
        if age(&staging, name).is_some_and(|age| age >= grace) {
            old.push((name.to_owned(), kind));
        }
        old.len() < MAX_LEFTOVERS_SWEPT
    });
    if let Err(errno) = listed {
        tracing::debug!(folder = %root.path().display(), %errno, "staging folder not swept");
    }
    let mut swept = 0;
    for (name, kind) in old {
        match remove(root, &staging, &name, kind) {
            Ok(true) => swept += 1,
            Ok(false) => {}
            Err(errno) => {
                tracing::debug!(folder = %root.path().display(), name, %errno, "leftover not swept");
            }
        }
    }
    if swept > 0 {
        tracing::info!(folder = %root.path().display(), swept, "removed staged files of dead writers");
    }
    swept
}

/// Removes a staged file or folder, unless its writer may be alive.
fn remove(root: &Root, staging: &OwnedFd, name: &str, kind: EntryKind) -> Result<bool, Errno> {
    let flags = match kind {
        EntryKind::File => OFlags::RDWR,
        EntryKind::Folder => OFlags::RDONLY | OFlags::DIRECTORY,
    };
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(staging, name, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(false),
        opened => File::from(opened?),
    };
    let dead = match file.try_lock() {
        Ok(()) => true,
        Err(TryLockError::WouldBlock) => false,
        Err(TryLockError::Error(_)) => {
            age(staging, name).is_some_and(|age| age >= AGE_WITHOUT_LOCKS)
        }
    };
    if !dead || (kind == EntryKind::Folder && has_locked_data(&file)) {
        return Ok(false);
    }
    // The lock is held until the name is removed: a writer that has just created the file detects it.
    match kind {
        EntryKind::File => rustix::fs::unlinkat(staging, name, AtFlags::empty())?,
        EntryKind::Folder => remove_flat_folder(root, STAGING, name)?,
    }
    Ok(true)
}

/// Returns whether a folder is a session with a live writer.
fn has_locked_data(folder: &File) -> bool {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let data = rustix::fs::openat(folder, DATA, flags, Mode::empty());
    data.is_ok_and(|data| {
        let locked = File::from(data).try_lock();
        matches!(locked, Err(TryLockError::WouldBlock))
    })
}

/// Returns the time since the last change of a staged file; `None` if that is in the future. Uses the ctime, which a
/// rename into the staging folder sets.
fn age(staging: impl AsFd, name: &str) -> Option<Duration> {
    let stat = rustix::fs::statat(staging, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    let seconds = Duration::from_secs(u64::try_from(stat.st_ctime).ok()?);
    (SystemTime::UNIX_EPOCH + seconds).elapsed().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::folder::stage::Staged;
    use crate::staged_file::hold;

    fn root() -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::open(dir.path().to_owned()).unwrap();
        root.make_folder(STAGING).unwrap();
        (dir, root)
    }

    fn names(root: &Root) -> Vec<String> {
        let mut names = Vec::new();
        let listed = root.read_folder(STAGING, |name, _| {
            names.push(name.to_owned());
            true
        });
        listed.unwrap();
        names.sort();
        names
    }

    #[test]
    fn removes_unlocked_files_and_keeps_locked_ones() {
        let (dir, root) = root();
        let staging = dir.path().join(STAGING);
        let mut live = Staged::create(&root).unwrap();
        live.write([vec![1; 10].into()]).unwrap();
        std::fs::write(staging.join("dead"), "dead").unwrap();
        for folder in ["dead-upload", "live-upload"] {
            std::fs::create_dir(staging.join(folder)).unwrap();
            std::fs::write(staging.join(folder).join("manifest.json"), "{}").unwrap();
        }
        let held = File::open(staging.join("live-upload")).unwrap();
        assert!(hold(&held).unwrap());

        assert_eq!(sweep(&root, GRACE), 0, "what is young is left");
        assert_eq!(sweep(&root, Duration::ZERO), 2);
        assert_eq!(names(&root).len(), 2);
        assert!(staging.join("live-upload/manifest.json").exists());
        // The writer continues, and its file becomes an object.
        live.finish().unwrap();
        let folder = root.open_folder("").unwrap();
        live.place(&folder, "object", true).unwrap();
        drop(held);
        assert_eq!(sweep(&root, Duration::ZERO), 1);
        assert_eq!(names(&root), [""; 0]);
        assert_eq!(std::fs::read(dir.path().join("object")).unwrap(), [1; 10]);
    }

    #[test]
    fn file_swept_between_creation_and_lock_is_detected() {
        let (dir, root) = root();
        let path = dir.path().join(STAGING).join("new");
        let file = File::create(&path).unwrap();
        assert_eq!(sweep(&root, Duration::ZERO), 1);
        assert!(!hold(&file).unwrap());
    }

    #[test]
    fn leftovers_beyond_the_limit_are_removed_in_the_next_round() {
        let (dir, root) = root();
        for n in 0..=MAX_LEFTOVERS_SWEPT {
            File::create(dir.path().join(STAGING).join(n.to_string())).unwrap();
        }
        assert_eq!(sweep(&root, Duration::ZERO), MAX_LEFTOVERS_SWEPT);
        assert_eq!(sweep(&root, Duration::ZERO), 1);
    }

    #[test]
    fn stores_beyond_the_limit_are_swept_in_turn() {
        let (_dir, root) = root();
        let path = root.path().to_owned();
        let store = || Arc::new(Root::open(path.clone()).unwrap());
        let mut stores: Vec<_> = (0..=MAX_FOLDERS_SWEPT).map(|_| store()).collect();
        let mut sweeper = Sweeper {
            stores: stores.iter().map(Arc::downgrade).collect(),
            running: false,
        };
        let first = sweeper.round();
        assert_eq!(first.len(), MAX_FOLDERS_SWEPT);
        let second = sweeper.round();
        let last = Arc::downgrade(&stores[MAX_FOLDERS_SWEPT]);
        assert!(!first.iter().any(|store| store.ptr_eq(&last)));
        assert!(second[0].ptr_eq(&last));
        stores.truncate(1);
        assert_eq!(sweeper.round().len(), 1, "closed stores are forgotten");
    }
}
