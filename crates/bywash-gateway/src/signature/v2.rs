//! Signatures of version 2, in a header or a query.
//!
//! Source: "Signing and authenticating REST requests", Amazon S3 user guide.

use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bywash::time::parse_http_date;
use chrono::Utc;
use hmac::{Hmac, KeyInit, Mac};
use http::header::{AUTHORIZATION, CONTENT_TYPE, DATE};
use http::request::Parts;
use http::{HeaderMap, HeaderName};
use s3s::{S3ErrorCode, S3Result};
use sha1::Sha1;

use super::{Mismatch, check_skew, unknown_key};
use crate::errors::{WithElements, fault};
use crate::host::Target;
use crate::limits::MAX_PRESIGNED_S;
use crate::meta::text;
use crate::routes::Query;
use crate::sigv4::keys::{Secrets, Signatory};
use crate::sigv4::parse::time_of;

/// Parameters that are part of the signed text, in their order.
const SIGNED_PARAMETERS: [&str; 35] = [
    "accelerate",
    "acl",
    "analytics",
    "cors",
    "defaultObjectAcl",
    "delete",
    "inventory",
    "lifecycle",
    "location",
    "logging",
    "metrics",
    "notification",
    "object-lock",
    "partNumber",
    "policy",
    "replication",
    "requestPayment",
    "response-cache-control",
    "response-content-disposition",
    "response-content-encoding",
    "response-content-language",
    "response-content-type",
    "response-expires",
    "restore",
    "select",
    "select-type",
    "storageClass",
    "tagging",
    "torrent",
    "uploadId",
    "uploads",
    "versionId",
    "versioning",
    "versions",
    "website",
];

/// Verifies a signature in the Authorization header.
pub(super) fn verify_header(
    parts: &Parts,
    query: &Query<'_>,
    target: &Target,
    secrets: &Secrets,
) -> S3Result<Signatory> {
    let value = text(&parts.headers, AUTHORIZATION.as_str()).unwrap_or_default();
    let fields = value
        .strip_prefix("AWS ")
        .and_then(|rest| rest.rsplit_once(':'));
    let Some((access_key, signature)) = fields else {
        let message = "The authorization header is `AWS KEY:SIGNATURE` in version 2.";
        return Err(fault(S3ErrorCode::AuthorizationHeaderMalformed, message));
    };
    let amazon = text(&parts.headers, "x-amz-date");
    let sent = amazon.or_else(|| text(&parts.headers, DATE.as_str()));
    let parse = |value: &str| time_of(value).or_else(|| parse_http_date(value));
    let Some(date) = sent.and_then(parse) else {
        let message =
            "The request needs a Date or x-amz-date header with the time of its signature.";
        return Err(fault(S3ErrorCode::AccessDenied, message));
    };
    check_skew(date, sent.unwrap_or_default(), Utc::now())?;
    let date = sent.filter(|_| amazon.is_none()).unwrap_or_default();
    let text = string_to_sign(parts, query, target, date);
    verify(secrets, access_key.trim(), signature.trim(), &text)
}

/// Verifies a signature in the query.
pub(super) fn verify_query(
    parts: &Parts,
    query: &Query<'_>,
    target: &Target,
    secrets: &Secrets,
) -> S3Result<Signatory> {
    let now = Utc::now().timestamp();
    let denied = |message: &'static str| fault(S3ErrorCode::AccessDenied, message);
    let sent = query.one("Expires").unwrap_or_default();
    match sent.parse::<i64>() {
        Ok(moment) if moment > now.saturating_add(MAX_PRESIGNED_S) => {
            return Err(denied(
                "Expires must be at most a week from now, which is 604800 seconds.",
            ));
        }
        Ok(moment) if moment < now => {
            let error = denied("Request has expired; sign another address.");
            let server = Utc::now().format("%Y-%m-%dT%H:%M:%SZ").to_string();
            return Err(error.with([("Expires", sent), ("ServerTime", &server)]));
        }
        Ok(_) => {}
        Err(_) => return Err(denied("Expires must be a number of seconds since 1970.")),
    }
    let (access_key, signature) = (query.one("AWSAccessKeyId"), query.one("Signature"));
    let (Some(access_key), Some(signature)) = (access_key, signature) else {
        return Err(denied(
            "Query-string authentication requires the Signature, Expires and AWSAccessKeyId parameters.",
        ));
    };
    let text = string_to_sign(parts, query, target, sent);
    // A plus that is not encoded was decoded as a space; base64 has none.
    verify(secrets, access_key, &signature.replace(' ', "+"), &text)
}

fn verify(
    secrets: &Secrets,
    access_key: &str,
    signature: &str,
    text: &[u8],
) -> S3Result<Signatory> {
    let (secret, scope) = secrets
        .find(access_key)
        .ok_or_else(|| unknown_key(access_key))?;
    let claimed = BASE64_STANDARD.decode(signature).unwrap_or_default();
    let mac = Hmac::<Sha1>::new_from_slice(secret.as_bytes()).ok();
    let is_signed = mac.is_some_and(|mut mac| {
        mac.update(text);
        mac.verify_slice(&claimed).is_ok()
    });
    if is_signed {
        Ok(Signatory {
            access_key: access_key.into(),
            scope: Arc::clone(scope),
        })
    } else {
        Err(Mismatch {
            access_key,
            signature,
            text,
            request: None,
        }
        .error())
    }
}

/// The text to sign. `date`: the header Date, or the time of expiry.
fn string_to_sign(parts: &Parts, query: &Query<'_>, target: &Target, date: &str) -> Vec<u8> {
    let headers = &parts.headers;
    let mut text = Vec::new();
    let mut line = |bytes: &[u8]| {
        text.extend_from_slice(bytes);
        text.push(b'\n');
    };
    line(parts.method.as_str().as_bytes());
    for name in [HeaderName::from_static("content-md5"), CONTENT_TYPE] {
        line(headers.get(name).map_or(b"", |value| value.as_bytes()));
    }
    line(date.as_bytes());
    let mut names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
    names.retain(|name| name.starts_with("x-amz-"));
    names.sort_unstable();
    for name in names {
        line(&joined(headers, name));
    }
    if let Some(bucket) = target.virtual_bucket() {
        text.extend_from_slice(b"/");
        text.extend_from_slice(bucket.as_bytes());
    }
    text.extend_from_slice(parts.uri.path().as_bytes());
    let mut separator = b'?';
    for name in SIGNED_PARAMETERS {
        if let Some(value) = query.first(name) {
            text.push(std::mem::replace(&mut separator, b'&'));
            text.extend_from_slice(name.as_bytes());
            if !value.is_empty() {
                text.push(b'=');
                text.extend_from_slice(value.as_bytes());
            }
        }
    }
    text
}

/// Returns `name:VALUES` of a header, its values joined by commas.
fn joined(headers: &HeaderMap, name: &str) -> Vec<u8> {
    let values = headers.get_all(name).iter();
    let values: Vec<_> = values.map(|value| value.as_bytes().trim_ascii()).collect();
    [name.as_bytes(), b":", &values.join(&b',')].concat()
}
