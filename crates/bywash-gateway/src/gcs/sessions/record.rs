//! Files of sessions: `ID.open` while a session is open, `ID.done` with the object that it became.
//!
//! An open one holds a line of JSON and the token of the upload; see `docs/formats.md`. Files are written under another name,
//! synced, and renamed. A name is the right to write to its session: the folder and the files are their owner's alone.

use std::fs::{self, DirBuilder, Metadata, Permissions};
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
use super::finished::FinishedSessions;
use crate::digest::ResumableMd5;
use crate::limits::SESSION_ID_BYTES;

pub(super) const OPEN: &str = "open";
pub(super) const DONE: &str = "done";

/// Object of a session, and its digests.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Header {
    pub(crate) bucket: String,
    pub(crate) key: String,
    /// Length of the object, once the client has announced it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) length: Option<u64>,
    /// CRC32C of the bytes so far, in base64; empty if there are none.
    pub(crate) crc32c: String,
    /// CRC32C of all bytes, if the start of the session stated it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) expected_crc32c: Option<String>,
    /// MD5 of the bytes so far; none if it is not computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) md5: Option<ResumableMd5>,
    /// MD5 of all bytes in base64, if the start of the session stated it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) expected_md5: Option<String>,
    /// Whether the MD5 becomes the ETag of the object.
    #[serde(default)]
    pub(crate) keeps_md5: bool,
    /// Whether its object carries the session's mark.
    pub(crate) conditional: bool,
}

/// Which file a session has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileState {
    /// Open, with a file of this many bytes.
    Open(u64),
    Finished,
}

/// The folder of sessions. A cheap handle.
#[derive(Debug, Clone)]
pub(crate) struct SessionFiles {
    folder: Arc<PathBuf>,
    limit: usize,
    /// Number of open sessions.
    open: Arc<Mutex<usize>>,
    finished: Arc<Mutex<FinishedSessions>>,
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
    /// Opens the folder, created if missing, for at most `limit` open sessions and records of `max_finished`. Blocks.
    pub(crate) fn open(folder: PathBuf, limit: usize, max_finished: usize) -> io::Result<Self> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)?;
        fs::set_permissions(&folder, Permissions::from_mode(0o700))?;
        remove_leftovers(&open_folder(&folder)?)?;
        let mut open = 0;
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.extension().is_none_or(|kind| kind != OPEN) {
                continue;
            }
            match path.with_extension(DONE).try_exists()? {
                // A crash between the two files.
                true => _ = remove(&path)?,
                false => open += 1,
            }
        }
        let mut finished = FinishedSessions::read(&folder, max_finished)?;
        for id in finished.beyond() {
            remove(&folder.join(format!("{id}.{DONE}")))?;
        }
        Ok(Self {
            folder: Arc::new(folder),
            limit,
            open: Arc::new(Mutex::new(open)),
            finished: Arc::new(Mutex::new(finished)),
        })
    }

    #[cfg(test)]
    pub(super) fn open_sessions(&self) -> usize {
        *self.open.lock()
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
            // The record of one end may be written twice.
            if files.remove_open(&id)? {
                let forgotten = files.finished.lock().add(&id);
                for id in forgotten {
                    remove(&files.file(&id, DONE))?;
                }
            }
            Ok(())
        })
        .await
    }

    /// Returns whether the session was open.
    fn remove_open(&self, id: &str) -> io::Result<bool> {
        let was_open = remove(&self.file(id, OPEN))?;
        if was_open {
            let mut open = self.open.lock();
            *open = open.saturating_sub(1);
        }
        Ok(was_open)
    }

    /// Forgets a session. Returns whether it was open.
    pub(crate) async fn remove(&self, id: &str) -> GcsResult<bool> {
        if !is_id(id) {
            return Ok(false);
        }
        let id = id.to_owned();
        self.run(move |files| {
            let was_open = files.remove_open(&id)?;
            if remove(&files.file(&id, DONE))? {
                files.finished.lock().forget(&id);
            }
            Ok(was_open)
        })
        .await
    }

    /// Returns which file a session has, without reading it.
    pub(crate) async fn state(&self, id: &str) -> GcsResult<FileState> {
        if !is_id(id) {
            return Err(unknown());
        }
        let id = id.to_owned();
        let found = self.run(move |files| {
            // In this order: the file of an open session is removed last.
            if present(fs::metadata(files.file(&id, DONE)))?.is_some() {
                return Ok(Some(FileState::Finished));
            }
            let open = present(fs::metadata(files.file(&id, OPEN)))?;
            Ok(open.map(|open| FileState::Open(open.len())))
        });
        found.await?.ok_or_else(unknown)
    }

    /// Reads the resource of the object that a session became.
    pub(crate) async fn read_resource(&self, id: &str) -> GcsResult<Vec<u8>> {
        let path = self.file(id, DONE);
        let found = self.run(move |_| present(fs::read(path)));
        found.await?.ok_or_else(unknown)
    }

    /// Reads the file of an open session. The caller has charged its length.
    pub(crate) async fn read_open(&self, id: &str) -> GcsResult<(Header, UploadToken)> {
        let path = self.file(id, OPEN);
        let found = self.run(move |_| present(fs::read(path)));
        let content = found.await?.ok_or_else(unknown)?;
        parse(content).map_err(|reason| {
            GcsError::gone(format!("The file of the session is damaged: {reason}."))
        })
    }

    /// Whether the newest file of a session was not written for this long.
    pub(crate) async fn is_older_than(&self, id: &str, age: Duration) -> GcsResult<bool> {
        let paths = [self.file(id, DONE), self.file(id, OPEN)];
        self.run(move |_| {
            for path in paths {
                if let Some(found) = present(fs::metadata(path))?
                    && !is_older(&found, age)?
                {
                    return Ok(false);
                }
            }
            Ok(true)
        })
        .await
    }

    /// Sessions whose files were not written for this long, the oldest first. Unreadable files are
    /// left out.
    pub(crate) async fn older_than(&self, age: Duration) -> Vec<String> {
        let old = self.run(move |files| {
            let mut old = Vec::new();
            for entry in fs::read_dir(&*files.folder)? {
                let entry = entry?;
                let found = entry.metadata()?;
                if is_older(&found, age)?
                    && let Some(id) = entry.path().file_stem()
                {
                    old.push((found.modified()?, id.to_string_lossy().into_owned()));
                }
            }
            old.sort_unstable();
            Ok(old.into_iter().map(|(_, id)| id).collect())
        });
        old.await.unwrap_or_default()
    }
}

pub(super) fn is_id(id: &str) -> bool {
    id.len() == SESSION_ID_BYTES && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn unknown() -> GcsError {
    GcsError::not_found(
        "The resumable session does not exist: it was cancelled, expired, or never begun here.",
    )
}

/// Converts the absence of a file to `None`.
pub(super) fn present<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_older(file: &Metadata, age: Duration) -> io::Result<bool> {
    let written = file.modified()?;
    Ok(written.elapsed().is_ok_and(|passed| passed > age))
}

/// Parses the file of an open session. The error describes the damage.
pub(super) fn parse(content: Vec<u8>) -> Result<(Header, UploadToken), String> {
    let line = content.iter().position(|byte| *byte == b'\n');
    let line = line.ok_or_else(|| "it has no line".to_owned())?;
    let header = serde_json::from_slice(&content[..line]).map_err(|error| error.to_string())?;
    let token = Bytes::from(content).split_off(line + 1);
    let token = UploadToken::from_bytes(token).map_err(|error| error.to_string())?;
    Ok((header, token))
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
        let files = SessionFiles::open(folder.clone(), 1, 1).unwrap();
        let second = Duration::from_secs(1);
        for (name, age) in [
            ("old.open", MAX_SESSION_AGE + second),
            ("older.done", MAX_SESSION_AGE * 2),
            ("new.open", MAX_SESSION_AGE - 60 * second),
        ] {
            let file = File::create(folder.join(name)).unwrap();
            file.set_modified(SystemTime::now() - age).unwrap();
        }
        let old = files.older_than(MAX_SESSION_AGE).await;
        assert_eq!(old, ["older", "old"]);
    }

    #[tokio::test]
    async fn damaged_files_end_their_session() {
        let home = tempfile::tempdir().unwrap();
        let files = SessionFiles::open(home.path().to_owned(), 1, 1).unwrap();
        let id = "0".repeat(SESSION_ID_BYTES);
        for content in ["", "{", "{}\ntoken", "no line"] {
            fs::write(home.path().join(format!("{id}.open")), content).unwrap();
            let error = files.read_open(&id).await.err().unwrap();
            assert_eq!(error.status().as_u16(), 410, "{content}");
        }
    }

    #[tokio::test]
    async fn records_of_the_oldest_ends_are_removed_beyond_their_limit() {
        let home = tempfile::tempdir().unwrap();
        let open = |max| SessionFiles::open(home.path().to_owned(), 8, max).unwrap();
        let id = |number: usize| format!("{number:0>64}");
        let files = open(2);
        for number in 0..3 {
            let path = home.path().join(format!("{}.open", id(number)));
            fs::write(&path, "").unwrap();
            // The second record replaces the first, and counts once.
            files.finish(&id(number), b"first").await.unwrap();
            files.finish(&id(number), b"second").await.unwrap();
            let done = File::options()
                .append(true)
                .open(path.with_extension("done"));
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(number as u64);
            done.unwrap().set_modified(time).unwrap();
        }
        let first = files.read_resource(&id(0)).await.err().unwrap();
        assert_eq!(first.status().as_u16(), 404);
        for number in [1, 2] {
            assert_eq!(files.read_resource(&id(number)).await.unwrap(), b"second");
        }
        let again = open(1);
        assert!(again.read_resource(&id(1)).await.is_err());
        assert!(again.read_resource(&id(2)).await.is_ok());
        again.remove(&id(2)).await.unwrap();
        assert!(again.finished.lock().add(&id(3)).is_empty());
    }

    #[test]
    fn session_with_both_files_is_finished() {
        let home = tempfile::tempdir().unwrap();
        for kind in [OPEN, DONE] {
            let name = format!("{}.{kind}", "0".repeat(SESSION_ID_BYTES));
            fs::write(home.path().join(name), "{}").unwrap();
        }
        let files = SessionFiles::open(home.path().to_owned(), 1, 1).unwrap();
        assert_eq!(files.open_sessions(), 0);
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
    }
}
