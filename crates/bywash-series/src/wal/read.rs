//! Reading the segments of a log.
//!
//! A crash leaves frames up to some byte and nothing valid after it: a torn end, which is cut. Invalid bytes before
//! valid frames are damage, which no crash causes. Damage is reported, and skipped only on request.

use std::fs::File;
use std::io::{self, Read, Seek, Take};
use std::path::{Path, PathBuf};

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use super::disk::LogFolder;
use super::frame::{FRAME_HEADER, Frame};
use super::log_error;
use super::segment::{Header, SEGMENT_HEADER, path_of, read_header};
use crate::SeriesError;
use crate::limits::MAX_FRAME_BYTES;

/// Bytes read at a time, except for longer frames: fits a core's cache. Reading a whole segment at once spent a third
/// of a replay on page faults.
const CHUNK: u64 = 256 << 10;

/// Reads the frames of one segment up to the first invalid byte.
pub(crate) struct SegmentReader<R> {
    from: R,
    path: PathBuf,
    number: u64,
    /// Bytes read and still needed.
    bytes: Vec<u8>,
    /// Offset of these bytes in the file.
    base: u64,
    /// Index in `bytes` of the next frame.
    at: usize,
    header: Header,
}

/// Opens one segment. Reuses `buffer`.
pub(crate) fn read_segment(
    folder: &LogFolder,
    number: u64,
    buffer: Vec<u8>,
) -> Result<SegmentReader<Take<File>>, SeriesError> {
    let path = path_of(&folder.path, number);
    let file = written(&path).map_err(log_error("read", &path))?;
    SegmentReader::new(file, path, number, buffer)
}

/// Opens a file without most of its trailing zeros: a preallocated segment may be mostly unwritten.
fn written(path: &Path) -> io::Result<Take<File>> {
    let mut file = File::open(path)?;
    // In a copy, zeros at the end of a frame may have become a hole: read a whole frame further.
    let behind = (FRAME_HEADER + MAX_FRAME_BYTES) as u64;
    let limit = data_end(&file).map_or(u64::MAX, |end| end + behind);
    file.rewind()?;
    Ok(file.take(limit))
}

/// Offset after the last data of a file. An error if the file system does not support the query.
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
    /// Reads a segment from `from`. Errors name `path`.
    pub(super) fn new(
        from: R,
        path: PathBuf,
        number: u64,
        mut buffer: Vec<u8>,
    ) -> Result<Self, SeriesError> {
        buffer.clear();
        let mut reader = Self {
            from,
            path,
            number,
            bytes: buffer,
            base: 0,
            at: 0,
            header: Header::Torn,
        };
        reader.fill()?;
        reader.header = read_header(&reader.bytes, number);
        match reader.header {
            Header::Newer(format) => {
                let path = reader.path;
                return Err(SeriesError::NewerLog { path, format });
            }
            Header::Whole => reader.at = SEGMENT_HEADER,
            Header::Torn => {}
        }
        Ok(reader)
    }

    /// Returns the next frame, or `None` at the first invalid byte.
    pub(crate) fn next(&mut self) -> Result<Option<Frame<'_>>, SeriesError> {
        if self.header != Header::Whole {
            return Ok(None);
        }
        loop {
            let position = (self.number, self.base + self.at as u64);
            if let Some(frame) = Frame::parse(&self.bytes[self.at..], position) {
                let begin = self.at;
                self.at += frame.bytes() as usize;
                return Ok(Some(Frame::parsed(&self.bytes[begin..])));
            }
            // The frame may be incomplete in the buffer.
            if self.bytes.len() - self.at > FRAME_HEADER + MAX_FRAME_BYTES || !self.fill()? {
                return Ok(None);
            }
        }
    }

    /// Discards consumed bytes and reads more. Returns false at the end of the file.
    fn fill(&mut self) -> Result<bool, SeriesError> {
        self.bytes.drain(..self.at);
        self.base += self.at as u64;
        self.at = 0;
        self.bytes.reserve(CHUNK as usize);
        let read = self.from.by_ref().take(CHUNK).read_to_end(&mut self.bytes);
        Ok(read.map_err(log_error("read", &self.path))? > 0)
    }

    /// Reads and scans all bytes after the frames.
    pub(crate) fn tail(mut self) -> Result<SegmentTail, SeriesError> {
        let read = self.from.read_to_end(&mut self.bytes);
        read.map_err(log_error("read", &self.path))?;
        let mut tail = SegmentTail {
            number: self.number,
            bytes: self.bytes,
            base: self.base,
            frames: Vec::new(),
            end: self.at,
            damage: None,
        };
        if self.header == Header::Whole {
            tail.scan(self.at);
        } else if !is_zero(&tail.bytes) {
            tail.damage = Some(0);
            tail.scan(SEGMENT_HEADER.min(tail.bytes.len()));
        }
        Ok(tail)
    }
}

/// The bytes after the leading frames of a segment: zeros, or invalid bytes, possibly followed by more frames.
#[derive(Debug)]
pub(crate) struct SegmentTail {
    number: u64,
    bytes: Vec<u8>,
    /// Offset of these bytes in the file.
    base: u64,
    /// Indices of valid frames after invalid bytes, in order.
    frames: Vec<usize>,
    /// End of the last frame, or of the header; 0 if not begun.
    end: usize,
    /// Index of the first invalid byte.
    damage: Option<usize>,
}

/// Most of a preallocated segment may be zeros. Compared by blocks: byte by byte took a quarter of a replay.
fn is_zero(bytes: &[u8]) -> bool {
    let (blocks, tail) = bytes.as_chunks();
    blocks.iter().all(|block| *block == [0; 64]) && tail.iter().all(|&byte| byte == 0)
}

impl SegmentTail {
    /// Finds all frames from here on, skipping invalid bytes.
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
            self.damage.get_or_insert(from);
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

    /// Valid frames in order, all after the damage.
    pub(crate) fn frames(&self) -> impl ExactSizeIterator<Item = Frame<'_>> {
        let frames = self.frames.iter();
        frames.map(|&at| Frame::parsed(&self.bytes[at..]))
    }

    /// Offset of the first invalid byte, and whether frames follow in this segment.
    pub(crate) fn damage(&self) -> Option<(u64, bool)> {
        let damage = self.base + self.damage? as u64;
        Some((damage, !self.frames.is_empty()))
    }

    /// Bytes outside of frames, up to the last nonzero byte.
    pub(crate) fn unreadable_bytes(&self) -> u64 {
        let Some(damage) = self.damage else {
            return 0;
        };
        let end = self.bytes.iter().rposition(|&byte| byte != 0);
        let framed: u64 = self.frames().map(|frame| frame.bytes()).sum();
        let all = end.map_or(0, |end| end + 1).saturating_sub(damage);
        (all as u64).saturating_sub(framed)
    }

    /// Bytes of the segment up to the end of its last frame; 0 if not begun.
    pub(crate) fn end(&self) -> u64 {
        match self.damage() {
            Some((0, _)) => 0,
            _ => self.base + self.end as u64,
        }
    }

    /// Buffer for reuse.
    pub(crate) fn into_buffer(self) -> Vec<u8> {
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
    fn frames_longer_than_a_chunk_and_across_chunks_are_read() {
        let bodies = [0, 100_000, 200_000, 900_000, MAX_FRAME_BYTES, 1, 300_000];
        let mut file = header(1).to_vec();
        let mut ends = Vec::new();
        for length in bodies {
            let body: Vec<u8> = (0..length).map(|n| n as u8).collect();
            let position = (1, file.len() as u64);
            Frame::new(Kind::Rows, 7, &body).put(position, &mut file);
            ends.push(file.len());
        }
        let whole = file.len();
        file.resize(whole + 3 * CHUNK as usize, 0);
        let mut all = reader(&file);
        assert_eq!(lengths(&mut all), bodies);
        let tail = all.tail().unwrap();
        assert_eq!((tail.end(), tail.damage()), (whole as u64, None));

        // Damage before the last two frames.
        file[ends[4] - 1] ^= 1;
        let mut damaged = reader(&file[..whole]);
        assert_eq!(lengths(&mut damaged), bodies[..4]);
        let tail = damaged.tail().unwrap();
        assert_eq!(tail.damage(), Some((ends[3] as u64, true)));
        let behind: Vec<usize> = tail.frames().map(|frame| frame.body.len()).collect();
        assert_eq!((behind, tail.end()), (bodies[5..].to_vec(), whole as u64));
        assert_eq!(tail.unreadable_bytes(), (ends[4] - ends[3]) as u64);

        // The last byte is missing.
        let mut torn = reader(&file[..ends[2] - 1]);
        assert_eq!(lengths(&mut torn), bodies[..2]);
        let tail = torn.tail().unwrap();
        assert_eq!(tail.damage(), Some((ends[1] as u64, false)));
        assert_eq!(tail.end(), ends[1] as u64);
    }
}
