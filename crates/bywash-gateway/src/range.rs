//! Normalises headers that `s3s` rejects and S3 does not: ranges of other forms, and text that is not ASCII.

use std::sync::Arc;

use async_trait::async_trait;
use http::header::{CONTENT_RANGE, RANGE};
use http::{Extensions, HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, header};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode, percent_encode};
use s3s::dto::Range;
use s3s::route::S3Route;
use s3s::service::S3Service;
use s3s::{Body, S3ErrorCode, S3Request, S3Response, S3Result};

use crate::auth::{Keys, strip_signature};
use crate::errors::fault;
use crate::host::Target;
use crate::meta::text;

/// Largest byte position that `s3s` parses. No object is longer.
const MAX_POSITION: u64 = i64::MAX as u64;

/// Returns whether `s3s` rejects the Range header: several ranges, another unit, no range, or a position too large.
fn is_rejected_range(headers: &HeaderMap) -> bool {
    headers
        .get(RANGE)
        .is_some_and(|value| Range::parse(value.to_str().unwrap_or_default()).is_err())
}

/// Lowers positions beyond all objects, which keeps the range's meaning. Removes other headers that `s3s` rejects: S3
/// ignores them.
pub(crate) fn normalize_range(headers: &mut HeaderMap) {
    if !is_rejected_range(headers) {
        return;
    }
    let value = headers.get(RANGE).and_then(|value| value.to_str().ok());
    match value
        .and_then(lowered)
        .and_then(|text| HeaderValue::try_from(text).ok())
    {
        Some(value) => headers.insert(RANGE, value),
        None => headers.remove(RANGE),
    };
}

/// Returns a single byte range with positions of at most [`MAX_POSITION`].
fn lowered(header: &str) -> Option<String> {
    let (first, last) = header.strip_prefix("bytes=")?.split_once('-')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    // Only digits, so a failure is an overflow.
    let position = |text: &str| {
        let parsed = text.parse::<u64>();
        parsed.map_or(MAX_POSITION, |position| position.min(MAX_POSITION))
    };
    match (first, last) {
        ("", length) if is_number(length) => Some(format!("bytes=-{}", position(length))),
        (first, "") if is_number(first) => Some(format!("bytes={}-", position(first))),
        (first, last) if is_number(first) && is_number(last) && in_order(first, last) => {
            Some(format!("bytes={}-{}", position(first), position(last)))
        }
        _ => None,
    }
}

/// Compares two decimal numbers of any length.
fn in_order(first: &str, last: &str) -> bool {
    let [first, last] = [first, last].map(|text| text.trim_start_matches('0'));
    (first.len(), first) <= (last.len(), last)
}

/// Prefix of the headers in which text that is not ASCII is passed on, percent-encoded.
const TEXT_PREFIX: &str = "x-bywash-text-";
/// Headers of objects that `s3s` parses as ASCII.
const TEXT_HEADERS: [HeaderName; 5] = [
    header::CACHE_CONTROL,
    header::CONTENT_DISPOSITION,
    header::CONTENT_ENCODING,
    header::CONTENT_LANGUAGE,
    header::CONTENT_TYPE,
];

fn is_rejected_text(value: &HeaderValue) -> bool {
    value.to_str().is_err() && std::str::from_utf8(value.as_bytes()).is_ok()
}

/// Moves text that is not ASCII to headers that `s3s` does not parse.
pub(crate) fn normalize_text(headers: &mut HeaderMap) {
    for name in TEXT_HEADERS {
        let Some(value) = headers.get(&name).filter(|value| is_rejected_text(value)) else {
            continue;
        };
        let encoded = percent_encode(value.as_bytes(), NON_ALPHANUMERIC).to_string();
        let passed = HeaderName::try_from(format!("{TEXT_PREFIX}{name}"));
        if let (Ok(passed), Ok(encoded)) = (passed, HeaderValue::try_from(encoded)) {
            headers.insert(passed, encoded);
            headers.remove(&name);
        }
    }
}

/// Removes headers that only [`normalize_text`] may add.
pub(crate) fn forget_text(headers: &mut HeaderMap) {
    for name in TEXT_HEADERS {
        headers.remove(format!("{TEXT_PREFIX}{name}"));
    }
}

/// Returns the text of a header of an object.
pub(crate) fn text_of(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    let passed = headers.get(format!("{TEXT_PREFIX}{name}"));
    let passed = passed.and_then(|value| percent_decode(value.as_bytes()).decode_utf8().ok());
    match passed {
        Some(text) => Some(text.into_owned()),
        None => text(headers, name.as_str()).map(str::to_owned),
    }
}

/// Adds the range of a response to its headers.
pub(crate) fn content_range(headers: &mut HeaderMap, range: &std::ops::Range<u64>, size: u64) {
    let last = range.end.saturating_sub(1);
    if let Ok(value) = HeaderValue::try_from(format!("bytes {}-{last}/{size}", range.start)) {
        headers.insert(CONTENT_RANGE, value);
    }
}

/// Serves requests with headers that `s3s` rejects, with normalised headers or none.
///
/// The headers may be signed, so such requests reach a service of their own after their signature was verified.
pub(crate) struct NormalizedHeaders {
    pub(crate) open: S3Service,
    pub(crate) keys: Keys,
}

#[async_trait]
impl S3Route for NormalizedHeaders {
    fn is_match(
        &self,
        method: &Method,
        _uri: &Uri,
        headers: &HeaderMap,
        _extensions: &mut Extensions,
    ) -> bool {
        match *method {
            Method::GET | Method::HEAD => is_rejected_range(headers),
            _ => TEXT_HEADERS
                .iter()
                .any(|name| headers.get(name).is_some_and(is_rejected_text)),
        }
    }

    async fn check_access(&self, request: &mut S3Request<Body>) -> S3Result<()> {
        let target = request.extensions.get::<Arc<Target>>().cloned();
        let bucket = target.map(|target| target.bucket.clone());
        let bucket = bucket.filter(|bucket| !bucket.is_empty());
        self.keys.check(
            request.credentials.as_ref(),
            &request.method,
            bucket.as_deref(),
            &request.headers,
            &mut request.extensions,
        )
    }

    async fn call(&self, request: S3Request<Body>) -> S3Result<S3Response<Body>> {
        let mut inner = Request::new(request.input);
        *inner.method_mut() = request.method;
        *inner.uri_mut() = request.uri;
        *inner.headers_mut() = request.headers;
        *inner.extensions_mut() = request.extensions;
        if let Some(trailers) = request.trailing_headers {
            inner.extensions_mut().insert(trailers);
        }
        let (mut parts, body) = inner.into_parts();
        strip_signature(&mut parts);
        normalize_range(&mut parts.headers);
        normalize_text(&mut parts.headers);
        let response = self
            .open
            .call(Request::from_parts(parts, body))
            .await
            .map_err(|error| {
                let error: s3s::StdError = error.into();
                fault(
                    S3ErrorCode::InternalError,
                    format!("The request failed: {error}"),
                )
            })?;
        let (parts, body) = response.into_parts();
        let mut response = S3Response::with_headers(body, parts.headers);
        response.status = Some(parts.status);
        Ok(response)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn positions_beyond_all_objects_are_lowered_and_other_forms_removed() {
        let normalised = |text: &str| {
            let mut headers = HeaderMap::from_iter([(RANGE, text.parse().unwrap())]);
            normalize_range(&mut headers);
            let value = headers.remove(RANGE);
            value.map(|value| value.to_str().unwrap().to_owned())
        };
        let largest = "9223372036854775807";
        let huge = "99999999999999999999999";
        for (given, expected) in [
            ("bytes=5-7".to_owned(), "bytes=5-7".to_owned()),
            (format!("bytes={}-", u64::MAX), format!("bytes={largest}-")),
            (format!("bytes={huge}-"), format!("bytes={largest}-")),
            (format!("bytes=5-{huge}"), format!("bytes=5-{largest}")),
            (
                format!("bytes={huge}-{huge}"),
                format!("bytes={largest}-{largest}"),
            ),
            (format!("bytes=-{huge}"), format!("bytes=-{largest}")),
        ] {
            assert_eq!(normalised(&given).as_deref(), Some(expected.as_str()));
        }
        for ignored in ["bytes=0-1,4-5", "lines=1-2", "bytes=5-2", "bytes=x"] {
            assert_eq!(normalised(ignored), None, "{ignored}");
        }
        assert_eq!(normalised(&format!("bytes={huge}-3")), None);
    }
}
