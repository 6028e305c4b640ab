//! What surrounds the operations: request ids, signatures or their absence, body framing, the last
//! touch to error answers, the log line.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use bywash::traffic::Traffic;
use futures::{Stream, StreamExt};
use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, RANGE};
use http::request::Parts;
use http::{Extensions, HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body::{Body as _, Frame};
use http_body_util::StreamBody;
use hyper::body::Incoming;
use percent_encoding::percent_decode_str;
use s3s::config::StaticConfigProvider;
use s3s::route::S3Route;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{Body, HttpError, S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use crate::auth::{Keys, strip_signature};
use crate::body::{Access, BodyError, ClientBody, RequestContext, ServedBody};
use crate::chunked::{ChunkedBody, Mode};
use crate::config::S3Config;
use crate::errors::{default_message, fault, not_implemented};
use crate::gateway::Gateway;

/// The largest XML body in bytes, held in memory while it is read: 10,000 parts with checksums, or
/// 1000 keys of full length, take about half.
const XML_BYTES: usize = 4 << 20;
const REQUEST_ID: &str = "x-amz-request-id";
const PAYLOAD: &str = "x-amz-content-sha256";

/// Serves one request after the other, from any number of connections.
pub(crate) struct Front {
    service: S3Service,
    traffic: Arc<Traffic>,
    anonymous: bool,
    silent_body: Duration,
    /// Request ids: a number no other process has, and a count.
    process: u64,
    count: AtomicU64,
}

impl Front {
    pub(crate) fn new(gateway: Gateway, config: &S3Config) -> Self {
        let traffic = Arc::clone(gateway.engine.traffic());
        let mut open = S3ServiceBuilder::new(gateway.clone());
        open.set_config(bodies());
        let open = open.build();
        let service = if config.anonymous {
            open
        } else {
            let mut builder = S3ServiceBuilder::new(gateway);
            builder.set_config(bodies());
            let keys = Keys::new(&config.credentials);
            builder.set_auth(keys.clone());
            builder.set_access(keys.clone());
            builder.set_route(OddRange { open, keys });
            builder.build()
        };
        Self {
            service,
            traffic,
            anonymous: config.anonymous,
            silent_body: config.limits.silent_body,
            process: RandomState::new().hash_one(std::process::id()),
            count: AtomicU64::new(0),
        }
    }

    pub(crate) async fn serve(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<ServedBody>, HttpError> {
        let (mut parts, incoming) = request.into_parts();
        let id = format!(
            "{:016X}{:08X}",
            self.process,
            self.count.fetch_add(1, Relaxed)
        );
        let context = Arc::new(RequestContext::new(
            id,
            condition(&parts.method, &parts.headers),
            self.unchecked_payload(&parts.headers),
        ));
        let (bucket, key) = names(&parts.uri);
        let traffic = Arc::clone(&self.traffic);
        let method = parts.method.clone();
        let mut access = Access::new(Arc::clone(&context), traffic, method, bucket, key);
        let answer = if is_form(&parts) {
            // s3s would read the whole form into memory before it asks who sends it.
            not_implemented("Uploads by HTML form are not supported here; use PUT.")
                .to_http_response()
                .map_err(http_error)?
        } else {
            let body = self.body(&mut parts, incoming, &context);
            if self.anonymous {
                strip_signature(&mut parts);
                drop_odd_range(&mut parts.headers);
            }
            parts.extensions.insert(Arc::clone(&context));
            self.service.call(Request::from_parts(parts, body)).await?
        };
        let answer = finish(answer, &access).map_err(http_error)?;
        let text = |name: &str| {
            answer
                .headers()
                .get(name)
                .and_then(|value| value.to_str().ok())
        };
        access.cache = match text("x-bywash-cache") {
            Some("hit") => "hit",
            Some("miss") => "miss",
            Some("partial") => "partial",
            _ => "",
        };
        let announced = text("content-length").and_then(|length| length.parse().ok());
        access.announced = announced.filter(|_| access.method != Method::HEAD);
        access.answered(answer.status());
        Ok(answer.map(|body| ServedBody::new(body, access)))
    }

    /// The digest of the payload, when nobody else looks at it.
    fn unchecked_payload(&self, headers: &HeaderMap) -> Option<String> {
        let value = headers
            .get(PAYLOAD)
            .filter(|_| self.anonymous)?
            .to_str()
            .ok()?;
        let is_digest = value.len() == 64 && value.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_digest.then(|| value.to_owned())
    }

    fn body(&self, parts: &mut Parts, incoming: Incoming, context: &Arc<RequestContext>) -> Body {
        let chunked = parts
            .headers
            .get(PAYLOAD)
            .and_then(|value| value.to_str().ok());
        let mode = match chunked.filter(|payload| payload.starts_with("STREAMING-")) {
            None => None,
            Some(_) if self.anonymous => Some(Mode::Decode),
            Some(payload) if payload.starts_with("STREAMING-UNSIGNED-") => Some(Mode::Reframe),
            Some(_) => Some(Mode::Guard),
        };
        if mode == Some(Mode::Decode) {
            // From here on the body is as long as what it carries.
            parts.headers.remove(CONTENT_LENGTH);
            if let Some(length) = parts.headers.get("x-amz-decoded-content-length").cloned() {
                parts.headers.insert(CONTENT_LENGTH, length);
            }
        }
        if incoming.is_end_stream() {
            return Body::empty();
        }
        context.body_open.store(true, Relaxed);
        let body = ClientBody::new(incoming, self.silent_body, Arc::clone(context));
        match mode {
            Some(mode) => stream_body(ChunkedBody::new(body, mode, Arc::clone(context))),
            None => stream_body(body),
        }
    }
}

fn bodies() -> Arc<StaticConfigProvider> {
    let mut config = s3s::config::S3Config::default();
    config.xml_max_body_size = XML_BYTES;
    Arc::new(StaticConfigProvider::new(Arc::new(config)))
}

fn stream_body(body: impl Stream<Item = Result<Bytes, BodyError>> + Send + 'static) -> Body {
    Body::http_body_unsync(StreamBody::new(body.map(|piece| piece.map(Frame::data))))
}

fn http_error(error: S3Error) -> HttpError {
    HttpError::new(Box::new(error))
}

fn is_form(parts: &Parts) -> bool {
    let kind = parts
        .headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    parts.method == Method::POST
        && kind
            .trim_start()
            .to_ascii_lowercase()
            .starts_with("multipart/form-data")
}

/// The header whose condition a failed precondition is of, as S3 writes its name.
fn condition(method: &Method, headers: &HeaderMap) -> Option<&'static str> {
    let reads = matches!(*method, Method::GET | Method::HEAD);
    [
        "If-Match",
        "If-Unmodified-Since",
        "If-None-Match",
        "x-amz-copy-source-if-match",
        "x-amz-copy-source-if-unmodified-since",
        "x-amz-copy-source-if-none-match",
        "x-amz-copy-source-if-modified-since",
    ]
    .into_iter()
    // A read whose If-None-Match fails is not modified, which is another answer.
    .find(|name| headers.contains_key(*name) && !(reads && *name == "If-None-Match"))
}

/// Bucket and key of a request's path, for the log and for error answers.
fn names(uri: &Uri) -> (String, String) {
    let path = percent_decode_str(uri.path()).decode_utf8_lossy();
    let path = path.strip_prefix('/').unwrap_or(&path);
    let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
    (bucket.to_owned(), key.to_owned())
}

/// Whether a Range header is to be ignored: several ranges, another unit, or not a range at all.
fn has_odd_range(headers: &HeaderMap) -> bool {
    headers.get(RANGE).is_some_and(|value| {
        let text = value.to_str().unwrap_or_default();
        s3s::dto::Range::parse(text).is_err()
    })
}

fn drop_odd_range(headers: &mut HeaderMap) {
    if has_odd_range(headers) {
        headers.remove(RANGE);
    }
}

/// Serves requests with an odd Range header without it.
///
/// `s3s` refuses such requests, and the header may be signed; so they go to a service of their own
/// once their signature was checked.
struct OddRange {
    open: S3Service,
    keys: Keys,
}

#[async_trait]
impl S3Route for OddRange {
    fn is_match(
        &self,
        method: &Method,
        _uri: &Uri,
        headers: &HeaderMap,
        _extensions: &mut Extensions,
    ) -> bool {
        matches!(*method, Method::GET | Method::HEAD) && has_odd_range(headers)
    }

    async fn check_access(&self, request: &mut S3Request<Body>) -> S3Result<()> {
        let (bucket, _) = names(&request.uri);
        let bucket = Some(bucket).filter(|bucket| !bucket.is_empty());
        self.keys.check(
            request.credentials.as_ref(),
            &request.method,
            bucket.as_deref(),
            &request.headers,
            &mut request.extensions,
        )
    }

    async fn call(&self, request: S3Request<Body>) -> S3Result<S3Response<Body>> {
        let mut inner = Request::new(request.input);
        *inner.method_mut() = request.method;
        *inner.uri_mut() = request.uri;
        *inner.headers_mut() = request.headers;
        *inner.extensions_mut() = request.extensions;
        let (mut parts, body) = inner.into_parts();
        strip_signature(&mut parts);
        drop_odd_range(&mut parts.headers);
        let answer = self
            .open
            .call(Request::from_parts(parts, body))
            .await
            .map_err(|error| {
                let error: s3s::StdError = error.into();
                fault(
                    S3ErrorCode::InternalError,
                    format!("The request failed: {error}"),
                )
            })?;
        let (parts, body) = answer.into_parts();
        let mut response = S3Response::with_headers(body, parts.headers);
        response.status = Some(parts.status);
        Ok(response)
    }
}

/// Adds the request id; to errors also a message where `s3s` gives none, the resource, and what was
/// wrong with the body if that is what they come from.
fn finish(mut answer: Response<Body>, access: &Access) -> Result<Response<Body>, S3Error> {
    let context = &access.context;
    let status = answer.status();
    if status == StatusCode::OK && answer.headers().contains_key(CONTENT_RANGE) {
        // s3s has no way to say so for these operations.
        *answer.status_mut() = StatusCode::PARTIAL_CONTENT;
    } else if status == StatusCode::NOT_MODIFIED {
        *answer.body_mut() = Body::empty();
        answer.headers_mut().remove(CONTENT_TYPE);
    } else if status.is_client_error() || status.is_server_error() {
        let text = answer
            .body()
            .bytes()
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let mut text = text.unwrap_or_default();
        if unread_body(status, &text) {
            // s3s could not read the body it needed whole, and does not say why.
            let incomplete = || {
                fault(
                    S3ErrorCode::IncompleteBody,
                    "The body is not as its headers announce.",
                )
            };
            answer = context
                .fault()
                .unwrap_or_else(incomplete)
                .to_http_response()?;
            text = answer
                .body()
                .bytes()
                .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
                .unwrap_or_default();
        }
        *answer.body_mut() =
            Body::from(complete_error(&text, context, &access.bucket, &access.key));
        let headers = answer.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/xml"));
        headers.remove(CONTENT_LENGTH);
    }
    if context.body_open.load(Relaxed) {
        // What is left of the body cannot be told from the next request.
        answer
            .headers_mut()
            .insert(CONNECTION, HeaderValue::from_static("close"));
    }
    if let Ok(id) = HeaderValue::try_from(&context.id) {
        answer.headers_mut().insert(REQUEST_ID, id);
    }
    Ok(answer)
}

/// The one error that `s3s` answers with 500 and without a message; ours have one.
fn unread_body(status: StatusCode, text: &str) -> bool {
    status == StatusCode::INTERNAL_SERVER_ERROR
        && text.contains("<Code>InternalError</Code>")
        && !text.contains("<Message>")
}

fn complete_error(text: &str, context: &RequestContext, bucket: &str, key: &str) -> String {
    let Some(end) = text.rfind("</Error>") else {
        return text.to_owned();
    };
    let mut whole = text[..end].to_owned();
    let code = text
        .split_once("<Code>")
        .and_then(|(_, rest)| rest.split_once("</Code>"))
        .map_or("", |(code, _)| code);
    if !text.contains("<Message>") {
        whole.push_str(&format!(
            "<Message>{}</Message>",
            escape(default_message(code))
        ));
    }
    if code == "PreconditionFailed"
        && let Some(condition) = context.condition
    {
        whole.push_str(&format!("<Condition>{condition}</Condition>"));
    }
    let id = &context.id;
    let resource = if key.is_empty() {
        format!("/{bucket}")
    } else {
        format!("/{bucket}/{key}")
    };
    whole.push_str(&format!(
        "<Resource>{}</Resource><RequestId>{id}</RequestId></Error>",
        escape(&resource)
    ));
    whole
}

/// Text as XML 1.0 can hold it: control characters cannot be written at all.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            control if control.is_control() => escaped.push('\u{FFFD}'),
            other => escaped.push(other),
        }
    }
    escaped
}
