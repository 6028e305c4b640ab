//! Comparison of a whole object's bytes with its digest.

use object_store::{Error, Result};

use crate::content_digest::{ContentDigest, RunningDigest};
use crate::error::EngineError;
use crate::shared::BucketShared;
use crate::verify::Verify;
use crate::versions::Version;

/// Digest of the bytes of a whole object in progress.
#[derive(Debug)]
pub(super) struct DigestCheck {
    expected: ContentDigest,
    running: RunningDigest,
}

impl DigestCheck {
    pub(super) fn new(expected: ContentDigest) -> Self {
        Self {
            running: RunningDigest::like(&expected),
            expected,
        }
    }

    /// Adds the next bytes of the object.
    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.running.update(bytes);
    }

    /// Compares the digest of all bytes. After a mismatch no block of the version stays in memory, and the next read
    /// resolves the version anew.
    ///
    /// # Errors
    /// [`EngineError::DigestMismatch`].
    pub(super) fn finish(self, bucket: &BucketShared, version: &Version) -> Result<()> {
        let got = self.running.finish();
        if got == self.expected {
            return Ok(());
        }
        let object = &version.meta.location;
        bucket.counters.digest_mismatch();
        bucket.versions.drop_blocks(version);
        bucket.flights.forget(object);
        tracing::warn!(bucket = bucket.name, %object, expected = %self.expected, %got, "wrong digest");
        Err(EngineError::DigestMismatch {
            object: object.to_string(),
            expected: self.expected,
            got,
        }
        .into())
    }
}

/// Returns the digest that the store states, if reads are compared with it.
pub(super) fn stated_digest(bucket: &BucketShared, version: &Version) -> Option<ContentDigest> {
    match bucket.engine.verify {
        Verify::Off => None,
        Verify::Whole => version.digest(),
    }
}

/// Returns whether a read failed because its bytes do not have the object's digest.
pub(super) fn is_digest_mismatch(error: &Error) -> bool {
    matches!(
        EngineError::find(error),
        Some(EngineError::DigestMismatch { .. })
    )
}
