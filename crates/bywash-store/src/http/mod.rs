//! The `http://` and `https://` origins: files of a web server, read-only.
//!
//! Servers differ in their capabilities, so each response decides. A server with ranges responds 206. One without
//! sends the whole object, and `whole` extracts the requested range. The validator is the ETag, or the modification
//! date if the ETag is absent or weak; an object with neither is never cached. Content encodings are never decoded:
//! bytes are kept as sent, and requests accept `identity` only.
//!
//! A web server has no reliable listing for programs, so listings are not supported: objects are addressed by their
//! key.

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;

mod whole;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use http::header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, Method, StatusCode};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetRange, GetResult, ListResult, MultipartUpload, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use reqwest::Response;
use reqwest::redirect::Policy;
use url::Url;

use self::whole::{Parked, Slice, WholeBody};
use super::access::Access;
use super::http_client::HttpClient;
use super::interface::{Capabilities, Origin, StoreIdentity, lacks};
use super::network::{client_builder, is_same_host, redirect_target};
use super::object_head::{Head, checked, conditions};
use super::options::Redirects;
use super::read_only::ReadOnly;
use super::response::Expected;
use crate::error::{OriginError, StatusError, generic_error, not_supported_error};
use crate::limits::{MAX_MEASURED_BYTES, MAX_REDIRECTS, MAX_WHOLE_BYTES};
use crate::page::{Keys, Objects};

pub use super::web_url::HttpUrl;

/// Client for the files in a folder of a web server. [`Self::open`] makes it read-only.
#[derive(Debug)]
pub struct HttpStore {
    folder: HttpUrl,
    /// Sent with each request.
    headers: HeaderMap,
    redirects: Redirects,
    http: HttpClient,
    /// Learned from a response; a stale value costs at most one request, hence relaxed.
    refuses_head: AtomicBool,
    parked: Arc<Parked>,
}

impl HttpStore {
    /// Opens the folder at `url`; `headers` are sent with each request and override those implied by the URL. Sends
    /// no request.
    ///
    /// Without `redirects`, redirects stay on the same host for a URL with a query or headers, and may lead anywhere
    /// for any other.
    pub fn open(
        url: &HttpUrl,
        headers: &HeaderMap,
        redirects: Option<Redirects>,
    ) -> Result<ReadOnly> {
        let mut all = HeaderMap::new();
        all.insert(ACCEPT_ENCODING, http::HeaderValue::from_static("identity"));
        if let Some(value) = url.basic_auth() {
            all.insert(AUTHORIZATION, value);
        }
        all.extend(headers.clone());
        let redirects = redirects.unwrap_or(if url.has_query() || !headers.is_empty() {
            Redirects::SameHost
        } else {
            Redirects::Any
        });
        let files = Self {
            folder: url.clone(),
            headers: all,
            redirects,
            http: HttpClient::of(STORE, client_builder().redirect(Policy::none()))?,
            refuses_head: AtomicBool::new(false),
            parked: Arc::default(),
        };
        let reason = "it is a web server's; write to an s3, gs, az or file bucket";
        Ok(ReadOnly::because(reason, Arc::new(files)))
    }
}

const STORE: &str = "HTTP";

type ByteStream = BoxStream<'static, Result<Bytes>>;

impl HttpStore {
    /// Sends a request, follows its redirects, and checks that the response is a 200 or 206 to this request.
    async fn send_request(
        &self,
        method: Method,
        path: &Path,
        options: &GetOptions,
    ) -> Result<Response> {
        let mut own = HeaderMap::new();
        for (name, value) in conditions(options) {
            let value = http::HeaderValue::try_from(value);
            own.insert(name, value.map_err(|error| self.http.generic(error))?);
        }
        let expected = Expected::of(&method, &own);
        let mut url = self.folder.object(path);
        let mut headers = self.headers.clone();
        headers.extend(own.clone());
        for _ in 0..=MAX_REDIRECTS {
            let sent = self
                .http
                .start(method.clone(), url.clone(), headers.clone());
            let response = sent.await?;
            let status = response.status();
            expected
                .check(status, response.headers())
                .map_err(|detail| OriginError::bad_response(path, detail))?;
            if status.is_success() {
                return Ok(response);
            }
            let Some(next) = redirect_target(&url, response.status(), response.headers()) else {
                return Err(Self::refusal(path, status));
            };
            self.check_redirect(path, &url, &next)?;
            if !is_same_host(&url, &next) {
                // Headers for the URL's host: they are dropped at another host, even if that redirects back.
                headers = own.clone();
                headers.insert(ACCEPT_ENCODING, http::HeaderValue::from_static("identity"));
            }
            url = next;
        }
        Err(not_supported_error(format!(
            "read {path}: the web server redirects more than {MAX_REDIRECTS} times"
        )))
    }

    /// Rejects a redirect that must not be followed.
    fn check_redirect(&self, path: &Path, last: &Url, next: &Url) -> Result<()> {
        let host = next.host_str().unwrap_or("no host");
        let refused = |reason: String| {
            Err(not_supported_error(format!(
                "read {path}: the web server redirects to {reason}"
            )))
        };
        if !["http", "https"].contains(&next.scheme()) {
            return refused(format!(
                "a {} address, which is not followed",
                next.scheme()
            ));
        }
        if last.scheme() == "https" && next.scheme() == "http" {
            return refused(format!("{host} without TLS, which is not followed"));
        }
        if self.redirects == Redirects::SameHost && !is_same_host(last, next) {
            let port = next
                .port()
                .map(|port| format!(":{port}"))
                .unwrap_or_default();
            return refused(format!(
                "another host, {host}{port}, for which this address and its headers may not be meant; name the file by its \
                 address there, or set redirects = \"any\" for the bucket"
            ));
        }
        Ok(())
    }

    fn refusal(path: &Path, status: StatusCode) -> Error {
        StatusError::new(status, format!("read {path}")).of(STORE, path.as_ref())
    }

    fn read_head(&self, path: &Path, response: &Response) -> Result<Option<Head>> {
        let (status, headers) = (response.status(), response.headers());
        let host = response.url().host_str().unwrap_or_default();
        let head = Head::read(path, status, headers);
        let head = head.map_err(|detail| OriginError::bad_response(path, detail))?;
        Ok(head.map(|head| head.with_digest(host, status, headers)))
    }

    fn body(response: Response) -> ByteStream {
        response
            .bytes_stream()
            .map_err(|error| generic_error(STORE, error.without_url()))
            .boxed()
    }

    /// Reads the object of a response without length to its end.
    async fn measured(&self, path: &Path, response: Response) -> Result<WholeBody> {
        // Where the end of the connection ends the body, a truncated one looks whole.
        let chunked = response.headers().contains_key(TRANSFER_ENCODING);
        if response.version() <= http::Version::HTTP_11 && !chunked {
            return Err(not_supported_error(format!(
                "the response for {path} has neither a Content-Length nor chunks; let the web server send Content-Length"
            )));
        }
        let (status, headers) = (response.status(), response.headers().clone());
        let host = response.url().host_str().unwrap_or_default().to_owned();
        let (length, body) = read_short(path, Self::body(response)).await?;
        let head = Head::of(path, &headers, 0..length, length);
        let head = head.with_digest(&host, status, &headers);
        Ok(WholeBody::new(head, body))
    }

    /// Reads the body of a range to its end if it has no length: only then is it known to be that range.
    async fn measured_range(
        &self,
        path: &Path,
        head: &Head,
        response: Response,
    ) -> Result<ByteStream> {
        let (length, body) = read_short(path, Self::body(response)).await?;
        let wanted = head.range.end - head.range.start;
        if length != wanted {
            let detail = format!("the body of a range of {wanted} bytes has {length}");
            return Err(OriginError::bad_response(path, detail));
        }
        Ok(body)
    }

    async fn metadata(&self, path: &Path, options: &GetOptions) -> Result<GetResult> {
        let mut refused = false;
        if !self.refuses_head.load(Relaxed) {
            match self.send_request(Method::HEAD, path, options).await {
                Ok(response) => {
                    if let Some(head) = self.read_head(path, &response)? {
                        return checked(options, head, stream::empty().boxed());
                    }
                }
                Err(error) if refuses_method(&error) => refused = true,
                Err(error) => return Err(error),
            }
        }
        // The shortest GET returns the same metadata.
        let shortest = GetOptions {
            range: Some(GetRange::Bounded(0..1)),
            ..options.clone()
        };
        let response = match self.send_request(Method::GET, path, &shortest).await {
            Err(error) if crate::error_class::is_out_of_range(&error) => {
                // Empty object: even its first byte is out of range.
                let whole = GetOptions {
                    range: None,
                    ..options.clone()
                };
                self.send_request(Method::GET, path, &whole).await?
            }
            response => response?,
        };
        if refused {
            self.refuses_head.store(true, Relaxed);
        }
        let head = match self.read_head(path, &response)? {
            Some(head) => head,
            None => self.measured(path, response).await?.head,
        };
        checked(options, head, stream::empty().boxed())
    }

    async fn data(&self, path: &Path, options: &GetOptions) -> Result<GetResult> {
        if let Some(GetRange::Bounded(range)) = &options.range
            && let Some(whole) = self.parked.take(path, range.start, options)
        {
            return self.cut(whole, options);
        }
        let response = self.send_request(Method::GET, path, options).await?;
        let partial = response.status() == StatusCode::PARTIAL_CONTENT;
        match self.read_head(path, &response)? {
            Some(head) if partial => {
                let body = if response.headers().contains_key(CONTENT_LENGTH) {
                    Self::body(response)
                } else {
                    self.measured_range(path, &head, response).await?
                };
                checked(options, head, body)
            }
            Some(head) => self.cut(WholeBody::new(head, Self::body(response)), options),
            None => self.cut(self.measured(path, response).await?, options),
        }
    }

    /// Extracts the range of `options` from an object that is sent whole.
    fn cut(&self, whole: WholeBody, options: &GetOptions) -> Result<GetResult> {
        let mut head = whole.head.clone();
        let size = head.meta.size;
        let wanted = match &options.range {
            None => 0..size,
            Some(range) => range.as_range(size).map_err(|_| {
                let path = &head.meta.location;
                Self::refusal(path, StatusCode::RANGE_NOT_SATISFIABLE)
            })?,
        };
        let tied = options.if_match.is_some() || options.if_unmodified_since.is_some();
        head.range = if tied || size > MAX_WHOLE_BYTES {
            wanted
        } else {
            0..size
        };
        let slice = Slice::new(whole, head.range.clone(), Arc::clone(&self.parked));
        checked(options, head, slice.boxed())
    }
}

/// Reads a body without Content-Length.
async fn read_short(path: &Path, mut body: ByteStream) -> Result<(u64, ByteStream)> {
    let (mut pieces, mut length) = (Vec::new(), 0);
    while let Some(piece) = body.try_next().await? {
        length += piece.len() as u64;
        if length > MAX_MEASURED_BYTES {
            let source = format!(
                "the response for {path} has no Content-Length and more than {MAX_MEASURED_BYTES} bytes; let the web \
                 server send Content-Length"
            );
            return Err(not_supported_error(source));
        }
        pieces.push(Ok(piece));
    }
    Ok((length, stream::iter(pieces).boxed()))
}

/// Returns whether the error may mean that the server lacks HEAD: not implemented, or URLs signed for GET only.
fn refuses_method(error: &Error) -> bool {
    let statuses = [StatusCode::METHOD_NOT_ALLOWED, StatusCode::NOT_IMPLEMENTED];
    StatusError::find(error).is_some_and(|found| statuses.contains(&found.status))
        || matches!(error, Error::PermissionDenied { .. })
}

fn no_listing() -> Error {
    let source = "a web server has no listing that programs can rely on; name each file by its whole address";
    not_supported_error(source)
}

impl fmt::Display for HttpStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.folder.fmt(f)
    }
}

#[async_trait]
impl Origin for HttpStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            lists: false,
            ..Capabilities::of("http")
        }
    }

    fn identity(&self) -> Option<StoreIdentity> {
        let mut access = Access::default();
        let mut names: Vec<_> = self.headers.keys().collect();
        names.sort_unstable_by_key(|name| name.as_str());
        for name in names {
            for value in self.headers.get_all(name) {
                access.add(name.as_str(), value.as_bytes());
            }
        }
        // Another host may have other bytes, or refuse.
        access.add("redirects", format!("{:?}", self.redirects).as_bytes());
        Some(access.identity(self.folder.durable_address()))
    }
}

#[async_trait]
impl ObjectStore for HttpStore {
    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        if options.version.is_some() {
            return Err(not_supported_error("a web server keeps no versions"));
        }
        if options.head {
            self.metadata(path, &options).await
        } else {
            self.data(path, &options).await
        }
    }

    fn list(&self, _prefix: Option<&Path>) -> Objects {
        stream::iter([Err(no_listing())]).boxed()
    }

    async fn list_with_delimiter(&self, _prefix: Option<&Path>) -> Result<ListResult> {
        Err(no_listing())
    }

    // Never reached below `ReadOnly`.

    async fn put_opts(&self, _: &Path, _: PutPayload, _: PutOptions) -> Result<PutResult> {
        Err(lacks("http", "writes"))
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Err(lacks("http", "writes"))
    }

    fn delete_stream(&self, _: Keys) -> Keys {
        stream::iter([Err(lacks("http", "deletes"))]).boxed()
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(lacks("http", "writes"))
    }
}
