//! Resumable sessions of Google's JSON API as a pure machine: what to ask, and what an answer means. No I/O, no clock.
//!
//! The marks S.0 to S.9 are those of Google's own Java client, in whose terms the cases are known. Two corrections: only 200
//! and 201 end an upload, never a 308, and a 308 without a Range means that nothing is kept, wherever it comes.

use std::ops::Range;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use object_store::{Attribute, Attributes};
use serde_json::{Map, Value, json};
use url::Url;

use crate::upload::http::Answer;
use crate::upload::{ChunkRule, Finished};

/// Chunks but the last end at multiples of it, in bytes.
const GRANULE: u64 = 256 * 1024;
/// Objects are at most 5 TiB.
const LONGEST: u64 = 5 << 40;

/// How the store wants its chunks.
pub(super) const RULE: ChunkRule = ChunkRule {
    granule: GRANULE,
    least: GRANULE,
    most: LONGEST,
    chunks: None,
    parallel: false,
};

/// Opens a session by the JSON API.
#[derive(Debug)]
pub(super) struct Start<'a> {
    pub(super) bucket: &'a str,
    pub(super) key: &'a str,
    /// The object must be of this generation when it is replaced; 0: it must not be there.
    pub(super) if_generation: Option<&'a str>,
    pub(super) attributes: &'a Attributes,
    /// Of the object, if known.
    pub(super) length: Option<u64>,
}

impl Start<'_> {
    /// `endpoint` has scheme, host and port. `None` if it is no base of an address.
    pub(super) fn url(&self, endpoint: &Url) -> Option<Url> {
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
        query.append_pair("uploadType", "resumable");
        query.append_pair("name", self.key);
        if let Some(generation) = self.if_generation {
            query.append_pair("ifGenerationMatch", generation);
        }
        drop(query);
        Some(url)
    }

    /// The object's metadata, as the request's JSON body.
    pub(super) fn metadata(&self) -> String {
        let mut fields = Map::new();
        let mut own = Map::new();
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

/// Where the JSON API has an object's metadata, of which only what identifies its bytes is asked for.
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

/// The object in an answer to a request for its metadata; `Err` says what is wrong with it.
pub(super) fn object(answer: &Answer) -> Result<Finished, String> {
    finished(answer)
}

/// The session's address in an answer to a start, which has exactly this status when it succeeded: 200 by the JSON API, 201
/// by a signed address.
pub(super) fn started(answer: &Answer, status: u16, endpoint: &Url) -> Option<Url> {
    let location = answer.header("location")?;
    (answer.status == status).then_some(())?;
    endpoint.join(location).ok()
}

/// A start by an address that somebody with credentials signed.
#[derive(Debug)]
pub(super) struct SignedStart {
    pub(super) headers: HeaderMap,
}

impl SignedStart {
    /// Takes the headers the address was signed for, but for `host`, which comes by itself, and `x-goog-resumable: start`.
    ///
    /// A header signed and not sent, a precondition for instance, is refused by the store with an error that does not name
    /// it, and so is one of the store's own sent and not signed. `Err` names them.
    pub(super) fn new(url: &Url, mut headers: HeaderMap) -> Result<Self, String> {
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

/// A request in a session. Ranges and lengths are of the object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// More bytes, others will follow.
    Append(Range<u64>),
    /// The end; with the last bytes, if any were not sent yet.
    Finish {
        tail: Option<Range<u64>>,
        length: u64,
        crc32c: u32,
    },
    /// What is kept?
    Query,
    /// Drop it.
    Cancel,
}

impl Step {
    pub(super) fn method(&self) -> Method {
        match self {
            Self::Cancel => Method::DELETE,
            _ => Method::PUT,
        }
    }

    /// What the message calls it.
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

    /// The X-Goog-Hash header: the whole object's, so only at its end.
    pub(super) fn hash(&self) -> Option<String> {
        match self {
            Self::Finish { crc32c, .. } => {
                let text = BASE64_STANDARD.encode(crc32c.to_be_bytes());
                Some(format!("crc32c={text}"))
            }
            _ => None,
        }
    }
}

/// What an answer means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Meaning {
    /// The session is open and keeps the object's first so many bytes.
    Keeps(u64),
    /// The object is there.
    Finished(Finished),
    /// The session is unknown: over, or never was.
    Gone,
    /// The answer contradicts what was sent; asking again would change nothing.
    Contradiction(String),
    /// The answer makes no sense, which may pass.
    Garbled(String),
    /// By its status.
    Refused,
}

/// What `answer` to `step` means.
pub(super) fn meaning(step: &Step, answer: &Answer) -> Meaning {
    let told = answer.header("x-http-status-code-override");
    let incomplete = answer.status == 308 || (answer.status == 200 && told == Some("308"));
    match answer.status.as_u16() {
        _ if incomplete => match kept(answer) {
            Some(kept) => still_open(step, kept),
            None => Meaning::Garbled("a Range that cannot be read".to_owned()),
        },
        200 | 201 => ended(step, answer),
        204 | 499 if *step == Step::Cancel => Meaning::Gone,
        404 | 410 | 499 => Meaning::Gone,
        _ if is_gap(step, answer) => Meaning::Contradiction(
            "the store has fewer bytes than it said before, a chunk would leave a gap (S.5)"
                .to_owned(),
        ),
        _ => Meaning::Refused,
    }
}

/// How many bytes a 308 says are kept; none if it says nothing.
fn kept(answer: &Answer) -> Option<u64> {
    if !answer.headers.contains_key("range") {
        return Some(0);
    }
    let last = answer.header("range")?.strip_prefix("bytes=0-")?;
    // Digits only: no sign, no blank.
    let plain = !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| last.parse::<u64>().ok()?.checked_add(1))?
}

fn still_open(step: &Step, kept: u64) -> Meaning {
    let contradiction = match step {
        Step::Append(range) if kept > range.end => {
            format!(
                "the store says it keeps {kept} bytes, {} were sent (S.7)",
                range.end
            )
        }
        Step::Finish { length, .. } if kept > *length => {
            format!("the store keeps {kept} bytes, the object has {length} (S.2)")
        }
        Step::Finish {
            tail: None, length, ..
        } if kept < *length => {
            format!("the store keeps {kept} of {length} bytes that it said it had (S.3)")
        }
        _ => return Meaning::Keeps(kept),
    };
    Meaning::Contradiction(contradiction)
}

fn ended(step: &Step, answer: &Answer) -> Meaning {
    if *step == Step::Cancel {
        // Too late to drop it, or an answer without meaning: the session is over either way.
        return Meaning::Gone;
    }
    if let Step::Append(_) = step {
        let text = "the session had ended before its last chunk was sent (S.1)";
        return Meaning::Contradiction(text.to_owned());
    }
    let finished = match finished(answer) {
        Ok(finished) => finished,
        Err(text) => return Meaning::Garbled(text),
    };
    match (step, finished.length) {
        (Step::Finish { length, .. }, Some(stored)) if stored != *length => {
            let mark = if stored < *length { "S.4.1" } else { "S.4.2" };
            let text = format!("the object has {stored} bytes, {length} were sent ({mark})");
            Meaning::Contradiction(text)
        }
        _ => Meaning::Finished(finished),
    }
}

/// The object in an answer of 200 or 201.
fn finished(answer: &Answer) -> Result<Finished, String> {
    if answer.body.is_empty() {
        // Sessions of signed addresses end so.
        let length = answer.header("x-goog-stored-content-length");
        let length = length.and_then(|length| length.parse().ok());
        if length.is_none() {
            return Err("success without an object or its length (S.0.1)".to_owned());
        }
        return Ok(Finished {
            e_tag: answer.header("etag").map(str::to_owned),
            version: answer.header("x-goog-generation").map(str::to_owned),
            length,
            crc32c: hash(answer, "crc32c=").and_then(|text| crc32c(&text)),
        });
    }
    let json = answer
        .header("content-type")
        .is_some_and(|kind| kind.trim_start().starts_with("application/json"));
    if !json {
        return Err("success with a body that is no JSON (S.0.1)".to_owned());
    }
    let object: Value = serde_json::from_slice(&answer.body)
        .map_err(|error| format!("success with JSON that cannot be read: {error} (S.0)"))?;
    let text = |name: &str| object[name].as_str().map(str::to_owned);
    // 64-bit numbers come as text.
    let length = text("size").and_then(|size| size.parse().ok());
    if length.is_none() {
        return Err("success with JSON that is not the object's (S.0)".to_owned());
    }
    Ok(Finished {
        // The JSON API's own etag is not what reads by the XML API see: that is the MD5.
        e_tag: text("md5Hash").and_then(|md5| e_tag(&md5)),
        version: text("generation"),
        length,
        crc32c: text("crc32c").and_then(|text| crc32c(&text)),
    })
}

/// The value of one kind in all X-Goog-Hash headers, which may be one or two.
fn hash(answer: &Answer, kind: &str) -> Option<String> {
    let values = answer.headers.get_all("x-goog-hash").iter();
    values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .find_map(|value| Some(value.trim().strip_prefix(kind)?.to_owned()))
}

fn crc32c(text: &str) -> Option<u32> {
    let bytes = BASE64_STANDARD.decode(text).ok()?;
    Some(u32::from_be_bytes(bytes.try_into().ok()?))
}

fn e_tag(md5: &str) -> Option<String> {
    let bytes = BASE64_STANDARD.decode(md5).ok()?;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    (bytes.len() == 16).then(|| format!("\"{hex}\""))
}

/// Whether the store says that a chunk begins beyond what it keeps, which it words as a failure that would pass.
fn is_gap(step: &Step, answer: &Answer) -> bool {
    let plain = answer
        .header("content-type")
        .is_some_and(|kind| kind.trim_start().starts_with("text/plain"));
    let status = answer.status.as_u16();
    if !plain || !((400..500).contains(&status) || status == 503) {
        return false;
    }
    let text = String::from_utf8_lossy(&answer.body).to_lowercase();
    // A chunk that begins earlier than the store's end is no gap.
    let earlier = matches!(step, Step::Append(_) | Step::Finish { tail: Some(_), .. })
        && text.contains("earlier");
    text.contains("content-range") && !earlier
}

/// Why the store refused, in its own words: the message and reason of an error in JSON, or what a plain text says.
pub(super) fn reason(answer: &Answer) -> String {
    const MOST_CHARS: usize = 200;
    let error: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let error = &error["error"];
    let text = match (
        error["message"].as_str(),
        error["errors"][0]["reason"].as_str(),
    ) {
        (Some(message), Some(reason)) if message != reason => format!("{message} ({reason})"),
        (Some(text), _) | (None, Some(text)) => text.to_owned(),
        (None, None) => String::from_utf8_lossy(&answer.body).trim().to_owned(),
    };
    text.chars().take(MOST_CHARS).collect()
}

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
#[cfg(test)]
mod tests;
