//! SigV4 signatures of reads in the common form. One that does not verify here is verified again by
//! [`crate::signature`], which says why.

use chrono::NaiveDate;
use hmac::Mac;
use sha2::{Digest, Sha256};

use super::request::{FastRequest, KnownHeaders, KnownQuery, text};
use crate::limits::{MAX_CLOCK_SKEW_S, MAX_FAST_SIGNED_HEADERS, MAX_PRESIGNED_S};
use crate::signature::keys::{CredentialScope, Signatory, SigningKeys};
use crate::signature::{ALGORITHM, EMPTY_SHA256, SERVICE, TERMINATOR, UNSIGNED};

/// A signature as a request states it, and the parts that it covers.
#[derive(Debug)]
pub(super) struct ClaimedSignature<'a> {
    named: CredentialScope<'a>,
    /// Day and time.
    date: &'a str,
    /// Seconds of validity of a presigned request.
    lifetime: Option<i64>,
    query: KnownQuery<'a>,
    signed: SignedHeaders<'a>,
    payload: &'static str,
    signature: [u8; 32],
}

/// The headers that a signature covers, in its order.
#[derive(Debug)]
struct SignedHeaders<'a> {
    fields: [(&'a str, &'a str); MAX_FAST_SIGNED_HEADERS],
    count: usize,
}

impl<'a> ClaimedSignature<'a> {
    /// Returns `None` without a signature, with two, with one of another form, and if it does not
    /// cover all required parts.
    pub(super) fn parse(headers: &KnownHeaders<'a>, query: KnownQuery<'a>) -> Option<Self> {
        match (headers.authorization, query.signature) {
            (Some(_), None) => Self::of_header(headers, query),
            (None, Some(signature)) => Self::presigned(headers, query, signature),
            _ => None,
        }
    }

    fn of_header(headers: &KnownHeaders<'a>, query: KnownQuery<'a>) -> Option<Self> {
        let value = text(headers.authorization)?;
        let mut fields = value
            .strip_prefix(ALGORITHM)?
            .strip_prefix(' ')?
            .split(',')
            .map(|field| field.trim_start_matches(' '));
        let credential = fields.next()?.strip_prefix("Credential=")?;
        let signed = fields.next()?.strip_prefix("SignedHeaders=")?;
        let signature = fields.next()?.strip_prefix("Signature=")?;
        // An `x-id` is the only parameter that may be left.
        if fields.next().is_some() || query.signed().any(|(name, _)| name != "x-id") {
            return None;
        }
        let payload = match text(headers.payload)? {
            UNSIGNED => UNSIGNED,
            EMPTY_SHA256 => EMPTY_SHA256,
            _ => return None,
        };
        let named = scope(credential.split('/'))?;
        Some(Self {
            named,
            date: text(headers.date)?,
            lifetime: None,
            query,
            signed: SignedHeaders::read(headers, signed.split(';'))?,
            payload,
            signature: digest(signature)?,
        })
    }

    fn presigned(
        headers: &KnownHeaders<'a>,
        query: KnownQuery<'a>,
        signature: &str,
    ) -> Option<Self> {
        let is_plain = headers.payload.is_none() && headers.date.is_none();
        if query.algorithm? != ALGORITHM || !is_plain {
            return None;
        }
        let credential = query.credential?;
        let named = scope(credential.split("%2F"))?;
        if named.access_key.contains('%') {
            return None;
        }
        let lifetime = query.expires?.parse::<i64>().ok()?;
        if !(0..=MAX_PRESIGNED_S).contains(&lifetime) {
            return None;
        }
        Some(Self {
            named,
            date: query.date?,
            lifetime: Some(lifetime),
            signed: SignedHeaders::read(headers, query.signed_headers?.split("%3B"))?,
            payload: UNSIGNED,
            signature: digest(signature)?,
            query,
        })
    }

    /// Whether the request may be served at `now`, in seconds since 1970. Not in the last second of its validity.
    pub(super) fn is_valid_at(&self, now: i64) -> bool {
        let Some(date) = seconds(self.date).filter(|_| self.date.starts_with(self.named.day))
        else {
            return false;
        };
        let age = now - date;
        // `s3s` counts fractions of a second.
        let max_age = self.lifetime.unwrap_or(MAX_CLOCK_SKEW_S);
        (1 - MAX_CLOCK_SKEW_S..max_age).contains(&age)
    }
}

impl<'a> SignedHeaders<'a> {
    /// The headers with `names`, which must be sent, in order and in a form that is signed as it
    /// is.
    fn read(headers: &KnownHeaders<'a>, names: impl Iterator<Item = &'a str>) -> Option<Self> {
        let mut fields = [("", ""); MAX_FAST_SIGNED_HEADERS];
        let mut count = 0_usize;
        for name in names {
            let is_lower = name.bytes().all(|byte| !byte.is_ascii_uppercase());
            let last = count.checked_sub(1).map_or("", |last| fields[last].0);
            let value = text(headers.get(name))?;
            if !is_lower || name <= last || name == "authorization" || !is_plain(value) {
                return None;
            }
            *fields.get_mut(count)? = (name, value);
            count += 1;
        }
        let signed = Self { fields, count };
        let covers = |name| signed.iter().any(|(signed, _)| signed == name);
        headers.must_be_signed().all(covers).then_some(signed)
    }

    fn iter(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.fields[..self.count].iter().copied()
    }
}

/// Whether a header's value has no space that a signature leaves out.
fn is_plain(value: &str) -> bool {
    let trimmed = value.trim_matches(' ');
    trimmed.len() == value.len() && !value.contains("  ") && !value.contains('\t')
}

/// Access key, day and region of `KEY/DAY/REGION/s3/aws4_request`.
fn scope<'a>(mut parts: impl Iterator<Item = &'a str>) -> Option<CredentialScope<'a>> {
    let [access_key, day, region] = [parts.next()?, parts.next()?, parts.next()?];
    // Of any name, in characters that are not encoded.
    let is_region = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let known = day.len() == 8
        && !region.is_empty()
        && region.bytes().all(is_region)
        && parts.next()? == SERVICE
        && parts.next()? == TERMINATOR
        && parts.next().is_none();
    known.then_some(CredentialScope {
        access_key,
        day,
        region,
    })
}

/// Decodes 64 lower-case hexadecimal digits.
fn digest(text: &str) -> Option<[u8; 32]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let bytes: &[u8; 64] = text.as_bytes().try_into().ok()?;
    let mut digest = [0; 32];
    for (byte, pair) in digest.iter_mut().zip(bytes.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(digest)
}

/// The seconds since 1970 of `YYYYMMDDTHHMMSSZ`.
fn seconds(date: &str) -> Option<i64> {
    let bytes: &[u8; 16] = date.as_bytes().try_into().ok()?;
    if bytes[8] != b'T' || bytes[15] != b'Z' {
        return None;
    }
    let number = |range: std::ops::Range<usize>| {
        bytes[range].iter().try_fold(0_u32, |number, byte| {
            let digit = byte.is_ascii_digit().then(|| u32::from(byte - b'0'))?;
            Some(10 * number + digit)
        })
    };
    let year = i32::try_from(number(0..4)?).ok()?;
    let day = NaiveDate::from_ymd_opt(year, number(4..6)?, number(6..8)?)?;
    let time = day.and_hms_opt(number(9..11)?, number(11..13)?, number(13..15)?)?;
    Some(time.and_utc().timestamp())
}

/// The digest of the canonical request.
fn canonical_digest(claimed: &ClaimedSignature<'_>, method: &str, path: &str) -> [u8; 32] {
    let mut digest = Sha256::new();
    let mut put = |parts: &[&str]| {
        for part in parts {
            digest.update(part.as_bytes());
        }
    };
    put(&[method, "\n", path, "\n"]);
    for (index, (name, value)) in claimed.query.signed().enumerate() {
        put(&[if index == 0 { "" } else { "&" }, name, "=", value]);
    }
    put(&["\n"]);
    for (name, value) in claimed.signed.iter() {
        put(&[name, ":", value, "\n"]);
    }
    put(&["\n"]);
    for (index, (name, _)) in claimed.signed.iter().enumerate() {
        put(&[if index == 0 { "" } else { ";" }, name]);
    }
    put(&["\n", claimed.payload]);
    digest.finalize().into()
}

fn hex(bytes: &[u8; 32]) -> [u8; 64] {
    let mut text = [0; 64];
    for (pair, byte) in text.chunks_exact_mut(2).zip(bytes) {
        for (digit, nibble) in pair.iter_mut().zip([byte >> 4, byte & 15]) {
            *digit = b"0123456789abcdef"[usize::from(nibble)];
        }
    }
    text
}

/// As [`verify`], without verification: for tests in which that must be found out.
#[cfg(test)]
pub(super) fn trust(keys: &SigningKeys, request: &FastRequest<'_>) -> Option<Signatory> {
    let found = keys.find(request.signature.named)?;
    Some(found.key.signatory().clone())
}

/// The key that signed the request; `None` if the signature is wrong.
pub(super) fn verify(
    keys: &SigningKeys,
    request: &FastRequest<'_>,
    method: &str,
    path: &str,
) -> Option<Signatory> {
    let claimed = &request.signature;
    let found = keys.find(claimed.named)?;
    let mut mac = found.key.mac();
    for part in [
        ALGORITHM,
        "\n",
        claimed.date,
        "\n",
        claimed.named.day,
        "/",
        claimed.named.region,
        "/s3/aws4_request\n",
    ] {
        mac.update(part.as_bytes());
    }
    mac.update(&hex(&canonical_digest(claimed, method, path)));
    mac.verify_slice(&claimed.signature).ok()?;
    keys.keep(&found);
    Some(found.key.signatory().clone())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests;
