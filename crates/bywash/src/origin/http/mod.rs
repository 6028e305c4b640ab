//! The `http://` and `https://` origins: files of a web server, read only.
//!
//! Servers differ in what they can do, and each answer is taken for what it is. One with ranges answers 206. One without
//! sends the whole object, of which `whole` cuts out what was asked for. The validator is the ETag, or the date of the last
//! change where there is none or a weak one; the engine never caches what has neither. An encoding of the content is never
//! undone: bytes are kept as they are sent, and `identity` is what we ask for.
//!
//! A web server has no listing that programs can rely on, so listings are not supported: objects are found by their key.

mod address;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod head;
mod whole;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use http::header::{
    ACCEPT_ENCODING, AUTHORIZATION, COOKIE, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH,
    IF_UNMODIFIED_SINCE, RANGE, USER_AGENT,
};
use http::{HeaderMap, Method, StatusCode};
use object_store::path::Path;
use object_store::{
    Error, Extensions, GetOptions, GetRange, GetResult, GetResultPayload, ListResult, ObjectMeta,
    Result,
};
use reqwest::Response;
use reqwest::redirect::{Attempt, Policy};

use self::head::{Head, http_date_text};
use self::whole::{Parked, Slice, Whole};
use super::read_only::{ReadOnly, Readable};
use super::requests::Requests;
use crate::EngineError;

pub use address::HttpUrl;

/// Redirects followed for one request, as many as browsers and other clients follow, or fewer.
const REDIRECTS: usize = 10;
/// The longest object, in bytes, that is taken from a server that does not say its length. It is read whole to be measured,
/// into memory that the budget does not see; so it must be short.
const MEASURED_BYTES: u64 = 1 << 20;
/// An object up to this many bytes is handed out whole when a server sends it whole: what was not asked for is here anyway.
const SMALL_BYTES: u64 = 8 << 20;

/// A folder of a web server.
pub type HttpStore = ReadOnly<HttpFiles>;

/// Reads the files of a web server.
#[derive(Debug)]
pub struct HttpFiles {
    folder: HttpUrl,
    /// Sent with each request.
    headers: HeaderMap,
    requests: Requests,
    /// Learned from an answer; both ways work, so a stale view costs a request at most, hence relaxed.
    refuses_head: AtomicBool,
    parked: Arc<Parked>,
}

impl HttpStore {
    /// Opens the folder at `url`; `headers` go with each request, over those that the address asks for. Sends no request.
    pub fn open(url: &HttpUrl, headers: &HeaderMap) -> Result<Self> {
        let mut all = HeaderMap::new();
        all.insert(ACCEPT_ENCODING, http::HeaderValue::from_static("identity"));
        if let Some(value) = url.basic_auth() {
            all.insert(AUTHORIZATION, value);
        }
        all.extend(headers.clone());
        let bound = all.keys().any(|name| !may_leave(name));
        let policy = Policy::custom(move |attempt| follow(attempt, bound));
        Ok(Self::new(HttpFiles {
            folder: url.clone(),
            headers: all,
            requests: Requests::with(STORE, |client| client.redirect(policy))?,
            refuses_head: AtomicBool::new(false),
            parked: Arc::default(),
        }))
    }
}

const STORE: &str = "HTTP";

/// Whether a header may go to another host: it tells nothing, or the client below takes it out on the way there.
fn may_leave(name: &http::HeaderName) -> bool {
    [ACCEPT_ENCODING, AUTHORIZATION, COOKIE, USER_AGENT].contains(name)
}

/// Follows a redirect unless it leaves TLS, or takes headers to a host they were not given for.
fn follow(attempt: Attempt<'_>, bound: bool) -> reqwest::redirect::Action {
    let Some(last) = attempt.previous().last() else {
        return attempt.follow();
    };
    let next = attempt.url();
    let leaves =
        next.host() != last.host() || next.port_or_known_default() != last.port_or_known_default();
    if last.scheme() == "https" && next.scheme() != "https" {
        return attempt.error("the server redirects from https to http");
    }
    if bound && leaves {
        return attempt.error(
            "the server redirects to another host, for which the bucket's headers are not meant",
        );
    }
    if attempt.previous().len() > REDIRECTS {
        return attempt.error("the server redirects too often");
    }
    attempt.follow()
}

impl HttpFiles {
    /// Sends a request and checks its status; what is left is a 200 or 206.
    async fn ask(&self, method: Method, path: &Path, options: &GetOptions) -> Result<Response> {
        let mut headers = self.headers.clone();
        for (name, value) in conditions(options) {
            let value = http::HeaderValue::try_from(value);
            headers.insert(name, value.map_err(|error| self.requests.generic(error))?);
        }
        let url = self.folder.object(path);
        let request = self.requests.http.request(method, url).headers(headers);
        let response = request.send().await.map_err(|error| {
            let refused = error.is_redirect();
            let error = error.without_url();
            if refused {
                return Error::NotSupported {
                    source: Box::new(error),
                };
            }
            self.requests.generic(error)
        })?;
        match response.status() {
            StatusCode::OK | StatusCode::PARTIAL_CONTENT => Ok(response),
            status => Err(self.refusal(path, status)),
        }
    }

    fn refusal(&self, path: &Path, status: StatusCode) -> Error {
        let detail = "the web server's answer";
        self.requests.refusal(path, status, detail)
    }

    fn read_head(&self, path: &Path, response: &Response) -> Result<Option<Head>> {
        Head::read(path, response.status(), response.headers())
            .map_err(|detail| bad_answer(path, detail))
    }

    fn body(response: Response) -> BoxStream<'static, Result<Bytes>> {
        response
            .bytes_stream()
            .map_err(|error| Error::Generic {
                store: STORE,
                source: Box::new(error.without_url()),
            })
            .boxed()
    }

    /// The object that an answer without length has, read to its end.
    async fn measured(&self, path: &Path, response: Response) -> Result<Whole> {
        let headers = response.headers().clone();
        let mut body = Self::body(response);
        let (mut pieces, mut length) = (Vec::new(), 0);
        while let Some(piece) = body.try_next().await? {
            length += piece.len() as u64;
            if length > MEASURED_BYTES {
                let source = format!(
                    "the web server does not say how long {path} is, and it is longer than {MEASURED_BYTES} bytes; let the \
                     server send Content-Length"
                );
                return Err(Error::NotSupported {
                    source: source.into(),
                });
            }
            pieces.push(Ok(piece));
        }
        let head = Head::of(path, &headers, 0..length, length);
        Ok(Whole::new(head, stream::iter(pieces).boxed()))
    }

    async fn metadata(&self, path: &Path, options: &GetOptions) -> Result<GetResult> {
        let mut refused = false;
        if !self.refuses_head.load(Relaxed) {
            match self.ask(Method::HEAD, path, options).await {
                Ok(response) => {
                    if let Some(head) = self.read_head(path, &response)? {
                        return checked(options, head, stream::empty().boxed());
                    }
                }
                Err(error) if refuses_method(&error) => refused = true,
                Err(error) => return Err(error),
            }
        }
        // The shortest GET tells as much.
        let shortest = GetOptions {
            range: Some(GetRange::Bounded(0..1)),
            ..options.clone()
        };
        let response = match self.ask(Method::GET, path, &shortest).await {
            Err(error) if crate::retry::is_out_of_range(&error) => {
                // Empty: then even the first byte is beyond its end.
                let whole = GetOptions {
                    range: None,
                    ..options.clone()
                };
                self.ask(Method::GET, path, &whole).await?
            }
            answer => answer?,
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
        let response = self.ask(Method::GET, path, options).await?;
        let partial = response.status() == StatusCode::PARTIAL_CONTENT;
        match self.read_head(path, &response)? {
            Some(head) if partial => checked(options, head, Self::body(response)),
            Some(head) => self.cut(Whole::new(head, Self::body(response)), options),
            None => self.cut(self.measured(path, response).await?, options),
        }
    }

    /// What `options` ask for, of an object that comes whole.
    fn cut(&self, whole: Whole, options: &GetOptions) -> Result<GetResult> {
        let mut head = whole.head.clone();
        let size = head.meta.size;
        let wanted = match &options.range {
            None => 0..size,
            Some(range) => range.as_range(size).map_err(|_| {
                let path = &head.meta.location;
                self.refusal(path, StatusCode::RANGE_NOT_SATISFIABLE)
            })?,
        };
        let tied = options.if_match.is_some() || options.if_unmodified_since.is_some();
        head.range = match tied || size > SMALL_BYTES {
            true => wanted,
            false => 0..size,
        };
        let slice = Slice::new(whole, head.range.clone(), Arc::clone(&self.parked));
        checked(options, head, slice.boxed())
    }
}

/// The answer, if the object is as the conditions want it: a server may not know them.
fn checked(
    options: &GetOptions,
    head: Head,
    body: BoxStream<'static, Result<Bytes>>,
) -> Result<GetResult> {
    let Head {
        meta,
        attributes,
        range,
    } = head;
    options.check_preconditions(&meta)?;
    Ok(GetResult {
        payload: GetResultPayload::Stream(body),
        meta,
        range,
        attributes,
        extensions: Extensions::new(),
    })
}

/// The headers that range and conditions are asked for with.
fn conditions(options: &GetOptions) -> Vec<(http::HeaderName, String)> {
    let range = options.range.as_ref().map(|range| match range {
        GetRange::Bounded(Range { start, end }) => {
            format!("bytes={start}-{}", end.saturating_sub(1))
        }
        GetRange::Offset(start) => format!("bytes={start}-"),
        GetRange::Suffix(length) => format!("bytes=-{length}"),
    });
    let date = |date: Option<chrono::DateTime<chrono::Utc>>| date.map(http_date_text);
    let headers = [
        (RANGE, range),
        (IF_MATCH, options.if_match.clone()),
        (IF_NONE_MATCH, options.if_none_match.clone()),
        (IF_MODIFIED_SINCE, date(options.if_modified_since)),
        (IF_UNMODIFIED_SINCE, date(options.if_unmodified_since)),
    ];
    let given = |(name, value): (_, Option<String>)| value.map(|value| (name, value));
    headers.into_iter().filter_map(given).collect()
}

/// Whether a server that takes GET may say so because it has no HEAD: a form that it lacks, or addresses signed for GET only.
fn refuses_method(error: &Error) -> bool {
    let text = error.to_string();
    ["405", "501"]
        .iter()
        .any(|status| text.contains(&format!("status code: {status}")))
        || matches!(error, Error::PermissionDenied { .. })
}

fn bad_answer(path: &Path, detail: String) -> Error {
    EngineError::BadAnswer {
        object: path.to_string(),
        detail,
    }
    .into()
}

fn no_listing() -> Error {
    let source = "a web server has no listing that programs can rely on; name each file by its whole address";
    Error::NotSupported {
        source: source.into(),
    }
}

impl fmt::Display for HttpFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.folder.fmt(f)
    }
}

#[async_trait]
impl Readable for HttpFiles {
    fn kind(&self) -> &'static str {
        "http"
    }

    fn reason(&self) -> &'static str {
        "it is a web server's; write to an s3, gs, az or file bucket"
    }

    fn lists(&self) -> bool {
        false
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        if options.version.is_some() {
            return Err(Error::NotSupported {
                source: "a web server keeps no versions".into(),
            });
        }
        match options.head {
            true => self.metadata(path, &options).await,
            false => self.data(path, &options).await,
        }
    }

    fn list(
        &self,
        _prefix: Option<&Path>,
        _offset: Option<&Path>,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        stream::iter([Err(no_listing())]).boxed()
    }

    async fn list_with_delimiter(&self, _prefix: Option<&Path>) -> Result<ListResult> {
        Err(no_listing())
    }
}
