//! Reading a log that someone left.
//!
//! A crash leaves frames up to some byte and nothing that holds together behind it: that is cut. Where a frame does not hold
//! together and whole ones follow, no crash did it: that is damage, which is reported, and skipped only on demand.

use std::fs;
use std::path::Path;

use super::disk::Folder;
use super::frame::Frame;
use super::segment::{HEADER, Header, path_of, read_header};
use super::{Segment, io_error};
use crate::SeriesError;

/// What was found behind each other in one segment.
#[derive(Debug)]
pub(crate) struct Found {
    number: u64,
    bytes: Vec<u8>,
    /// Where frames stand that follow each other.
    stretches: Vec<std::ops::Range<usize>>,
    /// Where something does not hold together, if it does not.
    fault: Option<usize>,
}

/// Reads one segment whole into memory, and finds its frames.
pub(crate) fn read_segment(folder: &Folder, number: u64) -> Result<Found, SeriesError> {
    let path = path_of(&folder.path, number);
    let bytes = fs::read(&path).map_err(io_error("read", &path))?;
    found(bytes, number, &path)
}

/// What the bytes of a segment, which came from `path`, hold.
pub(super) fn found(bytes: Vec<u8>, number: u64, path: &Path) -> Result<Found, SeriesError> {
    let mut found = Found {
        number,
        bytes,
        stretches: Vec::new(),
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
            let mut at = from;
            while let Some(frame) = self.frame(at) {
                at += frame.bytes() as usize;
            }
            self.stretches.push(from..at);
            if is_zero(&self.bytes[at..]) {
                return;
            }
            self.fault.get_or_insert(at);
            let next = (at + 1..self.bytes.len()).find(|&at| self.frame(at).is_some());
            let Some(next) = next else { return };
            from = next;
        }
    }

    fn frame(&self, at: usize) -> Option<Frame<'_>> {
        Frame::parse(&self.bytes, self.number, at)
    }

    /// The frames that hold together, in order.
    pub(crate) fn frames(&self) -> impl Iterator<Item = Frame<'_>> {
        self.stretches.iter().flat_map(move |stretch| {
            let mut at = stretch.start;
            std::iter::from_fn(move || {
                let frame = (at < stretch.end).then(|| self.frame(at))??;
                at += frame.bytes() as usize;
                Some(frame)
            })
        })
    }

    /// Where something does not hold together, and whether frames follow it here.
    pub(crate) fn fault(&self) -> Option<(u64, bool)> {
        let fault = self.fault?;
        let behind =
            |stretch: &std::ops::Range<usize>| stretch.start >= fault && !stretch.is_empty();
        Some((fault as u64, self.stretches.iter().any(behind)))
    }

    /// Bytes that are in no frame, up to the last byte that is not zero.
    pub(crate) fn unreadable(&self) -> u64 {
        let Some(fault) = self.fault else {
            return 0;
        };
        let end = self.bytes.iter().rposition(|&byte| byte != 0);
        let behind = self
            .stretches
            .iter()
            .filter(|stretch| stretch.start >= fault);
        let framed: usize = behind.map(|stretch| stretch.len()).sum();
        (end.map_or(0, |end| end + 1).saturating_sub(fault + framed)) as u64
    }

    /// What the log needs to know of it, once its last frame's end is the file's.
    pub(crate) fn segment(&self) -> Segment {
        Segment {
            number: self.number,
            bytes: match self.fault {
                Some(0) => 0,
                _ => self.stretches.last().map_or(0, |last| last.end as u64),
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
