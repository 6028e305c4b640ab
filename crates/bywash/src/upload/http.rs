//! HTTP client of the upload sessions: one request, one response, no retries.
//!
//! Sends bodies as their pieces, without a copy. A request fails if no byte moves for a while, so a slow line does
//! not fail however long a chunk takes. URLs can be bearer capabilities, so no error and no log line contains one.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::limits::MAX_RESPONSE_BYTES;
use crate::origin::network::client_builder;
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use http_body::{Body, Frame, SizeHint};
use object_store::{Error, Result};
use parking_lot::Mutex;
use tokio::time::Instant;
use url::Url;

/// Time without a byte sent or received after which a request has failed.
const STALL: Duration = Duration::from_secs(20);
/// Bytes handed to the connection at once; each step counts as activity.
const STEP_BYTES: usize = 256 * 1024;

/// Installs ring as the process's TLS provider unless the program installed another one before.
pub(crate) fn install_tls_provider() {
    // Fails only if a provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Client with a connection pool.
#[derive(Debug, Clone)]
pub(crate) struct HttpClient {
    client: reqwest::Client,
    /// Kind of store, for errors.
    store: &'static str,
    stall: Duration,
}

/// One request.
pub(crate) struct Request {
    method: Method,
    url: Url,
    headers: HeaderMap,
    body: Vec<Bytes>,
    extra_stall: Duration,
    max_response_bytes: usize,
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Request({} <redacted>)", self.method)
    }
}

impl Request {
    pub(crate) fn new(method: Method, url: Url) -> Self {
        Self {
            method,
            url,
            headers: HeaderMap::new(),
            body: Vec::new(),
            extra_stall: Duration::ZERO,
            max_response_bytes: MAX_RESPONSE_BYTES,
        }
    }

    pub(crate) fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// Sets the body, sent piece by piece without a copy; its length is announced.
    pub(crate) fn body(mut self, pieces: Vec<Bytes>) -> Self {
        self.body = pieces;
        self
    }

    /// Sets the time beyond the stall limit for which the server may work without sending a byte.
    pub(crate) fn extra_stall(mut self, extra_stall: Duration) -> Self {
        self.extra_stall = extra_stall;
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

    /// Returns the error for this response to `operation` on `object`: a precise one where the status is, else one
    /// whose text carries the status for the retry policy. `detail` must contain no secret.
    pub(crate) fn error(
        &self,
        store: &'static str,
        operation: &str,
        object: &str,
        detail: &str,
    ) -> Error {
        // The status comes first, so that no key can imitate it.
        let text = format!(
            "{store} answered with status code: {} to {operation} {object}: {detail}",
            self.status
        );
        let path = object.to_owned();
        let source = text.into();
        match self.status {
            StatusCode::NOT_FOUND => Error::NotFound { path, source },
            StatusCode::PRECONDITION_FAILED => Error::Precondition { path, source },
            StatusCode::UNAUTHORIZED => Error::Unauthenticated { path, source },
            StatusCode::FORBIDDEN => Error::PermissionDenied { path, source },
            _ => Error::Generic { store, source },
        }
    }
}

impl HttpClient {
    /// Creates a client for one kind of store, named in its errors. Sends no request.
    pub(crate) fn new(store: &'static str) -> Result<Self> {
        // No limit on a whole request, see `send`. Redirects are off: they would resend the body elsewhere, and GCS
        // uses 308 for "resume incomplete".
        let client = client_builder()
            .redirect(reqwest::redirect::Policy::none())
            .http1_only()
            .build()
            .map_err(|error| generic(store, &error.without_url()))?;
        Ok(Self {
            client,
            store,
            stall: STALL,
        })
    }

    /// Returns the client with another stall limit; the default is 20 s.
    pub(crate) fn with_stall(mut self, stall: Duration) -> Self {
        self.stall = stall;
        self
    }

    /// Sends one request and reads its response, of any status.
    ///
    /// # Errors
    /// `Generic`, and transient, if the connection failed or no byte moved within the stall limit. The server may
    /// have processed the request all the same, also if the future is dropped.
    pub(crate) async fn send(&self, request: Request) -> Result<Response> {
        let stall = self.stall + request.extra_stall;
        let activity = LastActivity::new();
        let mut exchange = Box::pin(self.exchange(request, activity.clone()));
        loop {
            let limit = activity.last() + stall;
            match tokio::time::timeout_at(limit, &mut exchange).await {
                Ok(response) => return response,
                Err(_) if activity.last() + stall > limit => {}
                Err(_) => {
                    let text = format!("no byte moved for {} ms", stall.as_millis());
                    return Err(Error::Generic {
                        store: self.store,
                        source: text.into(),
                    });
                }
            }
        }
    }

    async fn exchange(&self, request: Request, activity: LastActivity) -> Result<Response> {
        let failed = |error: reqwest::Error| generic(self.store, &error.without_url());
        let body = GatheredBody::new(request.body, activity.clone());
        let sent = self
            .client
            .request(request.method, request.url)
            .headers(request.headers)
            .body(reqwest::Body::wrap(body))
            .send();
        let mut response = sent.await.map_err(failed)?;
        activity.touch();
        let status = response.status();
        let headers = std::mem::take(response.headers_mut());
        let mut body = BytesMut::new();
        let mut pieces = response.bytes_stream();
        while let Some(piece) = pieces.next().await {
            activity.touch();
            let piece = piece.map_err(failed)?;
            let room = request.max_response_bytes - body.len();
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
fn generic(store: &'static str, error: &reqwest::Error) -> Error {
    let mut text = error.to_string();
    let mut next = std::error::Error::source(error);
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    Error::Generic {
        store,
        source: text.into(),
    }
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

/// Body made of separate pieces.
struct GatheredBody {
    pieces: VecDeque<Bytes>,
    left: u64,
    activity: LastActivity,
}

impl GatheredBody {
    fn new(pieces: Vec<Bytes>, activity: LastActivity) -> Self {
        let left = pieces.iter().map(|piece| piece.len() as u64).sum();
        Self {
            pieces: pieces.into(),
            left,
            activity,
        }
    }
}

impl Body for GatheredBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, Infallible>>> {
        // Polled once the previous pieces were sent.
        self.activity.touch();
        let step = loop {
            let Some(piece) = self.pieces.front_mut() else {
                return Poll::Ready(None);
            };
            let step = piece.split_to(piece.len().min(STEP_BYTES));
            if piece.is_empty() {
                self.pieces.pop_front();
            }
            if !step.is_empty() {
                break step;
            }
        };
        self.left -= step.len() as u64;
        Poll::Ready(Some(Ok(Frame::data(step))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

#[cfg(test)]
mod tests;
