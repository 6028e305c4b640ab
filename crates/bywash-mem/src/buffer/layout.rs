//! The layout of a buffer: how its offsets are divided among frames.

use std::ops::Range;

use super::error::WriteAtError;
use crate::frames::{MAX_FRAME, MIN_FRAME, SizeClass};

/// Frame length of a buffer of unknown size, in bytes: the smallest that the arena backs with huge pages.
const UNKNOWN_SIZE_FRAME: usize = 2 << 20;
/// Smallest frame length chosen for a known size, in bytes. In smaller frames the bookkeeping is measurable compared with the copying.
const SMALLEST_CHOSEN_FRAME: u64 = 64 << 10;

/// Frames of one length from offset 0 on. A shorter frame ends at the expected size, and one more covers the rest of its span.
#[derive(Debug, Clone, Copy)]
pub(super) struct BufferLayout {
    frame_len: u64,
    /// Offset at which the short frame at the expected end is full; 0 without one.
    tail: u64,
    /// Expected size, within the limit.
    expected: u64,
    limit: u64,
}

/// Frames of the expected size: full ones, then a shorter one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ExpectedFrames {
    /// Number of frames of the buffer's full length.
    pub(super) full: u64,
    /// Bytes of the last, shorter frame; 0 without one.
    pub(super) tail: u64,
}

impl BufferLayout {
    pub(super) fn new(
        expected: u64,
        limit: u64,
        frame_len: Option<usize>,
    ) -> Result<Self, WriteAtError> {
        let expected = expected.min(limit);
        let frame_len = match frame_len {
            Some(len) if len.is_power_of_two() && (MIN_FRAME..=MAX_FRAME).contains(&len) => {
                len as u64
            }
            Some(len) => return Err(WriteAtError::FrameLen { len }),
            None if expected == 0 => UNKNOWN_SIZE_FRAME as u64,
            None => expected
                .min(MAX_FRAME as u64)
                .next_power_of_two()
                .max(SMALLEST_CHOSEN_FRAME),
        };
        let rest = expected % frame_len;
        let short = SizeClass::of(rest as usize).map_or(0, SizeClass::bytes);
        Ok(Self {
            frame_len,
            tail: if rest == 0 {
                0
            } else {
                (expected - rest).saturating_add(short)
            },
            expected,
            limit,
        })
    }

    /// Layout of a single frame.
    pub(super) fn single_frame(capacity: usize, len: u64) -> Self {
        Self {
            frame_len: capacity as u64,
            tail: 0,
            expected: len,
            limit: len,
        }
    }

    pub(super) fn frame_len(&self) -> u64 {
        self.frame_len
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// Frames that the expected size needs.
    pub(super) fn expected(&self) -> ExpectedFrames {
        ExpectedFrames {
            full: self.expected / self.frame_len,
            tail: self.expected % self.frame_len,
        }
    }

    /// Offsets that share a frame with `offset`. The first one is the frame's first byte.
    pub(super) fn span(&self, offset: u64) -> Range<u64> {
        let start = offset & !(self.frame_len - 1);
        let end = start.saturating_add(self.frame_len);
        let span = if !(start + 1..end).contains(&self.tail) {
            start..end
        } else if offset < self.tail {
            start..self.tail
        } else {
            self.tail..end
        };
        span.start..span.end.min(self.limit)
    }

    /// Spans that a range touches, in order.
    pub(super) fn spans(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let first = (!range.is_empty()).then(|| self.span(range.start));
        std::iter::successors(first, move |span| {
            (span.end < range.end).then(|| self.span(span.end))
        })
    }
}
