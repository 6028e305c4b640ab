//! Copies a downloaded file, piece by piece, and digests the copied bytes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use bywash_store::{ContentDigest, RunningDigest};
use object_store::Error;

/// Bytes copied between two moments at which a copy can be cancelled: some 10 ms.
const PIECE_BYTES: u64 = 16 << 20;
/// Bytes read at a time.
const BUFFER_BYTES: usize = 256 << 10;

/// How a copy failed.
#[derive(Debug)]
pub(super) enum CopyError {
    /// The copied file differs from the bytes written, or cannot be read.
    From(&'static str),
    /// The copy cannot be written.
    To(io::Error),
    /// The bytes do not have the digest that the caller gave.
    Object(Error),
}

/// The bytes copied so far.
#[derive(Debug)]
pub(super) struct Copied {
    pub(super) bytes: u64,
    written: RunningDigest,
    given: Option<RunningDigest>,
}

impl Copied {
    /// Begins a copy that is digested by the algorithms of `written` and `given`.
    pub(super) fn new(written: &ContentDigest, given: Option<&ContentDigest>) -> Self {
        Self {
            bytes: 0,
            written: RunningDigest::like(written),
            given: given.map(RunningDigest::like),
        }
    }

    /// Returns the digests of all bytes.
    pub(super) fn digests(self) -> (ContentDigest, Option<ContentDigest>) {
        (self.written.finish(), self.given.map(RunningDigest::finish))
    }
}

/// Copies the next piece of `size` bytes. Blocks. Neither uses nor moves the cursors of the files: a copy that was
/// cancelled may still be running, of the same file.
pub(super) fn copy_piece(
    from: &File,
    to: &File,
    size: u64,
    mut copied: Copied,
) -> Result<Copied, CopyError> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let end = size.min(copied.bytes + PIECE_BYTES);
    while copied.bytes < end {
        let max = (end - copied.bytes).min(BUFFER_BYTES as u64) as usize;
        match from.read_at(&mut buffer[..max], copied.bytes) {
            Ok(0) => return Err(CopyError::From("it was truncated")),
            Ok(read) => {
                let bytes = &buffer[..read];
                let wrote = to.write_all_at(bytes, copied.bytes);
                wrote.map_err(CopyError::To)?;
                copied.written.update(bytes);
                if let Some(given) = &mut copied.given {
                    given.update(bytes);
                }
                copied.bytes += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Err(CopyError::From("it cannot be read")),
        }
    }
    Ok(copied)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::io::{Seek, SeekFrom};

    use super::*;

    /// A cancelled copy continues in its thread while the next one runs.
    #[test]
    fn concurrent_copies_of_one_open_file_are_all_equal_to_it() {
        let content: Vec<u8> = (0..3_000_011_u32)
            .map(|i| (i * 31 + i / 251) as u8)
            .collect();
        let mut from = tempfile::tempfile().unwrap();
        from.write_all_at(&content, 0).unwrap();
        let cursor = from.seek(SeekFrom::Start(77)).unwrap();
        let size = content.len() as u64;
        let like = ContentDigest::Crc32c(0);
        let mut expected = RunningDigest::like(&like);
        expected.update(&content);
        let expected = expected.finish();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let to = tempfile::tempfile().unwrap();
                    let mut copied = Copied::new(&like, Some(&like));
                    while copied.bytes < size {
                        copied = copy_piece(&from, &to, size, copied).unwrap();
                    }
                    assert_eq!(copied.digests(), (expected, Some(expected)));
                    let mut bytes = vec![0; content.len()];
                    to.read_exact_at(&mut bytes, 0).unwrap();
                    assert!(bytes == content);
                });
            }
        });
        assert_eq!(from.stream_position().unwrap(), cursor);
    }
}
