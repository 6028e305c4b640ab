//! A store that fails on cue, or acts and loses its answer.

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

/// What happens to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cue {
    /// Nothing is done.
    Fail,
    /// It is done, and the answer is lost.
    LoseAnswer,
    /// It is done later, by [`CuedStore::arrive`], and the answer is lost.
    Delay,
}

/// Requests by method and a part of the path, each cue used once, in order.
#[derive(Debug, Default)]
struct Cues {
    waiting: Vec<(&'static str, &'static str, Cue)>,
    delayed: Vec<(Path, PutPayload, PutOptions)>,
    gets: Vec<(Path, Option<Range<u64>>)>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct CuedStore {
    pub(crate) objects: Arc<InMemory>,
    cues: Arc<Mutex<Cues>>,
}

impl CuedStore {
    /// The next request of this method, to a path that contains `part`, gets this cue.
    pub(crate) fn cue(&self, method: &'static str, part: &'static str, cue: Cue) {
        self.cues.lock().waiting.push((method, part, cue));
    }

    /// Forgets the cues nobody met.
    pub(crate) fn calm(&self) {
        self.cues.lock().waiting.clear();
    }

    /// The GETs since the last call.
    pub(crate) fn gets(&self) -> Vec<(Path, Option<Range<u64>>)> {
        std::mem::take(&mut self.cues.lock().gets)
    }

    /// Puts what was delayed.
    pub(crate) async fn arrive(&self) -> Vec<Result<PutResult>> {
        let delayed = std::mem::take(&mut self.cues.lock().delayed);
        let mut results = Vec::new();
        for (path, payload, options) in delayed {
            results.push(self.objects.put_opts(&path, payload, options).await);
        }
        results
    }

    fn met(&self, method: &str, path: &Path) -> Option<Cue> {
        let mut cues = self.cues.lock();
        let met = |cue: &(&str, &str, Cue)| cue.0 == method && path.as_ref().contains(cue.1);
        let at = cues.waiting.iter().position(met)?;
        Some(cues.waiting.remove(at).2)
    }
}

fn lost() -> Error {
    Error::Generic {
        store: "cued",
        source: "the connection broke".into(),
    }
}

impl std::fmt::Display for CuedStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a store that fails on cue")
    }
}

#[async_trait]
impl ObjectStore for CuedStore {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        match self.met("put", path) {
            None => self.objects.put_opts(path, payload, options).await,
            Some(Cue::Fail) => Err(lost()),
            Some(Cue::LoseAnswer) => {
                self.objects.put_opts(path, payload, options).await?;
                Err(lost())
            }
            Some(Cue::Delay) => {
                self.cues
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
        self.cues.lock().gets.push((path.clone(), range));
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
