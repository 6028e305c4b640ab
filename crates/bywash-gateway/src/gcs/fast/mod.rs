//! The fast path of this endpoint: reads of one block in memory by requests in the common form, of an anonymous server or with an
//! access token.
//!
//! As the fast path of the S3 endpoint, it decides by itself and without waiting, and only where
//! its response is the one that [`super::endpoint`] would give. Everything else, errors of all
//! kinds included, is served there as if it had not been here.

mod request;

use bywash::Engine;
use http::{Request, Response};
use http_body::Body;

use self::request::FastRequest;
use super::access::{Access, KnownCaller};
use super::endpoint::UPLOAD_ID;
use super::gunzip::is_due;
use super::resource::{GENERATION, version_headers};
use crate::access_log::{AccessLog, Peer};
use crate::body::ServedBody;
use crate::record::RequestIds;
use crate::resident::{Arrival, Hit, ReadNames, ResidentReads, faulty};

/// Serves requests from any number of connections.
pub(crate) struct FastPath {
    reads: ResidentReads,
}

impl FastPath {
    pub(crate) fn new(engine: &Engine, access_log: Option<AccessLog>) -> Self {
        Self {
            reads: ResidentReads::new(engine, access_log, UPLOAD_ID),
        }
    }

    /// Returns the response to a request, and takes its headers. Returns `None` and leaves the request as it is if
    /// it has to be served otherwise.
    pub(crate) fn serve<B: Body>(
        &self,
        access: &Access,
        request: &mut Request<B>,
        peer: Peer,
        ids: &RequestIds,
    ) -> Option<Response<ServedBody>> {
        let arrival = Arrival::now(request, peer, ids)?;
        let hit = self.find(access, request, arrival)?;
        Some(hit.respond(request))
    }

    fn find<B>(&self, access: &Access, request: &Request<B>, arrival: Arrival<'_>) -> Option<Hit> {
        let wanted = FastRequest::parse(request)?;
        let caller = if faulty!(self, AnyToken) {
            KnownCaller::anyone()
        } else {
            access.admit_known(wanted.authorization)?
        };
        if !caller.sees(wanted.bucket) && !faulty!(self, AnyBucket) {
            return None;
        }
        let whole = wanted.range.is_none();
        let range = if faulty!(self, WholeForRange) {
            None
        } else {
            wanted.range
        };
        let version = self.reads.find(wanted.bucket, &wanted.key, range)?;
        let attributes = version.object.attributes();
        if is_due(attributes, request.headers()) && !faulty!(self, Compressed) {
            return None;
        }
        let head = self.reads.head(&version, whole, |version| {
            let (meta, attributes) = (version.object.meta(), version.object.attributes());
            version_headers(&version.bucket, meta, attributes, whole)
        });
        let is_current = |wanted: &str| {
            let current = head.value(&GENERATION);
            current.is_some_and(|current| current == wanted) || faulty!(self, AnyGeneration)
        };
        if !wanted.generation.is_none_or(is_current) {
            return None;
        }
        let name = wanted.operation.name();
        let names = ReadNames {
            bucket: wanted.bucket,
            key: &wanted.key,
            operation: [name, name],
            requester: if self.reads.is_logged() {
                caller.name().map(Into::into)
            } else {
                None
            },
        };
        self.reads.read(request, arrival, (version, head), names)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests;
