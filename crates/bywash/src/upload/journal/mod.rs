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

use self::error::io_error;
use self::files::{is_locked, is_still, lock_alone, remove, sync_folder, write_new};
use self::kinds::{FORMAT, Kind};
use self::state::{Fault, State};

pub use self::entry::Entry;
pub use self::error::JournalError;
pub(super) use self::state::StoredMode;
pub use self::state::{Beyond, Header, Progress, SourceIdentity, Whole};

/// Ends the name of an upload's file; what stands before it is the upload's id.
const SUFFIX: &str = ".upload";
/// Ends the name of a file that is not whole yet.
const STAGED_SUFFIX: &str = ".new";
/// Owner only, as its files.
const FOLDER_MODE: u32 = 0o700;

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
        let mut bytes = FORMAT.begin();
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
    /// [`JournalError::Unknown`], [`JournalError::Busy`], [`JournalError::Damaged`], [`JournalError::OtherVersion`],
    /// [`JournalError::Io`]. The file is as it was then.
    pub fn take(&self, id: &str) -> Result<Entry> {
        let (path, file) = self.lock(id)?;
        let state = read(&file, &path)?;
        let mut entry = Entry::over(id.to_owned(), path, file, state);
        entry.taken()?;
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

/// Ids sort in the order uploads began.
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
    state::parse(&bytes).map_err(|fault| match fault {
        Fault::OtherVersion(version) => JournalError::OtherVersion {
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
