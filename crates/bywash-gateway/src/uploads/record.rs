//! The bytes of an upload's file: records, each behind checksums of its length and of its body.
//!
//! ```text
//! "BYWASHMU" version:u32                     numbers are little-endian
//! length:u32 check:u32 body check:u32        one record, then the next
//! ```
//!
//! The checks are CRC32C, of the four bytes of the length and of the body. A body is JSON. Records are appended by one write
//! each, and the next only when the last is on disk: only the last can be torn.

use chrono::{DateTime, Utc};
use crc_fast::CrcAlgorithm;
use serde::{Deserialize, Serialize};

use super::{Change, Part, Upload, UploadName};
use crate::digest::{Algorithm, Checksum};

/// The first bytes of a file.
const MAGIC: &[u8; 8] = b"BYWASHMU";
/// The version this program reads and writes.
const VERSION: u32 = 1;
/// Bytes before the first record.
const PREAMBLE_BYTES: usize = MAGIC.len() + 4;
/// Bytes of a record before its body.
const HEAD_BYTES: usize = 8;
/// Bytes of a record after its body.
const TAIL_BYTES: usize = 4;
/// The longest body: a key of 1 KiB, a long id and the mark take a fraction of it, whatever JSON makes of their bytes.
const BODY_BYTES_MAX: usize = 64 << 10;

/// What a record says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Record {
    /// The first, and only there.
    Begun(Begun),
    Part(StoredPart),
    Completing {
        parts: String,
    },
}

/// Times are nanoseconds since 1970.
#[derive(Debug, Serialize, Deserialize)]
struct Begun {
    bucket: String,
    key: String,
    id: String,
    initiated: i64,
    algorithm: Option<String>,
    full_object: bool,
    mark: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct StoredPart {
    number: u16,
    e_tag: String,
    size: u64,
    checksum: Option<StoredChecksum>,
    modified: i64,
}

#[derive(Debug, Serialize, Deserialize)]
struct StoredChecksum {
    algorithm: String,
    value: String,
}

/// What of a time a file keeps. Beyond the year 2262 it keeps 1970, which no clock in order says.
fn nanoseconds(time: DateTime<Utc>) -> i64 {
    time.timestamp_nanos_opt().unwrap_or_default()
}

impl Record {
    fn of_change(change: &Change) -> Self {
        match change {
            Change::Part(number, part) => Self::Part(StoredPart {
                number: *number,
                e_tag: part.e_tag.clone(),
                size: part.size,
                checksum: part.checksum.as_ref().map(|checksum| StoredChecksum {
                    algorithm: checksum.algorithm.name().to_owned(),
                    value: checksum.value.clone(),
                }),
                modified: nanoseconds(part.modified),
            }),
            Change::Completing(parts) => Self::Completing {
                parts: parts.clone(),
            },
        }
    }

    /// `None` for the first record, and for an algorithm this version does not know.
    fn into_change(self) -> Option<Change> {
        match self {
            Self::Begun(_) => None,
            Self::Part(part) => {
                let checksum = match part.checksum {
                    None => None,
                    Some(StoredChecksum { algorithm, value }) => Some(Checksum {
                        algorithm: Algorithm::by_name(&algorithm)?,
                        value,
                    }),
                };
                let stored = Part {
                    e_tag: part.e_tag,
                    size: part.size,
                    checksum,
                    modified: DateTime::from_timestamp_nanos(part.modified),
                };
                Some(Change::Part(part.number, stored))
            }
            Self::Completing { parts } => Some(Change::Completing(parts)),
        }
    }

    /// `None` if it is too long.
    fn append_to(&self, out: &mut Vec<u8>) -> Option<()> {
        let body = serde_json::to_vec(self).ok()?;
        let length = u32::try_from(body.len()).ok()?;
        if body.len() > BODY_BYTES_MAX {
            return None;
        }
        let length = length.to_le_bytes();
        out.extend_from_slice(&length);
        out.extend_from_slice(&check(&length));
        out.extend_from_slice(&body);
        out.extend_from_slice(&check(&body));
        Some(())
    }
}

fn check(bytes: &[u8]) -> [u8; 4] {
    // A CRC of 32 bits.
    (crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32).to_le_bytes()
}

/// The record of one change; `None` if it is too long for a record.
pub(super) fn change(change: &Change) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    Record::of_change(change).append_to(&mut bytes)?;
    Some(bytes)
}

/// The whole file of an upload; `None` if something is too long for a record.
pub(super) fn file(name: &UploadName, upload: &Upload) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    let begun = Begun {
        bucket: name.bucket.clone(),
        key: name.key.clone(),
        id: name.id.clone(),
        initiated: nanoseconds(upload.initiated),
        algorithm: upload.algorithm.map(|found| found.name().to_owned()),
        full_object: upload.full_object,
        mark: upload.mark.clone(),
    };
    Record::Begun(begun).append_to(&mut bytes)?;
    let parts = upload.parts.iter();
    let parts = parts.map(|(number, part)| Change::Part(*number, part.clone()));
    let attempts = upload.attempts.iter().cloned().map(Change::Completing);
    for change in parts.chain(attempts) {
        Record::of_change(&change).append_to(&mut bytes)?;
    }
    Some(bytes)
}

/// What a file says.
#[derive(Debug)]
pub(super) struct Content {
    pub(super) name: UploadName,
    pub(super) upload: Upload,
    /// Bytes up to the end of the last whole record. What comes after is torn.
    pub(super) whole: usize,
}

/// Why a file says nothing that can be relied on.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unreadable {
    #[error("it is no file of an upload")]
    Foreign,
    #[error("it has format {0}, and this program reads format {VERSION}; use a newer one")]
    Newer(u32),
    #[error("it is damaged at byte {at}: {what}")]
    Damaged { at: usize, what: &'static str },
}

/// Reads a file. Its first record was synced before the file had its name, so only later ones can be torn.
pub(super) fn read(file: &[u8]) -> Result<Content, Unreadable> {
    let rest = file.strip_prefix(MAGIC).ok_or(Unreadable::Foreign)?;
    let (version, _) = rest.split_first_chunk().ok_or(Unreadable::Foreign)?;
    match u32::from_le_bytes(*version) {
        VERSION => {}
        0 => return Err(Unreadable::Foreign),
        newer => return Err(Unreadable::Newer(newer)),
    }
    let damaged = |at, what| Unreadable::Damaged { at, what };
    let first = step(file, PREAMBLE_BYTES)?;
    let Some((Record::Begun(begun), mut whole)) = first else {
        return Err(damaged(PREAMBLE_BYTES, "it does not begin with an upload"));
    };
    let algorithm = match &begun.algorithm {
        None => None,
        Some(name) => Some(
            Algorithm::by_name(name).ok_or_else(|| damaged(PREAMBLE_BYTES, "unknown algorithm"))?,
        ),
    };
    let initiated = DateTime::from_timestamp_nanos(begun.initiated);
    let mut upload = Upload::new(initiated, algorithm, begun.full_object, begun.mark);
    while let Some((record, next)) = step(file, whole)? {
        let change = record.into_change();
        upload.apply(change.ok_or_else(|| damaged(whole, "a record that cannot stand there"))?);
        whole = next;
    }
    let name = UploadName {
        bucket: begun.bucket,
        key: begun.key,
        id: begun.id,
    };
    Ok(Content {
        name,
        upload,
        whole,
    })
}

/// The record at `at` and where the next begins; `None` at the end of the file and at a torn record.
fn step(file: &[u8], at: usize) -> Result<Option<(Record, usize)>, Unreadable> {
    let damaged = |what| Err(Unreadable::Damaged { at, what });
    let rest = file.get(at..).unwrap_or_default();
    // A file whose length got to the disk before its bytes ends in zeros.
    let Some((head, rest)) = rest.split_at_checked(HEAD_BYTES) else {
        return Ok(None);
    };
    if head.iter().chain(rest).all(|byte| *byte == 0) {
        return Ok(None);
    }
    let (length, of_length) = head.split_at(HEAD_BYTES / 2);
    if of_length != check(length) {
        return damaged("the length of a record does not match its checksum");
    }
    let length = length
        .iter()
        .rev()
        .fold(0, |sum, byte| sum << 8 | usize::from(*byte));
    if length > BODY_BYTES_MAX {
        return damaged("a record is longer than any can be");
    }
    let Some((body, rest)) = rest.split_at_checked(length) else {
        return Ok(None);
    };
    let Some((of_body, rest)) = rest.split_at_checked(TAIL_BYTES) else {
        return Ok(None);
    };
    if of_body != check(body) {
        if rest.is_empty() {
            return Ok(None);
        }
        return damaged("a record does not match its checksum");
    }
    match serde_json::from_slice(body) {
        Ok(record) => Ok(Some((record, at + HEAD_BYTES + length + TAIL_BYTES))),
        Err(_) => damaged("a record says what this program does not know"),
    }
}

#[cfg(test)]
mod tests;
