//! Wrapper of an origin that times each request and counts its errors.

use std::fmt;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    Attributes, CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result,
};

use super::health::{OriginErrorKind, OriginHealth};
use super::interface::{
    AttributeRewrite, Capabilities, CompleteOptions, DeleteCondition, ListedParts, ObjectRename,
    Origin, PartBody, PartCopy, UploadedPart,
};
use super::object_tags::ObjectTags;
use super::omissions::Omissions;
use super::page::{Level, ListPage};
use super::stated_headers::TextAttributes;
use super::write_mark::WriteMark;
use crate::content_digest::ContentDigest;
use crate::session::{
    Chunk, CompleteRequest, Finished, OpenSession, SessionOptions, SessionStatus, SessionToken,
    UploadSession,
};

/// Age at which a request that is dropped without a response counts as timed out. One dropped earlier lost to a hedged
/// request, or its client left.
const TIMED_OUT: Duration = Duration::from_secs(10);

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

/// Records the latency of a request. Called once a request, by any thread.
pub type NoteRequest = Arc<dyn Fn(OriginRequest, Duration) + Send + Sync>;

/// Counters of one origin, and where latencies go.
struct Meter {
    health: Arc<OriginHealth>,
    note: NoteRequest,
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meter")
            .field("health", &self.health)
            .finish_non_exhaustive()
    }
}

/// A request in flight.
struct Attempt<'a> {
    meter: &'a Meter,
    request: OriginRequest,
    sent: Instant,
    ended: bool,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if !self.ended && self.sent.elapsed() >= TIMED_OUT {
            let text = format!("no response in {} s", self.sent.elapsed().as_secs());
            let now = SystemTime::now();
            self.meter
                .health
                .failed(OriginErrorKind::Timeout, text, now);
        }
    }
}

impl Meter {
    /// Measures one request from its start to its response.
    async fn measure<T>(
        &self,
        request: OriginRequest,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let mut attempt = Attempt {
            meter: self,
            request,
            sent: Instant::now(),
            ended: false,
        };
        let result = work.await;
        attempt.ended = true;
        self.ended(attempt.request, attempt.sent, result.as_ref().err());
        result
    }

    fn ended(&self, request: OriginRequest, sent: Instant, error: Option<&Error>) {
        (self.note)(request, sent.elapsed());
        match error {
            // The response to a revalidation: the version is current.
            None | Some(Error::NotModified { .. }) => self.health.succeeded(),
            Some(error) => self.health.ended_with(error),
        }
    }
}

/// Measures the time to the first item of a stream, and counts its errors.
fn measured<T: Send + 'static>(
    meter: &Arc<Meter>,
    request: OriginRequest,
    items: BoxStream<'static, Result<T>>,
) -> BoxStream<'static, Result<T>> {
    let (meter, mut sent) = (Arc::clone(meter), Some(Instant::now()));
    let items = items.inspect(move |item| {
        let error = item.as_ref().err();
        match (sent.take(), error) {
            (Some(sent), error) => meter.ended(request, sent, error),
            (None, Some(error)) => meter.health.ended_with(error),
            (None, None) => {}
        }
    });
    items.boxed()
}

/// Empty pieces of a body after which its task yields, so that limits of time are seen.
const EMPTY_PIECES: usize = 32;

/// Counts the errors of a response's body, and leaves empty pieces out: they are no progress.
fn counted(
    meter: &Arc<Meter>,
    mut body: BoxStream<'static, Result<Bytes>>,
) -> BoxStream<'static, Result<Bytes>> {
    let meter = Arc::clone(meter);
    let mut empty = 0;
    let pieces = futures::stream::poll_fn(move |context| {
        loop {
            let piece = ready!(body.poll_next_unpin(context));
            match &piece {
                Some(Ok(bytes)) if bytes.is_empty() => {}
                Some(Err(error)) => {
                    meter.health.ended_with(error);
                    return Poll::Ready(piece);
                }
                _ => return Poll::Ready(piece),
            }
            empty += 1;
            if empty % EMPTY_PIECES == 0 {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    });
    pieces.boxed()
}

/// An origin that measures each request and forwards it unchanged.
#[derive(Debug)]
pub struct Metered {
    origin: Arc<dyn Origin>,
    meter: Arc<Meter>,
}

impl Metered {
    /// Wraps `origin`: errors are counted in `health`, latencies go to `note`.
    pub fn new(origin: Arc<dyn Origin>, health: Arc<OriginHealth>, note: NoteRequest) -> Self {
        let meter = Arc::new(Meter { health, note });
        Self { origin, meter }
    }

    /// Gives the client's metadata of a write names that no mark has.
    fn escape(&self, attributes: &mut Attributes) {
        if self.origin.capabilities().keeps_marks {
            WriteMark::escape(attributes);
        }
    }

    fn escaped(&self, options: &SessionOptions) -> SessionOptions {
        let mut options = options.clone();
        self.escape(&mut options.attributes);
        options
    }

    fn session(&self, session: Option<Box<dyn UploadSession>>) -> Option<Box<dyn UploadSession>> {
        let session = session.map(|session| MeteredSession {
            session,
            meter: Arc::clone(&self.meter),
        });
        session.map(|session| Box::new(session) as Box<dyn UploadSession>)
    }
}

impl fmt::Display for Metered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.origin, f)
    }
}

#[async_trait]
impl ObjectStore for Metered {
    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let request = match options.head {
            true => OriginRequest::Head,
            false => OriginRequest::Read,
        };
        let sent = self.origin.get_opts(path, options);
        let mut response = self.meter.measure(request, sent).await?;
        if let Some(TextAttributes(texts)) = response.extensions.remove() {
            for (name, value) in &texts {
                response.attributes.insert(name.clone(), value.clone());
            }
        }
        if self.origin.capabilities().keeps_marks {
            WriteMark::hide(&mut response);
        }
        #[allow(
            irrefutable_let_patterns,
            reason = "object_store's feature `fs` adds a variant"
        )]
        if let GetResultPayload::Stream(body) = response.payload {
            response.payload = GetResultPayload::Stream(counted(&self.meter, body));
        }
        Ok(response)
    }

    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        mut options: PutOptions,
    ) -> Result<PutResult> {
        self.escape(&mut options.attributes);
        if let Some(mark) = options.extensions.remove::<WriteMark>() {
            mark.add(&mut options.attributes);
        }
        let sent = self.origin.put_opts(path, payload, options);
        self.meter.measure(OriginRequest::Write, sent).await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        mut options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.escape(&mut options.attributes);
        let sent = self.origin.put_multipart_opts(path, options);
        self.meter.measure(OriginRequest::Upload, sent).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let deleted = self.origin.delete_stream(paths);
        measured(&self.meter, OriginRequest::Delete, deleted)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let listed = self.origin.list(prefix);
        measured(&self.meter, OriginRequest::List, listed)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let listed = self.origin.list_with_offset(prefix, offset);
        measured(&self.meter, OriginRequest::List, listed)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let sent = self.origin.list_with_delimiter(prefix);
        self.meter.measure(OriginRequest::List, sent).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let sent = self.origin.copy_opts(from, to, options);
        self.meter.measure(OriginRequest::Write, sent).await
    }
}

#[async_trait]
impl Origin for Metered {
    fn capabilities(&self) -> Capabilities {
        self.origin.capabilities()
    }

    fn durable_address(&self) -> Option<String> {
        self.origin.durable_address()
    }

    fn cache_identity(&self) -> Option<String> {
        self.origin.cache_identity()
    }

    async fn list_page(&self, prefix: &str, after: Option<&str>, max: usize) -> Result<ListPage> {
        let sent = self.origin.list_page(prefix, after, max);
        self.meter.measure(OriginRequest::List, sent).await
    }

    fn list_noting(
        &self,
        prefix: Option<&Path>,
        after: Option<&Path>,
        omissions: &Omissions,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let listed = self.origin.list_noting(prefix, after, omissions);
        measured(&self.meter, OriginRequest::List, listed)
    }

    async fn list_level(&self, prefix: &str, after: &str, max: usize) -> Result<Level> {
        let sent = self.origin.list_level(prefix, after, max);
        self.meter.measure(OriginRequest::List, sent).await
    }

    async fn create_upload(&self, path: &Path, mut options: PutMultipartOptions) -> Result<String> {
        self.escape(&mut options.attributes);
        let sent = self.origin.create_upload(path, options);
        self.meter.measure(OriginRequest::Upload, sent).await
    }

    async fn object_tags(&self, path: &Path) -> Result<ObjectTags> {
        let sent = self.origin.object_tags(path);
        self.meter.measure(OriginRequest::Head, sent).await
    }

    async fn set_object_tags(&self, path: &Path, tags: &ObjectTags) -> Result<()> {
        let sent = self.origin.set_object_tags(path, tags);
        self.meter.measure(OriginRequest::Write, sent).await
    }

    async fn copy_part(&self, path: &Path, upload: &str, part: &PartCopy) -> Result<UploadedPart> {
        let sent = self.origin.copy_part(path, upload, part);
        self.meter.measure(OriginRequest::Upload, sent).await
    }

    fn place_of(&self, path: &Path) -> Option<String> {
        self.origin.place_of(path)
    }

    async fn rewrite_in_place(
        &self,
        path: &Path,
        rewrite: &AttributeRewrite,
    ) -> Result<Option<PutResult>> {
        let mut rewrite = rewrite.clone();
        self.escape(&mut rewrite.attributes);
        let sent = self.origin.rewrite_in_place(path, &rewrite);
        self.meter.measure(OriginRequest::Write, sent).await
    }

    async fn delete_if(&self, path: &Path, condition: &DeleteCondition) -> Result<()> {
        let sent = self.origin.delete_if(path, condition);
        self.meter.measure(OriginRequest::Delete, sent).await
    }

    async fn rename_version(
        &self,
        from: &Path,
        to: &Path,
        rename: &ObjectRename,
    ) -> Result<PutResult> {
        let mut rename = rename.clone();
        self.escape(&mut rename.attributes);
        let sent = self.origin.rename_version(from, to, &rename);
        self.meter.measure(OriginRequest::Write, sent).await
    }

    async fn put_part(
        &self,
        path: &Path,
        upload: &str,
        number: u16,
        length: u64,
        body: PartBody,
    ) -> Result<String> {
        let sent = self.origin.put_part(path, upload, number, length, body);
        self.meter.measure(OriginRequest::Upload, sent).await
    }

    async fn complete_upload(
        &self,
        path: &Path,
        upload: &str,
        parts: &[UploadedPart],
        mut options: CompleteOptions,
    ) -> Result<PutResult> {
        self.escape(&mut options.attributes);
        let sent = self.origin.complete_upload(path, upload, parts, options);
        self.meter.measure(OriginRequest::Upload, sent).await
    }

    async fn uploaded_parts(
        &self,
        path: &Path,
        upload: &str,
        after: u16,
        max: usize,
    ) -> Result<ListedParts> {
        let sent = self.origin.uploaded_parts(path, upload, after, max);
        self.meter.measure(OriginRequest::Upload, sent).await
    }

    async fn abort_upload(&self, path: &Path, upload: &str) -> Result<()> {
        let sent = self.origin.abort_upload(path, upload);
        self.meter.measure(OriginRequest::Upload, sent).await
    }

    async fn content_digest(&self, path: &Path) -> Result<Option<(String, ContentDigest)>> {
        let sent = self.origin.content_digest(path);
        self.meter.measure(OriginRequest::Head, sent).await
    }

    async fn stat(&self, path: &Path) -> Result<Option<Finished>> {
        let sent = self.origin.stat(path);
        self.meter.measure(OriginRequest::Head, sent).await
    }

    async fn open_session(
        &self,
        path: &Path,
        options: &SessionOptions,
    ) -> Result<Option<Box<dyn UploadSession>>> {
        let options = self.escaped(options);
        let sent = self.origin.open_session(path, &options);
        let session = self.meter.measure(OriginRequest::Upload, sent).await?;
        Ok(self.session(session))
    }

    async fn resume_session(
        &self,
        path: &Path,
        options: &SessionOptions,
        token: &SessionToken,
    ) -> Result<Option<Box<dyn UploadSession>>> {
        let options = self.escaped(options);
        let session = self.origin.resume_session(path, &options, token).await?;
        Ok(self.session(session))
    }

    async fn open_sessions(&self) -> Result<Vec<OpenSession>> {
        let sent = self.origin.open_sessions();
        self.meter.measure(OriginRequest::Upload, sent).await
    }

    fn same_session(&self, one: &SessionToken, other: &SessionToken) -> bool {
        self.origin.same_session(one, other)
    }

    fn begins_sessions(&self) -> bool {
        self.origin.capabilities().begins_sessions
    }
}

/// An upload session that measures each request and forwards it unchanged.
#[derive(Debug)]
struct MeteredSession {
    session: Box<dyn UploadSession>,
    meter: Arc<Meter>,
}

#[async_trait]
impl UploadSession for MeteredSession {
    fn token(&self) -> SessionToken {
        self.session.token()
    }

    fn token_now(&self) -> SessionToken {
        self.session.token_now()
    }

    fn can_be_continued(&self) -> bool {
        self.session.can_be_continued()
    }

    fn may_have_chunks(&self) -> bool {
        self.session.may_have_chunks()
    }

    async fn send(&self, chunk: &Chunk) -> Result<u64> {
        let sent = self.session.send(chunk);
        self.meter.measure(OriginRequest::Upload, sent).await
    }

    async fn status(&self) -> Result<SessionStatus> {
        let sent = self.session.status();
        self.meter.measure(OriginRequest::Upload, sent).await
    }

    async fn finish(&self, ending: &CompleteRequest) -> Result<Finished> {
        let sent = self.session.finish(ending);
        self.meter.measure(OriginRequest::Upload, sent).await
    }

    async fn abort(&self) -> Result<()> {
        let sent = self.session.abort();
        self.meter.measure(OriginRequest::Upload, sent).await
    }
}
