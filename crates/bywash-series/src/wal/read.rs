//! Reading a log that someone left.
//!
//! A crash leaves frames up to some byte and nothing that holds together behind it: that is cut. Where a frame does not hold
//! together and whole ones follow, no crash did it: that is damage, which is reported, and skipped only on demand.

use std::fs::File;
use std::io::{self, Read, Seek, Take};
use std::path::{Path, PathBuf};

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use super::disk::Folder;
use super::frame::{Frame, HEAD};
use super::io_error;
use super::segment::{HEADER, Header, path_of, read_header};
use crate::SeriesError;
use crate::limits::MAX_FRAME_BYTES;

/// Bytes that are read at once, but for longer frames: few enough for a core's cache. With all of a segment at once, a third of a
/// start went into fetching memory for it.
const CHUNK: u64 = 256 << 10;

/// Frames of one segment, one after the other, until something does not hold together.
pub(crate) struct SegmentReader<R> {
    from: R,
    path: PathBuf,
    number: u64,
    /// What was read and is needed.
    bytes: Vec<u8>,
    /// Where that begins in the file.
    base: u64,
    /// Where the next frame is expected, in `bytes`.
    at: usize,
    header: Header,
}

/// Opens one segment. `room` is memory to read into.
pub(crate) fn read_segment(
    folder: &Folder,
    number: u64,
    room: Vec<u8>,
) -> Result<SegmentReader<Take<File>>, SeriesError> {
    let path = path_of(&folder.path, number);
    let file = written(&path).map_err(io_error("read", &path))?;
    SegmentReader::new(file, path, number, room)
}

/// A file, but not all zeros at its end: most of a segment may have been made and not written yet.
fn written(path: &Path) -> io::Result<Take<File>> {
    let mut file = File::open(path)?;
    // Zeros that end a frame may have become a hole, in a copy: a frame that begins before it is read whole.
    let behind = (HEAD + MAX_FRAME_BYTES) as u64;
    let most = data_end(&file).map_or(u64::MAX, |end| end + behind);
    file.rewind()?;
    Ok(file.take(most))
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

impl<R: Read> SegmentReader<R> {
    /// A segment that begins with what `from` reads; `path` is told of it.
    pub(super) fn new(
        from: R,
        path: PathBuf,
        number: u64,
        mut room: Vec<u8>,
    ) -> Result<Self, SeriesError> {
        room.clear();
        let mut reader = Self {
            from,
            path,
            number,
            bytes: room,
            base: 0,
            at: 0,
            header: Header::Torn,
        };
        reader.more()?;
        reader.header = read_header(&reader.bytes, number);
        match reader.header {
            Header::Newer(format) => {
                let path = reader.path;
                return Err(SeriesError::NewerLog { path, format });
            }
            Header::Whole => reader.at = HEADER,
            Header::Torn => {}
        }
        Ok(reader)
    }

    /// The next frame; none where none holds together.
    pub(crate) fn next(&mut self) -> Result<Option<Frame<'_>>, SeriesError> {
        if self.header != Header::Whole {
            return Ok(None);
        }
        loop {
            let place = (self.number, self.base + self.at as u64);
            if let Some(frame) = Frame::parse(&self.bytes[self.at..], place) {
                let begin = self.at;
                self.at += frame.bytes() as usize;
                return Ok(Some(Frame::known(&self.bytes[begin..])));
            }
            // It may only not be all there yet.
            if self.bytes.len() - self.at > HEAD + MAX_FRAME_BYTES || !self.more()? {
                return Ok(None);
            }
        }
    }

    /// Reads on, in the place of what is no longer needed. False: there is no more.
    fn more(&mut self) -> Result<bool, SeriesError> {
        self.bytes.drain(..self.at);
        self.base += self.at as u64;
        self.at = 0;
        self.bytes.reserve(CHUNK as usize);
        let read = self.from.by_ref().take(CHUNK).read_to_end(&mut self.bytes);
        Ok(read.map_err(io_error("read", &self.path))? > 0)
    }

    /// What is behind the frames.
    pub(crate) fn rest(mut self) -> Result<Rest, SeriesError> {
        let read = self.from.read_to_end(&mut self.bytes);
        read.map_err(io_error("read", &self.path))?;
        let mut rest = Rest {
            number: self.number,
            bytes: self.bytes,
            base: self.base,
            frames: Vec::new(),
            end: self.at,
            fault: None,
        };
        if self.header == Header::Whole {
            rest.scan(self.at);
        } else if !is_zero(&rest.bytes) {
            rest.fault = Some(0);
            rest.scan(HEADER.min(rest.bytes.len()));
        }
        Ok(rest)
    }
}

/// What is behind the first frames of a segment: zeros, or something that does not hold together, and maybe frames again.
#[derive(Debug)]
pub(crate) struct Rest {
    number: u64,
    bytes: Vec<u8>,
    /// Where they begin in the file.
    base: u64,
    /// Where frames begin that hold together, in order.
    frames: Vec<usize>,
    /// Where the last of all frames ends, or the header; 0: not begun.
    end: usize,
    /// Where something does not hold together, if it does not.
    fault: Option<usize>,
}

/// What was made and not written yet may be most of a segment: compared by blocks, since byte by byte took a quarter of a replay.
fn is_zero(bytes: &[u8]) -> bool {
    let (blocks, rest) = bytes.as_chunks();
    blocks.iter().all(|block| *block == [0; 64]) && rest.iter().all(|&byte| byte == 0)
}

impl Rest {
    /// Finds all frames from here on, skipping what does not hold together.
    fn scan(&mut self, mut from: usize) {
        loop {
            while let Some(frame) = self.parse(from) {
                let bytes = frame.bytes() as usize;
                self.frames.push(from);
                from += bytes;
            }
            self.end = from;
            if is_zero(&self.bytes[from..]) {
                return;
            }
            self.fault.get_or_insert(from);
            let is_frame = |&at: &usize| self.parse(at).is_some();
            let Some(next) = (from + 1..self.bytes.len()).find(is_frame) else {
                return;
            };
            from = next;
        }
    }

    fn parse(&self, at: usize) -> Option<Frame<'_>> {
        Frame::parse(&self.bytes[at..], (self.number, self.base + at as u64))
    }

    /// The frames that hold together, in order: all are behind the fault.
    pub(crate) fn frames(&self) -> impl ExactSizeIterator<Item = Frame<'_>> {
        let frames = self.frames.iter();
        frames.map(|&at| Frame::known(&self.bytes[at..]))
    }

    /// Where something does not hold together, and whether frames follow it here.
    pub(crate) fn fault(&self) -> Option<(u64, bool)> {
        let fault = self.base + self.fault? as u64;
        Some((fault, !self.frames.is_empty()))
    }

    /// Bytes that are in no frame, up to the last byte that is not zero.
    pub(crate) fn unreadable(&self) -> u64 {
        let Some(fault) = self.fault else {
            return 0;
        };
        let end = self.bytes.iter().rposition(|&byte| byte != 0);
        let framed: u64 = self.frames().map(|frame| frame.bytes()).sum();
        let all = end.map_or(0, |end| end + 1).saturating_sub(fault);
        (all as u64).saturating_sub(framed)
    }

    /// Bytes of the segment up to the end of its last frame; 0: not begun.
    pub(crate) fn end(&self) -> u64 {
        match self.fault() {
            Some((0, _)) => 0,
            _ => self.base + self.end as u64,
        }
    }

    /// The memory that was read into.
    pub(crate) fn into_room(self) -> Vec<u8> {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::Kind;
    use super::super::segment::header;
    use super::*;

    fn reader(bytes: &[u8]) -> SegmentReader<&[u8]> {
        SegmentReader::new(bytes, "segment".into(), 1, Vec::new()).unwrap()
    }

    fn lengths(reader: &mut SegmentReader<&[u8]>) -> Vec<usize> {
        std::iter::from_fn(|| Some(reader.next().unwrap()?.body.len())).collect()
    }

    #[test]
    fn frames_are_found_across_chunks_and_longer_than_one() {
        let bodies = [0, 100_000, 200_000, 900_000, MAX_FRAME_BYTES, 1, 300_000];
        let mut file = header(1).to_vec();
        let mut ends = Vec::new();
        for length in bodies {
            let body: Vec<u8> = (0..length).map(|n| n as u8).collect();
            let place = (1, file.len() as u64);
            Frame::new(Kind::Rows, 7, &body).put(place, &mut file);
            ends.push(file.len());
        }
        let whole = file.len();
        file.resize(whole + 3 * CHUNK as usize, 0);
        let mut all = reader(&file);
        assert_eq!(lengths(&mut all), bodies);
        let rest = all.rest().unwrap();
        assert_eq!((rest.end(), rest.fault()), (whole as u64, None));

        // Damage before the last two: they are behind it.
        file[ends[4] - 1] ^= 1;
        let mut damaged = reader(&file[..whole]);
        assert_eq!(lengths(&mut damaged), bodies[..4]);
        let rest = damaged.rest().unwrap();
        assert_eq!(rest.fault(), Some((ends[3] as u64, true)));
        let behind: Vec<usize> = rest.frames().map(|frame| frame.body.len()).collect();
        assert_eq!((behind, rest.end()), (bodies[5..].to_vec(), whole as u64));
        assert_eq!(rest.unreadable(), (ends[4] - ends[3]) as u64);

        // The last byte is missing.
        let mut torn = reader(&file[..ends[2] - 1]);
        assert_eq!(lengths(&mut torn), bodies[..2]);
        let rest = torn.rest().unwrap();
        assert_eq!(rest.fault(), Some((ends[1] as u64, false)));
        assert_eq!(rest.end(), ends[1] as u64);
    }
}
