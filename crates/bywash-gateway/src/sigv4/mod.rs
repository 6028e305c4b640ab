//! Signatures of version 4, in a header or in the query: by a secret key (`AWS4-HMAC-SHA256`, `GOOG4-HMAC-SHA256`), or by
//! the key of a service account (`GOOG4-RSA-SHA256`).
//!
//! Both endpoints and the fast path verify here. Each endpoint has rules of its own, in `signature/v4.rs` and
//! `gcs/access/signature.rs`: the headers that a signature must cover, its time, and the errors of its clients.
//!
//! Sources: "Authenticating requests (AWS Signature Version 4)", Amazon S3 API reference; "Signatures" and "Migrating from
//! Amazon S3", documentation of Google's storage.

pub(crate) mod canonical;
pub(crate) mod chunks;
pub(crate) mod keys;
pub(crate) mod parse;
mod verify;

pub(crate) use verify::ClaimedSignature;

/// Payload of a signature that does not cover the body.
pub(crate) const UNSIGNED: &str = "UNSIGNED-PAYLOAD";
/// Digest of an empty body.
pub(crate) const EMPTY_SHA256: &str =
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// Who signs, and with which kind of key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Algorithm {
    GoogleRsa,
    GoogleHmac,
    Amazon,
}

impl Algorithm {
    pub(crate) const ALL: [Self; 3] = [Self::GoogleRsa, Self::GoogleHmac, Self::Amazon];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::GoogleRsa => "GOOG4-RSA-SHA256",
            Self::GoogleHmac => "GOOG4-HMAC-SHA256",
            Self::Amazon => "AWS4-HMAC-SHA256",
        }
    }

    /// Prefix of the names of parameters and headers.
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Self::Amazon => "x-amz-",
            Self::GoogleRsa | Self::GoogleHmac => "x-goog-",
        }
    }

    /// The end of a credential scope: the service, and the version.
    pub(crate) fn service(self) -> [&'static str; 2] {
        match self {
            Self::Amazon => ["s3", "aws4_request"],
            Self::GoogleRsa | Self::GoogleHmac => ["storage", "goog4_request"],
        }
    }

    /// Text before a secret key, in the derivation of signing keys; `None` if keys are not secret.
    fn secret_prefix(self) -> Option<&'static str> {
        match self {
            Self::Amazon => Some("AWS4"),
            Self::GoogleHmac => Some("GOOG4"),
            Self::GoogleRsa => None,
        }
    }

    pub(crate) fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name() == name)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests;
