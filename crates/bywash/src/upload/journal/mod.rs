//! The upload journal: one file per open upload, so that another process can continue it.
//!
//! A file is written under a temporary name, synced and renamed before the session carries a byte. Then each
//! acknowledgement appends a record, synced while the next chunk is being sent. A crash may tear the last record,
//! which is truncated. Any other checksum error is reported, and the file stays.
//!
//! The process that works on an upload holds a lock on its file (`flock`), which is released when the process ends.
//! Files contain session tokens, which may be bearer capabilities: only their owner can read them, and no message or
//! `Debug` output contains one.
//!
//! All functions block on the file system.

mod entry;
mod error;
mod files;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod kinds;
mod state;
#[cfg(test)]
mod tests;

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path as FsPath, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use bywash_store::{SessionToken, is_one_session};

use self::error::io_error;
use self::files::{is_locked, is_still, lock_alone, remove, sync_folder, write_new};
use self::kinds::{FORMAT, Kind};
use self::state::{ParseError, State};

pub use self::entry::Entry;
pub use self::error::JournalError;
pub(super) use self::state::StoredMode;
pub use self::state::{Header, ObjectDigest, Progress, SourceIdentity};

/// Suffix of an upload's file; the rest of the name is the upload's id.
const SUFFIX: &str = ".upload";
/// Suffix of a file that is not complete yet.
const STAGED_SUFFIX: &str = ".new";
/// Owner only, like its files.
const FOLDER_MODE: u32 = 0o700;

type Result<T, E = JournalError> = std::result::Result<T, E>;

/// The folder of open uploads, in a data folder. Several processes may share it.
#[derive(Debug, Clone)]
pub struct Journal {
    folder: PathBuf,
}

/// One upload in the journal, inspected without taking it over.
#[derive(Debug)]
pub struct ListedUpload {
    /// Its id.
    pub id: String,
    /// Contents of its file, or the error of reading it.
    pub content: Result<EntryContent>,
    /// Whether a process works on it now.
    pub alive: bool,
    /// Time of its last record.
    pub modified: SystemTime,
}

/// Contents of an upload's file.
#[derive(Debug, Clone)]
pub struct EntryContent {
    /// The header, written at the start.
    pub header: Header,
    /// Progress recorded last.
    pub progress: Progress,
    /// The object's digest, once the completion was requested.
    pub whole: Option<ObjectDigest>,
    /// The process that works on it, or did last.
    pub process: u32,
}

impl Journal {
    /// Returns the journal in `folder`, which is created with its parents by the first upload. No I/O.
    #[must_use]
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
        }
    }

    /// Creates the folder if it is missing, restricts it to its owner, and removes incomplete files.
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

    /// The folder of the files.
    #[must_use]
    pub fn folder(&self) -> &FsPath {
        &self.folder
    }

    /// Creates the entry of an upload, durably. The process that holds the entry works on the upload.
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
        let mut bytes = FORMAT.header();
        let position = bytes.len() as u64;
        if !FORMAT.append(&mut bytes, position, Kind::Header.code(), |out| {
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
                    let state = State {
                        header: header.clone(),
                        progress: Progress::default(),
                        whole: None,
                        process,
                        length: bytes.len(),
                    };
                    let entry = Entry::over(id, path, file, state);
                    sync_folder(&self.folder).map_err(io_error("sync", &self.folder))?;
                    return Ok(entry);
                }
                // Another process took the name, or removed the file before it was locked.
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::AlreadyExists
                            | io::ErrorKind::NotFound
                            | io::ErrorKind::WouldBlock
                    ) && self.folder.is_dir() => {}
                Err(error) => {
                    // An incomplete file is removed when the folder is opened next.
                    let _ = fs::remove_file(&staged);
                    return Err(io_error("write", &staged)(error));
                }
            }
        }
    }

    /// All uploads in the order of their start, with or without a process working on them. Takes none over,
    /// and creates no folder.
    ///
    /// # Errors
    /// [`JournalError::Io`] of the folder; errors of one file are in its [`ListedUpload::content`].
    pub fn list(&self) -> Result<Vec<ListedUpload>> {
        let mut listed = Vec::new();
        for id in self.ids(SUFFIX)? {
            let path = self.file(&id);
            let file = match File::open(&path) {
                Ok(file) => file,
                // It ended since the folder was read.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => {
                    listed.push(ListedUpload {
                        id,
                        content: Err(io_error("read", &path)(error)),
                        alive: false,
                        modified: UNIX_EPOCH,
                    });
                    continue;
                }
            };
            let alive = is_locked(&file);
            let content = read(&file, &path).map(EntryContent::from);
            let modified = file.metadata().and_then(|meta| meta.modified());
            listed.push(ListedUpload {
                id,
                content,
                alive,
                modified: modified.unwrap_or(UNIX_EPOCH),
            });
        }
        Ok(listed)
    }

    /// Takes an upload over if no process works on it, and truncates a torn record.
    ///
    /// # Errors
    /// [`JournalError::Unknown`], [`JournalError::Busy`], [`JournalError::Damaged`], [`JournalError::OtherVersion`],
    /// [`JournalError::Io`]. The file is then unchanged.
    pub fn take(&self, id: &str) -> Result<Entry> {
        let (path, file) = self.lock(id)?;
        let state = read(&file, &path)?;
        let mut entry = Entry::over(id.to_owned(), path, file, state);
        entry.taken()?;
        Ok(entry)
    }

    /// Removes the file of an upload that no process works on, with any content. Does not touch the bytes at the
    /// store.
    ///
    /// # Errors
    /// [`JournalError::Unknown`], [`JournalError::Busy`], [`JournalError::Io`].
    pub fn forget(&self, id: &str) -> Result<()> {
        let (path, _lock) = self.lock(id)?;
        remove(&path)
    }

    /// Removes the files of a session that has ended at the store, on which no process works. Only sessions whose addresses were signed
    /// have more than one file.
    pub(super) fn forget_session(&self, ended: &SessionToken) -> Result<()> {
        if !is_one_session(ended, ended) {
            return Ok(());
        }
        for listed in self.list()? {
            let is_same = |content: &EntryContent| is_one_session(&content.header.session, ended);
            if listed.alive || !listed.content.as_ref().is_ok_and(is_same) {
                continue;
            }
            match self.forget(&listed.id) {
                // Another process has removed it, or has taken it over and will find that the session has ended.
                Err(JournalError::Unknown { .. } | JournalError::Busy { .. }) => {}
                forgotten => forgotten?,
            }
        }
        Ok(())
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
        // The previous process may have removed the file before the lock was free.
        if is_still(&file, &path) {
            Ok((path, file))
        } else {
            Err(unknown())
        }
    }

    /// Returns the names of files with this suffix, without it, in ascending order.
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
            // Locked while it is written. Its writer may have renamed or removed it since.
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

impl From<State> for EntryContent {
    fn from(state: State) -> Self {
        Self {
            header: state.header,
            progress: state.progress,
            whole: state.whole,
            process: state.process,
        }
    }
}

/// Returns a new id; ids sort in the order of the uploads' start.
fn new_id() -> String {
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    format!("{seconds:08x}-{:08x}", rand::random::<u32>())
}

fn read(file: &File, path: &FsPath) -> Result<State> {
    let mut bytes = Vec::new();
    let mut from_start = file;
    from_start
        .seek(SeekFrom::Start(0))
        .and_then(|_| from_start.read_to_end(&mut bytes))
        .map_err(io_error("read", path))?;
    state::parse(&bytes).map_err(|error| match error {
        ParseError::OtherVersion(version) => JournalError::OtherVersion {
            path: path.to_owned(),
            version,
        },
        ParseError::Damaged { offset, detail } => JournalError::Damaged {
            path: path.to_owned(),
            offset,
            detail,
        },
    })
}
