//! GetObjectAttributes.

use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result};

use super::documents;
use super::list::page_size;
use super::read::ReadRequest;
use super::set_checksum;
use crate::errors::OperationContext;
use crate::gateway::Gateway;
use crate::meta::{e_tag, kept_checksum, timestamp};
use crate::object_parts::{ObjectPart as KeptPart, ObjectParts};

pub(crate) async fn get(
    gateway: &Gateway,
    request: S3Request<GetObjectAttributesInput>,
) -> S3Result<S3Response<GetObjectAttributesOutput>> {
    let documents = documents(&request)?;
    let S3Request { input, headers, .. } = request;
    let doing = OperationContext {
        operation: "read attributes of",
        bucket: &input.bucket,
        key: &input.key,
    };
    let request = ReadRequest::new(gateway, doing, &headers, input.version_id.as_deref())?;
    let result = request.head().await?;
    let requested = |name: &str| {
        let mut names = input
            .object_attributes
            .iter()
            .flat_map(|list| list.as_str().split(','));
        names.any(|requested| requested.trim() == name)
    };
    let checksum = kept_checksum(&result.attributes)
        .filter(|_| requested(ObjectAttributes::CHECKSUM))
        .map(|kept| {
            let mut checksum = Checksum {
                checksum_type: Some(ChecksumType::from_static(kept.kind())),
                ..Default::default()
            };
            set_checksum!(checksum, kept);
            checksum
        });
    let parts = ObjectParts::kept(&result.attributes, result.meta.size)
        .filter(|_| requested(ObjectAttributes::OBJECT_PARTS));
    let object_parts = match parts {
        Some(parts) => {
            let max = page_size("max-parts", input.max_parts)?;
            documents.charge_page(max, max, doing).await?;
            Some(page_of_parts(
                &parts,
                max,
                input.part_number_marker.unwrap_or(0),
            ))
        }
        None => None,
    };
    let stored = result
        .meta
        .e_tag
        .as_deref()
        .filter(|_| requested(ObjectAttributes::ETAG));
    let size = requested(ObjectAttributes::OBJECT_SIZE).then_some(result.meta.size);
    Ok(S3Response::new(GetObjectAttributesOutput {
        checksum,
        e_tag: stored.map(e_tag),
        last_modified: Some(timestamp(result.meta.last_modified)),
        object_parts,
        object_size: size.and_then(|size| i64::try_from(size).ok()),
        storage_class: requested(ObjectAttributes::STORAGE_CLASS)
            .then(|| StorageClass::from_static(StorageClass::STANDARD)),
        ..Default::default()
    }))
}

/// Returns the parts after the number `marker`, at most `max`.
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
