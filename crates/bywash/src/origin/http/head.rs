//! Metadata of an object in the head of a web server's response.

use std::ops::Range;

use chrono::DateTime;
use http::header::{
    CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LENGTH,
    CONTENT_TYPE, ETAG, HeaderName, LAST_MODIFIED,
};
use http::{HeaderMap, StatusCode};
use object_store::path::Path;
use object_store::{Attribute, Attributes, ObjectMeta};

use crate::content_digest::ContentDigest;
use crate::origin::response::{content_range, text};
use crate::origin::stated_digest::stated_digest;
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
    ) -> Result<Option<Self>, String> {
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
    let names = [
        (CACHE_CONTROL, Attribute::CacheControl),
        (CONTENT_DISPOSITION, Attribute::ContentDisposition),
        (CONTENT_ENCODING, Attribute::ContentEncoding),
        (CONTENT_LANGUAGE, Attribute::ContentLanguage),
        (CONTENT_TYPE, Attribute::ContentType),
    ];
    let value = |(name, attribute): (HeaderName, Attribute)| {
        text(headers, &name).map(|value| (attribute, value.to_owned()))
    };
    names.into_iter().filter_map(value).collect()
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
