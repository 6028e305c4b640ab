//! Reads of one resident block: without a future, and without a request to the origin.
//!
//! A read that needs anything else is refused here and counts nothing. The caller then reads through the bucket, which
//! looks everything up again.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use bywash_mem::OwnedPin;
use object_store::{Attributes, ObjectMeta};

use super::digest_check::{is_requested, stated_digest};
use super::loans::Loan;
use super::ownership;
use crate::shared::BucketShared;
use crate::verify::Verify;
use crate::versions::Version;

/// An object with a version that is known, fresh and cacheable.
#[derive(Debug)]
pub struct ResidentObject {
    bucket: Arc<BucketShared>,
    version: Arc<Version>,
}

/// Bytes of a pinned block, lent to the consumer.
struct LentBlock {
    pin: OwnedPin,
    range: Range<usize>,
    _loan: Loan,
}

impl AsRef<[u8]> for LentBlock {
    fn as_ref(&self) -> &[u8] {
        &self.pin.as_ref()[self.range.clone()]
    }
}

impl ResidentObject {
    pub(crate) fn find(bucket: &Arc<BucketShared>, path: &str) -> Option<Self> {
        let version = bucket.fresh(path)?;
        version.cacheable().then(|| Self {
            bucket: Arc::clone(bucket),
            version,
        })
    }

    /// Its size, ETag and date.
    #[must_use]
    pub fn meta(&self) -> &ObjectMeta {
        &self.version.meta
    }

    /// Its content headers and metadata.
    #[must_use]
    pub fn attributes(&self) -> &Attributes {
        &self.version.attributes
    }

    /// The number of its tags at the store; see [`crate::ReadInfo::tags`].
    #[must_use]
    pub fn tags(&self) -> u32 {
        self.version.tags.0
    }

    /// A number that only this version with these attributes has, in all buckets of the engine.
    #[must_use]
    pub fn headers_id(&self) -> u64 {
        self.version.headers_id()
    }

    /// The name of the version, as in [`crate::ReadInfo::version`].
    #[must_use]
    pub fn version(&self) -> String {
        self.version.display()
    }

    /// Counts a request for the metadata alone.
    pub fn count_head(&self) {
        self.bucket.counters.request();
    }

    /// Returns the bytes of `range` and counts a hit, if they are within one block in memory, or none at all. Refuses a
    /// read that is to be compared with a digest first, one that continues a sequential stream, and one for which no
    /// memory may be lent.
    #[must_use]
    pub fn read(&self, range: Range<u64>) -> Option<Bytes> {
        let (bucket, version) = (&self.bucket, &self.version);
        let size = bucket.block_size;
        if range.start > range.end || range.end > version.meta.size {
            return None;
        }
        if range.is_empty() {
            bucket.counters.request();
            return Some(Bytes::new());
        }
        let block = u32::try_from(range.start / size).ok()?;
        let start = u64::from(block) * size;
        if range.end > start + size
            || is_to_be_compared(bucket, version, &range)
            || bucket.sequential.continues(version, range.start)
        {
            return None;
        }
        let loan = bucket.engine.loans.lend(version.block_len(block, size))?;
        let mut pin = bucket.engine.pool.get(version.key(block))?.into_owned();
        if bucket.cluster.is_some() {
            pin = ownership::read_again(bucket, version, pin)?;
        }
        // Again: the block that was compared may have been evicted since, and loaded again.
        if is_to_be_compared(bucket, version, &range) {
            return None;
        }
        bucket.counters.request();
        bucket.counters.body(1, range.end - range.start);
        let range = (range.start - start) as usize..(range.end - start) as usize;
        Some(Bytes::from_owner(LentBlock {
            pin,
            range,
            _loan: loan,
        }))
    }
}

/// Returns whether a read of `range` compares the object's bytes with its digest, as [`super::body_check`] does.
pub(super) fn is_to_be_compared(
    bucket: &BucketShared,
    version: &Version,
    range: &Range<u64>,
) -> bool {
    let whole = *range == (0..version.meta.size);
    let has_digest = || stated_digest(bucket, version).is_some() || is_requested(bucket, version);
    let compared = whole || bucket.engine.verify == Verify::Always;
    compared && !version.is_verified() && has_digest()
}
