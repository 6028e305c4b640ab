//! An object store with injected faults.

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use parking_lot::Mutex;

/// Effect of a fault on a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The request has no effect.
    Fail,
    /// The request succeeds, and the response is lost.
    LoseResponse,
    /// The request takes effect later, by [`FaultyStore::complete_delayed`], and the response is lost.
    Delay,
}

/// Faults by method and a part of the path, each used once, in order.
#[derive(Debug, Default)]
struct FaultQueue {
    waiting: Vec<(&'static str, &'static str, Fault)>,
    delayed: Vec<(Path, PutPayload, PutOptions)>,
    gets: Vec<(Path, Option<Range<u64>>)>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct FaultyStore {
    pub(crate) objects: Arc<InMemory>,
    faulty_store: Arc<Mutex<FaultQueue>>,
}

impl FaultyStore {
    /// Injects a fault into the next request of this method to a path that contains `part`.
    pub(crate) fn fault(&self, method: &'static str, part: &'static str, fault: Fault) {
        self.faulty_store.lock().waiting.push((method, part, fault));
    }

    /// Removes all unused faults.
    pub(crate) fn clear_faults(&self) {
        self.faulty_store.lock().waiting.clear();
    }

    /// Returns the GETs since the last call.
    pub(crate) fn gets(&self) -> Vec<(Path, Option<Range<u64>>)> {
        std::mem::take(&mut self.faulty_store.lock().gets)
    }

    /// Applies delayed puts.
    pub(crate) async fn complete_delayed(&self) -> Vec<Result<PutResult>> {
        let delayed = std::mem::take(&mut self.faulty_store.lock().delayed);
        let mut results = Vec::new();
        for (path, payload, options) in delayed {
            results.push(self.objects.put_opts(&path, payload, options).await);
        }
        results
    }

    fn met(&self, method: &str, path: &Path) -> Option<Fault> {
        let mut faulty_store = self.faulty_store.lock();
        let met =
            |fault: &(&str, &str, Fault)| fault.0 == method && path.as_ref().contains(fault.1);
        let at = faulty_store.waiting.iter().position(met)?;
        Some(faulty_store.waiting.remove(at).2)
    }
}

fn lost() -> Error {
    Error::Generic {
        store: "faulty",
        source: "the connection broke".into(),
    }
}

impl std::fmt::Display for FaultyStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a store with injected faults")
    }
}

#[async_trait]
impl ObjectStore for FaultyStore {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        match self.met("put", path) {
            None => self.objects.put_opts(path, payload, options).await,
            Some(Fault::Fail) => Err(lost()),
            Some(Fault::LoseResponse) => {
                self.objects.put_opts(path, payload, options).await?;
                Err(lost())
            }
            Some(Fault::Delay) => {
                self.faulty_store
                    .lock()
                    .delayed
                    .push((path.clone(), payload, options));
                Err(lost())
            }
        }
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.objects.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let range = match &options.range {
            Some(object_store::GetRange::Bounded(range)) => Some(range.clone()),
            _ => None,
        };
        self.faulty_store.lock().gets.push((path.clone(), range));
        match self.met("get", path) {
            Some(_) => Err(lost()),
            None => self.objects.get_opts(path, options).await,
        }
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.objects.delete_stream(paths)
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
