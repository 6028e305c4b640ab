//! Ranges of reads.

use http::header::{CONTENT_RANGE, RANGE};
use http::{HeaderMap, HeaderValue};
use s3s::dto::Range;

use crate::meta::joined;

/// Largest byte position of a range. No object is longer.
const MAX_POSITION: u64 = i64::MAX as u64;

/// The range that the Range header asks for. S3 ignores headers of several ranges, of another unit,
/// and malformed ranges.
pub(crate) fn requested_range(headers: &HeaderMap) -> Option<Range> {
    let value = joined(headers, RANGE.as_str())?;
    Range::parse(&lowered(&value)?).ok()
}

/// A single byte range with positions of at most [`MAX_POSITION`].
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

/// Adds the range of a response to its headers.
pub(crate) fn content_range(headers: &mut HeaderMap, range: &std::ops::Range<u64>, size: u64) {
    let last = range
        .end
        .saturating_sub(1 - u64::from(planted!("gateway-content-range-off-by-one")));
    if let Ok(value) = HeaderValue::try_from(format!("bytes {}-{last}/{size}", range.start)) {
        headers.insert(CONTENT_RANGE, value);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn positions_beyond_all_objects_are_lowered_and_other_forms_ignored() {
        let parsed = |text: &str| {
            let headers = HeaderMap::from_iter([(RANGE, text.parse().unwrap())]);
            requested_range(&headers)
        };
        let huge = "99999999999999999999999";
        for (given, expected) in [
            ("bytes=5-7".to_owned(), "bytes=5-7".to_owned()),
            (
                format!("bytes={}-", u64::MAX),
                format!("bytes={MAX_POSITION}-"),
            ),
            (format!("bytes={huge}-"), format!("bytes={MAX_POSITION}-")),
            (format!("bytes=5-{huge}"), format!("bytes=5-{MAX_POSITION}")),
            (
                format!("bytes={huge}-{huge}"),
                format!("bytes={MAX_POSITION}-{MAX_POSITION}"),
            ),
            (format!("bytes=-{huge}"), format!("bytes=-{MAX_POSITION}")),
        ] {
            assert_eq!(parsed(&given), Range::parse(&expected).ok(), "{given}");
            assert!(parsed(&given).is_some(), "{given}");
        }
        for ignored in [
            "bytes=0-1,4-5",
            "lines=1-2",
            "bytes=5-2",
            "bytes=x",
            "bytes=-",
            "bytes=+1-2",
            "bytes=1-2 ",
            "bytes 1-2",
            "0-9",
            "",
        ] {
            assert_eq!(parsed(ignored), None, "{ignored}");
        }
        assert_eq!(parsed(&format!("bytes={huge}-3")), None);
        let mut headers = HeaderMap::new();
        for range in ["bytes=0-1", "bytes=4-5"] {
            headers.append(RANGE, range.parse().unwrap());
        }
        assert_eq!(requested_range(&headers), None);
    }
}
