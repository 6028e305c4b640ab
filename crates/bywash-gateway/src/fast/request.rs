//! Requests that the fast path may serve, by their heads: a GET or HEAD of an object, path-style and signed by SigV4, in
//! the form that clients send. Any other request has no place here.
//!
//! Headers and parameters must be known ones, without duplicates, and in the encoding that a signature is made over, so
//! that nothing is decoded twice and nothing is ambiguous.

use std::borrow::Cow;

#[cfg(test)]
use chrono::{DateTime, Utc};
use http::header::HeaderValue;
use http::{HeaderMap, Method, Request, Version};
use percent_encoding::percent_decode_str;
use s3s::dto::Range;

use crate::host::Hosts;
use crate::keys::plain_path;
#[cfg(test)]
use crate::sigv4::canonical::RequestHead;
use crate::sigv4::canonical::is_canonical;
#[cfg(test)]
use crate::sigv4::parse::time_of;
use crate::sigv4::{EMPTY_SHA256, UNSIGNED};

/// A read that the fast path may serve once its signature is verified.
#[derive(Debug)]
pub(super) struct FastRequest<'a> {
    pub(super) is_head: bool,
    pub(super) bucket: &'a str,
    pub(super) key: Cow<'a, str>,
    pub(super) range: Option<Range>,
    pub(super) if_match: Option<&'a HeaderValue>,
    pub(super) with_checksum: bool,
    pub(super) signature: FastSignature<'a>,
}

impl<'a> FastRequest<'a> {
    /// Parses the head of a request. Returns `None` if anything in it is not of the common form.
    pub(super) fn parse<B>(request: &'a Request<B>, hosts: &Hosts) -> Option<Self> {
        let is_head = match *request.method() {
            Method::GET => false,
            Method::HEAD => true,
            _ => return None,
        };
        let uri = request.uri();
        if request.version() != Version::HTTP_11 || uri.authority().is_some() {
            return None;
        }
        let headers = KnownHeaders::read(request.headers())?;
        if !hosts.is_plain_path_style(text(headers.host)?) {
            return None;
        }
        let (bucket, key) = target(uri.path())?;
        let operation = if is_head { "HeadObject" } else { "GetObject" };
        let query = KnownQuery::read(uri.query(), operation)?;
        let range = match headers.range {
            Some(range) => Some(Range::parse(text(Some(range))?).ok()?),
            None => None,
        };
        let with_checksum = match headers.checksum_mode {
            Some(mode) if mode == "ENABLED" => true,
            Some(_) => return None,
            None => false,
        };
        Some(Self {
            is_head,
            bucket,
            key,
            range,
            if_match: headers.if_match,
            with_checksum,
            signature: FastSignature::find(&headers, query)?,
        })
    }
}

#[cfg(test)]
impl FastRequest<'_> {
    /// The time that the signature states.
    pub(super) fn date(&self, head: RequestHead<'_>) -> Option<DateTime<Utc>> {
        time_of(match &self.signature {
            FastSignature::Header(_) => text(head.headers.get("x-amz-date"))?,
            FastSignature::Query(query) => query.get("X-Amz-Date")?,
        })
    }
}

/// Where the only signature of a request is.
#[derive(Debug)]
pub(super) enum FastSignature<'a> {
    /// The value of the Authorization header.
    Header(&'a str),
    Query(KnownQuery<'a>),
}

impl<'a> FastSignature<'a> {
    /// Returns `None` without a signature, with two, and for a body.
    fn find(headers: &KnownHeaders<'a>, query: KnownQuery<'a>) -> Option<Self> {
        let has_no_body = match headers.payload {
            Some(payload) => payload == UNSIGNED || payload == EMPTY_SHA256,
            None => true,
        };
        match headers.authorization {
            _ if !has_no_body => None,
            None => (!query.is_empty()).then_some(Self::Query(query)),
            value => text(value).filter(|_| query.is_empty()).map(Self::Header),
        }
    }
}

/// The text of a header of visible ASCII.
pub(super) fn text(value: Option<&HeaderValue>) -> Option<&str> {
    value?.to_str().ok()
}

/// The known headers of a request.
#[derive(Debug, Default)]
pub(super) struct KnownHeaders<'a> {
    host: Option<&'a HeaderValue>,
    range: Option<&'a HeaderValue>,
    if_match: Option<&'a HeaderValue>,
    checksum_mode: Option<&'a HeaderValue>,
    authorization: Option<&'a HeaderValue>,
    payload: Option<&'a HeaderValue>,
}

impl<'a> KnownHeaders<'a> {
    /// Returns `None` if a header is unknown, or sent twice.
    pub(super) fn read(headers: &'a HeaderMap) -> Option<Self> {
        if headers.len() != headers.keys_len() {
            return None;
        }
        let mut known = Self::default();
        for (name, value) in headers {
            let field = match name.as_str() {
                "host" => &mut known.host,
                "range" => &mut known.range,
                "if-match" => &mut known.if_match,
                "authorization" => &mut known.authorization,
                "x-amz-checksum-mode" => &mut known.checksum_mode,
                "x-amz-content-sha256" => &mut known.payload,
                // These change no response of a read, but for the verdict on its signature.
                "accept"
                | "accept-encoding"
                | "accept-language"
                | "amz-sdk-invocation-id"
                | "amz-sdk-request"
                | "cache-control"
                | "connection"
                | "content-length"
                | "content-type"
                | "date"
                | "pragma"
                | "referer"
                | "traceparent"
                | "tracestate"
                | "user-agent"
                | "via"
                | "x-amz-date"
                | "x-amz-user-agent"
                | "x-amzn-trace-id"
                | "x-forwarded-for"
                | "x-forwarded-host"
                | "x-forwarded-port"
                | "x-forwarded-proto"
                | "x-real-ip" => {
                    continue;
                }
                _ => return None,
            };
            *field = Some(value);
        }
        Some(known)
    }
}

/// Names of the parameters of a signature.
const OF_A_SIGNATURE: [&str; 6] = [
    "X-Amz-Algorithm",
    "X-Amz-Credential",
    "X-Amz-Date",
    "X-Amz-Expires",
    "X-Amz-SignedHeaders",
    "X-Amz-Signature",
];

/// The parameters of a signature, decoded.
#[derive(Debug, Default)]
pub(super) struct KnownQuery<'a>([Option<Cow<'a, str>>; OF_A_SIGNATURE.len()]);

impl<'a> KnownQuery<'a> {
    /// Returns `None` if a parameter is unknown, sent twice, or has a plus. `operation`: the only value of `x-id`.
    fn read(query: Option<&'a str>, operation: &str) -> Option<Self> {
        let (mut known, mut has_id) = (Self::default(), false);
        for pair in query.into_iter().flat_map(|query| query.split('&')) {
            let (name, value) = pair.split_once('=')?;
            if name == "x-id" && value == operation && !has_id {
                has_id = true;
                continue;
            }
            let at = OF_A_SIGNATURE.iter().position(|known| *known == name)?;
            let value = decoded(value)?;
            if known.0[at].replace(value).is_some() {
                return None;
            }
        }
        Some(known)
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        let at = OF_A_SIGNATURE.iter().position(|known| *known == name)?;
        self.0[at].as_deref()
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }
}

/// Decodes a value without a plus, with at most one allocation.
fn decoded(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains(['%', '+']) {
        return Some(Cow::Borrowed(text));
    }
    if text.contains('+') {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len());
    bytes.extend(percent_decode_str(text));
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

/// Bucket and key of a path. The key is stored under its own name.
fn target(path: &str) -> Option<(&str, Cow<'_, str>)> {
    if !is_canonical(path, true) {
        return None;
    }
    let (bucket, key) = path.strip_prefix('/')?.split_once('/')?;
    if !s3s::path::check_bucket_name(bucket) {
        return None;
    }
    let key = percent_decode_str(key).decode_utf8().ok()?;
    plain_path(&key)?;
    Some((bucket, key))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn only_canonical_paths_of_plain_keys_are_taken() {
        for (path, key) in [
            ("/bucket/a/b", "a/b"),
            ("/bucket/a%20b%3D1", "a b=1"),
            ("/bucket/%C3%BC", "\u{fc}"),
        ] {
            assert_eq!(target(path), Some(("bucket", key.into())), "{path}");
        }
        for path in [
            "/",
            "/bucket",
            "/bucket/",
            "/bucket/a/",
            "/Bucket/a",
            "/b/a",
            "/bucket/a=b",
            "/bucket/a%2fb",
            "/bucket/a%2Fb",
            "/bucket/a%41",
            "/bucket/a%3d",
            "/bucket/a%",
            "/bucket/a%4",
            "/bucket/%FF",
            "/bucket/a%00",
            "/bucket/a+b",
            "/bucket/.bywash-folder",
        ] {
            assert_eq!(target(path), None, "{path}");
        }
    }

    #[test]
    fn queries_with_anything_else_are_refused() {
        assert!(KnownQuery::read(None, "GetObject").is_some());
        let query = "x-id=GetObject&X-Amz-Credential=a%2Fb";
        let known = KnownQuery::read(Some(query), "GetObject").unwrap();
        assert_eq!(known.get("X-Amz-Credential"), Some("a/b"));
        assert_eq!(known.get("X-Amz-Date"), None);
        for query in [
            "",
            "x-id",
            "x-id=HeadObject",
            "acl=",
            "X-Amz-Date=1&X-Amz-Date=1",
            "x-id=GetObject&x-id=GetObject",
            "X-Amz-Date=a+b",
            "x-amz-date=1",
            "versionId=null",
            "partNumber=1",
        ] {
            assert!(
                KnownQuery::read(Some(query), "GetObject").is_none(),
                "{query}"
            );
        }
    }

    #[test]
    fn headers_that_are_unknown_or_repeated_are_refused() {
        let read = |headers: &[(&'static str, &'static str)]| {
            let mut map = HeaderMap::new();
            for (name, value) in headers {
                map.append(*name, HeaderValue::from_static(value));
            }
            KnownHeaders::read(&map).is_some()
        };
        assert!(read(&[("host", "a"), ("user-agent", "b"), ("range", "c")]));
        for name in [
            "origin",
            "expect",
            "if-none-match",
            "if-range",
            "x-amz-security-token",
            "x-amz-meta-a",
            "transfer-encoding",
            "cookie",
        ] {
            assert!(!read(&[("host", "a"), (name, "b")]), "{name}");
        }
        assert!(!read(&[("range", "a"), ("range", "a")]));
    }
}
