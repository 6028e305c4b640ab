//! The header of a copy's source.

use http::HeaderMap;
use percent_encoding::percent_decode_str;
use s3s::S3Result;
use s3s::path::check_bucket_name;

use crate::errors::{invalid_argument, not_implemented};
use crate::meta::joined;

pub(crate) const COPY_SOURCE: &str = "x-amz-copy-source";
const VERSION: &str = "?versionId=";

/// The object that a copy reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CopySource {
    pub(crate) bucket: String,
    pub(crate) key: String,
    pub(crate) version: Option<String>,
}

impl CopySource {
    /// Parses `[/]BUCKET/KEY[?versionId=VERSION]`, encoded as a form: a plus is a space, and an encoded plus is one.
    pub(crate) fn of(headers: &HeaderMap) -> S3Result<Option<Self>> {
        let Some(value) = joined(headers, COPY_SOURCE) else {
            return Ok(None);
        };
        let wrong = |what: &str| {
            invalid_argument(COPY_SOURCE, &value, format!("Invalid copy source {what}"))
        };
        let decoded = |text: &str| {
            let spaced = text.replace('+', " ");
            let decoded = percent_decode_str(&spaced).decode_utf8().map(String::from);
            decoded.map_err(|_| wrong("encoding: it is not UTF-8"))
        };
        let (path, version) = match value.split_once(VERSION) {
            Some((path, version)) => (path, Some(decoded(version)?)),
            None => (&*value, None),
        };
        let path = decoded(path)?;
        let path = path.strip_prefix('/').unwrap_or(&path);
        if path.starts_with("arn:") {
            return Err(not_implemented(
                "A copy source is /bucket/key here, not an ARN.",
            ));
        }
        let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
        if !check_bucket_name(bucket) {
            return Err(wrong("bucket name; send /bucket/key"));
        }
        if key.is_empty() {
            return Err(wrong("object key; send /bucket/key"));
        }
        Ok(Some(Self {
            bucket: bucket.to_owned(),
            key: key.to_owned(),
            version,
        }))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn parse(value: &str) -> Result<CopySource, String> {
        let headers = [(
            http::HeaderName::from_static(COPY_SOURCE),
            value.parse().unwrap(),
        )];
        let parsed = CopySource::of(&headers.into_iter().collect());
        let code = |error: s3s::S3Error| error.code().as_str().to_owned();
        parsed.map(Option::unwrap).map_err(code)
    }

    #[test]
    fn plus_is_a_space_and_an_encoded_plus_is_one() {
        for (value, key) in [
            ("bucket/a+b", "a b"),
            ("/bucket/a%2Bb", "a+b"),
            ("bucket/a%20b", "a b"),
            ("bucket/a+%2B+b", "a + b"),
            ("%2Fbucket%2Fa%2fb", "a/b"),
            ("bucket/100%", "100%"),
            ("bucket/%C3%BC", "\u{fc}"),
            ("bucket/a?b", "a?b"),
            ("bucket//a", "/a"),
        ] {
            let source = parse(value).unwrap();
            assert_eq!((&*source.bucket, &*source.key), ("bucket", key), "{value}");
            assert_eq!(source.version, None);
        }
        let source = parse("bucket/a%3FversionId=x?versionId=nu%6Cl").unwrap();
        assert_eq!(source.key, "a?versionId=x");
        assert_eq!(source.version.as_deref(), Some("null"));
    }

    #[test]
    fn sources_without_bucket_or_key_are_refused() {
        for value in [
            "bucket",
            "bucket/",
            "/bucket/",
            "b/k",
            "Bucket/k",
            "//k",
            "bucket/%FF",
        ] {
            assert_eq!(parse(value).unwrap_err(), "InvalidArgument", "{value}");
        }
        let arn = "arn:aws:s3:us-west-2:123456789012:accesspoint/name/object/key";
        assert_eq!(parse(arn).unwrap_err(), "NotImplemented");
    }
}
