//! The fast path: reads of one block in memory, or of metadata that is known, by requests in the common form.
//!
//! It decides by itself and without waiting, and only where its response is the one that `s3s` and
//! [`crate::ops`] would give. Everything else, wrong signatures and all other errors included, is
//! served by them as if it had not been here: nothing is counted or changed before a response is
//! certain.

mod request;

use std::sync::Arc;

use bywash::{Engine, ResidentObject};
use chrono::Utc;
use http::header::{ETAG, HeaderMap, HeaderValue};
use http::{Request, Response};
use http_body::Body;

use crate::access_log::{AccessLog, Peer};
use crate::body::ServedBody;
use crate::bucket_rules::AllRules;
use crate::encryption;
use crate::host::Hosts;
use crate::meta::version_headers;
use crate::record::RequestIds;
use crate::resident::{Arrival, Head, Hit, ReadNames, ResidentReads, faulty};
use crate::response::REQUEST_ID;
use crate::signature::ClaimedV4;
use crate::sigv4::canonical::RequestHead;
use crate::sigv4::keys::{Signatory, SigningKeys};
use request::{FastRequest, FastSignature};

/// Serves requests from any number of connections.
pub(crate) struct FastPath {
    reads: ResidentReads,
    hosts: Hosts,
    keys: Arc<SigningKeys>,
    rules: Arc<AllRules>,
}

impl FastPath {
    pub(crate) fn new(
        engine: &Engine,
        hosts: Hosts,
        keys: Arc<SigningKeys>,
        rules: Arc<AllRules>,
        access_log: Option<AccessLog>,
    ) -> Self {
        Self {
            reads: ResidentReads::new(engine, access_log, REQUEST_ID),
            hosts,
            keys,
            rules,
        }
    }

    /// Returns the response to a request, and takes its headers. Returns `None` and leaves the request as it is if
    /// it has to be served otherwise.
    pub(crate) fn serve<B: Body>(
        &self,
        request: &mut Request<B>,
        peer: Peer,
        ids: &RequestIds,
    ) -> Option<Response<ServedBody>> {
        let arrival = Arrival::now(request, peer, ids)?;
        let hit = self.find(request, arrival)?;
        Some(hit.respond(request))
    }

    fn find<B>(&self, request: &Request<B>, arrival: Arrival<'_>) -> Option<Hit> {
        let wanted = FastRequest::parse(request, &self.hosts)?;
        let Signatory { access_key, scope } = self.signatory(request, &wanted)?;
        if !scope.sees(wanted.bucket) {
            return None;
        }
        let range = if faulty!(self, WholeForRange) {
            None
        } else {
            wanted.range
        };
        let version = self.reads.find(wanted.bucket, &wanted.key, range)?;
        let with_checksum = wanted.with_checksum && version.is_whole();
        let head = self.reads.head(&version, with_checksum, |version| {
            let mut headers = headers(&version.object, with_checksum);
            if self.rules.is_encrypted(&version.bucket) {
                encryption::state("GetObject", &mut headers);
            }
            headers
        });
        let is_met = |tag| is_e_tag_of(&head, tag) || faulty!(self, AnyCondition);
        if !wanted.if_match.is_none_or(is_met) {
            return None;
        }
        let names = ReadNames {
            bucket: wanted.bucket,
            key: &wanted.key,
            operation: if wanted.is_head {
                ["HeadObject", "head_object"]
            } else {
                ["GetObject", "get_object"]
            },
            requester: Some(access_key),
        };
        self.reads.read(request, arrival, (version, head), names)
    }

    /// The key that signed the request, if its signature is right and valid now.
    fn signatory<B>(&self, request: &Request<B>, wanted: &FastRequest<'_>) -> Option<Signatory> {
        let (head, now) = (RequestHead::of(request), Utc::now());
        #[cfg(test)]
        let now = wanted
            .date(head)
            .filter(|_| faulty!(self, AnyAge))
            .unwrap_or(now);
        let claimed = match &wanted.signature {
            FastSignature::Header(value) => ClaimedV4::of_header(head, value, now),
            FastSignature::Query(query) => ClaimedV4::of_query(head, |name| query.get(name), now),
        };
        let claimed = claimed.ok()?;
        if faulty!(self, AnySignature) {
            return Some(claimed.key(&self.keys)?.key.signatory().clone());
        }
        Some(claimed.verify(&self.keys).ok()?.signatory)
    }
}

/// The headers of a version, as the operations make them.
fn headers(object: &ResidentObject, with_checksum: bool) -> HeaderMap {
    let (meta, attributes) = (object.meta(), object.attributes());
    let (version, tags) = (object.version(), object.tags());
    version_headers(meta, attributes, Some(&version), tags, with_checksum)
}

/// Whether `tag`, a value of If-Match, is the ETag of a version, strong and as clients see it.
fn is_e_tag_of(head: &Head, tag: &HeaderValue) -> bool {
    tag.as_bytes().starts_with(b"\"") && head.value(&ETAG) == Some(tag)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests;
