//! Checks of signatures that precede their verification by `s3s`: signed headers, dates and lifetime.

use bywash::time::parse_http_date;
use chrono::{NaiveDateTime, Utc};
use http::header::AUTHORIZATION;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue};
use s3s::{S3ErrorCode, S3Result};

use crate::errors::fault;
use crate::limits::{MAX_CLOCK_SKEW_S, MAX_PRESIGNED_S};
use crate::meta::text;
use crate::routes::Query;

/// The only header that S3 accepts unsigned. In a signed request its value is part of the signature, as the payload's
/// digest. The body of a presigned request is only compared with it.
const PAYLOAD: &str = "x-amz-content-sha256";
/// Service name of a credential scope.
const SERVICE: &str = "s3";
/// Names the region of the endpoint in an error about another one.
pub(crate) const REGION: HeaderName = HeaderName::from_static("x-amz-bucket-region");
const ALGORITHM: &str = "AWS4-HMAC-SHA256";

/// Rejects a signature that does not cover the required headers. Passes a request without a signature; `s3s` rejects
/// it later.
pub(crate) fn check(parts: &Parts, query: &Query<'_>, region: &str) -> S3Result<()> {
    let presigned_v4 = query.has("X-Amz-Signature");
    let presigned_v2 = query.has("Signature");
    let headers = parts.headers.get_all(AUTHORIZATION).iter().count();
    if usize::from(presigned_v4) + usize::from(presigned_v2) + headers > 1 {
        let message = "Only one signature is allowed: X-Amz-Signature or Signature in the query, or one Authorization header.";
        return Err(fault(S3ErrorCode::InvalidArgument, message));
    }
    if !presigned_v4 && !presigned_v2 && headers == 0 {
        return Ok(());
    }
    // `s3s` omits such headers when it verifies the signature.
    let is_text = |value: &HeaderValue| std::str::from_utf8(value.as_bytes()).is_ok();
    let mut values = parts.headers.iter();
    if let Some((name, _)) =
        values.find(|(name, value)| name.as_str().starts_with("x-amz-") && !is_text(value))
    {
        let message = format!("The header {name} is not UTF-8, so it cannot be signed.");
        return Err(fault(S3ErrorCode::InvalidArgument, message));
    }
    if presigned_v4 {
        check_presigned_v4(parts, query)
    } else if presigned_v2 {
        check_presigned_v2(query)
    } else {
        let value = parts.headers.get(AUTHORIZATION);
        match value.map(|value| std::str::from_utf8(value.as_bytes()).unwrap_or_default()) {
            // Fields divided by commas are of version 4, whatever their prefix.
            Some(value) if value.starts_with("AWS ") && !value.contains(',') => {
                check_date(&parts.headers)
            }
            Some(value) => check_header_v4(parts, value, region),
            None => Ok(()),
        }
    }
}

fn check_header_v4(parts: &Parts, value: &str, expected: &str) -> S3Result<()> {
    let malformed = |message: &str| {
        let message = format!("The authorization header is malformed: {message}.");
        fault(S3ErrorCode::AuthorizationHeaderMalformed, message)
    };
    let rest = value.strip_prefix(ALGORITHM).unwrap_or_default();
    let fields: Vec<&str> = rest.split(',').map(str::trim).collect();
    let [credential, signed, _] = fields[..] else {
        return Err(malformed(
            "it is `AWS4-HMAC-SHA256 Credential=.., SignedHeaders=.., Signature=..`",
        ));
    };
    let (Some(credential), Some(signed)) = (
        credential.strip_prefix("Credential="),
        signed.strip_prefix("SignedHeaders="),
    ) else {
        return Err(malformed(
            "Credential, SignedHeaders and Signature come in this order",
        ));
    };
    if service(credential) != Some(SERVICE) {
        return Err(malformed("the credential is for another service than s3"));
    }
    match region(credential) {
        Some(region) if region != expected && !is_region(region) => {
            let message = format!("the region '{region}' is wrong; expecting '{expected}'");
            let mut error = malformed(&message);
            let expected = HeaderValue::try_from(expected);
            let named = expected.map(|expected| (REGION, expected));
            error.set_headers(HeaderMap::from_iter(named));
            Err(error)
        }
        _ => check_signed(&parts.headers, signed),
    }
}

fn check_presigned_v4(parts: &Parts, query: &Query<'_>) -> S3Result<()> {
    let wrong = |message: &str| {
        Err(fault(
            S3ErrorCode::AuthorizationQueryParametersError,
            message,
        ))
    };
    if query.one("X-Amz-Algorithm") != Some(ALGORITHM) {
        return wrong("X-Amz-Algorithm must be AWS4-HMAC-SHA256.");
    }
    if service(query.one("X-Amz-Credential").unwrap_or_default()) != Some(SERVICE) {
        return wrong("X-Amz-Credential must be for service s3.");
    }
    match query.one("X-Amz-Expires").map(str::parse::<i64>) {
        Some(Ok(seconds)) if (0..=MAX_PRESIGNED_S).contains(&seconds) => {}
        Some(Ok(seconds)) if seconds < 0 => return wrong("X-Amz-Expires must not be negative."),
        Some(Ok(_)) => {
            return wrong("X-Amz-Expires must be at most a week, which is 604800 seconds.");
        }
        _ => return wrong("X-Amz-Expires must be a number of seconds."),
    }
    check_signed(
        &parts.headers,
        query.one("X-Amz-SignedHeaders").unwrap_or_default(),
    )
}

/// Version 2 signs all `x-amz-*` headers, and has an expiry time instead of a lifetime.
fn check_presigned_v2(query: &Query<'_>) -> S3Result<()> {
    let limit = Utc::now().timestamp().saturating_add(MAX_PRESIGNED_S);
    match query.one("Expires").map(str::parse::<i64>) {
        Some(Ok(moment)) if moment <= limit => Ok(()),
        Some(Ok(_)) => {
            let message = "Expires must be at most a week from now, which is 604800 seconds.";
            Err(fault(S3ErrorCode::AccessDenied, message))
        }
        _ => {
            let message = "Expires must be a number of seconds since 1970.";
            Err(fault(S3ErrorCode::AccessDenied, message))
        }
    }
}

/// Rejects a version 2 signature with a date far from now; `s3s` checks dates of version 4 only.
fn check_date(headers: &HeaderMap) -> S3Result<()> {
    let parse = |value: &str| {
        let iso = NaiveDateTime::parse_from_str(value, "%Y%m%dT%H%M%SZ").map(|date| date.and_utc());
        iso.ok().or_else(|| parse_http_date(value))
    };
    let date = text(headers, "x-amz-date").or_else(|| text(headers, "date"));
    let Some(date) = date.and_then(parse) else {
        let message =
            "The request needs a Date or x-amz-date header with the time of its signature.";
        return Err(fault(S3ErrorCode::AccessDenied, message));
    };
    if (Utc::now() - date).num_seconds().abs() > MAX_CLOCK_SKEW_S {
        let message = "The request's date is too far from the server's time; set the clock.";
        return Err(fault(S3ErrorCode::RequestTimeTooSkewed, message));
    }
    Ok(())
}

/// Returns the service of `KEY/DATE/REGION/SERVICE/aws4_request`.
fn service(credential: &str) -> Option<&str> {
    let mut parts = credential.rsplit('/');
    (parts.next() == Some("aws4_request"))
        .then(|| parts.next())
        .flatten()
}

/// Returns the region of `KEY/DATE/REGION/SERVICE/aws4_request`.
fn region(credential: &str) -> Option<&str> {
    credential.rsplit('/').nth(2)
}

/// Returns whether `region` is a name of the form that S3 uses. Old clients sign for `US` and `EU`, and learn the region from the error.
fn is_region(region: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    region.bytes().all(fits)
}

/// Rejects a signature that does not cover `host` and all `x-amz-*` headers of the request.
fn check_signed(headers: &HeaderMap, signed: &str) -> S3Result<()> {
    let is_signed = |name: &str| signed.split(';').any(|signed| signed == name);
    if !is_signed("host") {
        let message = "The signature does not cover the header host; sign it.";
        return Err(fault(S3ErrorCode::AccessDenied, message));
    }
    let mut names = headers.keys().map(http::HeaderName::as_str);
    match names.find(|name| name.starts_with("x-amz-") && *name != PAYLOAD && !is_signed(name)) {
        None => Ok(()),
        Some(name) => {
            let message = format!(
                "There were headers present in the request which were not signed: {name}; sign it, or leave it out."
            );
            Err(fault(S3ErrorCode::AccessDenied, message))
        }
    }
}
