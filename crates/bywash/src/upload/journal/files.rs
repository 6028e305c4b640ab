//! Files of a journal: written atomically, locked by the process that works on them.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path as FsPath;

use super::Result;
use super::error::io_error;

/// Owner only: files hold session tokens.
const FILE_MODE: u32 = 0o600;
/// Attempts to lock a file while other processes inspect it; each holds its lock for an instant.
const LOOKS: usize = 1000;

/// Writes a file under `staged`, locks it, and renames it to `path`, which must be free, once it is on disk.
pub(super) fn write_new(staged: &FsPath, path: &FsPath, bytes: &[u8]) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(FILE_MODE)
        .open(staged)?;
    if !planted!("upload-journal-not-locked") {
        file.try_lock()?;
    }
    (&file).write_all(bytes)?;
    file.sync_all()?;
    if path.try_exists()? {
        fs::remove_file(staged)?;
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    fs::rename(staged, path)?;
    if is_still(&file, path) {
        Ok(file)
    } else {
        Err(io::ErrorKind::NotFound.into())
    }
}

/// Returns whether a process works on the file.
pub(super) fn is_locked(file: &File) -> bool {
    // Shared, so that two inspecting processes do not mistake each other for workers; released at once.
    match file.try_lock_shared() {
        Ok(()) => {
            let _ = file.unlock();
            false
        }
        Err(error) => matches!(error, TryLockError::WouldBlock),
    }
}

/// Locks the file unless a process works on it. Retries while processes only inspect it (see [`is_locked`]).
pub(super) fn lock_alone(file: &File) -> io::Result<bool> {
    for _ in 0..LOOKS {
        match file.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) if is_locked(file) => return Ok(false),
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Ok(false)
}

/// Returns whether `path` still names the open file.
pub(super) fn is_still(file: &File, path: &FsPath) -> bool {
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(open), Ok(named)) => (open.dev(), open.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

pub(super) fn remove(path: &FsPath) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(io_error("remove", path)(error));
        }
        _ => {}
    }
    match path.parent() {
        Some(folder) => sync_folder(folder).map_err(io_error("sync", folder)),
        None => Ok(()),
    }
}

pub(super) fn sync_folder(folder: &FsPath) -> io::Result<()> {
    File::open(folder)?.sync_all()
}
