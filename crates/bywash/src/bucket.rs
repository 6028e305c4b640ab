//! A bucket: the ecosystem's `ObjectStore` over one origin, cached.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, Result, UploadPart,
};

use tokio::time::Instant;

use crate::consistency::Consistency;
use crate::engine::Shared as EngineShared;
use crate::origin::Origin;
use crate::read::{self, Opens};
use crate::retry::with_retries;
use crate::stats::Counters;
use crate::versions::Versions;

/// Whether a read was answered from memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheOutcome {
    /// Every block was in memory.
    Hit,
    /// No block was.
    Miss,
    /// Some were.
    Partial,
}

impl fmt::Display for CacheOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hit => "hit",
            Self::Miss => "miss",
            Self::Partial => "partial",
        })
    }
}

/// How a read was answered; found in the extensions of its [`GetResult`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadInfo {
    /// From memory or not, as known when the read began.
    pub outcome: CacheOutcome,
    /// The version read: the origin's ETag, or what stands for it.
    pub version: String,
}

/// One bucket of an [`crate::Engine`]; cheap to clone.
#[derive(Debug, Clone)]
pub struct Bucket {
    shared: Arc<Shared>,
}

/// What all handles of a bucket share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) name: String,
    pub(crate) origin: Arc<dyn Origin>,
    pub(crate) consistency: Consistency,
    pub(crate) counters: Counters,
    pub(crate) versions: Versions,
    pub(crate) opens: Opens,
    pub(crate) engine: Arc<EngineShared>,
}

impl Bucket {
    pub(crate) fn new(
        name: &str,
        origin: Arc<dyn Origin>,
        consistency: Consistency,
        engine: Arc<EngineShared>,
    ) -> Self {
        let shared = Shared {
            name: name.to_owned(),
            origin,
            consistency,
            counters: Counters::default(),
            versions: Versions::new(Arc::clone(&engine.pool), engine.block_size),
            opens: Opens::default(),
            engine,
        };
        Self { shared: Arc::new(shared) }
    }

    /// The bucket's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// How long this bucket trusts what it knows.
    #[must_use]
    pub fn consistency(&self) -> Consistency {
        self.shared.consistency
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bywash bucket {} over {}", self.shared.name, self.shared.origin)
    }
}

#[async_trait]
impl ObjectStore for Bucket {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.shared.counters.request();
        self.put_once(path, payload, options).await
    }

    async fn put_multipart_opts(&self, path: &Path, options: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.shared.counters.request();
        self.shared.counters.origin_request();
        let inner = self.shared.origin.put_multipart_opts(path, options).await?;
        Ok(Box::new(TrackedUpload { inner, path: path.clone(), bucket: Arc::clone(&self.shared) }))
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        read::get(&self.shared, path, options).await
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.shared.counters.request();
        let asked = Arc::clone(&self.shared);
        let answered = Arc::clone(&self.shared);
        // Also forgotten before the answer: the origin may have done what its answer then loses.
        let paths = paths.inspect_ok(move |path| asked.deleting(path)).boxed();
        let deleted = self.shared.origin.delete_stream(paths);
        deleted.inspect_ok(move |path| answered.versions.written(path)).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.listed(|origin| origin.list(prefix))
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        self.listed(|origin| origin.list_with_offset(prefix, offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.shared.counters.request();
        let asked = Instant::now();
        let policy = self.shared.engine.retry;
        let path = prefix.cloned().unwrap_or_default();
        let result = with_retries(policy, "list", &path, || {
            self.shared.counters.origin_request();
            self.shared.origin.list_with_delimiter(prefix)
        })
        .await?;
        for meta in &result.objects {
            self.shared.versions.listed(asked, meta);
        }
        Ok(result)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.shared.counters.request();
        let (shared, from) = (Arc::clone(&self.shared), from.clone());
        self.write(to, move |to| async move {
            shared.counters.origin_request();
            shared.origin.copy_opts(&from, &to, options).await
        })
        .await
    }
}

impl Bucket {
    fn listed(
        &self,
        list: impl FnOnce(&dyn Origin) -> BoxStream<'static, Result<ObjectMeta>>,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.shared.counters.request();
        self.shared.counters.origin_request();
        let shared = Arc::clone(&self.shared);
        let asked = Instant::now();
        list(self.shared.origin.as_ref()).inspect_ok(move |meta| shared.versions.listed(asked, meta)).boxed()
    }
}

impl Shared {
    fn deleting(&self, path: &Path) {
        self.counters.origin_request();
        self.versions.written(path);
    }
}

/// An upload through the trait's own interface: forwards, counts, and forgets the old version.
#[derive(Debug)]
struct TrackedUpload {
    inner: Box<dyn MultipartUpload>,
    path: Path,
    bucket: Arc<Shared>,
}

#[async_trait]
impl MultipartUpload for TrackedUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        self.bucket.counters.origin_request();
        self.inner.put_part(data)
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.bucket.counters.origin_request();
        let result = self.inner.complete().await;
        self.bucket.versions.written(&self.path);
        result
    }

    async fn abort(&mut self) -> Result<()> {
        self.bucket.counters.origin_request();
        self.inner.abort().await
    }
}
