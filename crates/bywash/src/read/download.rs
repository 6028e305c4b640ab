//! Downloads a whole object, or a range of it, into one buffer by parallel ranged GETs.
//!
//! The first GET is unconditional and returns version and length; all others are bound to that version. Blocks of it
//! that are in memory or on the disk tier when a part reaches them are not requested. Each byte is copied once, from the
//! received piece to its place. The buffer's claims record the bytes received: a GET that fails
//! releases the rest of its claim, and the retry claims exactly that.
//!
//! When all bytes are there, and have the object's digest, the frames of the buffer become blocks as they are. Concurrent
//! downloads of one whole version share one buffer ([`flights`]).

mod flights;
mod job;
mod version;

use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use bywash_mem::{FrameError, Segments, Share, WriteAtBuffer, WriteAtError, WriteAtOptions};
use bywash_store::ContentDigest;
use object_store::path::Path;
use object_store::{Attributes, Error, GetRange, ObjectMeta, Result};
use tokio::task::JoinSet;

use super::digest_check::{is_digest_mismatch, is_requested, stated_digest};
use super::ranged::{checked_range, is_version_change};
use super::shared_error::clone_error;
use crate::bucket::Bucket;
use crate::bucket_options::Caching;
use crate::error::EngineError;
use crate::io::AsyncTailReader;
use crate::shared::BucketShared;
use crate::versions::Version;
pub(crate) use flights::DownloadFlights;
use flights::{DownloadFlight, RunningDownload};
use job::{DownloadJob, close};
use version::{cached, current_of, first_response, get_unconditional};

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
    /// Whether the whole blocks of the range stay in memory for later reads, like blocks of a read, and go to the disk
    /// tier. Default: yes.
    pub cached: bool,
}

impl Default for DownloadOptions {
    fn default() -> Self {
        Self {
            range: None,
            part_size: PART_BYTES,
            parallel: PARALLEL,
            digest: None,
            cached: true,
        }
    }
}

/// A download in progress into one buffer: see [`crate::Bucket::download`].
///
/// It progresses by itself, with or without readers. Concurrent downloads of one whole version are one. When the last
/// one is dropped, it is cancelled, and all memory is released except bytes that readers still hold.
#[derive(Debug)]
pub struct Download {
    running: Arc<RunningDownload>,
    /// The version that was the current one when this caller came. Its bytes are equal to those downloaded.
    version: Arc<Version>,
    /// Shared with other callers of the same download.
    _flight: Option<Arc<DownloadFlight>>,
    /// Another caller began it.
    is_joined: bool,
    /// State for a second attempt, after bytes with another digest than the object's.
    again: (Arc<BucketShared>, DownloadOptions),
}

impl Download {
    /// The metadata of the version being downloaded.
    #[must_use]
    pub fn meta(&self) -> &ObjectMeta {
        &self.version.meta
    }

    /// Returns content headers and user metadata of that version.
    #[must_use]
    pub fn attributes(&self) -> &Attributes {
        &self.version.attributes
    }

    /// The range being downloaded.
    #[must_use]
    pub fn range(&self) -> &Range<u64> {
        &self.running.range
    }

    /// The number of bytes received without a gap, from the start of the range.
    #[must_use]
    pub fn contiguous(&self) -> u64 {
        self.running.buffer.contiguous()
    }

    /// A reader of the range from its start, as it arrives. It fails when the download does, even with bytes
    /// left to read. If the object has a digest, the reader ends only after all bytes were compared with it.
    #[must_use]
    pub fn reader(&self) -> AsyncTailReader {
        self.running.buffer.reader(0).into()
    }

    /// Waits for all bytes. Dropping the future drops the download.
    ///
    /// # Errors
    /// The error of the download; no bytes are returned then. [`EngineError::VersionChanged`] if the object changed
    /// during it, [`bywash_store::OriginError::BadResponse`] if its length differs from what the origin reported (within
    /// [`bywash_store::OriginError::OriginUnavailable`] if retries continued until the deadline), [`EngineError::DigestMismatch`] if the
    /// bytes do not have the object's digest in a second download either.
    pub async fn finish(self) -> Result<Segments> {
        match self.ended().await {
            Err(error) if is_digest_mismatch(&error) => {
                let (bucket, options) = &self.again;
                let path = &self.meta().location;
                let second = try_begin(bucket, path, options).await?;
                if !second.version.is_same(&self.version) {
                    let object = path.to_string();
                    return Err(EngineError::VersionChanged { object }.into());
                }
                second.ended().await
            }
            ended => ended,
        }
    }

    /// Waits for the end of this attempt, and returns the bytes.
    async fn ended(&self) -> Result<Segments> {
        let running = &self.running;
        let length = running.range.end - running.range.start;
        // Past the last byte there is nothing to read, so this waits for the end of the buffer. Its error is that below.
        let _ = running.buffer.reader(length).next(1).await;
        let segments = close(&running.buffer, &running.version.meta.location, length)?;
        if self.is_joined {
            // The download itself counts them once.
            self.again.0.counters.bytes(length);
        }
        Ok(segments)
    }
}

impl Bucket {
    /// Downloads an object, or a range of it, into memory by several ranged GETs at once, all of one version. Each
    /// byte is copied once. Returns when version and length are known and memory for all of it is reserved, after
    /// waiting for that in line.
    ///
    /// Takes blocks that are in memory or on the disk tier from there, without a request if it finds all, and
    /// leaves its own there, once all bytes were compared with the object's digest, if it has one. Concurrent downloads
    /// of one whole version are one, in one buffer; each can be dropped without the others. Bytes can be read as
    /// they arrive ([`Download::reader`]); [`Download::finish`] returns all bytes, or an error.
    ///
    /// # Errors
    /// Errors of a read; [`EngineError::ExceedsMemory`] at once if the object can never fit the memory, which
    /// [`Bucket::download_to`] writes to a file; [`EngineError::InvalidSetting`] if the options have a digest and a
    /// range that is not the whole object.
    pub async fn download(&self, path: &Path, options: DownloadOptions) -> Result<Download> {
        // Boxed: its state is large, and callers hold it in theirs.
        Box::pin(begin(self.shared(), path, options)).await
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
        Err(error) if is_version_change(&error) => {
            bucket.share_change(path).await;
            try_begin(bucket, path, &options).await
        }
        started => started,
    }
}

async fn try_begin(
    bucket: &Arc<BucketShared>,
    path: &Path,
    options: &DownloadOptions,
) -> Result<Download> {
    let download = |running: Arc<RunningDownload>,
                    version: Option<Arc<Version>>,
                    flight,
                    is_joined| Download {
        version: version.unwrap_or_else(|| Arc::clone(&running.version)),
        running,
        _flight: flight,
        is_joined,
        again: (Arc::clone(bucket), options.clone()),
    };
    // Parts are not shared.
    if options.range.is_some() || !options.cached {
        return Ok(download(
            run(bucket, path, options).await?,
            None,
            None,
            false,
        ));
    }
    loop {
        let flight = bucket.downloads.join(path, options.digest);
        let mut is_first = false;
        let running = flight.running(async {
            is_first = true;
            run(bucket, path, options).await
        });
        match running.await {
            Ok(running) => {
                if is_first {
                    return Ok(download(running, None, Some(flight), false));
                }
                if let Some(now) = current_of(bucket, &running.version).await? {
                    return Ok(download(running, Some(now), Some(flight), true));
                }
                bucket.downloads.forget(&flight);
                // Versions without a validator are never known to be equal: the next flight would not be joined either.
                if !running.version.cacheable() {
                    let running = run(bucket, path, options).await?;
                    return Ok(download(running, None, None, false));
                }
            }
            // The request was perhaps sent before the object was written.
            Err(error) if !is_first && matches!(*error, Error::NotFound { .. }) => {
                return Ok(download(
                    run(bucket, path, options).await?,
                    None,
                    None,
                    false,
                ));
            }
            Err(error) => return Err(clone_error(&error)),
        }
    }
}

/// Begins a download: finds version and length, reserves the memory and starts the workers.
async fn run(
    bucket: &Arc<BucketShared>,
    path: &Path,
    options: &DownloadOptions,
) -> Result<Arc<RunningDownload>> {
    let part_size = options.part_size.max(1);
    let (version, first) = match cached(bucket, path, options.range.as_ref()) {
        Some(version) => (version, None),
        None => first_response(bucket, path, options.range.as_ref(), part_size).await?,
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
    let whole = range == (0..version.meta.size);
    let verified = digest.is_some() || (whole && is_requested(bucket, &version));
    let stays = options.cached && bucket.caching == Caching::Kept;
    let settings = (part_size, verified, stays);
    let job = DownloadJob::new(bucket, Arc::clone(&version), &buffer, &range, settings);
    let mut workers = JoinSet::new();
    if verified {
        workers.spawn(Arc::clone(&job).verify(digest));
    }
    let parts = usize::try_from(length.div_ceil(part_size)).unwrap_or(usize::MAX);
    for _ in 0..parallel.min(parts) {
        workers.spawn(Arc::clone(&job).work(job.next_part(), first.take()));
    }
    let mut task = JoinSet::new();
    task.spawn(Arc::clone(&job).run(workers));
    Ok(Arc::new(RunningDownload {
        version,
        range,
        buffer,
        failed: job.failed().clone(),
        _task: task,
    }))
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

/// Reserves a buffer for the whole range: a download cannot end with less, and must not wait for more while it holds
/// some.
async fn buffer(bucket: &BucketShared, path: &Path, length: u64) -> Result<WriteAtBuffer> {
    let engine = &bucket.engine;
    let options = WriteAtOptions {
        size_hint: length,
        limit: length,
        // Frames of a block's size: at most one is not full.
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
            let (object, reason) = (path.to_string(), error.to_string());
            EngineError::ExceedsMemory {
                object,
                length,
                reason,
            }
            .into()
        }
        _ => engine.slow_down("download", path.as_ref()).into(),
    })
}
