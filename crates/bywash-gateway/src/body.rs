//! Request and response bodies: stall limits, recorded faults, byte counts.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use bywash::{CacheOutcome, Engine};
use futures::Stream;
use http::header::{CONTENT_LENGTH, RANGE, TRANSFER_ENCODING};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode, Version};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use s3s::{Body, S3Error, S3ErrorCode, StdError};

use crate::body_pace::{BodyPace, PaceLimits};
use crate::config::Limits;
use crate::digest::Checksum;
use crate::errors::{Elements, WithElements, fault, slow_down};
use crate::idle::IdleClock;
use crate::record::{RequestFacts, RequestId, ResidentRecorder, ResponseMeter};

/// State of one request in addition to its HTTP form, passed in the request's extensions.
#[derive(Debug)]
pub(crate) struct RequestContext {
    pub(crate) id: RequestId,
    /// The conditional header that a PreconditionFailed response names.
    pub(crate) condition: Option<&'static str>,
    /// The first fault of the request's body. Layers between here and the engine reduce errors to text, so the fault
    /// is recorded where it is found.
    fault: OnceLock<BodyFault>,
    /// Elements of the error document of the response.
    elements: OnceLock<Elements>,
    /// The Range header, which an error about it repeats.
    pub(crate) range: Option<HeaderValue>,
    /// Trailers of an aws-chunked body.
    pub(crate) trailers: OnceLock<HeaderMap>,
    /// SHA-256 that the payload header states, in hexadecimal digits.
    pub(crate) payload_sha256: OnceLock<String>,
    /// Checksum of the object, after verification.
    pub(crate) verified: OnceLock<Checksum>,
    /// MD5 of the body in hex, if it was requested, at its end.
    pub(crate) md5: OnceLock<String>,
    pub(crate) bytes_in: AtomicU64,
    /// Whether unread body bytes may follow.
    pub(crate) body_open: AtomicBool,
    /// Whether the operation streams the body.
    streams_body: AtomicBool,
    /// Whether the operation holds memory from the first byte of the body until its end.
    holds_memory: AtomicBool,
    /// Whether there is an access log, which needs the next fields.
    logged: bool,
    /// Access key of the verified signature.
    requester: OnceLock<String>,
    operation: OnceLock<&'static str>,
    /// Cache outcome of a successful read.
    cache: OnceLock<CacheOutcome>,
}

impl RequestContext {
    pub(crate) fn new(id: RequestId, condition: Option<&'static str>) -> Self {
        Self {
            logged: false,
            requester: OnceLock::new(),
            operation: OnceLock::new(),
            cache: OnceLock::new(),
            id,
            condition,
            fault: OnceLock::new(),
            elements: OnceLock::new(),
            range: None,
            trailers: OnceLock::new(),
            payload_sha256: OnceLock::new(),
            verified: OnceLock::new(),
            md5: OnceLock::new(),
            bytes_in: AtomicU64::new(0),
            body_open: AtomicBool::new(false),
            streams_body: AtomicBool::new(false),
            holds_memory: AtomicBool::new(false),
        }
    }

    /// Streams the body instead of buffering it whole. Must be called before the first read.
    pub(crate) fn stream_body(&self) {
        self.streams_body.store(true, Relaxed);
    }

    pub(crate) fn streams_body(&self) -> bool {
        self.streams_body.load(Relaxed)
    }

    /// The operation holds memory for the body. A body that pauses keeps this memory from others. Must be called before the first
    /// read.
    pub(crate) fn hold_memory(&self) {
        self.holds_memory.store(true, Relaxed);
    }

    /// Sets whether there is an access log.
    pub(crate) fn logged(self, logged: bool) -> Self {
        Self { logged, ..self }
    }

    /// Keeps the parts of a request's head that its S3 error document repeats.
    pub(crate) fn repeating(self, headers: &HeaderMap) -> Self {
        let range = headers.get(RANGE).cloned();
        Self { range, ..self }
    }

    /// Records the operation for the access log.
    pub(crate) fn note_operation(&self, name: &'static str) {
        // Set once: a request has one operation.
        let _ = self.operation.set(name);
    }

    /// Records the cache outcome of a successful read, for counters and the access log.
    pub(crate) fn note_cache(&self, outcome: CacheOutcome) {
        // Set once: a request is at most one read.
        let _ = self.cache.set(outcome);
    }

    pub(crate) fn cache(&self) -> Option<CacheOutcome> {
        self.cache.get().copied()
    }

    /// Records the verified access key, or the account, for the access log.
    pub(crate) fn note_requester(&self, access_key: &str) {
        if self.logged {
            self.requester.get_or_init(|| access_key.to_owned());
        }
    }

    /// Records a fault of the body; the first one stays.
    pub(crate) fn note(&self, code: S3ErrorCode, message: impl Into<String>) -> BodyError {
        self.note_fault(&fault(code, message.into()))
    }

    /// As [`Self::note`], with the elements of an error.
    pub(crate) fn note_fault(&self, error: &S3Error) -> BodyError {
        let message = error.message().unwrap_or_default().to_owned();
        let body_error = BodyError(message.clone());
        // A later fault is a consequence of the first one.
        let _ = self.fault.set(BodyFault {
            code: error.code().clone(),
            message,
            elements: Elements::of(error).cloned().unwrap_or_default(),
        });
        body_error
    }

    /// The error response for a faulty body.
    pub(crate) fn fault(&self) -> Option<S3Error> {
        let BodyFault {
            code,
            message,
            elements,
        } = self.fault.get()?;
        if *code == S3ErrorCode::SlowDown {
            return Some(slow_down(message.clone()));
        }
        let mut error = fault(code.clone(), message.clone()).with(elements.iter());
        if code.status_code().is_none() {
            error.set_status_code(StatusCode::BAD_REQUEST);
        }
        Some(error)
    }

    /// Records the elements of an error, for its document.
    pub(crate) fn note_elements(&self, error: &S3Error) {
        if let Some(elements) = Elements::of(error) {
            // Set once: a request has one response.
            let _ = self.elements.set(elements.clone());
        }
    }

    pub(crate) fn elements(&self) -> Elements {
        self.elements.get().cloned().unwrap_or_default()
    }
}

/// The first fault of a request's body.
#[derive(Debug)]
struct BodyFault {
    code: S3ErrorCode,
    message: String,
    elements: Elements,
}

/// A faulty request body. Its error code is in the [`RequestContext`].
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct BodyError(String);

/// Whether a request announces no body by HTTP/1, where a body that is not announced is absent. In HTTP/2 its end is in its frames.
pub(crate) fn announces_no_body(parts: &Parts) -> bool {
    parts.version <= Version::HTTP_11
        && !parts.headers.contains_key(CONTENT_LENGTH)
        && !parts.headers.contains_key(TRANSFER_ENCODING)
}

/// How long the bodies of requests may pause.
#[derive(Debug, Clone)]
pub(crate) struct BodySilence {
    /// Of any body.
    limit: Duration,
    /// Of a body for which memory is held while others wait for memory.
    held: PaceLimits,
    engine: Engine,
}

impl BodySilence {
    pub(crate) fn new(limits: &Limits, engine: &Engine) -> Self {
        Self {
            limit: limits.silent_body,
            held: PaceLimits {
                silence: limits.contended_body,
                bytes_per_second: limits.contended_rate,
            },
            engine: engine.clone(),
        }
    }
}

/// A request body from the socket, with stall limit and byte count.
#[derive(Debug)]
pub(crate) struct ClientBody {
    body: Incoming,
    clock: IdleClock,
    silence: BodySilence,
    pace: BodyPace,
    /// Whether a byte has been passed on.
    has_begun: bool,
    context: Arc<RequestContext>,
}

impl ClientBody {
    pub(crate) fn new(body: Incoming, silence: BodySilence, context: Arc<RequestContext>) -> Self {
        Self {
            body,
            clock: IdleClock::new(silence.limit),
            pace: BodyPace::new(silence.held),
            silence,
            has_begun: false,
            context,
        }
    }

    /// Ready with a fault once the body has paused for too long.
    fn poll_silent(&mut self, cx: &mut Context<'_>) -> Poll<BodyError> {
        let holds = self.has_begun && self.context.holds_memory.load(Relaxed);
        let engine = &self.silence.engine;
        let others_wait = || engine.budget().waiting() > 0;
        if holds && self.pace.poll_expired(others_wait, cx).is_ready() {
            engine.traffic().note_slow_body();
            let PaceLimits {
                silence,
                bytes_per_second,
            } = self.silence.held;
            let message = format!(
                "The body sent less than {bytes_per_second} bytes a second for {silence:?} while other requests waited for the memory that it held; nothing was stored. Send it again."
            );
            return Poll::Ready(self.context.note(S3ErrorCode::RequestTimeout, message));
        }
        ready!(self.clock.poll_expired(cx));
        let message = format!(
            "The body sent nothing for {:?}; nothing was stored.",
            self.silence.limit
        );
        Poll::Ready(self.context.note(S3ErrorCode::RequestTimeout, message))
    }
}

impl Stream for ClientBody {
    type Item = Result<Bytes, BodyError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        this.pace.wanted();
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
                    if this.body.is_end_stream() {
                        this.context.body_open.store(false, Relaxed);
                    }
                    // An empty frame is no progress.
                    if let Ok(data) = frame.into_data()
                        && !data.is_empty()
                    {
                        this.clock.progress();
                        this.pace.progress(data.len());
                        this.has_begun = true;
                        this.context.bytes_in.fetch_add(data.len() as u64, Relaxed);
                        return Poll::Ready(Some(Ok(data)));
                    }
                }
                Poll::Pending => return this.poll_silent(cx).map(|fault| Some(Err(fault))),
            }
        }
    }
}

/// Access record and counters of one request, written on drop: when the response has ended or its client has left.
#[derive(Debug)]
pub(crate) struct RequestRecorder {
    pub(crate) context: Arc<RequestContext>,
    pub(crate) meter: ResponseMeter,
}

impl Drop for RequestRecorder {
    fn drop(&mut self) {
        let context = &self.context;
        self.meter.finish(&RequestFacts {
            id: context.id.as_str(),
            served_by: context.operation.get().copied(),
            requester: context.requester.get().map(String::as_str),
            cache: context.cache(),
            received: context.bytes_in.load(Relaxed),
        });
    }
}

/// A response body that updates its request's access record.
#[derive(Debug)]
pub(crate) enum ServedBody {
    /// Of the operations behind `s3s`.
    Routed(Body, RequestRecorder),
    /// Of the fast path: at most one piece.
    Resident(Option<Bytes>, ResidentRecorder),
}

impl http_body::Body for ServedBody {
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
        let (body, recorder) = match self.get_mut() {
            Self::Routed(body, recorder) => (body, recorder),
            Self::Resident(piece, recorder) => {
                let piece = piece.take();
                recorder.meter.sent += piece.as_ref().map_or(0, |piece| piece.len() as u64);
                return Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))));
            }
        };
        let frame = ready!(Pin::new(body).poll_frame(cx));
        let meter = &mut recorder.meter;
        match &frame {
            Some(Ok(frame)) => meter.sent += frame.data_ref().map_or(0, |data| data.len() as u64),
            Some(Err(error)) => meter.error = Some(error.to_string()),
            None => meter.ended = true,
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Routed(body, _) => body.is_end_stream(),
            // After a piece the end is a poll of its own: hyper drops a body that has ended before it sends the piece, and with it
            // the record of the request.
            Self::Resident(piece, recorder) => piece.is_none() && recorder.meter.sent == 0,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Routed(body, _) => http_body::Body::size_hint(body),
            Self::Resident(piece, _) => {
                SizeHint::with_exact(piece.as_ref().map_or(0, |piece| piece.len() as u64))
            }
        }
    }
}
