//! A store with a hook around each request. The hook can delay a request, fail it, lose its response or end the process.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetRange, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// Request as its [`RequestHook`] sees it.
#[derive(Debug, Clone)]
pub struct ObservedRequest {
    /// Sequence number, from 0.
    pub number: u64,
    /// `put`, `get` or `delete`.
    pub method: &'static str,
    /// Object of the request; the first one of a bulk delete.
    pub path: Path,
    /// Requested range of a `get`.
    pub range: Option<GetRange>,
    /// Payload and options of a `put`, with which a hook can execute it later.
    pub put: Option<(PutPayload, PutOptions)>,
}

/// Hook around each request of a [`HookedStore`]. Errors of the hook are returned to the client.
#[async_trait]
pub trait RequestHook: fmt::Debug + Send + Sync + 'static {
    /// Runs before the request. An error keeps it from reaching the store.
    async fn before(&self, _request: &ObservedRequest) -> Result<()> {
        Ok(())
    }

    /// Runs after the request. An error replaces its result.
    async fn after(&self, _request: &ObservedRequest, _succeeded: bool) -> Result<()> {
        Ok(())
    }
}

/// Wraps a store with a [`RequestHook`]. Listings, copies and multipart uploads bypass the hook.
#[derive(Debug, Clone)]
pub struct HookedStore {
    objects: Arc<dyn ObjectStore>,
    hook: Arc<dyn RequestHook>,
    requests: Arc<AtomicU64>,
}

impl HookedStore {
    /// Wraps `objects`.
    pub fn new(objects: Arc<dyn ObjectStore>, hook: Arc<dyn RequestHook>) -> Self {
        Self {
            objects,
            hook,
            requests: Arc::default(),
        }
    }

    fn request(&self, method: &'static str, path: &Path) -> ObservedRequest {
        ObservedRequest {
            // Relaxed: the numbers only have to be unique.
            number: self.requests.fetch_add(1, Ordering::Relaxed),
            method,
            path: path.clone(),
            range: None,
            put: None,
        }
    }

    async fn run<T>(
        &self,
        request: ObservedRequest,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.hook.before(&request).await?;
        let result = work.await;
        self.hook.after(&request, result.is_ok()).await?;
        result
    }
}

impl fmt::Display for HookedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with a hook", self.objects)
    }
}

#[async_trait]
impl ObjectStore for HookedStore {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let mut request = self.request("put", path);
        request.put = Some((payload.clone(), options.clone()));
        let work = self.objects.put_opts(path, payload, options);
        self.run(request, work).await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.objects.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let mut request = self.request("get", path);
        request.range = options.range.clone();
        let work = self.objects.get_opts(path, options);
        self.run(request, work).await
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
            match this.run(this.request("delete", &first), work).await {
                Ok(deleted) => deleted,
                Err(error) => vec![Err(error)],
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
