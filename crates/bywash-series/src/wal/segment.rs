//! Log segments: numbered files, written by one leader at a time.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::disk::{LogFile, LogFolder};
use super::frame::{read_u32, read_u64};
use super::{PendingWrite, log_error};
use crate::SeriesError;
use crate::checksum::crc32c;

const MAGIC: &[u8; 8] = b"BYWASHSL";
/// Version of the format.
const FORMAT: u32 = 1;
/// Bytes before the first frame: magic, format, number, CRC32C of these.
pub(crate) const SEGMENT_HEADER: usize = 24;
const SUFFIX: &str = "wal";

/// Path of a segment.
pub(crate) fn path_of(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{number:020}.{SUFFIX}"))
}

/// Lists the segment numbers of a folder, ascending. Ignores other files.
pub(crate) fn list(folder: &Path) -> Result<Vec<u64>, SeriesError> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(folder).map_err(log_error("list", folder))? {
        let path = entry.map_err(log_error("list", folder))?.path();
        let number = path
            .file_stem()
            .and_then(|stem| stem.to_str()?.parse().ok());
        let segment = number.filter(|&number| path_of(folder, number) == path);
        numbers.extend(segment);
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Encodes the bytes before the first frame of a segment.
pub(super) fn header(number: u64) -> [u8; SEGMENT_HEADER] {
    let mut header = [0; SEGMENT_HEADER];
    header[..8].copy_from_slice(MAGIC);
    header[8..12].copy_from_slice(&FORMAT.to_le_bytes());
    header[12..20].copy_from_slice(&number.to_le_bytes());
    let crc = crc32c(&header[..20]);
    header[20..].copy_from_slice(&crc.to_le_bytes());
    header
}

/// Result of parsing a segment header.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Header {
    Whole,
    /// Written by a newer program.
    Newer(u32),
    /// Not written, or only partly.
    Torn,
}

pub(super) fn read_header(bytes: &[u8], number: u64) -> Header {
    let Some(found) = bytes.first_chunk::<SEGMENT_HEADER>() else {
        return Header::Torn;
    };
    if &found[..8] != MAGIC || read_u32(found, 20) != crc32c(&found[..20]) {
        return Header::Torn;
    }
    match read_u32(found, 8) {
        FORMAT if read_u64(found, 12) == number => Header::Whole,
        FORMAT => Header::Torn,
        newer => Header::Newer(newer),
    }
}

/// The leader's state: the segment being written.
#[derive(Debug)]
pub(super) struct SegmentWriter {
    folder: Arc<LogFolder>,
    segment_bytes: u64,
    current: Option<(u64, Box<dyn LogFile>)>,
}

impl SegmentWriter {
    pub(super) fn new(folder: Arc<LogFolder>, segment_bytes: u64) -> Self {
        Self {
            folder,
            segment_bytes,
            current: None,
        }
    }

    /// Writes in order. Syncs a segment before the next is begun.
    pub(super) fn write(&mut self, writes: &[PendingWrite], sync: bool) -> io::Result<()> {
        for write in writes {
            self.file(write.segment)?
                .write(&write.bytes, write.offset)?;
        }
        match &self.current {
            Some((_, file)) if sync && !planted!("series-log-not-synced") => file.sync(),
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
