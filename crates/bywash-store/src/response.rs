//! Checks that a response matches its request, for every origin over HTTP.

use std::ops::Range;

use http::header::{
    CONTENT_LENGTH, CONTENT_RANGE, HeaderName, IF_MODIFIED_SINCE, IF_NONE_MATCH, RANGE,
    TRANSFER_ENCODING,
};
use http::{HeaderMap, Method, StatusCode};
use serde::Deserialize;

/// Properties of a response that follow from its request.
#[derive(Debug)]
pub(super) struct Expected {
    reads: bool,
    is_head: bool,
    range: Option<Wanted>,
    conditional: bool,
}

/// The one range of a request, with an inclusive end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Bounded(u64, u64),
    From(u64),
    Suffix(u64),
}

impl Wanted {
    fn parse(text: &str) -> Option<Self> {
        let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
        Some(match (first, last) {
            ("", last) => Self::Suffix(last.parse().ok()?),
            (first, "") => Self::From(first.parse().ok()?),
            (first, last) => Self::Bounded(first.parse().ok()?, last.parse().ok()?),
        })
    }

    /// Returns the range in an object of `size` bytes.
    fn of(self, size: u64) -> Range<u64> {
        match self {
            Self::Bounded(first, last) => first..last.saturating_add(1).min(size),
            Self::From(first) => first..size,
            Self::Suffix(length) => size.saturating_sub(length)..size,
        }
    }
}

impl Expected {
    pub(super) fn of(method: &Method, headers: &HeaderMap) -> Self {
        let is_head = *method == Method::HEAD;
        Self {
            reads: is_head || *method == Method::GET,
            is_head,
            range: text(headers, &RANGE).and_then(Wanted::parse),
            conditional: headers.contains_key(IF_NONE_MATCH)
                || headers.contains_key(IF_MODIFIED_SINCE),
        }
    }

    /// Checks the head of a response: its body must have the range and the length stated there.
    ///
    /// # Errors
    /// The mismatch.
    pub(super) fn check(&self, status: StatusCode, headers: &HeaderMap) -> Result<(), String> {
        if !self.reads {
            return Ok(());
        }
        if headers.contains_key(CONTENT_LENGTH) && headers.contains_key(TRANSFER_ENCODING) {
            return Err("it has Content-Length and Transfer-Encoding".to_owned());
        }
        match status {
            StatusCode::OK => Ok(()),
            StatusCode::NOT_MODIFIED if !self.conditional => {
                Err("304 Not Modified, and the request had no condition".to_owned())
            }
            StatusCode::PARTIAL_CONTENT => self.check_range(headers),
            status if status.is_success() => {
                Err(format!("{status} is no status of an object or a list"))
            }
            _ => Ok(()),
        }
    }

    fn check_range(&self, headers: &HeaderMap) -> Result<(), String> {
        let Some(wanted) = self.range.filter(|_| !self.is_head) else {
            return Err("206 Partial Content, and no range was requested".to_owned());
        };
        let (range, size) = content_range(headers)?;
        if range != wanted.of(size) {
            return Err(format!(
                "{range:?} of {size} bytes is not the range {wanted:?}"
            ));
        }
        let length = range.end - range.start;
        match text(headers, &CONTENT_LENGTH) {
            Some(text) if text.parse() != Ok(length) => Err(format!(
                "Content-Length {text} does not match a range of {length} bytes"
            )),
            _ => Ok(()),
        }
    }
}

/// A request for a page of a listing, in the protocol of S3, Google or Azure.
#[derive(Debug)]
pub(super) struct List {
    /// The token that the previous page returned for this one.
    token: Option<String>,
}

impl List {
    /// Returns `None` for other requests.
    pub(super) fn of<B>(request: &http::Request<B>) -> Option<Self> {
        let query = request.uri().query().unwrap_or_default();
        let mut pairs = url::form_urlencoded::parse(query.as_bytes());
        let is_list =
            pairs.any(|(name, value)| name == "list-type" || (name == "comp" && value == "list"));
        let mut pairs = url::form_urlencoded::parse(query.as_bytes());
        let token = pairs.find(|(name, _)| name == "continuation-token" || name == "marker");
        is_list.then(|| Self {
            token: token.map(|(_, token)| token.into_owned()),
        })
    }

    /// Checks a whole page: the client would take an unknown or truncated document for the end of the list.
    ///
    /// # Errors
    /// The mismatch.
    pub(super) fn check(&self, page: &[u8]) -> Result<(), String> {
        let page = std::str::from_utf8(page).map_err(|_| "the list is no text".to_owned())?;
        let page = page.trim_start_matches('\u{feff}').trim_start();
        let page: Page = quick_xml::de::from_str(page)
            .map_err(|_| "the list is none, or ends too early".to_owned())?;
        let (truncated, next) = match page {
            Page::ListBucketResult { truncated, next } => (truncated, next),
            Page::EnumerationResults { next } => (None, next),
        };
        match next.filter(|token| !token.is_empty()) {
            None if truncated.as_deref() == Some("true") => {
                Err("the list is not at its end and has no token of the next page".to_owned())
            }
            Some(next) if Some(&next) == self.token.as_ref() => {
                Err("the page of the list that follows is itself".to_owned())
            }
            _ => Ok(()),
        }
    }
}

/// Fuzzing entry points for the responses of stores.
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz {
    use super::*;

    /// Checks a page of a listing: one that is accepted is a text.
    pub(crate) fn list_page(page: &[u8]) {
        let list = List { token: None };
        if list.check(page).is_ok() {
            assert!(std::str::from_utf8(page).is_ok());
        }
    }
}

/// The continuation of a page of a listing, by the page's root element.
#[derive(Debug, Deserialize)]
enum Page {
    ListBucketResult {
        #[serde(rename = "IsTruncated")]
        truncated: Option<String>,
        #[serde(rename = "NextContinuationToken")]
        next: Option<String>,
    },
    EnumerationResults {
        #[serde(rename = "NextMarker")]
        next: Option<String>,
    },
}

pub(super) fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

/// Parses `bytes FIRST-LAST/LENGTH` into the range and the object's length.
///
/// # Errors
/// The mismatch.
pub(super) fn content_range(headers: &HeaderMap) -> Result<(Range<u64>, u64), String> {
    let mut all = headers.get_all(CONTENT_RANGE).into_iter();
    let Some(first) = all.next() else {
        return Err("206 without Content-Range".to_owned());
    };
    if all.next().is_some() {
        return Err("206 with more than one Content-Range".to_owned());
    }
    let text = first.to_str().unwrap_or_default();
    parse_content_range(text)
        .ok_or_else(|| format!("Content-Range {text:?} is not one range of a known length"))
}

fn parse_content_range(text: &str) -> Option<(Range<u64>, u64)> {
    let text = text.trim().strip_prefix("bytes")?;
    let (range, size) = text.trim_start().split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last): (u64, u64) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    let size = size.trim().parse().ok()?;
    (first <= last && last < size).then(|| (first..last + 1, size))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        };
        let mut all = HeaderMap::new();
        for (name, value) in pairs.iter().map(pair) {
            all.append(name, value);
        }
        all
    }

    #[test]
    fn content_range_of_unknown_length_is_rejected() {
        assert_eq!(parse_content_range("bytes 0-9/100"), Some((0..10, 100)));
        assert_eq!(parse_content_range("bytes 99-99/100"), Some((99..100, 100)));
        for bad in [
            "bytes 0-9/*",
            "bytes */100",
            "bytes 9-0/100",
            "bytes 0-100/100",
            "bytes 0-18446744073709551615/18446744073709551615",
            "items 0-9/100",
            "",
        ] {
            assert_eq!(parse_content_range(bad), None, "{bad}");
        }
    }

    #[test]
    fn response_206_must_match_range_and_length() {
        let check = |range: &'static str, response: &[(&'static str, &'static str)]| {
            let request = match range {
                "" => HeaderMap::new(),
                range => headers(&[("range", range)]),
            };
            let expected = Expected::of(&Method::GET, &request);
            expected.check(StatusCode::PARTIAL_CONTENT, &headers(response))
        };
        let range = ("content-range", "bytes 10-19/100");
        assert!(check("bytes=10-19", &[range, ("content-length", "10")]).is_ok());
        assert!(check("bytes=10-19", &[range]).is_ok());
        let tail = ("content-range", "bytes 90-99/100");
        for requested in ["bytes=90-", "bytes=-10", "bytes=90-200"] {
            assert!(check(requested, &[tail]).is_ok(), "{requested}");
        }
        let short = ("content-range", "bytes 0-4/5");
        assert!(check("bytes=-10", &[short]).is_ok());
        for (requested, response) in [
            ("", &[range][..]),
            ("bytes=10-19", &[]),
            ("bytes=10-19", &[range, range]),
            ("bytes=10-19", &[range, ("content-length", "11")]),
            ("bytes=10-19", &[range, ("content-length", "ten")]),
            (
                "bytes=10-19",
                &[
                    range,
                    ("content-length", "10"),
                    ("transfer-encoding", "chunked"),
                ],
            ),
            ("bytes=10-20", &[range]),
            ("bytes=9-19", &[range]),
            ("bytes=10-", &[range]),
            ("bytes=-10", &[range]),
        ] {
            assert!(
                check(requested, response).is_err(),
                "{requested}: {response:?}"
            );
        }
    }

    #[test]
    fn list_page_must_be_complete_with_a_new_continuation() {
        let list = |query: &str| {
            let request = http::Request::get(format!("http://h/bucket?{query}"));
            List::of(&request.body(()).expect("a good request"))
        };
        assert!(list("versionId=3").is_none());
        let first = list("list-type=2&prefix=a%2F").expect("a list");
        let second = list("continuation-token=t%26&list-type=2").expect("a list");
        let azure = list("restype=container&comp=list&marker=m").expect("a list");
        let s3 = |inside: &str| {
            format!(
                "<?xml version=\"1.0\"?>\n<ListBucketResult xmlns=\"x\">{inside}</ListBucketResult>\n"
            )
        };
        let more = "<IsTruncated>true</IsTruncated>";
        let token = |token: &str| format!("<NextContinuationToken>{token}</NextContinuationToken>");
        for good in [
            s3(""),
            s3("<IsTruncated>false</IsTruncated>"),
            s3(&format!("{more}{}", token("t&amp;"))),
            "<ListBucketResult/>".to_owned(),
        ] {
            assert_eq!(first.check(good.as_bytes()), Ok(()), "{good}");
        }
        let azure_page = |next: &str| {
            format!(
                "\u{feff}<?xml version=\"1.0\"?><EnumerationResults><NextMarker>{next}</NextMarker></EnumerationResults>"
            )
        };
        assert_eq!(azure.check(azure_page("n").as_bytes()), Ok(()));
        assert_eq!(azure.check(azure_page("").as_bytes()), Ok(()));
        assert!(azure.check(azure_page("m").as_bytes()).is_err());
        assert!(second.check(s3(&token("t&amp;")).as_bytes()).is_err());
        for bad in [
            "",
            "<html></html>",
            "<Error><Code>InternalError</Code></Error>",
            "<ListBucketResult><Contents>",
            "<ListBucketResult></ListBucketResult",
            "<ListBucketResult></EnumerationResults>",
            "<ListBucketResult><Contents><Key>a</Kye></Contents></ListBucketResult>",
            "<ListBucketResults></ListBucketResults>",
            &s3(more),
        ] {
            assert!(first.check(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn response_304_needs_a_condition_and_other_2xx_are_rejected() {
        let check = |method, request: &[_], status| {
            Expected::of(&method, &headers(request)).check(status, &HeaderMap::new())
        };
        let tag = [("if-none-match", "\"a\"")];
        for method in [Method::GET, Method::HEAD] {
            let not_modified = StatusCode::NOT_MODIFIED;
            assert!(check(method.clone(), &tag, not_modified).is_ok());
            assert!(check(method.clone(), &[], not_modified).is_err());
            assert!(check(method.clone(), &[], StatusCode::NO_CONTENT).is_err());
            assert!(check(method.clone(), &[], StatusCode::NOT_FOUND).is_ok());
            assert!(check(method, &[], StatusCode::OK).is_ok());
        }
        let range = [("range", "bytes=0-1")];
        assert!(check(Method::HEAD, &range, StatusCode::PARTIAL_CONTENT).is_err());
        assert!(check(Method::PUT, &[], StatusCode::NO_CONTENT).is_ok());
    }
}
