//! Admission: checks of a request's head before all others: host, characters, signed headers, operation.

use std::sync::Arc;

use http::request::Parts;
use percent_encoding::percent_decode;
use s3s::{S3ErrorCode, S3Result};

use crate::errors::{WithElements, fault};
use crate::host::{Hosts, Target};
use crate::meta::text;
use crate::ops::buckets::OWNER;
use crate::routes::{self, Query};
use crate::signature::{self, Framing, Verified};
use crate::sigv4::keys::SigningKeys;

/// A request that may be served.
#[derive(Debug)]
pub(crate) struct Admitted {
    pub(crate) operation: &'static str,
    /// `None`: it is not signed, or signatures are ignored.
    pub(crate) verified: Option<Verified>,
    pub(crate) framing: Framing,
}

/// Result of the checks of a request's head.
pub(crate) struct Admission {
    pub(crate) target: Arc<Target>,
    /// The operation that method and parameters name.
    pub(crate) named: Option<&'static str>,
    /// The request, or the reason for rejection.
    pub(crate) admitted: S3Result<Admitted>,
}

impl Admission {
    /// Checks a head. Ignores signatures without `keys`.
    pub(crate) fn new(
        parts: &Parts,
        hosts: &Hosts,
        keys: Option<&SigningKeys>,
        has_body: bool,
    ) -> Self {
        let (target, host) = hosts.target(parts);
        let query = Query::new(&parts.uri);
        let named = routes::operation(parts, &target, &query);
        let operation = named.as_ref().ok().copied();
        let admit = || {
            host?;
            check_path(parts)?;
            refuse_nul(parts, &query)?;
            let verified = match keys {
                Some(keys) => {
                    signature::verify(parts, &query, &target, keys).inspect_err(|error| {
                        tracing::debug!(code = error.code().as_str(), "a signature is refused");
                    })?
                }
                None => None,
            };
            let operation = named?;
            check_owner(parts, &query)?;
            Ok(Admitted {
                operation,
                verified,
                framing: Framing::of(&parts.headers, has_body)?,
            })
        };
        let admitted = admit();
        Self {
            target: Arc::new(target),
            named: operation,
            admitted,
        }
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
        .filter_map(|name| text(&parts.headers, name).or_else(|| query.first(name)));
    match expected.find(|expected| *expected != OWNER) {
        None => Ok(()),
        Some(other) => {
            let message = format!("The owner of all buckets here is {OWNER}, not {other}.");
            Err(fault(S3ErrorCode::AccessDenied, message))
        }
    }
}

/// Rejects a path that is not UTF-8: names of buckets and objects are.
fn check_path(parts: &Parts) -> S3Result<()> {
    let path = parts.uri.path();
    let decoded = percent_decode(path.as_bytes()).decode_utf8();
    decoded.map(drop).map_err(|_| {
        let message = "The request's path cannot be decoded as UTF-8.";
        fault(S3ErrorCode::InvalidURI, message).with([("URI", path)])
    })
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
