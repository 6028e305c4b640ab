//! Comparison of a whole object's bytes with its digest.

use std::sync::Arc;

use bytes::Bytes;
use bywash_store::{ContentDigest, RunningDigest};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{Error, GetOptions, GetResult, ObjectMeta, Result};

use crate::error::EngineError;
use crate::shared::BucketShared;
use crate::verify::Verify;
use crate::versions::Version;

/// Bytes digested before other tasks run: their MD5 takes about 0.4 ms.
const DIGESTED_AT_ONCE_BYTES: usize = 256 << 10;

/// Extension of [`object_store::GetOptions`]: a read of a whole object is compared also if all of its blocks were
/// compared before, and with this digest instead of the one that the store states.
#[derive(Debug, Clone, Copy)]
pub(super) struct VerifyBody(pub(super) Option<ContentDigest>);

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

    /// Adds the next bytes of the object. Yields to other tasks between pieces.
    pub(super) async fn update(&mut self, bytes: &[u8]) {
        let mut pieces = bytes.chunks(DIGESTED_AT_ONCE_BYTES).peekable();
        while let Some(piece) = pieces.next() {
            self.running.update(piece);
            if pieces.peek().is_some() {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Compares the digest of all bytes. Counts a mismatch.
    ///
    /// # Errors
    /// [`EngineError::DigestMismatch`].
    pub(super) fn compare(self, bucket: &BucketShared, object: &Path) -> Result<()> {
        let got = self.running.finish();
        if got == self.expected {
            return Ok(());
        }
        bucket.counters.digest_mismatch();
        tracing::warn!(bucket = bucket.name, %object, expected = %self.expected, %got, "wrong digest");
        Err(EngineError::DigestMismatch {
            object: object.to_string(),
            expected: self.expected,
            got,
        }
        .into())
    }

    /// As [`Self::compare`], for bytes of a version. After a mismatch no block of it stays in memory or on disk, and the next read
    /// resolves the version again.
    ///
    /// # Errors
    /// As [`Self::compare`].
    pub(super) fn compare_version(self, bucket: &BucketShared, version: &Version) -> Result<()> {
        let compared = self.compare(bucket, &version.meta.location);
        if compared.is_err() {
            bucket.drop_blocks(version);
            bucket.flights.forget(&version.meta.location);
        }
        compared
    }
}

/// Compares a whole body that is not cached with `digest`, and withholds its last piece until then.
pub(super) fn compared(
    bucket: &Arc<BucketShared>,
    meta: &ObjectMeta,
    digest: ContentDigest,
    body: BoxStream<'static, Result<Bytes>>,
) -> BoxStream<'static, Result<Bytes>> {
    let (bucket, object) = (Arc::clone(bucket), meta.location.clone());
    let begun = (body, meta.size, Some(DigestCheck::new(digest)));
    let pieces = stream::try_unfold(begun, move |(mut body, mut left, mut check)| {
        let (bucket, object) = (Arc::clone(&bucket), object.clone());
        async move {
            let Some(piece) = body.try_next().await? else {
                // An empty body.
                if let Some(check) = check.take_if(|_| left == 0) {
                    check.compare(&bucket, &object)?;
                }
                return Ok(None);
            };
            left -= piece.len() as u64;
            if let Some(check) = &mut check {
                check.update(&piece).await;
            }
            if let Some(check) = check.take_if(|_| left == 0) {
                check.compare(&bucket, &object)?;
            }
            Ok(Some((piece, (body, left, check))))
        }
    });
    pieces.boxed()
}

/// The digest in the object's key, or else the one that the store states, if reads are compared with it.
pub(super) fn stated_digest(bucket: &BucketShared, version: &Version) -> Option<ContentDigest> {
    if let Some(digest) = bucket.key_digest(&version.meta.location) {
        return Some(digest);
    }
    match bucket.engine.verify {
        Verify::Off => None,
        Verify::Whole | Verify::Always => version.digest(),
    }
}

/// Returns whether the digest takes a request of its own, because the store does not state it with ranges. Only of objects of
/// several ranged GETs, where one more request is small, unless ranged reads are compared too.
pub(super) fn is_requested(bucket: &BucketShared, version: &Version) -> bool {
    let large = version.blocks(bucket.block_size) > bucket.max_fetch_blocks();
    let worth = match bucket.engine.verify {
        Verify::Off => false,
        Verify::Whole => large,
        Verify::Always => true,
    };
    worth
        && bucket.origin.capabilities().kind == "s3"
        && version.digest().is_none()
        && bucket.key_digest(&version.meta.location).is_none()
}

/// As [`stated_digest`]; requests it first if that takes a request of its own, once for each version. A failure of the request is
/// no failure of the read, which is not compared then.
pub(super) async fn requested_digest(
    bucket: &BucketShared,
    version: &Version,
) -> Option<ContentDigest> {
    if is_requested(bucket, version) {
        let object = &version.meta.location;
        let request = async {
            bucket.counters.origin_request();
            let sent = bucket.origin.content_digest(object);
            match tokio::time::timeout(bucket.engine.retry.stall, sent).await {
                Ok(Ok(digest)) => digest,
                failed => {
                    tracing::debug!(%object, ?failed, "no digest to compare with");
                    None
                }
            }
        };
        version.request_digest(request).await;
    }
    stated_digest(bucket, version)
}

/// As [`stated_digest`], of a response; the one in the request's options takes precedence.
pub(super) fn response_digest(
    bucket: &BucketShared,
    response: &GetResult,
    options: &GetOptions,
) -> Option<ContentDigest> {
    if let Some(VerifyBody(Some(given))) = options.extensions.get() {
        return Some(*given);
    }
    if let Some(digest) = bucket.key_digest(&response.meta.location) {
        return Some(digest);
    }
    match bucket.engine.verify {
        Verify::Off => None,
        Verify::Whole | Verify::Always => response.extensions.get().copied(),
    }
}

/// Returns whether a read failed because its bytes do not have the object's digest.
pub(super) fn is_digest_mismatch(error: &Error) -> bool {
    matches!(
        EngineError::find(error),
        Some(EngineError::DigestMismatch { .. })
    )
}
