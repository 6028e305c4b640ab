//! Conditional reads: If-Match, If-None-Match, If-Modified-Since, If-Unmodified-Since, If-Range,
//! and the conditions of a copy's source.

use std::borrow::Cow;

use bywash::time::parse_http_date;
use chrono::{DateTime, Utc};
use http::header::HeaderMap;
use object_store::ObjectMeta;
use s3s::S3Result;

use crate::errors::{OperationContext, precondition_failed};
use crate::meta::{bare, client_e_tag, joined, names_version, text};

fn date(headers: &HeaderMap, name: &str) -> Option<DateTime<Utc>> {
    text(headers, name).and_then(parse_http_date)
}

/// Parses a list of ETags. Bytes that are no text match no version.
pub(crate) fn tags(headers: &HeaderMap, name: &str) -> Option<String> {
    let list = joined(headers, name).filter(|list| !list.is_empty());
    list.map(Cow::into_owned)
}

/// The conditions of a read, or of the source of a copy.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Conditions {
    if_match: Option<String>,
    if_none_match: Option<String>,
    modified_since: Option<DateTime<Utc>>,
    unmodified_since: Option<DateTime<Utc>>,
}

/// Result of a failed condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unmet {
    NotModified,
    Failed,
}

impl Conditions {
    /// `prefix`: empty, or `x-amz-copy-source-`.
    pub(crate) fn from_headers(headers: &HeaderMap, prefix: &str) -> Self {
        let name = |rest: &str| format!("{prefix}{rest}");
        Self {
            if_match: tags(headers, &name("if-match")),
            if_none_match: tags(headers, &name("if-none-match")),
            modified_since: date(headers, &name("if-modified-since")),
            unmodified_since: date(headers, &name("if-unmodified-since")),
        }
    }

    /// The conditions of a write.
    pub(crate) fn of_write(if_match: Option<&str>, if_none_match: Option<&str>) -> Self {
        Self {
            if_match: if_match.map(str::to_owned),
            if_none_match: if_none_match.map(str::to_owned),
            ..Self::default()
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Checks in the order of RFC 9110, section 13.2.2. Dates compare by whole seconds, as in HTTP.
    pub(crate) fn check(&self, meta: &ObjectMeta) -> Result<(), Unmet> {
        let current = meta.e_tag.as_deref();
        let is_current =
            |tag: &str| current.is_some_and(|current| names_version(current, bare(tag)));
        let names = |list: &str| list == "*" || list.split(',').any(is_current);
        let changed = meta.last_modified.timestamp();
        match (&self.if_match, self.unmodified_since) {
            (Some(list), _) if !names(list) && !planted!("gateway-if-match-ignored") => {
                return Err(Unmet::Failed);
            }
            (None, Some(date)) if changed > date.timestamp() => return Err(Unmet::Failed),
            _ => {}
        }
        match (&self.if_none_match, self.modified_since) {
            (Some(list), _) if names(list) => Err(Unmet::NotModified),
            (None, Some(date)) if changed <= date.timestamp() => Err(Unmet::NotModified),
            _ => Ok(()),
        }
    }

    /// Checks conditions on a copy's source: every failure is PreconditionFailed.
    pub(crate) fn check_source(
        &self,
        doing: OperationContext<'_>,
        meta: &ObjectMeta,
    ) -> S3Result<()> {
        self.check(meta).map_err(|_| precondition_failed(doing))
    }
}

/// Whether an object is the version of If-Range: by a strong ETag, or by its exact time (RFC 9110, section 13.1.5).
pub(crate) fn meets_if_range(meta: &ObjectMeta, version: &str) -> bool {
    match parse_http_date(version) {
        Some(date) => date.timestamp() == meta.last_modified.timestamp(),
        None => meta.e_tag.as_deref().is_some_and(|known| {
            ![known, version].iter().any(|tag| tag.starts_with("W/"))
                && bare(client_e_tag(known)) == bare(version)
        }),
    }
}
