//! GetObjectAttributes.

use bywash::ReadInfo;
use http::HeaderMap;
use s3s::dto::*;
use s3s::{S3ErrorCode, S3Request, S3Response, S3Result};

use super::checksums::checksum_type;
use super::documents;
use super::list::page_size;
use super::read::ReadRequest;
use super::set_checksum;
use crate::errors::{OperationContext, fault, invalid_argument};
use crate::gateway::Gateway;
use crate::meta::{e_tag, joined, kept_checksum, put_staleness, text, timestamp};
use crate::object_parts::{ObjectPart as KeptPart, ObjectParts};
use crate::values::count;

pub(crate) async fn get(
    gateway: &Gateway,
    request: S3Request<GetObjectAttributesInput>,
) -> S3Result<S3Response<GetObjectAttributesOutput>> {
    let documents = documents(&request)?;
    let S3Request {
        input,
        headers,
        uri,
        ..
    } = request;
    let doing = OperationContext {
        operation: "read attributes of",
        bucket: &input.bucket,
        key: &input.key,
    };
    let names = requested_names(&headers)?;
    let requested = |name: &str| names.iter().any(|requested| requested == name);
    let max = page_size("x-amz-max-parts", text(&headers, "x-amz-max-parts"))?;
    let marker = "x-amz-part-number-marker";
    let marker = count(marker, text(&headers, marker))?.unwrap_or(0);
    let request = ReadRequest::new(gateway, doing, &headers, &uri)?;
    let result = request.head().await?;
    let checksum = kept_checksum(&result.attributes)
        .filter(|_| requested(ObjectAttributes::CHECKSUM))
        .map(|kept| {
            let mut checksum = Checksum {
                checksum_type: Some(checksum_type(kept.kind())),
                ..Default::default()
            };
            // As S3, which has it with the number of parts everywhere else.
            set_checksum!(checksum, kept.without_parts());
            checksum
        });
    let parts = ObjectParts::kept(&result.attributes, result.meta.size)
        .filter(|_| requested(ObjectAttributes::OBJECT_PARTS));
    let object_parts = match parts {
        Some(parts) => {
            documents.charge_page(max, max, doing).await?;
            Some(page_of_parts(&parts, max, marker))
        }
        None => None,
    };
    let stored = result
        .meta
        .e_tag
        .as_deref()
        .filter(|_| requested(ObjectAttributes::ETAG));
    let size = requested(ObjectAttributes::OBJECT_SIZE).then_some(result.meta.size);
    let output = GetObjectAttributesOutput {
        checksum,
        e_tag: stored.map(e_tag),
        last_modified: Some(timestamp(result.meta.last_modified)),
        object_parts,
        object_size: size.and_then(|size| i64::try_from(size).ok()),
        storage_class: requested(ObjectAttributes::STORAGE_CLASS)
            .then(|| StorageClass::from_static(StorageClass::STANDARD)),
        ..Default::default()
    };
    let mut sent = HeaderMap::new();
    if let Some(info) = result.extensions.get::<ReadInfo>() {
        put_staleness(&mut sent, info);
    }
    Ok(S3Response::with_headers(output, sent))
}

/// Returns the attributes that a request names.
fn requested_names(headers: &HeaderMap) -> S3Result<Vec<String>> {
    const NAMES: [&str; 5] = [
        ObjectAttributes::ETAG,
        ObjectAttributes::CHECKSUM,
        ObjectAttributes::OBJECT_PARTS,
        ObjectAttributes::STORAGE_CLASS,
        ObjectAttributes::OBJECT_SIZE,
    ];
    const HEADER: &str = "x-amz-object-attributes";
    let value = joined(headers, HEADER);
    let names = value.as_deref().map(|value| value.trim_end_matches(','));
    let missing = value
        .as_deref()
        .is_none_or(|value| !value.is_empty() && names == Some(""));
    if missing {
        let message = format!("The header {HEADER} is either missing or empty; name {NAMES:?}.");
        return Err(fault(S3ErrorCode::InvalidRequest, message));
    }
    let names: Vec<_> = names
        .unwrap_or_default()
        .split(',')
        .map(str::trim)
        .collect();
    match names.iter().find(|name| !NAMES.contains(name)) {
        None => Ok(names.into_iter().map(str::to_owned).collect()),
        Some(name) => {
            let message = format!("Invalid attribute name specified: name {NAMES:?}.");
            Err(invalid_argument(HEADER, name, message))
        }
    }
}

/// The parts after the number `marker`, at most `max`.
fn page_of_parts(parts: &ObjectParts, max: i32, marker: i32) -> GetObjectAttributesParts {
    let after = parts
        .0
        .iter()
        .filter(|part| i32::from(part.number) > marker);
    let left = after.clone().count();
    let max_len = usize::try_from(max).unwrap_or_default();
    let listed: Vec<_> = after.take(max_len).map(object_part).collect();
    let more = left > listed.len() && max > 0;
    let last = listed.last().and_then(|part| part.part_number);
    GetObjectAttributesParts {
        is_truncated: Some(more),
        max_parts: Some(max),
        next_part_number_marker: last.filter(|_| more),
        part_number_marker: Some(marker),
        parts: Some(listed),
        total_parts_count: i32::try_from(parts.len()).ok(),
    }
}

fn object_part(part: &KeptPart) -> ObjectPart {
    let mut listed = ObjectPart {
        part_number: Some(i32::from(part.number)),
        size: i64::try_from(part.range.end - part.range.start).ok(),
        ..Default::default()
    };
    if let Some(checksum) = &part.checksum {
        set_checksum!(listed, checksum);
    }
    listed
}
