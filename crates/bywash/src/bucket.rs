//! A bucket: a cached `ObjectStore` over one origin.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use crossbeam_utils::CachePadded;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyMode, CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::consistency::Consistency;
use crate::engine::Shared as EngineShared;
use crate::limits::{
    MAX_DELETE_REQUESTS_IN_FLIGHT, MAX_DELETES_PER_REQUEST, MAX_PARTS_IN_FLIGHT, MAX_RANGED_GETS,
};
use crate::list;
use crate::origin::metered::Metered;
use crate::origin::{Capability, Origin, OriginHealth};
use crate::read::{
    self, Download, DownloadOptions, FlightResult, LatencyWindow, SequentialDetector, SingleFlight,
};
use crate::retry::{once, with_retries};
use crate::stats::Counters;
use crate::upload::{Ordered, UploadOptions};
use crate::versions::Versions;

/// Whether a read was served from memory, by the first 64 of its blocks: it begins before it has looked up more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheOutcome {
    /// All blocks were in memory.
    Hit,
    /// No block was in memory.
    Miss,
    /// Some blocks were in memory.
    Partial,
}

impl CacheOutcome {
    /// Returns its name in headers, logs and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Miss => "miss",
            Self::Partial => "partial",
        }
    }
}

impl fmt::Display for CacheOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Cache outcome and version of a read; an extension of its [`GetResult`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadInfo {
    /// Whether the blocks were in memory when the read began.
    pub outcome: CacheOutcome,
    /// The version read: the origin's ETag, or a substitute for it.
    pub version: String,
}

/// Options of one bucket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BucketOptions {
    /// How long the known version of an object is trusted.
    pub consistency: Consistency,
    /// Size of a cached block in bytes, a power of two from 4 KiB to 4 MiB, and at most an eighth of the memory;
    /// `None`: the engine's. A block is the unit of caching, of eviction and of requests to the origin. Small blocks
    /// suit small random reads, large ones long scans.
    pub block_size: Option<usize>,
}

impl From<Consistency> for BucketOptions {
    fn from(consistency: Consistency) -> Self {
        Self {
            consistency,
            ..Self::default()
        }
    }
}

/// One bucket of an [`crate::Engine`]; cheap to clone.
#[derive(Debug, Clone)]
pub struct Bucket {
    shared: Arc<Shared>,
}

/// State shared by all handles of a bucket.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) name: String,
    /// The origin behind [`Metered`].
    pub(crate) origin: Arc<dyn Origin>,
    pub(crate) health: Arc<OriginHealth>,
    pub(crate) consistency: Consistency,
    /// Bytes of a cached block.
    pub(crate) block_size: u64,
    pub(crate) counters: CachePadded<Counters>,
    pub(crate) versions: Versions,
    /// Requests in flight for the version of an object.
    pub(crate) flights: Arc<SingleFlight<Arc<FlightResult>>>,
    pub(crate) sequential: SequentialDetector,
    pub(crate) latencies: LatencyWindow,
    /// Permits for ranged GETs in flight. One semaphore per bucket: an origin that hangs must not block other
    /// buckets.
    pub(crate) fetch_permits: Semaphore,
    pub(crate) engine: Arc<EngineShared>,
}

impl Bucket {
    pub(crate) fn new(
        name: &str,
        origin: Arc<dyn Origin>,
        consistency: Consistency,
        block_size: u64,
        engine: Arc<EngineShared>,
    ) -> Self {
        let pool = Arc::clone(&engine.pool);
        let health = Arc::new(OriginHealth::default());
        let metered = Metered::new(origin, Arc::clone(&health), Arc::clone(&engine.traffic));
        let shared = Shared {
            name: name.to_owned(),
            origin: Arc::new(metered),
            health,
            consistency,
            block_size,
            counters: CachePadded::default(),
            versions: Versions::new(
                pool,
                Arc::clone(&engine.objects),
                engine.next_store(),
                block_size,
                consistency.max_age(),
            ),
            flights: Arc::default(),
            sequential: SequentialDetector::default(),
            latencies: LatencyWindow::default(),
            fetch_permits: Semaphore::new(MAX_RANGED_GETS),
            engine,
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Returns the kind of its store, see [`Origin::kind`].
    #[must_use]
    pub fn origin_kind(&self) -> &'static str {
        self.shared.origin.kind()
    }

    /// Returns the bucket's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Returns how long this bucket trusts a known version.
    #[must_use]
    pub fn consistency(&self) -> Consistency {
        self.shared.consistency
    }

    /// Downloads an object, or a range of it, into memory by several ranged GETs at once, all of one version. Each
    /// byte is copied once. Returns when version and length are known and memory for all of it is reserved, after
    /// waiting for that in line.
    ///
    /// Bypasses the cache: meant for objects that are used once and whole. Bytes can be read as they arrive
    /// ([`Download::reader`]); [`Download::finish`] returns all of them, or an error.
    ///
    /// # Errors
    /// Those of a read; [`crate::EngineError::InvalidSetting`] if the object can never fit the memory.
    pub async fn download(&self, path: &Path, options: DownloadOptions) -> Result<Download> {
        read::download(&self.shared, path, options).await
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "bywash bucket {} over {}",
            self.shared.name, self.shared.origin
        )
    }
}

#[async_trait]
impl ObjectStore for Bucket {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.shared.counters.request();
        self.put_once(path, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let options = UploadOptions {
            attributes: options.attributes,
            tags: options.tags,
            parallel: MAX_PARTS_IN_FLIGHT,
            transient: true,
            ..UploadOptions::default()
        };
        Ok(Box::new(Ordered::new(self.upload(path, options).await?)))
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        read::get(&self.shared, path, options).await
    }

    async fn get_ranges(&self, path: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        read::get_ranges(&self.shared, path, ranges).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.shared.counters.request();
        let bucket = self.clone();
        paths
            .ready_chunks(MAX_DELETES_PER_REQUEST)
            .map(move |paths| {
                let bucket = bucket.clone();
                async move { futures::stream::iter(bucket.delete_chunk(paths).await) }
            })
            .buffered(MAX_DELETE_REQUESTS_IN_FLIGHT)
            .flatten()
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        list::list(&self.shared, prefix, None)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        list::list(&self.shared, prefix, Some(offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.shared.counters.request();
        let sent_at = Instant::now();
        let policy = self.shared.engine.retry;
        let path = prefix.cloned().unwrap_or_default();
        let result = with_retries(policy, "list", &path, || {
            self.shared.origin_request(Capability::List);
            self.shared.origin.list_with_delimiter(prefix)
        })
        .await?;
        for folder in &result.common_prefixes {
            list::check_below(folder, &path)?;
        }
        for meta in &result.objects {
            list::check_below(&meta.location, &path)?;
        }
        for meta in &result.objects {
            self.shared.versions.record_listed(sent_at, meta);
        }
        Ok(result)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.shared.counters.request();
        let (shared, from) = (Arc::clone(&self.shared), from.clone());
        self.write(to, move |to| async move {
            let policy = shared.engine.retry.with_server_work();
            let attempt = || {
                shared.origin_request(Capability::Write);
                shared.origin.copy_opts(&from, &to, options.clone())
            };
            match options.mode {
                CopyMode::Overwrite => with_retries(policy, "copy to", &to, attempt).await,
                CopyMode::Create => once(policy.stall, "copy to", &to, attempt()).await,
            }
        })
        .await
    }
}

impl Shared {
    /// Returns the maximum blocks of one ranged GET, at least 1.
    pub(crate) fn max_fetch_blocks(&self) -> u32 {
        (self.engine.fetch_size / self.block_size).max(1) as u32
    }

    /// Counts a request that is about to be sent, unless the origin sends no requests of this kind.
    pub(crate) fn origin_request(&self, needs: Capability) {
        if self.origin.can(needs) {
            self.counters.origin_request();
        }
    }

    /// Drops what is known of `path` after a write, successful or not; later reads do not share requests in flight.
    pub(crate) fn invalidate(&self, path: &Path) {
        self.versions.invalidate(path);
        self.flights.forget(path);
    }
}
