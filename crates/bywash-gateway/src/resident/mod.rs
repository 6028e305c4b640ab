//! Code that the fast paths of both endpoints share: a read of one block in memory and its
//! response, without a future.
//!
//! An endpoint parses its requests and checks their signature or token. It then finds the version
//! here, compares conditions with the head of its response, and reads. Each step refuses requests
//! that it does not decide, and until the last one nothing is counted.

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
pub(crate) mod both_ways;
mod heads;
mod slots;

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use bywash::traffic::Traffic;
use bywash::{Bucket, Engine, ResidentObject};
use http::header::{CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body::Body;
use s3s::dto;

use self::heads::Heads;
use crate::access_log::{AccessLog, ClientTexts, Peer};
use crate::body::ServedBody;
use crate::range::content_range;
use crate::record::{ObjectName, RequestIds, ResidentRecorder, ResponseMeter};

pub(crate) use self::heads::Head;
pub(crate) use self::slots::Slots;

/// Makes a fast path wrong in tests that compare it with the long way.
macro_rules! faulty {
    ($path:expr, $fault:ident) => {{
        #[cfg(test)]
        let faulty = $path.reads.fault == Some(crate::resident::both_ways::Fault::$fault);
        #[cfg(not(test))]
        let faulty = false;
        faulty
    }};
}
pub(crate) use faulty;

/// Reads blocks in memory for the requests of one endpoint.
pub(crate) struct ResidentReads {
    engine: Engine,
    heads: Heads,
    traffic: Arc<Traffic>,
    access_log: Option<AccessLog>,
    /// The header of a response that has its id.
    id_header: HeaderName,
    #[cfg(test)]
    pub(crate) fault: Option<both_ways::Fault>,
}

/// A version that is known, and the part of it that is read.
#[derive(Debug)]
pub(crate) struct ResidentVersion {
    pub(crate) bucket: Bucket,
    pub(crate) object: ResidentObject,
    /// The part that the request asks for; `None` if it has no range.
    partial: Option<Range<u64>>,
}

impl ResidentVersion {
    fn range(&self) -> Range<u64> {
        self.partial.clone().unwrap_or(0..self.object.meta().size)
    }

    /// Whether all bytes are read, with a range or without.
    pub(crate) fn is_whole(&self) -> bool {
        self.range() == (0..self.object.meta().size)
    }
}

/// A request at the time of its arrival.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival<'a> {
    pub(crate) peer: Peer,
    pub(crate) ids: &'a RequestIds,
    pub(crate) begun: Instant,
}

impl<'a> Arrival<'a> {
    /// The arrival of a request now, `None` if it has a body.
    pub(crate) fn now<B: Body>(
        request: &Request<B>,
        peer: Peer,
        ids: &'a RequestIds,
    ) -> Option<Self> {
        let begun = Instant::now();
        request
            .body()
            .is_end_stream()
            .then_some(Self { peer, ids, begun })
    }
}

/// Names of a request in counters and in the access log.
#[derive(Debug)]
pub(crate) struct ReadNames<'a> {
    pub(crate) bucket: &'a str,
    pub(crate) key: &'a str,
    /// Name of the operation in counters, and in the access log.
    pub(crate) operation: [&'static str; 2],
    /// The key or the account of the request.
    pub(crate) requester: Option<Arc<str>>,
}

/// A response before its request is taken apart.
pub(crate) struct Hit {
    head: Arc<Head>,
    /// `None` for HEAD.
    piece: Option<Bytes>,
    partial: Option<Range<u64>>,
    length: u64,
    size: u64,
    id_header: HeaderName,
    recorder: ResidentRecorder,
}

impl ResidentReads {
    pub(crate) fn new(
        engine: &Engine,
        access_log: Option<AccessLog>,
        id_header: HeaderName,
    ) -> Self {
        Self {
            heads: Heads::new(engine),
            traffic: Arc::clone(engine.traffic()),
            engine: engine.clone(),
            access_log,
            id_header,
            #[cfg(test)]
            fault: both_ways::fault(),
        }
    }

    /// Whether the names of requesters are logged.
    pub(crate) fn is_logged(&self) -> bool {
        self.access_log.is_some()
    }

    /// Finds the version of a key and the part that `range` asks for.
    pub(crate) fn find(
        &self,
        bucket: &str,
        key: &str,
        range: Option<dto::Range>,
    ) -> Option<ResidentVersion> {
        let bucket = self.engine.open_bucket(bucket)?;
        let object = bucket.resident(key)?;
        let size = object.meta().size;
        let partial = match range {
            Some(_) if size == 0 => return None,
            Some(range) => Some(range.check(size).ok()?),
            None => None,
        };
        Some(ResidentVersion {
            bucket,
            object,
            partial,
        })
    }

    /// The head of a version, with digests or without; `headers` builds it if it is not kept.
    pub(crate) fn head(
        &self,
        version: &ResidentVersion,
        with_digests: bool,
        headers: impl FnOnce(&ResidentVersion) -> HeaderMap,
    ) -> Arc<Head> {
        self.heads
            .get(&version.object, with_digests, || headers(version))
    }

    /// Reads the bytes, unless the request is of HEAD. The read counts itself: if it is not refused, there is a response.
    pub(crate) fn read<B>(
        &self,
        request: &Request<B>,
        arrival: Arrival<'_>,
        (version, head): (ResidentVersion, Arc<Head>),
        names: ReadNames<'_>,
    ) -> Option<Hit> {
        let (range, is_head) = (version.range(), *request.method() == Method::HEAD);
        let ResidentVersion {
            object, partial, ..
        } = version;
        let (length, size) = (range.end - range.start, object.meta().size);
        let piece = if is_head {
            object.count_head();
            None
        } else {
            Some(object.read(range)?)
        };
        let name = ObjectName::new(names.bucket, names.key);
        let method = request.method().clone();
        let mut meter = ResponseMeter::new(&self.traffic, method, name, arrival.begun);
        let [operation, served_by] = names.operation;
        meter.operation = Some(operation);
        meter.announced = (!is_head).then_some(length);
        let texts = || {
            let (version, uri) = (request.version(), request.uri());
            ClientTexts::new(arrival.peer, version, uri, request.headers())
        };
        meter.log = self.access_log.clone().map(|log| (log, texts()));
        Some(Hit {
            head,
            piece: piece.filter(|piece| !piece.is_empty()),
            partial,
            length,
            size,
            id_header: self.id_header.clone(),
            recorder: ResidentRecorder {
                meter,
                id: arrival.ids.next(),
                requester: names.requester,
                served_by,
            },
        })
    }
}

impl Hit {
    /// Returns the response, and takes the headers of its request.
    pub(crate) fn respond<B>(self, request: &mut Request<B>) -> Response<ServedBody> {
        #[cfg(test)]
        both_ways::note_served();
        // The request's map has room, and the connection uses it again.
        let mut headers = std::mem::take(request.headers_mut());
        headers.clear();
        self.response(headers)
    }

    /// Returns the response, with `headers`, an empty map.
    fn response(self, mut headers: HeaderMap) -> Response<ServedBody> {
        let Self {
            head,
            piece,
            partial,
            length,
            size,
            id_header,
            mut recorder,
        } = self;
        head.put(&mut headers);
        let status = match &partial {
            Some(range) => {
                content_range(&mut headers, range, size);
                StatusCode::PARTIAL_CONTENT
            }
            None => StatusCode::OK,
        };
        // Of a body, hyper writes the length.
        if recorder.meter.announced.is_none() {
            headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
        }
        if let Ok(id) = HeaderValue::from_str(recorder.id.as_str()) {
            headers.insert(id_header, id);
        }
        recorder.meter.record_status(status);
        let mut response = Response::new(ServedBody::Resident(piece, recorder));
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        response
    }
}

type RoutedFuture<E> = dyn Future<Output = Result<Response<ServedBody>, E>> + Send;

/// A response of a fast path, or the future of one of an endpoint.
#[allow(
    clippy::large_enum_variant,
    reason = "a box would cost an allocation for each response"
)]
pub(crate) enum Serving<E> {
    Ready(Option<Response<ServedBody>>),
    Routed(Pin<Box<RoutedFuture<E>>>),
}

impl<E> Future for Serving<E> {
    type Output = Result<Response<ServedBody>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Ready(response) => {
                Poll::Ready(Ok(response.take().expect("polled once when it is ready")))
            }
            Self::Routed(future) => future.as_mut().poll(cx),
        }
    }
}
