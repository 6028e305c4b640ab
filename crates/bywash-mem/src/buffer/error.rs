//! What can go wrong with a write-at buffer.

use std::io;
use std::ops::Range;

use crate::error::{FrameError, LoadError};

/// A buffer refused. Nothing was changed, unless a read or write says otherwise.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum WriteAtError {
    /// The frame length asked for is no class.
    #[error(
        "write-at buffer: frames of {len} bytes do not exist; ask for a power of two from {min} to {max}",
        min = crate::MIN_FRAME,
        max = crate::MAX_FRAME
    )]
    FrameLen {
        /// What was asked for, in bytes.
        len: usize,
    },
    /// Bytes outside what the buffer may ever hold, or an end past 2^64 - 1.
    #[error(
        "write-at buffer: {len} bytes at offset {offset} pass its limit of {limit} bytes; write below it, or make a buffer with a higher limit"
    )]
    Offset {
        /// Where the bytes would begin.
        offset: u64,
        /// How many.
        len: u64,
        /// The buffer's limit.
        limit: u64,
    },
    /// There are no frames for this range now. A buffer that holds memory does not wait for more: try later, or give up and
    /// drop it.
    #[error(
        "write-at buffer: no {bytes} bytes of memory are free now; try later or drop the buffer"
    )]
    Memory {
        /// What was missing, in bytes.
        bytes: u64,
    },
    /// The first frames, which a new buffer may wait for, could not be had.
    #[error("write-at buffer: {0}")]
    Frames(#[from] FrameError),
    /// A read began where nothing is written yet.
    #[error(
        "write-at buffer: bytes {} to {} are not written yet; read elsewhere, or follow the buffer to wait for them",
        hole.start,
        hole.end
    )]
    Hole {
        /// What is missing there.
        hole: Range<u64>,
    },
    /// Another shard holds part of the range.
    #[error(
        "write-at buffer: bytes {} to {} are being written by another; wait for that or write elsewhere",
        range.start,
        range.end
    )]
    InFlight {
        /// The other's range.
        range: Range<u64>,
    },
    /// It was committed or frozen: it can be read, and written no more.
    #[error("write-at buffer: it is complete and closed; write to a new one")]
    Closed,
    /// It was cancelled, or its last handle was dropped before it was complete.
    #[error("write-at buffer: it was cancelled; start again with a new one")]
    Cancelled,
    /// It failed for this reason, the first that was given.
    #[error("write-at buffer failed: {0}")]
    Failed(#[source] LoadError),
}

impl From<WriteAtError> for io::Error {
    fn from(error: WriteAtError) -> Self {
        let kind = match &error {
            WriteAtError::FrameLen { .. } | WriteAtError::Offset { .. } => {
                io::ErrorKind::InvalidInput
            }
            WriteAtError::Memory { .. } => io::ErrorKind::OutOfMemory,
            WriteAtError::Frames(FrameError::Deadline { .. }) => io::ErrorKind::TimedOut,
            WriteAtError::Frames(_) => io::ErrorKind::OutOfMemory,
            WriteAtError::Hole { .. } => io::ErrorKind::UnexpectedEof,
            WriteAtError::InFlight { .. } => io::ErrorKind::ResourceBusy,
            WriteAtError::Closed => io::ErrorKind::BrokenPipe,
            WriteAtError::Cancelled => io::ErrorKind::ConnectionAborted,
            WriteAtError::Failed(_) => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

/// A buffer is not complete. It stays open, for repair.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum FreezeError {
    /// Bytes are missing; those that are being written count as missing.
    #[error(
        "write-at buffer: {} ranges are missing, the first from {} to {}; write them, then freeze again",
        .0.len(),
        .0[0].start,
        .0[0].end
    )]
    Holes(Vec<Range<u64>>),
    /// More was written than was to be frozen.
    #[error("write-at buffer: {size} bytes were written, {len} expected; the size was wrong")]
    TooLong {
        /// The length to freeze.
        len: u64,
        /// The written extent.
        size: u64,
    },
    /// All bytes are there, but a shard is still held, at its end or past the others.
    #[error(
        "write-at buffer: bytes {} to {} are still claimed; drop that shard, then freeze again",
        range.start,
        range.end
    )]
    InFlight {
        /// The shard's range.
        range: Range<u64>,
    },
    /// The buffer failed or was cancelled before.
    #[error(transparent)]
    Ended(#[from] WriteAtError),
}
