//! Signatures of requests to the S3 endpoint: of version 4 and 2, in a header or in the query.
//!
//! Verified here and not by `s3s`, which knows no region but of lower-case letters, digits and hyphens, buffers each signed
//! chunk, and does not return which parts were signed. The fast path calls [`ClaimedV4`] too.

mod payload;
mod v2;
mod v4;

use chrono::{DateTime, Utc};
use http::header::AUTHORIZATION;
use http::request::Parts;
use s3s::{S3Error, S3ErrorCode, S3Result};

pub(crate) use self::payload::{Framing, is_aws_chunked};
pub(crate) use self::v4::ClaimedV4;
use crate::errors::{WithElements, fault};
use crate::host::Target;
use crate::limits::{MAX_CLOCK_SKEW_S, MAX_SHOWN_SIGNED_BYTES};
use crate::routes::Query;
use crate::sigv4::canonical::RequestHead;
use crate::sigv4::chunks::ChunkVerifier;
use crate::sigv4::keys::{Signatory, SigningKeys};

/// The header of a payload's digest or kind, the only one of Amazon's that may be unsigned: in a signed request its value
/// is part of the signature. The body of a presigned request is only compared with it.
pub(crate) const PAYLOAD: &str = "x-amz-content-sha256";

/// A request whose signature is right.
#[derive(Debug)]
pub(crate) struct Verified {
    pub(crate) signatory: Signatory,
    /// Verifies the chunks of the body, if they are signed.
    pub(crate) chunks: Option<ChunkVerifier>,
}

/// Verifies the signature of a request; `None` if it has none.
pub(crate) fn verify(
    parts: &Parts,
    query: &Query<'_>,
    target: &Target,
    keys: &SigningKeys,
) -> S3Result<Option<Verified>> {
    let presigned_v4 = query.has("X-Amz-Signature");
    let presigned_v2 = query.has("Signature");
    let mut headers = parts.headers.get_all(AUTHORIZATION).iter();
    let header = headers.next();
    let more = usize::from(presigned_v4) + usize::from(presigned_v2) + headers.count();
    if more + usize::from(header.is_some()) > 1 {
        let message = "Only one signature is allowed: X-Amz-Signature or Signature in the query, or one Authorization header.";
        return Err(fault(S3ErrorCode::InvalidArgument, message));
    }
    let of_v2 = |signatory| Verified {
        signatory,
        chunks: None,
    };
    let (head, now) = (RequestHead::of_parts(parts), Utc::now());
    if presigned_v4 {
        let claimed = ClaimedV4::of_query(head, |name| query.one(name), now)?;
        return claimed.verify(keys).map(Some);
    }
    if presigned_v2 {
        let signatory = v2::verify_query(parts, query, target, &keys.secrets);
        return signatory.map(of_v2).map(Some);
    }
    let Some(value) = header else {
        return Ok(None);
    };
    let value = std::str::from_utf8(value.as_bytes()).unwrap_or_default();
    // Fields divided by commas are of version 4, regardless of their prefix.
    if value.starts_with("AWS ") && !value.contains(',') {
        let signatory = v2::verify_header(parts, query, target, &keys.secrets);
        return signatory.map(of_v2).map(Some);
    }
    ClaimedV4::of_header(head, value, now)?
        .verify(keys)
        .map(Some)
}

/// Rejects a date far from the server's. `sent`: as the request has it.
fn check_skew(date: DateTime<Utc>, sent: &str, now: DateTime<Utc>) -> S3Result<()> {
    if (now - date).num_seconds().abs() <= MAX_CLOCK_SKEW_S {
        return Ok(());
    }
    let message = "The request's date is too far from the server's time; set the clock.";
    Err(fault(S3ErrorCode::RequestTimeTooSkewed, message).with([
        ("RequestTime", sent.to_owned()),
        ("ServerTime", shown(now)),
        (
            "MaxAllowedSkewMilliseconds",
            (MAX_CLOCK_SKEW_S * 1000).to_string(),
        ),
    ]))
}

/// A time as error documents have it.
fn shown(time: DateTime<Utc>) -> String {
    time.format("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn unknown_key(access_key: &str) -> S3Error {
    let message = "The access key is not one of this endpoint's; use the key it was started with.";
    fault(S3ErrorCode::InvalidAccessKeyId, message).with([("AWSAccessKeyId", access_key)])
}

/// A signature that does not match its request.
struct Mismatch<'a> {
    access_key: &'a str,
    signature: &'a str,
    /// The text to sign.
    text: &'a [u8],
    /// The canonical request, in version 4.
    request: Option<&'a [u8]>,
}

impl Mismatch<'_> {
    /// The error, with the text that the server would sign: clients compare it with theirs.
    fn error(&self) -> S3Error {
        let message = "The signature does not match the request; check the secret key, and that nothing on the way changes the request.";
        let mut error = fault(S3ErrorCode::SignatureDoesNotMatch, message).with([
            ("AWSAccessKeyId", self.access_key),
            ("StringToSign", &String::from_utf8_lossy(self.text)),
            ("SignatureProvided", self.signature),
            ("StringToSignBytes", &bytes_in_hex(self.text)),
        ]);
        if let Some(request) = self
            .request
            .filter(|text| text.len() <= MAX_SHOWN_SIGNED_BYTES)
        {
            error = error.with([
                ("CanonicalRequest", &*String::from_utf8_lossy(request)),
                ("CanonicalRequestBytes", &bytes_in_hex(request)),
            ]);
        }
        error
    }
}

/// Returns bytes in pairs of hexadecimal digits.
fn bytes_in_hex(bytes: &[u8]) -> String {
    let pairs: Vec<_> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    pairs.join(" ")
}

#[cfg(test)]
mod tests;
