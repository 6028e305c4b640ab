//! Errors of the write-at buffer.

use std::io;
use std::ops::Range;

use crate::error::{FrameError, LoadError};

/// An operation on a buffer failed. The buffer is unchanged unless the operation documents otherwise.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum WriteAtError {
    /// The requested frame length is not a size class.
    #[error(
        "write-at buffer: there are no frames of {len} bytes; choose a power of two from {min} to {max}",
        min = crate::frames::MIN_FRAME,
        max = crate::frames::MAX_FRAME
    )]
    FrameLen {
        /// Requested length, in bytes.
        len: usize,
    },
    /// The range exceeds the buffer's limit, or ends past 2^64 - 1.
    #[error(
        "write-at buffer: {len} bytes at offset {offset} exceed its limit of {limit} bytes; write below it, or create a buffer with a higher limit"
    )]
    Offset {
        /// Offset of the first byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
        /// The buffer's limit, in bytes.
        limit: u64,
    },
    /// No frames are free for this range. A buffer that holds memory does not wait for more: try later, or drop the buffer.
    #[error(
        "write-at buffer: {bytes} bytes of memory are not available now; try later or drop the buffer"
    )]
    Memory {
        /// Bytes that were not available.
        bytes: u64,
    },
    /// The initial frames, which a new buffer may wait for, were not allocated.
    #[error("write-at buffer: {0}")]
    Frames(#[from] FrameError),
    /// The first byte of a read is not written yet.
    #[error(
        "write-at buffer: bytes {} to {} are not written yet; read elsewhere, or wait for them with a reader",
        hole.start,
        hole.end
    )]
    Hole {
        /// The missing range.
        hole: Range<u64>,
    },
    /// Another claim holds part of the range.
    #[error(
        "write-at buffer: bytes {} to {} are claimed by another writer; wait for it or write elsewhere",
        range.start,
        range.end
    )]
    InFlight {
        /// Unwritten rest of the other claim.
        range: Range<u64>,
    },
    /// The buffer was committed or frozen: it can be read and no longer written.
    #[error("write-at buffer: the buffer is complete and closed; write to a new one")]
    Closed,
    /// The buffer was cancelled, or its last handle was dropped before it was complete.
    #[error("write-at buffer: the buffer was cancelled; start again with a new one")]
    Cancelled,
    /// The buffer failed for this reason, the first one given.
    #[error("write-at buffer failed: {0}")]
    Failed(#[source] LoadError),
}

impl From<WriteAtError> for io::Error {
    fn from(error: WriteAtError) -> Self {
        let kind = match &error {
            WriteAtError::FrameLen { .. } | WriteAtError::Offset { .. } => {
                io::ErrorKind::InvalidInput
            }
            WriteAtError::Memory { .. } | WriteAtError::Frames(_) => io::ErrorKind::OutOfMemory,
            WriteAtError::Hole { .. } => io::ErrorKind::UnexpectedEof,
            WriteAtError::InFlight { .. } => io::ErrorKind::ResourceBusy,
            WriteAtError::Closed => io::ErrorKind::BrokenPipe,
            WriteAtError::Cancelled => io::ErrorKind::ConnectionAborted,
            WriteAtError::Failed(_) => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

/// The buffer is not complete. It stays open for repair.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum FreezeError {
    /// Bytes are missing. Bytes in flight count as missing.
    #[error(
        "write-at buffer: {} ranges are missing, the first from {} to {}; write them, then freeze again",
        .0.len(),
        .0[0].start,
        .0[0].end
    )]
    Holes(Vec<Range<u64>>),
    /// More bytes were written than were to be frozen.
    #[error("write-at buffer: {size} bytes were written where {len} were expected; check the size")]
    TooLong {
        /// Length to freeze.
        len: u64,
        /// One past the last written byte.
        size: u64,
    },
    /// All bytes are written, but a claim is still held, at its end or after the last byte.
    #[error(
        "write-at buffer: bytes {} to {} are still claimed; drop that claim, then freeze again",
        range.start,
        range.end
    )]
    InFlight {
        /// Range of the claim.
        range: Range<u64>,
    },
    /// The buffer failed or was cancelled.
    #[error(transparent)]
    Ended(#[from] WriteAtError),
}
