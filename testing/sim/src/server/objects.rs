//! Objects of a fake store, and the requests on them that S3 and Google's XML API share.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use chrono::{DateTime, SecondsFormat, Utc};
use crc_fast::CrcAlgorithm::Crc32Iscsi;
use http::Method;
use md5::{Digest as _, Md5};
use parking_lot::Mutex;

use super::request::decode;
use super::s3::count_tags;
use super::{HttpRequest, HttpResponse, ServerFault};

/// Headers stored with an object, besides user metadata.
const CONTENT_HEADERS: [&str; 5] = [
    "content-type",
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
];

/// Header with the tags of an object. Reads of S3 state their number.
pub(super) const TAGGING: &str = "x-amz-tagging";

/// One version of an object.
#[derive(Debug, Clone)]
pub struct StoredObject {
    /// Contents.
    pub bytes: Bytes,
    /// Ascending with the versions of the store.
    pub generation: u64,
    /// CRC32C of the contents.
    pub crc32c: u32,
    /// MD5 of the contents.
    pub md5: [u8; 16],
    /// Quoted hex MD5 unless the writer gave another: all generations of the same contents share it.
    pub e_tag: String,
    /// Content headers, user metadata with the store's prefix, and tags.
    pub headers: BTreeMap<String, String>,
    /// Time of the write.
    pub updated: DateTime<Utc>,
}

/// Header names in which stores with these requests differ.
#[derive(Debug, Clone, Copy)]
pub struct Dialect {
    /// Prefix of user metadata.
    pub metadata_prefix: &'static str,
    /// Source of a copy, in a PUT.
    pub copy_source: &'static str,
    /// Version of an object.
    pub version: &'static str,
}

/// All objects of a store, by bucket and key. Buckets need not be created.
#[derive(Debug, Default)]
pub struct Objects {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    objects: BTreeMap<(String, String), StoredObject>,
    generation: u64,
}

/// Computes CRC32C.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    u32::try_from(crc_fast::checksum(Crc32Iscsi, bytes)).expect("a CRC32C has 32 bits")
}

impl Objects {
    /// Returns the current version.
    #[must_use]
    pub fn get(&self, bucket: &str, key: &str) -> Option<StoredObject> {
        let inner = self.inner.lock();
        inner
            .objects
            .get(&(bucket.to_owned(), key.to_owned()))
            .cloned()
    }

    /// Returns the keys of a bucket, in order.
    #[must_use]
    pub fn keys(&self, bucket: &str) -> Vec<String> {
        let inner = self.inner.lock();
        let keys = inner.objects.keys().filter(|(known, _)| known == bucket);
        keys.map(|(_, key)| key.clone()).collect()
    }

    /// Replaces the current version atomically if `preconditions_hold` returns `true` for it. An `etag` among the headers replaces the
    /// default one.
    pub fn put(
        &self,
        bucket: &str,
        key: &str,
        bytes: Bytes,
        mut headers: BTreeMap<String, String>,
        preconditions_hold: impl FnOnce(Option<&StoredObject>) -> bool,
    ) -> Option<StoredObject> {
        let crc32c = crc32c(&bytes);
        let md5: [u8; 16] = Md5::digest(&bytes).into();
        let hex: String = md5.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut inner = self.inner.lock();
        let name = (bucket.to_owned(), key.to_owned());
        if !preconditions_hold(inner.objects.get(&name)) {
            return None;
        }
        inner.generation += 1;
        let generation = inner.generation;
        let stored = StoredObject {
            bytes,
            generation,
            crc32c,
            md5,
            e_tag: headers
                .remove("etag")
                .unwrap_or_else(|| format!("\"{hex}\"")),
            headers,
            updated: Utc::now(),
        };
        inner.objects.insert(name, stored.clone());
        Some(stored)
    }

    /// Sets or removes a header of an object that exists.
    pub(super) fn set_header(&self, bucket: &str, key: &str, name: &str, value: Option<String>) {
        let mut inner = self.inner.lock();
        let stored = inner.objects.get_mut(&(bucket.to_owned(), key.to_owned()));
        let headers = &mut stored.expect("an object that was found").headers;
        match value {
            Some(value) => headers.insert(name.to_owned(), value),
            None => headers.remove(name),
        };
    }

    /// Deletes an object. Returns whether it existed.
    pub fn delete(&self, bucket: &str, key: &str) -> bool {
        let name = (bucket.to_owned(), key.to_owned());
        self.inner.lock().objects.remove(&name).is_some()
    }

    /// Executes the requests that S3 and Google's XML API share: PUT (also as a copy), GET, HEAD and DELETE of an object, and
    /// ListObjectsV2.
    #[must_use]
    pub fn respond(&self, request: &HttpRequest, dialect: Dialect) -> HttpResponse {
        let (bucket, key) = request.bucket_and_key();
        match request.method {
            Method::GET if key.is_empty() => self.list(request, &bucket),
            Method::GET | Method::HEAD => self.read(request, &bucket, &key, dialect),
            Method::PUT => self.write(request, &bucket, &key, dialect),
            Method::DELETE => self.remove(request, (bucket, key)),
            _ => error_response(405, "MethodNotAllowed"),
        }
    }

    /// Removes an object if it meets the conditions of the request.
    fn remove(&self, request: &HttpRequest, name: (String, String)) -> HttpResponse {
        let mut inner = self.inner.lock();
        let Some(current) = inner.objects.get(&name) else {
            return error_response(404, "NoSuchKey");
        };
        if !preconditions_hold(request, Some(current)) {
            return error_response(412, "PreconditionFailed");
        }
        inner.objects.remove(&name);
        HttpResponse::status(204)
    }

    fn write(
        &self,
        request: &HttpRequest,
        bucket: &str,
        key: &str,
        dialect: Dialect,
    ) -> HttpResponse {
        if !request.complete {
            return error_response(400, "IncompleteBody");
        }
        let source = request.header(dialect.copy_source).map(|source| {
            let source = decode(source.trim_start_matches('/'));
            let (bucket, key) = source.split_once('/').unwrap_or((&source, ""));
            self.get(bucket, key)
        });
        let copied = source.is_some();
        let (bytes, headers) = match source {
            Some(None) => return error_response(404, "NoSuchKey"),
            Some(Some(source)) => (source.bytes, source.headers),
            None if !digests_match(request) => return error_response(400, "BadDigest"),
            None => (stored_bytes(request), stored_headers(request, dialect)),
        };
        let put = self.put(bucket, key, bytes, headers, |current| {
            preconditions_hold(request, current)
        });
        let Some(stored) = put else {
            return error_response(412, "PreconditionFailed");
        };
        let text = format!(
            "<CopyObjectResult><ETag>{}</ETag></CopyObjectResult>",
            stored.e_tag
        );
        let response = HttpResponse::status(200)
            .with("etag", &stored.e_tag)
            .with(dialect.version, &stored.generation.to_string())
            .body(if copied { text } else { String::new() });
        let crc = BASE64_STANDARD.encode(stored.crc32c.to_be_bytes());
        match dialect.version {
            "x-amz-version-id" if request.header("x-amz-checksum-crc32c").is_some() => response
                .with("x-amz-checksum-crc32c", &crc)
                .with("x-amz-checksum-type", "FULL_OBJECT"),
            "x-goog-generation" => response.with("x-goog-hash", &format!("crc32c={crc}")),
            "x-ms-version-id" => response.with("content-md5", &BASE64_STANDARD.encode(stored.md5)),
            _ => response,
        }
    }

    fn read(
        &self,
        request: &HttpRequest,
        bucket: &str,
        key: &str,
        dialect: Dialect,
    ) -> HttpResponse {
        let Some(stored) = self.get(bucket, key) else {
            return error_response(404, "NoSuchKey");
        };
        let same =
            |tags: &str| tags == "*" || tags.split(',').any(|tag| tag.trim() == stored.e_tag);
        if request.header("if-match").is_some_and(|tags| !same(tags)) {
            return error_response(412, "PreconditionFailed");
        }
        if request.header("if-none-match").is_some_and(same) {
            return HttpResponse::status(304).with("etag", &stored.e_tag);
        }
        let length = stored.bytes.len();
        let range = match request
            .header("range")
            .map(|range| byte_range(range, length))
        {
            None => None,
            Some(None) => return error_response(416, "InvalidRange"),
            Some(range) => range,
        };
        let (status, body) = match &range {
            Some(range) => (206, stored.bytes.slice(range.clone())),
            None => (200, stored.bytes.clone()),
        };
        let mut response = HttpResponse::status(status)
            .with("etag", &stored.e_tag)
            .with(
                "last-modified",
                &stored.updated.to_rfc2822().replace("+0000", "GMT"),
            )
            .with("accept-ranges", "bytes")
            .with(dialect.version, &stored.generation.to_string());
        for (name, value) in &stored.headers {
            if name == TAGGING {
                let count = count_tags(value).to_string();
                response = response.with("x-amz-tagging-count", &count);
                continue;
            }
            let name = http::HeaderName::from_bytes(name.as_bytes()).expect("a received header");
            let value = http::HeaderValue::from_str(value).expect("a received header");
            response.headers.insert(name, value);
        }
        if let Some(range) = range {
            let text = format!("bytes {}-{}/{length}", range.start, range.end - 1);
            response = response.with("content-range", &text);
        }
        if request.method == Method::HEAD {
            return response.with("content-length", &body.len().to_string());
        }
        response.body(body)
    }

    fn list(&self, request: &HttpRequest, bucket: &str) -> HttpResponse {
        let prefix = request.query("prefix").unwrap_or_default();
        let max: usize = request
            .query("max-keys")
            .and_then(|max| max.parse().ok())
            .unwrap_or(1000);
        let after = request
            .query("continuation-token")
            .or_else(|| request.query("start-after"))
            .unwrap_or_default();
        let inner = self.inner.lock();
        let (mut contents, mut groups) = (String::new(), Vec::<String>::new());
        let (mut last, mut count, mut next) = (String::new(), 0, None);
        for ((_, key), stored) in inner
            .objects
            .iter()
            .filter(|((known, _), _)| known == bucket)
        {
            let Some(rest) = key.strip_prefix(prefix) else {
                continue;
            };
            let group = request.query("delimiter").and_then(|delimiter| {
                let end = rest.find(delimiter)? + delimiter.len();
                Some(&key[..prefix.len() + end])
            });
            let entry = group.unwrap_or(key);
            if entry <= after || entry == last {
                continue;
            }
            if count == max {
                next = Some(last);
                break;
            }
            count += 1;
            entry.clone_into(&mut last);
            if let Some(group) = group {
                groups.push(group.to_owned());
                continue;
            }
            let _ = write!(
                contents,
                "<Contents><Key>{}</Key><LastModified>{}</LastModified><ETag>{}</ETag><Size>{}</Size></Contents>",
                escape(key),
                stored.updated.to_rfc3339_opts(SecondsFormat::Millis, true),
                escape(&stored.e_tag),
                stored.bytes.len()
            );
        }
        for group in groups {
            let _ = write!(
                contents,
                "<CommonPrefixes><Prefix>{}</Prefix></CommonPrefixes>",
                escape(&group)
            );
        }
        if let Some(next) = &next {
            let _ = write!(
                contents,
                "<NextContinuationToken>{}</NextContinuationToken>",
                escape(next)
            );
        }
        let text = format!(
            "<ListBucketResult><Name>{}</Name><IsTruncated>{}</IsTruncated>{contents}</ListBucketResult>",
            escape(bucket),
            next.is_some()
        );
        HttpResponse::status(200)
            .with("content-type", "application/xml")
            .body(text)
    }
}

/// Returns whether the digests sent with a body, of S3, Google or Azure, are those of the body.
fn digests_match(request: &HttpRequest) -> bool {
    let crc = BASE64_STANDARD.encode(crc32c(&request.body).to_be_bytes());
    let md5 = BASE64_STANDARD.encode(Md5::digest(&request.body));
    let is = |name, expected: &str| request.header(name).is_none_or(|value| value == expected);
    is("x-amz-checksum-crc32c", &crc)
        && is("x-goog-hash", &format!("crc32c={crc}"))
        && is("content-md5", &md5)
}

/// Returns the bytes that a PUT stores: other ones if the fault says so, although they are acknowledged.
fn stored_bytes(request: &HttpRequest) -> Bytes {
    let mut bytes = request.body.to_vec();
    if request.fault == Some(ServerFault::FlipBit)
        && let Some(byte) = bytes.first_mut()
    {
        *byte ^= 0x10;
    }
    bytes.into()
}

fn stored_headers(request: &HttpRequest, dialect: Dialect) -> BTreeMap<String, String> {
    let mut stored = BTreeMap::new();
    for (name, value) in &request.headers {
        // Azure's content headers are those of the blob, not of the request.
        let name = name.as_str();
        let name = name.strip_prefix("x-ms-blob-").unwrap_or(name);
        let is_stored = CONTENT_HEADERS.contains(&name)
            || name.starts_with(dialect.metadata_prefix)
            || name == TAGGING;
        if is_stored && let Ok(value) = std::str::from_utf8(value.as_bytes()) {
            stored.insert(name.to_owned(), value.to_owned());
        }
    }
    stored
}

/// Returns whether the preconditions of a write, of S3 or Google, hold for the current version.
#[must_use]
pub fn preconditions_hold(request: &HttpRequest, current: Option<&StoredObject>) -> bool {
    let generation = current.map_or(0, |stored| stored.generation);
    let wanted = request.header("x-goog-if-generation-match");
    let e_tag = current.map(|stored| stored.e_tag.as_str());
    wanted.is_none_or(|wanted| wanted == generation.to_string())
        && request
            .header("if-none-match")
            .is_none_or(|_| current.is_none())
        && request
            .header("if-match")
            .is_none_or(|wanted| Some(wanted) == e_tag)
}

/// Creates an error of S3 and Google's XML API.
#[must_use]
pub fn error_response(status: u16, code: &str) -> HttpResponse {
    let text = format!("<Error><Code>{code}</Code><Message>{code}</Message></Error>");
    HttpResponse::status(status)
        .with("content-type", "application/xml")
        .body(text)
}

/// Escapes text for XML.
#[must_use]
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// Parses a single range; `None` if it begins after the end.
pub(super) fn byte_range(text: &str, length: usize) -> Option<std::ops::Range<usize>> {
    let (from, to) = text.strip_prefix("bytes=")?.split_once('-')?;
    let range = match (from.parse::<usize>(), to.parse::<usize>()) {
        (Ok(from), Ok(to)) => from..(to + 1).min(length),
        (Ok(from), Err(_)) => from..length,
        (Err(_), Ok(last)) => length.saturating_sub(last)..length,
        _ => return None,
    };
    (range.start < range.end).then_some(range)
}
