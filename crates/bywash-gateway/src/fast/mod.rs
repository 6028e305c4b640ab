//! The fast path: reads of one block in memory, or of metadata that is known, by requests in the common form.
//!
//! It decides by itself and without waiting, and only where its response is the one that `s3s` and [`crate::ops`] would
//! give. Everything else, wrong signatures and all other errors included, goes their way as if it had not been here:
//! nothing is counted or changed before a response is certain.

mod heads;
mod request;
mod signature;
mod slots;

use std::ops::Range;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use bytes::Bytes;
use bywash::Engine;
use bywash::traffic::Traffic;
use http::header::{CONTENT_LENGTH, HeaderMap, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body::Body;

use crate::access_log::{AccessLog, ClientTexts, Peer};
use crate::auth::Keys;
use crate::body::ServedBody;
use crate::host::Hosts;
use crate::range::content_range;
use crate::record::{ObjectName, RequestIds, ResidentRecorder, ResponseMeter};
use crate::response::REQUEST_ID;
use heads::{Head, Heads};
use request::FastRequest;
use signature::{Signatory, SigningKeys};

/// Serves requests from any number of connections.
pub(crate) struct FastPath {
    engine: Engine,
    hosts: Hosts,
    keys: SigningKeys,
    heads: Heads,
    traffic: Arc<Traffic>,
    access_log: Option<AccessLog>,
    #[cfg(test)]
    fault: Option<tests::Fault>,
}

/// Makes the fast path wrong in tests that compare it with the other.
macro_rules! faulty {
    ($path:expr, $fault:ident) => {{
        #[cfg(test)]
        let faulty = $path.fault == Some(tests::Fault::$fault);
        #[cfg(not(test))]
        let faulty = false;
        faulty
    }};
}

/// A response before its request is taken apart.
struct Hit {
    head: Arc<Head>,
    /// `None` for HEAD.
    piece: Option<Bytes>,
    /// The requested part of the object.
    partial: Option<Range<u64>>,
    length: u64,
    size: u64,
    recorder: ResidentRecorder,
}

impl FastPath {
    pub(crate) fn new(
        engine: &Engine,
        hosts: Hosts,
        keys: Keys,
        access_log: Option<AccessLog>,
    ) -> Self {
        Self {
            hosts,
            keys: SigningKeys::new(keys),
            heads: Heads::new(engine),
            traffic: Arc::clone(engine.traffic()),
            engine: engine.clone(),
            access_log,
            #[cfg(test)]
            fault: tests::fault(),
        }
    }

    /// Returns the response to a request, whose headers are then taken. Returns `None` and leaves the request as it is if
    /// it has to be served otherwise.
    pub(crate) fn serve<B: Body>(
        &self,
        request: &mut Request<B>,
        peer: Peer,
        ids: &RequestIds,
    ) -> Option<Response<ServedBody>> {
        let begun = Instant::now();
        if !request.body().is_end_stream() {
            return None;
        }
        let hit = self.find(request, peer, ids, begun)?;
        #[cfg(test)]
        tests::note_served();
        // The request's map has room, and the connection uses it again.
        let mut headers = std::mem::take(request.headers_mut());
        headers.clear();
        Some(hit.response(headers))
    }

    fn find<B>(
        &self,
        request: &Request<B>,
        peer: Peer,
        ids: &RequestIds,
        begun: Instant,
    ) -> Option<Hit> {
        let wanted = FastRequest::parse(request, &self.hosts)?;
        let Signatory { access_key, scope } = self.signatory(request, &wanted)?;
        if !scope.sees(wanted.bucket) {
            return None;
        }
        let object = self
            .engine
            .open_bucket(wanted.bucket)?
            .resident(&wanted.key)?;
        let size = object.meta().size;
        let partial = match wanted.range {
            _ if faulty!(self, WholeForRange) => None,
            Some(_) if size == 0 => return None,
            Some(range) => Some(range.check(size).ok()?),
            None => None,
        };
        let range = partial.clone().unwrap_or(0..size);
        let head = self
            .heads
            .get(&object, wanted.with_checksum && range == (0..size));
        let is_met = |tag| head.has_e_tag(tag) || faulty!(self, AnyCondition);
        if !wanted.if_match.is_none_or(is_met) {
            return None;
        }
        let length = range.end - range.start;
        // The read counts itself. From here on there is a response.
        let piece = match wanted.is_head {
            true => {
                object.count_head();
                None
            }
            false => Some(object.read(range)?),
        };
        let name = ObjectName::new(wanted.bucket, &wanted.key);
        let mut meter = ResponseMeter::new(&self.traffic, request.method().clone(), name, begun);
        let (operation, served_by) = match wanted.is_head {
            true => ("HeadObject", "head_object"),
            false => ("GetObject", "get_object"),
        };
        meter.operation = Some(operation);
        meter.announced = (!wanted.is_head).then_some(length);
        let texts = || ClientTexts::new(peer, request.version(), request.uri(), request.headers());
        meter.log = self.access_log.clone().map(|log| (log, texts()));
        Some(Hit {
            head,
            piece: piece.filter(|piece| !piece.is_empty()),
            partial,
            length,
            size,
            recorder: ResidentRecorder {
                meter,
                id: ids.next(),
                requester: access_key,
                served_by,
            },
        })
    }

    /// Returns the key that signed the request, if its signature is right and valid now.
    fn signatory<B>(&self, request: &Request<B>, wanted: &FastRequest<'_>) -> Option<Signatory> {
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .ok()?;
        let now = i64::try_from(now.as_secs()).ok()?;
        if !wanted.signature.is_valid_at(now) && !faulty!(self, AnyAge) {
            return None;
        }
        let (method, path) = (request.method().as_str(), request.uri().path());
        #[cfg(test)]
        if faulty!(self, AnySignature) {
            return self.keys.trust(wanted);
        }
        self.keys.verify(wanted, method, path)
    }
}

impl Hit {
    /// Returns the response, with `headers`, an empty map.
    fn response(self, mut headers: HeaderMap) -> Response<ServedBody> {
        let Self {
            head,
            piece,
            partial,
            length,
            size,
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
            headers.insert(REQUEST_ID, id);
        }
        recorder.meter.record_status(status);
        let mut response = Response::new(ServedBody::Resident(piece, recorder));
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        response
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests;
