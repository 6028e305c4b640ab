//! Signatures of version 4 of a request: by the key of a service account (`GOOG4-RSA-SHA256`), or by a secret key
//! (`GOOG4-HMAC-SHA256`, and `AWS4-HMAC-SHA256` as Google's storage takes it); in the query of a signed URL, or in a header.
//!
//! Sources: "Signatures" and "Migrating from Amazon S3" of the documentation of Google's storage.

use chrono::NaiveDateTime;
use http::header::AUTHORIZATION;
use http::request::Parts;
use ring::hmac;
use ring::signature::{RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};
use sha2::{Digest as _, Sha256};

use super::super::error::{GcsError, GcsResult};
use crate::canonical::{Pair, bytes_of, headers, host_without_port, pairs, parameter, path, query};
use crate::digest::hex;
use crate::limits::{MAX_CLOCK_SKEW_S, MAX_PRESIGNED_S};
use crate::meta::text;

/// Payload of a signature that does not cover the body.
const UNSIGNED: &str = "UNSIGNED-PAYLOAD";
const HOST_OF_GOOGLE: &str = "storage.googleapis.com";
/// Headers that clients add after they signed, and that change nothing.
const MAY_BE_UNSIGNED: [&str; 5] = [
    "x-goog-api-client",
    "x-goog-gcs-idempotency-token",
    "x-goog-content-sha256",
    "x-amz-content-sha256",
    "x-goog-user-project",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Algorithm {
    GoogleRsa,
    GoogleHmac,
    Amazon,
}

impl Algorithm {
    const ALL: [Self; 3] = [Self::GoogleRsa, Self::GoogleHmac, Self::Amazon];

    fn name(self) -> &'static str {
        match self {
            Self::GoogleRsa => "GOOG4-RSA-SHA256",
            Self::GoogleHmac => "GOOG4-HMAC-SHA256",
            Self::Amazon => "AWS4-HMAC-SHA256",
        }
    }

    /// Prefix of the names of parameters and headers.
    fn prefix(self) -> &'static str {
        match self {
            Self::Amazon => "x-amz-",
            Self::GoogleRsa | Self::GoogleHmac => "x-goog-",
        }
    }

    /// The end of a credential scope.
    fn service(self) -> [&'static str; 2] {
        match self {
            Self::Amazon => ["s3", "aws4_request"],
            Self::GoogleRsa | Self::GoogleHmac => ["storage", "goog4_request"],
        }
    }

    fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name() == name)
    }
}

/// A signature as a request states it. Nothing of it is known to be true until it is verified.
#[derive(Debug)]
pub(crate) struct ClaimedSignature {
    algorithm: Algorithm,
    /// An email address, or an access key.
    identity: String,
    /// `DATE/LOCATION/SERVICE/TERMINATOR`.
    scope: String,
    /// Day and time.
    date: String,
    /// Seconds of validity of a signed URL.
    lifetime: Option<i64>,
    /// Names of the headers that it covers.
    signed: String,
    payload: String,
    signature: Vec<u8>,
    /// The texts that may have been signed.
    texts: Vec<String>,
}

impl ClaimedSignature {
    /// Finds the signature of a request; `None` if it has none.
    pub(crate) fn find(parts: &Parts) -> GcsResult<Option<Self>> {
        let pairs = pairs(&parts.uri, false);
        let pairs = pairs.map_err(|_| GcsError::invalid("The query is not UTF-8."))?;
        let in_query: Vec<_> = Algorithm::ALL[1..]
            .iter()
            .filter(|algorithm| {
                parameter(&pairs, &format!("{}signature", algorithm.prefix())).is_some()
            })
            .collect();
        let header = text(&parts.headers, AUTHORIZATION.as_str());
        let in_header = header.and_then(|value| {
            let (name, fields) = value.split_once(' ')?;
            Some((Algorithm::by_name(name)?, fields))
        });
        match (in_query.as_slice(), header, in_header) {
            ([], _, None) => Ok(None),
            ([], _, Some((algorithm, fields))) => {
                Self::of_header(parts, &pairs, algorithm, fields).map(Some)
            }
            ([prefix], None, _) => Self::of_query(parts, &pairs, prefix.prefix()).map(Some),
            _ => Err(GcsError::invalid(
                "Only one signature is allowed: in the query, or one Authorization header.",
            )),
        }
    }

    fn of_query(parts: &Parts, pairs: &[Pair], prefix: &str) -> GcsResult<Self> {
        let value = |name: &str| {
            let name = format!("{prefix}{name}");
            parameter(pairs, &name).ok_or_else(|| {
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
        let found = Self {
            lifetime: Some(lifetime),
            payload: UNSIGNED.to_owned(),
            ..Self::new(
                algorithm,
                value("credential")?,
                value("signedheaders")?,
                value("signature")?,
                value("date")?,
            )?
        };
        let covered = format!("{prefix}content-sha256");
        let payload = text(&parts.headers, &covered).filter(|_| found.covers(&covered));
        let payload = payload.map(str::to_owned);
        Self {
            payload: payload.unwrap_or_else(|| UNSIGNED.to_owned()),
            ..found
        }
        .complete(parts, pairs)
    }

    fn of_header(
        parts: &Parts,
        pairs: &[Pair],
        algorithm: Algorithm,
        fields: &str,
    ) -> GcsResult<Self> {
        let field = |name: &str| {
            let mut fields = fields.split(',').map(str::trim);
            let found = fields.find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
            found.ok_or_else(|| {
                GcsError::invalid(format!("The Authorization header has no {name}."))
            })
        };
        let header = |name: &str| text(&parts.headers, &format!("{}{name}", algorithm.prefix()));
        let date = header("date")
            .ok_or_else(|| GcsError::invalid("A signed request needs the header of its date."))?;
        Self {
            payload: header("content-sha256").unwrap_or(UNSIGNED).to_owned(),
            ..Self::new(
                algorithm,
                field("Credential")?,
                field("SignedHeaders")?,
                field("Signature")?,
                date,
            )?
        }
        .complete(parts, pairs)
    }

    fn new(
        algorithm: Algorithm,
        credential: &str,
        signed: &str,
        signature: &str,
        date: &str,
    ) -> GcsResult<Self> {
        let malformed = || {
            let [service, terminator] = algorithm.service();
            GcsError::invalid(format!(
                "The credential of a signature is KEY/DATE/LOCATION/{service}/{terminator}, and the signature hexadecimal."
            ))
        };
        let mut fields = credential.rsplitn(5, '/');
        let mut next = || fields.next().ok_or_else(malformed);
        let [terminator, service, location, day, identity] =
            [next()?, next()?, next()?, next()?, next()?];
        if [service, terminator] != algorithm.service() || !date.starts_with(day) || day.len() != 8
        {
            return Err(malformed());
        }
        Ok(Self {
            algorithm,
            identity: identity.to_owned(),
            scope: format!("{day}/{location}/{service}/{terminator}"),
            date: date.to_owned(),
            lifetime: None,
            signed: signed.to_ascii_lowercase(),
            payload: String::new(),
            signature: bytes_of(signature).ok_or_else(malformed)?,
            texts: Vec::new(),
        })
    }

    /// Checks which parts the signature covers, and keeps the texts that may have been signed.
    fn complete(mut self, parts: &Parts, pairs: &[Pair]) -> GcsResult<Self> {
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
        let mut names = parts.headers.keys().map(http::HeaderName::as_str);
        let must = |name: &&str| {
            let own = name.starts_with("x-goog-") || name.starts_with("x-amz-");
            own && !MAY_BE_UNSIGNED.contains(name)
        };
        let missing = match self.covers("host") {
            false => Some("host"),
            true => names.find(|name| must(name) && !self.covers(name)),
        };
        if let Some(name) = missing {
            return Err(GcsError::forbidden(format!(
                "The signature does not cover the header {name}; sign it, or leave it out."
            )));
        }
        self.texts = self.texts(parts, pairs);
        Ok(self)
    }

    fn covers(&self, name: &str) -> bool {
        self.signed.split(';').any(|signed| signed == name)
    }

    /// The texts that clients sign of a request: with its path as it is or encoded again, for Google's host, for its host without a
    /// port, and without a parameter that Google's Java client adds after it signed.
    fn texts(&self, parts: &Parts, pairs: &[Pair]) -> Vec<String> {
        let sent = parts.uri.path();
        let anew = path(sent);
        let is_added = |pair: &&Pair| pair.name == "uploadType" && pair.value == "resumable";
        let queries = [
            query(pairs.iter()),
            query(pairs.iter().filter(|pair| !is_added(pair))),
        ];
        // Clients built on `object_store` sign for Google's host, regardless of the address of
        // their requests.
        let hosts = [
            None,
            Some(HOST_OF_GOOGLE),
            host_without_port(&parts.headers),
        ];
        let sets = hosts.map(|host| headers(&parts.headers, &self.signed, host));
        let paths = [sent, &anew];
        let mut texts = Vec::new();
        for (headers, path, query) in sets
            .iter()
            .flat_map(|headers| paths.map(|path| (headers, path)))
            .flat_map(|(headers, path)| queries.each_ref().map(|query| (headers, path, query)))
        {
            let mut request = format!("{}\n{path}\n{query}\n", parts.method).into_bytes();
            request.extend_from_slice(headers);
            let end = format!("\n{}\n{}", self.signed, self.payload);
            request.extend_from_slice(end.as_bytes());
            let text = format!(
                "{}\n{}\n{}\n{}",
                self.algorithm.name(),
                self.date,
                self.scope,
                hex(&Sha256::digest(request))
            );
            if !texts.contains(&text) {
                texts.push(text);
            }
        }
        texts
    }

    /// The email address of an account, or an access key.
    pub(crate) fn identity(&self) -> &str {
        &self.identity
    }

    pub(crate) fn is_by_account(&self) -> bool {
        self.algorithm == Algorithm::GoogleRsa
    }

    /// The digest of the body, if it is signed.
    pub(crate) fn payload_digest(&self) -> Option<[u8; 32]> {
        bytes_of(&self.payload)?.try_into().ok()
    }

    /// Whether the signature may be used at `now`, in seconds since 1970.
    pub(crate) fn is_valid_at(&self, now: i64) -> bool {
        let Ok(date) = NaiveDateTime::parse_from_str(&self.date, "%Y%m%dT%H%M%SZ") else {
            return false;
        };
        let max_age = self.lifetime.unwrap_or(MAX_CLOCK_SKEW_S);
        let age = now.saturating_sub(date.and_utc().timestamp());
        (-MAX_CLOCK_SKEW_S..=max_age).contains(&age)
    }

    /// Whether the signature is by the key of an account, as PKCS#1.
    pub(crate) fn is_by_key(&self, public_key: &[u8]) -> bool {
        let key = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, public_key);
        let is_signed = |text: &String| key.verify(text.as_bytes(), &self.signature).is_ok();
        self.is_by_account() && self.texts.iter().any(is_signed)
    }

    /// Whether the signature is by a secret key. Compared in constant time.
    pub(crate) fn is_by_secret(&self, secret: &str) -> bool {
        let version = match self.algorithm {
            Algorithm::GoogleRsa => return false,
            Algorithm::GoogleHmac => "GOOG4",
            Algorithm::Amazon => "AWS4",
        };
        let mut key = hmac::Key::new(hmac::HMAC_SHA256, format!("{version}{secret}").as_bytes());
        for part in self.scope.split('/') {
            let derived = hmac::sign(&key, part.as_bytes());
            key = hmac::Key::new(hmac::HMAC_SHA256, derived.as_ref());
        }
        let is_signed =
            |text: &String| hmac::verify(&key, text.as_bytes(), &self.signature).is_ok();
        self.texts.iter().any(is_signed)
    }
}

#[cfg(test)]
mod tests;
