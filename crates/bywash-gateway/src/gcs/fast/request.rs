//! Requests that the fast path may serve, by their heads: reads of an object's bytes by the JSON API or the XML API, in the form
//! that clients send. Any other request has no place here.
//!
//! Headers and parameters must be known ones, without duplicates, so that nothing is ambiguous.

use std::borrow::Cow;

use http::header::HeaderValue;
use http::{HeaderMap, Method, Request, Version};
use percent_encoding::percent_decode_str;
use s3s::dto::Range;

use super::super::route::{Operation, is_of_json};
use super::super::xml::XmlOperation;
use crate::keys::plain_path;

/// A read that the fast path may serve to a caller that may read.
#[derive(Debug)]
pub(super) struct FastRequest<'a> {
    pub(super) operation: Operation,
    pub(super) bucket: &'a str,
    pub(super) key: Cow<'a, str>,
    pub(super) range: Option<Range>,
    pub(super) generation: Option<&'a str>,
    pub(super) authorization: Option<&'a HeaderValue>,
}

impl<'a> FastRequest<'a> {
    /// Parses the head of a request. Returns `None` if anything in it is not of the common form.
    pub(super) fn parse<B>(request: &'a Request<B>) -> Option<Self> {
        let uri = request.uri();
        let is_plain = request.version() == Version::HTTP_11 && uri.authority().is_none();
        if *request.method() != Method::GET || !is_plain {
            return None;
        }
        let headers = KnownHeaders::read(request.headers())?;
        let query = KnownQuery::read(uri.query())?;
        let (operation, bucket, key) = target(uri.path(), query.is_media)?;
        let range = match headers.range {
            Some(range) => Some(Range::parse(range.to_str().ok()?).ok()?),
            None => None,
        };
        Some(Self {
            operation,
            bucket,
            key,
            range,
            generation: query.generation,
            authorization: headers.authorization,
        })
    }
}

/// The known headers of a request.
#[derive(Debug, Default)]
struct KnownHeaders<'a> {
    range: Option<&'a HeaderValue>,
    authorization: Option<&'a HeaderValue>,
}

impl<'a> KnownHeaders<'a> {
    /// Returns `None` if a header is unknown, or sent twice.
    fn read(headers: &'a HeaderMap) -> Option<Self> {
        if headers.len() != headers.keys_len() {
            return None;
        }
        let mut known = Self::default();
        for (name, value) in headers {
            match name.as_str() {
                "range" => known.range = Some(value),
                "authorization" => known.authorization = Some(value),
                // These change no response of a read, but for the first two, which decide about decompression.
                "accept-encoding"
                | "cache-control"
                | "accept"
                | "accept-language"
                | "connection"
                | "content-length"
                | "content-type"
                | "date"
                | "host"
                | "pragma"
                | "referer"
                | "traceparent"
                | "tracestate"
                | "user-agent"
                | "via"
                | "x-forwarded-for"
                | "x-forwarded-host"
                | "x-forwarded-port"
                | "x-forwarded-proto"
                | "x-goog-api-client"
                | "x-goog-gcs-idempotency-token"
                | "x-goog-user-project"
                | "x-real-ip" => {}
                _ => return None,
            }
        }
        Some(known)
    }
}

/// The parameters of a query that are known.
#[derive(Debug, Default)]
struct KnownQuery<'a> {
    /// Whether the bytes are wanted, and not the metadata.
    is_media: bool,
    generation: Option<&'a str>,
}

impl<'a> KnownQuery<'a> {
    /// Returns `None` if a parameter is unknown, sent twice, or written in other characters than these need.
    fn read(query: Option<&'a str>) -> Option<Self> {
        let mut known = Self::default();
        for pair in query.into_iter().flat_map(|query| query.split('&')) {
            let (name, value) = pair.split_once('=')?;
            match (name, value) {
                ("alt", "media") if !known.is_media => known.is_media = true,
                ("generation", value) if known.generation.is_none() => {
                    known.generation = Some(value);
                }
                // These change no response of a read.
                ("prettyPrint" | "projection" | "quotaUser" | "userProject", value)
                    if value.bytes().all(is_unreserved) => {}
                _ => return None,
            }
        }
        Some(known)
    }
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~')
}

/// The operation of a path, bucket and key. The key is stored under its own name.
fn target(path: &str, is_media: bool) -> Option<(Operation, &str, Cow<'_, str>)> {
    let path = path.strip_prefix('/')?;
    let json = path.strip_prefix("storage/v1/b/").filter(|_| is_media);
    let json = json.or_else(|| path.strip_prefix("download/storage/v1/b/"));
    let (operation, bucket, key) = match json {
        Some(rest) => {
            let (bucket, rest) = rest.split_once('/')?;
            (Operation::ReadObject, bucket, rest.strip_prefix("o/")?)
        }
        None if is_of_json(path) => return None,
        None => {
            let (bucket, key) = path.split_once('/')?;
            (Operation::Xml(XmlOperation::Get), bucket, key)
        }
    };
    // Names of buckets need no encoding.
    if bucket.is_empty() || !bucket.bytes().all(is_unreserved) {
        return None;
    }
    let key = percent_decode_str(key).decode_utf8().ok()?;
    plain_path(&key)?;
    Some((operation, bucket, key))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn paths_of_both_apis_name_bucket_and_key() {
        use Operation::{ReadObject, Xml};
        let get = Xml(XmlOperation::Get);
        for (path, is_media, operation, key) in [
            ("/storage/v1/b/data/o/a%2Fb", true, ReadObject, "a/b"),
            ("/download/storage/v1/b/data/o/a", false, ReadObject, "a"),
            ("/data/a/b%20c", false, get, "a/b c"),
            ("/data/o/a", true, get, "o/a"),
        ] {
            let found = target(path, is_media);
            assert_eq!(found, Some((operation, "data", key.into())), "{path}");
        }
        for path in [
            "/",
            "/data",
            "/data/",
            "/data/a/",
            "//data/a",
            "/da%74a/a",
            "/data/%FF",
            "/data/.bywash-folder",
            "/storage/v1/b/data/o/a",
            "/storage/v1/b/data/o/",
            "/storage/v1/b/data/iam",
            "/download/storage/v1/b/a/b/o/c",
            "/upload/storage/v1/b/data/o/a",
            "/batch/storage/v1",
        ] {
            assert_eq!(target(path, false), None, "{path}");
        }
        // A bucket may be named as a path of the JSON API begins.
        let found = target("/batch/a", false);
        assert_eq!(found, Some((get, "batch", "a".into())));
    }

    #[test]
    fn queries_and_headers_with_anything_else_are_refused() {
        let query = "alt=media&prettyPrint=false&projection=full&generation=5&userProject=p";
        let known = KnownQuery::read(Some(query)).unwrap();
        assert!(known.is_media && known.generation == Some("5"));
        for query in [
            "",
            "alt",
            "alt=json",
            "alt=media&alt=media",
            "generation=1&generation=1",
            "ifGenerationMatch=1",
            "userProject=%20",
            "fields=name",
            "response-content-type=text/html",
            "X-Goog-Signature=00",
        ] {
            assert!(KnownQuery::read(Some(query)).is_none(), "{query}");
        }
        for name in ["if-none-match", "expect", "x-goog-encryption-algorithm"] {
            let headers = HeaderMap::from_iter([(
                name.parse::<http::HeaderName>().unwrap(),
                HeaderValue::from_static("a"),
            )]);
            assert!(KnownHeaders::read(&headers).is_none(), "{name}");
        }
    }
}
