//! Layers over an origin: the one place that passes each call on, once the policy of the layer allows it.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    Attributes, CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use super::interface::{
    AttributeRewrite, Capabilities, DeleteCondition, ListedParts, ObjectRename, Origin,
    StoreIdentity, place_at,
};
use super::object_tags::ObjectTags;
use super::omissions::Omissions;
use super::page::{Keys, Level, ListPage, Objects};
use crate::digest::ContentDigest;
use crate::session::{
    CompleteRequest, Finished, NewSession, OpenSession, PartReceipt, SessionOptions, SessionPart,
    SessionStatus, SessionToken, UploadSession,
};

/// Kind of a request to an origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OriginRequest {
    /// Object data.
    Read,
    /// Metadata of an object.
    Head,
    /// A listing.
    List,
    /// A whole object, or a copy within the origin.
    Write,
    /// A deletion.
    Delete,
    /// Any request of an upload in parts.
    Upload,
}

impl OriginRequest {
    /// All kinds.
    pub const ALL: [Self; 6] = [
        Self::Read,
        Self::Head,
        Self::List,
        Self::Write,
        Self::Delete,
        Self::Upload,
    ];

    /// Returns the kind's name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Head => "head",
            Self::List => "list",
            Self::Write => "write",
            Self::Delete => "delete",
            Self::Upload => "upload",
        }
    }
}

/// Decides on each call of a layer. With the provided methods, a layer passes each call on unchanged.
pub trait Policy: fmt::Debug + Clone + Send + Sync + 'static {
    /// Whether the store's digests, its open sessions and the places of its objects are passed on. Otherwise the layer
    /// answers as a store that has none.
    const PASSES_ALL: bool = true;

    /// The capabilities of the layer over a store that has `store`.
    fn capabilities(&self, store: Capabilities) -> Capabilities {
        store
    }

    /// Refuses a write before a request is sent. `operation` ends before the object's name: "begin upload of".
    fn allow(&self, _operation: &'static str, _path: &Path) -> Result<()> {
        Ok(())
    }

    /// Awaits a request.
    fn watch<T: Send>(
        &self,
        _request: OriginRequest,
        sent: impl Future<Output = Result<T>> + Send,
    ) -> impl Future<Output = Result<T>> + Send {
        sent
    }

    /// Watches the items of a response. The response begins with the first one.
    fn watch_all<T: Send + 'static>(
        &self,
        _request: OriginRequest,
        items: BoxStream<'static, Result<T>>,
    ) -> BoxStream<'static, Result<T>> {
        items
    }

    /// Changes the attributes of a write before it is sent.
    fn write(&self, _store: &dyn Origin, _attributes: &mut Attributes) {}

    /// Changes a write of a whole object before it is sent.
    fn put(&self, store: &dyn Origin, options: &mut PutOptions) {
        self.write(store, &mut options.attributes);
    }

    /// Changes the response to a read.
    fn read(&self, _store: &dyn Origin, response: GetResult) -> GetResult {
        response
    }

    /// Changes the token of a session.
    fn token(&self, token: SessionToken) -> SessionToken {
        token
    }
}

/// An origin that passes each call on, as the policy `P` says.
#[derive(Debug)]
pub struct Layer<P> {
    origin: Arc<dyn Origin>,
    policy: P,
}

impl<P: Policy> Layer<P> {
    /// Lays `policy` over `origin`.
    pub(super) fn over(origin: Arc<dyn Origin>, policy: P) -> Self {
        Self { origin, policy }
    }

    /// Sends a request that changes no object.
    async fn ask<T: Send>(
        &self,
        request: OriginRequest,
        sent: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        self.policy.watch(request, sent).await
    }

    /// Sends a request that may change something, if the policy allows it.
    async fn change<T: Send>(
        &self,
        request: OriginRequest,
        operation: &'static str,
        path: &Path,
        sent: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        self.policy.allow(operation, path)?;
        self.policy.watch(request, sent).await
    }

    fn write(&self, attributes: &mut Attributes) {
        self.policy.write(&*self.origin, attributes);
    }

    fn session_options(&self, options: &SessionOptions) -> SessionOptions {
        let mut options = options.clone();
        self.write(&mut options.attributes);
        options
    }

    fn session(&self, session: NewSession) -> NewSession {
        Box::new(LayerSession::over(session, self.policy.clone()))
    }
}

impl<P> fmt::Display for Layer<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.origin, f)
    }
}

#[async_trait]
impl<P: Policy> ObjectStore for Layer<P> {
    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let request = if options.head {
            OriginRequest::Head
        } else {
            OriginRequest::Read
        };
        let sent = self.origin.get_opts(path, options);
        let response = self.ask(request, sent).await?;
        Ok(self.policy.read(&*self.origin, response))
    }

    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        mut options: PutOptions,
    ) -> Result<PutResult> {
        self.policy.put(&*self.origin, &mut options);
        let sent = self.origin.put_opts(path, payload, options);
        self.change(OriginRequest::Write, "write", path, sent).await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        mut options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.write(&mut options.attributes);
        let sent = self.origin.put_multipart_opts(path, options);
        self.change(OriginRequest::Upload, "write", path, sent)
            .await
    }

    fn delete_stream(&self, paths: Keys) -> Keys {
        const DELETE: &str = "delete";
        let policy = self.policy.clone();
        if policy.allow(DELETE, &Path::ROOT).is_err() {
            let refused = move |path: Result<Path>| {
                let path = path?;
                policy.allow(DELETE, &path).map(|()| path)
            };
            return paths.map(refused).boxed();
        }
        let deleted = self.origin.delete_stream(paths);
        policy.watch_all(OriginRequest::Delete, deleted)
    }

    fn list(&self, prefix: Option<&Path>) -> Objects {
        let listed = self.origin.list(prefix);
        self.policy.watch_all(OriginRequest::List, listed)
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> Objects {
        let listed = self.origin.list_with_offset(prefix, offset);
        self.policy.watch_all(OriginRequest::List, listed)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let sent = self.origin.list_with_delimiter(prefix);
        self.ask(OriginRequest::List, sent).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let sent = self.origin.copy_opts(from, to, options);
        self.change(OriginRequest::Write, "copy to", to, sent).await
    }
}

#[async_trait]
impl<P: Policy> Origin for Layer<P> {
    fn capabilities(&self) -> Capabilities {
        self.policy.capabilities(self.origin.capabilities())
    }

    fn identity(&self) -> Option<StoreIdentity> {
        self.origin.identity()
    }

    fn place_of(&self, path: &Path) -> Option<String> {
        if P::PASSES_ALL {
            return self.origin.place_of(path);
        }
        place_at(self.identity(), path)
    }

    async fn list_page(&self, prefix: &str, after: Option<&str>, max: usize) -> Result<ListPage> {
        let sent = self.origin.list_page(prefix, after, max);
        self.ask(OriginRequest::List, sent).await
    }

    fn list_noting(
        &self,
        prefix: Option<&Path>,
        after: Option<&Path>,
        omissions: &Omissions,
    ) -> Objects {
        let listed = self.origin.list_noting(prefix, after, omissions);
        self.policy.watch_all(OriginRequest::List, listed)
    }

    async fn list_level(&self, prefix: &str, after: &str, max: usize) -> Result<Level> {
        let sent = self.origin.list_level(prefix, after, max);
        self.ask(OriginRequest::List, sent).await
    }

    async fn object_tags(&self, path: &Path) -> Result<ObjectTags> {
        self.ask(OriginRequest::Head, self.origin.object_tags(path))
            .await
    }

    async fn set_object_tags(&self, path: &Path, tags: &ObjectTags) -> Result<()> {
        let sent = self.origin.set_object_tags(path, tags);
        self.change(OriginRequest::Write, "tag", path, sent).await
    }

    async fn rewrite_in_place(
        &self,
        path: &Path,
        rewrite: &AttributeRewrite,
    ) -> Result<Option<PutResult>> {
        let mut rewrite = rewrite.clone();
        self.write(&mut rewrite.attributes);
        let sent = self.origin.rewrite_in_place(path, &rewrite);
        self.change(OriginRequest::Write, "change attributes of", path, sent)
            .await
    }

    async fn delete_if(&self, path: &Path, condition: &DeleteCondition) -> Result<()> {
        let sent = self.origin.delete_if(path, condition);
        self.change(OriginRequest::Delete, "delete", path, sent)
            .await
    }

    async fn rename_version(
        &self,
        from: &Path,
        to: &Path,
        rename: &ObjectRename,
    ) -> Result<PutResult> {
        let mut rename = rename.clone();
        self.write(&mut rename.attributes);
        let sent = self.origin.rename_version(from, to, &rename);
        self.change(OriginRequest::Write, "rename", from, sent)
            .await
    }

    async fn stat(&self, path: &Path) -> Result<Option<Finished>> {
        self.ask(OriginRequest::Head, self.origin.stat(path)).await
    }

    async fn content_digest(&self, path: &Path) -> Result<Option<(String, ContentDigest)>> {
        if !P::PASSES_ALL {
            return Ok(None);
        }
        let sent = self.origin.content_digest(path);
        self.ask(OriginRequest::Head, sent).await
    }

    async fn open_session(&self, path: &Path, options: &SessionOptions) -> Result<NewSession> {
        let options = self.session_options(options);
        let sent = self.origin.open_session(path, &options);
        let session = self
            .change(OriginRequest::Upload, "begin upload of", path, sent)
            .await?;
        Ok(self.session(session))
    }

    /// Sends no request, so the policy has nothing to watch.
    async fn resume_session(
        &self,
        path: &Path,
        options: &SessionOptions,
        token: &SessionToken,
    ) -> Result<NewSession> {
        self.policy.allow("go on with upload of", path)?;
        let options = self.session_options(options);
        let session = self.origin.resume_session(path, &options, token).await?;
        Ok(self.session(session))
    }

    async fn open_sessions(&self) -> Result<Vec<OpenSession>> {
        if !P::PASSES_ALL {
            return Ok(Vec::new());
        }
        let sent = self.origin.open_sessions();
        self.ask(OriginRequest::Upload, sent).await
    }
}

/// A session below a layer.
#[derive(Debug)]
pub(super) struct LayerSession<P> {
    session: Box<dyn UploadSession>,
    policy: P,
}

impl<P: Policy> LayerSession<P> {
    /// Lays `policy` over `session`.
    pub(super) fn over(session: Box<dyn UploadSession>, policy: P) -> Self {
        Self { session, policy }
    }
}

#[async_trait]
impl<P: Policy> UploadSession for LayerSession<P> {
    fn token(&self) -> SessionToken {
        self.policy.token(self.session.token())
    }

    fn can_be_continued(&self) -> bool {
        self.session.can_be_continued()
    }

    fn may_have_chunks(&self) -> bool {
        self.session.may_have_chunks()
    }

    async fn put(&self, part: SessionPart) -> Result<PartReceipt> {
        let sent = self.session.put(part);
        self.policy.watch(OriginRequest::Upload, sent).await
    }

    async fn parts(&self, after: u16, max: usize) -> Result<ListedParts> {
        let sent = self.session.parts(after, max);
        self.policy.watch(OriginRequest::Upload, sent).await
    }

    async fn status(&self) -> Result<SessionStatus> {
        let sent = self.session.status();
        self.policy.watch(OriginRequest::Upload, sent).await
    }

    async fn finish(&self, ending: &CompleteRequest) -> Result<Finished> {
        let sent = self.session.finish(ending);
        self.policy.watch(OriginRequest::Upload, sent).await
    }

    async fn abort(&self) -> Result<()> {
        let sent = self.session.abort();
        self.policy.watch(OriginRequest::Upload, sent).await
    }
}
