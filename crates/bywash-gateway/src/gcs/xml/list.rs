//! Lists of keys by the XML API, as version 2 of Amazon's.

use http::Response;
use object_store::ObjectMeta;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use s3s::Body;

use super::super::endpoint::{Endpoint, GcsRequest};
use super::super::error::{GcsError, GcsResult};
use super::super::generation::generation;
use super::document;
use super::object::quoted_e_tag;
use crate::errors::{OperationContext, from_store};
use crate::limits::MAX_LIST_KEYS;
use crate::listing::{self, ListEntry, ListPosition, ListScope};
use crate::xml::element;

/// Characters that `encoding-type=url` leaves unchanged.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~')
    .remove(b'/');

/// How names are written in a list.
#[derive(Clone, Copy)]
struct Names {
    url: bool,
}

impl Names {
    fn of(request: &GcsRequest) -> GcsResult<Self> {
        match request.query.get("encoding-type") {
            None => Ok(Self { url: false }),
            Some("url") => Ok(Self { url: true }),
            Some(other) => Err(GcsError::invalid(format!(
                "The encoding-type is url or absent, not {other}."
            ))),
        }
    }

    fn element(self, tag: &str, name: &str) -> String {
        if self.url {
            element(tag, &utf8_percent_encode(name, PLAIN).to_string())
        } else {
            element(tag, name)
        }
    }
}

fn max_keys(request: &GcsRequest) -> GcsResult<i32> {
    match request.query.number("max-keys")? {
        None => Ok(MAX_LIST_KEYS),
        Some(max) if max >= 0 => Ok(i32::try_from(max).unwrap_or(i32::MAX).min(MAX_LIST_KEYS)),
        Some(max) => Err(GcsError::invalid(format!(
            "max-keys is 0 or more, not {max}."
        ))),
    }
}

fn position(request: &GcsRequest, scope: &ListScope<'_>) -> GcsResult<ListPosition> {
    let query = &request.query;
    match query.get("continuation-token") {
        Some(token) => ListPosition::from_token(token).ok_or_else(|| {
            GcsError::invalid(
                "The continuation-token is not one of this endpoint's; begin the listing again.",
            )
        }),
        None => {
            let after = query.get("start-after").unwrap_or_default();
            Ok(ListPosition::marker(after, scope))
        }
    }
}

pub(super) async fn keys(
    endpoint: &Endpoint,
    request: &mut GcsRequest,
) -> GcsResult<Response<Body>> {
    let names = Names::of(request)?;
    let query = &request.query;
    let scope = ListScope {
        prefix: query.get("prefix").unwrap_or_default(),
        delimiter: query.get("delimiter").unwrap_or_default(),
    };
    let max = max_keys(request)?;
    let after = position(request, &scope)?;
    let name = request.route.bucket.as_str();
    let doing = OperationContext::new("list", name, scope.prefix);
    let bucket = endpoint.bucket(name)?;
    // With a delimiter, many keys may form one entry.
    let requested = match scope.delimiter {
        "" => max,
        _ => MAX_LIST_KEYS,
    };
    let max_bytes = request.documents.charge_page(max, requested, doing).await?;
    let limit = usize::try_from(max).unwrap_or_default();
    let page = listing::page(&bucket, scope, after, limit, max_bytes).await;
    let page = page.and_then(|mut page| {
        if !names.url {
            page.leave_out_unfit(&bucket)?;
        }
        Ok(page)
    });
    let page = page.map_err(|error| from_store(doing, &error))?;
    let mut inner = element("Name", name)
        + &names.element("Prefix", scope.prefix)
        + &element("KeyCount", &page.entries.len().to_string())
        + &element("MaxKeys", &max.to_string())
        + &element("IsTruncated", &page.next.is_some().to_string());
    if !scope.delimiter.is_empty() {
        inner += &names.element("Delimiter", scope.delimiter);
    }
    if names.url {
        inner += &element("EncodingType", "url");
    }
    if let Some(next) = &page.next {
        inner += &element("NextContinuationToken", &next.to_token());
    }
    for entry in &page.entries {
        match entry {
            ListEntry::Object(listed) => {
                inner += "<Contents>";
                inner += &names.element("Key", &listed.key);
                inner += &version(generation(&bucket, &listed.meta), &listed.meta);
                inner += "</Contents>";
            }
            ListEntry::Prefix(prefix) => {
                inner += "<CommonPrefixes>";
                inner += &names.element("Prefix", prefix);
                inner += "</CommonPrefixes>";
            }
        }
    }
    if !crate::xml::is_document(inner.as_bytes()) {
        return Err(GcsError::invalid(
            "XML cannot represent a name of this list; list with encoding-type=url.",
        ));
    }
    let mut response = document("ListBucketResult", &inner);
    response.headers_mut().extend(page.left_out_header());
    Ok(response)
}

/// The elements that describe a version.
fn version(generation: i64, meta: &ObjectMeta) -> String {
    let modified = meta.last_modified;
    element("Generation", &generation.to_string())
        + &element(
            "LastModified",
            &modified.to_rfc3339_opts(chrono::SecondsFormat::Millis, true),
        )
        + &element("ETag", &quoted_e_tag(meta))
        + &element("Size", &meta.size.to_string())
}
