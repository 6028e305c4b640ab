//! Reads of objects by plain requests: the headers of a request, and the metadata of an object in the head of its response.

use std::ops::Range;

use bytes::Bytes;
use chrono::DateTime;
use futures::stream::BoxStream;
use http::header::{
    CONTENT_LENGTH, ETAG, HeaderName, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH,
    IF_UNMODIFIED_SINCE, LAST_MODIFIED, RANGE,
};
use http::{HeaderMap, StatusCode};
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, Extensions, GetOptions, GetRange, GetResult, GetResultPayload,
    ObjectMeta, Result,
};

use crate::digest::ContentDigest;
use crate::digest::stated_digest;
use crate::response::{content_range, text};
use crate::stated_headers::content_headers;
use crate::time::parse_http_date;

/// The head of a response with (part of) an object.
#[derive(Debug, Clone)]
pub(super) struct Head {
    pub(super) meta: ObjectMeta,
    pub(super) attributes: Attributes,
    /// The range of the body.
    pub(super) range: Range<u64>,
    /// Digest of the whole object, if the server states one.
    pub(super) digest: Option<ContentDigest>,
}

impl Head {
    /// Parses the head of a 200 or 206. `Ok(None)`: it does not contain the object's length.
    pub(super) fn read(
        path: &Path,
        status: StatusCode,
        headers: &HeaderMap,
    ) -> std::result::Result<Option<Self>, String> {
        let (range, size) = if status == StatusCode::PARTIAL_CONTENT {
            content_range(headers)?
        } else {
            let length = text(headers, &CONTENT_LENGTH).and_then(|text| text.parse().ok());
            let Some(length) = length else {
                return Ok(None);
            };
            (0..length, length)
        };
        Ok(Some(Self::of(path, headers, range, size)))
    }

    /// Returns the head of a response with a length known from its body.
    pub(super) fn of(path: &Path, headers: &HeaderMap, range: Range<u64>, size: u64) -> Self {
        let meta = ObjectMeta {
            location: path.clone(),
            // The engine represents "unknown" as the epoch.
            last_modified: text(headers, &LAST_MODIFIED)
                .and_then(parse_http_date)
                .unwrap_or(DateTime::UNIX_EPOCH),
            size,
            e_tag: text(headers, &ETAG).map(str::to_owned),
            version: None,
        };
        Self {
            meta,
            attributes: attributes(headers),
            range,
            digest: None,
        }
    }

    /// Adds the digest that the response of `host` states.
    pub(super) fn with_digest(self, host: &str, status: StatusCode, headers: &HeaderMap) -> Self {
        let digest = stated_digest(host, status, headers);
        Self { digest, ..self }
    }
}

/// Returns the content headers. They apply to the bytes as sent: an encoding is recorded, never decoded.
fn attributes(headers: &HeaderMap) -> Attributes {
    let value = |(name, attribute): (HeaderName, Attribute)| {
        text(headers, &name).map(|value| (attribute, value.to_owned()))
    };
    content_headers().into_iter().filter_map(value).collect()
}

/// Returns the response if the object meets the conditions, which a server may not support.
pub(super) fn checked(
    options: &GetOptions,
    head: Head,
    body: BoxStream<'static, Result<Bytes>>,
) -> Result<GetResult> {
    let Head {
        meta,
        attributes,
        range,
        digest,
    } = head;
    options.check_preconditions(&meta)?;
    let mut extensions = Extensions::new();
    if let Some(digest) = digest {
        extensions.insert(digest);
    }
    Ok(GetResult {
        payload: GetResultPayload::Stream(body),
        meta,
        range,
        attributes,
        extensions,
    })
}

/// Returns the headers for range and conditions.
pub(super) fn conditions(options: &GetOptions) -> Vec<(HeaderName, String)> {
    let range = options.range.as_ref().map(|range| match range {
        GetRange::Bounded(Range { start, end }) => {
            format!("bytes={start}-{}", end.saturating_sub(1))
        }
        GetRange::Offset(start) => format!("bytes={start}-"),
        GetRange::Suffix(length) => format!("bytes=-{length}"),
    });
    let date = |date: Option<chrono::DateTime<chrono::Utc>>| date.map(crate::time::http_date);
    let headers = [
        (RANGE, range),
        (IF_MATCH, options.if_match.clone()),
        (IF_NONE_MATCH, options.if_none_match.clone()),
        (IF_MODIFIED_SINCE, date(options.if_modified_since)),
        (IF_UNMODIFIED_SINCE, date(options.if_unmodified_since)),
    ];
    let given = |(name, value): (_, Option<String>)| value.map(|value| (name, value));
    headers.into_iter().filter_map(given).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn response_without_length_is_recognised() {
        let (path, headers) = (Path::from("k"), HeaderMap::new());
        assert!(
            Head::read(&path, StatusCode::OK, &headers)
                .unwrap()
                .is_none()
        );
        let error = Head::read(&path, StatusCode::PARTIAL_CONTENT, &headers).unwrap_err();
        assert!(error.contains("without Content-Range"), "{error}");
    }
}
