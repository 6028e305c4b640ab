//! Rules of version 4 at the S3 endpoint, and the errors of its clients. Signatures are verified by [`crate::sigv4`].
//!
//! Source: "Authenticating requests (AWS Signature Version 4)", Amazon S3 API reference.

use std::borrow::Cow;
use std::sync::Arc;

use bywash::time::parse_http_date;
use chrono::{DateTime, Utc};
use http::HeaderMap;
use http::header::DATE;
use s3s::{S3Error, S3ErrorCode, S3Result};

use super::payload::Payload;
use super::{Mismatch, PAYLOAD, Verified, check_skew, shown, unknown_key};
use crate::errors::{WithElements, fault};
use crate::limits::{MAX_CLOCK_SKEW_S, MAX_PRESIGNED_S};
use crate::meta::text;
use crate::sigv4::canonical::{Forms, RequestHead, host_without_port, path, query};
use crate::sigv4::chunks::ChunkVerifier;
use crate::sigv4::keys::{FoundKey, SigningKeys};
use crate::sigv4::parse::{
    CredentialScope, DATE_FORMAT, ScopeError, field, in_order, is_covered, plain_time, time_of,
};
use crate::sigv4::{Algorithm, ClaimedSignature, UNSIGNED};

const ALGORITHM: Algorithm = Algorithm::Amazon;

/// A signature that covers all required parts and is for this time. Nobody knows yet whether it is right.
#[derive(Debug)]
pub(crate) struct ClaimedV4<'a> {
    head: RequestHead<'a>,
    claimed: ClaimedSignature<'a>,
    /// The value that stands for the payload.
    payload: &'a str,
    /// Another value that may stand for it.
    other_payload: Option<&'a str>,
    /// Whether the signature of the request is the first one of its chunks.
    in_chunks: bool,
}

impl<'a> ClaimedV4<'a> {
    /// Reads a signature in the Authorization header, whose value is `value`.
    pub(crate) fn of_header(
        head: RequestHead<'a>,
        value: &'a str,
        now: DateTime<Utc>,
    ) -> S3Result<Self> {
        let malformed = |message: &str| {
            let message = format!("The authorization header is malformed: {message}.");
            fault(S3ErrorCode::AuthorizationHeaderMalformed, message)
        };
        let fields = value.strip_prefix(ALGORITHM.name()).unwrap_or_default();
        let field = |name: &str| {
            field(fields, name).ok_or_else(|| {
                malformed("it is `AWS4-HMAC-SHA256 Credential=.., SignedHeaders=.., Signature=..`")
            })
        };
        let (credential, signed, signature) = (
            field("Credential")?,
            field("SignedHeaders")?,
            field("Signature")?,
        );
        let scope = scope_of(credential)
            .map_err(|problem| malformed(&format!("the credential {problem}")))?;
        let payload = text(head.headers, PAYLOAD).ok_or_else(|| {
            let message =
                format!("The request needs the header {PAYLOAD}, which the signature covers.");
            fault(S3ErrorCode::InvalidRequest, message)
        })?;
        let in_chunks = Payload::parse(payload)?.is_signed_in_chunks();
        check_covered(head.headers, signed)?;
        let (date, time) = date_of(head.headers).ok_or_else(undated)?;
        if !date.starts_with(scope.day) {
            let day = scope.day;
            return Err(malformed(&format!(
                "the credential date {day} differs from the date of the request, {date}"
            )));
        }
        check_skew(time, &date, now)?;
        Ok(Self {
            head,
            claimed: ClaimedSignature {
                scope,
                date,
                signed: in_order(signed),
                signature,
            },
            payload,
            other_payload: None,
            in_chunks,
        })
    }

    /// Reads a signature in the query. `value`: the decoded value of a parameter that occurs once.
    pub(crate) fn of_query(
        head: RequestHead<'a>,
        value: impl Fn(&str) -> Option<&'a str>,
        now: DateTime<Utc>,
    ) -> S3Result<Self> {
        let value = |name: &str| {
            value(name).ok_or_else(|| {
                wrong_query(format!(
                    "Query-string authentication version 4 requires X-Amz-Algorithm, X-Amz-Credential, X-Amz-Signature, X-Amz-Date, \
                     X-Amz-SignedHeaders and X-Amz-Expires, each once; {name} is missing."
                ))
            })
        };
        if value("X-Amz-Algorithm")? != ALGORITHM.name() {
            let name = ALGORITHM.name();
            return Err(wrong_query(format!("X-Amz-Algorithm must be {name}.")));
        }
        let scope = scope_of(value("X-Amz-Credential")?)
            .map_err(|problem| wrong_query(format!("X-Amz-Credential {problem}.")))?;
        let lifetime = lifetime_of(value("X-Amz-Expires")?)?;
        let signed = value("X-Amz-SignedHeaders")?;
        check_covered(head.headers, signed)?;
        let sent = text(head.headers, PAYLOAD);
        let payload = sent.map_or(Ok(Payload::Unsigned), Payload::parse)?;
        if matches!(payload, Payload::Chunks { .. }) {
            let message = "The body of a presigned request cannot be signed in chunks.";
            return Err(fault(S3ErrorCode::NotImplemented, message));
        }
        let date = value("X-Amz-Date")?;
        let begin = time_of(date).ok_or_else(|| {
            wrong_query("X-Amz-Date must be in the form YYYYMMDDTHHMMSSZ.".to_owned())
        })?;
        if !date.starts_with(scope.day) {
            return Err(wrong_query(format!(
                "The date of X-Amz-Credential, {}, differs from X-Amz-Date.",
                scope.day
            )));
        }
        check_lifetime(begin, lifetime, date, now)?;
        Ok(Self {
            head,
            claimed: ClaimedSignature {
                scope,
                date: Cow::Borrowed(date),
                signed: in_order(signed),
                signature: value("X-Amz-Signature")?,
            },
            payload: UNSIGNED,
            other_payload: sent.filter(|_| is_covered(signed, PAYLOAD)),
            in_chunks: false,
        })
    }

    /// The key of the signature, right or wrong.
    pub(crate) fn key(&self, keys: &SigningKeys) -> Option<FoundKey> {
        keys.find(self.claimed.scope)
    }

    /// Verifies the signature.
    pub(crate) fn verify(&self, keys: &SigningKeys) -> S3Result<Verified> {
        let ClaimedSignature {
            scope,
            date,
            signature,
            ..
        } = &self.claimed;
        let found = self.key(keys).ok_or_else(|| unknown_key(scope.identity))?;
        self.with_forms(|forms| {
            let is_right = self.claimed.is_by_key(&found.key, forms);
            is_right.then_some(()).ok_or_else(|| self.mismatch(forms))
        })??;
        keys.keep(&found);
        let chunks = self.in_chunks.then(|| {
            let seed = signature.to_ascii_lowercase();
            ChunkVerifier::new(Arc::clone(&found.key), date, &scope.to_string(), &seed)
        });
        Ok(Verified {
            signatory: found.key.signatory().clone(),
            chunks,
        })
    }

    fn mismatch(&self, forms: &Forms<'_>) -> S3Error {
        let request = forms.requests().next();
        let text = request.as_ref().map(|request| self.claimed.text(request));
        let request = request.map(|request| request.bytes());
        Mismatch {
            access_key: self.claimed.scope.identity,
            signature: self.claimed.signature,
            text: &text.unwrap_or_default(),
            request: request.as_deref(),
        }
        .error()
    }

    /// Calls `found` with the forms that clients may have signed: with the path encoded again or as it is, a plus in the
    /// query as a space or a plus, and the host with its port or without.
    fn with_forms<T>(&self, found: impl FnOnce(&Forms<'_>) -> T) -> S3Result<T> {
        let RequestHead { uri, headers, .. } = self.head;
        let query = |plus_is_space| {
            query(uri, plus_is_space)
                .map_err(|_| fault(S3ErrorCode::InvalidURI, "The query is not UTF-8."))
        };
        let sent = uri.path();
        let paths = [path(sent), Cow::Borrowed(sent)];
        let has_plus = uri.query().is_some_and(|query| query.contains('+'));
        let queries = [
            query(true)?,
            if has_plus { query(false)? } else { Vec::new() },
        ];
        let without_port = host_without_port(headers);
        let payloads = [self.payload, self.other_payload.unwrap_or_default()];
        Ok(found(&Forms {
            head: self.head,
            signed: &self.claimed.signed,
            hosts: &[None, without_port][..1 + usize::from(without_port.is_some())],
            paths: &paths[..1 + usize::from(paths[0] != sent)],
            queries: &queries[..1 + usize::from(has_plus)],
            payloads: &payloads[..1 + usize::from(self.other_payload.is_some())],
        }))
    }
}

fn wrong_query(message: String) -> S3Error {
    fault(S3ErrorCode::AuthorizationQueryParametersError, message)
}

/// Seconds of validity of a presigned request.
fn lifetime_of(expires: &str) -> S3Result<i64> {
    let message = match expires.parse::<i64>() {
        Ok(seconds) if (0..=MAX_PRESIGNED_S).contains(&seconds) => return Ok(seconds),
        Ok(seconds) if seconds < 0 => "X-Amz-Expires must not be negative.",
        Err(error) if !is_overflow(&error) => "X-Amz-Expires must be a number of seconds.",
        _ => "X-Amz-Expires must be at most a week, which is 604800 seconds.",
    };
    Err(wrong_query(message.to_owned()))
}

/// Rejects a presigned request before its time, and after it.
fn check_lifetime(
    begin: DateTime<Utc>,
    lifetime: i64,
    sent: &str,
    now: DateTime<Utc>,
) -> S3Result<()> {
    if (begin - now).num_seconds() > MAX_CLOCK_SKEW_S {
        return check_skew(begin, sent, now);
    }
    let end = begin + chrono::Duration::seconds(lifetime);
    if now <= end || planted!("gateway-expired-address-accepted") {
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

/// Parses `KEY/DAY/REGION/s3/aws4_request`. A region of any name: the secret key is the same in all regions.
fn scope_of(credential: &str) -> Result<CredentialScope<'_>, &'static str> {
    const FORM: &str = "is KEY/YYYYMMDD/REGION/s3/aws4_request";
    let scope = CredentialScope::parse(ALGORITHM, credential).map_err(|error| match error {
        ScopeError::OtherService => "must be for service s3",
        ScopeError::Malformed => FORM,
    })?;
    let is_day = scope.day.bytes().all(|byte| byte.is_ascii_digit());
    let is_good = is_day && !scope.identity.is_empty();
    is_good.then_some(scope).ok_or(FORM)
}

/// Date of a request as it is signed, and its time: x-amz-date, or Date in any form of HTTP.
fn date_of(headers: &HeaderMap) -> Option<(Cow<'_, str>, DateTime<Utc>)> {
    let amazon = text(headers, "x-amz-date");
    let sent = amazon.or_else(|| text(headers, DATE.as_str()))?;
    if let Some(time) = plain_time(sent) {
        return Some((Cow::Borrowed(sent), time));
    }
    let http = || parse_http_date(sent).filter(|_| amazon.is_none());
    let time = time_of(sent).or_else(http)?;
    Some((Cow::Owned(time.format(DATE_FORMAT).to_string()), time))
}

fn undated() -> S3Error {
    let message = "AWS authentication requires a valid Date or x-amz-date header; send the time of the signature.";
    fault(S3ErrorCode::AccessDenied, message)
}

/// Rejects a signature that does not cover `host` and all `x-amz-*` headers of the request.
fn check_covered(headers: &HeaderMap, signed: &str) -> S3Result<()> {
    if !is_covered(signed, "host") {
        let message = "The signature does not cover the header host; sign it.";
        return Err(fault(S3ErrorCode::AccessDenied, message));
    }
    let names = headers.keys().map(http::HeaderName::as_str);
    let unsigned =
        |name: &&str| name.starts_with("x-amz-") && *name != PAYLOAD && !is_covered(signed, name);
    let names: Vec<_> = names.filter(unsigned).collect();
    if names.is_empty() || planted!("gateway-unsigned-header-accepted") {
        return Ok(());
    }
    let names = names.join(", ");
    let message = format!(
        "There were headers present in the request which were not signed: {names}; sign them, or leave them out."
    );
    let error = fault(S3ErrorCode::AccessDenied, message);
    Err(error.with([("HeadersNotSigned", names)]))
}
