//! Tags of objects, kept beside the data as one attribute of ours.
//!
//! Only where the object is wholly ours: a store that has tags of its own keeps them elsewhere, and to answer for it without
//! asking it would be wrong.

use bywash::Bucket;
use form_urlencoded::Serializer;
use http::HeaderMap;
use object_store::{Attribute, Attributes};
use s3s::dto::Tag;
use s3s::{S3ErrorCode, S3Result};

use crate::errors::{fault, not_implemented};
use crate::limits::{MAX_TAG_KEY_CHARS, MAX_TAG_VALUE_CHARS, MAX_TAGS};
use crate::meta::text;
use crate::xml;

/// Where they are kept. The prefix is one that user metadata cannot have.
const ATTRIBUTE: Attribute = Attribute::Metadata(std::borrow::Cow::Borrowed("bywash-tags"));

/// The tags of an object, in the order given.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tags(Vec<(String, String)>);

impl Tags {
    fn new(tags: Vec<(String, String)>) -> S3Result<Self> {
        let wrong = |message: String| Err(fault(S3ErrorCode::InvalidTag, message));
        if tags.len() > MAX_TAGS {
            return wrong(format!("{} tags are more than {MAX_TAGS}.", tags.len()));
        }
        for (at, (key, value)) in tags.iter().enumerate() {
            if key.is_empty() || key.chars().count() > MAX_TAG_KEY_CHARS {
                return wrong(format!(
                    "A tag's key has 1 to {MAX_TAG_KEY_CHARS} characters."
                ));
            }
            if value.chars().count() > MAX_TAG_VALUE_CHARS {
                return wrong(format!(
                    "The tag {key} is longer than {MAX_TAG_VALUE_CHARS} characters."
                ));
            }
            if !key.chars().chain(value.chars()).all(xml::fits) {
                return wrong(format!(
                    "The tag {key:?} has a character that XML cannot carry."
                ));
            }
            if tags[..at].iter().any(|(other, _)| other == key) {
                return wrong(format!("The tag {key} is given twice."));
            }
        }
        Ok(Self(tags))
    }

    /// The tags a write names in its header; none without it.
    pub(crate) fn from_headers(headers: &HeaderMap) -> S3Result<Self> {
        let header = text(headers, "x-amz-tagging").unwrap_or_default();
        let pairs = form_urlencoded::parse(header.as_bytes()).into_owned();
        Self::new(pairs.collect())
    }

    pub(crate) fn from_set(set: Vec<Tag>) -> S3Result<Self> {
        let pair = |tag: Tag| (tag.key.unwrap_or_default(), tag.value.unwrap_or_default());
        Self::new(set.into_iter().map(pair).collect())
    }

    /// The tags kept with an object.
    pub(crate) fn kept(attributes: &Attributes) -> Self {
        let kept = attributes.get(&ATTRIBUTE).map(|value| value.as_ref());
        let pairs = form_urlencoded::parse(kept.unwrap_or_default().as_bytes()).into_owned();
        Self(pairs.collect())
    }

    /// Keeps these tags, and no others, with an object of `bucket`.
    pub(crate) fn keep(&self, bucket: &Bucket, attributes: &mut Attributes) -> S3Result<()> {
        attributes.remove(&ATTRIBUTE);
        if !self.0.is_empty() {
            check_kept(bucket)?;
            let kept = Serializer::new(String::new())
                .extend_pairs(&self.0)
                .finish();
            attributes.insert(ATTRIBUTE, kept.into());
        }
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn into_set(self) -> Vec<Tag> {
        let tag = |(key, value)| Tag {
            key: Some(key),
            value: Some(value),
        };
        self.0.into_iter().map(tag).collect()
    }
}

/// Refuses tags where the bucket's origin is not wholly ours.
pub(crate) fn check_kept(bucket: &Bucket) -> S3Result<()> {
    match bucket.origin_kind() {
        "file" | "memory" => Ok(()),
        kind => Err(not_implemented(format!(
            "Tags of objects are kept by folders and in memory, not for {kind} origins; leave them out."
        ))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn what_a_header_names_is_read_as_a_form() {
        let mut headers = HeaderMap::new();
        assert_eq!(Tags::from_headers(&headers).unwrap(), Tags::default());
        headers.insert("x-amz-tagging", "a=1&b+c=%C3%BC&d".parse().unwrap());
        let tags = Tags::from_headers(&headers).unwrap();
        let expected = [("a", "1"), ("b c", "\u{fc}"), ("d", "")];
        let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(tags.0, expected);
    }

    #[test]
    fn tags_that_s3_refuses_are_refused() {
        let pair = |key: String, value: &str| (key, value.to_owned());
        let many = (0..11).map(|number| pair(number.to_string(), ""));
        for wrong in [
            many.collect(),
            vec![pair("a".to_owned(), "1"), pair("a".to_owned(), "2")],
            vec![pair(String::new(), "1")],
            vec![pair("k".repeat(129), "")],
            vec![pair("k".to_owned(), &"v".repeat(257))],
        ] {
            assert_eq!(
                *Tags::new(wrong).unwrap_err().code(),
                S3ErrorCode::InvalidTag
            );
        }
    }
}
