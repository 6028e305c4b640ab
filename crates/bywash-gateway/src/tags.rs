//! Object tags: one attribute of objects in folders and in memory. S3 origins keep them next to the
//! object, so there they are sent with the write, and are requested when they are read.

use bywash::Bucket;
use bywash::origin::ObjectTags;
use form_urlencoded::Serializer;
use http::{HeaderMap, HeaderValue};
use object_store::path::Path;
use object_store::{Attribute, Attributes, Error as StoreError, TagSet};
use percent_encoding::percent_decode;
use s3s::dto::Tag;
use s3s::{S3ErrorCode, S3Result};

use crate::errors::{WithElements, fault, not_implemented};
use crate::limits::{MAX_TAG_KEY_CHARS, MAX_TAG_VALUE_CHARS, MAX_TAGS};
use crate::meta::joined;
use crate::xml;

/// Attribute that stores the tags. User metadata cannot have this prefix.
const ATTRIBUTE: Attribute = Attribute::Metadata(std::borrow::Cow::Borrowed("bywash-tags"));

/// Header of a write with its tags, as a form.
const HEADER: &str = "x-amz-tagging";
/// Prefix of tags that only S3 itself sets.
const RESERVED: &str = "aws:";

/// Tags of an object, in the given order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tags(ObjectTags);

/// Wraps the tags that an origin returned, without checking them: the origin did when they were set.
impl From<ObjectTags> for Tags {
    fn from(tags: ObjectTags) -> Self {
        Self(tags)
    }
}

impl From<Tags> for ObjectTags {
    fn from(tags: Tags) -> Self {
        tags.0
    }
}

impl Tags {
    fn new(tags: Vec<(String, String)>) -> S3Result<Self> {
        if tags.len() > MAX_TAGS {
            let message = format!("{} tags are more than {MAX_TAGS}.", tags.len());
            return Err(fault(S3ErrorCode::InvalidTag, message));
        }
        for (at, (key, value)) in tags.iter().enumerate() {
            let wrong = |message: String| {
                let elements = [("TagKey", key), ("TagValue", value)];
                Err(fault(S3ErrorCode::InvalidTag, message).with(elements))
            };
            if key.is_empty() || key.chars().count() > MAX_TAG_KEY_CHARS {
                return wrong(format!(
                    "A tag's key has 1 to {MAX_TAG_KEY_CHARS} characters."
                ));
            }
            if key.starts_with(RESERVED) {
                return wrong(format!(
                    "The tag {key} has a key that begins with {RESERVED}, which is reserved."
                ));
            }
            if value.chars().count() > MAX_TAG_VALUE_CHARS {
                return wrong(format!(
                    "The tag {key} is longer than {MAX_TAG_VALUE_CHARS} characters."
                ));
            }
            if !key.chars().chain(value.chars()).all(xml::fits) {
                return wrong(format!(
                    "The tag {key:?} has a character that XML cannot represent."
                ));
            }
            if tags[..at].iter().any(|(other, _)| other == key) {
                return wrong(format!("The tag {key} is given twice."));
            }
        }
        Ok(Self(tags))
    }

    /// Parses the tags in the header of a write; none without it.
    pub(crate) fn from_headers(headers: &HeaderMap) -> S3Result<Self> {
        let is_text = |value: &HeaderValue| percent_decode(value.as_bytes()).decode_utf8().is_ok();
        if !headers.get_all(HEADER).iter().all(is_text) {
            let message = format!("The header {HEADER} is not UTF-8.");
            return Err(fault(S3ErrorCode::InvalidTag, message));
        }
        let header = joined(headers, HEADER).unwrap_or_default();
        let pairs = form_urlencoded::parse(header.as_bytes()).into_owned();
        Self::new(pairs.collect())
    }

    pub(crate) fn from_set(set: Vec<Tag>) -> S3Result<Self> {
        let pair = |tag: Tag| (tag.key.unwrap_or_default(), tag.value.unwrap_or_default());
        Self::new(set.into_iter().map(pair).collect())
    }

    /// The tags stored with an object.
    pub(crate) fn kept(attributes: &Attributes) -> Self {
        let kept = attributes.get(&ATTRIBUTE).map(|value| value.as_ref());
        let pairs = form_urlencoded::parse(kept.unwrap_or_default().as_bytes()).into_owned();
        Self(pairs.collect())
    }

    /// Replaces the tags stored with an object of `bucket`. Returns the tags to send with its write
    /// because its origin keeps them next to the object.
    pub(crate) fn keep(&self, bucket: &Bucket, attributes: &mut Attributes) -> S3Result<TagSet> {
        attributes.remove(&ATTRIBUTE);
        let mut beside = TagSet::default();
        if bucket.has_tags() {
            for (key, value) in &self.0 {
                beside.push(key, value);
            }
        } else if !self.0.is_empty() {
            check_kept(bucket)?;
            let kept = Serializer::new(String::new())
                .extend_pairs(&self.0)
                .finish();
            attributes.insert(ATTRIBUTE, kept.into());
        }
        Ok(beside)
    }

    /// Requests the tags that the origin of `bucket` keeps next to an object; it states their
    /// number as `stated`. None if it states none, and this server may not read them or the origin
    /// does not know such requests.
    pub(crate) async fn beside(
        bucket: &Bucket,
        path: &Path,
        stated: u32,
    ) -> Result<Self, StoreError> {
        match bucket.object_tags(path).await {
            Ok(tags) => Ok(tags.into()),
            Err(
                StoreError::NotImplemented { .. }
                | StoreError::NotFound { .. }
                | StoreError::PermissionDenied { .. }
                | StoreError::Unauthenticated { .. },
            ) if stated == 0 => Ok(Self::default()),
            Err(error) => Err(error),
        }
    }

    /// Returns the tags to send with a write of an object's own bytes, at an origin that keeps tags
    /// next to objects and states their number as `stated`. Other origins have them among the
    /// attributes.
    pub(crate) async fn of_object(
        bucket: &Bucket,
        path: &Path,
        stated: u32,
        attributes: &mut Attributes,
    ) -> Result<S3Result<TagSet>, StoreError> {
        if !bucket.has_tags() {
            return Ok(Ok(TagSet::default()));
        }
        let beside = Self::beside(bucket, path, stated).await?;
        Ok(beside.keep(bucket, attributes))
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

/// Rejects tags of objects at an origin that keeps none.
pub(crate) fn check_kept(bucket: &Bucket) -> S3Result<()> {
    match bucket.origin_kind() {
        "file" | "memory" => Ok(()),
        kind => Err(not_implemented(format!(
            "The origin of this bucket ({kind}) keeps no tags of objects; leave them out."
        ))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn tags_of_a_header_are_decoded_as_a_form() {
        let mut headers = HeaderMap::new();
        assert_eq!(Tags::from_headers(&headers).unwrap(), Tags::default());
        headers.insert("x-amz-tagging", "a=1&b+c=%C3%BC&d".parse().unwrap());
        let tags = Tags::from_headers(&headers).unwrap();
        let expected = [("a", "1"), ("b c", "\u{fc}"), ("d", "")];
        let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(tags.0, expected);
    }

    #[test]
    fn tags_invalid_in_s3_are_rejected() {
        let pair = |key: String, value: &str| (key, value.to_owned());
        let many = (0..11).map(|number| pair(number.to_string(), ""));
        for wrong in [
            many.collect(),
            vec![pair("a".to_owned(), "1"), pair("a".to_owned(), "2")],
            vec![pair(String::new(), "1")],
            vec![pair("aws:k".to_owned(), "1")],
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
