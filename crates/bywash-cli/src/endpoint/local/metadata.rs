//! Metadata from the socket, in the form of responses of the endpoint.

use bywash::origin::odd_keys::path_of_key;
use bywash::origin::{ENCRYPTION, EXPIRES};
use bywash_client::Metadata;
use chrono::{DateTime, Utc};
use object_store::path::Path;
use object_store::{Attribute, Attributes, ObjectMeta};

/// Prefix of the headers with user metadata.
const METADATA: &str = "x-amz-meta-";
/// States tags, which the response of the endpoint has in a form of its own.
const TAG_COUNT: &str = "x-amz-tagging-count";

/// Metadata of an object, as the endpoint's response to a read has it.
#[derive(Debug)]
pub(super) struct ObjectHead {
    pub(super) meta: ObjectMeta,
    pub(super) attributes: Attributes,
    /// The ETag for conditions at the socket; `None` if it is weak.
    pub(super) strong_etag: Option<String>,
}

impl ObjectHead {
    /// The metadata of the object at `path`; `None` if the endpoint may have them in another form.
    pub(super) fn of(path: &Path, found: Metadata) -> Option<Self> {
        let mut attributes = Attributes::new();
        let mut e_tag = None;
        for (name, value) in found.attributes {
            if name == TAG_COUNT || !value.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
                return None;
            }
            if name == "etag" {
                e_tag = Some(value);
            } else if let Some(attribute) = attribute(&name, &value) {
                attributes.insert(attribute, value.into());
            }
        }
        let modified = DateTime::<Utc>::from(found.modified);
        Some(Self {
            meta: ObjectMeta {
                location: path.clone(),
                // A header has no fractions of a second.
                last_modified: DateTime::from_timestamp(modified.timestamp(), 0)?,
                size: found.size,
                e_tag: Some(e_tag?),
                version: None,
            },
            attributes,
            strong_etag: found.etag.filter(|_| !found.weak_etag),
        })
    }
}

/// The attribute for a header; `None` if the header is empty, or not an attribute.
fn attribute(name: &str, value: &str) -> Option<Attribute> {
    if let Some(name) = name.strip_prefix(METADATA) {
        return Some(Attribute::Metadata(name.to_owned().into()));
    }
    Some(match name {
        "cache-control" => Attribute::CacheControl,
        "content-disposition" => Attribute::ContentDisposition,
        "content-encoding" => Attribute::ContentEncoding,
        "content-language" => Attribute::ContentLanguage,
        "content-type" => Attribute::ContentType,
        "expires" if !value.is_empty() => EXPIRES,
        "x-amz-server-side-encryption" if !value.is_empty() => ENCRYPTION,
        _ => return None,
    })
}

/// A listed object as the endpoint's listing has it; `None` if its key is no text of XML, or its
/// date none at all.
pub(super) fn listed(found: Metadata) -> Option<ObjectMeta> {
    let modified = DateTime::<Utc>::from(found.modified);
    let weak = if found.weak_etag { "W/" } else { "" };
    is_in_xml(&found.key).then_some(ObjectMeta {
        location: path_of_key(&found.key),
        last_modified: DateTime::from_timestamp_millis(modified.timestamp_millis())?,
        size: found.size,
        e_tag: found.etag.map(|etag| format!("{weak}\"{etag}\"")),
        version: None,
    })
}

/// Whether XML can represent a text, so that a listing of the endpoint has it.
pub(super) fn is_in_xml(text: &str) -> bool {
    text.chars().all(|character| match character {
        '\t' | '\n' => true,
        '\u{FFFE}' | '\u{FFFF}' => false,
        other => other >= ' ',
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::time::{Duration, SystemTime};

    use super::*;

    fn found(attributes: &[(&str, &str)]) -> Metadata {
        let text = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Metadata {
            key: "dir/k".to_owned(),
            size: 3,
            modified: SystemTime::UNIX_EPOCH + Duration::new(5, 123_456_789),
            etag: Some("tag".to_owned()),
            weak_etag: false,
            version: Some("7".to_owned()),
            attributes: attributes.iter().map(text).collect(),
        }
    }

    #[test]
    fn head_has_what_the_endpoint_states() {
        let headers = [
            ("etag", "\"tag\""),
            ("content-type", "text/plain"),
            ("accept-ranges", "bytes"),
            ("expires", "never"),
            ("x-amz-meta-a", "b"),
        ];
        let head = ObjectHead::of(&Path::from("dir/k"), found(&headers)).unwrap();
        assert_eq!(head.meta.e_tag.as_deref(), Some("\"tag\""));
        assert_eq!(head.strong_etag.as_deref(), Some("tag"));
        assert_eq!(head.meta.last_modified.timestamp_millis(), 5_000);
        assert_eq!((head.meta.size, head.meta.version), (3, None));
        let expected = [
            (Attribute::ContentType, "text/plain"),
            (EXPIRES, "never"),
            (Attribute::Metadata("a".into()), "b"),
        ];
        assert_eq!(head.attributes, Attributes::from_iter(expected));
    }

    #[test]
    fn object_that_the_endpoint_may_state_otherwise_has_no_head() {
        let path = Path::from("dir/k");
        let e_tag = ("etag", "\"tag\"");
        for header in [("x-amz-tagging-count", "1"), ("x-amz-meta-a", "\u{fc}")] {
            assert!(ObjectHead::of(&path, found(&[e_tag, header])).is_none());
        }
        assert!(ObjectHead::of(&path, found(&[])).is_none(), "no ETag");
        let weak = Metadata {
            weak_etag: true,
            ..found(&[("etag", "W/\"tag\"")])
        };
        let weak = ObjectHead::of(&path, weak).unwrap();
        assert_eq!(weak.strong_etag, None);
    }

    #[test]
    fn listed_objects_have_milliseconds_and_quoted_e_tags() {
        let object = listed(found(&[])).unwrap();
        assert_eq!(object.location, Path::from("dir/k"));
        assert_eq!(
            object.last_modified.timestamp_nanos_opt(),
            Some(5_123_000_000)
        );
        assert_eq!(object.e_tag.as_deref(), Some("\"tag\""));
        let weak = Metadata {
            weak_etag: true,
            ..found(&[])
        };
        assert_eq!(listed(weak).unwrap().e_tag.as_deref(), Some("W/\"tag\""));
        let unfit = Metadata {
            key: "a\u{1}".to_owned(),
            ..found(&[])
        };
        assert!(listed(unfit).is_none());
    }
}
