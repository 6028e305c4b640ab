//! A whole object, or a range of it, into one buffer by parallel ranged GETs.
//!
//! The first GET tells version and length and is tied to nothing; all others are tied to that version. Each byte is copied
//! once, from the network's piece to its place. The buffer's claims are the record of what is there: a shard that fails gives
//! its rest back, and the retry claims exactly that.

mod job;

use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use bywash_mem::{FrameError, Segments, Share, WriteAtBuffer, WriteAtError, WriteAtOptions};
use object_store::path::Path;
use object_store::{Error, GetOptions, GetRange, GetResult, ObjectMeta, ObjectStore, Result};
use tokio::task::JoinSet;

use super::ranged::{self, Body};
use super::shared_error::load_error;
use super::{checked_range, is_version_change, open};
use crate::bucket::Shared;
use crate::error::EngineError;
use crate::io::AsyncTailReader;
use crate::retry::{is_out_of_range, with_retries};
use crate::versions::Version;
use job::{Job, close};

/// The default length of one ranged GET: long enough that a request costs little beside it.
const SHARD_BYTES: u64 = 8 << 20;
/// The default number of ranged GETs at once.
const PARALLEL: usize = 4;

/// How [`crate::Bucket::download`] goes about it.
#[derive(Debug, Clone)]
pub struct DownloadOptions {
    /// The bytes wanted. Default: all.
    pub range: Option<GetRange>,
    /// Bytes of one ranged GET, at least 1. Default 8 MiB.
    pub shard_size: u64,
    /// Ranged GETs at once, at least 1; the bucket's own limit stands above it. Default 4.
    pub parallel: usize,
}

impl Default for DownloadOptions {
    fn default() -> Self {
        Self {
            range: None,
            shard_size: SHARD_BYTES,
            parallel: PARALLEL,
        }
    }
}

/// Bytes on their way into one buffer: see [`crate::Bucket::download`].
///
/// It goes on by itself, whether anyone reads or waits. Dropping it ends it and gives all memory back, but for what readers
/// still hold.
#[derive(Debug)]
pub struct Download {
    meta: ObjectMeta,
    range: Range<u64>,
    buffer: WriteAtBuffer,
    workers: JoinSet<()>,
}

impl Download {
    /// The object, in the version that is being downloaded.
    #[must_use]
    pub fn meta(&self) -> &ObjectMeta {
        &self.meta
    }

    /// The bytes of the object that were asked for.
    #[must_use]
    pub fn range(&self) -> &Range<u64> {
        &self.range
    }

    /// Bytes that are there without a gap, from the range's start.
    #[must_use]
    pub fn contiguous(&self) -> u64 {
        self.buffer.contiguous()
    }

    /// Reads the range from its start as it arrives. It fails when the download does, even if bytes are left unread.
    #[must_use]
    pub fn reader(&self) -> AsyncTailReader {
        self.buffer.reader(0).into()
    }

    /// Waits for all bytes. Dropping the future ends the download.
    ///
    /// # Errors
    /// Why the download failed: then nothing of it is handed out. An object that changed meanwhile is
    /// [`EngineError::VersionChanged`], one that is not as long as the origin said [`EngineError::BadAnswer`] (within
    /// [`EngineError::OriginUnavailable`] if it was tried again until the deadline).
    pub async fn finish(mut self) -> Result<Segments> {
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

/// Begins a download: when this returns, version and length are known and the memory is there.
pub(crate) async fn begin(
    bucket: &Arc<Shared>,
    path: &Path,
    options: DownloadOptions,
) -> Result<Download> {
    bucket.counters.request();
    bucket.counters.miss();
    match try_begin(bucket, path, &options).await {
        Err(error) if is_version_change(&error) => try_begin(bucket, path, &options).await,
        begun => begun,
    }
}

async fn try_begin(
    bucket: &Arc<Shared>,
    path: &Path,
    options: &DownloadOptions,
) -> Result<Download> {
    let shard_size = options.shard_size.max(1);
    let (version, first) = first_answer(bucket, path, options).await?;
    let file = version.file();
    if let Some(first) = &first {
        file.keep_from(first);
    }
    let range = checked_range(&version, options.range.as_ref())?;
    let length = range.end - range.start;
    let buffer = buffer(bucket, path, length).await?;
    let tied = version.cacheable();
    let (shard_size, parallel) = if tied {
        (shard_size, options.parallel.max(1))
    } else {
        // Nothing ties a second request to the first: one must bring it all.
        (length.max(1), 1)
    };
    let part = range.start..range.end.min(range.start.saturating_add(shard_size));
    let mut first = match first.filter(|first| first.range == part) {
        Some(first) => Some(first.into_stream()),
        None if tied || part.is_empty() => None,
        None => Some(again_untied(bucket, &version, part).await?),
    };
    let meta = version.meta.clone();
    let job = Job::new(bucket, version, &buffer, &range, shard_size);
    let mut workers = JoinSet::new();
    let shards = usize::try_from(length.div_ceil(shard_size)).unwrap_or(usize::MAX);
    for _ in 0..parallel.min(shards) {
        workers.spawn(Arc::clone(&job).work(job.next_part(), first.take()));
    }
    if length == 0 {
        close(&buffer, path, 0)?;
    }
    Ok(Download {
        meta,
        range,
        buffer,
        workers,
    })
}

/// The current version, and the answer that told it if that brought the first shard.
async fn first_answer(
    bucket: &Arc<Shared>,
    path: &Path,
    options: &DownloadOptions,
) -> Result<(Arc<Version>, Option<GetResult>)> {
    let start = match &options.range {
        None => 0,
        Some(GetRange::Bounded(range)) => range.start,
        Some(GetRange::Offset(start)) => *start,
        // Where it begins depends on the length.
        Some(GetRange::Suffix(_)) => return Ok((head(bucket, path).await?, None)),
    };
    let end = start.saturating_add(options.shard_size.max(1));
    let end = match &options.range {
        Some(GetRange::Bounded(range)) => end.min(range.end),
        _ => end,
    };
    let asked = bucket.versions.asking(path);
    let result = get(bucket, path, start..end).await;
    match result {
        Ok(result) => {
            let meta = open::at(path, result.meta.clone());
            let attributes = result.attributes.clone();
            let version = bucket.versions.learn(asked, meta, attributes);
            Ok((version, Some(result)))
        }
        // An empty object, or a range beyond the end: only the length can tell.
        Err(error) if is_out_of_range(&error) => Ok((head(bucket, path).await?, None)),
        Err(error) => {
            if matches!(error, Error::NotFound { .. }) {
                bucket.versions.gone(asked, path);
            }
            Err(error)
        }
    }
}

async fn head(bucket: &Arc<Shared>, path: &Path) -> Result<Arc<Version>> {
    let opened = open::head(bucket, path).await?;
    Ok(Arc::clone(&opened.version))
}

/// A ranged GET that is tied to no version.
async fn get(bucket: &Arc<Shared>, path: &Path, range: Range<u64>) -> Result<GetResult> {
    let options = GetOptions {
        range: Some(GetRange::Bounded(range)),
        ..GetOptions::default()
    };
    with_retries(bucket.engine.retry, "download", path, || {
        bucket.counters.origin_data_request();
        bucket.origin.get_opts(path, options.clone())
    })
    .await
}

/// One more GET for an object that nothing ties to its first answer, but for its length.
async fn again_untied(bucket: &Arc<Shared>, version: &Version, part: Range<u64>) -> Result<Body> {
    let path = &version.meta.location;
    let result = get(bucket, path, part.clone()).await?;
    if result.meta.size != version.meta.size {
        return Err(ranged::changed(version));
    }
    if result.range != part {
        let detail = format!("asked for {part:?}, got {:?}", result.range);
        return Err(ranged::bad_answer(version, detail));
    }
    Ok(result.into_stream())
}

/// A buffer with memory for all of it: a download cannot end with less, and one that holds some must not wait for more.
async fn buffer(bucket: &Shared, path: &Path, length: u64) -> Result<WriteAtBuffer> {
    let engine = &bucket.engine;
    let options = WriteAtOptions {
        size_hint: length,
        limit: length,
        // As blocks are: at most one of them is not full.
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
            // Who must wait needs it more than who reads ahead.
            engine.ahead.give_up();
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
        _ => engine.slow_down("download", path),
    })
}
