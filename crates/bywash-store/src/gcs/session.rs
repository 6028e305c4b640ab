//! Protocol of Google's resumable sessions (JSON API) as a pure state machine: requests, and the outcome of
//! responses. No I/O, no clock.
//!
//! The marks S.0 to S.9 are from Google's own Java client, which documents the cases. Two corrections: only 200
//! and 201 complete an upload, never a 308; and a 308 without a Range always means that nothing is stored.

use std::ops::Range;

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use object_store::{Attribute, Attributes};
use serde_json::{Map, Value, json};
use url::Url;

use crate::digest::{crc32c_of_base64, crc32c_to_base64, e_tag_of_md5, google_hash};
use crate::http_client::Response;
use crate::session::{ChunkRule, Finished};

/// Every chunk but the last ends at a multiple of this many bytes.
const GRANULE: u64 = 256 * 1024;
/// Objects are at most 5 TiB.
const LONGEST: u64 = 5 << 40;

/// The store's rule for chunks.
pub(crate) const RULE: ChunkRule = ChunkRule {
    granule: GRANULE,
    min: GRANULE,
    max: LONGEST,
    max_chunks: None,
    parallel: false,
};

/// How the JSON API gets the bytes of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UploadKind {
    /// By a session.
    Resumable,
    /// With the metadata, as a document of two parts.
    Multipart,
}

impl UploadKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Resumable => "resumable",
            Self::Multipart => "multipart",
        }
    }
}

/// Request that opens a session, or stores an object, by the JSON API.
#[derive(Debug)]
pub(super) struct Start<'a> {
    pub(super) bucket: &'a str,
    pub(super) key: &'a str,
    /// The generation that the object must have to be replaced; 0: the object must not exist.
    pub(super) if_generation: Option<&'a str>,
    pub(super) attributes: &'a Attributes,
    /// Length of the object, if known.
    pub(super) length: Option<u64>,
}

impl Start<'_> {
    /// `endpoint` has scheme, host and port. `None` if it cannot be a base URL.
    pub(super) fn url(&self, endpoint: &Url, kind: UploadKind) -> Option<Url> {
        let mut url = endpoint.clone();
        url.path_segments_mut().ok()?.clear().extend([
            "upload",
            "storage",
            "v1",
            "b",
            self.bucket,
            "o",
        ]);
        let mut query = url.query_pairs_mut();
        query.append_pair("uploadType", kind.name());
        query.append_pair("name", self.key);
        if let Some(generation) = self.if_generation {
            query.append_pair("ifGenerationMatch", generation);
        }
        drop(query);
        Some(url)
    }

    /// The object's metadata as JSON, with the checksum of its bytes if they are known.
    pub(super) fn metadata(&self, crc32c: Option<&str>) -> String {
        let mut fields = Map::new();
        let mut own = Map::new();
        if let Some(crc32c) = crc32c {
            fields.insert("crc32c".to_owned(), json!(crc32c));
        }
        fields.insert("contentType".to_owned(), json!("application/octet-stream"));
        for (name, value) in self.attributes {
            let field = match name {
                Attribute::ContentType => "contentType",
                Attribute::CacheControl => "cacheControl",
                Attribute::ContentDisposition => "contentDisposition",
                Attribute::ContentEncoding => "contentEncoding",
                Attribute::ContentLanguage => "contentLanguage",
                Attribute::StorageClass => "storageClass",
                Attribute::Metadata(name) => {
                    own.insert(name.to_string(), json!(value.as_ref()));
                    continue;
                }
                _ => continue,
            };
            fields.insert(field.to_owned(), json!(value.as_ref()));
        }
        if !own.is_empty() {
            fields.insert("metadata".to_owned(), Value::Object(own));
        }
        Value::Object(fields).to_string()
    }
}

/// Returns the URL of an object's metadata in the JSON API, limited to the fields that identify its bytes.
pub(super) fn object_url(endpoint: &Url, bucket: &str, key: &str) -> Option<Url> {
    let mut url = endpoint.clone();
    url.path_segments_mut()
        .ok()?
        .clear()
        .extend(["storage", "v1", "b", bucket, "o", key]);
    url.query_pairs_mut()
        .append_pair("fields", "size,generation,crc32c,md5Hash");
    Some(url)
}

/// Parses the object in a response to a request for its metadata; `Err` describes the fault.
pub(super) fn object(response: &Response) -> Result<Finished, String> {
    finished(response)
}

/// Returns the session's URL from the response to a start, which must have exactly this status: 200 by the JSON API,
/// 201 by a signed URL.
pub(super) fn started(response: &Response, status: u16, endpoint: &Url) -> Option<Url> {
    let location = response.header("location")?;
    (response.status == status).then_some(())?;
    endpoint.join(location).ok()
}

/// A start by a signed URL.
#[derive(Debug)]
pub(crate) struct SignedStart {
    pub(super) headers: HeaderMap,
}

impl SignedStart {
    /// Checks the headers for which the URL was signed, except `host`, which the client adds, and `x-goog-resumable:
    /// start`.
    ///
    /// A header that was signed and not sent, a precondition for instance, is refused by the store with an error that
    /// does not name it. So is one of the store's own headers that was sent and not signed. `Err` names them.
    pub(crate) fn new(url: &Url, mut headers: HeaderMap) -> Result<Self, String> {
        headers.insert(
            HeaderName::from_static("x-goog-resumable"),
            HeaderValue::from_static("start"),
        );
        let signed = url
            .query_pairs()
            .find(|(name, _)| name.eq_ignore_ascii_case("X-Goog-SignedHeaders"));
        let Some((_, signed)) = signed else {
            return Err("the address is not signed: it has no X-Goog-SignedHeaders".to_owned());
        };
        let signed: Vec<String> = signed.split(';').map(str::to_lowercase).collect();
        let missing: Vec<&str> = signed
            .iter()
            .map(String::as_str)
            .filter(|name| *name != "host" && !headers.contains_key(*name))
            .collect();
        if !missing.is_empty() {
            let names = missing.join(", ");
            return Err(format!(
                "the address is signed for headers that are not given: {names}"
            ));
        }
        let stray: Vec<&str> = headers
            .keys()
            .map(HeaderName::as_str)
            .filter(|name| name.starts_with("x-goog-") && !signed.iter().any(|known| known == name))
            .collect();
        if !stray.is_empty() {
            let names = stray.join(", ");
            return Err(format!(
                "the address is not signed for these headers: {names}"
            ));
        }
        Ok(Self { headers })
    }
}

/// A request in a session. Ranges and lengths refer to the object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SessionRequest {
    /// Sends bytes, with more to follow.
    Append(Range<u64>),
    /// Completes the upload, with the last bytes if any were not sent yet.
    Finish {
        tail: Option<Range<u64>>,
        length: u64,
        crc32c: u32,
    },
    /// Requests the stored offset.
    Query,
    /// Aborts the session.
    Cancel,
}

impl SessionRequest {
    pub(super) fn method(&self) -> Method {
        match self {
            Self::Cancel => Method::DELETE,
            _ => Method::PUT,
        }
    }

    /// Its name in messages.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Append(_) => "upload a chunk of",
            Self::Finish { .. } => "finish upload of",
            Self::Query => "ask after upload of",
            Self::Cancel => "abort upload of",
        }
    }

    /// The Content-Range header.
    pub(super) fn content_range(&self) -> Option<String> {
        Some(match self {
            Self::Append(range) => format!("bytes {}-{}/*", range.start, range.end - 1),
            Self::Finish {
                tail: Some(range),
                length,
                ..
            } if !range.is_empty() => {
                format!("bytes {}-{}/{length}", range.start, range.end - 1)
            }
            Self::Finish { length, .. } => format!("bytes */{length}"),
            Self::Query => "bytes */*".to_owned(),
            Self::Cancel => return None,
        })
    }

    /// The X-Goog-Hash header: the hash of the whole object, so only for the completion.
    pub(super) fn hash(&self) -> Option<String> {
        match self {
            Self::Finish { crc32c, .. } => Some(format!("crc32c={}", crc32c_to_base64(*crc32c))),
            _ => None,
        }
    }
}

/// Outcome of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SessionOutcome {
    /// The session is open, and the store has this many first bytes of the object.
    Stored(u64),
    /// The object exists.
    Finished(Finished),
    /// The session is unknown: it has ended or never existed.
    Gone,
    /// The response contradicts the requests sent; a retry would not help.
    Contradiction(String),
    /// The response is invalid, which may be transient.
    Invalid(String),
    /// The status decides.
    Refused,
}

/// Returns the outcome of `request` with this response.
pub(super) fn outcome(request: &SessionRequest, response: &Response) -> SessionOutcome {
    let override_status = response.header("x-http-status-code-override");
    let incomplete =
        response.status == 308 || (response.status == 200 && override_status == Some("308"));
    match response.status.as_u16() {
        _ if incomplete => match stored_length(response) {
            Some(stored) => still_open(request, stored),
            None => SessionOutcome::Invalid("a Range that cannot be read".to_owned()),
        },
        200 | 201 => ended(request, response),
        204 | 499 if *request == SessionRequest::Cancel => SessionOutcome::Gone,
        404 | 410 | 499 => SessionOutcome::Gone,
        _ if is_gap(request, response) => SessionOutcome::Contradiction(
            "the store has fewer bytes than it reported before, so a chunk would leave a gap (S.5)"
                .to_owned(),
        ),
        _ => SessionOutcome::Refused,
    }
}

/// Returns the number of bytes stored according to a 308; 0 without a Range.
fn stored_length(response: &Response) -> Option<u64> {
    if !response.headers.contains_key("range") {
        return Some(0);
    }
    let last = response.header("range")?.strip_prefix("bytes=0-")?;
    // Digits only: no sign, no space.
    let plain = !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| {
        last.parse::<u64>()
            .ok()?
            .checked_add(1 + u64::from(planted!("gcs-offset-off-by-one")))
    })?
}

fn still_open(request: &SessionRequest, stored: u64) -> SessionOutcome {
    let contradiction = match request {
        SessionRequest::Append(range)
            if stored > range.end && !planted!("gcs-more-acknowledged-than-sent") =>
        {
            format!(
                "the store reports {stored} stored bytes, {} were sent (S.7)",
                range.end
            )
        }
        SessionRequest::Finish { length, .. } if stored > *length => {
            format!("the store reports {stored} stored bytes, the object has {length} (S.2)")
        }
        SessionRequest::Finish {
            tail: None, length, ..
        } if stored < *length => {
            format!("the store reports {stored} of {length} bytes that it had acknowledged (S.3)")
        }
        _ => return SessionOutcome::Stored(stored),
    };
    SessionOutcome::Contradiction(contradiction)
}

fn ended(request: &SessionRequest, response: &Response) -> SessionOutcome {
    if *request == SessionRequest::Cancel {
        // Too late to abort it, or an empty response: the session has ended in either case.
        return SessionOutcome::Gone;
    }
    if let SessionRequest::Append(_) = request {
        let text = "the session had ended before its last chunk was sent (S.1)";
        return SessionOutcome::Contradiction(text.to_owned());
    }
    let finished = match finished(response) {
        Ok(finished) => finished,
        Err(text) => return SessionOutcome::Invalid(text),
    };
    match (request, finished.length) {
        (SessionRequest::Finish { length, .. }, Some(stored))
            if stored != *length && !planted!("gcs-length-not-compared") =>
        {
            let mark = if stored < *length { "S.4.1" } else { "S.4.2" };
            let text = format!("the object has {stored} bytes, {length} were sent ({mark})");
            SessionOutcome::Contradiction(text)
        }
        _ => SessionOutcome::Finished(finished),
    }
}

/// Parses the object in a response of 200 or 201.
fn finished(response: &Response) -> Result<Finished, String> {
    if response.body.is_empty() {
        // Sessions of signed URLs end like this.
        let length = response.header("x-goog-stored-content-length");
        let length = length.and_then(|length| length.parse().ok());
        if length.is_none() {
            return Err("success without an object or its length (S.0.1)".to_owned());
        }
        return Ok(Finished {
            e_tag: response.header("etag").map(str::to_owned),
            version: response.header("x-goog-generation").map(str::to_owned),
            length,
            crc32c: google_hash(&response.headers, "crc32c=").and_then(crc32c_of_base64),
        });
    }
    let json = response
        .header("content-type")
        .is_some_and(|kind| kind.trim_start().starts_with("application/json"));
    if !json {
        return Err("success with a body that is no JSON (S.0.1)".to_owned());
    }
    let object: Value = serde_json::from_slice(&response.body)
        .map_err(|error| format!("success with JSON that cannot be read: {error} (S.0)"))?;
    let text = |name: &str| object[name].as_str().map(str::to_owned);
    // 64-bit numbers come as text.
    let length = text("size").and_then(|size| size.parse().ok());
    if length.is_none() {
        return Err("success with JSON that is not the object's (S.0)".to_owned());
    }
    Ok(Finished {
        // The JSON API's own ETag differs from the ETag of the XML API, by which objects are read: the MD5.
        e_tag: text("md5Hash").and_then(|md5| e_tag_of_md5(&md5)),
        version: text("generation"),
        length,
        crc32c: text("crc32c").and_then(|text| crc32c_of_base64(&text)),
    })
}

/// Returns whether the store reports a chunk beyond its offset, which it words as a transient failure.
fn is_gap(request: &SessionRequest, response: &Response) -> bool {
    let plain = response
        .header("content-type")
        .is_some_and(|kind| kind.trim_start().starts_with("text/plain"));
    let status = response.status.as_u16();
    if !plain || !((400..500).contains(&status) || status == 503) {
        return false;
    }
    let text = String::from_utf8_lossy(&response.body).to_lowercase();
    // A chunk that begins before the store's offset is not a gap.
    let earlier = matches!(
        request,
        SessionRequest::Append(_) | SessionRequest::Finish { tail: Some(_), .. }
    ) && text.contains("earlier");
    text.contains("content-range") && !earlier
}

/// Returns the store's reason: message and reason of an error in JSON, or the plain text.
pub(super) fn reason(response: &Response) -> String {
    const MAX_CHARS: usize = 200;
    let error: Value = serde_json::from_slice(&response.body).unwrap_or_default();
    let error = &error["error"];
    let text = match (
        error["message"].as_str(),
        error["errors"][0]["reason"].as_str(),
    ) {
        (Some(message), Some(reason)) if message != reason => format!("{message} ({reason})"),
        (Some(text), _) | (None, Some(text)) => text.to_owned(),
        (None, None) => String::from_utf8_lossy(&response.body).trim().to_owned(),
    };
    text.chars().take(MAX_CHARS).collect()
}

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
#[cfg(test)]
mod tests;
