//! ListParts and ListMultipartUploads.

use std::collections::VecDeque;
use std::ops::Bound;

use bywash::cluster_uploads::SharedPosition;
use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result};

use super::buckets::owner;
use super::checksums::{checksum_algorithm, checksum_type};
use super::list::{Encoding, page_size, scope_of};
use super::{documents, set_checksum};
use crate::documents::entry_bytes;
use crate::errors::OperationContext;
use crate::gateway::Gateway;
use crate::keys::path_of;
use crate::limits::MAX_KEY_BYTES;
use crate::listing::ListScope;
use crate::meta::{e_tag, timestamp};
use crate::routes::Query;
use crate::uploads::{
    ClusterUploads, ListedUpload, Part as StoredPart, UploadName, Uploads, not_recorded,
};
use crate::values::count;

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
    let S3Request { input, uri, .. } = request;
    let query = Query::new(&uri);
    let max = page_size("max-parts", query.first("max-parts"))?;
    let marker = "part-number-marker";
    let marker = count(marker, query.first(marker))?.unwrap_or(0);
    let bucket = gateway.bucket(&input.bucket)?;
    let doing = OperationContext::new("list parts of", &input.bucket, &input.key);
    documents.charge_page(max, max, doing).await?;
    let name = UploadName {
        bucket: input.bucket,
        key: input.key,
        id: query.text("uploadId").to_owned(),
    };
    let max_len = usize::try_from(max).unwrap_or_default();
    let (upload, stored, more) = match gateway.uploads.cluster() {
        None => {
            let (upload, mut stored) = gateway.uploads.parts_after(&name, marker, max_len + 1)?;
            let more = stored.len() > max_len;
            stored.truncate(max_len);
            (upload, stored, more)
        }
        Some(cluster) => {
            let path = path_of(&name.key)?;
            let sealed = cluster.open(name.clone())?;
            let after = u16::try_from(marker.max(0)).unwrap_or(u16::MAX);
            // The origin is asked also for no parts: an upload that has ended is an error.
            let page = (after, max_len.max(1));
            let listed = cluster.parts_after(&bucket, &path, &sealed, page, name.listing());
            let (mut stored, more) = listed.await?;
            stored.truncate(max_len);
            (sealed.upload, stored, more)
        }
    };
    let more = more && max > 0;
    let parts: Vec<Part> = stored
        .iter()
        .map(|(number, stored)| part(*number, stored))
        .collect();
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
        checksum_type: upload.checksum_kind().map(checksum_type),
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

/// The position of the requested page.
fn beginning(query: &Query<'_>, scope: &ListScope<'_>) -> From {
    let marker = query.text("key-marker");
    if marker < scope.prefix || marker.is_empty() {
        return From::Key(scope.prefix.to_owned());
    }
    if scope.common_prefix(marker) == Some(marker) {
        return From::Prefix(marker.to_owned());
    }
    match query.text("upload-id-marker") {
        // The first key after the marker, so that the marker's own uploads are skipped.
        "" => From::Key(format!("{marker}\0")),
        id => From::Upload(marker.to_owned(), id.to_owned()),
    }
}

/// Uploads of a cluster that are read at a time.
const SHARED_PER_PAGE: i32 = 256;

/// The open uploads of a bucket, in the order of keys.
struct UploadCursor<'a> {
    uploads: &'a Uploads,
    bucket: &'a str,
    /// Uploads of a cluster that were read and not yet returned.
    read: VecDeque<ListedUpload>,
    /// Whether uploads of the cluster may follow these.
    more: bool,
}

impl UploadCursor<'_> {
    /// Returns the next upload in `scope`. `from` is where the last one ended.
    async fn next(&mut self, from: &From, scope: &ListScope<'_>) -> S3Result<Option<ListedUpload>> {
        let next = match self.uploads.cluster() {
            Some(cluster) => self.shared(cluster, from).await?,
            None => self.here(from),
        };
        Ok(next.filter(|begun| begun.name.key.starts_with(scope.prefix)))
    }

    fn here(&self, from: &From) -> Option<ListedUpload> {
        let first = |from: Bound<(&str, &str)>| self.uploads.first(self.bucket, from);
        match from {
            From::Key(key) => first(Bound::Included((key, ""))),
            From::Upload(key, id) => first(Bound::Excluded((key, id))),
            From::Prefix(prefix) => first(Bound::Included((&beyond(prefix), ""))),
        }
    }

    async fn shared(
        &mut self,
        cluster: &ClusterUploads,
        from: &From,
    ) -> S3Result<Option<ListedUpload>> {
        if let From::Prefix(prefix) = from {
            let within = |next: &ListedUpload| next.name.key.starts_with(prefix);
            while self.read.front().is_some_and(within) {
                self.read.pop_front();
            }
        }
        if self.read.is_empty() && self.more {
            let end;
            let from = match from {
                From::Key(key) => SharedPosition::Key(key),
                From::Upload(key, id) => SharedPosition::After(key, id),
                From::Prefix(prefix) => {
                    end = beyond(prefix);
                    SharedPosition::Key(&end)
                }
            };
            let doing = OperationContext::new("list uploads of", self.bucket, "");
            let max = SHARED_PER_PAGE as usize;
            let page = cluster.list(self.bucket, from, max).await;
            self.read = page.map_err(|error| not_recorded(doing, &error))?.into();
            self.more = self.read.len() >= max;
        }
        Ok(self.read.pop_front())
    }
}

async fn upload_page(
    gateway: &Gateway,
    (bucket, query): (&str, &Query<'_>),
    encoding: Encoding,
    max: i32,
    mut max_bytes: u64,
) -> S3Result<UploadPage> {
    let scope = scope_of(query);
    let mut page = UploadPage {
        uploads: Vec::new(),
        prefixes: Vec::new(),
        next: None,
    };
    let max = usize::try_from(max).unwrap_or_default();
    let mut cursor = UploadCursor {
        uploads: &gateway.uploads,
        bucket,
        read: VecDeque::new(),
        more: true,
    };
    let mut from = beginning(query, &scope);
    let mut last = (String::new(), String::new());
    // One entry at a time: locks are short, and only the page is copied.
    while let Some(begun) = cursor.next(&from, &scope).await? {
        let ListedUpload {
            name,
            initiated,
            algorithm,
            checksum_kind,
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
            checksum_type: checksum_kind.map(checksum_type),
            storage_class: Some(StorageClass::from_static(StorageClass::STANDARD)),
            owner: Some(owner()),
            ..Default::default()
        });
    }
    Ok(page)
}

pub(crate) async fn uploads(
    gateway: &Gateway,
    request: S3Request<ListMultipartUploadsInput>,
) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
    let documents = documents(&request)?;
    let S3Request { input, uri, .. } = request;
    let query = Query::new(&uri);
    let max = page_size("max-uploads", query.first("max-uploads"))?;
    gateway.bucket(&input.bucket)?;
    let encoding = Encoding::new(&query)?;
    let doing = OperationContext::new("list uploads of", &input.bucket, "");
    // Reads the names from the table one by one, or a cluster's names page by page.
    let read = match gateway.uploads.cluster() {
        Some(_) => SHARED_PER_PAGE,
        None => 1,
    };
    let max_bytes = documents.charge_page(max, read, doing).await?;
    let page = upload_page(gateway, (&input.bucket, &query), encoding, max, max_bytes).await?;
    let truncated = page.next.is_some();
    let (next_key, next_id) = page.next.unzip();
    Ok(S3Response::new(ListMultipartUploadsOutput {
        uploads: Some(page.uploads),
        common_prefixes: Some(page.prefixes),
        is_truncated: Some(truncated),
        next_key_marker: next_key.map(|key| encoding.write(&key)),
        next_upload_id_marker: next_id,
        key_marker: encoding.option(query.first("key-marker")),
        upload_id_marker: query.first("upload-id-marker").map(str::to_owned),
        prefix: encoding.option(query.first("prefix")),
        delimiter: encoding.option(query.first("delimiter")),
        max_uploads: Some(max),
        encoding_type: Encoding::requested(&query),
        bucket: Some(input.bucket),
        ..Default::default()
    }))
}
