//! A store whose process dies at a request.

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

/// At which request, counted from 0, and whether when it was done or before.
#[derive(Debug, Clone, Copy)]
pub struct Death {
    /// Its number.
    pub request: u64,
    /// Whether it was done.
    pub after: bool,
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.request, self.after)
    }
}

impl Death {
    /// Reads what `to_string` wrote; `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (request, after) = text.split_once(' ')?;
        Some(Self {
            request: request.parse().ok()?,
            after: after.parse().ok()?,
        })
    }
}

/// Does what `objects` does, until its process dies.
#[derive(Debug)]
pub struct DyingStore {
    objects: Arc<dyn ObjectStore>,
    death: Death,
    requests: Arc<AtomicU64>,
}

impl fmt::Display for DyingStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a store whose process dies")
    }
}

/// As `kill -9` from outside: nothing is run, nothing is flushed.
fn die() {
    let this = rustix::process::getpid();
    rustix::process::kill_process(this, rustix::process::Signal::KILL)
        .expect("a process may kill itself");
}

impl DyingStore {
    /// Counts requests from here on; lists and multipart uploads are not counted.
    pub fn new(objects: Arc<dyn ObjectStore>, death: Death) -> Self {
        Self {
            objects,
            death,
            requests: Arc::default(),
        }
    }

    async fn request<T>(&self, work: impl Future<Output = T>) -> T {
        // Relaxed: each request gets a number of its own, in whatever order.
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        let here = number == self.death.request;
        if here && !self.death.after {
            die();
        }
        let done = work.await;
        if here {
            die();
        }
        done
    }
}

#[async_trait]
impl ObjectStore for DyingStore {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.request(self.objects.put_opts(path, payload, options))
            .await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.objects.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        self.request(self.objects.get_opts(path, options)).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let this = Self {
            objects: Arc::clone(&self.objects),
            death: self.death,
            requests: Arc::clone(&self.requests),
        };
        let delete = async move {
            this.request(this.objects.delete_stream(paths).collect::<Vec<_>>())
                .await
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
