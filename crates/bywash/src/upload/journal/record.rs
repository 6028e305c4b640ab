//! The bytes of a journal: records, each with a checksum of its head and one of its body.
//!
//! ```text
//! "BYWASHUP" version:u32                         numbers are little-endian
//! length:u32 kind:u32 check:u32 body check:u32   one record, then the next
//! ```
//!
//! Both checks are CRC32C and begin with the record's position in the file (`u64`), so a record that stands where another
//! belongs is noticed. Records are appended by one write each, and the next only after the last is on disk: only the last
//! one can be torn.

use crc_fast::{CrcAlgorithm, Digest};

/// The first bytes of a journal file.
pub(super) const MAGIC: &[u8; 8] = b"BYWASHUP";
/// The version this program reads and writes.
pub(super) const VERSION: u32 = 1;
/// Bytes before the first record.
pub(super) const PREAMBLE_BYTES: usize = MAGIC.len() + 4;
/// Bytes of a record before its body.
const HEAD_BYTES: usize = 12;
/// Bytes of a record after its body.
const TAIL_BYTES: usize = 4;
/// The longest body: more than any header or list of chunks takes.
const BODY_BYTES_MAX: usize = 16 << 20;

/// What a record says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Header,
    Acknowledged,
    Finishing,
    Taken,
}

impl Kind {
    const ALL: [Self; 4] = [
        Self::Header,
        Self::Acknowledged,
        Self::Finishing,
        Self::Taken,
    ];

    fn code(self) -> u32 {
        match self {
            Self::Header => 1,
            Self::Acknowledged => 2,
            Self::Finishing => 3,
            Self::Taken => 4,
        }
    }

    fn of(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
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

/// Appends to `out` the record that will stand at `position` in the file; `body` writes what it says.
///
/// Returns `false`, and leaves `out` as it was, if the body is too long for a record.
pub(super) fn encode(
    out: &mut Vec<u8>,
    position: u64,
    kind: Kind,
    body: impl FnOnce(&mut Vec<u8>),
) -> bool {
    let start = out.len();
    out.extend_from_slice(&[0; HEAD_BYTES]);
    body(out);
    let length = out.len() - start - HEAD_BYTES;
    if length > BODY_BYTES_MAX {
        out.truncate(start);
        return false;
    }
    let head = &mut out[start..start + HEAD_BYTES];
    // At most BODY_BYTES_MAX, so the cast keeps the value.
    head[..4].copy_from_slice(&(length as u32).to_le_bytes());
    head[4..8].copy_from_slice(&kind.code().to_le_bytes());
    let of_head = check(position, &head[..8]);
    head[8..].copy_from_slice(&of_head.to_le_bytes());
    let of_body = check(position, &out[start + HEAD_BYTES..]);
    out.extend_from_slice(&of_body.to_le_bytes());
    true
}

/// One step through a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step<'a> {
    /// A whole record, and where the next begins.
    Record {
        kind: Kind,
        body: &'a [u8],
        next: usize,
    },
    /// The file ends here.
    End,
    /// The last record did not get to the disk whole.
    Torn,
    /// Bytes that no crash leaves behind.
    Damaged(&'static str),
}

/// Reads the record at `position`.
pub(super) fn step(file: &[u8], position: usize) -> Step<'_> {
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
    if length > BODY_BYTES_MAX {
        return Step::Damaged("a record is longer than any can be");
    }
    let end = HEAD_BYTES + length;
    let Some(tail) = rest.get(end..end + TAIL_BYTES) else {
        return Step::Torn;
    };
    let body = &rest[HEAD_BYTES..end];
    let expected = check(position as u64, body);
    if number(tail) != expected {
        let last = rest.len() == end + TAIL_BYTES;
        return if last && tail == [0; TAIL_BYTES] {
            Step::Torn
        } else {
            Step::Damaged("a record does not match its checksum")
        };
    }
    match Kind::of(number(&head[4..8])) {
        Some(kind) => Step::Record {
            kind,
            body,
            next: position + end + TAIL_BYTES,
        },
        None => Step::Damaged("a record is of a kind this version does not write"),
    }
}

/// The number in the first four bytes.
pub(super) fn number(bytes: &[u8]) -> u32 {
    let mut four = [0; 4];
    four.copy_from_slice(&bytes[..4]);
    u32::from_le_bytes(four)
}

/// Takes numbers off the front of a body.
#[derive(Debug)]
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl Fields<'_> {
    pub(super) fn u32(&mut self) -> Option<u32> {
        let (four, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*four))
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        let (eight, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*eight))
    }
}
