//! Signatures of the chunks of a body, and of its trailers.
//!
//! Source: "Signature calculations for the Authorization header: transferring payload in multiple chunks", Amazon S3 API
//! reference. Each signature covers the one before it; the first one covers the signature of the request.

use std::sync::Arc;

use hmac::Mac;
use http::HeaderMap;
use sha2::{Digest, Sha256};

use super::EMPTY_SHA256;
use super::keys::SigningKey;
use super::parse::bytes_of;
use crate::digest::hex;

/// Header of a trailer's signature, which it does not cover itself.
pub(crate) const TRAILER_SIGNATURE: &str = "x-amz-trailer-signature";

/// Verifies the chunks of one body in their order.
pub(crate) struct ChunkVerifier {
    key: Arc<SigningKey>,
    /// Day and time, and credential scope, each with its line break.
    head: String,
    /// Signature of the request or of the chunk before, in hexadecimal digits.
    previous: String,
    digest: Sha256,
    /// As the chunk in progress states it.
    claimed: Vec<u8>,
}

impl std::fmt::Debug for ChunkVerifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ChunkVerifier")
    }
}

impl ChunkVerifier {
    /// `seed`: the signature of the request.
    pub(crate) fn new(key: Arc<SigningKey>, date: &str, scope: &str, seed: &str) -> Self {
        Self {
            key,
            head: format!("{date}\n{scope}\n"),
            previous: seed.to_owned(),
            digest: Sha256::new(),
            claimed: Vec::new(),
        }
    }

    /// Begins a chunk with the line before it, without its size. Returns false if it has no signature.
    pub(crate) fn begin(&mut self, extension: &[u8]) -> bool {
        let text = std::str::from_utf8(extension)
            .unwrap_or_default()
            .trim_end();
        let claimed = text.strip_prefix(";chunk-signature=").and_then(bytes_of);
        self.digest = Sha256::new();
        self.claimed = claimed.unwrap_or_default();
        !self.claimed.is_empty()
    }

    pub(crate) fn update(&mut self, data: &[u8]) {
        self.digest.update(data);
    }

    /// Ends a chunk. Returns whether its signature is right.
    pub(crate) fn end(&mut self) -> bool {
        let digest = hex(&std::mem::take(&mut self.digest).finalize());
        let rest = format!("{}\n{EMPTY_SHA256}\n{digest}", self.previous);
        let claimed = std::mem::take(&mut self.claimed);
        self.previous = hex(&claimed);
        self.verify("AWS4-HMAC-SHA256-PAYLOAD", &rest, &claimed)
    }

    /// Whether the signature of the trailers is right.
    pub(crate) fn end_trailers(&self, trailers: &HeaderMap) -> bool {
        let signature = trailers.get(TRAILER_SIGNATURE);
        let claimed = signature.and_then(|value| bytes_of(value.to_str().ok()?));
        let covered = trailers
            .iter()
            .filter(|(name, _)| *name != TRAILER_SIGNATURE);
        let mut lines: Vec<Vec<u8>> = covered
            .map(|(name, value)| [name.as_str().as_bytes(), b":", value.as_bytes(), b"\n"].concat())
            .collect();
        lines.sort();
        let digest = hex(&Sha256::digest(lines.concat()));
        let rest = format!("{}\n{digest}", self.previous);
        claimed.is_some_and(|claimed| self.verify("AWS4-HMAC-SHA256-TRAILER", &rest, &claimed))
    }

    fn verify(&self, algorithm: &str, rest: &str, claimed: &[u8]) -> bool {
        let mut mac = self.key.mac();
        for part in [algorithm, "\n", &self.head, rest] {
            mac.update(part.as_bytes());
        }
        mac.verify_slice(claimed).is_ok()
    }
}
