//! Entry of one upload in the journal, held by the process that works on it.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::PathBuf;

use super::error::io_error;
use super::files::remove;
use super::kinds::{FORMAT, Kind};
use super::state::{self, State};
use super::{Header, Journal, ObjectDigest, Progress, Result};

/// The file of an upload, locked while this exists. Dropping it leaves the file.
#[derive(Debug)]
pub struct Entry {
    id: String,
    pub(super) path: PathBuf,
    file: File,
    header: Header,
    progress: Progress,
    whole: Option<ObjectDigest>,
    /// Bytes of the file that are whole records.
    pub(super) length: u64,
    /// Buffer for the next record, reused.
    record: Vec<u8>,
    /// A write failed and could not be undone, so nothing can be appended.
    failed: bool,
}

impl Entry {
    /// Creates the entry of a locked file with this content.
    pub(super) fn over(id: String, path: PathBuf, file: File, state: State) -> Self {
        Self {
            id,
            path,
            file,
            header: state.header,
            progress: state.progress,
            whole: state.whole,
            length: state.length as u64,
            record: Vec::new(),
            failed: false,
        }
    }

    /// Truncates a torn record, and records that this process takes the upload over.
    pub(super) fn taken(&mut self) -> Result<()> {
        self.cut()?;
        let process = std::process::id();
        self.append(Kind::Taken, |out| {
            out.extend_from_slice(&process.to_le_bytes());
        })
    }

    /// The upload's id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The header: the state at the start.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The progress recorded last.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// The object's length and checksum, once its completion was requested.
    #[must_use]
    pub fn digest(&self) -> Option<ObjectDigest> {
        self.whole
    }

    /// Records the acknowledged offset durably. Allocates nothing once its buffer has the size.
    ///
    /// # Errors
    /// [`JournalError::Io`](super::JournalError::Io); earlier records stay valid.
    pub fn acknowledged(&mut self, progress: Progress) -> Result<()> {
        self.append(Kind::Acknowledged, |out| {
            state::write_progress(progress, out);
        })?;
        self.progress = progress;
        Ok(())
    }

    /// Records durably length and checksum of the object, before its completion is requested.
    ///
    /// # Errors
    /// [`JournalError::Io`](super::JournalError::Io); earlier records stay valid.
    pub fn finishing(&mut self, whole: ObjectDigest) -> Result<()> {
        self.append(Kind::Finishing, |out| state::write_whole(&whole, out))?;
        self.whole = Some(whole);
        Ok(())
    }

    /// Ends the upload in the journal: removes its file, durably, and the files of processes that were killed while they worked on the
    /// same session at the store.
    ///
    /// # Errors
    /// [`JournalError::Io`](super::JournalError::Io).
    pub fn remove(self) -> Result<()> {
        remove(&self.path)?;
        match self.path.parent() {
            Some(folder) => Journal::at(folder).forget_session(&self.header.session),
            None => Ok(()),
        }
    }

    fn append(&mut self, kind: Kind, body: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        if self.failed {
            let source = io::Error::other("an earlier write failed and could not be taken back");
            return Err(io_error("write", &self.path)(source));
        }
        self.record.clear();
        if !FORMAT.append(&mut self.record, self.length, kind.code(), body) {
            let source = io::Error::other("the record is too long");
            return Err(io_error("write", &self.path)(source));
        }
        let written = (&self.file)
            .write_all(&self.record)
            .and_then(|()| self.file.sync_data());
        if let Err(source) = written {
            // Truncate, so that the next record does not follow half of this one.
            self.failed = self.cut().is_err();
            return Err(io_error("write", &self.path)(source));
        }
        self.length += self.record.len() as u64;
        Ok(())
    }

    /// Truncates the file to its last whole record.
    fn cut(&mut self) -> Result<()> {
        let cut = self
            .file
            .set_len(self.length)
            .and_then(|()| self.file.seek(SeekFrom::Start(self.length)))
            .and_then(|_| self.file.sync_data());
        cut.map_err(io_error("cut", &self.path))
    }
}
