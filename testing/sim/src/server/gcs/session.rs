//! Server side of resumable upload sessions.

use std::collections::BTreeMap;

use base64::Engine as _;
use bytes::Bytes;
use http::Method;
use serde_json::Value;

use super::super::objects::{StoredObject, crc32c, error_response};
use super::super::{HttpRequest, HttpResponse, ServerFault};
use super::{Gcs, body, crc_text, decode, json_error, resource};

/// Every chunk but the last ends at a multiple of this length, in bytes.
const CHUNK_MULTIPLE: u64 = 256 * 1024;

/// Content headers and their names in the JSON API.
pub(super) const CONTENT_FIELDS: [(&str, &str); 5] = [
    ("content-type", "contentType"),
    ("cache-control", "cacheControl"),
    ("content-disposition", "contentDisposition"),
    ("content-encoding", "contentEncoding"),
    ("content-language", "contentLanguage"),
];

#[derive(Debug)]
enum SessionState {
    Open,
    Finished(StoredObject),
    /// Ended without an object: later requests get this status.
    Gone(u16),
}

#[derive(Debug)]
pub(super) struct Session {
    bucket: String,
    key: String,
    headers: BTreeMap<String, String>,
    if_generation: Option<u64>,
    /// Whether it was started by a signed URL: the response to its end has no body.
    signed: bool,
    /// Received bytes, in order.
    received: Vec<u8>,
    state: SessionState,
}

/// Parsed Content-Range of a request.
#[derive(Debug, PartialEq, Eq)]
enum ContentRange {
    /// No header: the body is the whole object.
    Absent,
    /// Without a body: `bytes */*` or `bytes */T`.
    StatusQuery { total: Option<u64> },
    /// `bytes A-B/*` or `bytes A-B/T`; the end is exclusive.
    Part {
        from: u64,
        end: u64,
        total: Option<u64>,
    },
}

impl ContentRange {
    /// Parses the header; `None` if it is malformed.
    fn parse(request: &HttpRequest) -> Option<Self> {
        let Some(text) = request.header("content-range") else {
            return Some(Self::Absent);
        };
        let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
        let total = match total {
            "*" => None,
            total => Some(total.parse().ok()?),
        };
        if range == "*" {
            return Some(Self::StatusQuery { total });
        }
        let (from, last) = range.split_once('-')?;
        let (from, last) = (from.parse().ok()?, last.parse::<u64>().ok()?);
        let length = last.checked_sub(from)? + 1;
        if request.complete && request.body.len() as u64 != length {
            return None;
        }
        Some(Self::Part {
            from,
            end: last + 1,
            total,
        })
    }
}

impl Session {
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, SessionState::Open)
    }

    pub(super) fn forget(&mut self) {
        // The real store uses both; here the number of received bytes decides.
        let status = if self.received.len().is_multiple_of(2) {
            404
        } else {
            410
        };
        self.state = SessionState::Gone(status);
        self.received = Vec::new();
    }

    fn append(&mut self, request: &HttpRequest, from: u64) {
        let mut length = request.body.len();
        if let Some(ServerFault::StoreAtMost(max)) = request.fault {
            length = length.min(usize::try_from(max).unwrap_or(usize::MAX));
        }
        let known = usize::try_from(self.received.len() as u64 - from).unwrap_or(usize::MAX);
        let Some(new) = request.body[..length].get(known..) else {
            return;
        };
        let begin = self.received.len();
        self.received.extend_from_slice(new);
        if request.fault == Some(ServerFault::FlipBit)
            && let Some(byte) = self.received.get_mut(begin)
        {
            *byte ^= 0x10;
        }
    }

    /// Returns a 308, or its replacement for clients that do not support it.
    fn incomplete(&self, request: &HttpRequest) -> HttpResponse {
        let mut acknowledged = self.received.len() as u64;
        match request.fault {
            Some(ServerFault::AcknowledgeMore(more)) => acknowledged += more,
            Some(ServerFault::AcknowledgeLess(less)) => {
                acknowledged = acknowledged.saturating_sub(less);
            }
            _ => {}
        }
        let response = if request.header("x-guploader-no-308") == Some("yes") {
            HttpResponse::status(200).with("x-http-status-code-override", "308")
        } else {
            HttpResponse::status(308)
        };
        match acknowledged.checked_sub(1) {
            Some(last) => response.with("range", &format!("bytes=0-{last}")),
            None => response,
        }
    }

    fn finished(&self, stored: &StoredObject) -> HttpResponse {
        if !self.signed {
            return body(&resource(&self.bucket, &self.key, stored));
        }
        HttpResponse::status(200)
            .with(
                "x-goog-stored-content-length",
                &stored.bytes.len().to_string(),
            )
            .with("x-goog-generation", &stored.generation.to_string())
            .with(
                "x-goog-hash",
                &format!("crc32c={}", crc_text(stored.crc32c)),
            )
            .with("etag", &stored.e_tag)
    }
}

impl Gcs {
    pub(super) fn start(&self, request: &HttpRequest, rest: &str) -> HttpResponse {
        let bucket = decode(rest.trim_end_matches("/o"));
        let metadata: Value = match request.body.as_ref() {
            b"" => Value::Null,
            text => match serde_json::from_slice(text) {
                Ok(value) => value,
                Err(_) => return json_error(400, "parseError"),
            },
        };
        let Some(key) = request.query("name").or_else(|| metadata["name"].as_str()) else {
            return json_error(400, "required");
        };
        let mut headers = BTreeMap::new();
        for (header, field) in CONTENT_FIELDS {
            if let Some(value) = metadata[field].as_str() {
                headers.insert(header.to_owned(), value.to_owned());
            }
        }
        for (name, value) in metadata["metadata"].as_object().into_iter().flatten() {
            if let Some(value) = value.as_str() {
                headers.insert(format!("x-goog-meta-{name}"), value.to_owned());
            }
        }
        let wanted = request.query("ifGenerationMatch").map(str::parse);
        let Ok(if_generation) = wanted.transpose() else {
            return json_error(400, "invalid");
        };
        let id = self.open(&bucket, key, headers, if_generation, false);
        let encoded = rest.trim_end_matches("/o");
        let location = format!(
            "{}/upload/storage/v1/b/{encoded}/o?uploadType=resumable&upload_id={id}",
            request.base
        );
        HttpResponse::status(200).with("location", &location)
    }

    /// Starts a session by `POST /bucket/key` with a signed query: every signed header must be present.
    pub(super) fn start_signed(&self, request: &HttpRequest) -> HttpResponse {
        let (bucket, key) = request.bucket_and_key();
        let Some(names) = request.query("X-Goog-SignedHeaders") else {
            return error_response(403, "AccessDenied");
        };
        if let Some(missing) = names.split(';').find(|name| request.header(name).is_none()) {
            let text = format!(
                "<Error><Code>MalformedSecurityHeader</Code><Details>{missing}</Details></Error>"
            );
            return HttpResponse::status(400).body(text);
        }
        let mut headers = BTreeMap::new();
        for (name, value) in &request.headers {
            let stored = name.as_str().starts_with("x-goog-meta-") || name == "content-type";
            if let (true, Ok(value)) = (stored, value.to_str()) {
                headers.insert(name.as_str().to_owned(), value.to_owned());
            }
        }
        let wanted = request.header("x-goog-if-generation-match");
        let if_generation = wanted.and_then(|wanted| wanted.parse().ok());
        let id = self.open(&bucket, &key, headers, if_generation, true);
        let location = format!(
            "{}/upload/storage/v1/b/signed/o?upload_id={id}",
            request.base
        );
        HttpResponse::status(201).with("location", &location)
    }

    fn open(
        &self,
        bucket: &str,
        key: &str,
        headers: BTreeMap<String, String>,
        if_generation: Option<u64>,
        signed: bool,
    ) -> String {
        let mut sessions = self.sessions.lock();
        // Ids depend on bucket and key, so that concurrent uploads get the same ids in every run.
        let nth = sessions
            .values()
            .filter(|session| session.bucket == bucket && session.key == key)
            .count();
        let id = format!(
            "SECRET-{:08x}-{nth}",
            crc32c(format!("{bucket}/{key}").as_bytes())
        );
        let session = Session {
            bucket: bucket.to_owned(),
            key: key.to_owned(),
            headers,
            if_generation,
            signed,
            received: Vec::new(),
            state: SessionState::Open,
        };
        sessions.insert(id.clone(), session);
        id
    }

    pub(super) fn in_session(&self, request: &HttpRequest, id: &str) -> HttpResponse {
        let mut sessions = self.sessions.lock();
        let Some(session) = sessions.get_mut(id) else {
            return json_error(404, "notFound");
        };
        match request.fault {
            Some(ServerFault::ForgetUpload) => session.forget(),
            Some(ServerFault::LoseBytes(bytes)) => {
                let length = (session.received.len() as u64).saturating_sub(bytes);
                session
                    .received
                    .truncate(usize::try_from(length).unwrap_or(usize::MAX));
            }
            _ => {}
        }
        match &session.state {
            SessionState::Gone(status) => return json_error(*status, "notFound"),
            // A client that lost the final response gets it again for any later request.
            SessionState::Finished(stored) => return session.finished(stored),
            SessionState::Open => {}
        }
        if request.method == Method::DELETE {
            session.state = SessionState::Gone(404);
            session.received = Vec::new();
            return HttpResponse::status(499);
        }
        self.chunk(request, session)
    }

    fn chunk(&self, request: &HttpRequest, session: &mut Session) -> HttpResponse {
        let received = session.received.len() as u64;
        let total = match ContentRange::parse(request) {
            None => return json_error(400, "badRequest"),
            Some(ContentRange::Absent) => {
                session.received.clear();
                session.append(request, 0);
                request.complete.then_some(request.body.len() as u64)
            }
            Some(ContentRange::StatusQuery { total }) => total,
            Some(ContentRange::Part { from, .. }) if from > received => {
                return gap_error(from, received);
            }
            Some(ContentRange::Part { end, total, .. })
                if total != Some(end) && !end.is_multiple_of(CHUNK_MULTIPLE) =>
            {
                return HttpResponse::status(400).with("content-type", "text/plain; charset=utf-8").body(
                    "Invalid request.  The number of bytes uploaded is required to be equal or greater than 262144, except \
                     for the final request (it's recommended to be the exact multiple of 262144).",
                );
            }
            Some(ContentRange::Part { from, total, .. }) => {
                session.append(request, from);
                total
            }
        };
        if !request.complete || total != Some(session.received.len() as u64) {
            return session.incomplete(request);
        }
        self.finish(request, session)
    }

    fn finish(&self, request: &HttpRequest, session: &mut Session) -> HttpResponse {
        let hashes = request.headers.get_all("x-goog-hash").iter();
        let expected = hashes
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .find_map(|value| value.trim().strip_prefix("crc32c="));
        if let Some(expected) = expected {
            let crc = crc32c(&session.received).to_be_bytes();
            let same = base64::prelude::BASE64_STANDARD
                .decode(expected)
                .is_ok_and(|expected| expected == crc);
            if !same {
                return json_error(400, "invalid");
            }
        }
        let wanted = session.if_generation;
        let stored = self.objects.put(
            &session.bucket,
            &session.key,
            Bytes::from(session.received.clone()),
            session.headers.clone(),
            |current| {
                let generation = current.map_or(0, |stored| stored.generation);
                wanted.is_none_or(|wanted| wanted == generation)
            },
        );
        let Some(stored) = stored else {
            return json_error(412, "conditionNotMet");
        };
        let response = session.finished(&stored);
        session.received = Vec::new();
        session.state = SessionState::Finished(stored);
        response
    }
}

/// Returns the error of a gap, in the exact words of the real store.
fn gap_error(from: u64, received: u64) -> HttpResponse {
    let text = format!(
        "Invalid request.  According to the Content-Range header, the upload offset is {from} byte(s), which exceeds \
         already uploaded size of {received} byte(s)."
    );
    HttpResponse::status(503)
        .with("content-type", "text/plain; charset=utf-8")
        .body(text)
}
