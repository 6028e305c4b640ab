//! Files of sessions: `ID.open` while a session is open, `ID.done` with the object that it became.
//!
//! An open one holds a line of JSON and the token of the upload; see `docs/formats.md`. Files are written under another name,
//! synced, and renamed. A name is the right to write to its session: the folder and the files are their owner's alone.

use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path as FsPath, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use bywash::UploadToken;
use bywash::staged_file::{StagedFile, open_folder, remove_leftovers};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::super::error::{GcsError, GcsResult};
use crate::limits::SESSION_ID_BYTES;

const OPEN: &str = "open";
const DONE: &str = "done";

/// What a session is for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Header {
    pub(crate) bucket: String,
    pub(crate) key: String,
    /// CRC32C of the bytes so far, in base64; empty if there are none.
    pub(crate) crc32c: String,
    /// That of all bytes, if the start of the session stated it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) expected_crc32c: Option<String>,
    /// Whether its object carries the session's mark.
    pub(crate) conditional: bool,
}

/// Content of a session's file.
pub(crate) enum Record {
    Open(Header, Box<UploadToken>),
    /// The resource of its object.
    Finished(Vec<u8>),
}

/// The folder of sessions. A cheap handle.
#[derive(Debug, Clone)]
pub(crate) struct SessionFiles {
    folder: Arc<PathBuf>,
    limit: usize,
    /// Number of open sessions.
    open: Arc<Mutex<usize>>,
}

/// Writes a file durably. Blocks.
fn place(folder: &FsPath, name: &str, parts: &[&[u8]], replaces: bool) -> io::Result<()> {
    let staged = StagedFile::create(open_folder(folder)?, &Permissions::from_mode(0o600))?;
    for part in parts {
        staged.file().write_all(part)?;
    }
    staged.place(name.as_ref(), replaces)
}

fn remove(path: &FsPath) -> io::Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

impl SessionFiles {
    /// Opens the folder, created if missing. Blocks.
    pub(crate) fn open(folder: PathBuf, limit: usize) -> io::Result<Self> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)?;
        fs::set_permissions(&folder, Permissions::from_mode(0o700))?;
        remove_leftovers(&open_folder(&folder)?)?;
        let mut open = 0;
        for entry in fs::read_dir(&folder)? {
            open += usize::from(entry?.path().extension().is_some_and(|kind| kind == OPEN));
        }
        Ok(Self {
            folder: Arc::new(folder),
            limit,
            open: Arc::new(Mutex::new(open)),
        })
    }

    fn file(&self, id: &str, kind: &str) -> PathBuf {
        self.folder.join(format!("{id}.{kind}"))
    }

    /// Runs `work` where it may block.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> io::Result<T> + Send + 'static,
    ) -> GcsResult<T> {
        let files = self.clone();
        let done = tokio::task::spawn_blocking(move || work(&files)).await;
        let done = done.unwrap_or_else(|error| Err(error.into()));
        done.map_err(|error| {
            GcsError::unavailable(format!("The state of the session cannot be kept: {error}."))
        })
    }

    /// Creates the file of a session, up to the limit of open ones.
    pub(crate) async fn create(
        &self,
        id: &str,
        header: &Header,
        token: &UploadToken,
    ) -> GcsResult<()> {
        {
            let mut open = self.open.lock();
            if *open >= self.limit {
                return Err(GcsError::unavailable(format!(
                    "{} resumable sessions are open, as many as may be; finish or cancel others.",
                    self.limit
                )));
            }
            *open += 1;
        }
        let written = self.write(id, header, token, false).await;
        if written.is_err() {
            *self.open.lock() -= 1;
        }
        written
    }

    /// Replaces the file of an open session.
    pub(crate) async fn replace(
        &self,
        id: &str,
        header: &Header,
        token: &UploadToken,
    ) -> GcsResult<()> {
        self.write(id, header, token, true).await
    }

    async fn write(
        &self,
        id: &str,
        header: &Header,
        token: &UploadToken,
        replaces: bool,
    ) -> GcsResult<()> {
        let unwritable = |error: String| GcsError::unavailable(error);
        let mut line = serde_json::to_vec(header).map_err(|error| unwritable(error.to_string()))?;
        line.push(b'\n');
        let token = token
            .to_bytes()
            .map_err(|error| unwritable(error.to_string()))?;
        let name = format!("{id}.{OPEN}");
        self.run(move |files| place(&files.folder, &name, &[&line, &token], replaces))
            .await
    }

    /// Records the object that a session became.
    pub(crate) async fn finish(&self, id: &str, resource: &[u8]) -> GcsResult<()> {
        let (id, resource) = (id.to_owned(), resource.to_vec());
        self.run(move |files| {
            place(&files.folder, &format!("{id}.{DONE}"), &[&resource], true)?;
            files.remove_open(&id)
        })
        .await
    }

    fn remove_open(&self, id: &str) -> io::Result<()> {
        if remove(&self.file(id, OPEN))? {
            let mut open = self.open.lock();
            *open = open.saturating_sub(1);
        }
        Ok(())
    }

    /// Forgets a session.
    pub(crate) async fn remove(&self, id: &str) -> GcsResult<()> {
        let id = id.to_owned();
        self.run(move |files| {
            files.remove_open(&id)?;
            remove(&files.file(&id, DONE)).map(drop)
        })
        .await
    }

    /// Reads the file of a session.
    pub(crate) async fn read(&self, id: &str) -> GcsResult<Record> {
        let unknown = || {
            GcsError::not_found(
                "The resumable session does not exist: it was cancelled, expired, or never begun here.",
            )
        };
        let is_id = id.len() == SESSION_ID_BYTES && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_id {
            return Err(unknown());
        }
        let id = id.to_owned();
        let read = |path: PathBuf| match fs::read(path) {
            Ok(content) => Ok(Some(content)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        let found = self
            .run(move |files| {
                // In this order: the file of an open session is removed last.
                if let Some(resource) = read(files.file(&id, DONE))? {
                    return Ok(Some((true, resource)));
                }
                Ok(read(files.file(&id, OPEN))?.map(|content| (false, content)))
            })
            .await?;
        match found {
            None => Err(unknown()),
            Some((true, resource)) => Ok(Record::Finished(resource)),
            Some((false, content)) => parse(content),
        }
    }

    /// Returns the sessions whose files were not written for this long. Those that cannot be read are left out.
    pub(crate) async fn older_than(&self, age: Duration) -> Vec<String> {
        let old = self.run(move |files| {
            let mut old = Vec::new();
            for entry in fs::read_dir(&*files.folder)? {
                let entry = entry?;
                let written = entry.metadata()?.modified()?;
                let is_old = written.elapsed().is_ok_and(|passed| passed > age);
                if is_old && let Some(id) = entry.path().file_stem() {
                    old.push(id.to_string_lossy().into_owned());
                }
            }
            Ok(old)
        });
        old.await.unwrap_or_default()
    }
}

/// Parses the file of an open session.
fn parse(content: Vec<u8>) -> GcsResult<Record> {
    let damaged =
        |error: String| GcsError::gone(format!("The file of the session is damaged: {error}."));
    let line = content.iter().position(|byte| *byte == b'\n').unwrap_or(0);
    let header = serde_json::from_slice(&content[..line]);
    let header: Header = header.map_err(|error| damaged(error.to_string()))?;
    let token = Bytes::from(content).split_off(line + 1);
    let token = UploadToken::from_bytes(token).map_err(|error| damaged(error.to_string()))?;
    Ok(Record::Open(header, Box::new(token)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::fs::File;
    use std::time::SystemTime;

    use super::*;
    use crate::limits::MAX_SESSION_AGE;

    #[tokio::test]
    async fn sessions_past_their_age_are_found_and_others_are_not() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("sessions");
        let files = SessionFiles::open(folder.clone(), 1).unwrap();
        let second = Duration::from_secs(1);
        for (name, age) in [
            ("old.open", MAX_SESSION_AGE + second),
            ("older.done", MAX_SESSION_AGE * 2),
            ("new.open", MAX_SESSION_AGE - 60 * second),
        ] {
            let file = File::create(folder.join(name)).unwrap();
            file.set_modified(SystemTime::now() - age).unwrap();
        }
        let mut old = files.older_than(MAX_SESSION_AGE).await;
        old.sort();
        assert_eq!(old, ["old", "older"]);
    }

    #[tokio::test]
    async fn damaged_files_end_their_session() {
        let home = tempfile::tempdir().unwrap();
        let files = SessionFiles::open(home.path().to_owned(), 1).unwrap();
        let id = "0".repeat(SESSION_ID_BYTES);
        for content in ["", "{", "{}\ntoken", "no line"] {
            fs::write(home.path().join(format!("{id}.open")), content).unwrap();
            let error = files.read(&id).await.err().unwrap();
            assert_eq!(error.status().as_u16(), 410, "{content}");
        }
    }
}
