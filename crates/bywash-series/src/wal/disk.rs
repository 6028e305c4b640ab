//! The folder of a log and its file operations.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FallocateFlags;

use super::segment::path_of;
use super::{Segment, log_error};
use crate::SeriesError;

/// File locked while a database has the log open. Its lines are ids of the writers that used the log last.
const LOCK: &str = "lock";

/// Hexadecimal digits of the id of a writer.
const WRITER_DIGITS: usize = 32;

/// Creates log files. Tests substitute one that fails.
pub(crate) trait LogStorage: Send + Sync + std::fmt::Debug {
    /// Creates a file durably, preallocated with zeros if the file system supports that.
    fn create(&self, path: &Path, bytes: u64) -> io::Result<Box<dyn LogFile>>;
}

/// A log file open for writing.
pub(crate) trait LogFile: Send + std::fmt::Debug {
    /// Writes all bytes.
    fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Returns when all written bytes are on disk.
    fn sync(&self) -> io::Result<()>;
}

/// The file system.
#[derive(Debug)]
pub(crate) struct FileSystemStorage;

impl LogStorage for FileSystemStorage {
    fn create(&self, path: &Path, bytes: u64) -> io::Result<Box<dyn LogFile>> {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        // With blocks allocated and size set, syncing data alone is sufficient. A full disk fails here.
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

/// The folder of a log, locked while this exists.
#[derive(Debug)]
pub(crate) struct LogFolder {
    pub(crate) path: PathBuf,
    pub(crate) disk: Box<dyn LogStorage>,
    /// Whether the store may differ from the store of an older build's log.
    pub(crate) shared_store: bool,
    /// Dropping it releases the lock.
    lock: File,
}

impl LogFolder {
    /// Creates the folder if missing, accessible to its owner only, and locks it.
    pub(crate) fn open(path: PathBuf, disk: Box<dyn LogStorage>) -> Result<Self, SeriesError> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&path);
        made.map_err(log_error("make", &path))?;
        let lock = path.join(LOCK);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&lock)
            .map_err(log_error("open", &lock))?;
        match file.try_lock() {
            Ok(()) => Ok(Self {
                path,
                disk,
                shared_store: false,
                lock: file,
            }),
            Err(TryLockError::WouldBlock) => Err(SeriesError::Locked { path }),
            Err(TryLockError::Error(error)) => Err(log_error("lock", &lock)(error)),
        }
    }

    /// Returns the ids of the writers that used the log last, as manifests name them; none of a new log.
    pub(crate) fn writers(&self) -> Result<Vec<String>, SeriesError> {
        let mut bytes = [0; 2 * (WRITER_DIGITS + 1)];
        let length = self.lock.read_at(&mut bytes, 0);
        let length = length.map_err(log_error("read", &self.path.join(LOCK)))?;
        let is_writer = |line: &&str| {
            let digits = line.bytes().filter(u8::is_ascii_hexdigit).count();
            line.len() == WRITER_DIGITS && digits == WRITER_DIGITS
        };
        let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
        Ok(text.lines().filter(is_writer).map(str::to_owned).collect())
    }

    /// Records durably that `writer` uses the log from now on, and `before` used it last. Both stay: a crash may keep the
    /// manifest from naming the new one.
    ///
    /// In place: the open of a log must not need space on a full disk.
    pub(crate) fn record_writer(
        &self,
        before: Option<&str>,
        writer: &str,
    ) -> Result<(), SeriesError> {
        let lines: String = [before, Some(writer)]
            .into_iter()
            .flatten()
            .map(|writer| format!("{writer}\n"))
            .collect();
        let record = || {
            self.lock.write_all_at(lines.as_bytes(), 0)?;
            self.lock.set_len(lines.len() as u64)?;
            self.lock.sync_all()
        };
        record().map_err(log_error("write", &self.path.join(LOCK)))
    }

    /// Truncates a segment durably, to remove a torn end.
    pub(crate) fn cut(&self, path: &Path, bytes: u64) -> Result<(), SeriesError> {
        let cut = || {
            let file = OpenOptions::new().write(true).open(path)?;
            file.set_len(bytes)?;
            file.sync_all()
        };
        cut().map_err(log_error("cut", path))
    }

    /// Deletes obsolete segments. Damaged ones are renamed instead.
    pub(crate) fn delete_segments(&self, segments: &[Segment]) -> Result<(), SeriesError> {
        if segments.is_empty() {
            return Ok(());
        }
        for segment in segments {
            let path = path_of(&self.path, segment.number);
            let removed = if segment.damaged {
                fs::rename(&path, path.with_extension("damaged"))
            } else {
                fs::remove_file(&path)
            };
            match removed {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(log_error("remove", &path)(error));
                }
                _ => {}
            }
        }
        sync_folder(&self.path).map_err(log_error("sync", &self.path))
    }
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}
