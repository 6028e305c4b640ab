//! The folder of a tier and its file operations.

use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, IoSlice, Write as _};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;

use crate::format::PAGE;
use crate::limits::MAX_PIECES;
use crate::marks::MARKS;
use crate::{DiskError, disk_error};

/// File locked while a tier, or slot files, have the folder open.
pub(crate) const LOCK: &str = "lock";
/// File with the format's version and the folder's id.
const FORMAT: &str = "format";
/// Name of [`FORMAT`] that is not whole yet.
const STAGED_FORMAT: &str = "format.new";
/// First line of [`FORMAT`]. Then follow the folder's id and the bytes of its segments.
const FORMAT_NAME: &str = "bywash disk tier ";
const FORMAT_LINE: &str = "bywash disk tier 2";
/// First line of folders without the bytes of their segments.
const FORMER_FORMAT_LINE: &str = "bywash disk tier 1";
/// Extension of segments.
const SEGMENT: &str = "seg";

/// Segment files. Tests substitute ones that fail.
pub(crate) trait Storage: Send + Sync + fmt::Debug {
    /// Returns the numbers of all segments, in any order.
    fn list(&self) -> io::Result<Vec<u32>>;
    /// Creates a segment with all its bytes allocated: a full disk fails here.
    fn create(&self, segment: u32, bytes: u64) -> io::Result<Arc<dyn SegmentFile>>;
    /// Opens a segment, and returns its length in bytes.
    fn open(&self, segment: u32) -> io::Result<(Arc<dyn SegmentFile>, u64)>;
    /// Removes a segment, if it exists.
    fn remove(&self, segment: u32) -> io::Result<()>;
}

/// An open segment. Buffers are whole pages, aligned to a page.
pub(crate) trait SegmentFile: Send + Sync + fmt::Debug {
    /// Fills the buffer from a page on.
    fn read(&self, buffer: &mut [u8], page: u32) -> io::Result<()>;
    /// Writes all pieces, one after the other.
    fn write(&self, pieces: &[&[u8]], page: u32) -> io::Result<()>;
    /// Returns when all written bytes are on disk.
    fn sync(&self) -> io::Result<()>;
    /// Returns whether the file still has a name and `bytes` bytes.
    fn is_whole(&self, bytes: u64) -> io::Result<bool>;
}

/// Whole pages in memory, aligned to a page for direct I/O.
#[derive(Debug)]
pub(crate) struct Pages {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Pages {
    /// Returns `pages` pages of zeros.
    pub(crate) fn zeroed(pages: u32) -> Self {
        let length = pages as usize * PAGE;
        let bytes = vec![0; length + PAGE];
        let start = bytes.as_ptr().align_offset(PAGE);
        Self {
            bytes,
            start,
            length,
        }
    }

    /// Copies `bytes`, padded with zeros.
    pub(crate) fn copy_of(bytes: &[u8]) -> Self {
        let mut pages = Self::zeroed(crate::format::pages_of(bytes.len()));
        pages.as_mut()[..bytes.len()].copy_from_slice(bytes);
        pages
    }
}

impl AsRef<[u8]> for Pages {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.length]
    }
}

impl AsMut<[u8]> for Pages {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }
}

/// Creates a folder if it is missing, accessible to its owner only, and locks it. Dropping the file releases the lock.
///
/// # Errors
/// The folder is in use or belongs to another user, or a file operation failed.
pub(crate) fn open_locked(folder: &Path) -> Result<File, DiskError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(disk_error("create", folder))?;
    let owner = fs::metadata(folder)
        .map_err(disk_error("read", folder))?
        .uid();
    let path = folder.to_owned();
    if owner != rustix::process::geteuid().as_raw() {
        return Err(DiskError::OtherOwner { path, owner });
    }
    let lock = folder.join(LOCK);
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&lock)
        .map_err(disk_error("open", &lock))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(DiskError::Locked { path }),
        Err(TryLockError::Error(error)) => Err(disk_error("lock", &lock)(error)),
    }
}

/// A folder on a file system, locked while this exists.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    /// Identity of the folder: segments of another folder are foreign.
    pub(crate) id: [u8; 16],
    /// Bytes of a segment.
    pub(crate) segment_size: u32,
    /// Dropping it releases the lock.
    _lock: File,
}

impl Folder {
    /// Creates the folder if it is missing, accessible to its owner only, and locks it.
    ///
    /// # Errors
    /// The folder is in use, has foreign files, belongs to another user or was written by a newer version; or a file operation
    /// failed.
    pub(crate) fn open(
        path: PathBuf,
        new_id: [u8; 16],
        new_segment_size: u32,
    ) -> Result<Self, DiskError> {
        let lock = open_locked(&path)?;
        if let Some(name) = foreign_file(&path)? {
            return Err(DiskError::ForeignFile { path, name });
        }
        let mut folder = Self {
            path,
            id: new_id,
            segment_size: new_segment_size,
            _lock: lock,
        };
        folder.read_format()?;
        Ok(folder)
    }

    /// Reads the folder's id and the size of its segments, or gives it these.
    fn read_format(&mut self) -> Result<(), DiskError> {
        let path = self.path.join(FORMAT);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return self.write_format(),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(DiskError::DamagedFormat { path });
            }
            Err(error) => return Err(disk_error("read", &path)(error)),
        };
        let mut lines = text.lines();
        let line = lines.next().unwrap_or_default();
        let id = parse_id(lines.next().unwrap_or_default());
        let segment_size = lines.next().and_then(parse_segment_size);
        match (line, id, segment_size) {
            (FORMAT_LINE, Some(id), Some(segment_size)) => {
                (self.id, self.segment_size) = (id, segment_size);
                Ok(())
            }
            (FORMER_FORMAT_LINE, Some(id), _) => {
                self.id = id;
                if let Some(size) = self.size_of_a_segment()? {
                    self.segment_size = size;
                }
                self.write_format()
            }
            _ if is_format_of_another_version(line) && text.contains('\n') => {
                Err(DiskError::UnknownFormat {
                    path,
                    found: line.chars().take(80).collect(),
                })
            }
            _ => Err(DiskError::DamagedFormat { path }),
        }
    }

    /// Returns the bytes of one of the segments.
    fn size_of_a_segment(&self) -> Result<Option<u32>, DiskError> {
        let numbers = self.list().map_err(disk_error("list", &self.path))?;
        let lengths = numbers.into_iter().filter_map(|number| {
            let length = fs::metadata(self.path_of(number)).ok()?.len();
            parse_segment_size(&length.to_string())
        });
        Ok(lengths.max())
    }

    /// Gives the folder segments of another size. Its existing segments become unusable.
    pub(crate) fn set_segment_size(&mut self, bytes: u32) -> Result<(), DiskError> {
        self.segment_size = bytes;
        self.write_format()
    }

    fn write_format(&self) -> Result<(), DiskError> {
        let hex: String = self.id.iter().map(|byte| format!("{byte:02x}")).collect();
        let (path, staged) = (self.path.join(FORMAT), self.path.join(STAGED_FORMAT));
        let write = || {
            let mut file = File::create(&staged)?;
            writeln!(file, "{FORMAT_LINE}\n{hex}\n{}", self.segment_size)?;
            file.sync_all()?;
            fs::rename(&staged, &path)?;
            File::open(&self.path)?.sync_all()
        };
        write().map_err(disk_error("write", &path))
    }

    fn path_of(&self, segment: u32) -> PathBuf {
        self.path.join(segment_name(segment))
    }

    fn open_file(&self, segment: u32, create: bool) -> io::Result<File> {
        let open = |flags: OFlags| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(create)
                .mode(0o600)
                .custom_flags(flags.bits().cast_signed())
                .open(self.path_of(segment))
        };
        match open(OFlags::DIRECT) {
            // The file system has no direct I/O. A file may have been created nevertheless.
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                if create {
                    self.remove(segment)?;
                }
                open(OFlags::empty())
            }
            opened => opened,
        }
    }
}

impl Storage for Folder {
    fn list(&self) -> io::Result<Vec<u32>> {
        let mut segments = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            segments.extend(segment_number(&entry?.file_name().to_string_lossy()));
        }
        Ok(segments)
    }

    fn create(&self, segment: u32, bytes: u64) -> io::Result<Arc<dyn SegmentFile>> {
        // A file that was put there since the start.
        self.remove(segment)?;
        let file = self.open_file(segment, true)?;
        let allocated = match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes) {
            // The file system cannot: its bytes are allocated when they are written.
            Err(Errno::OPNOTSUPP) => file.set_len(bytes),
            allocated => allocated.map_err(io::Error::from),
        };
        if let Err(error) = allocated {
            self.remove(segment)?;
            return Err(error);
        }
        Ok(Arc::new(file))
    }

    fn open(&self, segment: u32) -> io::Result<(Arc<dyn SegmentFile>, u64)> {
        let file = self.open_file(segment, false)?;
        let length = file.metadata()?.len();
        Ok((Arc::new(file), length))
    }

    fn remove(&self, segment: u32) -> io::Result<()> {
        match fs::remove_file(self.path_of(segment)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

impl SegmentFile for File {
    fn read(&self, buffer: &mut [u8], page: u32) -> io::Result<()> {
        self.read_exact_at(buffer, u64::from(page) * PAGE as u64)
    }

    fn write(&self, pieces: &[&[u8]], page: u32) -> io::Result<()> {
        let mut offset = u64::from(page) * PAGE as u64;
        for pieces in pieces.chunks(MAX_PIECES) {
            let mut slices: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
            let mut rest = &mut slices[..];
            while !rest.is_empty() {
                match rustix::io::pwritev(self, rest, offset) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(written) => {
                        offset += written as u64;
                        IoSlice::advance_slices(&mut rest, written);
                    }
                    Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn is_whole(&self, bytes: u64) -> io::Result<bool> {
        let metadata = self.metadata()?;
        Ok(metadata.nlink() > 0 && metadata.len() == bytes)
    }
}

fn segment_name(segment: u32) -> String {
    format!("{segment:06}.{SEGMENT}")
}

fn segment_number(name: &str) -> Option<u32> {
    let number = name
        .strip_suffix(SEGMENT)?
        .strip_suffix('.')?
        .parse()
        .ok()?;
    (segment_name(number) == name).then_some(number)
}

/// Returns the name of a file that is not of a tier.
fn foreign_file(folder: &Path) -> Result<Option<String>, DiskError> {
    let entries = fs::read_dir(folder).map_err(disk_error("list", folder))?;
    for entry in entries {
        let name = entry.map_err(disk_error("list", folder))?.file_name();
        let name = name.to_string_lossy();
        let known = [LOCK, FORMAT, MARKS, STAGED_FORMAT].contains(&&*name);
        if !known && segment_number(&name).is_none() {
            return Ok(Some(name.into_owned()));
        }
    }
    Ok(None)
}

/// Whether a line names a format that this version does not have.
fn is_format_of_another_version(line: &str) -> bool {
    let number = line.strip_prefix(FORMAT_NAME).map(str::parse::<u32>);
    matches!(number, Some(Ok(_))) && ![FORMAT_LINE, FORMER_FORMAT_LINE].contains(&line)
}

fn parse_id(hex: &str) -> Option<[u8; 16]> {
    let value = u128::from_str_radix(hex, 16).ok()?;
    (hex.len() == 32).then(|| value.to_be_bytes())
}

/// Parses the bytes of a segment: whole pages.
fn parse_segment_size(text: &str) -> Option<u32> {
    let bytes: u32 = text.parse().ok()?;
    (bytes > 0 && bytes.is_multiple_of(PAGE as u32)).then_some(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn segments_are_written_in_more_pieces_than_one_call_takes() {
        let directory = tempfile::tempdir().unwrap();
        let folder = Folder::open(directory.path().join("tier"), [1; 16], 4096).unwrap();
        let count = 2 * MAX_PIECES + 1;
        let file = folder.create(0, (count * PAGE) as u64).unwrap();
        let mut all = Pages::zeroed(u32::try_from(count).unwrap());
        for (index, page) in all.as_mut().chunks_mut(PAGE).enumerate() {
            page.fill(index as u8);
        }
        let pieces: Vec<_> = all.as_ref().chunks(PAGE).collect();
        file.write(&pieces, 0).unwrap();
        let mut found = Pages::zeroed(u32::try_from(count).unwrap());
        file.read(found.as_mut(), 0).unwrap();
        assert!(found.as_ref() == all.as_ref());
    }

    #[test]
    fn folder_in_use_of_another_format_or_with_foreign_files_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tier");
        let open = |id| Folder::open(path.clone(), [id; 16], u32::from(id) * 4096);
        let folder = open(1).unwrap();
        assert!(matches!(open(2), Err(DiskError::Locked { .. })));
        drop(folder);
        let again = open(2).unwrap();
        // The folder keeps its id and the size of its segments.
        assert_eq!((again.id, again.segment_size), ([1; 16], 4096));
        drop(again);
        fs::write(path.join("notes.txt"), "mine").unwrap();
        let refused = open(2).unwrap_err();
        assert!(refused.to_string().contains("notes.txt"), "{refused}");
        fs::remove_file(path.join("notes.txt")).unwrap();
        fs::write(path.join(FORMAT), "bywash disk tier 3\n").unwrap();
        assert!(matches!(open(2), Err(DiskError::UnknownFormat { .. })));
        for damaged in [
            &b""[..],
            b"bywash disk",
            b"bywash disk tier 2\n12\n4096\n",
            &[0xff; 40],
        ] {
            fs::write(path.join(FORMAT), damaged).unwrap();
            assert!(matches!(open(2), Err(DiskError::DamagedFormat { .. })));
        }
    }
}
