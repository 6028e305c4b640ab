//! Checksums of the S3 protocol, and their combination over parts.
//!
//! Source: "Checking object integrity", Amazon S3 user guide. Values are base64 of big-endian digests. A composite
//! checksum is the digest of the parts' digests, followed by `-PARTS`.

use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bywash::ContentDigest;
use crc_fast::CrcAlgorithm;
use http::{HeaderMap, HeaderValue};
use md5::Digest as _;
use md5::digest::common::hazmat::{SerializableState, SerializedState};
use serde::{Deserialize, Serialize};

/// A checksum algorithm of the S3 protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Algorithm {
    Crc32,
    Crc32c,
    Crc64Nvme,
    Sha1,
    Sha256,
}

impl Algorithm {
    pub(crate) const ALL: [Self; 5] = [
        Self::Crc32,
        Self::Crc32c,
        Self::Crc64Nvme,
        Self::Sha1,
        Self::Sha256,
    ];

    /// The name in XML and in `x-amz-checksum-algorithm`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Crc32 => "CRC32",
            Self::Crc32c => "CRC32C",
            Self::Crc64Nvme => "CRC64NVME",
            Self::Sha1 => "SHA1",
            Self::Sha256 => "SHA256",
        }
    }

    /// The header or trailer for a value.
    pub(crate) fn header(self) -> &'static str {
        match self {
            Self::Crc32 => "x-amz-checksum-crc32",
            Self::Crc32c => "x-amz-checksum-crc32c",
            Self::Crc64Nvme => "x-amz-checksum-crc64nvme",
            Self::Sha1 => "x-amz-checksum-sha1",
            Self::Sha256 => "x-amz-checksum-sha256",
        }
    }

    pub(crate) fn by_name(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|known| known.name().eq_ignore_ascii_case(name))
    }

    /// Whether there are checksums of this type over uploads in parts.
    pub(crate) fn supports(self, kind: ChecksumKind) -> bool {
        match kind {
            // Only CRCs can be combined.
            ChecksumKind::FullObject => self.crc().is_some(),
            ChecksumKind::Composite => self != Self::Crc64Nvme,
        }
    }

    /// The type of an upload that names none.
    pub(crate) fn default_kind(self) -> ChecksumKind {
        match self {
            Self::Crc64Nvme => ChecksumKind::FullObject,
            _ => ChecksumKind::Composite,
        }
    }

    fn crc(self) -> Option<CrcAlgorithm> {
        match self {
            Self::Crc32 => Some(CrcAlgorithm::Crc32IsoHdlc),
            Self::Crc32c => Some(CrcAlgorithm::Crc32Iscsi),
            Self::Crc64Nvme => Some(CrcAlgorithm::Crc64Nvme),
            Self::Sha1 | Self::Sha256 => None,
        }
    }

    /// Length of a digest in bytes.
    pub(crate) fn len(self) -> usize {
        match self {
            Self::Crc32 | Self::Crc32c => 4,
            Self::Crc64Nvme => 8,
            Self::Sha1 => 20,
            Self::Sha256 => 32,
        }
    }

    /// Decodes a base64 value into a digest.
    pub(crate) fn decode(self, value: &str) -> Option<Vec<u8>> {
        BASE64_STANDARD
            .decode(value)
            .ok()
            .filter(|digest| digest.len() == self.len())
    }

    pub(crate) fn hasher(self) -> Hasher {
        match (self, self.crc()) {
            (_, Some(crc)) => Hasher::Crc(crc_fast::Digest::new(crc), self.len()),
            (Self::Sha1, None) => Hasher::Sha1(sha1::Sha1::new()),
            _ => Hasher::Sha256(sha2::Sha256::new()),
        }
    }
}

/// Data that the checksum of an object of parts covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChecksumKind {
    /// The bytes.
    FullObject,
    /// The checksums of the parts.
    Composite,
}

impl ChecksumKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::FullObject => "FULL_OBJECT",
            Self::Composite => "COMPOSITE",
        }
    }

    pub(crate) fn by_name(name: &str) -> Option<Self> {
        let mut all = [Self::FullObject, Self::Composite].into_iter();
        all.find(|kind| kind.name().eq_ignore_ascii_case(name))
    }

    pub(crate) fn of_upload(full_object: bool) -> Self {
        if full_object {
            Self::FullObject
        } else {
            Self::Composite
        }
    }
}

/// A verified checksum of an object or a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Checksum {
    pub(crate) algorithm: Algorithm,
    /// Base64, and `-PARTS` if composite.
    pub(crate) value: String,
}

impl Checksum {
    /// Converts the digest that a store states; `None` if S3 has no such checksum.
    pub(crate) fn of_content(digest: &ContentDigest) -> Option<Self> {
        let (algorithm, bytes) = match digest {
            ContentDigest::Crc32(crc) => (Algorithm::Crc32, crc.to_be_bytes().to_vec()),
            ContentDigest::Crc32c(crc) => (Algorithm::Crc32c, crc.to_be_bytes().to_vec()),
            ContentDigest::Crc64Nvme(crc) => (Algorithm::Crc64Nvme, crc.to_be_bytes().to_vec()),
            ContentDigest::Sha256(digest) => (Algorithm::Sha256, digest.to_vec()),
            _ => return None,
        };
        Some(Self {
            algorithm,
            value: BASE64_STANDARD.encode(bytes),
        })
    }

    /// Whether it is the CRC32C of all bytes.
    pub(crate) fn is_crc32c_of_all(&self) -> bool {
        self.algorithm == Algorithm::Crc32c && !self.value.contains('-')
    }

    /// Its type: over the checksums of the parts, or over the bytes.
    pub(crate) fn kind(&self) -> ChecksumKind {
        ChecksumKind::of_upload(!self.value.contains('-'))
    }

    /// Returns it without the number of parts.
    pub(crate) fn without_parts(mut self) -> Self {
        let end = self.value.find('-').unwrap_or(self.value.len());
        self.value.truncate(end);
        self
    }
}

/// A digest in progress.
pub(crate) enum Hasher {
    Crc(crc_fast::Digest, usize),
    Sha1(sha1::Sha1),
    Sha256(sha2::Sha256),
    Md5(md5::Md5),
}

impl Hasher {
    pub(crate) fn md5() -> Self {
        Self::Md5(md5::Md5::new())
    }

    pub(crate) fn update(&mut self, data: &[u8]) {
        match self {
            Self::Crc(digest, _) => digest.update(data),
            Self::Sha1(digest) => digest.update(data),
            Self::Sha256(digest) => digest.update(data),
            Self::Md5(digest) => digest.update(data),
        }
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        match self {
            Self::Crc(digest, length) => digest.finalize().to_be_bytes()[8 - length..].to_vec(),
            Self::Sha1(digest) => digest.finalize().to_vec(),
            Self::Sha256(digest) => digest.finalize().to_vec(),
            Self::Md5(digest) => digest.finalize().to_vec(),
        }
    }
}

/// An MD5 in progress. Between requests its state is kept as text in base64.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct ResumableMd5(md5::Md5);

impl ResumableMd5 {
    pub(crate) fn update(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    /// The digest of the bytes so far.
    pub(crate) fn digest(&self) -> [u8; 16] {
        self.0.clone().finalize().into()
    }
}

impl fmt::Debug for ResumableMd5 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResumableMd5")
    }
}

impl From<ResumableMd5> for String {
    fn from(md5: ResumableMd5) -> Self {
        BASE64_STANDARD.encode(md5.0.serialize())
    }
}

impl TryFrom<String> for ResumableMd5 {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let damaged = "the state of an MD5 is damaged";
        let state = BASE64_STANDARD.decode(text).map_err(|_| damaged)?;
        let state = SerializedState::<md5::Md5>::try_from(&*state).map_err(|_| damaged)?;
        md5::Md5::deserialize(&state).map(Self).map_err(|_| damaged)
    }
}

/// Combines the checksums of parts, if all are known and of one algorithm.
///
/// Over the bytes, which only CRCs support, or the digest of the parts' digests.
pub(crate) fn combine(parts: &[(Option<&Checksum>, u64)], kind: ChecksumKind) -> Option<Checksum> {
    let algorithm = parts.first()?.0?.algorithm;
    let mut digests = Vec::with_capacity(parts.len());
    for (checksum, length) in parts {
        let checksum = checksum.filter(|checksum| checksum.algorithm == algorithm)?;
        digests.push((algorithm.decode(&checksum.value)?, *length));
    }
    if kind == ChecksumKind::Composite {
        let mut hasher = algorithm.hasher();
        digests.iter().for_each(|(digest, _)| hasher.update(digest));
        let value = format!(
            "{}-{}",
            BASE64_STANDARD.encode(hasher.finish()),
            parts.len()
        );
        return Some(Checksum { algorithm, value });
    }
    let crc = algorithm.crc()?;
    let number = |digest: &[u8]| {
        digest
            .iter()
            .fold(0_u64, |number, byte| number << 8 | u64::from(*byte))
    };
    let mut digests = digests.iter();
    let (first, _) = digests.next()?;
    let combined = digests.fold(number(first), |sum, (digest, length)| {
        crc_fast::checksum_combine(crc, sum, number(digest), *length)
    });
    let value = BASE64_STANDARD.encode(&combined.to_be_bytes()[8 - algorithm.len()..]);
    Some(Checksum { algorithm, value })
}

/// A digest in lower-case hexadecimal digits.
pub(crate) fn hex(digest: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |value: u8| char::from(DIGITS[usize::from(value)]);
    let digits = digest
        .iter()
        .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]);
    digits.collect()
}

/// Decodes an MD5 in hexadecimal digits.
pub(crate) fn from_hex(text: &str) -> Option<[u8; 16]> {
    let mut digest = [0; 16];
    if text.len() != 32 || !text.is_ascii() {
        return None;
    }
    for (at, byte) in digest.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(digest)
}

/// The ETag of an object of parts with these MD5s: the MD5 of the MD5s and their number. `None` if
/// one is unknown.
pub(crate) fn e_tag_of_parts<'a>(md5s: impl Iterator<Item = Option<&'a str>>) -> Option<String> {
    let mut hasher = Hasher::md5();
    let mut parts = 0;
    for md5 in md5s {
        hasher.update(&from_hex(md5?)?);
        parts += 1;
    }
    Some(format!("{}-{parts}", hex(&hasher.finish())))
}

/// Adds `checksum` to response headers.
pub(crate) fn announce(headers: &mut HeaderMap, checksum: &Checksum) {
    if let Ok(value) = HeaderValue::try_from(&checksum.value) {
        headers.insert(checksum.algorithm.header(), value);
        headers.insert(
            "x-amz-checksum-type",
            HeaderValue::from_static(checksum.kind().name()),
        );
    }
}

#[cfg(test)]
mod tests;
