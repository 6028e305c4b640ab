//! What another process needs to go on with an upload.

mod codec;

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use object_store::path::Path;

use super::parts::KeptPart;
use super::{ChunkPlan, SessionToken, UploadOptions};

/// An upload as it was at one moment: what the store keeps, and the bytes it does not. Made by [`super::Upload::capture`];
/// [`Self::to_bytes`] takes it to another process.
///
/// Restored twice, both writers send to one session: the store takes the bytes of either, and only one object comes of it.
#[derive(Clone)]
pub struct UploadToken {
    pub(super) path: Path,
    pub(super) options: UploadOptions,
    pub(super) plan: ChunkPlan,
    /// `None`: nothing was sent.
    pub(super) session: Option<SessionToken>,
    /// What is kept of a session over parts, by number.
    pub(super) parts: Option<BTreeMap<u16, KeptPart>>,
    pub(super) acknowledged: u64,
    /// Of what is acknowledged.
    pub(super) crc32c: u32,
    /// What comes behind it.
    pub(super) waiting: Bytes,
}

impl UploadToken {
    /// The object.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes the store had acknowledged.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Where the next bytes of the source belong: what comes before is at the store or in the token.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.acknowledged + self.waiting.len() as u64
    }
}

/// Shows neither the session, which may be a capability, nor the bytes.
impl fmt::Debug for UploadToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UploadToken")
            .field("path", &self.path)
            .field("acknowledged", &self.acknowledged)
            .field("waiting", &self.waiting.len())
            .finish_non_exhaustive()
    }
}
