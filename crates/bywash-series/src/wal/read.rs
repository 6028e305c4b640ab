//! Reading a log that someone left.
//!
//! A crash leaves frames up to some byte and nothing that holds together behind it: that is cut. Where a frame does not hold
//! together and whole ones follow, no crash did it: that is damage, which is reported, and skipped only on demand.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::Path;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use super::disk::Folder;
use super::frame::{Frame, HEAD};
use super::segment::{HEADER, Header, path_of, read_header};
use super::{MOST_FRAME, Segment, io_error};
use crate::SeriesError;

/// What was found behind each other in one segment.
#[derive(Debug)]
pub(crate) struct Found {
    number: u64,
    bytes: Vec<u8>,
    /// Where frames begin that hold together, in order.
    frames: Vec<usize>,
    /// Where the last of them ends, or the header; 0: not begun.
    end: usize,
    /// Where something does not hold together, if it does not.
    fault: Option<usize>,
}

/// Reads one segment into memory, into `room` and more if it takes more, and finds its frames.
pub(crate) fn read_segment(
    folder: &Folder,
    number: u64,
    mut room: Vec<u8>,
) -> Result<Found, SeriesError> {
    let path = path_of(&folder.path, number);
    room.clear();
    read(&path, &mut room).map_err(io_error("read", &path))?;
    found(room, number, &path)
}

/// Reads a file, but not all zeros at its end: most of a segment may have been made and not written yet.
fn read(path: &Path, into: &mut Vec<u8>) -> io::Result<()> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    // Zeros that end a frame may have become a hole, in a copy: a frame that begins before it is read whole.
    let behind = (HEAD + MOST_FRAME) as u64;
    let most = data_end(&file).map_or(length, |end| length.min(end + behind));
    file.rewind()?;
    into.reserve(usize::try_from(most).map_err(io::Error::other)?);
    file.take(most).read_to_end(into).map(drop)
}

/// Where the last data ends, behind which a file is a hole or ends; an error where the file system does not say.
fn data_end(file: &File) -> rustix::io::Result<u64> {
    let mut end = 0;
    loop {
        match seek(file, SeekFrom::Data(end)) {
            Err(Errno::NXIO) => return Ok(end),
            data => end = seek(file, SeekFrom::Hole(data?))?,
        }
    }
}

/// What the bytes of a segment, which came from `path`, hold.
pub(super) fn found(bytes: Vec<u8>, number: u64, path: &Path) -> Result<Found, SeriesError> {
    let mut found = Found {
        number,
        bytes,
        frames: Vec::new(),
        end: 0,
        fault: None,
    };
    match read_header(&found.bytes, number) {
        Header::Newer(format) => {
            return Err(SeriesError::NewerLog {
                path: path.to_owned(),
                format,
            });
        }
        Header::Whole => found.scan(HEADER),
        Header::Torn if is_zero(&found.bytes) => {}
        Header::Torn => {
            found.fault = Some(0);
            found.scan(HEADER.min(found.bytes.len()));
        }
    }
    Ok(found)
}

/// What was made and not written yet may be most of a segment: compared by blocks, since byte by byte took a quarter of a replay.
fn is_zero(bytes: &[u8]) -> bool {
    let (blocks, rest) = bytes.as_chunks();
    blocks.iter().all(|block| *block == [0; 64]) && rest.iter().all(|&byte| byte == 0)
}

impl Found {
    /// Finds all frames from here on, skipping what does not hold together.
    fn scan(&mut self, mut from: usize) {
        loop {
            while let Some(frame) = Frame::parse(&self.bytes, self.number, from) {
                let bytes = frame.bytes() as usize;
                self.frames.push(from);
                from += bytes;
            }
            self.end = from;
            if is_zero(&self.bytes[from..]) {
                return;
            }
            self.fault.get_or_insert(from);
            let is_frame = |&at: &usize| Frame::parse(&self.bytes, self.number, at).is_some();
            let Some(next) = (from + 1..self.bytes.len()).find(is_frame) else {
                return;
            };
            from = next;
        }
    }

    /// The frames that hold together, in order.
    pub(crate) fn frames(&self) -> impl ExactSizeIterator<Item = Frame<'_>> {
        let frames = self.frames.iter();
        frames.map(|&at| Frame::known(&self.bytes, at))
    }

    /// Those behind the fault.
    fn behind(&self, fault: usize) -> impl Iterator<Item = Frame<'_>> {
        let before = self.frames.partition_point(|&at| at < fault);
        self.frames().skip(before)
    }

    /// Where something does not hold together, and whether frames follow it here.
    pub(crate) fn fault(&self) -> Option<(u64, bool)> {
        let fault = self.fault?;
        Some((fault as u64, self.behind(fault).next().is_some()))
    }

    /// Bytes that are in no frame, up to the last byte that is not zero.
    pub(crate) fn unreadable(&self) -> u64 {
        let Some(fault) = self.fault else {
            return 0;
        };
        let end = self.bytes.iter().rposition(|&byte| byte != 0);
        let framed: u64 = self.behind(fault).map(|frame| frame.bytes()).sum();
        let all = end.map_or(0, |end| end + 1).saturating_sub(fault);
        (all as u64).saturating_sub(framed)
    }

    /// The room that was read into.
    pub(crate) fn into_room(self) -> Vec<u8> {
        self.bytes
    }

    /// What the log needs to know of it, once its last frame's end is the file's.
    pub(crate) fn segment(&self) -> Segment {
        Segment {
            number: self.number,
            bytes: match self.fault {
                Some(0) => 0,
                _ => self.end as u64,
            },
            newest: self
                .frames()
                .map(|frame| frame.generation)
                .max()
                .unwrap_or(0),
            damaged: false,
        }
    }
}
