//! Metadata of an object that a request brings: a JSON document, as attributes.

use http::HeaderName;
use object_store::{Attribute, Attributes};
use serde_json::{Map, Value};

use super::error::{GcsError, GcsResult};
use crate::digest::Algorithm;
use crate::limits::MAX_METADATA_BYTES;
use crate::meta::{user_attribute, user_metadata_of};

/// Properties that are taken and have no effect: the path has them, or this endpoint computes them.
const IGNORED: [&str; 13] = [
    "name",
    "bucket",
    "kind",
    "id",
    "size",
    "etag",
    "generation",
    "metageneration",
    "selfLink",
    "mediaLink",
    "timeCreated",
    "timeStorageClassUpdated",
    "updated",
];

pub(super) const CONTENT: [(&str, Attribute); 5] = [
    ("contentType", Attribute::ContentType),
    ("contentEncoding", Attribute::ContentEncoding),
    ("contentDisposition", Attribute::ContentDisposition),
    ("contentLanguage", Attribute::ContentLanguage),
    ("cacheControl", Attribute::CacheControl),
];

/// Metadata of an object to be written.
#[derive(Debug, Default)]
pub(crate) struct GivenMetadata {
    pub(crate) attributes: Attributes,
    /// The object's name, if the document has one.
    pub(crate) name: Option<String>,
    /// Digests of the bytes to come, in base64.
    pub(crate) crc32c: Option<String>,
    pub(crate) md5: Option<String>,
    /// Whether the document has any property that is kept.
    pub(crate) is_given: bool,
    /// Attributes that the document has as null, which a patch removes.
    pub(super) removed: Vec<Attribute>,
    /// Whether `metadata` as a whole is null.
    pub(super) removes_user_metadata: bool,
}

impl GivenMetadata {
    /// Parses a document; an empty one has nothing, nor has `null`, which Go's client of the API sends for none.
    pub(crate) fn parse(document: &[u8]) -> GcsResult<Self> {
        if document.iter().all(u8::is_ascii_whitespace) {
            return Ok(Self::default());
        }
        let document: Option<Map<String, Value>> = serde_json::from_slice(document)
            .map_err(|error| GcsError::parse("the metadata", &error))?;
        Self::of(document.unwrap_or_default())
    }

    /// The names of the metadata that are to be kept.
    pub(crate) fn names(&self) -> Vec<String> {
        let found = user_metadata_of(&self.attributes);
        found.map(|(name, _)| name.to_owned()).collect()
    }

    /// Takes the properties of a document.
    pub(crate) fn of(document: Map<String, Value>) -> GcsResult<Self> {
        let mut found = Self::default();
        for (name, value) in document {
            found.take(&name, value)?;
        }
        Ok(found)
    }

    fn take(&mut self, name: &str, value: Value) -> GcsResult<()> {
        if value.is_null() {
            self.removes_user_metadata |= name == "metadata";
            let content = CONTENT.into_iter().find(|(known, _)| *known == name);
            self.removed.extend(content.map(|(_, attribute)| attribute));
            return Ok(());
        }
        if name == "metadata" {
            self.is_given = true;
            return self.take_user_metadata(value);
        }
        if name == "name" {
            self.name = value.as_str().map(str::to_owned);
            return Ok(());
        }
        if IGNORED.contains(&name) {
            return Ok(());
        }
        let Value::String(text) = value else {
            return Err(not_served(name));
        };
        if let Some((_, attribute)) = CONTENT.into_iter().find(|(known, _)| *known == name) {
            check_text(name, &text)?;
            self.is_given = true;
            self.attributes.insert(attribute, text.into());
            return Ok(());
        }
        match name {
            "crc32c" if Algorithm::Crc32c.decode(&text).is_none() => Err(GcsError::invalid(
                format!("crc32c is four bytes in base64, not {text:?}."),
            )),
            "crc32c" => {
                self.crc32c = Some(text);
                Ok(())
            }
            "md5Hash" => {
                self.md5 = Some(text);
                Ok(())
            }
            "storageClass" if text == "STANDARD" => Ok(()),
            _ => Err(not_served(name)),
        }
    }

    fn take_user_metadata(&mut self, value: Value) -> GcsResult<()> {
        let Value::Object(pairs) = value else {
            return Err(GcsError::invalid(
                "metadata is a JSON object of names and texts.",
            ));
        };
        let mut total = 0;
        for (name, value) in pairs {
            let value = match value {
                Value::String(value) => value,
                Value::Null => {
                    self.removed.push(user_attribute(name));
                    continue;
                }
                _ => {
                    let message = format!("The metadata {name} is a text.");
                    return Err(GcsError::invalid(message));
                }
            };
            let is_header = HeaderName::try_from(format!("x-goog-meta-{name}")).is_ok();
            if name.is_empty() || !is_header {
                let message = format!(
                    "Metadata named {name:?} cannot be stored: a name has letters, digits and hyphens."
                );
                return Err(GcsError::invalid(message));
            }
            check_text(&name, &value)?;
            total += name.len() + value.len();
            self.attributes.insert(user_attribute(name), value.into());
        }
        if total > MAX_METADATA_BYTES {
            return Err(GcsError::invalid(format!(
                "The object's metadata has {total} bytes, more than {MAX_METADATA_BYTES}."
            )));
        }
        Ok(())
    }
}

/// Refuses text that no header can carry: the other endpoint could not return it.
fn check_text(name: &str, text: &str) -> GcsResult<()> {
    if text.chars().any(char::is_control) {
        Err(GcsError::invalid(format!(
            "{name} has a control character; leave it out."
        )))
    } else {
        Ok(())
    }
}

fn not_served(name: &str) -> GcsError {
    GcsError::not_served(format!(
        "The property {name} is not served here; leave it out."
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn documents_become_attributes() {
        let document =
            br#"{"name":"n","contentType":"text/x","cacheControl":null,"crc32c":"AAAAAA==",
            "metadata":{"a":"b"},"storageClass":"STANDARD"}"#;
        let found = GivenMetadata::parse(document).unwrap();
        assert_eq!(found.name.as_deref(), Some("n"));
        assert_eq!(found.crc32c.as_deref(), Some("AAAAAA=="));
        let expected = Attributes::from_iter([
            (Attribute::ContentType, "text/x"),
            (Attribute::Metadata("a".into()), "b"),
        ]);
        assert_eq!(found.attributes, expected);
        let empty = GivenMetadata::parse(b" \r\n").unwrap();
        assert!(!empty.is_given && empty.attributes.is_empty());
    }

    #[test]
    fn properties_that_are_not_served_are_refused_by_name() {
        for (document, status) in [
            (r#"{"customTime":"2020-01-01T00:00:00Z"}"#, 400),
            (r#"{"storageClass":"NEARLINE"}"#, 400),
            (r#"{"retention":{"mode":"Locked"}}"#, 400),
            (r#"{"metadata":{"a b":"1"}}"#, 400),
            (r#"{"metadata":{"a":1}}"#, 400),
            (r#"{"metadata":[]}"#, 400),
            (r#"{"contentType":"a\nb"}"#, 400),
            (r#"{"crc32c":"AA=="}"#, 400),
            ("[]", 400),
            ("{", 400),
        ] {
            let error = GivenMetadata::parse(document.as_bytes()).unwrap_err();
            assert_eq!(error.status().as_u16(), status, "{document}");
        }
        let long = format!(r#"{{"metadata":{{"a":"{}"}}}}"#, "x".repeat(2048));
        assert!(GivenMetadata::parse(long.as_bytes()).is_err());
    }
}
