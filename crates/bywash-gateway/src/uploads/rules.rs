//! S3's rules for the parts of an upload.

use bywash::UploadedPart;
use s3s::dto::CompletedPart;
use s3s::{S3ErrorCode, S3Result};

use super::{Part, Upload};
use crate::digest::Algorithm;
use crate::errors::{WithElements, fault, invalid_argument};
use crate::limits::MAX_PART_NUMBER;
use crate::meta::bare;

/// Min bytes of a part, except for the last one, as in S3.
const PART_BYTES_MIN: u64 = 5 << 20;

/// Validates the parts of a completion against the stored ones.
pub(crate) fn choose<'u>(
    upload: &'u Upload,
    requested: &[CompletedPart],
) -> S3Result<Vec<(UploadedPart, &'u Part)>> {
    if requested.is_empty() {
        return Err(fault(
            S3ErrorCode::MalformedXML,
            "The completion names no part; name at least one.",
        ));
    }
    let mut chosen: Vec<(UploadedPart, &Part)> = Vec::with_capacity(requested.len());
    for wanted in requested {
        let number = part_number(wanted.part_number.unwrap_or_default())?;
        if chosen.last().is_some_and(|(last, _)| last.number >= number) {
            let message = "The parts are not in ascending order; sort them by part number.";
            return Err(fault(S3ErrorCode::InvalidPartOrder, message));
        }
        let e_tag = wanted.e_tag.as_ref().map(|e_tag| e_tag.value());
        let stored = upload.parts.get(&number).filter(|part| {
            [part.client_e_tag(), bare(&part.e_tag)]
                .map(Some)
                .contains(&e_tag)
        });
        let Some(part) = stored.filter(|part| checksum_agrees(part, wanted)) else {
            let message =
                format!("Part {number} was not uploaded, or its ETag or checksum is another one.");
            let number = number.to_string();
            let elements = [
                ("PartNumber", &*number),
                ("ETag", e_tag.unwrap_or_default()),
            ];
            return Err(fault(S3ErrorCode::InvalidPart, message).with(elements));
        };
        chosen.push((
            UploadedPart {
                number,
                e_tag: part.e_tag.clone(),
            },
            part,
        ));
    }
    let small = chosen
        .iter()
        .rev()
        .skip(1)
        .find(|(_, part)| part.size < PART_BYTES_MIN);
    if let Some((small, part)) = small {
        let number = small.number;
        let message = format!(
            "Part {number} has {} bytes; all but the last need {PART_BYTES_MIN}.",
            part.size
        );
        return Err(fault(S3ErrorCode::EntityTooSmall, message).with([
            ("ETag", part.client_e_tag().to_owned()),
            ("MinSizeAllowed", PART_BYTES_MIN.to_string()),
            ("ProposedSize", part.size.to_string()),
            ("PartNumber", number.to_string()),
        ]));
    }
    Ok(chosen)
}

fn checksum_agrees(part: &Part, wanted: &CompletedPart) -> bool {
    let named = [
        (Algorithm::Crc32, &wanted.checksum_crc32),
        (Algorithm::Crc32c, &wanted.checksum_crc32c),
        (Algorithm::Crc64Nvme, &wanted.checksum_crc64nvme),
        (Algorithm::Sha1, &wanted.checksum_sha1),
        (Algorithm::Sha256, &wanted.checksum_sha256),
    ];
    named
        .into_iter()
        .all(|(algorithm, value)| match (value, &part.checksum) {
            (Some(value), Some(stored)) if stored.algorithm == algorithm => stored.value == *value,
            // No checksum of that algorithm was stored.
            _ => true,
        })
}

/// Validates a part number.
pub(crate) fn part_number(number: i32) -> S3Result<u16> {
    u16::try_from(number)
        .ok()
        .filter(|number| (1..=MAX_PART_NUMBER).contains(number))
        .ok_or_else(|| {
            let message = format!(
                "Part number must be an integer between 1 and {MAX_PART_NUMBER}, inclusive."
            );
            invalid_argument("partNumber", &number.to_string(), message)
        })
}
