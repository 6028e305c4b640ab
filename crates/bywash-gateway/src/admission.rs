//! Admission: checks of a request's head before all others: host, characters, signed headers, operation.

use http::request::Parts;
use percent_encoding::percent_decode;
use s3s::{S3ErrorCode, S3Result};

use crate::errors::fault;
use crate::host::{Hosts, Target};
use crate::meta::text;
use crate::ops::buckets::OWNER;
use crate::routes::{self, Query};
use crate::signature;

/// Result of the checks of a request's head.
pub(crate) struct Admission {
    pub(crate) target: Target,
    /// The operation, or the reason for rejection.
    pub(crate) operation: S3Result<&'static str>,
}

impl Admission {
    /// Checks a head. Skips signatures for an anonymous endpoint.
    pub(crate) fn new(parts: &Parts, hosts: &Hosts, anonymous: bool, region: &str) -> Self {
        let (target, host) = hosts.target(parts);
        let query = Query::new(parts);
        let operation = host
            .and_then(|()| refuse_nul(parts, &query))
            .and_then(|()| match anonymous {
                true => Ok(()),
                false => signature::check(parts, &query, region),
            })
            .and_then(|()| routes::operation(parts, &target, &query))
            .and_then(|operation| check_owner(parts, &query).map(|()| operation));
        Self { target, operation }
    }
}

/// Rejects a request for buckets of another owner than the one of all buckets here.
fn check_owner(parts: &Parts, query: &Query<'_>) -> S3Result<()> {
    let names = [
        "x-amz-expected-bucket-owner",
        "x-amz-source-expected-bucket-owner",
    ];
    let mut expected = names
        .into_iter()
        .filter_map(|name| text(&parts.headers, name).or_else(|| query.one(name)));
    match expected.find(|expected| *expected != OWNER) {
        None => Ok(()),
        Some(other) => {
            let message = format!("The owner of all buckets here is {OWNER}, not {other}.");
            Err(fault(S3ErrorCode::AccessDenied, message))
        }
    }
}

/// Rejects an encoded NUL character in values that may be a key or be returned in XML.
fn refuse_nul(parts: &Parts, query: &Query<'_>) -> S3Result<()> {
    let has_nul = |encoded: &[u8]| percent_decode(encoded).any(|byte| byte == 0);
    let copied = |value: &http::HeaderValue| has_nul(value.as_bytes());
    let place = if has_nul(parts.uri.path().as_bytes()) {
        "the path"
    } else if query
        .iter()
        .any(|(name, value)| name.contains('\0') || value.contains('\0'))
    {
        "the query"
    } else if parts
        .headers
        .get_all("x-amz-copy-source")
        .iter()
        .any(copied)
    {
        "x-amz-copy-source"
    } else {
        return Ok(());
    };
    let message = format!(
        "A NUL character cannot be stored in a name or written in XML; leave it out of {place}."
    );
    Err(fault(S3ErrorCode::InvalidArgument, message))
}
