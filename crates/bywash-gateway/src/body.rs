//! Bodies on their way in and out: silence is limited, faults are remembered, bytes are counted.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use bywash::traffic::{RequestKind, RequestSummary, Traffic};
use futures::Stream;
use http::{HeaderMap, Method, StatusCode};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use s3s::auth::Credentials;
use s3s::{Body, S3Error, S3ErrorCode, StdError};

use crate::access_log::{AccessLog, AccessRecord, ClientTexts};
use crate::digest::Checksum;
use crate::errors::{fault, slow_down};
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
    /// The operation reads the body as it comes.
    streams_body: AtomicBool,
    /// Bytes of the longest signed chunk that began so far: `s3s` holds one until it is whole.
    pub(crate) signed_chunk: AtomicU64,
    /// Whether there is an access log, which needs what follows.
    logged: bool,
    /// The access key whose signature was verified.
    requester: OnceLock<String>,
    operation: OnceLock<&'static str>,
}

impl RequestContext {
    pub(crate) fn new(
        id: String,
        condition: Option<&'static str>,
        payload_sha256: Option<String>,
    ) -> Self {
        Self {
            logged: false,
            requester: OnceLock::new(),
            operation: OnceLock::new(),
            id,
            condition,
            fault: OnceLock::new(),
            trailers: OnceLock::new(),
            payload_sha256,
            verified: OnceLock::new(),
            bytes_in: AtomicU64::new(0),
            body_open: AtomicBool::new(false),
            streams_body: AtomicBool::new(false),
            signed_chunk: AtomicU64::new(0),
        }
    }

    /// Has the body passed on as it comes, instead of gathered whole. To be called before it is first read.
    pub(crate) fn stream_body(&self) {
        self.streams_body.store(true, Relaxed);
    }

    pub(crate) fn streams_body(&self) -> bool {
        self.streams_body.load(Relaxed)
    }

    /// The same with an access log, or without one.
    pub(crate) fn logged(self, logged: bool) -> Self {
        Self { logged, ..self }
    }

    /// Notes for the access log which operation serves the request.
    pub(crate) fn note_operation(&self, name: &'static str) {
        // A request is served by one.
        let _ = self.operation.set(name);
    }

    /// Notes for the access log whose signature was verified.
    pub(crate) fn note_requester(&self, credentials: Option<&Credentials>) {
        if let Some(credentials) = credentials.filter(|_| self.logged) {
            self.requester
                .get_or_init(|| credentials.access_key.clone());
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
        if *code == S3ErrorCode::SlowDown {
            return Some(slow_down(message.clone()));
        }
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

/// One request's record in the access log and its place in the counters, written when this is dropped: when the
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
    /// Where the record goes, with what it quotes of the request.
    pub(crate) log: Option<(AccessLog, ClientTexts)>,
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
            log: None,
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
        self.traffic.note(&RequestSummary {
            kind: self.kind(),
            latency: self.answered,
            failed: self.status >= 500,
            received: self.context.bytes_in.load(Relaxed),
            sent: self.sent,
            object: read.then_some((self.bucket.as_str(), self.key.as_str())),
        });
        let Some((log, texts)) = self.log.take() else {
            return;
        };
        let record = AccessRecord {
            texts,
            method: self.method.clone(),
            operation: self.context.operation.get().copied(),
            requester: self.context.requester.get().cloned(),
            status: self.status,
            received: self.context.bytes_in.load(Relaxed),
            sent: self.sent,
            duration: self.begun.elapsed(),
            request_id: self.context.id.clone(),
            cache: self.cache,
            outcome: self.outcome(),
            error: self.error.take(),
            bucket: std::mem::take(&mut self.bucket),
            key: std::mem::take(&mut self.key),
        };
        log.record(record.bounded());
    }
}

/// A response body that notes for its request's access record how it went.
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
