//! Downloads a whole object, or a range of it, into one buffer by parallel ranged GETs.
//!
//! The first GET is unconditional and returns version and length; all others are bound to that version. Blocks of it
//! that are in memory at the start of a part are not requested. Each byte is copied once, from the received piece to
//! its place. The buffer's claims record what has arrived: a GET that fails
//! releases the rest of its claim, and the retry claims exactly that.

mod job;

use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use bywash_mem::{FrameError, Segments, Share, WriteAtBuffer, WriteAtError, WriteAtOptions};
use object_store::path::Path;
use object_store::{
    Attributes, Error, GetOptions, GetRange, GetResult, ObjectMeta, ObjectStore, Result,
};
use tokio::task::JoinSet;

use super::digest_check::{is_digest_mismatch, is_requested, stated_digest};
use super::ranged::{self, checked_range, is_version_change};
use super::resolve;
use super::shared_error::load_error;
use crate::bucket::Bucket;
use crate::content_digest::ContentDigest;
use crate::error::EngineError;
use crate::io::AsyncTailReader;
use crate::retry::{is_out_of_range, with_retries};
use crate::shared::BucketShared;
use crate::versions::Version;
use job::{DownloadJob, close};

/// Default length of one ranged GET: long enough that the cost of a request is small.
const PART_BYTES: u64 = 8 << 20;
/// Default number of ranged GETs at once.
const PARALLEL: usize = 4;

/// Options of [`crate::Bucket::download`].
#[derive(Debug, Clone)]
pub struct DownloadOptions {
    /// The bytes wanted. Default: all.
    pub range: Option<GetRange>,
    /// Bytes of one ranged GET, at least 1. Default 8 MiB.
    pub part_size: u64,
    /// Ranged GETs at once, at least 1; the bucket's own limit applies too. Default 4.
    pub parallel: usize,
    /// Digest that the object must have; needs a download of all of it. Default: the one that the store states, if
    /// [`crate::EngineBuilder::verify`] does not turn it off.
    pub digest: Option<ContentDigest>,
}

impl Default for DownloadOptions {
    fn default() -> Self {
        Self {
            range: None,
            part_size: PART_BYTES,
            parallel: PARALLEL,
            digest: None,
        }
    }
}

/// A download in progress into one buffer: see [`crate::Bucket::download`].
///
/// It progresses by itself, with or without readers. Dropping it cancels it and releases all memory but that which
/// readers still hold.
#[derive(Debug)]
pub struct Download {
    meta: ObjectMeta,
    attributes: Attributes,
    range: Range<u64>,
    buffer: WriteAtBuffer,
    workers: JoinSet<()>,
    /// What a second attempt needs, after bytes with another digest than the object's.
    again: (Arc<BucketShared>, DownloadOptions),
}

impl Download {
    /// Returns the metadata of the version being downloaded.
    #[must_use]
    pub fn meta(&self) -> &ObjectMeta {
        &self.meta
    }

    /// Returns content headers and user metadata of that version.
    #[must_use]
    pub fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    /// Returns the range being downloaded.
    #[must_use]
    pub fn range(&self) -> &Range<u64> {
        &self.range
    }

    /// Returns the number of bytes received without a gap, from the start of the range.
    #[must_use]
    pub fn contiguous(&self) -> u64 {
        self.buffer.contiguous()
    }

    /// Returns a reader of the range from its start, as it arrives. It fails when the download does, even with bytes
    /// left to read. If the object has a digest, the reader ends only after all bytes were compared with it.
    #[must_use]
    pub fn reader(&self) -> AsyncTailReader {
        self.buffer.reader(0).into()
    }

    /// Waits for all bytes. Dropping the future cancels the download.
    ///
    /// # Errors
    /// The error of the download; no bytes are returned then. [`EngineError::VersionChanged`] if the object changed
    /// meanwhile, [`EngineError::BadResponse`] if its length differs from what the origin reported (within
    /// [`EngineError::OriginUnavailable`] if retries went on until the deadline), [`EngineError::DigestMismatch`] if the
    /// bytes do not have the object's digest in a second download either.
    pub async fn finish(self) -> Result<Segments> {
        let (then, again) = (self.meta.clone(), self.again.clone());
        match self.ended().await {
            Err(error) if is_digest_mismatch(&error) => {
                let (bucket, options) = again;
                let second = try_begin(&bucket, &then.location, &options).await?;
                let now = second.meta();
                if (now.size, &now.e_tag) != (then.size, &then.e_tag) {
                    let object = then.location.to_string();
                    return Err(EngineError::VersionChanged { object }.into());
                }
                second.ended().await
            }
            ended => ended,
        }
    }

    /// Waits for the end of this attempt.
    async fn ended(mut self) -> Result<Segments> {
        while let Some(ended) = self.workers.join_next().await {
            if let Err(source) = ended {
                self.buffer
                    .fail(load_error(Arc::new(Error::JoinError { source })));
            }
        }
        let length = self.range.end - self.range.start;
        close(&self.buffer, &self.meta.location, length)
    }
}

impl Bucket {
    /// Downloads an object, or a range of it, into memory by several ranged GETs at once, all of one version. Each
    /// byte is copied once. Returns when version and length are known and memory for all of it is reserved, after
    /// waiting for that in line.
    ///
    /// Takes blocks that are in memory from there, without a request if it has all of them, and leaves none there: meant
    /// for objects that are used once and whole. Bytes can be read as they arrive
    /// ([`Download::reader`]); [`Download::finish`] returns all of them, or an error.
    ///
    /// # Errors
    /// Those of a read; [`EngineError::InvalidSetting`] if the object can never fit the memory, or if the options have
    /// a digest and a range that is not the whole object.
    pub async fn download(&self, path: &Path, options: DownloadOptions) -> Result<Download> {
        begin(self.shared(), path, options).await
    }
}

/// Begins a download: when this returns, version and length are known and the memory is reserved.
async fn begin(
    bucket: &Arc<BucketShared>,
    path: &Path,
    options: DownloadOptions,
) -> Result<Download> {
    bucket.counters.request();
    bucket.counters.miss();
    match try_begin(bucket, path, &options).await {
        Err(error) if is_version_change(&error) => try_begin(bucket, path, &options).await,
        started => started,
    }
}

async fn try_begin(
    bucket: &Arc<BucketShared>,
    path: &Path,
    options: &DownloadOptions,
) -> Result<Download> {
    let part_size = options.part_size.max(1);
    let (version, first) = match resident(bucket, path, options) {
        Some(version) => (version, None),
        None => first_response(bucket, path, options).await?,
    };
    let file = version.file();
    if let Some(first) = &first {
        file.keep_from(first);
    }
    let range = checked_range(&version, options.range.as_ref())?;
    let digest = digest(bucket, &version, &range, options)?;
    let length = range.end - range.start;
    let buffer = buffer(bucket, path, length).await?;
    let conditional = version.cacheable();
    let (part_size, parallel) = if conditional {
        (part_size, options.parallel.max(1))
    } else {
        // Without a validator a second request could return another version: one request must bring it all.
        (length.max(1), 1)
    };
    let part = range.start..range.end.min(range.start.saturating_add(part_size));
    let mut first = match first.filter(|first| first.range == part) {
        Some(first) => Some(first),
        None if conditional || part.is_empty() => None,
        None => Some(get_unconditional(bucket, &version, part).await?),
    };
    let (meta, attributes) = (version.meta.clone(), version.attributes.clone());
    let whole = range == (0..meta.size);
    let verified = digest.is_some() || (whole && is_requested(bucket, &version));
    let job = DownloadJob::new(bucket, version, &buffer, &range, part_size, verified);
    let mut workers = JoinSet::new();
    if verified {
        workers.spawn(Arc::clone(&job).verify(digest));
    }
    let parts = usize::try_from(length.div_ceil(part_size)).unwrap_or(usize::MAX);
    for _ in 0..parallel.min(parts) {
        workers.spawn(Arc::clone(&job).work(job.next_part(), first.take()));
    }
    if length == 0 && !verified {
        close(&buffer, path, 0)?;
    }
    Ok(Download {
        meta,
        attributes,
        range,
        buffer,
        workers,
        again: (Arc::clone(bucket), options.clone()),
    })
}

/// Returns the digest that the bytes of `range` must have, if one is known.
///
/// # Errors
/// If the caller gave one, and the range is not the whole object.
fn digest(
    bucket: &BucketShared,
    version: &Version,
    range: &Range<u64>,
    options: &DownloadOptions,
) -> Result<Option<ContentDigest>> {
    let whole = *range == (0..version.meta.size);
    match options.digest {
        Some(_) if !whole => Err(EngineError::InvalidSetting {
            setting: "digest",
            reason: format!(
                "it is of a whole object, and {range:?} of {} is not",
                version.meta.location
            ),
        }
        .into()),
        Some(digest) => Ok(Some(digest)),
        None => Ok(stated_digest(bucket, version).filter(|_| whole)),
    }
}

/// Returns the known version if it is fresh and all of its blocks in the range are in memory.
fn resident(bucket: &BucketShared, path: &Path, options: &DownloadOptions) -> Option<Arc<Version>> {
    let (version, is_fresh) = bucket.versions.get(path, bucket.consistency.max_age())?;
    let range = checked_range(&version, options.range.as_ref()).ok()?;
    let (size, pool) = (bucket.block_size, &bucket.engine.pool);
    let mut blocks = (range.start / size) as u32..range.end.div_ceil(size) as u32;
    let usable = is_fresh && version.cacheable() && !blocks.is_empty();
    let all = usable && blocks.all(|block| pool.contains(version.key(block)));
    all.then_some(version)
}

/// Returns the current version, and the response if it carries the first part.
async fn first_response(
    bucket: &Arc<BucketShared>,
    path: &Path,
    options: &DownloadOptions,
) -> Result<(Arc<Version>, Option<GetResult>)> {
    let start = match &options.range {
        None => 0,
        Some(GetRange::Bounded(range)) => range.start,
        Some(GetRange::Offset(start)) => *start,
        // Its start depends on the length.
        Some(GetRange::Suffix(_)) => return Ok((head(bucket, path).await?, None)),
    };
    let end = start.saturating_add(options.part_size.max(1));
    let end = match &options.range {
        Some(GetRange::Bounded(range)) => end.min(range.end),
        _ => end,
    };
    let stamp = bucket.versions.stamp(path);
    let result = get(bucket, path, start..end).await;
    match result {
        Ok(result) => {
            let meta = resolve::at(path, result.meta.clone());
            let attributes = result.attributes.clone();
            let version = bucket.versions.record(stamp, meta, attributes);
            version.learn_digest(&result);
            Ok((version, Some(result)))
        }
        // An empty object, or a range beyond the end: only a HEAD returns the length.
        Err(error) if is_out_of_range(&error) => Ok((head(bucket, path).await?, None)),
        Err(error) => {
            if matches!(error, Error::NotFound { .. }) {
                bucket.versions.record_absent(stamp, path);
            }
            Err(error)
        }
    }
}

async fn head(bucket: &Arc<BucketShared>, path: &Path) -> Result<Arc<Version>> {
    let opened = resolve::head(bucket, path).await?;
    Ok(Arc::clone(&opened.version))
}

/// Sends an unconditional ranged GET.
async fn get(bucket: &Arc<BucketShared>, path: &Path, range: Range<u64>) -> Result<GetResult> {
    let options = GetOptions {
        range: Some(GetRange::Bounded(range)),
        ..GetOptions::default()
    };
    with_retries(bucket.retry(), "download", path, || {
        bucket.counters.origin_data_request();
        bucket.origin.get_opts(path, options.clone())
    })
    .await
}

/// Sends one more GET for an object without a validator; checks its length only.
async fn get_unconditional(
    bucket: &Arc<BucketShared>,
    version: &Version,
    part: Range<u64>,
) -> Result<GetResult> {
    let path = &version.meta.location;
    let result = get(bucket, path, part.clone()).await?;
    if result.meta.size != version.meta.size {
        return Err(ranged::changed(version));
    }
    if result.range != part {
        let detail = format!("requested {part:?}, received {:?}", result.range);
        return Err(ranged::bad_response(version, detail));
    }
    Ok(result)
}

/// Reserves a buffer for the whole range: a download cannot end with less, and must not wait for more while it holds
/// some.
async fn buffer(bucket: &BucketShared, path: &Path, length: u64) -> Result<WriteAtBuffer> {
    let engine = &bucket.engine;
    let options = WriteAtOptions {
        size_hint: length,
        limit: length,
        // Frames of a block's size: at most one of them is not full.
        frame_len: (length > bucket.block_size).then_some(bucket.block_size as usize),
        share: Share::Download,
        ..WriteAtOptions::default()
    };
    let mut reserved = pin!(WriteAtBuffer::reserved(
        engine.pool.budget(),
        options,
        length
    ));
    let made = match futures::poll!(&mut reserved) {
        Poll::Ready(made) => made,
        Poll::Pending => {
            // Release read-ahead memory before blocking: foreground requests take precedence.
            engine.readahead.release_all();
            let waited = tokio::time::timeout(engine.admission_deadline, reserved).await;
            waited.unwrap_or(Err(WriteAtError::Memory { bytes: length }))
        }
    };
    made.map_err(|error| match error {
        WriteAtError::Frames(error @ FrameError::TooLarge { .. }) => {
            let reason = format!("download of {path}, {length} bytes: {error}");
            EngineError::InvalidSetting {
                setting: "memory",
                reason,
            }
            .into()
        }
        _ => engine.slow_down("download", path.as_ref()).into(),
    })
}
