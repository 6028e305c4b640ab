//! Bodies on their way in and out: silence is limited, faults are remembered, bytes are counted.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use bywash::traffic::{Passed, RequestKind, Traffic};
use futures::Stream;
use http::{HeaderMap, Method, StatusCode};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use s3s::{Body, S3Error, S3ErrorCode, StdError};

use crate::digest::Checksum;
use crate::errors::fault;
use crate::idle::IdleClock;

/// What is known of one request beside its HTTP form; travels in the request's extensions.
#[derive(Debug)]
pub(crate) struct RequestContext {
    pub(crate) id: String,
    /// The header whose condition decides over the request; an answer that it failed names it.
    pub(crate) condition: Option<&'static str>,
    /// What was wrong with the request's body. Layers between here and the engine wrap errors
    /// until only their text is left, so the first one to see it notes it here.
    fault: OnceLock<(S3ErrorCode, String)>,
    /// Trailers of an aws-chunked body that was decoded here and not by `s3s`.
    pub(crate) trailers: OnceLock<HeaderMap>,
    /// The payload digest of a request whose signature nobody checked, in hex.
    pub(crate) payload_sha256: Option<String>,
    /// The object's checksum, once it was verified.
    pub(crate) verified: OnceLock<Checksum>,
    pub(crate) bytes_in: AtomicU64,
    /// The client has more of its body to send, as far as it was read.
    pub(crate) body_open: AtomicBool,
}

impl RequestContext {
    pub(crate) fn new(
        id: String,
        condition: Option<&'static str>,
        payload_sha256: Option<String>,
    ) -> Self {
        Self {
            id,
            condition,
            fault: OnceLock::new(),
            trailers: OnceLock::new(),
            payload_sha256,
            verified: OnceLock::new(),
            bytes_in: AtomicU64::new(0),
            body_open: AtomicBool::new(false),
        }
    }

    /// Notes what is wrong with the body; the first note stays.
    pub(crate) fn note(&self, code: S3ErrorCode, message: impl Into<String>) -> BodyError {
        let message = message.into();
        let error = BodyError(message.clone());
        // A later fault follows from the first one.
        let _ = self.fault.set((code, message));
        error
    }

    /// The answer to a request whose body was faulty.
    pub(crate) fn fault(&self) -> Option<S3Error> {
        let (code, message) = self.fault.get()?;
        let mut error = fault(code.clone(), message.clone());
        if code.status_code().is_none() {
            error.set_status_code(StatusCode::BAD_REQUEST);
        }
        Some(error)
    }
}

/// A faulty request body; the code for it is in the [`RequestContext`].
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct BodyError(String);

/// A request body as it comes from the socket: its silence is limited, its bytes are counted.
#[derive(Debug)]
pub(crate) struct ClientBody {
    body: Incoming,
    clock: IdleClock,
    limit: Duration,
    context: Arc<RequestContext>,
}

impl ClientBody {
    pub(crate) fn new(body: Incoming, limit: Duration, context: Arc<RequestContext>) -> Self {
        Self {
            body,
            clock: IdleClock::new(limit),
            limit,
            context,
        }
    }
}

impl Stream for ClientBody {
    type Item = Result<Bytes, BodyError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            match Pin::new(&mut this.body).poll_frame(cx) {
                Poll::Ready(None) => {
                    this.context.body_open.store(false, Relaxed);
                    return Poll::Ready(None);
                }
                Poll::Ready(Some(Err(error))) => {
                    let message = format!(
                        "The body ended before its announced end ({error}); nothing was stored."
                    );
                    return Poll::Ready(Some(Err(this
                        .context
                        .note(S3ErrorCode::IncompleteBody, message))));
                }
                Poll::Ready(Some(Ok(frame))) => {
                    this.clock.progress();
                    if this.body.is_end_stream() {
                        this.context.body_open.store(false, Relaxed);
                    }
                    if let Ok(data) = frame.into_data() {
                        this.context.bytes_in.fetch_add(data.len() as u64, Relaxed);
                        return Poll::Ready(Some(Ok(data)));
                    }
                }
                Poll::Pending => {
                    ready!(this.clock.poll_expired(cx));
                    let message = format!(
                        "The body sent nothing for {:?}; nothing was stored.",
                        this.limit
                    );
                    return Poll::Ready(Some(Err(this
                        .context
                        .note(S3ErrorCode::RequestTimeout, message))));
                }
            }
        }
    }
}

/// One request's line in the log and its place in the counters, written when this is dropped: when the
/// response is over, or its client left before there was one.
#[derive(Debug)]
pub(crate) struct Access {
    pub(crate) context: Arc<RequestContext>,
    traffic: Arc<Traffic>,
    pub(crate) method: Method,
    pub(crate) bucket: String,
    pub(crate) key: String,
    begun: Instant,
    /// 0 until there is an answer.
    status: u16,
    /// Until the head of the answer was known.
    answered: Option<Duration>,
    pub(crate) cache: &'static str,
    /// Bytes the response announced; `None` if it announced none, or has no body.
    pub(crate) announced: Option<u64>,
    sent: u64,
    ended: bool,
    error: Option<String>,
}

impl Access {
    pub(crate) fn new(
        context: Arc<RequestContext>,
        traffic: Arc<Traffic>,
        method: Method,
        bucket: String,
        key: String,
    ) -> Self {
        Self {
            context,
            traffic,
            method,
            bucket,
            key,
            begun: Instant::now(),
            status: 0,
            answered: None,
            cache: "",
            announced: None,
            sent: 0,
            ended: false,
            error: None,
        }
    }

    /// There is an answer; its body is still to be sent.
    pub(crate) fn answered(&mut self, status: StatusCode) {
        self.status = status.as_u16();
        self.answered = Some(self.begun.elapsed());
    }

    fn kind(&self) -> RequestKind {
        match self.method {
            _ if self.key.is_empty() => RequestKind::Other,
            Method::GET => RequestKind::Read,
            Method::PUT | Method::POST => RequestKind::Write,
            _ => RequestKind::Other,
        }
    }

    fn outcome(&self) -> &'static str {
        match &self.error {
            Some(_) => "failed",
            None if self.status == 0 => "left",
            None if self.ended || self.announced.is_none_or(|bytes| self.sent >= bytes) => {
                "complete"
            }
            None => "cut",
        }
    }
}

impl Drop for Access {
    fn drop(&mut self) {
        let read = self.kind() == RequestKind::Read && !self.cache.is_empty();
        self.traffic.note(&Passed {
            kind: self.kind(),
            answered: self.answered,
            failed: self.status >= 500,
            received: self.context.bytes_in.load(Relaxed),
            sent: self.sent,
            object: read.then_some((self.bucket.as_str(), self.key.as_str())),
        });
        tracing::info!(
            target: "bywash::access",
            request_id = self.context.id,
            method = %self.method,
            bucket = self.bucket,
            key = self.key,
            status = self.status,
            bytes_in = self.context.bytes_in.load(Relaxed),
            bytes = self.sent,
            duration_ms = self.begun.elapsed().as_millis() as u64,
            cache = self.cache,
            outcome = self.outcome(),
            error = self.error,
        );
    }
}

/// A response body that tells its request's log line how it went.
#[derive(Debug)]
pub(crate) struct ServedBody {
    body: Body,
    access: Access,
}

impl ServedBody {
    pub(crate) fn new(body: Body, access: Access) -> Self {
        Self { body, access }
    }
}

impl http_body::Body for ServedBody {
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
        let this = self.get_mut();
        let frame = ready!(Pin::new(&mut this.body).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => {
                this.access.sent += frame.data_ref().map_or(0, |data| data.len() as u64)
            }
            Some(Err(error)) => this.access.error = Some(error.to_string()),
            None => this.access.ended = true,
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        http_body::Body::size_hint(&self.body)
    }
}
