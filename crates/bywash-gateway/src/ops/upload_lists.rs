//! ListParts and ListMultipartUploads.

use std::ops::Bound;

use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result};

use super::buckets::owner;
use super::list::{Encoding, page_size};
use super::multipart::{checksum_algorithm, checksum_type};
use super::{documents, set_checksum};
use crate::documents::entry_bytes;
use crate::errors::OperationContext;
use crate::gateway::Gateway;
use crate::limits::MAX_KEY_BYTES;
use crate::listing::ListScope;
use crate::meta::{e_tag, timestamp};
use crate::uploads::{ListedUpload, Part as StoredPart, UploadName};

fn part(number: u16, stored: &StoredPart) -> Part {
    let mut part = Part {
        part_number: Some(i32::from(number)),
        e_tag: Some(e_tag(stored.client_e_tag())),
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
    let documents = documents(&request)?;
    let input = request.input;
    gateway.bucket(&input.bucket)?;
    let max = page_size("max-parts", input.max_parts)?;
    let doing = OperationContext::new("list parts of", &input.bucket, &input.key);
    documents.charge_page(max, max, doing).await?;
    let marker = input.part_number_marker.unwrap_or(0);
    let name = UploadName {
        bucket: input.bucket,
        key: input.key,
        id: input.upload_id,
    };
    let max_len = usize::try_from(max).unwrap_or_default();
    let (upload, stored) = gateway.uploads.parts_after(&name, marker, max_len + 1)?;
    let mut parts: Vec<Part> = stored
        .iter()
        .map(|(number, stored)| part(*number, stored))
        .collect();
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
    /// Key and upload id after which the next page continues.
    next: Option<(String, String)>,
}

/// Position from which a page of uploads continues.
enum From {
    /// At this key.
    Key(String),
    /// After this key and upload id.
    Upload(String, String),
    /// After every key with this prefix.
    Prefix(String),
}

/// A string after all keys with `prefix` and before all later keys: no key has a greater char or is this long.
fn beyond(prefix: &str) -> String {
    let last = usize::div_ceil(MAX_KEY_BYTES + 1, char::MAX.len_utf8());
    let mut beyond = prefix.to_owned();
    beyond.extend(std::iter::repeat_n(char::MAX, last));
    beyond
}

/// Returns the position of the requested page.
fn beginning(input: &ListMultipartUploadsInput, scope: &ListScope<'_>) -> From {
    let marker = input.key_marker.as_deref().unwrap_or_default();
    if marker < scope.prefix || marker.is_empty() {
        return From::Key(scope.prefix.to_owned());
    }
    if scope.common_prefix(marker) == Some(marker) {
        return From::Prefix(marker.to_owned());
    }
    match input.upload_id_marker.as_deref() {
        Some(id) if !id.is_empty() => From::Upload(marker.to_owned(), id.to_owned()),
        // The first key after the marker, so that the marker's own uploads are skipped.
        _ => From::Key(format!("{marker}\0")),
    }
}

/// Returns the next upload in `scope`.
fn next_upload(
    gateway: &Gateway,
    bucket: &str,
    from: &From,
    scope: &ListScope<'_>,
) -> Option<ListedUpload> {
    let uploads = &gateway.uploads;
    let next = match from {
        From::Key(key) => uploads.first(bucket, Bound::Included((key, ""))),
        From::Upload(key, id) => uploads.first(bucket, Bound::Excluded((key, id))),
        From::Prefix(prefix) => {
            let beyond = beyond(prefix);
            uploads.first(bucket, Bound::Included((&beyond, "")))
        }
    };
    next.filter(|begun| begun.name.key.starts_with(scope.prefix))
}

fn upload_page(
    gateway: &Gateway,
    input: &ListMultipartUploadsInput,
    encoding: Encoding,
    max: i32,
    mut max_bytes: u64,
) -> UploadPage {
    let scope = ListScope {
        prefix: input.prefix.as_deref().unwrap_or_default(),
        delimiter: input.delimiter.as_deref().unwrap_or_default(),
    };
    let mut page = UploadPage {
        uploads: Vec::new(),
        prefixes: Vec::new(),
        next: None,
    };
    let max = usize::try_from(max).unwrap_or_default();
    let mut from = beginning(input, &scope);
    let mut last = (String::new(), String::new());
    // One entry at a time: locks are short, and only the page is copied.
    while let Some(begun) = next_upload(gateway, &input.bucket, &from, &scope) {
        let ListedUpload {
            name,
            initiated,
            algorithm,
        } = begun;
        let prefix = scope.common_prefix(&name.key);
        let found = page.uploads.len() + page.prefixes.len();
        let bytes = entry_bytes(prefix.unwrap_or(&name.key));
        if found == max || (bytes > max_bytes && found > 0) {
            page.next = Some(last).filter(|_| max > 0);
            break;
        }
        max_bytes = max_bytes.saturating_sub(bytes);
        if let Some(prefix) = prefix {
            page.prefixes.push(CommonPrefix {
                prefix: Some(encoding.write(prefix)),
            });
            last = (prefix.to_owned(), String::new());
            from = From::Prefix(prefix.to_owned());
            continue;
        }
        last = (name.key.clone(), name.id.clone());
        from = From::Upload(name.key.clone(), name.id.clone());
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
    let documents = documents(&request)?;
    let input = request.input;
    gateway.bucket(&input.bucket)?;
    let encoding = Encoding::new(input.encoding_type.as_ref())?;
    let max = page_size("max-uploads", input.max_uploads)?;
    let doing = OperationContext::new("list uploads of", &input.bucket, "");
    // Reads the names from the table one by one.
    let max_bytes = documents.charge_page(max, 1, doing).await?;
    let page = upload_page(gateway, &input, encoding, max, max_bytes);
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
