//! The thin HTTP client below the upload sessions: one request, one answer, no retries.
//!
//! Bodies leave as the pieces they are. A request that shows no sign of life fails by itself, so a slow line is no failure
//! however long a chunk takes. Addresses can be bearer capabilities, so neither an error nor a log line names one.

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

/// Without a byte sent or received for this long a request has failed.
const STALL: Duration = Duration::from_secs(20);
/// Bodies are handed to the connection in steps of this many bytes, each a sign of life.
const STEP_BYTES: usize = 256 * 1024;

/// Makes ring the process's TLS provider unless the program chose another one before.
pub(crate) fn install_tls_provider() {
    // An error only says that there is one already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Sends requests over connections that it keeps.
#[derive(Debug, Clone)]
pub(crate) struct HttpClient {
    client: reqwest::Client,
    /// Names the kind of store in errors.
    store: &'static str,
    stall: Duration,
}

/// One request.
pub(crate) struct Request {
    method: Method,
    url: Url,
    headers: HeaderMap,
    body: Vec<Bytes>,
    patience: Duration,
    answer_limit: usize,
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
            patience: Duration::ZERO,
            answer_limit: MAX_RESPONSE_BYTES,
        }
    }

    pub(crate) fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// The body, sent piece by piece without a copy, its length announced.
    pub(crate) fn body(mut self, pieces: Vec<Bytes>) -> Self {
        self.body = pieces;
        self
    }

    /// How much longer than the stall limit the server may work in silence.
    pub(crate) fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// The most bytes of an answer that are of use.
    pub(crate) fn answer_limit(mut self, bytes: usize) -> Self {
        self.answer_limit = bytes;
        self
    }
}

/// What came back, whatever the status.
#[derive(Clone)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// At most as much as the request's limit; the rest of a longer one is not read.
    pub(crate) body: Bytes,
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Headers can hold a session's address.
        write!(f, "Answer({}, {} bytes)", self.status, self.body.len())
    }
}

impl Answer {
    /// A header's text; `None` if it is missing or no text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The error for this answer to `operation` on `object`: precise where the status is, otherwise one that retries
    /// understand by its status. `detail` must hold no secret.
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
    /// A client for one kind of store, named in its errors. Sends no request.
    pub(crate) fn new(store: &'static str) -> Result<Self> {
        // No limit on a whole request, see `send`. A redirect would repeat a body to who knows whom, and 308 is an answer of
        // its own in one protocol.
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

    /// The same client with another stall limit; the default is 20 s.
    pub(crate) fn with_stall(mut self, stall: Duration) -> Self {
        self.stall = stall;
        self
    }

    /// Sends one request and reads its answer, of any status.
    ///
    /// # Errors
    /// `Generic`, and worth another try, if the connection failed or nothing moved within the stall limit. The server may
    /// have carried out the request all the same; so too if the future is dropped.
    pub(crate) async fn send(&self, request: Request) -> Result<Answer> {
        let stall = self.stall + request.patience;
        let life = Life::new();
        let mut exchange = Box::pin(self.exchange(request, life.clone()));
        loop {
            let limit = life.last() + stall;
            match tokio::time::timeout_at(limit, &mut exchange).await {
                Ok(answer) => return answer,
                Err(_) if life.last() + stall > limit => {}
                Err(_) => {
                    let text = format!("no sign of life for {} ms", stall.as_millis());
                    return Err(Error::Generic {
                        store: self.store,
                        source: text.into(),
                    });
                }
            }
        }
    }

    async fn exchange(&self, request: Request, life: Life) -> Result<Answer> {
        let failed = |error: reqwest::Error| generic(self.store, &error.without_url());
        let body = Gathered::new(request.body, life.clone());
        let sent = self
            .client
            .request(request.method, request.url)
            .headers(request.headers)
            .body(reqwest::Body::wrap(body))
            .send();
        let mut response = sent.await.map_err(failed)?;
        life.sign();
        let status = response.status();
        let headers = std::mem::take(response.headers_mut());
        let mut body = BytesMut::new();
        let mut pieces = response.bytes_stream();
        while let Some(piece) = pieces.next().await {
            life.sign();
            let piece = piece.map_err(failed)?;
            let room = request.answer_limit - body.len();
            body.extend_from_slice(&piece[..piece.len().min(room)]);
            if piece.len() > room {
                break;
            }
        }
        Ok(Answer {
            status,
            headers,
            body: body.freeze(),
        })
    }
}

/// An error of the connection, with its causes, which name no address once the URL is taken off.
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

/// When an exchange last showed a sign of life.
#[derive(Debug, Clone)]
struct Life(Arc<Mutex<Instant>>);

impl Life {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }

    fn sign(&self) {
        *self.0.lock() = Instant::now();
    }

    fn last(&self) -> Instant {
        *self.0.lock()
    }
}

/// A body of pieces that lie apart.
struct Gathered {
    pieces: VecDeque<Bytes>,
    left: u64,
    life: Life,
}

impl Gathered {
    fn new(pieces: Vec<Bytes>, life: Life) -> Self {
        let left = pieces.iter().map(|piece| piece.len() as u64).sum();
        Self {
            pieces: pieces.into(),
            left,
            life,
        }
    }
}

impl Body for Gathered {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, Infallible>>> {
        // Asked for when what was given before is on its way.
        self.life.sign();
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
