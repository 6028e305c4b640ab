//! One upload in the journal, as who works on it has it.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::PathBuf;

use super::error::io_error;
use super::files::remove;
use super::kinds::{FORMAT, Kind};
use super::state::{self, State};
use super::{Header, Progress, Result, Whole};

/// An upload's file, locked until this is dropped. Dropping it ends nothing: the file stays.
#[derive(Debug)]
pub struct Entry {
    id: String,
    pub(super) path: PathBuf,
    file: File,
    header: Header,
    progress: Progress,
    whole: Option<Whole>,
    /// Bytes of the file that are whole records.
    pub(super) length: u64,
    /// Room for the next record, reused.
    record: Vec<u8>,
    /// A write failed and could not be taken back, so nothing can stand behind it.
    failed: bool,
}

impl Entry {
    /// The upload of a file that is locked, and says this.
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

    /// Cuts what a crash tore, and writes down that this process goes on.
    pub(super) fn taken(&mut self) -> Result<()> {
        self.cut()?;
        let process = std::process::id();
        self.append(Kind::Taken, |out| {
            out.extend_from_slice(&process.to_le_bytes());
        })
    }

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
    /// [`JournalError::Io`](super::JournalError::Io); what was written before stands.
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
    /// [`JournalError::Io`](super::JournalError::Io); what was written before stands.
    pub fn finishing(&mut self, whole: Whole) -> Result<()> {
        self.append(Kind::Finishing, |out| state::write_whole(&whole, out))?;
        self.whole = Some(whole);
        Ok(())
    }

    /// Ends the upload in the journal: its file is gone, durably.
    ///
    /// # Errors
    /// [`JournalError::Io`](super::JournalError::Io).
    pub fn remove(self) -> Result<()> {
        remove(&self.path)
    }

    fn append(&mut self, kind: Kind, body: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        if self.failed {
            let source = io::Error::other("an earlier write failed and could not be taken back");
            return Err(io_error("write", &self.path)(source));
        }
        self.record.clear();
        if !FORMAT.append(&mut self.record, self.length, kind.code(), body) {
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
