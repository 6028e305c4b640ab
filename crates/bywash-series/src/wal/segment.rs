//! The files of a log: named by number, written by one leader at a time.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::disk::{Folder, LogFile};
use super::frame::{crc32c, long, word};
use super::{Piece, io_error};
use crate::SeriesError;

const MAGIC: &[u8; 8] = b"BYWASHSL";
/// The version of the format.
const FORMAT: u32 = 1;
/// Bytes before the first frame: magic, format, number, CRC32C of these.
pub(super) const HEADER: usize = 24;
const SUFFIX: &str = "wal";

/// Where a segment lies.
pub(crate) fn path_of(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{number:020}.{SUFFIX}"))
}

/// The numbers of a folder's segments, ascending. Other files are none of the log's.
pub(crate) fn list(folder: &Path) -> Result<Vec<u64>, SeriesError> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(folder).map_err(io_error("list", folder))? {
        let path = entry.map_err(io_error("list", folder))?.path();
        let number = path
            .file_stem()
            .and_then(|stem| stem.to_str()?.parse().ok());
        let segment = number.filter(|&number| path_of(folder, number) == path);
        numbers.extend(segment);
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// The bytes before the first frame of a segment.
pub(super) fn header(number: u64) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(MAGIC);
    header[8..12].copy_from_slice(&FORMAT.to_le_bytes());
    header[12..20].copy_from_slice(&number.to_le_bytes());
    let crc = crc32c(&header[..20]);
    header[20..].copy_from_slice(&crc.to_le_bytes());
    header
}

/// What the first bytes of a segment say.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Header {
    Whole,
    /// Written by a newer program.
    Newer(u32),
    /// Nothing was written yet, or not all of it.
    Torn,
}

pub(super) fn read_header(bytes: &[u8], number: u64) -> Header {
    let Some(found) = bytes.first_chunk::<HEADER>() else {
        return Header::Torn;
    };
    if &found[..8] != MAGIC || word(found, 20) != crc32c(&found[..20]) {
        return Header::Torn;
    }
    match word(found, 8) {
        FORMAT if long(found, 12) == number => Header::Whole,
        FORMAT => Header::Torn,
        newer => Header::Newer(newer),
    }
}

/// What the leader has: the file that is being written.
#[derive(Debug)]
pub(super) struct Writer {
    folder: Arc<Folder>,
    segment_bytes: u64,
    current: Option<(u64, Box<dyn LogFile>)>,
}

impl Writer {
    pub(super) fn new(folder: Arc<Folder>, segment_bytes: u64) -> Self {
        Self {
            folder,
            segment_bytes,
            current: None,
        }
    }

    /// Writes pieces in their order. A segment is synced before the next is begun.
    pub(super) fn write(&mut self, pieces: &[Piece], sync: bool) -> io::Result<()> {
        for piece in pieces {
            self.file(piece.segment)?
                .write(&piece.bytes, piece.offset)?;
        }
        match &self.current {
            Some((_, file)) if sync => file.sync(),
            _ => Ok(()),
        }
    }

    fn file(&mut self, number: u64) -> io::Result<&dyn LogFile> {
        if self
            .current
            .as_ref()
            .is_none_or(|(current, _)| *current != number)
        {
            if let Some((_, ended)) = self.current.take() {
                ended.sync()?;
            }
            let path = path_of(&self.folder.path, number);
            let file = self.folder.disk.create(&path, self.segment_bytes)?;
            self.current = Some((number, file));
        }
        let (_, file) = self.current.as_ref().expect("made if there was none");
        Ok(&**file)
    }
}
