//! Signatures of version 4, in a header or a query.
//!
//! Source: "Authenticating requests (AWS Signature Version 4)", Amazon S3 API reference.

use std::sync::Arc;

use bywash::time::parse_http_date;
use chrono::{DateTime, NaiveDateTime, Utc};
use http::header::DATE;
use http::request::Parts;
use s3s::{S3Error, S3ErrorCode, S3Result};
use sha2::{Digest as _, Sha256};

use super::chunks::ChunkVerifier;
use super::keys::{CredentialScope, SigningKeys};
use super::payload::Payload;
use super::{
    ALGORITHM, Mismatch, PAYLOAD, SERVICE, TERMINATOR, UNSIGNED, Verified, check_skew, shown,
    unknown_key,
};
use crate::canonical::{
    bytes_of, headers, host_without_port, pairs, path, query as canonical_query,
};
use crate::digest::hex;
use crate::errors::{WithElements, fault};
use crate::limits::{MAX_CLOCK_SKEW_S, MAX_PRESIGNED_S};
use crate::meta::text;
use crate::routes::Query;

const DATE_FORMAT: &str = "%Y%m%dT%H%M%SZ";

/// A signature as a request states it. Nothing of it is known to be true until it is verified.
struct ClaimedSignature<'a> {
    named: CredentialScope<'a>,
    /// Day and time.
    date: String,
    /// Names of the headers that it covers, in order.
    signed: String,
    /// Values that may stand for the payload.
    payloads: Vec<&'a str>,
    signature: &'a str,
}

/// Verifies a signature in the Authorization header.
pub(super) fn verify_header(parts: &Parts, value: &str, keys: &SigningKeys) -> S3Result<Verified> {
    let malformed = |message: &str| {
        let message = format!("The authorization header is malformed: {message}.");
        fault(S3ErrorCode::AuthorizationHeaderMalformed, message)
    };
    let fields = value.strip_prefix(ALGORITHM).unwrap_or_default();
    let field = |name: &str| {
        let mut fields = fields.split(',').map(str::trim);
        let found = fields.find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
        found.ok_or_else(|| {
            malformed("it is `AWS4-HMAC-SHA256 Credential=.., SignedHeaders=.., Signature=..`")
        })
    };
    let (credential, signed, signature) = (
        field("Credential")?,
        field("SignedHeaders")?,
        field("Signature")?,
    );
    let named =
        scope_of(credential).map_err(|problem| malformed(&format!("the credential {problem}")))?;
    let payload = text(&parts.headers, PAYLOAD).ok_or_else(|| {
        let message =
            format!("The request needs the header {PAYLOAD}, which the signature covers.");
        fault(S3ErrorCode::InvalidRequest, message)
    })?;
    let framing = Payload::parse(payload)?;
    check_covered(parts, signed)?;
    let date = date_of(parts)?;
    if !date.starts_with(named.day) {
        let day = named.day;
        return Err(malformed(&format!(
            "the credential date {day} differs from the date of the request, {date}"
        )));
    }
    check_skew(parse(&date)?, &date)?;
    let claimed = ClaimedSignature {
        named,
        date,
        signed: in_order(signed),
        payloads: vec![payload],
        signature,
    };
    claimed.verify(parts, keys, framing.is_signed_in_chunks())
}

/// Verifies a signature in the query.
pub(super) fn verify_query(
    parts: &Parts,
    query: &Query<'_>,
    keys: &SigningKeys,
) -> S3Result<Verified> {
    let wrong = |message: String| fault(S3ErrorCode::AuthorizationQueryParametersError, message);
    let value = |name: &str| {
        query.one(name).ok_or_else(|| {
            wrong(format!(
                "Query-string authentication version 4 requires X-Amz-Algorithm, X-Amz-Credential, X-Amz-Signature, X-Amz-Date, \
                 X-Amz-SignedHeaders and X-Amz-Expires, each once; {name} is missing."
            ))
        })
    };
    if value("X-Amz-Algorithm")? != ALGORITHM {
        return Err(wrong(format!("X-Amz-Algorithm must be {ALGORITHM}.")));
    }
    let named = scope_of(value("X-Amz-Credential")?)
        .map_err(|problem| wrong(format!("X-Amz-Credential {problem}.")))?;
    let lifetime = match value("X-Amz-Expires")?.parse::<i64>() {
        Ok(seconds) if (0..=MAX_PRESIGNED_S).contains(&seconds) => seconds,
        Ok(seconds) if seconds < 0 => {
            return Err(wrong("X-Amz-Expires must not be negative.".to_owned()));
        }
        Err(error) if !is_overflow(&error) => {
            return Err(wrong(
                "X-Amz-Expires must be a number of seconds.".to_owned(),
            ));
        }
        _ => {
            let message = "X-Amz-Expires must be at most a week, which is 604800 seconds.";
            return Err(wrong(message.to_owned()));
        }
    };
    let signed = value("X-Amz-SignedHeaders")?;
    check_covered(parts, signed)?;
    let sent = text(&parts.headers, PAYLOAD);
    let framing = sent.map_or(Ok(Payload::Unsigned), Payload::parse)?;
    if matches!(framing, Payload::Chunks { .. }) {
        let message = "The body of a presigned request cannot be signed in chunks.";
        return Err(fault(S3ErrorCode::NotImplemented, message));
    }
    let date = value("X-Amz-Date")?;
    let begin = parse(date)
        .map_err(|_| wrong("X-Amz-Date must be in the form YYYYMMDDTHHMMSSZ.".to_owned()))?;
    if !date.starts_with(named.day) {
        return Err(wrong(format!(
            "The date of X-Amz-Credential, {}, differs from X-Amz-Date.",
            named.day
        )));
    }
    check_lifetime(begin, lifetime, date)?;
    let covered = sent.filter(|_| is_covered(signed, PAYLOAD));
    let claimed = ClaimedSignature {
        named,
        date: date.to_owned(),
        signed: in_order(signed),
        payloads: std::iter::once(UNSIGNED).chain(covered).collect(),
        signature: value("X-Amz-Signature")?,
    };
    claimed.verify(parts, keys, false)
}

/// Rejects a presigned request before its time, and after it.
fn check_lifetime(begin: DateTime<Utc>, lifetime: i64, sent: &str) -> S3Result<()> {
    let now = Utc::now();
    if (begin - now).num_seconds() > MAX_CLOCK_SKEW_S {
        return check_skew(begin, sent);
    }
    let end = begin + chrono::Duration::seconds(lifetime);
    if now <= end {
        return Ok(());
    }
    let message = "Request has expired; sign another address.";
    Err(fault(S3ErrorCode::AccessDenied, message).with([
        ("X-Amz-Expires", lifetime.to_string()),
        ("Expires", shown(end)),
        ("ServerTime", shown(now)),
    ]))
}

fn is_overflow(error: &std::num::ParseIntError) -> bool {
    use std::num::IntErrorKind::{NegOverflow, PosOverflow};
    matches!(error.kind(), PosOverflow | NegOverflow)
}

/// Parses `KEY/DAY/REGION/s3/aws4_request`. A region of any name: the secret key is the same in all
/// regions.
fn scope_of(credential: &str) -> Result<CredentialScope<'_>, &'static str> {
    const FORM: &str = "is KEY/YYYYMMDD/REGION/s3/aws4_request";
    let mut fields = credential.rsplitn(5, '/');
    let mut next = || fields.next().ok_or(FORM);
    let [terminator, service, region, day, access_key] =
        [next()?, next()?, next()?, next()?, next()?];
    if service != SERVICE && terminator == TERMINATOR {
        return Err("must be for service s3");
    }
    let is_day = day.len() == 8 && day.bytes().all(|byte| byte.is_ascii_digit());
    if terminator != TERMINATOR || service != SERVICE || !is_day || access_key.is_empty() {
        return Err(FORM);
    }
    Ok(CredentialScope {
        access_key,
        day,
        region,
    })
}

/// Time of a request as it is signed: x-amz-date, or Date in any form of HTTP.
fn date_of(parts: &Parts) -> S3Result<String> {
    let date = match text(&parts.headers, "x-amz-date") {
        Some(date) => parse(date).ok(),
        None => {
            let date = text(&parts.headers, DATE.as_str());
            date.and_then(|date| parse(date).ok().or_else(|| parse_http_date(date)))
        }
    };
    date.map(|date| date.format(DATE_FORMAT).to_string())
        .ok_or_else(undated)
}

fn undated() -> S3Error {
    let message = "AWS authentication requires a valid Date or x-amz-date header; send the time of the signature.";
    fault(S3ErrorCode::AccessDenied, message)
}

fn parse(date: &str) -> S3Result<DateTime<Utc>> {
    let parsed = NaiveDateTime::parse_from_str(date, DATE_FORMAT);
    parsed.map(|date| date.and_utc()).map_err(|_| undated())
}

fn is_covered(signed: &str, name: &str) -> bool {
    let mut names = signed.split(';');
    names.any(|signed| signed.eq_ignore_ascii_case(name))
}

/// Rejects a signature that does not cover `host` and all `x-amz-*` headers of the request.
fn check_covered(parts: &Parts, signed: &str) -> S3Result<()> {
    if !is_covered(signed, "host") {
        let message = "The signature does not cover the header host; sign it.";
        return Err(fault(S3ErrorCode::AccessDenied, message));
    }
    let names = parts.headers.keys().map(http::HeaderName::as_str);
    let unsigned =
        |name: &&str| name.starts_with("x-amz-") && *name != PAYLOAD && !is_covered(signed, name);
    let names: Vec<_> = names.filter(unsigned).collect();
    if names.is_empty() {
        return Ok(());
    }
    let names = names.join(", ");
    let message = format!(
        "There were headers present in the request which were not signed: {names}; sign them, or leave them out."
    );
    let error = fault(S3ErrorCode::AccessDenied, message);
    Err(error.with([("HeadersNotSigned", names)]))
}

/// Names of headers as they are signed.
fn in_order(signed: &str) -> String {
    let signed = signed.to_ascii_lowercase();
    let mut names: Vec<_> = signed.split(';').collect();
    names.sort_unstable();
    names.join(";")
}

impl ClaimedSignature<'_> {
    /// `in_chunks`: whether the signature of the request is the first one of its chunks.
    fn verify(self, parts: &Parts, keys: &SigningKeys, in_chunks: bool) -> S3Result<Verified> {
        let named = self.named;
        let found = keys
            .find(named)
            .ok_or_else(|| unknown_key(named.access_key))?;
        let bytes = bytes_of(self.signature).unwrap_or_default();
        let scope = format!("{}/{}/{SERVICE}/{TERMINATOR}", named.day, named.region);
        let text_of = |request: &[u8]| {
            let digest = hex(&Sha256::digest(request));
            format!("{ALGORITHM}\n{}\n{scope}\n{digest}", self.date)
        };
        let requests = self.requests(parts)?;
        let is_signed = |request: &Vec<u8>| found.key.is_signature(&text_of(request), &bytes);
        if !requests.iter().any(is_signed) {
            let request = requests.first().map(Vec::as_slice).unwrap_or_default();
            return Err(Mismatch {
                access_key: named.access_key,
                signature: self.signature,
                text: text_of(request).as_bytes(),
                request: Some(request),
            }
            .error());
        }
        keys.keep(&found);
        let seed = self.signature.to_ascii_lowercase();
        let chunks = in_chunks
            .then(|| ChunkVerifier::new(Arc::clone(&found.key), &self.date, &scope, &seed));
        Ok(Verified {
            signatory: found.key.signatory().clone(),
            chunks,
        })
    }

    /// Returns the canonical requests that clients may have signed: with the path encoded again or as it is, a plus in the
    /// query as a space or a plus, and the host with its port or without. The first one is the common one.
    fn requests(&self, parts: &Parts) -> S3Result<Vec<Vec<u8>>> {
        let sent = parts.uri.path();
        let mut paths = vec![path(sent)];
        if paths[0] != sent {
            paths.push(sent.to_owned());
        }
        let has_plus = parts.uri.query().is_some_and(|query| query.contains('+'));
        let mut queries = Vec::new();
        for plus_is_space in [true, false] {
            if plus_is_space || has_plus {
                let pairs = pairs(&parts.uri, plus_is_space)
                    .map_err(|_| fault(S3ErrorCode::InvalidURI, "The query is not UTF-8."))?;
                queries.push(canonical_query(pairs.iter()));
            }
        }
        let mut sets = vec![headers(&parts.headers, &self.signed, None)];
        if let Some(host) = host_without_port(&parts.headers) {
            sets.push(headers(&parts.headers, &self.signed, Some(host)));
        }
        let mut requests = Vec::new();
        for (headers, payload) in sets
            .iter()
            .flat_map(|set| self.payloads.iter().map(move |payload| (set, payload)))
        {
            for path in &paths {
                for query in &queries {
                    let head = format!("{}\n{path}\n{query}\n", parts.method);
                    let end = format!("\n{}\n{payload}", self.signed);
                    requests.push([head.as_bytes(), headers, end.as_bytes()].concat());
                }
            }
        }
        Ok(requests)
    }
}
