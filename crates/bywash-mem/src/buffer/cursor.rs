//! A buffer as a file.

use std::io::{self, Read, Seek, SeekFrom, Write};

use super::buffer::WriteAtBuffer;

/// A position in a buffer: [`Read`], [`Write`] and [`Seek`] by [`WriteAtBuffer::read_at`] and [`WriteAtBuffer::write_at`].
/// Clones go their own ways.
///
/// Seeking past the end is allowed: a read there answers 0, a write leaves a hole, which is not read as zeroes.
#[derive(Debug, Clone)]
pub struct WriteAtCursor {
    buffer: WriteAtBuffer,
    position: u64,
}

impl WriteAtCursor {
    pub(super) fn new(buffer: WriteAtBuffer) -> Self {
        Self {
            buffer,
            position: 0,
        }
    }

    /// The buffer it is in.
    #[must_use]
    pub fn buffer(&self) -> &WriteAtBuffer {
        &self.buffer
    }

    /// Where the next byte is read or written.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }
}

impl Read for WriteAtCursor {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let n = self.buffer.read_at(self.position, into)?;
        self.position += n as u64;
        Ok(n)
    }
}

impl Write for WriteAtCursor {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.buffer.write_at(self.position, bytes)?;
        self.position += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for WriteAtCursor {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
            SeekFrom::End(by) => self.buffer.size().checked_add_signed(by),
        };
        self.position = position.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                "write-at buffer: seek before byte 0 or past 2^64 - 1; the position is unchanged",
            )
        })?;
        Ok(self.position)
    }
}
