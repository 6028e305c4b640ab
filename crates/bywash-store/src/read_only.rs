//! A read-only origin: every write is refused before a request is sent.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use super::interface::{
    Capabilities, CompleteOptions, DeleteCondition, ListedParts, ObjectRename, Origin, PartBody,
    UploadedPart, lacks,
};
use super::object_tags::ObjectTags;
use super::omissions::Omissions;
use super::page;
use super::page::{Level, ListPage};
use crate::error::OriginError;
use crate::session::{SessionOptions, SessionToken, UploadSession};

/// The read operations of an origin.
#[async_trait]
pub trait Readable: fmt::Debug + fmt::Display + Send + Sync + 'static {
    /// See [`Origin::capabilities`]; capabilities of writes are ignored.
    fn capabilities(&self) -> Capabilities;

    /// See [`Origin::durable_address`].
    fn durable_address(&self) -> Option<String> {
        None
    }

    /// See [`Origin::cache_identity`].
    fn cache_identity(&self) -> Option<String> {
        self.durable_address()
    }

    /// The reason why it is read-only, and the remedy; the end of the message of each refused write.
    fn reason(&self) -> &'static str;

    /// See [`Origin::object_tags`].
    async fn object_tags(&self, _path: &Path) -> Result<ObjectTags> {
        Err(lacks(self.capabilities().kind, "tags of objects"))
    }

    /// See [`ObjectStore::get_opts`].
    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult>;

    /// See [`ObjectStore::list`], and with an offset [`ObjectStore::list_with_offset`].
    fn list(
        &self,
        prefix: Option<&Path>,
        offset: Option<&Path>,
    ) -> BoxStream<'static, Result<ObjectMeta>>;

    /// See [`Origin::list_page`].
    async fn list_page(&self, prefix: &str, after: Option<&str>, max: usize) -> Result<ListPage> {
        let after = after.and_then(page::offset_of);
        let list = |folder: Option<&Path>, omissions: &Omissions| {
            self.list_noting(folder, after.as_ref(), omissions)
        };
        page::of_stream(list, prefix, max).await
    }

    /// See [`Origin::list_noting`].
    fn list_noting(
        &self,
        prefix: Option<&Path>,
        after: Option<&Path>,
        omissions: &Omissions,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let _ = omissions;
        self.list(prefix, after)
    }

    /// See [`Origin::list_level`].
    async fn list_level(&self, prefix: &str, after: &str, max: usize) -> Result<Level> {
        let _ = max;
        let folder = page::folder_of(prefix)?;
        let entries = self.list_with_delimiter(folder.as_ref()).await?;
        Ok(Level::of_folder(entries, prefix, after))
    }

    /// See [`ObjectStore::list_with_delimiter`].
    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult>;
}

/// Any origin that its bucket's settings make read-only.
#[async_trait]
impl Readable for Arc<dyn Origin> {
    fn capabilities(&self) -> Capabilities {
        (**self).capabilities()
    }

    fn durable_address(&self) -> Option<String> {
        (**self).durable_address()
    }

    fn cache_identity(&self) -> Option<String> {
        (**self).cache_identity()
    }

    fn reason(&self) -> &'static str {
        "its settings say read-only; write to another bucket, or change them"
    }

    async fn object_tags(&self, path: &Path) -> Result<ObjectTags> {
        (**self).object_tags(path).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        (**self).get_opts(path, options).await
    }

    fn list(
        &self,
        prefix: Option<&Path>,
        offset: Option<&Path>,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        match offset {
            None => (**self).list(prefix),
            Some(offset) => (**self).list_with_offset(prefix, offset),
        }
    }

    async fn list_page(&self, prefix: &str, after: Option<&str>, max: usize) -> Result<ListPage> {
        (**self).list_page(prefix, after, max).await
    }

    fn list_noting(
        &self,
        prefix: Option<&Path>,
        after: Option<&Path>,
        omissions: &Omissions,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        (**self).list_noting(prefix, after, omissions)
    }

    async fn list_level(&self, prefix: &str, after: &str, max: usize) -> Result<Level> {
        (**self).list_level(prefix, after, max).await
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        (**self).list_with_delimiter(prefix).await
    }
}

/// An origin that fails every write with [`OriginError::ReadOnly`].
#[derive(Debug)]
pub struct ReadOnly<R> {
    origin: R,
    reason: &'static str,
}

impl<R: Readable> ReadOnly<R> {
    /// Makes `origin` read-only.
    pub fn new(origin: R) -> Self {
        let reason = origin.reason();
        Self::because(reason, origin)
    }

    /// As [`Self::new`], with another [`Readable::reason`].
    pub fn because(reason: &'static str, origin: R) -> Self {
        Self { origin, reason }
    }

    fn refuse<T>(&self, operation: &'static str, path: &Path) -> Result<T> {
        Err(OriginError::ReadOnly {
            operation,
            object: path.to_string(),
            reason: self.reason,
        }
        .into())
    }
}

impl<R: Readable> fmt::Display for ReadOnly<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.origin, f)
    }
}

#[async_trait]
impl<R: Readable> ObjectStore for ReadOnly<R> {
    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        self.origin.get_opts(path, options).await
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.origin.list(prefix, None)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.origin.list(prefix, Some(offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.origin.list_with_delimiter(prefix).await
    }

    async fn put_opts(&self, path: &Path, _: PutPayload, _: PutOptions) -> Result<PutResult> {
        self.refuse("write", path)
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.refuse("write", path)
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let reason = self.reason;
        let refuse = move |path: Path| -> Error {
            OriginError::ReadOnly {
                operation: "delete",
                object: path.to_string(),
                reason,
            }
            .into()
        };
        paths
            .map(move |path| path.and_then(|path| Err(refuse(path))))
            .boxed()
    }

    async fn copy_opts(&self, _: &Path, to: &Path, _: CopyOptions) -> Result<()> {
        self.refuse("copy to", to)
    }
}

#[async_trait]
impl<R: Readable> Origin for ReadOnly<R> {
    fn capabilities(&self) -> Capabilities {
        self.origin.capabilities().read_only()
    }

    fn durable_address(&self) -> Option<String> {
        self.origin.durable_address()
    }

    fn cache_identity(&self) -> Option<String> {
        self.origin.cache_identity()
    }

    async fn list_page(&self, prefix: &str, after: Option<&str>, max: usize) -> Result<ListPage> {
        self.origin.list_page(prefix, after, max).await
    }

    fn list_noting(
        &self,
        prefix: Option<&Path>,
        after: Option<&Path>,
        omissions: &Omissions,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.origin.list_noting(prefix, after, omissions)
    }

    async fn list_level(&self, prefix: &str, after: &str, max: usize) -> Result<Level> {
        self.origin.list_level(prefix, after, max).await
    }

    async fn create_upload(&self, path: &Path, _: PutMultipartOptions) -> Result<String> {
        self.refuse("begin upload of", path)
    }

    async fn put_part(
        &self,
        path: &Path,
        _upload: &str,
        _number: u16,
        _length: u64,
        _body: PartBody,
    ) -> Result<String> {
        self.refuse("upload a part of", path)
    }

    async fn complete_upload(
        &self,
        path: &Path,
        _upload: &str,
        _parts: &[UploadedPart],
        _options: CompleteOptions,
    ) -> Result<PutResult> {
        self.refuse("complete upload of", path)
    }

    async fn uploaded_parts(
        &self,
        path: &Path,
        _upload: &str,
        _after: u16,
        _max: usize,
    ) -> Result<ListedParts> {
        self.refuse("list parts of", path)
    }

    async fn object_tags(&self, path: &Path) -> Result<ObjectTags> {
        self.origin.object_tags(path).await
    }

    async fn set_object_tags(&self, path: &Path, _tags: &ObjectTags) -> Result<()> {
        self.refuse("tag", path)
    }

    async fn delete_if(&self, path: &Path, _condition: &DeleteCondition) -> Result<()> {
        self.refuse("delete", path)
    }

    async fn rename_version(
        &self,
        from: &Path,
        _to: &Path,
        _rename: &ObjectRename,
    ) -> Result<PutResult> {
        self.refuse("rename", from)
    }

    async fn abort_upload(&self, path: &Path, _upload: &str) -> Result<()> {
        self.refuse("abort upload of", path)
    }

    async fn open_session(
        &self,
        path: &Path,
        _options: &SessionOptions,
    ) -> Result<Option<Box<dyn UploadSession>>> {
        self.refuse("begin upload of", path)
    }

    async fn resume_session(
        &self,
        path: &Path,
        _options: &SessionOptions,
        _token: &SessionToken,
    ) -> Result<Option<Box<dyn UploadSession>>> {
        self.refuse("go on with upload of", path)
    }
}
