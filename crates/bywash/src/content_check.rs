//! Content-addressed buckets: the bytes of a write are compared with the digest in its key before the object exists.
//!
//! So a write needs all of its bytes in order at one place: here, or of parts that a client numbers at a store that compares them with a
//! digest. Reads of whole objects are compared by [`crate::read`], as with a digest of the store.

use bytes::Bytes;
use bywash_store::{ContentDigest, RunningDigest};
use object_store::Result;
use object_store::path::Path;

use crate::error::EngineError;
use crate::shared::BucketShared;

/// Bytes digested before other tasks run: about a quarter of a millisecond.
const DIGESTED_AT_ONCE_BYTES: usize = 256 << 10;

/// Extension of [`object_store::PutOptions`]: the writer has compared the bytes with the digest in the key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ContentCompared;

/// Comparison of the bytes of a write with the digest in its key.
#[derive(Debug, Clone)]
pub(crate) struct WrittenDigest {
    expected: ContentDigest,
    running: RunningDigest,
}

impl WrittenDigest {
    /// Begins the comparison of a write to `path`; `None` in a bucket whose keys have no digests. In a box: its state would be part of the
    /// future of each write.
    ///
    /// # Errors
    /// [`EngineError::KeyWithoutDigest`].
    pub(crate) fn of_write(bucket: &BucketShared, path: &Path) -> Result<Option<Box<Self>>> {
        let Some(place) = bucket.digest_in_key else {
            return Ok(None);
        };
        let object = || path.to_string();
        let expected = place
            .of_key(path.as_ref())
            .ok_or_else(|| EngineError::KeyWithoutDigest { object: object() })?;
        Ok(Some(Box::new(Self {
            running: RunningDigest::like(&expected),
            expected,
        })))
    }

    /// Adds the next bytes of the object. Without an await, so that a dropped write has added all bytes or none.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.running.update(bytes);
    }

    /// Compares the digest of all bytes with the key's.
    ///
    /// # Errors
    /// [`EngineError::WrongContent`].
    pub(crate) fn compare(&self, path: &Path) -> Result<()> {
        let got = self.running.clone().finish();
        if got == self.expected {
            return Ok(());
        }
        Err(EngineError::WrongContent {
            object: path.to_string(),
            expected: self.expected,
            got,
        }
        .into())
    }
}

impl BucketShared {
    /// The digest in a key; `None` in a bucket whose keys have none, and for a key that has none.
    pub(crate) fn key_digest(&self, path: &Path) -> Option<ContentDigest> {
        self.digest_in_key?.of_key(path.as_ref())
    }

    /// Compares all bytes of a write with the digest in its key.
    ///
    /// # Errors
    /// [`EngineError::KeyWithoutDigest`], [`EngineError::WrongContent`].
    pub(crate) async fn check_content<'a>(
        &self,
        path: &Path,
        pieces: impl IntoIterator<Item = &'a Bytes>,
    ) -> Result<()> {
        let Some(mut check) = WrittenDigest::of_write(self, path)? else {
            return Ok(());
        };
        for piece in pieces {
            for part in piece.chunks(DIGESTED_AT_ONCE_BYTES) {
                check.update(part);
                tokio::task::yield_now().await;
            }
        }
        check.compare(path)
    }

    /// Refuses a write whose bytes do not pass here in order.
    ///
    /// # Errors
    /// [`EngineError::NeedsWholeWrite`] in a bucket whose keys have digests.
    pub(crate) fn refuse_parts(&self, path: &Path) -> Result<()> {
        if self.digest_in_key.is_none() {
            return Ok(());
        }
        let object = path.to_string();
        Err(EngineError::NeedsWholeWrite { object }.into())
    }

    /// Digest that the object of numbered parts must have; `None` in a bucket whose keys have none.
    ///
    /// # Errors
    /// [`EngineError::KeyWithoutDigest`], or [`EngineError::NeedsWholeWrite`] if the store does not compare parts.
    pub(crate) fn digest_of_parts(&self, path: &Path) -> Result<Option<ContentDigest>> {
        if !self.origin.capabilities().compares_parts {
            self.refuse_parts(path)?;
        }
        Ok(WrittenDigest::of_write(self, path)?.map(|written| written.expected))
    }

    /// Refuses another key for an object unless both have the same digest.
    ///
    /// # Errors
    /// [`EngineError::KeyWithoutDigest`], or [`EngineError::NeedsWholeWrite`] if the digests differ.
    pub(crate) fn check_same_content(&self, from: &Path, to: &Path) -> Result<()> {
        match WrittenDigest::of_write(self, to)? {
            Some(target) if self.key_digest(from) != Some(target.expected) => self.refuse_parts(to),
            _ => Ok(()),
        }
    }
}
