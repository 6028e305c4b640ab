//! Listings of objects.

use http::Response;
use s3s::Body;
use serde::Serialize;

use super::door::{Door, GcsRequest};
use super::error::{GcsError, GcsResult};
use super::query::Query;
use super::resource::{self, ObjectResource};
use crate::errors::from_store;
use crate::limits::MAX_LIST_KEYS;
use crate::listing::{self, ListEntry, ListPosition, ListScope};

/// A page of a listing.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Page {
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_page_token: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    prefixes: Vec<String>,
    items: Vec<ObjectResource>,
}

fn max_results(query: &Query) -> GcsResult<i32> {
    match query.number("maxResults")? {
        None => Ok(MAX_LIST_KEYS),
        Some(max) if max > 0 => Ok(i32::try_from(max).unwrap_or(i32::MAX).min(MAX_LIST_KEYS)),
        Some(max) => Err(GcsError::invalid(format!(
            "maxResults is more than 0, not {max}."
        ))),
    }
}

fn position(query: &Query) -> GcsResult<ListPosition> {
    if let Some(token) = query.get("pageToken") {
        return ListPosition::from_token(token).ok_or_else(|| {
            GcsError::invalid(
                "The pageToken is not one of this endpoint's; begin the listing again.",
            )
        });
    }
    match query.get("startOffset") {
        Some(start) => Ok(ListPosition::before(start)),
        None => Ok(ListPosition::Key(String::new())),
    }
}

fn refuse_flags(query: &Query) -> GcsResult<()> {
    let flags = [
        "includeTrailingDelimiter",
        "includeFoldersAsPrefixes",
        "softDeleted",
    ];
    match flags.into_iter().find(|name| query.flag(name)) {
        None => Ok(()),
        Some(name) => Err(GcsError::not_served(format!(
            "{name} is not served here; leave it out."
        ))),
    }
}

pub(crate) async fn objects(door: &Door, request: &mut GcsRequest) -> GcsResult<Response<Body>> {
    let query = &request.query;
    refuse_flags(query)?;
    let scope = ListScope {
        prefix: query.get("prefix").unwrap_or_default(),
        delimiter: query.get("delimiter").unwrap_or_default(),
    };
    let max = max_results(query)?;
    let after = position(query)?;
    let (start, end) = (query.get("startOffset"), query.get("endOffset"));
    let doing = crate::errors::OperationContext {
        key: scope.prefix,
        ..request.doing("list")
    };
    let bucket = door.bucket(&request.route.bucket)?;
    // With a delimiter, many keys may form one entry.
    let requested = match scope.delimiter {
        "" => max,
        _ => MAX_LIST_KEYS,
    };
    let documents = &request.documents;
    let max_bytes = documents.charge_page(max, requested, doing).await?;
    let max = usize::try_from(max).unwrap_or_default();
    let page = listing::page(&bucket, scope, after, max, max_bytes).await;
    let mut page = page.map_err(|error| from_store(doing, &error))?;
    if let Some(end) = end
        && let Some(at) = page.entries.iter().position(|entry| entry.name() >= end)
    {
        page.entries.truncate(at);
        page.next = None;
    }
    let mut found = Page {
        kind: "storage#objects",
        next_page_token: page.next.as_ref().map(ListPosition::to_token),
        prefixes: Vec::new(),
        items: Vec::new(),
    };
    for entry in page.entries {
        match entry {
            ListEntry::Object(listed) if start.is_some_and(|start| listed.key.as_str() < start) => {
            }
            ListEntry::Object(listed) => {
                let item = ObjectResource::listed(&bucket, &listed.key, &listed.meta);
                found.items.push(item);
            }
            ListEntry::Prefix(prefix) => found.prefixes.push(prefix),
        }
    }
    resource::document(&found)
}
