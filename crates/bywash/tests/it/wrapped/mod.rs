//! Buckets over stores of object_store that the program has configured itself ([`Engine::wrap`]).

mod conformance;
mod odd_stores;
mod reads;
mod writes;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use bywash::{Bucket, Engine, RetryPolicy, WrapOptions};
use futures::future::{self, BoxFuture};
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
    UploadPart,
};
use tokio::sync::Notify;

const MEMORY: u64 = 32 << 20;
const BLOCK: usize = 64 << 10;
/// Some blocks, and a tail.
const LENGTH: usize = 5 * BLOCK + 17;

fn engine() -> Engine {
    let retry = RetryPolicy {
        initial_backoff: Duration::from_millis(1),
        max_backoff: Duration::from_millis(10),
        deadline: Duration::from_millis(150),
        stall: Duration::from_secs(5),
    };
    let builder = Engine::builder().memory(MEMORY).retry(retry);
    builder.block_size(BLOCK).build().unwrap()
}

fn wrap<S: ObjectStore>(store: &Arc<S>, options: impl Into<WrapOptions>) -> (Engine, Bucket) {
    let engine = engine();
    let store = Arc::<S>::clone(store);
    let bucket = engine.wrap("wrapped", store, options).unwrap();
    (engine, bucket)
}

/// A store that counts reads, and falsifies its responses.
#[derive(Debug)]
struct Odd {
    store: Arc<dyn ObjectStore>,
    /// Reads sent, HEAD among them.
    reads: AtomicUsize,
    /// Changes the metadata of objects, in listings too.
    meta: fn(&mut ObjectMeta),
    /// Changes a request and its number, from 0, before it is sent.
    request: fn(usize, GetOptions) -> GetOptions,
    /// Changes a response.
    response: fn(GetResult) -> GetResult,
    is_backwards: bool,
    /// Parts of uploads that fail before others succeed.
    failing_parts: AtomicUsize,
    /// Parts and bodies never end.
    hanging: Option<Arc<Hanging>>,
}

impl Odd {
    fn new(store: impl ObjectStore) -> Self {
        Self {
            store: Arc::new(store),
            reads: AtomicUsize::new(0),
            meta: |_| {},
            request: |_, options| options,
            response: |result| result,
            is_backwards: false,
            failing_parts: AtomicUsize::new(0),
            hanging: None,
        }
    }

    fn reads(&self) -> usize {
        self.reads.load(Relaxed)
    }
}

fn dead_line() -> Error {
    Error::Generic {
        store: "test",
        source: "the line went dead".into(),
    }
}

/// Parts and bodies that never end.
#[derive(Debug, Default)]
struct Hanging {
    /// Notified when one is awaited.
    begun: Notify,
    /// Set when one is dropped.
    dropped: AtomicBool,
}

struct SetOnDrop(Arc<Hanging>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.dropped.store(true, Relaxed);
    }
}

/// Never ends, and tells `hanging` when it is awaited and when it is dropped.
fn hang<T: Send + 'static>(hanging: &Arc<Hanging>) -> BoxFuture<'static, T> {
    let guard = SetOnDrop(Arc::clone(hanging));
    async move {
        guard.0.begun.notify_one();
        future::pending().await
    }
    .boxed()
}

/// The upload of an [`Odd`] store.
#[derive(Debug)]
struct OddUpload {
    upload: Box<dyn MultipartUpload>,
    /// Whether the next part fails.
    is_failing: bool,
    hanging: Option<Arc<Hanging>>,
}

#[async_trait]
impl MultipartUpload for OddUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        if std::mem::take(&mut self.is_failing) {
            return future::ready(Err(dead_line())).boxed();
        }
        match &self.hanging {
            Some(hanging) => hang(hanging),
            None => self.upload.put_part(data),
        }
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.upload.complete().await
    }

    async fn abort(&mut self) -> Result<()> {
        self.upload.abort().await
    }
}

impl fmt::Display for Odd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "odd {}", self.store)
    }
}

#[async_trait]
impl ObjectStore for Odd {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.store.put_opts(path, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let left = |left: usize| left.checked_sub(1);
        let is_failing = self.failing_parts.fetch_update(Relaxed, Relaxed, left);
        Ok(Box::new(OddUpload {
            upload: self.store.put_multipart_opts(path, options).await?,
            is_failing: is_failing.is_ok(),
            hanging: self.hanging.clone(),
        }))
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let options = (self.request)(self.reads.fetch_add(1, Relaxed), options);
        let mut found = self.store.get_opts(path, options).await?;
        (self.meta)(&mut found.meta);
        if let Some(hanging) = &self.hanging {
            found.payload = GetResultPayload::Stream(hang(hanging).into_stream().boxed());
        }
        Ok((self.response)(found))
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.store.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (edit, is_backwards) = (self.meta, self.is_backwards);
        let listed = self.store.list(prefix).map_ok(move |mut meta| {
            edit(&mut meta);
            meta
        });
        let all = listed.collect::<Vec<_>>().map(move |mut all| {
            if is_backwards {
                all.reverse();
            }
            futures::stream::iter(all)
        });
        all.flatten_stream().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let mut listed = self.store.list_with_delimiter(prefix).await?;
        listed.objects.iter_mut().for_each(self.meta);
        if self.is_backwards {
            listed.objects.reverse();
            listed.common_prefixes.reverse();
        }
        Ok(listed)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.store.copy_opts(from, to, options).await
    }
}
