//! Format of an upload's file: [records](bywash::records) with JSON bodies.

use bywash::records::{FileHeader, RecordFormat, RecordRead};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::{Part, Upload, UploadChange, UploadName};
use crate::digest::{Algorithm, Checksum};

pub(super) const FORMAT: RecordFormat = RecordFormat {
    magic: *b"BYWASHMU",
    version: 2,
    // A key of 1 KiB, a long id and the mark take a fraction of it in any JSON encoding.
    max_len: 64 << 10,
};
/// Record kinds: the first record; a stored part; a completion that was sent.
const BEGUN: u32 = 1;
const PART: u32 = 2;
const COMPLETING: u32 = 3;

/// Times are nanoseconds since 1970.
#[derive(Debug, Serialize, Deserialize)]
struct BegunRecord {
    bucket: String,
    key: String,
    id: String,
    initiated: i64,
    algorithm: Option<String>,
    full_object: bool,
    mark: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct PartRecord {
    number: u16,
    e_tag: String,
    /// Absent in files of earlier servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    md5: Option<String>,
    size: u64,
    checksum: Option<ChecksumRecord>,
    modified: i64,
}

#[derive(Debug, Serialize, Deserialize)]
struct CompletingRecord {
    parts: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct ChecksumRecord {
    algorithm: String,
    value: String,
}

/// Converts a time to nanoseconds, or to 1970 beyond the year 2262.
fn nanoseconds(time: DateTime<Utc>) -> i64 {
    time.timestamp_nanos_opt().unwrap_or_default()
}

/// Appends a record to `out`, which holds the file from `position` on. `None` if it is too long.
fn append(
    out: &mut Vec<u8>,
    position: u64,
    kind: u32,
    body: &(impl Serialize + ?Sized),
) -> Option<()> {
    let body = serde_json::to_vec(body).ok()?;
    let position = position + out.len() as u64;
    FORMAT
        .append(out, position, kind, |out| out.extend_from_slice(&body))
        .then_some(())
}

/// Appends the record of one change.
fn append_change(out: &mut Vec<u8>, position: u64, change: &UploadChange) -> Option<()> {
    match change {
        UploadChange::Part(number, part) => {
            let stored = PartRecord {
                number: *number,
                e_tag: part.e_tag.clone(),
                md5: part.md5.clone(),
                size: part.size,
                checksum: part.checksum.as_ref().map(|checksum| ChecksumRecord {
                    algorithm: checksum.algorithm.name().to_owned(),
                    value: checksum.value.clone(),
                }),
                modified: nanoseconds(part.modified),
            };
            append(out, position, PART, &stored)
        }
        UploadChange::Completing(parts) => {
            let parts = parts.clone();
            append(out, position, COMPLETING, &CompletingRecord { parts })
        }
    }
}

/// Decodes a change. `None` for the first record, and for kinds of newer versions.
fn read_change(kind: u32, body: &[u8]) -> Option<UploadChange> {
    match kind {
        PART => {
            let part: PartRecord = serde_json::from_slice(body).ok()?;
            let checksum = match part.checksum {
                None => None,
                Some(ChecksumRecord { algorithm, value }) => Some(Checksum {
                    algorithm: Algorithm::by_name(&algorithm)?,
                    value,
                }),
            };
            let stored = Part {
                e_tag: part.e_tag,
                md5: part.md5,
                size: part.size,
                checksum,
                modified: DateTime::from_timestamp_nanos(part.modified),
            };
            Some(UploadChange::Part(part.number, stored))
        }
        COMPLETING => {
            let completing: CompletingRecord = serde_json::from_slice(body).ok()?;
            Some(UploadChange::Completing(completing.parts))
        }
        _ => None,
    }
}

/// Encodes the record of one change for `position` in the file. `None` if it is too long.
pub(super) fn change(change: &UploadChange, position: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    append_change(&mut bytes, position, change)?;
    Some(bytes)
}

/// Encodes the whole file of an upload. `None` if a record is too long.
pub(super) fn file(name: &UploadName, upload: &Upload) -> Option<Vec<u8>> {
    let mut bytes = FORMAT.header();
    let begun = BegunRecord {
        bucket: name.bucket.clone(),
        key: name.key.clone(),
        id: name.id.clone(),
        initiated: nanoseconds(upload.initiated),
        algorithm: upload.algorithm.map(|found| found.name().to_owned()),
        full_object: upload.full_object,
        mark: upload.mark.clone(),
    };
    append(&mut bytes, 0, BEGUN, &begun)?;
    let parts = upload.parts.iter();
    let parts = parts.map(|(number, part)| UploadChange::Part(*number, part.clone()));
    let attempts = upload
        .attempts
        .iter()
        .cloned()
        .map(UploadChange::Completing);
    for change in parts.chain(attempts) {
        append_change(&mut bytes, 0, &change)?;
    }
    Some(bytes)
}

/// Content of a file.
#[derive(Debug)]
pub(super) struct UploadFile {
    pub(super) name: UploadName,
    pub(super) upload: Upload,
    /// Bytes up to the end of the last valid record. The rest is torn.
    pub(super) whole: usize,
}

/// Why a file cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum UploadFileError {
    #[error("it is no file of an upload")]
    Foreign,
    #[error("it has format {0}, and this program reads format {version}; use the version that wrote it", version = FORMAT.version)]
    OtherFormat(u32),
    #[error("it is damaged at byte {at}: {what}")]
    Damaged { at: usize, what: &'static str },
}

/// Decodes a file. Its first record was synced before the rename, so only later ones can be torn.
pub(super) fn read(file: &[u8]) -> Result<UploadFile, UploadFileError> {
    let first = match FORMAT.check_header(file) {
        FileHeader::Known(first) => first,
        FileHeader::Version(version) => return Err(UploadFileError::OtherFormat(version)),
        FileHeader::Foreign => return Err(UploadFileError::Foreign),
    };
    let damaged = |at, what| UploadFileError::Damaged { at, what };
    let (name, mut upload, mut whole) = read_begun(file, first)
        .ok_or_else(|| damaged(first, "it does not begin with an upload"))?;
    loop {
        match FORMAT.read(file, whole) {
            RecordRead::Record { kind, body, next } => {
                let change = read_change(kind, body);
                upload
                    .apply(change.ok_or_else(|| damaged(whole, "a record cannot be understood"))?);
                whole = next;
            }
            RecordRead::End | RecordRead::Torn => break,
            RecordRead::Damaged(what) => return Err(damaged(whole, what)),
        }
    }
    Ok(UploadFile {
        name,
        upload,
        whole,
    })
}

/// Decodes the first record. Returns its upload and the offset of the next record.
fn read_begun(file: &[u8], at: usize) -> Option<(UploadName, Upload, usize)> {
    let RecordRead::Record {
        kind: BEGUN,
        body,
        next,
    } = FORMAT.read(file, at)
    else {
        return None;
    };
    let begun: BegunRecord = serde_json::from_slice(body).ok()?;
    let algorithm = match &begun.algorithm {
        None => None,
        Some(name) => Some(Algorithm::by_name(name)?),
    };
    let initiated = DateTime::from_timestamp_nanos(begun.initiated);
    let upload = Upload::new(initiated, algorithm, begun.full_object, begun.mark);
    let name = UploadName {
        bucket: begun.bucket,
        key: begun.key,
        id: begun.id,
    };
    Some((name, upload, next))
}

#[cfg(test)]
mod tests;
