//! Records of requests at an endpoint of another protocol: counters of traffic, and lines of the access log.

use std::sync::Arc;
use std::time::Instant;

use bywash::traffic::Traffic;
use bywash::{CacheOutcome, Engine};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, Version};

use crate::access_log::{AccessLog, ClientTexts, Peer};
use crate::record::{ObjectName, RequestFacts, RequestId, RequestIds, ResponseMeter};
use crate::sigv4::canonical;

/// Begins the records of an endpoint.
#[derive(Debug)]
pub struct RequestRecorder {
    traffic: Arc<Traffic>,
    log: Option<AccessLog>,
    ids: RequestIds,
    /// Name of the client in the log.
    agent: &'static str,
}

/// The record of a request, written when it is dropped. Without a result its client has left.
#[derive(Debug)]
pub struct RequestRecord {
    meter: ResponseMeter,
    id: RequestId,
    operation: &'static str,
    cache: Option<CacheOutcome>,
    received: u64,
}

impl RequestRecorder {
    /// Records requests of clients that the log names `agent`.
    #[must_use]
    pub fn new(engine: &Engine, log: Option<AccessLog>, agent: &'static str) -> Self {
        Self {
            traffic: Arc::clone(engine.traffic()),
            log,
            ids: RequestIds::new(),
            agent,
        }
    }

    /// Begins the record of a request for an object, or for a bucket if `key` is empty. `operation`
    /// and `method`: S3's.
    #[must_use]
    pub fn begin(
        &self,
        operation: &'static str,
        method: Method,
        bucket: &str,
        key: &str,
    ) -> RequestRecord {
        let name = ObjectName::new(bucket, key);
        let mut meter = ResponseMeter::new(&self.traffic, method, name, Instant::now());
        meter.operation = Some(operation);
        meter.log = self
            .log
            .as_ref()
            .map(|log| (log.clone(), self.texts(bucket, key)));
        RequestRecord {
            meter,
            id: self.ids.next(),
            operation,
            cache: None,
            received: 0,
        }
    }

    fn texts(&self, bucket: &str, key: &str) -> ClientTexts {
        let uri: Uri = canonical::encoded(&format!("/{bucket}/{key}"))
            .parse()
            .unwrap_or_default();
        let mut headers = HeaderMap::new();
        headers.insert(
            http::header::USER_AGENT,
            HeaderValue::from_static(self.agent),
        );
        // A process of this machine has no address.
        let peer = Peer(([127, 0, 0, 1], 0).into());
        ClientTexts::new(peer, Version::HTTP_11, &uri, &headers)
    }
}

impl RequestRecord {
    /// Notes how a read was served.
    pub fn note_cache(&mut self, outcome: CacheOutcome) {
        self.cache = Some(outcome);
    }

    /// Notes that the response begins: the request has succeeded, as far as is known.
    pub fn begin_response(&mut self) {
        self.meter.record_status(StatusCode::OK);
    }

    /// Counts bytes of the object that were sent, or lent.
    pub fn count_sent(&mut self, bytes: u64) {
        self.meter.sent += bytes;
    }

    /// Counts bytes of the object that the client sent.
    pub fn count_received(&mut self, bytes: u64) {
        self.received += bytes;
    }

    /// Notes that the whole response was sent.
    pub fn end(&mut self) {
        self.meter.ended = true;
    }

    /// Notes a failure, by the status that an endpoint of HTTP has for it.
    pub fn fail(&mut self, status: StatusCode, error: &str) {
        self.meter.record_status(status);
        self.meter.error = Some(error.to_owned());
    }
}

impl Drop for RequestRecord {
    fn drop(&mut self) {
        self.meter.finish(&RequestFacts {
            id: self.id.as_str(),
            served_by: Some(self.operation),
            requester: None,
            cache: self.cache,
            received: self.received,
        });
    }
}
