//! The HTTP client of an origin: one connection pool, one request at a time, no retries.
//!
//! Each origin has one client. The origin's own requests use it directly, object_store's client through
//! [`HttpClient::connector`]. Bodies are sent as their pieces, without a copy. A request with a stall limit fails if no
//! byte moves for that long, so a slow line does not fail however long a chunk takes. URLs can be bearer capabilities,
//! so no error and no log line contains one.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use http::header::{CONTENT_LENGTH, IntoHeaderName, InvalidHeaderValue};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use http_body::{Body, Frame, SizeHint};
use object_store::client::{HttpError, HttpErrorKind};
use object_store::path::Path;
use object_store::{Error, Result};
use parking_lot::Mutex;
use tokio::time::Instant;
use url::Url;

use super::interface::PartBody;
use super::network::{Connector, pool};
use super::part_stream::part_stream;
use crate::error::{StatusError, generic_error};
use crate::limits::MAX_RESPONSE_BYTES;

/// Bytes handed to the connection at once; each step counts as activity.
const STEP_BYTES: usize = 256 * 1024;

/// Client with a connection pool.
#[derive(Debug, Clone)]
pub(crate) struct HttpClient {
    client: reqwest::Client,
    /// Kind of store, for errors.
    store: &'static str,
}

/// One request, without its address.
pub(crate) struct Request {
    pub(crate) method: Method,
    /// The query of the address, for the client that makes the address.
    query: Vec<(&'static str, String)>,
    pub(crate) headers: HeaderMap,
    /// The first header that no header can be; sending fails with it.
    invalid: Option<InvalidHeaderValue>,
    body: BodySource,
    stall: Option<Duration>,
    max_response_bytes: usize,
}

/// Source of a request's body.
enum BodySource {
    /// Bytes at hand.
    Pieces(VecDeque<Bytes>),
    /// A part of this length as it arrives; locked only to be `Sync`.
    Part(Mutex<PartBody>, u64),
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Request({} <redacted>)", self.method)
    }
}

impl Request {
    pub(crate) fn new(method: Method) -> Self {
        Self {
            method,
            query: Vec::new(),
            headers: HeaderMap::new(),
            invalid: None,
            body: BodySource::Pieces(VecDeque::new()),
            stall: None,
            max_response_bytes: MAX_RESPONSE_BYTES,
        }
    }

    /// Adds a pair to the query.
    pub(crate) fn query(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.query.push((name, value.into()));
        self
    }

    /// The query.
    pub(crate) fn pairs(&self) -> Vec<(&str, &str)> {
        let pairs = self.query.iter();
        pairs.map(|(name, value)| (*name, &**value)).collect()
    }

    pub(crate) fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// Sets a header to a text, which may come from a client.
    pub(crate) fn text(mut self, name: impl IntoHeaderName, value: &str) -> Self {
        match HeaderValue::from_str(value) {
            Ok(value) => drop(self.headers.insert(name, value)),
            Err(error) => self.invalid = self.invalid.or(Some(error)),
        }
        self
    }

    pub(crate) fn headers(mut self, headers: HeaderMap) -> Self {
        self.headers.extend(headers);
        self
    }

    /// Sets headers to texts.
    pub(crate) fn texts(mut self, texts: impl IntoIterator<Item = (HeaderName, String)>) -> Self {
        for (name, value) in texts {
            self = self.text(name, &value);
        }
        self
    }

    /// Sets the body, sent piece by piece without a copy; its length is announced.
    pub(crate) fn body(mut self, pieces: Vec<Bytes>) -> Self {
        self.body = BodySource::Pieces(pieces.into());
        self
    }

    /// Sets a part of `length` bytes as body. If the part fails or has another length, it never arrives whole, and its
    /// own error is returned rather than the error of the cut connection.
    pub(crate) fn part(mut self, object: &Path, length: u64, body: PartBody) -> Self {
        let body = part_stream(object, length, body);
        self.body = BodySource::Part(Mutex::new(body), length);
        self
    }

    /// Bytes of the body.
    pub(crate) fn length(&self) -> u64 {
        match &self.body {
            BodySource::Pieces(pieces) => pieces.iter().map(|piece| piece.len() as u64).sum(),
            BodySource::Part(_, length) => *length,
        }
    }

    /// Sets the time without a byte sent or received after which the request has failed. Without it, the caller limits
    /// the time.
    pub(crate) fn stall(mut self, stall: Duration) -> Self {
        self.stall = Some(stall);
        self
    }

    /// Sets the time of [`Self::stall`] unless it is set.
    pub(crate) fn default_stall(mut self, stall: Duration) -> Self {
        self.stall = self.stall.or(Some(stall));
        self
    }

    /// Sets the maximum bytes of the response body.
    pub(crate) fn max_response_bytes(mut self, bytes: usize) -> Self {
        self.max_response_bytes = bytes;
        self
    }
}

/// A response of any status.
#[derive(Clone)]
pub(crate) struct Response {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// The body, cut at the request's limit.
    pub(crate) body: Bytes,
}

impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Headers can contain a session's URL.
        write!(f, "Response({}, {} bytes)", self.status, self.body.len())
    }
}

impl Response {
    /// Returns a header's text; `None` if it is missing or not text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Returns the error for this response to `operation` on `object`. `detail` must contain no secret.
    pub(crate) fn error(
        &self,
        store: &'static str,
        operation: &str,
        object: &str,
        detail: &str,
    ) -> Error {
        let detail = match detail {
            "" => format!("{operation} {object}"),
            detail => format!("{operation} {object}: {detail}"),
        };
        StatusError::new(self.status, detail).of(store, object)
    }
}

impl HttpClient {
    /// Creates a client for one kind of store, named in its errors. Sends no request.
    pub(crate) fn new(store: &'static str) -> Result<Self> {
        Self::of(store, pool(None, None))
    }

    /// Creates a client with these settings.
    pub(crate) fn of(store: &'static str, settings: reqwest::ClientBuilder) -> Result<Self> {
        let client = settings.build();
        Ok(Self {
            client: client.map_err(|error| connection_error(store, error))?,
            store,
        })
    }

    /// A connector with which object_store's client uses this connection pool.
    pub(crate) fn connector(&self) -> Connector {
        Connector::over(self.client.clone())
    }

    /// Returns an error of this kind of store, which the retry policy takes for transient.
    pub(crate) fn generic(
        &self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Error {
        generic_error(self.store, source)
    }

    /// Sends one request and reads its response, of any status.
    ///
    /// # Errors
    /// `Generic`, and transient, if the connection failed or no byte moved within the stall limit. The server may
    /// have processed the request all the same, also if the future is dropped.
    pub(crate) async fn send(&self, url: Url, request: Request) -> Result<Response> {
        if let Some(error) = request.invalid {
            return Err(self.generic(error));
        }
        let stall = request.stall;
        let activity = LastActivity::new();
        let mut exchange = Box::pin(self.exchange(url, request, activity.clone()));
        let Some(stall) = stall else {
            return exchange.await;
        };
        loop {
            let limit = activity.last() + stall;
            match tokio::time::timeout_at(limit, &mut exchange).await {
                Ok(response) => return response,
                Err(_) if activity.last() + stall > limit => {}
                Err(_) => {
                    let text = format!("no byte moved for {} ms", stall.as_millis());
                    return Err(self.generic(text));
                }
            }
        }
    }

    /// Sends one request without a body, and returns the response with its body unread.
    pub(crate) async fn start(
        &self,
        method: Method,
        url: Url,
        headers: HeaderMap,
    ) -> Result<reqwest::Response> {
        let sent = self.client.request(method, url).headers(headers).send();
        sent.await
            .map_err(|error| connection_error(self.store, error))
    }

    async fn exchange(
        &self,
        url: Url,
        request: Request,
        activity: LastActivity,
    ) -> Result<Response> {
        let (failure, left) = (Arc::default(), request.length());
        let mut headers = request.headers;
        let body = RequestBody::new(request.body, left, activity.clone(), Arc::clone(&failure));
        if left == 0 && [Method::PUT, Method::POST].contains(&request.method) {
            // hyper leaves it out, and stores require it.
            headers.insert(CONTENT_LENGTH, HeaderValue::from(0));
        }
        let sent = self
            .client
            .request(request.method, url)
            .headers(headers)
            .body(reqwest::Body::wrap(body))
            .send();
        let response = self.read(sent, request.max_response_bytes, &activity).await;
        match failure.lock().take() {
            Some(error) => Err(error),
            None => response,
        }
    }

    async fn read(
        &self,
        sent: impl Future<Output = reqwest::Result<reqwest::Response>>,
        max_bytes: usize,
        activity: &LastActivity,
    ) -> Result<Response> {
        let failed = |error: reqwest::Error| connection_error(self.store, error);
        let mut response = sent.await.map_err(failed)?;
        activity.touch();
        let status = response.status();
        let headers = std::mem::take(response.headers_mut());
        let mut body = BytesMut::new();
        let mut pieces = response.bytes_stream();
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(failed)?;
            if !piece.is_empty() {
                activity.touch();
            }
            let room = max_bytes - body.len();
            body.extend_from_slice(&piece[..piece.len().min(room)]);
            if piece.len() > room {
                break;
            }
        }
        Ok(Response {
            status,
            headers,
            body: body.freeze(),
        })
    }
}

/// Returns an error of the connection with its causes, without the URL.
fn connection_error(store: &'static str, error: reqwest::Error) -> Error {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut next = std::error::Error::source(&error);
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    // As object_store's own errors, which say whether a connection was made.
    let kind = if error.is_connect() {
        HttpErrorKind::Connect
    } else if error.is_timeout() {
        HttpErrorKind::Timeout
    } else {
        HttpErrorKind::Unknown
    };
    generic_error(store, HttpError::new(kind, io::Error::other(text)))
}

/// Time at which a byte was last sent or received.
#[derive(Debug, Clone)]
struct LastActivity(Arc<Mutex<Instant>>);

impl LastActivity {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }

    fn touch(&self) {
        *self.0.lock() = Instant::now();
    }

    fn last(&self) -> Instant {
        *self.0.lock()
    }
}

/// Body of a request.
struct RequestBody {
    source: BodySource,
    left: u64,
    activity: LastActivity,
    /// Set to the error of a part that failed.
    failure: Arc<Mutex<Option<Error>>>,
}

impl RequestBody {
    fn new(
        source: BodySource,
        left: u64,
        activity: LastActivity,
        failure: Arc<Mutex<Option<Error>>>,
    ) -> Self {
        Self {
            source,
            left,
            activity,
            failure,
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = self.get_mut();
        // Polled once the previous pieces were sent.
        this.activity.touch();
        let next = match &mut this.source {
            BodySource::Pieces(pieces) => next_step(pieces),
            BodySource::Part(body, _) => {
                match ready!(body.get_mut().poll_next_unpin(context)).transpose() {
                    Ok(next) => next,
                    Err(error) => {
                        let text = error.to_string();
                        *this.failure.lock() = Some(error);
                        return Poll::Ready(Some(Err(io::Error::other(text))));
                    }
                }
            }
        };
        Poll::Ready(next.map(|step| {
            this.left = this.left.saturating_sub(step.len() as u64);
            Ok(Frame::data(step))
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// Removes the next bytes to send.
fn next_step(pieces: &mut VecDeque<Bytes>) -> Option<Bytes> {
    loop {
        let piece = pieces.front_mut()?;
        let step = piece.split_to(piece.len().min(STEP_BYTES));
        if piece.is_empty() {
            pieces.pop_front();
        }
        if !step.is_empty() {
            return Some(step);
        }
    }
}

#[cfg(test)]
mod tests;
