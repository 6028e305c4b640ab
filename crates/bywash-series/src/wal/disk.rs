//! The folder of a log, and the one door to its files.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FallocateFlags;

use super::segment::path_of;
use super::{Segment, io_error};
use crate::SeriesError;

/// Held locked by who has the database open.
const LOCK: &str = "lock";

/// Makes the files that a log writes to. Tests put one in between that fails.
pub(crate) trait Disk: Send + Sync + std::fmt::Debug {
    /// Makes a file, of so many bytes of zeros as far as the file system can, durably in its folder.
    fn create(&self, path: &Path, bytes: u64) -> io::Result<Box<dyn LogFile>>;
}

/// A file that a log writes to.
pub(crate) trait LogFile: Send + std::fmt::Debug {
    /// Writes all of it.
    fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Returns when what was written is on disk.
    fn sync(&self) -> io::Result<()>;
}

/// The file system.
#[derive(Debug)]
pub(crate) struct Files;

impl Disk for Files {
    fn create(&self, path: &Path, bytes: u64) -> io::Result<Box<dyn LogFile>> {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        // With its blocks taken and its size set, a sync of data alone is enough. A full disk says so here.
        match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes) {
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => {}
            Err(error) => return Err(error.into()),
        }
        file.sync_all()?;
        if let Some(folder) = path.parent() {
            sync_folder(folder)?;
        }
        Ok(Box::new(file))
    }
}

impl LogFile for File {
    fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}

/// A log's folder, locked for as long as this lives.
#[derive(Debug)]
pub(crate) struct Folder {
    pub(crate) path: PathBuf,
    pub(crate) disk: Box<dyn Disk>,
    /// The lock goes with it.
    _lock: File,
}

impl Folder {
    /// Makes the folder if it is missing, readable to its owner only, and locks it.
    pub(crate) fn open(path: PathBuf, disk: Box<dyn Disk>) -> Result<Self, SeriesError> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&path);
        made.map_err(io_error("make", &path))?;
        let lock = path.join(LOCK);
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&lock)
            .map_err(io_error("open", &lock))?;
        match file.try_lock() {
            Ok(()) => Ok(Self {
                path,
                disk,
                _lock: file,
            }),
            Err(TryLockError::WouldBlock) => Err(SeriesError::Locked { path }),
            Err(TryLockError::Error(error)) => Err(io_error("lock", &lock)(error)),
        }
    }

    /// Cuts what a crash tore off, durably.
    pub(crate) fn cut(&self, path: &Path, bytes: u64) -> Result<(), SeriesError> {
        let cut = || {
            let file = OpenOptions::new().write(true).open(path)?;
            file.set_len(bytes)?;
            file.sync_all()
        };
        cut().map_err(io_error("cut", path))
    }

    /// Removes files that nobody needs; damaged ones are put aside.
    pub(crate) fn drop_segments(&self, segments: &[Segment]) -> Result<(), SeriesError> {
        if segments.is_empty() {
            return Ok(());
        }
        for segment in segments {
            let path = path_of(&self.path, segment.number);
            let gone = if segment.damaged {
                fs::rename(&path, path.with_extension("damaged"))
            } else {
                fs::remove_file(&path)
            };
            match gone {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(io_error("remove", &path)(error));
                }
                _ => {}
            }
        }
        sync_folder(&self.path).map_err(io_error("sync", &self.path))
    }
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}
