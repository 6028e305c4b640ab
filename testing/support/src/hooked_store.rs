//! A store with a hook around each request. The hook can delay a request, fail it, lose its response or end the process.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetRange, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};

/// Request as its [`RequestHook`] sees it.
#[derive(Debug, Clone)]
pub struct ObservedRequest {
    /// Sequence number, from 0.
    pub number: u64,
    /// `put`, `get`, `delete`, `list` or `copy`; of a multipart upload `create`, `part`, `complete` or `abort`.
    pub method: &'static str,
    /// Object of the request: the first one of a bulk delete, the target of a copy, the prefix of a listing.
    pub path: Path,
    /// Requested range of a `get`.
    pub range: Option<GetRange>,
    /// Payload and options of a `put`, with which a hook can execute it later.
    pub put: Option<(PutPayload, PutOptions)>,
}

/// Hook around each request of a [`HookedStore`]. Errors of the hook are returned to the client.
#[async_trait]
pub trait RequestHook: fmt::Debug + Send + Sync + 'static {
    /// Runs before the request. An error keeps it from reaching the store, except for a part, which a store may take
    /// when the request is made.
    async fn before(&self, _request: &ObservedRequest) -> Result<()> {
        Ok(())
    }

    /// Runs after the request. An error replaces its result.
    async fn after(&self, _request: &ObservedRequest, _succeeded: bool) -> Result<()> {
        Ok(())
    }
}

/// Wraps a store with a [`RequestHook`]. A bulk delete and a listing are one request each.
#[derive(Debug, Clone)]
pub struct HookedStore {
    objects: Arc<dyn ObjectStore>,
    hook: Arc<dyn RequestHook>,
    requests: Arc<AtomicU64>,
    in_progress: Arc<AtomicU64>,
}

/// Counts one request in progress.
struct InProgress(Arc<AtomicU64>);

impl Drop for InProgress {
    fn drop(&mut self) {
        // Relaxed, here and below: counters that order nothing.
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl HookedStore {
    /// Wraps `objects`.
    pub fn new(objects: Arc<dyn ObjectStore>, hook: Arc<dyn RequestHook>) -> Self {
        Self {
            objects,
            hook,
            requests: Arc::default(),
            in_progress: Arc::default(),
        }
    }

    /// Returns the number of requests since the start.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Returns the number of requests whose result is awaited by a client that has not left.
    pub fn in_progress(&self) -> u64 {
        self.in_progress.load(Ordering::Relaxed)
    }

    fn request(&self, method: &'static str, path: &Path) -> ObservedRequest {
        ObservedRequest {
            number: self.requests.fetch_add(1, Ordering::Relaxed),
            method,
            path: path.clone(),
            range: None,
            put: None,
        }
    }

    fn count_in_progress(&self) -> InProgress {
        self.in_progress.fetch_add(1, Ordering::Relaxed);
        InProgress(Arc::clone(&self.in_progress))
    }

    async fn run<T>(
        &self,
        request: ObservedRequest,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let _in_progress = self.count_in_progress();
        self.hook.before(&request).await?;
        let result = work.await;
        self.hook.after(&request, result.is_ok()).await?;
        result
    }

    /// As [`Self::run`], for a request with many results.
    async fn run_all<T>(
        &self,
        request: ObservedRequest,
        work: impl FnOnce() -> BoxStream<'static, Result<T>>,
    ) -> Result<Vec<Result<T>>> {
        let _in_progress = self.count_in_progress();
        self.hook.before(&request).await?;
        let results: Vec<_> = work().collect().await;
        let succeeded = results.iter().all(Result::is_ok);
        self.hook.after(&request, succeeded).await?;
        Ok(results)
    }

    fn list_after(
        &self,
        prefix: Option<&Path>,
        offset: Option<Path>,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let (this, prefix) = (self.clone(), prefix.cloned());
        flatten(async move {
            let request = this.request("list", &prefix.clone().unwrap_or_default());
            let work = || match &offset {
                None => this.objects.list(prefix.as_ref()),
                Some(offset) => this.objects.list_with_offset(prefix.as_ref(), offset),
            };
            this.run_all(request, work).await
        })
    }
}

/// The results of a request, or its error, as a stream.
fn flatten<T: Send + 'static>(
    results: impl Future<Output = Result<Vec<Result<T>>>> + Send + 'static,
) -> BoxStream<'static, Result<T>> {
    let results = results.map(|results| results.unwrap_or_else(|error| vec![Err(error)]));
    stream::once(results).flat_map(stream::iter).boxed()
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
        let work = self.objects.put_multipart_opts(path, options);
        let upload = self.run(self.request("create", path), work).await?;
        Ok(Box::new(HookedUpload {
            store: self.clone(),
            path: path.clone(),
            upload,
        }))
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
        flatten(async move {
            let paths: Vec<_> = paths.collect().await;
            let first = paths.iter().flatten().next().cloned().unwrap_or_default();
            let work = || this.objects.delete_stream(stream::iter(paths).boxed());
            this.run_all(this.request("delete", &first), work).await
        })
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.list_after(prefix, None)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.list_after(prefix, Some(offset.clone()))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let request = self.request("list", &prefix.cloned().unwrap_or_default());
        let work = self.objects.list_with_delimiter(prefix);
        self.run(request, work).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let work = self.objects.copy_opts(from, to, options);
        self.run(self.request("copy", to), work).await
    }
}

/// A multipart upload to a [`HookedStore`].
#[derive(Debug)]
struct HookedUpload {
    store: HookedStore,
    path: Path,
    upload: Box<dyn MultipartUpload>,
}

#[async_trait]
impl MultipartUpload for HookedUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let request = self.store.request("part", &self.path);
        let (store, work) = (self.store.clone(), self.upload.put_part(data));
        async move { store.run(request, work).await }.boxed()
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let request = self.store.request("complete", &self.path);
        self.store.run(request, self.upload.complete()).await
    }

    async fn abort(&mut self) -> Result<()> {
        let request = self.store.request("abort", &self.path);
        self.store.run(request, self.upload.abort()).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use futures::TryStreamExt;
    use object_store::ObjectStoreExt;
    use object_store::memory::InMemory;

    use super::*;

    /// Logs the requests. Fails those of one method, before or after they reach the store.
    #[derive(Debug, Default)]
    struct Log {
        calls: Mutex<Vec<(&'static str, String, bool)>>,
        fails: Mutex<Option<(&'static str, bool)>>,
    }

    impl Log {
        fn call(&self, request: &ObservedRequest, after: bool) -> Result<()> {
            let call = (request.method, request.path.to_string(), after);
            self.calls.lock().unwrap().push(call);
            match *self.fails.lock().unwrap() == Some((request.method, after)) {
                true => Err(object_store::Error::NotImplemented {
                    operation: request.method.to_owned(),
                    implementer: "the hook".to_owned(),
                }),
                false => Ok(()),
            }
        }
    }

    #[async_trait]
    impl RequestHook for Log {
        async fn before(&self, request: &ObservedRequest) -> Result<()> {
            self.call(request, false)
        }

        async fn after(&self, request: &ObservedRequest, _succeeded: bool) -> Result<()> {
            self.call(request, true)
        }
    }

    /// Sends one request of each method; they do not depend on each other.
    async fn send(store: &dyn ObjectStore, method: &str) -> Result<()> {
        let path = Path::from("a");
        match method {
            "put" => store.put(&path, "1".into()).await.map(drop),
            "get" => store.get(&path).await.map(drop),
            "list" => store.list(None).try_collect::<Vec<_>>().await.map(drop),
            "copy" => store.copy(&path, &Path::from("b")).await,
            "delete" => store.delete(&path).await,
            "create" => store.put_multipart(&path).await.map(drop),
            _ => {
                let mut upload = store.put_multipart(&path).await?;
                match method {
                    "part" => upload.put_part("1".into()).await,
                    "complete" => upload.complete().await.map(drop),
                    _ => upload.abort().await,
                }
            }
        }
    }

    const METHODS: [&str; 9] = [
        "put", "get", "list", "copy", "delete", "create", "part", "complete", "abort",
    ];

    #[tokio::test]
    async fn every_request_passes_the_hook_and_can_fail_before_and_after() {
        for method in METHODS {
            let objects = Arc::new(InMemory::new());
            objects.put(&Path::from("a"), "0".into()).await.unwrap();
            let log = Arc::new(Log::default());
            let store = HookedStore::new(objects, Arc::<Log>::clone(&log));
            send(&store, method).await.unwrap();
            let path = match method {
                "list" => "",
                "copy" => "b",
                _ => "a",
            };
            let calls = std::mem::take(&mut *log.calls.lock().unwrap());
            let path = path.to_owned();
            assert_eq!(
                calls[calls.len() - 2..],
                [(method, path.clone(), false), (method, path, true)]
            );
            send(&store, "put").await.unwrap();
            for after in [false, true] {
                *log.fails.lock().unwrap() = Some((method, after));
                let error = send(&store, method).await.unwrap_err();
                assert!(error.to_string().contains(method), "{error}");
            }
            assert_eq!(store.in_progress(), 0);
        }
    }

    #[tokio::test]
    async fn listings_of_one_level_and_after_an_offset_pass_the_hook() {
        let log = Arc::new(Log::default());
        let store = HookedStore::new(Arc::new(InMemory::new()), Arc::<Log>::clone(&log));
        for name in ["a", "b", "c"] {
            store.put(&Path::from(name), "1".into()).await.unwrap();
        }
        let puts = store.requests();
        let after: Vec<_> = store
            .list_with_offset(None, &Path::from("a"))
            .map_ok(|object| object.location)
            .try_collect()
            .await
            .unwrap();
        assert_eq!(after.len(), 2, "{after:?}");
        let level = store.list_with_delimiter(None).await.unwrap();
        assert_eq!(level.objects.len(), 3);
        assert_eq!(store.requests() - puts, 2);
    }
}
