//! An origin that can only be written to: [`crate::Upload`] over any [`UploadSession`].

use std::fmt;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use super::interface::{Capabilities, Origin};
use super::session::{Finished, SessionOptions, SessionToken, UploadSession};

/// The write operations of an origin without others.
#[async_trait]
pub trait Writable: fmt::Debug + fmt::Display + Send + Sync + 'static {
    /// See [`Origin::capabilities`]. Where [`Capabilities::needs_session`] is not set, [`Self::put`] stores an object of at most one chunk.
    fn capabilities(&self) -> Capabilities;

    /// Opens a session; see [`Origin::open_session`].
    async fn open(&self, path: &Path, options: &SessionOptions) -> Result<Box<dyn UploadSession>>;

    /// Takes over a session; see [`Origin::resume_session`].
    async fn resume(
        &self,
        path: &Path,
        options: &SessionOptions,
        token: &SessionToken,
    ) -> Result<Box<dyn UploadSession>>;

    /// See [`ObjectStore::put_opts`].
    async fn put(&self, path: &Path, _: PutPayload, _: PutOptions) -> Result<PutResult> {
        Err(not_supported("written by one request", path))
    }

    /// See [`Origin::stat`]; `None` also if objects cannot be looked for.
    async fn stat(&self, _path: &Path) -> Result<Option<Finished>> {
        Ok(None)
    }
}

/// An origin that refuses every read.
#[derive(Debug)]
pub struct WriteOnly<W>(W);

impl<W: Writable> WriteOnly<W> {
    /// Makes an origin of `writable`.
    pub fn new(writable: W) -> Self {
        Self(writable)
    }
}

fn not_supported(what: &str, path: &Path) -> Error {
    let text = format!("{path}: it can only be uploaded here, and not be {what}");
    Error::NotSupported {
        source: text.into(),
    }
}

impl<W: Writable> fmt::Display for WriteOnly<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[async_trait]
impl<W: Writable> ObjectStore for WriteOnly<W> {
    async fn get_opts(&self, path: &Path, _: GetOptions) -> Result<GetResult> {
        Err(not_supported("read", path))
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let error = not_supported("listed", prefix.unwrap_or(&Path::ROOT));
        futures::stream::iter([Err(error)]).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        Err(not_supported("listed", prefix.unwrap_or(&Path::ROOT)))
    }

    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.0.put(path, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Err(not_supported("uploaded in numbered parts", path))
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        paths
            .map(|path| path.and_then(|path| Err(not_supported("deleted", &path))))
            .boxed()
    }

    async fn copy_opts(&self, _: &Path, to: &Path, _: CopyOptions) -> Result<()> {
        Err(not_supported("copied", to))
    }
}

#[async_trait]
impl<W: Writable> Origin for WriteOnly<W> {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            lists: false,
            ..self.0.capabilities()
        }
    }

    async fn stat(&self, path: &Path) -> Result<Option<Finished>> {
        self.0.stat(path).await
    }

    async fn open_session(
        &self,
        path: &Path,
        options: &SessionOptions,
    ) -> Result<Option<Box<dyn UploadSession>>> {
        self.0.open(path, options).await.map(Some)
    }

    async fn resume_session(
        &self,
        path: &Path,
        options: &SessionOptions,
        token: &SessionToken,
    ) -> Result<Option<Box<dyn UploadSession>>> {
        self.0.resume(path, options, token).await.map(Some)
    }
}
