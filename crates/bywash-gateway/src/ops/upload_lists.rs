//! ListParts and ListMultipartUploads.

use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result};

use super::buckets::owner;
use super::list::{Encoding, page_size};
use super::multipart::{checksum_algorithm, checksum_type};
use super::set_checksum;
use crate::gateway::Gateway;
use crate::listing::Scope;
use crate::meta::{e_tag, timestamp};
use crate::uploads::{Part as StoredPart, UploadName};

fn part(number: u16, stored: &StoredPart) -> Part {
    let mut part = Part {
        part_number: Some(i32::from(number)),
        e_tag: Some(e_tag(&stored.e_tag)),
        size: i64::try_from(stored.size).ok(),
        last_modified: Some(timestamp(stored.modified)),
        ..Default::default()
    };
    if let Some(checksum) = &stored.checksum {
        set_checksum!(part, checksum);
    }
    part
}

pub(crate) async fn parts(
    gateway: &Gateway,
    request: S3Request<ListPartsInput>,
) -> S3Result<S3Response<ListPartsOutput>> {
    let input = request.input;
    gateway.bucket(&input.bucket)?;
    let max = page_size("max-parts", input.max_parts)?;
    let marker = input.part_number_marker.unwrap_or(0);
    let name = UploadName {
        bucket: input.bucket,
        key: input.key,
        id: input.upload_id,
    };
    let upload = gateway.uploads.get(&name)?;
    let mut parts: Vec<Part> = upload
        .parts
        .iter()
        .filter(|(number, _)| i32::from(**number) > marker)
        .map(|(number, stored)| part(*number, stored))
        .collect();
    let max_len = usize::try_from(max).unwrap_or_default();
    let more = parts.len() > max_len && max > 0;
    parts.truncate(max_len);
    Ok(S3Response::new(ListPartsOutput {
        next_part_number_marker: parts
            .last()
            .filter(|_| more)
            .and_then(|part| part.part_number),
        parts: Some(parts),
        bucket: Some(name.bucket),
        key: Some(name.key),
        upload_id: Some(name.id),
        max_parts: Some(max),
        part_number_marker: Some(marker),
        is_truncated: Some(more),
        checksum_algorithm: upload.algorithm.map(checksum_algorithm),
        checksum_type: upload.algorithm.map(|_| checksum_type(upload.full_object)),
        storage_class: Some(StorageClass::from_static(StorageClass::STANDARD)),
        owner: Some(owner()),
        ..Default::default()
    }))
}

/// One page of the uploads of a bucket.
struct UploadPage {
    uploads: Vec<MultipartUpload>,
    prefixes: Vec<CommonPrefix>,
    /// Key and upload id to go on after.
    next: Option<(String, String)>,
}

fn upload_page(
    gateway: &Gateway,
    input: &ListMultipartUploadsInput,
    encoding: Encoding,
    max: i32,
) -> UploadPage {
    let scope = Scope {
        prefix: input.prefix.as_deref().unwrap_or_default(),
        delimiter: input.delimiter.as_deref().unwrap_or_default(),
    };
    let marker = input.key_marker.as_deref().unwrap_or_default();
    let id_marker = input
        .upload_id_marker
        .as_deref()
        .filter(|_| !marker.is_empty())
        .unwrap_or_default();
    let mut page = UploadPage {
        uploads: Vec::new(),
        prefixes: Vec::new(),
        next: None,
    };
    let (mut last, mut last_prefix) = ((String::new(), String::new()), None::<String>);
    let max = usize::try_from(max).unwrap_or_default();
    for (name, initiated, algorithm) in gateway.uploads.after(&input.bucket, marker, id_marker) {
        if !name.key.starts_with(scope.prefix) {
            continue;
        }
        let prefix = scope.common_prefix(&name.key);
        if prefix.is_some() && (prefix == last_prefix.as_deref() || prefix == Some(marker)) {
            continue;
        }
        if page.uploads.len() + page.prefixes.len() == max {
            page.next = Some(last).filter(|_| max > 0);
            break;
        }
        if let Some(prefix) = prefix {
            page.prefixes.push(CommonPrefix {
                prefix: Some(encoding.write(prefix)),
            });
            last = (prefix.to_owned(), String::new());
            last_prefix = Some(prefix.to_owned());
            continue;
        }
        last = (name.key.clone(), name.id.clone());
        page.uploads.push(MultipartUpload {
            key: Some(encoding.write(&name.key)),
            upload_id: Some(name.id),
            initiated: Some(timestamp(initiated)),
            checksum_algorithm: algorithm.map(checksum_algorithm),
            storage_class: Some(StorageClass::from_static(StorageClass::STANDARD)),
            owner: Some(owner()),
            ..Default::default()
        });
    }
    page
}

pub(crate) async fn uploads(
    gateway: &Gateway,
    request: S3Request<ListMultipartUploadsInput>,
) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
    let input = request.input;
    gateway.bucket(&input.bucket)?;
    let encoding = Encoding::new(input.encoding_type.as_ref())?;
    let max = page_size("max-uploads", input.max_uploads)?;
    let page = upload_page(gateway, &input, encoding, max);
    let truncated = page.next.is_some();
    let (next_key, next_id) = page.next.unzip();
    Ok(S3Response::new(ListMultipartUploadsOutput {
        uploads: Some(page.uploads),
        common_prefixes: Some(page.prefixes),
        is_truncated: Some(truncated),
        next_key_marker: next_key.map(|key| encoding.write(&key)),
        next_upload_id_marker: next_id,
        key_marker: encoding.option(input.key_marker.as_deref()),
        upload_id_marker: input.upload_id_marker,
        prefix: encoding.option(input.prefix.as_deref()),
        delimiter: encoding.option(input.delimiter.as_deref()),
        max_uploads: Some(max),
        encoding_type: input.encoding_type,
        bucket: Some(input.bucket),
        ..Default::default()
    }))
}
