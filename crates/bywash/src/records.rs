//! Files of records that survive a crash at any byte: how the journals of uploads are framed.
//!
//! ```text
//! magic[8] version:u32                           numbers are little-endian
//! length:u32 kind:u32 check:u32 body check:u32   one record, then the next
//! ```
//!
//! Both checks are CRC32C and begin with the record's position in the file (`u64`), so a record that stands where another
//! belongs is noticed. Records are appended by one write each, and the next only after the last is on disk: only the last
//! one can be torn.

use crc_fast::{CrcAlgorithm, Digest};

/// Bytes of a record before its body.
const HEAD_BYTES: usize = 12;
/// Bytes of a record after its body.
const TAIL_BYTES: usize = 4;

/// One kind of file.
#[derive(Debug, Clone, Copy)]
pub struct RecordFormat {
    /// The first bytes of a file.
    pub magic: [u8; 8],
    /// The version that is written, the only one that is read.
    pub version: u32,
    /// The longest body, in bytes: a longer one in a file is damage.
    pub longest: usize,
}

/// How a file begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beginning {
    /// As it should; the first record is at this position.
    Known(usize),
    /// As a file of another version.
    Version(u32),
    /// As no such file.
    Foreign,
}

/// One step through a file.
#[derive(Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// A whole record.
    Record {
        /// As it was written; whether there is such a kind, the reader knows.
        kind: u32,
        /// What the record says.
        body: &'a [u8],
        /// Where the next begins.
        next: usize,
    },
    /// The file ends here.
    End,
    /// The last record did not get to the disk whole.
    Torn,
    /// Bytes that no crash leaves behind, and what is wrong with them.
    Damaged(&'static str),
}

impl RecordFormat {
    /// What a file begins with.
    #[must_use]
    pub fn begin(&self) -> Vec<u8> {
        let mut bytes = self.magic.to_vec();
        bytes.extend_from_slice(&self.version.to_le_bytes());
        bytes
    }

    /// How a file begins.
    #[must_use]
    pub fn beginning(&self, file: &[u8]) -> Beginning {
        let version = file
            .strip_prefix(&self.magic)
            .and_then(|rest| rest.first_chunk().copied());
        match version.map(u32::from_le_bytes) {
            Some(version) if version == self.version => Beginning::Known(self.magic.len() + 4),
            // No version is 0: so ends a file whose bytes did not get to the disk.
            None | Some(0) => Beginning::Foreign,
            Some(version) => Beginning::Version(version),
        }
    }

    /// Appends to `out` the record that will stand at `position` in the file; `body` writes what it says.
    ///
    /// Returns `false`, and leaves `out` as it was, if the body is too long for a record.
    #[must_use]
    pub fn append(
        &self,
        out: &mut Vec<u8>,
        position: u64,
        kind: u32,
        body: impl FnOnce(&mut Vec<u8>),
    ) -> bool {
        let start = out.len();
        out.extend_from_slice(&[0; HEAD_BYTES]);
        body(out);
        let length = out.len() - start - HEAD_BYTES;
        let Some(length) = u32::try_from(length)
            .ok()
            .filter(|_| length <= self.longest)
        else {
            out.truncate(start);
            return false;
        };
        let head = &mut out[start..start + HEAD_BYTES];
        head[..4].copy_from_slice(&length.to_le_bytes());
        head[4..8].copy_from_slice(&kind.to_le_bytes());
        let of_head = check(position, &head[..8]);
        head[8..].copy_from_slice(&of_head.to_le_bytes());
        let of_body = check(position, &out[start + HEAD_BYTES..]);
        out.extend_from_slice(&of_body.to_le_bytes());
        true
    }

    /// Reads the record at `position`.
    #[must_use]
    pub fn step<'a>(&self, file: &'a [u8], position: usize) -> Step<'a> {
        let rest = file.get(position..).unwrap_or_default();
        if rest.is_empty() {
            return Step::End;
        }
        // A file whose length got to the disk before its bytes ends in zeros.
        let Some(head) = rest.get(..HEAD_BYTES) else {
            return Step::Torn;
        };
        if rest.iter().all(|byte| *byte == 0) {
            return Step::Torn;
        }
        if number(&head[8..]) != check(position as u64, &head[..8]) {
            return Step::Damaged("the head of a record does not match its checksum");
        }
        let length = number(&head[..4]) as usize;
        if length > self.longest {
            return Step::Damaged("a record is longer than any can be");
        }
        let end = HEAD_BYTES + length;
        let Some(tail) = rest.get(end..end + TAIL_BYTES) else {
            return Step::Torn;
        };
        let body = &rest[HEAD_BYTES..end];
        if number(tail) == check(position as u64, body) {
            return Step::Record {
                kind: number(&head[4..8]),
                body,
                next: position + end + TAIL_BYTES,
            };
        }
        if rest.len() == end + TAIL_BYTES && tail == [0; TAIL_BYTES] {
            Step::Torn
        } else {
            Step::Damaged("a record does not match its checksum")
        }
    }
}

/// CRC32C of a record's position and some of its bytes.
fn check(position: u64, bytes: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(&position.to_le_bytes());
    digest.update(bytes);
    // A CRC of 32 bits.
    digest.finalize() as u32
}

/// The number in the first four bytes.
fn number(bytes: &[u8]) -> u32 {
    let mut four = [0; 4];
    four.copy_from_slice(&bytes[..4]);
    u32::from_le_bytes(four)
}
