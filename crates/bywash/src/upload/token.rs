//! Upload tokens: the state that another process needs to continue an upload.

mod codec;

#[cfg(any(test, fuzzing))]
pub(crate) use codec::sealed_token;

use std::fmt;

use bytes::Bytes;
use bywash_store::SessionToken;
use object_store::path::Path;

use super::{ChunkPlan, UploadOptions};

/// An upload at one moment: the acknowledged offset, and the bytes that the store does not have. Created by
/// [`super::Upload::capture`]; [`Self::to_bytes`] serialises it for another process.
///
/// If it is restored twice, both writers send to one session. The store takes bytes of either, and only one object
/// results.
#[derive(Clone)]
pub struct UploadToken {
    pub(super) path: Path,
    pub(super) options: UploadOptions,
    pub(super) plan: ChunkPlan,
    /// `None`: nothing was sent.
    pub(super) session: Option<SessionToken>,
    pub(super) acknowledged: u64,
    /// CRC32C of the acknowledged bytes.
    pub(super) crc32c: u32,
    /// Bytes accepted and not acknowledged.
    pub(super) waiting: Bytes,
}

impl UploadToken {
    /// The object's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The session at the store; `None` if nothing was sent.
    #[must_use]
    pub fn session(&self) -> Option<&SessionToken> {
        self.session.as_ref()
    }

    /// The number of bytes that the store had acknowledged.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Returns the same state without the bytes that the store does not have: the source is read again from
    /// [`Self::acknowledged`] on.
    #[must_use]
    pub fn without_waiting(self) -> Self {
        Self {
            waiting: Bytes::new(),
            ..self
        }
    }

    /// The offset of the next byte of the source: those before are at the store or in the token.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.acknowledged + self.waiting.len() as u64
    }
}

/// Omits the session, which may be a capability, and the bytes.
impl fmt::Debug for UploadToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UploadToken")
            .field("path", &self.path)
            .field("acknowledged", &self.acknowledged)
            .field("waiting", &self.waiting.len())
            .finish_non_exhaustive()
    }
}
