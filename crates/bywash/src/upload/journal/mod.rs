//! The journal: one file an open upload, so that another process can go on with it.
//!
//! A file is written whole under a name of its own, synced and renamed before the session carries a byte; then a record is
//! appended and synced at each acknowledgement, while the next chunk is already on its way. A crash may tear the last record,
//! which is cut; whatever else does not match its checksum is an error, and the file stays.
//!
//! Who works on an upload holds its file locked (`flock`), so that nobody else takes it, and the lock goes with the process.
//! Files hold session tokens, which may be bearer capabilities: they are readable to their owner only, and no message or
//! `Debug` shows one.
//!
//! Everything here blocks on the file system.

mod record;
mod state;
#[cfg(test)]
mod tests;

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path as FsPath, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use self::record::Kind;
use self::state::{Fault, State};

pub(super) use self::state::StoredMode;
pub use self::state::{Beyond, Header, Progress, SourceIdentity, Whole};

/// Ends the name of an upload's file; what stands before it is the upload's id.
const SUFFIX: &str = ".upload";
/// Ends the name of a file that is not whole yet.
const STAGED_SUFFIX: &str = ".new";
/// Owner only: files hold session tokens.
const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;
/// How often a lock is tried while others look at the file; each holds it for an instant.
const LOOKS: usize = 1000;

/// What can go wrong with the journal, grouped by what the caller can do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The file system failed.
    #[error("cannot {operation} the journal {}: {source}", path.display())]
    Io {
        /// What was being done.
        operation: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Bytes of a file that no crash leaves behind. Nothing was removed; the upload can only be begun again.
    #[error(
        "the journal {} is damaged at byte {offset}: {detail}; nothing was removed; upload the object again, then delete the file",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where.
        offset: usize,
        /// What is wrong there.
        detail: &'static str,
    },
    /// A newer version of this program wrote the file.
    #[error(
        "the journal {} has format {version}, and this program reads up to {}; go on with a newer program",
        path.display(),
        record::VERSION
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// No upload has this id.
    #[error("no upload {id:?} is in the journal; see which are: bywash uploads list")]
    Unknown {
        /// The id.
        id: String,
    },
    /// Someone works on the upload now.
    #[error("upload {id} is still being worked on{}; let it end, or end it first", by(*process))]
    Busy {
        /// The id.
        id: String,
        /// The process, if the file says it.
        process: Option<u32>,
    },
    /// The upload cannot be described in a journal.
    #[error("the upload of {url} cannot be journaled: {detail}")]
    Unfit {
        /// The object.
        url: String,
        /// Why.
        detail: String,
    },
}

fn by(process: Option<u32>) -> String {
    process.map_or_else(String::new, |process| format!(" by process {process}"))
}

type Result<T, E = JournalError> = std::result::Result<T, E>;

/// The folder of all open uploads of one data folder. Many processes may share it.
#[derive(Debug, Clone)]
pub struct Journal {
    folder: PathBuf,
}

/// One upload in the journal, as seen without taking it.
#[derive(Debug)]
pub struct Listed {
    /// Names it.
    pub id: String,
    /// What its file says, or why it does not.
    pub content: Result<Content>,
    /// Someone works on it now.
    pub alive: bool,
    /// When it was last written to.
    pub modified: SystemTime,
}

/// What the file of an upload says.
#[derive(Debug, Clone)]
pub struct Content {
    /// What was known when it began.
    pub header: Header,
    /// How far it was when last heard of.
    pub progress: Progress,
    /// Set once its end was asked for.
    pub whole: Option<Whole>,
    /// The process that works on it, or did last.
    pub process: u32,
}

impl Journal {
    /// The journal in `folder`, which is made (and what lies above) when the first upload is written down. Does nothing yet.
    #[must_use]
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
        }
    }

    /// Makes the folder if it is missing, closes it to others, and removes what crashes left half-made.
    fn make(&self) -> Result<()> {
        let made = DirBuilder::new()
            .recursive(true)
            .mode(FOLDER_MODE)
            .create(&self.folder)
            .and_then(|()| {
                fs::set_permissions(&self.folder, fs::Permissions::from_mode(FOLDER_MODE))
            });
        made.map_err(io_error("open", &self.folder))?;
        self.remove_half_made()
    }

    /// Where the files are.
    #[must_use]
    pub fn folder(&self) -> &FsPath {
        &self.folder
    }

    /// Writes an upload down, durably. Whoever holds the entry works on the upload.
    ///
    /// # Errors
    /// [`JournalError::Io`] (a full disk too), [`JournalError::Unfit`].
    pub fn create(&self, header: &Header) -> Result<Entry> {
        self.make()?;
        let process = std::process::id();
        let unfit = |detail| JournalError::Unfit {
            url: header.url.clone(),
            detail,
        };
        let json = state::header_json(header, process).map_err(unfit)?;
        let mut bytes = record::MAGIC.to_vec();
        bytes.extend_from_slice(&record::VERSION.to_le_bytes());
        let position = bytes.len() as u64;
        if !record::encode(&mut bytes, position, Kind::Header, |out| {
            out.extend_from_slice(&json);
        }) {
            return Err(unfit("its headers are too long".to_owned()));
        }
        loop {
            let id = new_id();
            let path = self.file(&id);
            let staged = self.folder.join(format!("{id}{STAGED_SUFFIX}"));
            match write_new(&staged, &path, &bytes) {
                Ok(file) => {
                    let entry = Entry {
                        id,
                        path,
                        file,
                        header: header.clone(),
                        progress: Progress::default(),
                        whole: None,
                        length: bytes.len() as u64,
                        record: Vec::new(),
                        failed: false,
                    };
                    sync_folder(&self.folder).map_err(io_error("sync", &self.folder))?;
                    return Ok(entry);
                }
                // Another process took the name, or swept the file before it was locked.
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::AlreadyExists
                            | io::ErrorKind::NotFound
                            | io::ErrorKind::WouldBlock
                    ) && self.folder.is_dir() => {}
                Err(error) => {
                    // Half a file is swept when the folder is opened next.
                    let _ = fs::remove_file(&staged);
                    return Err(io_error("write", &staged)(error));
                }
            }
        }
    }

    /// All uploads, in the order they began, whether someone works on them or not. Takes none, and makes no folder.
    ///
    /// # Errors
    /// [`JournalError::Io`] of the folder; troubles of one file are told with it.
    pub fn list(&self) -> Result<Vec<Listed>> {
        let mut listed = Vec::new();
        for id in self.ids(SUFFIX)? {
            let path = self.file(&id);
            let file = match File::open(&path) {
                Ok(file) => file,
                // It ended since the folder was read.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => {
                    listed.push(Listed {
                        id,
                        content: Err(io_error("read", &path)(error)),
                        alive: false,
                        modified: UNIX_EPOCH,
                    });
                    continue;
                }
            };
            let alive = is_locked(&file);
            let content = read(&file, &path).map(Content::from);
            let modified = file.metadata().and_then(|meta| meta.modified());
            listed.push(Listed {
                id,
                content,
                alive,
                modified: modified.unwrap_or(UNIX_EPOCH),
            });
        }
        Ok(listed)
    }

    /// Takes an upload over, if nobody works on it, and cuts a record that a crash tore.
    ///
    /// # Errors
    /// [`JournalError::Unknown`], [`JournalError::Busy`], [`JournalError::Damaged`], [`JournalError::Newer`],
    /// [`JournalError::Io`]. The file is as it was then.
    pub fn take(&self, id: &str) -> Result<Entry> {
        let (path, file) = self.lock(id)?;
        let state = read(&file, &path)?;
        let mut entry = Entry {
            id: id.to_owned(),
            path,
            file,
            header: state.header,
            progress: state.progress,
            whole: state.whole,
            length: state.length as u64,
            record: Vec::new(),
            failed: false,
        };
        entry.cut()?;
        let process = std::process::id();
        entry.append(Kind::Taken, |out| {
            out.extend_from_slice(&process.to_le_bytes());
        })?;
        Ok(entry)
    }

    /// Removes the file of an upload that nobody works on, whatever it says. What the store keeps is not touched.
    ///
    /// # Errors
    /// [`JournalError::Unknown`], [`JournalError::Busy`], [`JournalError::Io`].
    pub fn forget(&self, id: &str) -> Result<()> {
        let (path, _lock) = self.lock(id)?;
        remove(&path)
    }

    fn file(&self, id: &str) -> PathBuf {
        self.folder.join(format!("{id}{SUFFIX}"))
    }

    /// Opens the file of an upload and locks it.
    fn lock(&self, id: &str) -> Result<(PathBuf, File)> {
        let unknown = || JournalError::Unknown { id: id.to_owned() };
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if id.is_empty() || !id.bytes().all(plain) {
            return Err(unknown());
        }
        let path = self.file(id);
        let file = match OpenOptions::new().read(true).write(true).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(unknown()),
            opened => opened.map_err(io_error("open", &path))?,
        };
        if !lock_alone(&file).map_err(io_error("lock", &path))? {
            let process = read(&file, &path).ok().map(|state| state.process);
            return Err(JournalError::Busy {
                id: id.to_owned(),
                process,
            });
        }
        // Whoever had it may have ended it, file and all, before the lock was free.
        if is_still(&file, &path) {
            Ok((path, file))
        } else {
            Err(unknown())
        }
    }

    /// Names of files with this ending, without it, in ascending order.
    fn ids(&self, suffix: &str) -> Result<Vec<String>> {
        let failed = || io_error("list", &self.folder);
        let mut ids = Vec::new();
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(ids),
            entries => entries.map_err(failed())?,
        };
        for entry in entries {
            let name = entry.map_err(failed())?.file_name();
            if let Some(id) = name.to_str().and_then(|name| name.strip_suffix(suffix)) {
                ids.push(id.to_owned());
            }
        }
        ids.sort_unstable();
        Ok(ids)
    }

    fn remove_half_made(&self) -> Result<()> {
        for id in self.ids(STAGED_SUFFIX)? {
            let path = self.folder.join(format!("{id}{STAGED_SUFFIX}"));
            // Locked while it is written; renamed or removed by its writer meanwhile is fine too.
            let Ok(file) = File::open(&path) else {
                continue;
            };
            if file.try_lock().is_ok() && is_still(&file, &path) {
                let _ = fs::remove_file(&path);
            }
        }
        Ok(())
    }
}

/// An upload's file, locked until this is dropped. Dropping it ends nothing: the file stays.
#[derive(Debug)]
pub struct Entry {
    id: String,
    path: PathBuf,
    file: File,
    header: Header,
    progress: Progress,
    whole: Option<Whole>,
    /// Bytes of the file that are whole records.
    length: u64,
    /// Room for the next record, reused.
    record: Vec<u8>,
    /// A write failed and could not be taken back, so nothing can stand behind it.
    failed: bool,
}

impl Entry {
    /// Names the upload.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// What was known when it began.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// What was written last.
    #[must_use]
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// The object's length and checksum, once its end was asked for.
    #[must_use]
    pub fn whole(&self) -> Option<Whole> {
        self.whole
    }

    /// Writes down, durably, what the store keeps. Allocates nothing once its buffer has the size.
    ///
    /// # Errors
    /// [`JournalError::Io`]; what was written before stands.
    pub fn acknowledged(&mut self, progress: &Progress) -> Result<()> {
        self.append(Kind::Acknowledged, |out| {
            state::write_progress(progress, out);
        })?;
        self.progress.offset = progress.offset;
        self.progress.crc32c = progress.crc32c;
        self.progress.beyond.clear();
        self.progress.beyond.extend_from_slice(&progress.beyond);
        Ok(())
    }

    /// Writes down, durably, what the object will be, before its end is asked for.
    ///
    /// # Errors
    /// [`JournalError::Io`]; what was written before stands.
    pub fn finishing(&mut self, whole: Whole) -> Result<()> {
        self.append(Kind::Finishing, |out| state::write_whole(&whole, out))?;
        self.whole = Some(whole);
        Ok(())
    }

    /// Ends the upload in the journal: its file is gone, durably.
    ///
    /// # Errors
    /// [`JournalError::Io`].
    pub fn remove(self) -> Result<()> {
        remove(&self.path)
    }

    fn append(&mut self, kind: Kind, body: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        if self.failed {
            let source = io::Error::other("an earlier write failed and could not be taken back");
            return Err(io_error("write", &self.path)(source));
        }
        self.record.clear();
        if !record::encode(&mut self.record, self.length, kind, body) {
            let source = io::Error::other("too many chunks are acknowledged above a gap");
            return Err(io_error("write", &self.path)(source));
        }
        let written = (&self.file)
            .write_all(&self.record)
            .and_then(|()| self.file.sync_data());
        if let Err(source) = written {
            // The next record must not stand behind half of this one.
            self.failed = self.cut().is_err();
            return Err(io_error("write", &self.path)(source));
        }
        self.length += self.record.len() as u64;
        Ok(())
    }

    /// Cuts what stands behind the last whole record, and goes on writing there.
    fn cut(&mut self) -> Result<()> {
        let cut = self
            .file
            .set_len(self.length)
            .and_then(|()| self.file.seek(SeekFrom::Start(self.length)))
            .and_then(|_| self.file.sync_data());
        cut.map_err(io_error("cut", &self.path))
    }
}

impl From<State> for Content {
    fn from(state: State) -> Self {
        Self {
            header: state.header,
            progress: state.progress,
            whole: state.whole,
            process: state.process,
        }
    }
}

fn io_error(operation: &'static str, path: &FsPath) -> impl Fn(io::Error) -> JournalError + use<> {
    let path = path.to_owned();
    move |source| JournalError::Io {
        operation,
        path: path.clone(),
        source,
    }
}

/// Ids sort in the order uploads began.
fn new_id() -> String {
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    format!("{seconds:08x}-{:08x}", rand::random::<u32>())
}

/// Writes a file, locked, under `staged`, and renames it to `path`, which must be free, when it is on disk.
fn write_new(staged: &FsPath, path: &FsPath, bytes: &[u8]) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(FILE_MODE)
        .open(staged)?;
    file.try_lock()?;
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

/// Whether someone works on the file.
fn is_locked(file: &File) -> bool {
    // Shared, so that two who look do not take each other for workers; and given back at once.
    match file.try_lock_shared() {
        Ok(()) => {
            let _ = file.unlock();
            false
        }
        Err(error) => matches!(error, TryLockError::WouldBlock),
    }
}

/// Locks the file unless someone works on it. Whoever only looks, see [`is_locked`], is waited for.
fn lock_alone(file: &File) -> io::Result<bool> {
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

/// Whether `path` still names the open file.
fn is_still(file: &File, path: &FsPath) -> bool {
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(open), Ok(named)) => (open.dev(), open.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

fn read(file: &File, path: &FsPath) -> Result<State> {
    let mut bytes = Vec::new();
    let mut from_start = file;
    from_start
        .seek(SeekFrom::Start(0))
        .and_then(|_| from_start.read_to_end(&mut bytes))
        .map_err(io_error("read", path))?;
    state::parse(&bytes).map_err(|fault| match fault {
        Fault::Newer(version) => JournalError::Newer {
            path: path.to_owned(),
            version,
        },
        Fault::Damaged { offset, detail } => JournalError::Damaged {
            path: path.to_owned(),
            offset,
            detail,
        },
    })
}

fn remove(path: &FsPath) -> Result<()> {
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

fn sync_folder(folder: &FsPath) -> io::Result<()> {
    File::open(folder)?.sync_all()
}
