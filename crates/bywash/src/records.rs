//! Record files that survive a crash at any byte: the framing of upload journals.
//!
//! ```text
//! magic[8] version:u32                           numbers are little-endian
//! length:u32 kind:u32 check:u32 body check:u32   one record, then the next
//! ```
//!
//! Both checks are CRC32C and include the record's position in the file (`u64`), so a misplaced record is detected.
//! Each record is appended by one write, after the previous one is on disk: only the last can be torn.

use crc_fast::{CrcAlgorithm, Digest};

/// Bytes of a record before its body.
const HEAD_BYTES: usize = 12;
/// Bytes of a record after its body.
const TAIL_BYTES: usize = 4;

/// Format of one kind of file.
#[derive(Debug, Clone, Copy)]
pub struct RecordFormat {
    /// The first bytes of a file.
    pub magic: [u8; 8],
    /// The version that is written, and the only one that is read.
    pub version: u32,
    /// Maximum length of a body in bytes: a longer one in a file is damage.
    pub max_len: usize,
}

/// Result of checking a file's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileHeader {
    /// Valid; the first record is at this offset.
    Known(usize),
    /// A file of another version.
    Version(u32),
    /// Not a file of this format.
    Foreign,
}

/// Result of reading one record.
#[derive(Debug, PartialEq, Eq)]
pub enum RecordRead<'a> {
    /// A whole record.
    Record {
        /// As written; the caller checks that the kind exists.
        kind: u32,
        /// The record's body.
        body: &'a [u8],
        /// Offset of the next record.
        next: usize,
    },
    /// End of the file.
    End,
    /// The last record was not written completely.
    Torn,
    /// Bytes that no crash leaves behind, and the fault in them.
    Damaged(&'static str),
}

impl RecordFormat {
    /// The header of a file.
    #[must_use]
    pub fn header(&self) -> Vec<u8> {
        let mut bytes = self.magic.to_vec();
        bytes.extend_from_slice(&self.version.to_le_bytes());
        bytes
    }

    /// Checks the header of a file.
    #[must_use]
    pub fn check_header(&self, file: &[u8]) -> FileHeader {
        let version = file
            .strip_prefix(&self.magic)
            .and_then(|rest| rest.first_chunk().copied());
        match version.map(u32::from_le_bytes) {
            Some(version) if version == self.version => FileHeader::Known(self.magic.len() + 4),
            // No version is 0: the file's bytes were not written to disk.
            None | Some(0) => FileHeader::Foreign,
            Some(version) => FileHeader::Version(version),
        }
    }

    /// Appends the record for offset `position` of the file to `out`; `body` writes its body.
    ///
    /// Returns `false`, with `out` unchanged, if the body is too long for a record.
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
            .filter(|_| length <= self.max_len)
        else {
            out.truncate(start);
            return false;
        };
        let head = &mut out[start..start + HEAD_BYTES];
        head[..4].copy_from_slice(&length.to_le_bytes());
        head[4..8].copy_from_slice(&kind.to_le_bytes());
        let of_head = checksum(position, &head[..8]);
        head[8..].copy_from_slice(&of_head.to_le_bytes());
        let of_body = checksum(position, &out[start + HEAD_BYTES..]);
        out.extend_from_slice(&of_body.to_le_bytes());
        true
    }

    /// Reads the record at `position`.
    #[must_use]
    pub fn read<'a>(&self, file: &'a [u8], position: usize) -> RecordRead<'a> {
        let rest = file.get(position..).unwrap_or_default();
        if rest.is_empty() {
            return RecordRead::End;
        }
        // A file ends in zeros if its length was written to disk before its bytes.
        let Some(head) = rest.get(..HEAD_BYTES) else {
            return RecordRead::Torn;
        };
        if rest.iter().all(|byte| *byte == 0) {
            return RecordRead::Torn;
        }
        if number(&head[8..]) != checksum(position as u64, &head[..8]) {
            return RecordRead::Damaged("the head of a record does not match its checksum");
        }
        let length = number(&head[..4]) as usize;
        if length > self.max_len {
            return RecordRead::Damaged("a record is longer than any can be");
        }
        let end = HEAD_BYTES + length;
        let Some(tail) = rest.get(end..end + TAIL_BYTES) else {
            return RecordRead::Torn;
        };
        let body = &rest[HEAD_BYTES..end];
        if number(tail) == checksum(position as u64, body) {
            return RecordRead::Record {
                kind: number(&head[4..8]),
                body,
                next: position + end + TAIL_BYTES,
            };
        }
        if rest.len() == end + TAIL_BYTES && tail == [0; TAIL_BYTES] {
            RecordRead::Torn
        } else {
            RecordRead::Damaged("a record does not match its checksum")
        }
    }
}

/// Returns the CRC32C of a record's position and some of its bytes.
fn checksum(position: u64, bytes: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(&position.to_le_bytes());
    digest.update(bytes);
    // The CRC has 32 bits.
    digest.finalize() as u32
}

/// Returns the number in the first four bytes.
fn number(bytes: &[u8]) -> u32 {
    let mut four = [0; 4];
    four.copy_from_slice(&bytes[..4]);
    u32::from_le_bytes(four)
}
