//! Serialisation of upload tokens. The format is in `docs/formats.md`.

use bytes::Bytes;
use bywash_store::folder::StoredAttributes;
use bywash_store::{RememberedParts, SessionToken, parts_of_token, parts_token};
use object_store::path::Path;
use object_store::{Attributes, PutMode, TagSet};
use serde::{Deserialize, Serialize};

use super::UploadToken;
use crate::error::EngineError;
use crate::upload::checksum::{combine, crc32c};
use crate::upload::journal::StoredMode;
use crate::upload::{ChunkPlan, UploadOptions};

const MAGIC: &[u8; 8] = b"BYWTOKEN";
/// Version of most tokens.
const VERSION: u32 = 1;
/// Version of tokens of uploads whose chunks changed their length, which earlier programs would cut at other offsets.
const VERSION_CHANGED_CHUNKS: u32 = 2;
/// Magic, version, and the length of the header.
const PREAMBLE_BYTES: usize = 16;
const CRC_BYTES: usize = 4;

/// Ignores unknown fields of a newer version.
#[derive(Serialize, Deserialize)]
struct TokenHeader {
    object: String,
    mode: StoredMode,
    #[serde(default)]
    attributes: StoredAttributes,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    length: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    crc32c: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    chunk: Option<u64>,
    parallel: usize,
    plan: ChunkPlan,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    session: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    parts: Option<RememberedParts>,
    acknowledged: u64,
    acknowledged_crc32c: u32,
}

impl UploadToken {
    /// The token as bytes, with those not acknowledged. Keep them secret: they allow writing to the session.
    ///
    /// # Errors
    /// [`EngineError::InvalidToken`] if the upload has tags, or attributes that cannot be serialised.
    pub fn to_bytes(&self) -> Result<Vec<u8>, EngineError> {
        if !self.options.tags.encoded().is_empty() {
            return Err(invalid("an upload with tags stays in its process"));
        }
        let attributes = StoredAttributes::new(&self.options.attributes);
        let (session, parts) = self.session.as_ref().map_or((None, None), |token| {
            let split = parts_of_token(token).map(|(upload, parts)| (upload, Some(parts)));
            let (session, parts) = split.unwrap_or((&token.0, None));
            (Some(session.to_owned()), parts)
        });
        let header = TokenHeader {
            object: self.path.to_string(),
            mode: StoredMode::from(&self.options.mode),
            attributes: attributes.map_err(|error| invalid(error.to_string()))?,
            length: self.options.length,
            crc32c: self.options.crc32c,
            chunk: self.options.chunk,
            parallel: self.options.parallel,
            plan: self.plan,
            session,
            parts,
            acknowledged: self.acknowledged,
            acknowledged_crc32c: self.crc32c,
        };
        let header = serde_json::to_vec(&header).map_err(|error| invalid(error.to_string()))?;
        let length = u32::try_from(header.len());
        let length = length.map_err(|_| invalid("its attributes are too long"))?;
        let size = PREAMBLE_BYTES + header.len() + self.waiting.len() + CRC_BYTES;
        let mut bytes = Vec::with_capacity(size);
        bytes.extend_from_slice(MAGIC);
        let version = if self.plan.was_changed() {
            VERSION_CHANGED_CHUNKS
        } else {
            VERSION
        };
        bytes.extend_from_slice(&version.to_le_bytes());
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&header);
        let crc = crc32c(&[Bytes::copy_from_slice(&bytes)]);
        let waiting = crc32c(std::slice::from_ref(&self.waiting));
        let crc = combine(crc, waiting, self.waiting.len() as u64);
        bytes.extend_from_slice(&self.waiting);
        bytes.extend_from_slice(&crc.to_le_bytes());
        Ok(bytes)
    }

    /// Parses a token that [`Self::to_bytes`] returned, here or in another process. Copies nothing.
    ///
    /// # Errors
    /// [`EngineError::InvalidToken`] if it is truncated, damaged, or of a newer version.
    pub fn from_bytes(bytes: Bytes) -> Result<Self, EngineError> {
        if !bytes.starts_with(MAGIC) || bytes.len() < PREAMBLE_BYTES + CRC_BYTES {
            return Err(invalid("it is none, or cut"));
        }
        let version = number(&bytes[8..12]);
        if !(VERSION..=VERSION_CHANGED_CHUNKS).contains(&version) {
            return Err(invalid(format!(
                "it is of format {version}, and this program reads {VERSION} to {VERSION_CHANGED_CHUNKS}"
            )));
        }
        let end = bytes.len() - CRC_BYTES;
        if crc32c(&[bytes.slice(..end)]) != number(&bytes[end..]) {
            return Err(invalid("it is damaged"));
        }
        let header_end = PREAMBLE_BYTES.checked_add(number(&bytes[12..16]) as usize);
        let header_end = header_end.filter(|header_end| *header_end <= end);
        let header_end = header_end.ok_or_else(|| invalid("it is cut"))?;
        let header: TokenHeader = serde_json::from_slice(&bytes[PREAMBLE_BYTES..header_end])
            .map_err(|error| invalid(error.to_string()))?;
        let plan = header.plan;
        let accepted = header.acknowledged.checked_add((end - header_end) as u64);
        if !plan.is_sound() || plan.known_from() > header.acknowledged || accepted.is_none() {
            return Err(invalid("its chunks cannot be"));
        }
        Ok(Self {
            path: Path::parse(header.object).map_err(|error| invalid(error.to_string()))?,
            options: UploadOptions {
                mode: PutMode::from(header.mode),
                attributes: Attributes::from(header.attributes),
                tags: TagSet::default(),
                length: header.length,
                crc32c: header.crc32c,
                chunk: header.chunk,
                journal: None,
                parallel: header.parallel,
                transient: false,
            },
            plan,
            session: header.session.map(|session| match &header.parts {
                Some(parts) => parts_token(&session, parts),
                None => SessionToken(session),
            }),
            acknowledged: header.acknowledged,
            crc32c: header.acknowledged_crc32c,
            waiting: bytes.slice(header_end..end),
        })
    }
}

/// Returns a token of these parts with a valid checksum, for fuzzers.
#[cfg(any(test, fuzzing))]
pub(crate) fn sealed_token(version: u32, header: &[u8], waiting: &[u8]) -> Bytes {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&version.to_le_bytes());
    bytes.extend_from_slice(&(header.len() as u32).to_le_bytes());
    bytes.extend_from_slice(header);
    bytes.extend_from_slice(waiting);
    let crc = crc32c(&[Bytes::copy_from_slice(&bytes)]);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes.into()
}

/// Returns the number in four bytes.
fn number(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .rev()
        .fold(0, |all, byte| all << 8 | u32::from(*byte))
}

fn invalid(reason: impl Into<String>) -> EngineError {
    EngineError::InvalidToken {
        reason: reason.into(),
    }
}
