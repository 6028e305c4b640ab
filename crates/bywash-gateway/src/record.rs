//! Records of requests: ids, counters of traffic, and lines of the access log, written when a response ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use std::hash::{BuildHasher, RandomState};

use bywash::CacheOutcome;
use bywash::traffic::{RequestKind, RequestSummary, Traffic};
use http::{Method, StatusCode};

use crate::access_log::{AccessLog, AccessRecord, ClientTexts};

/// Source of request ids: a random number of this process, and a count.
#[derive(Debug)]
pub(crate) struct RequestIds {
    process: u64,
    count: AtomicU64,
}

impl RequestIds {
    pub(crate) fn new() -> Self {
        Self {
            process: RandomState::new().hash_one(std::process::id()),
            count: AtomicU64::new(0),
        }
    }

    /// Returns an id that this process returns once.
    pub(crate) fn next(&self) -> RequestId {
        // Relaxed: only uniqueness matters.
        RequestId::new(self.process, self.count.fetch_add(1, Relaxed))
    }
}

/// Digits of a process in the id of a request.
const PROCESS_DIGITS: usize = 16;

/// Id of a request: 16 hexadecimal digits of its process, and at least 8 of its number.
#[derive(Clone, Copy)]
pub(crate) struct RequestId {
    digits: [u8; 32],
    len: usize,
}

impl RequestId {
    fn new(process: u64, count: u64) -> Self {
        let mut digits = [0; 32];
        let mut put = |at: &mut usize, number: u64, places: usize| {
            for place in (0..places).rev() {
                digits[*at] = b"0123456789ABCDEF"[(number >> (4 * place)) as usize & 15];
                *at += 1;
            }
        };
        let mut len = 0;
        put(&mut len, process, PROCESS_DIGITS);
        let places = (u64::BITS - count.leading_zeros()).div_ceil(4) as usize;
        put(&mut len, count, places.max(8));
        Self { digits, len }
    }

    pub(crate) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.digits[..self.len]).unwrap_or_default()
    }

    /// The digits of the process.
    pub(crate) fn process(&self) -> &str {
        std::str::from_utf8(&self.digits[..PROCESS_DIGITS]).unwrap_or_default()
    }
}

impl std::fmt::Debug for RequestId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Bucket and key that a request addresses; empty if it names none.
#[derive(Debug)]
pub(crate) struct ObjectName {
    text: String,
    bucket_len: usize,
}

impl ObjectName {
    pub(crate) fn new(bucket: &str, key: &str) -> Self {
        let mut text = String::with_capacity(bucket.len() + key.len());
        text.push_str(bucket);
        text.push_str(key);
        Self {
            text,
            bucket_len: bucket.len(),
        }
    }

    pub(crate) fn bucket(&self) -> &str {
        &self.text[..self.bucket_len]
    }

    pub(crate) fn key(&self) -> &str {
        &self.text[self.bucket_len..]
    }
}

/// Facts of a request that only the operation knows.
#[derive(Debug)]
pub(crate) struct RequestFacts<'a> {
    pub(crate) id: &'a str,
    /// The S3 operation that served it, named as its method here: `get_object`.
    pub(crate) served_by: Option<&'static str>,
    /// Access key of the verified signature.
    pub(crate) requester: Option<&'a str>,
    /// Cache outcome of a successful read.
    pub(crate) cache: Option<CacheOutcome>,
    /// Bytes of the request's body.
    pub(crate) received: u64,
}

/// Measures one request and its response. Its owner calls [`Self::finish`] when the response has ended or its client has
/// left.
#[derive(Debug)]
pub(crate) struct ResponseMeter {
    traffic: Arc<Traffic>,
    pub(crate) method: Method,
    pub(crate) name: ObjectName,
    begun: Instant,
    /// 0 until there is a response.
    status: u16,
    /// Time to the response head.
    responded: Option<Duration>,
    /// By its head; a wrong signature may still reject it.
    pub(crate) operation: Option<&'static str>,
    /// Content-Length of the response; `None` without one, or without a body.
    pub(crate) announced: Option<u64>,
    pub(crate) sent: u64,
    pub(crate) ended: bool,
    pub(crate) error: Option<String>,
    /// The log for the record, with the texts it quotes.
    pub(crate) log: Option<(AccessLog, ClientTexts)>,
}

impl ResponseMeter {
    /// Counts a request whose head arrived at `begun`.
    pub(crate) fn new(
        traffic: &Arc<Traffic>,
        method: Method,
        name: ObjectName,
        begun: Instant,
    ) -> Self {
        traffic.begin_request();
        Self {
            traffic: Arc::clone(traffic),
            method,
            name,
            begun,
            status: 0,
            responded: None,
            operation: None,
            announced: None,
            sent: 0,
            ended: false,
            error: None,
            log: None,
        }
    }

    /// Records the response's status; its body is still to be sent.
    pub(crate) fn record_status(&mut self, status: StatusCode) {
        self.status = status.as_u16();
        self.responded = Some(self.begun.elapsed());
    }

    fn kind(&self) -> RequestKind {
        match self.method {
            _ if self.name.key().is_empty() => RequestKind::Other,
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

    /// Counts the request and logs its record.
    pub(crate) fn finish(&mut self, facts: &RequestFacts<'_>) {
        let read = self.kind() == RequestKind::Read && facts.cache.is_some();
        self.traffic.note(&RequestSummary {
            kind: self.kind(),
            operation: self.operation,
            cache: facts.cache.filter(|_| read),
            latency: self.responded,
            status: self.status,
            received: facts.received,
            sent: self.sent,
            object: read.then_some((self.name.bucket(), self.name.key())),
        });
        if let Some((log, texts)) = &self.log {
            log.record(&AccessRecord {
                texts,
                method: &self.method,
                operation: facts.served_by,
                requester: facts.requester,
                bucket: self.name.bucket(),
                key: self.name.key(),
                status: self.status,
                received: facts.received,
                sent: self.sent,
                duration: self.begun.elapsed(),
                request_id: facts.id,
                cache: facts.cache.map_or("", CacheOutcome::name),
                outcome: self.outcome(),
                error: self.error.as_deref(),
            });
        }
    }
}

/// Access record and counters of a request of the fast path, written on drop.
#[derive(Debug)]
pub(crate) struct ResidentRecorder {
    pub(crate) meter: ResponseMeter,
    pub(crate) id: RequestId,
    /// Access key of the verified signature, or the account.
    pub(crate) requester: Option<Arc<str>>,
    pub(crate) served_by: &'static str,
}

impl Drop for ResidentRecorder {
    fn drop(&mut self) {
        self.meter.finish(&RequestFacts {
            id: self.id.as_str(),
            served_by: Some(self.served_by),
            requester: self.requester.as_deref(),
            cache: Some(CacheOutcome::Hit),
            received: 0,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_ids_are_as_long_as_their_numbers_need() {
        for (process, count) in [(1, 0), (u64::MAX, 255), (7, u64::from(u32::MAX) + 1)] {
            let id = RequestId::new(process, count);
            assert_eq!(id.as_str(), format!("{process:016X}{count:08X}"));
        }
        let ids = RequestIds::new();
        assert_ne!(ids.next().as_str(), ids.next().as_str());
    }

    #[test]
    fn object_names_have_their_parts() {
        let name = ObjectName::new("bucket", "a/key");
        assert_eq!((name.bucket(), name.key()), ("bucket", "a/key"));
        let none = ObjectName::new("", "");
        assert_eq!((none.bucket(), none.key()), ("", ""));
    }
}
