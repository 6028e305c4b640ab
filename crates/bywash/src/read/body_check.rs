//! Comparison of a body of a whole object with the object's digest, while it is read.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use object_store::Result;

use super::body::Body;
use super::copied::CopiedBody;
use super::digest_check::{DigestCheck, VerifyBody, requested_digest};
use super::pieces::Pieces;
use super::resolution::Resolution;
use crate::disk::DiskCheck;
use crate::limits::MAX_PROBED_BLOCKS;
use crate::outcome::CacheOutcome;
use crate::shared::BucketShared;
use crate::versions::Version;

/// Reads the whole object block by block and compares it, before a ranged read of it. Returns at once if it has no known
/// digest, or if all of its blocks in memory were compared. One such read of a version runs at a time.
///
/// # Errors
/// [`crate::EngineError::DigestMismatch`], and errors of a read.
pub(super) async fn compare_first(
    bucket: &Arc<BucketShared>,
    version: &Arc<Version>,
) -> Result<()> {
    if version.is_verified() {
        return Ok(());
    }
    let Some(digest) = requested_digest(bucket, version).await else {
        return Ok(());
    };
    let _turn = version.compare_turn().await;
    if version.is_verified() {
        return Ok(());
    }
    let mut check = Some(BodyCheck {
        digest: Box::new(DigestCheck::new(digest)),
        _on_disk: on_disk(bucket, version),
        loads_before: Some(version.cost.blocks()),
    });
    let resolved = Resolution::known(Arc::clone(version));
    let mut body = Body::new(Arc::clone(bucket), resolved, 0..version.meta.size);
    body.probe();
    while check.is_some() {
        // Not counted as bytes of a reader.
        let bytes = body.advance().await?;
        BodyCheck::add(&mut check, &mut body, bytes.as_ref()).await?;
    }
    Ok(())
}

/// As [`compare_first`], by a body of a copy, which waits for no memory.
///
/// # Errors
/// As [`compare_first`].
pub(super) async fn compare_copied(
    bucket: &Arc<BucketShared>,
    version: &Arc<Version>,
    mut body: CopiedBody,
) -> Result<()> {
    if version.is_verified() {
        return Ok(());
    }
    let Some(digest) = requested_digest(bucket, version).await else {
        return Ok(());
    };
    let mut check = Some(BodyCheck {
        digest: Box::new(DigestCheck::new(digest)),
        _on_disk: None,
        loads_before: None,
    });
    while check.is_some() {
        let bytes = body.advance().await?;
        BodyCheck::add(&mut check, &mut body, bytes.as_ref()).await?;
    }
    Ok(())
}

/// Begins the comparison at the disk tier, if that keeps blocks of the version.
fn on_disk(bucket: &BucketShared, version: &Version) -> Option<DiskCheck> {
    let (disk, stored) = bucket.disk_version(version)?;
    Some(disk.check(&stored))
}

/// A body in blocks or in pieces.
pub(super) trait Pieced: Send + 'static {
    fn next(&mut self) -> impl Future<Output = Result<Option<Bytes>>> + Send;

    fn is_done(&self) -> bool;

    /// Its bucket and version, and whether all of its bytes so far were read from blocks.
    fn origin(&self) -> (&BucketShared, &Version, bool);
}

impl Pieced for Body {
    fn next(&mut self) -> impl Future<Output = Result<Option<Bytes>>> + Send {
        self.next()
    }

    fn is_done(&self) -> bool {
        self.is_done()
    }

    fn origin(&self) -> (&BucketShared, &Version, bool) {
        (self.bucket(), self.version(), true)
    }
}

impl Pieced for CopiedBody {
    fn next(&mut self) -> impl Future<Output = Result<Option<Bytes>>> + Send {
        self.next()
    }

    fn is_done(&self) -> bool {
        self.is_done()
    }

    fn origin(&self) -> (&BucketShared, &Version, bool) {
        (self.bucket(), self.version(), false)
    }
}

impl Pieced for Pieces {
    fn next(&mut self) -> impl Future<Output = Result<Option<Bytes>>> + Send {
        self.next()
    }

    fn is_done(&self) -> bool {
        self.is_done()
    }

    fn origin(&self) -> (&BucketShared, &Version, bool) {
        let body = self.body();
        (body.bucket(), body.version(), self.is_of_blocks())
    }
}

/// Comparison of a body with the digest of its object.
pub(super) struct BodyCheck {
    digest: Box<DigestCheck>,
    /// Keeps the tier from believing the version's blocks after a restart. Dropped after a mismatch has erased them.
    _on_disk: Option<DiskCheck>,
    /// Blocks of the version loaded before the body began; `None` for a digest of the caller's.
    loads_before: Option<u64>,
}

impl BodyCheck {
    /// Returns the check of a body that begins now; `None` if it is not of a whole object with a known digest, or if all
    /// of its blocks are in memory and were compared before. May request the digest.
    pub(super) fn new(
        bucket: &Arc<BucketShared>,
        version: &Arc<Version>,
        range: &Range<u64>,
        outcome: CacheOutcome,
        asked: Option<VerifyBody>,
    ) -> impl Future<Output = Option<Self>> + Send + use<> {
        let given = asked.and_then(|VerifyBody(digest)| digest);
        let whole = *range == (0..version.meta.size) && (given.is_some() || !range.is_empty());
        let resident = |block| bucket.engine.pool.contains(version.key(block));
        let verified = asked.is_none()
            && outcome == CacheOutcome::Hit
            && version.is_verified()
            // Those before were looked up.
            && (MAX_PROBED_BLOCKS..version.blocks(bucket.block_size)).all(resident);
        let loads_before = version.cost.blocks();
        let on_disk = (whole && !verified)
            .then(|| on_disk(bucket, version))
            .flatten();
        let (bucket, version) = (Arc::clone(bucket), Arc::clone(version));
        async move {
            if !whole || verified {
                return None;
            }
            let digest = match given {
                Some(given) => given,
                None => requested_digest(&bucket, &version).await?,
            };
            Some(Self {
                digest: Box::new(DigestCheck::new(digest)),
                _on_disk: on_disk,
                loads_before: given.is_none().then_some(loads_before),
            })
        }
    }

    /// Adds the next bytes of the body. With the last ones, compares.
    ///
    /// # Errors
    /// [`crate::EngineError::DigestMismatch`]: these bytes must not be returned.
    pub(super) async fn add(
        check: &mut Option<Self>,
        body: &mut impl Pieced,
        bytes: Option<&Bytes>,
    ) -> Result<()> {
        if let (Some(bytes), Some(check)) = (bytes, check.as_mut()) {
            check.digest.update(bytes).await;
        }
        if body.is_done()
            && let Some(check) = check.take()
        {
            let Self {
                digest,
                loads_before,
                _on_disk,
            } = check;
            let (bucket, version, of_blocks) = body.origin();
            digest.compare_version(bucket, version)?;
            if let Some(loads_before) = loads_before.filter(|_| of_blocks) {
                version.record_verified(loads_before, bucket.block_size);
            }
        }
        Ok(())
    }
}
