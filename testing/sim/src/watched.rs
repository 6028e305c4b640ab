//! A store whose requests pass by someone: who may hold them, refuse them, lose their answers, or end the process.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// A request that passes by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passing {
    /// Counted from 0.
    pub number: u64,
    /// `put`, `get` or `delete`.
    pub method: &'static str,
    /// The object; of a delete the first one.
    pub path: Path,
}

/// Sees each request twice. An error becomes the request's answer.
#[async_trait]
pub trait Watch: fmt::Debug + Send + Sync + 'static {
    /// Nothing is done yet.
    async fn before(&self, _request: &Passing) -> Result<()> {
        Ok(())
    }

    /// It is done, well or not.
    async fn after(&self, _request: &Passing) -> Result<()> {
        Ok(())
    }
}

/// Does what another store does, under watch. Listings, copies and multipart uploads pass unseen.
#[derive(Debug, Clone)]
pub struct WatchedStore {
    objects: Arc<dyn ObjectStore>,
    watch: Arc<dyn Watch>,
    requests: Arc<AtomicU64>,
}

impl WatchedStore {
    /// What `objects` does, watched from here on.
    pub fn new(objects: Arc<dyn ObjectStore>, watch: Arc<dyn Watch>) -> Self {
        Self {
            objects,
            watch,
            requests: Arc::default(),
        }
    }

    async fn pass<T>(
        &self,
        method: &'static str,
        path: &Path,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let request = Passing {
            // Relaxed: each request gets a number of its own, in whatever order.
            number: self.requests.fetch_add(1, Ordering::Relaxed),
            method,
            path: path.clone(),
        };
        self.watch.before(&request).await?;
        let done = work.await;
        self.watch.after(&request).await?;
        done
    }
}

impl fmt::Display for WatchedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} under watch", self.objects)
    }
}

#[async_trait]
impl ObjectStore for WatchedStore {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let work = self.objects.put_opts(path, payload, options);
        self.pass("put", path, work).await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.objects.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let work = self.objects.get_opts(path, options);
        self.pass("get", path, work).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let this = self.clone();
        let delete = async move {
            let paths: Vec<_> = paths.collect().await;
            let first = paths.iter().flatten().next().cloned().unwrap_or_default();
            let deleted = this
                .objects
                .delete_stream(futures::stream::iter(paths).boxed());
            let work = async { Ok(deleted.collect::<Vec<_>>().await) };
            match this.pass("delete", &first, work).await {
                Ok(deleted) => deleted,
                Err(refused) => vec![Err(refused)],
            }
        };
        futures::stream::once(delete)
            .flat_map(futures::stream::iter)
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.objects.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.objects.copy_opts(from, to, options).await
    }
}
