//! Rules of signatures of version 4 at this endpoint: by the key of a service account, or by a secret key of Google's or
//! Amazon's kind. Signatures are verified by [`crate::sigv4`].
//!
//! Sources: "Signatures" and "Migrating from Amazon S3" of the documentation of Google's storage.

use std::borrow::Cow;

use http::Uri;
use http::header::{AUTHORIZATION, HOST};
use http::request::Parts;
use percent_encoding::percent_decode_str;

use super::super::error::{GcsError, GcsResult};
use crate::limits::{MAX_CLOCK_SKEW_S, MAX_PRESIGNED_S};
use crate::meta::text;
use crate::sigv4::canonical::{Forms, RequestHead, host_without_port, path, query};
use crate::sigv4::keys::{Signatory, SigningKeys};
use crate::sigv4::parse::{CredentialScope, bytes_of, field, is_covered, time_of};
use crate::sigv4::{Algorithm, ClaimedSignature, UNSIGNED};

const HOST_OF_GOOGLE: &str = "storage.googleapis.com";
/// Headers that clients add after they signed, and that change nothing.
const MAY_BE_UNSIGNED: [&str; 5] = [
    "x-goog-api-client",
    "x-goog-gcs-idempotency-token",
    "x-goog-content-sha256",
    "x-amz-content-sha256",
    "x-goog-user-project",
];

/// Decoded parameters of a query, in which a signature may be.
pub(crate) struct Parameters<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'a> Parameters<'a> {
    pub(crate) fn of(uri: &'a Uri) -> GcsResult<Self> {
        let decoded = |text: &'a str| {
            let decoded = percent_decode_str(text).decode_utf8();
            decoded.map_err(|_| not_utf8())
        };
        let pairs = uri.query().unwrap_or_default().split('&');
        let pairs = pairs.filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Ok((decoded(name)?, decoded(value)?))
        });
        pairs.collect::<GcsResult<_>>().map(Self)
    }

    /// The value of a parameter, whose name may be in any case.
    fn get(&self, name: &str) -> Option<&str> {
        let mut pairs = self.0.iter();
        let found = pairs.find(|(known, _)| known.eq_ignore_ascii_case(name))?;
        Some(&found.1)
    }
}

fn not_utf8() -> GcsError {
    GcsError::invalid("The query is not UTF-8.")
}

/// A signature that covers all required parts. Nobody knows yet whether it is right.
#[derive(Debug)]
pub(crate) struct SignedRequest<'a> {
    head: RequestHead<'a>,
    claimed: ClaimedSignature<'a>,
    /// Seconds of validity of a signed URL.
    lifetime: Option<i64>,
    payload: &'a str,
}

impl<'a> SignedRequest<'a> {
    /// Finds the signature of a request; `None` if it has none.
    pub(crate) fn find(
        parts: &'a Parts,
        parameters: &'a Parameters<'_>,
    ) -> GcsResult<Option<Self>> {
        let in_query: Vec<_> = Algorithm::ALL[1..]
            .iter()
            .map(|algorithm| algorithm.prefix())
            .filter(|prefix| parameters.get(&format!("{prefix}signature")).is_some())
            .collect();
        let header = text(&parts.headers, AUTHORIZATION.as_str());
        let in_header = header.and_then(|value| {
            let (name, fields) = value.split_once(' ')?;
            Some((Algorithm::by_name(name)?, fields))
        });
        let head = RequestHead::of_parts(parts);
        match (in_query.as_slice(), header, in_header) {
            ([], _, None) => return Ok(None),
            ([], _, Some((algorithm, fields))) => Self::of_header(head, algorithm, fields),
            ([prefix], None, _) => Self::of_query(head, parameters, prefix),
            _ => Err(GcsError::invalid(
                "Only one signature is allowed: in the query, or one Authorization header.",
            )),
        }
        .and_then(Self::checked)
        .map(Some)
    }

    fn of_query(
        head: RequestHead<'a>,
        parameters: &'a Parameters<'_>,
        prefix: &str,
    ) -> GcsResult<Self> {
        let value = |name: &str| {
            let name = format!("{prefix}{name}");
            parameters.get(&name).ok_or_else(|| {
                GcsError::invalid(format!("A signed URL needs the parameter {name}."))
            })
        };
        let algorithm = Algorithm::by_name(value("algorithm")?);
        let algorithm = algorithm
            .filter(|algorithm| algorithm.prefix() == prefix)
            .ok_or_else(|| GcsError::invalid("The algorithm of a signed URL is not known."))?;
        let lifetime = value("expires")?.parse().ok();
        let lifetime = lifetime.filter(|seconds| (1..=MAX_PRESIGNED_S).contains(seconds));
        let lifetime = lifetime.ok_or_else(|| {
            GcsError::invalid("A signed URL is valid for 1 to 604800 seconds, which is a week.")
        })?;
        let claimed = claimed(
            algorithm,
            value("credential")?,
            value("signedheaders")?,
            value("signature")?,
            value("date")?,
        )?;
        let covered = format!("{prefix}content-sha256");
        let payload = text(head.headers, &covered);
        let payload = payload.filter(|_| is_covered(&claimed.signed, &covered));
        Ok(Self {
            head,
            claimed,
            lifetime: Some(lifetime),
            payload: payload.unwrap_or(UNSIGNED),
        })
    }

    fn of_header(head: RequestHead<'a>, algorithm: Algorithm, fields: &'a str) -> GcsResult<Self> {
        let field = |name: &str| {
            field(fields, name).ok_or_else(|| {
                GcsError::invalid(format!("The Authorization header has no {name}."))
            })
        };
        let header = |name: &str| text(head.headers, &format!("{}{name}", algorithm.prefix()));
        let date = header("date")
            .ok_or_else(|| GcsError::invalid("A signed request needs the header of its date."))?;
        let claimed = claimed(
            algorithm,
            field("Credential")?,
            field("SignedHeaders")?,
            field("Signature")?,
            date,
        )?;
        Ok(Self {
            head,
            claimed,
            lifetime: None,
            payload: header("content-sha256").unwrap_or(UNSIGNED),
        })
    }

    /// Checks which parts the signature covers.
    fn checked(self) -> GcsResult<Self> {
        if self.payload.starts_with("STREAMING-") {
            return Err(GcsError::not_served(
                "Bodies that are signed in chunks are not served here; sign with UNSIGNED-PAYLOAD.",
            ));
        }
        if self.payload != UNSIGNED && self.payload_digest().is_none() {
            return Err(GcsError::invalid(
                "The content-sha256 of a request is 64 hexadecimal digits, or UNSIGNED-PAYLOAD.",
            ));
        }
        let mut names = self.head.headers.keys().map(http::HeaderName::as_str);
        let must = |name: &&str| {
            let own = name.starts_with("x-goog-") || name.starts_with("x-amz-");
            own && !MAY_BE_UNSIGNED.contains(name)
        };
        let covers = |name: &str| is_covered(&self.claimed.signed, name);
        let unsigned = (!covers("host")).then_some("host");
        let missing = unsigned.or_else(|| names.find(|name| must(name) && !covers(name)));
        match missing {
            None => Ok(self),
            Some(name) => Err(GcsError::forbidden(format!(
                "The signature does not cover the header {name}; sign it, or leave it out."
            ))),
        }
    }

    /// Calls `found` with the forms that clients sign: with the path as it is or encoded again, for Google's host, for the
    /// host without a port, and without a parameter that Google's Java client adds after it signed.
    fn with_forms<T>(&self, found: impl FnOnce(&Forms<'_>) -> T) -> GcsResult<T> {
        let RequestHead { uri, headers, .. } = self.head;
        let all = query(uri, false).map_err(|_| not_utf8())?;
        let is_added = |(name, value): &(Cow<'_, str>, Cow<'_, str>)| {
            name == "uploadType" && value == "resumable"
        };
        let mut signed = all.clone();
        signed.retain(|pair| !is_added(pair));
        let has_more = signed.len() < all.len();
        let sent = uri.path();
        let paths = [Cow::Borrowed(sent), path(sent)];
        // Clients built on `object_store` sign for Google's host, regardless of the address of
        // their requests.
        let mut hosts = vec![None];
        if text(headers, HOST.as_str()) != Some(HOST_OF_GOOGLE) {
            hosts.push(Some(HOST_OF_GOOGLE));
        }
        hosts.extend(host_without_port(headers).map(Some));
        Ok(found(&Forms {
            head: self.head,
            signed: &self.claimed.signed,
            hosts: &hosts,
            paths: &paths[..1 + usize::from(paths[1] != sent)],
            queries: &[all, signed][..1 + usize::from(has_more)],
            payloads: &[self.payload],
        }))
    }

    /// The email address of an account, or an access key.
    pub(crate) fn identity(&self) -> &str {
        self.claimed.scope.identity
    }

    pub(crate) fn is_by_account(&self) -> bool {
        self.claimed.scope.algorithm == Algorithm::GoogleRsa
    }

    /// The digest of the body, if it is signed.
    pub(crate) fn payload_digest(&self) -> Option<[u8; 32]> {
        bytes_of(self.payload)?.try_into().ok()
    }

    /// Whether the signature may be used at `now`, in seconds since 1970.
    pub(crate) fn is_valid_at(&self, now: i64) -> bool {
        let Some(date) = time_of(&self.claimed.date) else {
            return false;
        };
        let max_age = self.lifetime.unwrap_or(MAX_CLOCK_SKEW_S);
        let age = now.saturating_sub(date.timestamp());
        (-MAX_CLOCK_SKEW_S..=max_age).contains(&age)
    }

    /// Whether the signature is by the key of an account, as PKCS#1.
    pub(crate) fn is_by_key(&self, public_key: &[u8]) -> bool {
        let verified = self.with_forms(|forms| self.claimed.is_by_account(public_key, forms));
        verified.unwrap_or(false)
    }

    /// The access key that signed it; `None` if the signature is wrong.
    pub(crate) fn signatory(&self, keys: &SigningKeys) -> Option<Signatory> {
        let found = keys.find(self.claimed.scope)?;
        let verified = self.with_forms(|forms| self.claimed.is_by_key(&found.key, forms));
        if !verified.unwrap_or(false) {
            return None;
        }
        keys.keep(&found);
        Some(found.key.signatory().clone())
    }
}

fn claimed<'a>(
    algorithm: Algorithm,
    credential: &'a str,
    signed: &'a str,
    signature: &'a str,
    date: &'a str,
) -> GcsResult<ClaimedSignature<'a>> {
    let scope = CredentialScope::parse(algorithm, credential).ok();
    let scope = scope.filter(|scope| date.starts_with(scope.day) && bytes_of(signature).is_some());
    let scope = scope.ok_or_else(|| {
        let [service, terminator] = algorithm.service();
        GcsError::invalid(format!(
            "The credential of a signature is KEY/DATE/LOCATION/{service}/{terminator}, and the signature hexadecimal."
        ))
    })?;
    Ok(ClaimedSignature {
        scope,
        date: Cow::Borrowed(date),
        signed: Cow::Owned(signed.to_ascii_lowercase()),
        signature,
    })
}

#[cfg(test)]
mod tests;
