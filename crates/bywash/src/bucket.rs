//! A bucket: the ecosystem's `ObjectStore` over one origin, cached.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use futures::stream::BoxStream;
use futures::StreamExt;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, Result,
};

use crate::consistency::Consistency;
use crate::engine::Shared as EngineShared;
use crate::origin::Origin;
use crate::stats::Counters;

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
    pub(crate) engine: Arc<EngineShared>,
}

impl Bucket {
    pub(crate) fn new(
        name: &str,
        origin: Arc<dyn Origin>,
        consistency: Consistency,
        engine: Arc<EngineShared>,
    ) -> Self {
        let shared = Shared { name: name.to_owned(), origin, consistency, counters: Counters::default(), engine };
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
        self.shared.origin.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        self.shared.counters.request();
        self.shared.counters.origin_data_request();
        let mut result = self.shared.origin.get_opts(path, options).await?;
        let version = result.meta.e_tag.clone().unwrap_or_default();
        result.extensions.insert(ReadInfo { outcome: CacheOutcome::Miss, version });
        Ok(result)
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.shared.counters.request();
        self.shared.origin.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.shared.counters.request();
        self.shared.counters.origin_request();
        self.shared.origin.list(prefix).boxed()
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        self.shared.counters.request();
        self.shared.counters.origin_request();
        self.shared.origin.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.shared.counters.request();
        self.shared.counters.origin_request();
        self.shared.origin.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.shared.counters.request();
        self.shared.counters.origin_request();
        self.shared.origin.copy_opts(from, to, options).await
    }
}
