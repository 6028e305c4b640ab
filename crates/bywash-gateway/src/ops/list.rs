//! ListObjects, ListObjectsV2, ListObjectVersions.

use http::{HeaderName, HeaderValue};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result};

use super::buckets::owner;
use super::documents;
use crate::documents::RequestDocuments;
use crate::errors::{OperationContext, from_store, invalid_argument};
use crate::gateway::Gateway;
use crate::limits::MAX_LIST_KEYS;
use crate::listing::{self, EntryPage, ListEntry, ListPosition, ListScope, ListedObject};
use crate::meta::{e_tag, timestamp};
use crate::routes::Query;
use crate::values::{count, is_true};
use crate::xml;

/// Characters that `encoding-type=url` leaves unchanged.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~')
    .remove(b'/');

/// Encoding of names in a response.
#[derive(Clone, Copy)]
pub(super) struct Encoding {
    url: bool,
}

impl Encoding {
    pub(super) fn new(query: &Query<'_>) -> S3Result<Self> {
        match query.first("encoding-type") {
            None => Ok(Self { url: false }),
            Some(kind) if kind.eq_ignore_ascii_case(EncodingType::URL) => Ok(Self { url: true }),
            Some(other) => {
                let message = "Invalid Encoding Method specified in Request: it is url, or absent.";
                Err(invalid_argument("encoding-type", other, message))
            }
        }
    }

    /// The encoding for a response, as it was requested.
    pub(super) fn requested(query: &Query<'_>) -> Option<EncodingType> {
        query
            .first("encoding-type")
            .map(|kind| kind.to_owned().into())
    }

    pub(super) fn write(self, name: &str) -> String {
        if self.url {
            utf8_percent_encode(name, PLAIN).to_string()
        } else {
            name.to_owned()
        }
    }

    /// As [`Self::option`]; `None` also for a text that the response cannot represent. No client needs it repeated.
    fn repeated(self, name: Option<&str>) -> Option<String> {
        self.option(name)
            .filter(|written| written.chars().all(xml::fits))
    }

    pub(super) fn option(self, name: Option<&str>) -> Option<String> {
        name.filter(|name| !name.is_empty())
            .map(|name| self.write(name))
    }
}

/// The requested page size.
pub(super) fn page_size(name: &str, requested: Option<&str>) -> S3Result<i32> {
    Ok(count(name, requested)?.map_or(MAX_LIST_KEYS, |requested| requested.min(MAX_LIST_KEYS)))
}

/// The keys that a listing is limited to.
pub(super) fn scope_of<'q>(query: &'q Query<'_>) -> ListScope<'q> {
    ListScope {
        prefix: query.text("prefix"),
        delimiter: query.text("delimiter"),
    }
}

/// Lists a page of one bucket.
async fn page(
    gateway: &Gateway,
    bucket: &str,
    scope: ListScope<'_>,
    after: ListPosition,
    max: i32,
    documents: &RequestDocuments,
    encoding: Encoding,
) -> S3Result<EntryPage> {
    let doing = OperationContext {
        operation: "list",
        bucket,
        key: scope.prefix,
    };
    let handle = gateway.bucket(bucket)?;
    // With a delimiter, many keys may form one entry.
    let requested = match scope.delimiter {
        "" => max,
        _ => MAX_LIST_KEYS,
    };
    let max_bytes = documents.charge_page(max, requested, doing).await?;
    let max = usize::try_from(max).unwrap_or_default();
    let page = listing::page(&handle, scope, after, max, max_bytes).await;
    let page = page.and_then(|mut page| {
        if !encoding.url {
            page.leave_out_unfit(&handle)?;
        }
        Ok(page)
    });
    page.map_err(|error| from_store(doing, &error))
}

/// Response with a page, and a header about the entries that are left out of it.
fn response<T>(output: T, left_out: Option<(HeaderName, HeaderValue)>) -> S3Response<T> {
    let mut response = S3Response::new(output);
    response.headers.extend(left_out);
    response
}

/// Separates objects and common prefixes of a page.
fn split<T>(
    page: EntryPage,
    encoding: Encoding,
    object: impl Fn(ListedObject) -> T,
) -> (Vec<T>, Vec<CommonPrefix>) {
    let (mut objects, mut prefixes) = (Vec::new(), Vec::new());
    for entry in page.entries {
        match entry {
            ListEntry::Object(listed) => objects.push(object(listed)),
            ListEntry::Prefix(prefix) => prefixes.push(CommonPrefix {
                prefix: Some(encoding.write(&prefix)),
            }),
        }
    }
    (objects, prefixes)
}

fn object(listed: &ListedObject, encoding: Encoding, with_owner: bool) -> Object {
    let ListedObject { key, meta } = listed;
    Object {
        key: Some(encoding.write(key)),
        e_tag: meta.e_tag.as_deref().map(e_tag),
        last_modified: Some(timestamp(meta.last_modified)),
        size: i64::try_from(meta.size).ok(),
        storage_class: Some(ObjectStorageClass::from_static(
            ObjectStorageClass::STANDARD,
        )),
        owner: with_owner.then(owner),
        ..Default::default()
    }
}

pub(crate) async fn v1(
    gateway: &Gateway,
    request: S3Request<ListObjectsInput>,
) -> S3Result<S3Response<ListObjectsOutput>> {
    let documents = documents(&request)?;
    let S3Request { input, uri, .. } = request;
    let query = Query::new(&uri);
    let encoding = Encoding::new(&query)?;
    let max = page_size("max-keys", query.first("max-keys"))?;
    let scope = scope_of(&query);
    let marker = query.text("marker");
    let page = page(
        gateway,
        &input.bucket,
        scope,
        ListPosition::marker(marker, &scope),
        max,
        &documents,
        encoding,
    )
    .await?;
    let left_out = page.left_out_header();
    let next_marker = page.next.as_ref().map(|next| encoding.write(next.name()));
    let (contents, prefixes) = split(page, encoding, |listed| object(&listed, encoding, true));
    Ok(response(
        ListObjectsOutput {
            prefix: Some(encoding.write(scope.prefix)),
            delimiter: encoding.option(query.first("delimiter")),
            marker: Some(encoding.write(marker)),
            max_keys: Some(max),
            is_truncated: Some(next_marker.is_some()),
            next_marker,
            contents: Some(contents),
            common_prefixes: Some(prefixes),
            encoding_type: Encoding::requested(&query),
            name: Some(input.bucket),
            ..Default::default()
        },
        left_out,
    ))
}

fn from_token(token: &str) -> S3Result<ListPosition> {
    ListPosition::from_token(token).ok_or_else(|| {
        let message =
            "The continuation token is not one of this endpoint's; begin the listing again.";
        invalid_argument("continuation-token", token, message)
    })
}

pub(crate) async fn v2(
    gateway: &Gateway,
    request: S3Request<ListObjectsV2Input>,
) -> S3Result<S3Response<ListObjectsV2Output>> {
    let documents = documents(&request)?;
    let S3Request { input, uri, .. } = request;
    let query = Query::new(&uri);
    let encoding = Encoding::new(&query)?;
    let max = page_size("max-keys", query.first("max-keys"))?;
    let scope = scope_of(&query);
    // An empty token means the first page.
    let after = match query.text("continuation-token") {
        "" => ListPosition::marker(query.text("start-after"), &scope),
        token => from_token(token)?,
    };
    let name = &input.bucket;
    let page = page(gateway, name, scope, after, max, &documents, encoding).await?;
    let left_out = page.left_out_header();
    let next = page.next.as_ref().map(ListPosition::to_token);
    let key_count = i32::try_from(page.entries.len()).ok();
    let with_owner = is_true(query.first("fetch-owner"));
    let (contents, prefixes) = split(page, encoding, |listed| {
        object(&listed, encoding, with_owner)
    });
    Ok(response(
        ListObjectsV2Output {
            prefix: Some(encoding.write(scope.prefix)),
            delimiter: encoding.option(query.first("delimiter")),
            start_after: encoding.repeated(query.first("start-after")),
            max_keys: Some(max),
            key_count,
            continuation_token: query.first("continuation-token").map(str::to_owned),
            is_truncated: Some(next.is_some()),
            next_continuation_token: next,
            contents: Some(contents),
            common_prefixes: Some(prefixes),
            encoding_type: Encoding::requested(&query),
            name: Some(input.bucket),
            ..Default::default()
        },
        left_out,
    ))
}

pub(crate) async fn versions(
    gateway: &Gateway,
    request: S3Request<ListObjectVersionsInput>,
) -> S3Result<S3Response<ListObjectVersionsOutput>> {
    let documents = documents(&request)?;
    let S3Request { input, uri, .. } = request;
    let query = Query::new(&uri);
    let encoding = Encoding::new(&query)?;
    let max = page_size("max-keys", query.first("max-keys"))?;
    let marker = query.text("key-marker");
    let version_marker = query.first("version-id-marker");
    if let Some(version) = version_marker.filter(|version| !matches!(*version, "" | "null")) {
        let message = "Invalid version id specified: every version here is `null`.";
        return Err(invalid_argument("version-id-marker", version, message));
    }
    let scope = scope_of(&query);
    let page = page(
        gateway,
        &input.bucket,
        scope,
        ListPosition::marker(marker, &scope),
        max,
        &documents,
        encoding,
    )
    .await?;
    let left_out = page.left_out_header();
    let next_key_marker = page.next.as_ref().map(|next| encoding.write(next.name()));
    // Every object has one version, named null.
    let version = |ListedObject { key, meta }: ListedObject| ObjectVersion {
        key: Some(encoding.write(&key)),
        version_id: Some("null".to_owned()),
        is_latest: Some(true),
        e_tag: meta.e_tag.as_deref().map(e_tag),
        last_modified: Some(timestamp(meta.last_modified)),
        size: i64::try_from(meta.size).ok(),
        storage_class: Some(ObjectVersionStorageClass::from_static(
            ObjectVersionStorageClass::STANDARD,
        )),
        owner: Some(owner()),
        ..Default::default()
    };
    let (versions, prefixes) = split(page, encoding, version);
    Ok(response(
        ListObjectVersionsOutput {
            prefix: Some(encoding.write(scope.prefix)),
            delimiter: encoding.option(query.first("delimiter")),
            key_marker: Some(encoding.write(marker)),
            version_id_marker: version_marker.map(str::to_owned),
            max_keys: Some(max),
            is_truncated: Some(next_key_marker.is_some()),
            next_version_id_marker: next_key_marker.as_ref().map(|_| "null".to_owned()),
            next_key_marker,
            versions: Some(versions),
            common_prefixes: Some(prefixes),
            encoding_type: Encoding::requested(&query),
            name: Some(input.bucket),
            ..Default::default()
        },
        left_out,
    ))
}
