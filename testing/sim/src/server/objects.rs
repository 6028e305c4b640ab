//! Whole objects of a fake store, and the XML requests for them that S3 and Google's XML API share.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use bytes::Bytes;
use chrono::{DateTime, SecondsFormat, Utc};
use crc_fast::CrcAlgorithm::Crc32Iscsi;
use http::Method;
use md5::{Digest as _, Md5};
use parking_lot::Mutex;

use super::request::decode;
use super::{Asked, Reply};

/// Headers that are kept with an object, besides user metadata.
const CONTENT_HEADERS: [&str; 5] = [
    "content-type",
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
];

/// One version of an object.
#[derive(Debug, Clone)]
pub struct Stored {
    /// Its bytes.
    pub bytes: Bytes,
    /// Greater than that of any version before it in the store.
    pub generation: u64,
    /// CRC32C of the bytes.
    pub crc32c: u32,
    /// MD5 of the bytes.
    pub md5: [u8; 16],
    /// The MD5 in hex, quoted: the same bytes have the same one, whatever their generation.
    pub e_tag: String,
    /// Content headers and user metadata, the latter under the store's own prefix.
    pub headers: BTreeMap<String, String>,
    /// When it became current.
    pub updated: DateTime<Utc>,
}

/// How stores that share the XML requests differ.
#[derive(Debug, Clone, Copy)]
pub struct Dialect {
    /// User metadata.
    pub metadata_prefix: &'static str,
    /// Names the object to copy in a PUT.
    pub copy_source: &'static str,
    /// Names the version of an object.
    pub version: &'static str,
}

/// All objects of a store, by bucket and key. Buckets need not be made.
#[derive(Debug, Default)]
pub struct Objects {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    objects: BTreeMap<(String, String), Stored>,
    generation: u64,
}

/// CRC32C as the fakes compute it.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    u32::try_from(crc_fast::checksum(Crc32Iscsi, bytes)).expect("it has 32 bits")
}

impl Objects {
    /// The current version.
    #[must_use]
    pub fn get(&self, bucket: &str, key: &str) -> Option<Stored> {
        let inner = self.inner.lock();
        inner
            .objects
            .get(&(bucket.to_owned(), key.to_owned()))
            .cloned()
    }

    /// Keys of a bucket, in order.
    #[must_use]
    pub fn keys(&self, bucket: &str) -> Vec<String> {
        let inner = self.inner.lock();
        let keys = inner.objects.keys().filter(|(known, _)| known == bucket);
        keys.map(|(_, key)| key.clone()).collect()
    }

    /// Replaces the current version if `allowed` says so of it, in one step. An `etag` among the headers takes the place of the
    /// usual one.
    pub fn put(
        &self,
        bucket: &str,
        key: &str,
        bytes: Bytes,
        mut headers: BTreeMap<String, String>,
        allowed: impl FnOnce(Option<&Stored>) -> bool,
    ) -> Option<Stored> {
        let crc32c = crc32c(&bytes);
        let md5: [u8; 16] = Md5::digest(&bytes).into();
        let hex: String = md5.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut inner = self.inner.lock();
        let name = (bucket.to_owned(), key.to_owned());
        if !allowed(inner.objects.get(&name)) {
            return None;
        }
        inner.generation += 1;
        let generation = inner.generation;
        let stored = Stored {
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

    /// Whether there was one.
    pub fn delete(&self, bucket: &str, key: &str) -> bool {
        let name = (bucket.to_owned(), key.to_owned());
        self.inner.lock().objects.remove(&name).is_some()
    }

    /// Answers what S3 and Google's XML API have in common: PUT (also as a copy), GET, HEAD and DELETE of an object, and
    /// lists of version 2.
    #[must_use]
    pub fn answer(&self, asked: &Asked, dialect: Dialect) -> Reply {
        let (bucket, key) = asked.bucket_and_key();
        match asked.method {
            Method::GET if key.is_empty() => self.list(asked, &bucket),
            Method::GET | Method::HEAD => self.read(asked, &bucket, &key, dialect),
            Method::PUT => self.write(asked, &bucket, &key, dialect),
            Method::DELETE if self.delete(&bucket, &key) => Reply::status(204),
            Method::DELETE => failure(404, "NoSuchKey"),
            _ => failure(405, "MethodNotAllowed"),
        }
    }

    fn write(&self, asked: &Asked, bucket: &str, key: &str, dialect: Dialect) -> Reply {
        if !asked.complete {
            return failure(400, "IncompleteBody");
        }
        let source = asked.header(dialect.copy_source).map(|source| {
            let source = decode(source.trim_start_matches('/'));
            let (bucket, key) = source.split_once('/').unwrap_or((&source, ""));
            self.get(bucket, key)
        });
        let copied = source.is_some();
        let (bytes, headers) = match source {
            Some(None) => return failure(404, "NoSuchKey"),
            Some(Some(source)) => (source.bytes, source.headers),
            None => (asked.body.clone(), kept_headers(asked, dialect)),
        };
        let put = self.put(bucket, key, bytes, headers, |current| {
            allowed(asked, current)
        });
        let Some(stored) = put else {
            return failure(412, "PreconditionFailed");
        };
        let text = format!(
            "<CopyObjectResult><ETag>{}</ETag></CopyObjectResult>",
            stored.e_tag
        );
        Reply::status(200)
            .with("etag", &stored.e_tag)
            .with(dialect.version, &stored.generation.to_string())
            .body(if copied { text } else { String::new() })
    }

    fn read(&self, asked: &Asked, bucket: &str, key: &str, dialect: Dialect) -> Reply {
        let Some(stored) = self.get(bucket, key) else {
            return failure(404, "NoSuchKey");
        };
        let same =
            |tags: &str| tags == "*" || tags.split(',').any(|tag| tag.trim() == stored.e_tag);
        if asked.header("if-match").is_some_and(|tags| !same(tags)) {
            return failure(412, "PreconditionFailed");
        }
        if asked.header("if-none-match").is_some_and(same) {
            return Reply::status(304).with("etag", &stored.e_tag);
        }
        let length = stored.bytes.len();
        let range = match asked.header("range").map(|range| byte_range(range, length)) {
            None => None,
            Some(None) => return failure(416, "InvalidRange"),
            Some(range) => range,
        };
        let (status, body) = match &range {
            Some(range) => (206, stored.bytes.slice(range.clone())),
            None => (200, stored.bytes.clone()),
        };
        let mut reply = Reply::status(status)
            .with("etag", &stored.e_tag)
            .with(
                "last-modified",
                &stored.updated.to_rfc2822().replace("+0000", "GMT"),
            )
            .with("accept-ranges", "bytes")
            .with(dialect.version, &stored.generation.to_string());
        for (name, value) in &stored.headers {
            let name = http::HeaderName::from_bytes(name.as_bytes()).expect("it came as a header");
            let value = http::HeaderValue::from_str(value).expect("it came as a header");
            reply.headers.insert(name, value);
        }
        if let Some(range) = range {
            let text = format!("bytes {}-{}/{length}", range.start, range.end - 1);
            reply = reply.with("content-range", &text);
        }
        if asked.method == Method::HEAD {
            return reply.with("content-length", &body.len().to_string());
        }
        reply.body(body)
    }

    fn list(&self, asked: &Asked, bucket: &str) -> Reply {
        let prefix = asked.query("prefix").unwrap_or_default();
        let most: usize = asked
            .query("max-keys")
            .and_then(|most| most.parse().ok())
            .unwrap_or(1000);
        let after = asked
            .query("continuation-token")
            .or_else(|| asked.query("start-after"))
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
            let group = asked.query("delimiter").and_then(|delimiter| {
                let end = rest.find(delimiter)? + delimiter.len();
                Some(&key[..prefix.len() + end])
            });
            let entry = group.unwrap_or(key);
            if entry <= after || entry == last {
                continue;
            }
            if count == most {
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
        Reply::status(200)
            .with("content-type", "application/xml")
            .body(text)
    }
}

fn kept_headers(asked: &Asked, dialect: Dialect) -> BTreeMap<String, String> {
    let mut kept = BTreeMap::new();
    for (name, value) in &asked.headers {
        let name = name.as_str();
        if (CONTENT_HEADERS.contains(&name) || name.starts_with(dialect.metadata_prefix))
            && let Ok(value) = value.to_str()
        {
            kept.insert(name.to_owned(), value.to_owned());
        }
    }
    kept
}

/// Whether the preconditions of a write, in the words of either store, hold for the current version.
#[must_use]
pub fn allowed(asked: &Asked, current: Option<&Stored>) -> bool {
    let generation = current.map_or(0, |stored| stored.generation);
    let wanted = asked.header("x-goog-if-generation-match");
    let e_tag = current.map(|stored| stored.e_tag.as_str());
    wanted.is_none_or(|wanted| wanted == generation.to_string())
        && asked
            .header("if-none-match")
            .is_none_or(|_| current.is_none())
        && asked
            .header("if-match")
            .is_none_or(|wanted| Some(wanted) == e_tag)
}

/// An error as S3 and Google's XML API word it.
#[must_use]
pub fn failure(status: u16, code: &str) -> Reply {
    let text = format!("<Error><Code>{code}</Code><Message>{code}</Message></Error>");
    Reply::status(status)
        .with("content-type", "application/xml")
        .body(text)
}

/// Text as it may stand in XML.
#[must_use]
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// A range of one piece; `None` if it begins beyond the end.
fn byte_range(text: &str, length: usize) -> Option<std::ops::Range<usize>> {
    let (from, to) = text.strip_prefix("bytes=")?.split_once('-')?;
    let range = match (from.parse::<usize>(), to.parse::<usize>()) {
        (Ok(from), Ok(to)) => from..(to + 1).min(length),
        (Ok(from), Err(_)) => from..length,
        (Err(_), Ok(last)) => length.saturating_sub(last)..length,
        _ => return None,
    };
    (range.start < range.end).then_some(range)
}
