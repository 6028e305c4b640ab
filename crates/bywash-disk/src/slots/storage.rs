//! The folder of slot files and its file operations.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use crate::storage::{LOCK, open_locked};
use crate::{DiskError, disk_error};

/// Beginning and end of the name of a slot file; its number stands between.
const NAME: (&str, &str) = ("slots-", ".tmp");

/// Slot files, by number. Tests substitute ones that fail.
pub(crate) trait SlotStorage: Send + Sync + fmt::Debug {
    /// Creates an empty file.
    fn create(&self, number: u32) -> io::Result<Arc<dyn SlotFile>>;
    /// Removes a file, if it exists.
    fn remove(&self, number: u32) -> io::Result<()>;
    /// Returns where a file is, for errors.
    fn path(&self, number: u32) -> PathBuf;
}

/// An open slot file.
pub(crate) trait SlotFile: Send + Sync + fmt::Debug {
    /// Allocates a range on the disk: a full disk fails here, unless the file system allocates only
    /// written ranges.
    fn allocate(&self, offset: u64, bytes: u64) -> io::Result<()>;
    /// Fills the buffer from `offset` on.
    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    /// Writes all bytes from `offset` on.
    fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Gives a range back to the file system. The file keeps its length.
    fn discard(&self, offset: u64, bytes: u64) -> io::Result<()>;
    /// Shortens the file.
    fn truncate(&self, bytes: u64) -> io::Result<()>;
}

/// A folder of slot files, locked while this exists.
#[derive(Debug)]
pub(super) struct SlotFolder {
    path: PathBuf,
    /// Dropping it releases the lock.
    _lock: File,
}

impl SlotFolder {
    /// Creates the folder if it is missing, locks it, and removes files that a killed process left
    /// there.
    ///
    /// # Errors
    /// The folder is in use, has foreign files or belongs to another user; or a file operation failed.
    pub(super) fn open(path: PathBuf) -> Result<Self, DiskError> {
        let lock = open_locked(&path)?;
        let mut left = Vec::new();
        for entry in fs::read_dir(&path).map_err(disk_error("list", &path))? {
            let entry = entry.map_err(disk_error("list", &path))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if is_slot_file(&name) {
                left.push(entry.path());
            } else if name != LOCK {
                return Err(DiskError::ForeignFile { path, name });
            }
        }
        for file in left {
            fs::remove_file(&file).map_err(disk_error("remove", &file))?;
        }
        Ok(Self { path, _lock: lock })
    }
}

/// Returns the outcome of an allocation. A file system that cannot allocate does so when the range
/// is written, which makes the file long enough, too: setting a length that was read before could
/// cut off bytes that another thread has written since.
fn outcome(allocated: Result<(), Errno>) -> io::Result<()> {
    match allocated {
        Err(Errno::OPNOTSUPP) => Ok(()),
        allocated => allocated.map_err(io::Error::from),
    }
}

fn is_slot_file(name: &str) -> bool {
    let number = name.strip_prefix(NAME.0);
    let number = number.and_then(|rest| rest.strip_suffix(NAME.1));
    number.is_some_and(|number| number.parse::<u32>().is_ok())
}

impl SlotStorage for SlotFolder {
    fn create(&self, number: u32) -> io::Result<Arc<dyn SlotFile>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(self.path(number))?;
        Ok(Arc::new(file))
    }

    fn remove(&self, number: u32) -> io::Result<()> {
        match fs::remove_file(self.path(number)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn path(&self, number: u32) -> PathBuf {
        Path::join(&self.path, format!("{}{number}{}", NAME.0, NAME.1))
    }
}

impl SlotFile for File {
    fn allocate(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let allocated = rustix::fs::fallocate(self, FallocateFlags::empty(), offset, bytes);
        outcome(allocated)
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_exact_at(buffer, offset)
    }

    fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn discard(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(self, flags, offset, bytes).map_err(io::Error::from)
    }

    fn truncate(&self, bytes: u64) -> io::Result<()> {
        self.set_len(bytes)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::thread;

    use super::*;

    const SLOT: usize = 4096;

    /// Both threads lengthen the file, one slot after the other.
    #[test]
    fn slots_of_threads_on_a_file_system_that_cannot_allocate_stay() {
        let file = tempfile::tempfile().unwrap();
        thread::scope(|scope| {
            for thread in 0..2 {
                let file = &file;
                scope.spawn(move || {
                    for slot in (thread..20_000).step_by(2) {
                        let offset = (slot * SLOT) as u64;
                        outcome(Err(Errno::OPNOTSUPP)).unwrap();
                        SlotFile::write(file, &[7; SLOT], offset).unwrap();
                    }
                });
            }
        });
        let mut bytes = vec![0; 20_000 * SLOT];
        SlotFile::read(&file, &mut bytes, 0).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 7));
    }
}
