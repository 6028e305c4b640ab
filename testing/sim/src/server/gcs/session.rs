//! Resumable sessions, server side.

use std::collections::BTreeMap;

use base64::Engine as _;
use bytes::Bytes;
use http::Method;
use serde_json::Value;

use super::super::objects::{Stored, crc32c, failure};
use super::super::{Asked, Reply, ServerFault};
use super::{Gcs, body, crc_text, decode, refusal, resource};

/// Every chunk but the last ends at a multiple of it, in bytes.
const GRANULE: u64 = 256 * 1024;

/// Content headers and what the JSON API calls them.
pub(super) const CONTENT_FIELDS: [(&str, &str); 5] = [
    ("content-type", "contentType"),
    ("cache-control", "cacheControl"),
    ("content-disposition", "contentDisposition"),
    ("content-encoding", "contentEncoding"),
    ("content-language", "contentLanguage"),
];

#[derive(Debug)]
enum State {
    Open,
    Finished(Stored),
    /// Later requests get this status.
    Over(u16),
}

#[derive(Debug)]
pub(super) struct Session {
    bucket: String,
    key: String,
    headers: BTreeMap<String, String>,
    if_generation: Option<u64>,
    /// Started by a signed URL: its end is answered without a body.
    signed: bool,
    kept: Vec<u8>,
    state: State,
}

/// What a Content-Range says.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    /// No header: the body is the whole object.
    Whole,
    /// `bytes */*` or `bytes */T`.
    Nothing { total: Option<u64> },
    /// `bytes A-B/*` or `bytes A-B/T`; the end is exclusive.
    Part {
        from: u64,
        end: u64,
        total: Option<u64>,
    },
}

impl Told {
    /// `None` if it is malformed.
    fn read(asked: &Asked) -> Option<Self> {
        let Some(text) = asked.header("content-range") else {
            return Some(Self::Whole);
        };
        let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
        let total = match total {
            "*" => None,
            total => Some(total.parse().ok()?),
        };
        if range == "*" {
            return Some(Self::Nothing { total });
        }
        let (from, last) = range.split_once('-')?;
        let (from, last) = (from.parse().ok()?, last.parse::<u64>().ok()?);
        let length = last.checked_sub(from)? + 1;
        if asked.complete && asked.body.len() as u64 != length {
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
        matches!(self.state, State::Open)
    }

    pub(super) fn forget(&mut self) {
        // Both are seen in the wild; which one depends on the session here.
        let status = if self.kept.len().is_multiple_of(2) {
            404
        } else {
            410
        };
        self.state = State::Over(status);
        self.kept = Vec::new();
    }

    fn take(&mut self, asked: &Asked, from: u64) {
        let mut came = asked.body.len();
        if let Some(ServerFault::Keep(most)) = asked.fault {
            came = came.min(usize::try_from(most).unwrap_or(usize::MAX));
        }
        let known = usize::try_from(self.kept.len() as u64 - from).unwrap_or(usize::MAX);
        let Some(new) = asked.body[..came].get(known..) else {
            return;
        };
        let begin = self.kept.len();
        self.kept.extend_from_slice(new);
        if asked.fault == Some(ServerFault::Flip)
            && let Some(byte) = self.kept.get_mut(begin)
        {
            *byte ^= 0x10;
        }
    }

    /// 308, or what stands for it with clients that cannot bear it.
    fn incomplete(&self, asked: &Asked) -> Reply {
        let mut kept = self.kept.len() as u64;
        match asked.fault {
            Some(ServerFault::AcknowledgeMore(more)) => kept += more,
            Some(ServerFault::AcknowledgeLess(less)) => kept = kept.saturating_sub(less),
            _ => {}
        }
        let reply = if asked.header("x-guploader-no-308") == Some("yes") {
            Reply::status(200).with("x-http-status-code-override", "308")
        } else {
            Reply::status(308)
        };
        match kept.checked_sub(1) {
            Some(last) => reply.with("range", &format!("bytes=0-{last}")),
            None => reply,
        }
    }

    fn finished(&self, stored: &Stored) -> Reply {
        if !self.signed {
            return body(&resource(&self.bucket, &self.key, stored));
        }
        Reply::status(200)
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
    pub(super) fn start(&self, asked: &Asked, rest: &str) -> Reply {
        let bucket = decode(rest.trim_end_matches("/o"));
        let metadata: Value = match asked.body.as_ref() {
            b"" => Value::Null,
            text => match serde_json::from_slice(text) {
                Ok(value) => value,
                Err(_) => return refusal(400, "parseError"),
            },
        };
        let Some(key) = asked.query("name").or_else(|| metadata["name"].as_str()) else {
            return refusal(400, "required");
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
        let wanted = asked.query("ifGenerationMatch").map(str::parse);
        let Ok(if_generation) = wanted.transpose() else {
            return refusal(400, "invalid");
        };
        let id = self.open(&bucket, key, headers, if_generation, false);
        let encoded = rest.trim_end_matches("/o");
        let location = format!(
            "{}/upload/storage/v1/b/{encoded}/o?uploadType=resumable&upload_id={id}",
            asked.base
        );
        Reply::status(200).with("location", &location)
    }

    /// `POST /bucket/key` with a signed query: every header it names must be there.
    pub(super) fn start_signed(&self, asked: &Asked) -> Reply {
        let (bucket, key) = asked.bucket_and_key();
        let Some(names) = asked.query("X-Goog-SignedHeaders") else {
            return failure(403, "AccessDenied");
        };
        if let Some(missing) = names.split(';').find(|name| asked.header(name).is_none()) {
            let text = format!(
                "<Error><Code>MalformedSecurityHeader</Code><Details>{missing}</Details></Error>"
            );
            return Reply::status(400).body(text);
        }
        let mut headers = BTreeMap::new();
        for (name, value) in &asked.headers {
            let kept = name.as_str().starts_with("x-goog-meta-") || name == "content-type";
            if let (true, Ok(value)) = (kept, value.to_str()) {
                headers.insert(name.as_str().to_owned(), value.to_owned());
            }
        }
        let wanted = asked.header("x-goog-if-generation-match");
        let if_generation = wanted.and_then(|wanted| wanted.parse().ok());
        let id = self.open(&bucket, &key, headers, if_generation, true);
        let location = format!("{}/upload/storage/v1/b/signed/o?upload_id={id}", asked.base);
        Reply::status(201).with("location", &location)
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
        // Known by bucket and key, so that uploads side by side get the same ids in every run.
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
            kept: Vec::new(),
            state: State::Open,
        };
        sessions.insert(id.clone(), session);
        id
    }

    pub(super) fn in_session(&self, asked: &Asked, id: &str) -> Reply {
        let mut sessions = self.sessions.lock();
        let Some(session) = sessions.get_mut(id) else {
            return refusal(404, "notFound");
        };
        match asked.fault {
            Some(ServerFault::Forget) => session.forget(),
            Some(ServerFault::Lose(bytes)) => {
                let kept = (session.kept.len() as u64).saturating_sub(bytes);
                session
                    .kept
                    .truncate(usize::try_from(kept).unwrap_or(usize::MAX));
            }
            _ => {}
        }
        match &session.state {
            State::Over(status) => return refusal(*status, "notFound"),
            // A tombstone: one who did not hear of the end learns of it by asking anything.
            State::Finished(stored) => return session.finished(stored),
            State::Open => {}
        }
        if asked.method == Method::DELETE {
            session.state = State::Over(404);
            session.kept = Vec::new();
            return Reply::status(499);
        }
        self.chunk(asked, session)
    }

    fn chunk(&self, asked: &Asked, session: &mut Session) -> Reply {
        let kept = session.kept.len() as u64;
        let total = match Told::read(asked) {
            None => return refusal(400, "badRequest"),
            Some(Told::Whole) => {
                session.kept.clear();
                session.take(asked, 0);
                asked.complete.then_some(asked.body.len() as u64)
            }
            Some(Told::Nothing { total }) => total,
            Some(Told::Part { from, .. }) if from > kept => return gap(from, kept),
            Some(Told::Part { end, total, .. })
                if total != Some(end) && !end.is_multiple_of(GRANULE) =>
            {
                return Reply::status(400).with("content-type", "text/plain; charset=utf-8").body(
                    "Invalid request.  The number of bytes uploaded is required to be equal or greater than 262144, except \
                     for the final request (it's recommended to be the exact multiple of 262144).",
                );
            }
            Some(Told::Part { from, total, .. }) => {
                session.take(asked, from);
                total
            }
        };
        if !asked.complete || total != Some(session.kept.len() as u64) {
            return session.incomplete(asked);
        }
        self.finish(asked, session)
    }

    fn finish(&self, asked: &Asked, session: &mut Session) -> Reply {
        let told = asked.headers.get_all("x-goog-hash").iter();
        let told = told
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .find_map(|value| value.trim().strip_prefix("crc32c="));
        if let Some(told) = told {
            let crc = crc32c(&session.kept).to_be_bytes();
            let same = base64::prelude::BASE64_STANDARD
                .decode(told)
                .is_ok_and(|told| told == crc);
            if !same {
                return refusal(400, "invalid");
            }
        }
        let wanted = session.if_generation;
        let stored = self.objects.put(
            &session.bucket,
            &session.key,
            Bytes::from(session.kept.clone()),
            session.headers.clone(),
            |current| {
                let generation = current.map_or(0, |stored| stored.generation);
                wanted.is_none_or(|wanted| wanted == generation)
            },
        );
        let Some(stored) = stored else {
            return refusal(412, "conditionNotMet");
        };
        let reply = session.finished(&stored);
        session.kept = Vec::new();
        session.state = State::Finished(stored);
        reply
    }
}

/// Word for word what the real store says, so that clients can be tried on it.
fn gap(from: u64, kept: u64) -> Reply {
    let text = format!(
        "Invalid request.  According to the Content-Range header, the upload offset is {from} byte(s), which exceeds \
         already uploaded size of {kept} byte(s)."
    );
    Reply::status(503)
        .with("content-type", "text/plain; charset=utf-8")
        .body(text)
}
