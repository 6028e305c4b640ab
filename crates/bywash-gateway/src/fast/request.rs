//! Requests that the fast path may serve, by their heads: a GET or HEAD of an object, path-style and signed by SigV4, in
//! the form that clients send. Any other request has no place here.
//!
//! Headers and parameters must be known ones, without duplicates, and in the encoding that a signature is made over, so
//! that nothing is decoded twice and nothing is ambiguous.

use std::borrow::Cow;

use http::header::HeaderValue;
use http::{HeaderMap, Method, Request, Version};
use percent_encoding::percent_decode_str;
use s3s::dto::Range;

use super::signature::ClaimedSignature;
use crate::host::Hosts;
use crate::keys::plain_path;

/// A read that the fast path may serve once its signature is verified.
#[derive(Debug)]
pub(super) struct FastRequest<'a> {
    pub(super) is_head: bool,
    pub(super) bucket: &'a str,
    pub(super) key: Cow<'a, str>,
    pub(super) range: Option<Range>,
    pub(super) if_match: Option<&'a HeaderValue>,
    pub(super) with_checksum: bool,
    pub(super) signature: ClaimedSignature<'a>,
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
        let operation = match is_head {
            true => "HeadObject",
            false => "GetObject",
        };
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
            signature: ClaimedSignature::parse(&headers, query)?,
        })
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
    pub(super) authorization: Option<&'a HeaderValue>,
    pub(super) date: Option<&'a HeaderValue>,
    pub(super) payload: Option<&'a HeaderValue>,
    pub(super) user_agent: Option<&'a HeaderValue>,
    all: Option<&'a HeaderMap>,
}

impl<'a> KnownHeaders<'a> {
    /// Returns `None` if a header is unknown, or sent twice.
    pub(super) fn read(headers: &'a HeaderMap) -> Option<Self> {
        if headers.len() != headers.keys_len() {
            return None;
        }
        let mut known = Self {
            all: Some(headers),
            ..Self::default()
        };
        for (name, value) in headers {
            let field = match name.as_str() {
                "host" => &mut known.host,
                "range" => &mut known.range,
                "if-match" => &mut known.if_match,
                "authorization" => &mut known.authorization,
                "x-amz-checksum-mode" => &mut known.checksum_mode,
                "x-amz-content-sha256" => &mut known.payload,
                "x-amz-date" => &mut known.date,
                "x-amz-user-agent" => &mut known.user_agent,
                // These change no response of a read.
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

    /// Any headers, none in a field.
    #[cfg(test)]
    pub(super) fn with_all(headers: &'a HeaderMap) -> Self {
        Self {
            all: Some(headers),
            ..Self::default()
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<&'a HeaderValue> {
        self.all?.get(name)
    }

    /// Names of the headers sent that a signature must cover, and `host`.
    pub(super) fn must_be_signed(&self) -> impl Iterator<Item = &'static str> {
        [
            ("host", self.host),
            ("x-amz-checksum-mode", self.checksum_mode),
            ("x-amz-date", self.date),
            ("x-amz-user-agent", self.user_agent),
        ]
        .into_iter()
        .filter_map(|(name, value)| value.map(|_| name))
    }
}

/// The parameters of a query that are known, as they were sent.
#[derive(Debug, Default)]
pub(super) struct KnownQuery<'a> {
    pub(super) algorithm: Option<&'a str>,
    pub(super) credential: Option<&'a str>,
    pub(super) date: Option<&'a str>,
    pub(super) expires: Option<&'a str>,
    pub(super) signed_headers: Option<&'a str>,
    pub(super) signature: Option<&'a str>,
    pub(super) id: Option<&'a str>,
}

impl<'a> KnownQuery<'a> {
    /// Returns `None` if a parameter is unknown, sent twice, or not encoded as for a signature. `operation`: the only
    /// value of `x-id`.
    fn read(query: Option<&'a str>, operation: &str) -> Option<Self> {
        let mut known = Self::default();
        for pair in query.into_iter().flat_map(|query| query.split('&')) {
            let (name, value) = pair.split_once('=')?;
            let field = match name {
                "X-Amz-Algorithm" => &mut known.algorithm,
                "X-Amz-Credential" => &mut known.credential,
                "X-Amz-Date" => &mut known.date,
                "X-Amz-Expires" => &mut known.expires,
                "X-Amz-SignedHeaders" => &mut known.signed_headers,
                "X-Amz-Signature" => &mut known.signature,
                "x-id" if value == operation => &mut known.id,
                _ => return None,
            };
            if field.replace(value).is_some() || !is_canonical(value, false) {
                return None;
            }
        }
        Some(known)
    }

    /// The parameters that a signature covers, in its order.
    pub(super) fn signed(&self) -> impl Iterator<Item = (&'static str, &'a str)> {
        [
            ("X-Amz-Algorithm", self.algorithm),
            ("X-Amz-Credential", self.credential),
            ("X-Amz-Date", self.date),
            ("X-Amz-Expires", self.expires),
            ("X-Amz-SignedHeaders", self.signed_headers),
            ("x-id", self.id),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
    }
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

/// Whether a text is encoded as the canonical request of a signature: unreserved characters as they are, all others by
/// `%` and two upper-case digits. `is_path`: slashes are not encoded.
fn is_canonical(text: &str, is_path: bool) -> bool {
    let mut bytes = text.bytes();
    let digit = |byte: Option<u8>| match byte? {
        byte @ b'0'..=b'9' => Some(byte - b'0'),
        byte @ b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    };
    while let Some(byte) = bytes.next() {
        let known = match byte {
            b'%' => {
                let encoded = digit(bytes.next()).zip(digit(bytes.next()));
                encoded.is_some_and(|(high, low)| {
                    let byte = high << 4 | low;
                    !(is_unreserved(byte) || (is_path && byte == b'/'))
                })
            }
            b'/' => is_path,
            byte => is_unreserved(byte),
        };
        if !known {
            return false;
        }
    }
    true
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~')
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
        let known = KnownQuery::read(Some("x-id=GetObject&X-Amz-Date=1"), "GetObject").unwrap();
        let signed: Vec<_> = known.signed().collect();
        assert_eq!(signed, [("X-Amz-Date", "1"), ("x-id", "GetObject")]);
        for query in [
            "",
            "x-id",
            "x-id=HeadObject",
            "acl=",
            "X-Amz-Date=1&X-Amz-Date=1",
            "X-Amz-Date=a/b",
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
