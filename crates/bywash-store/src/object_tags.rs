//! Tags that a store keeps of its objects: their document, and their number in the responses to reads. No I/O.

use http::HeaderMap;
use serde::{Deserialize, Serialize};

use crate::tag_count::TagCount;

/// Tags of an object, keys with values, in the order of the store.
pub type ObjectTags = Vec<(String, String)>;

/// Returns the number of tags that the headers of a response state, if there are some.
pub(super) fn stated_count(headers: &HeaderMap) -> Option<TagCount> {
    let text = headers.get("x-amz-tagging-count")?.to_str().ok()?;
    text.trim().parse().ok().map(TagCount)
}

/// S3's document of tags, by its root element.
#[derive(Debug, Serialize, Deserialize)]
enum Document {
    Tagging {
        #[serde(rename = "TagSet", default)]
        set: TagElements,
    },
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct TagElements {
    #[serde(rename = "Tag", default)]
    tags: Vec<TagElement>,
}

#[derive(Debug, Serialize, Deserialize)]
struct TagElement {
    #[serde(rename = "Key")]
    key: String,
    #[serde(rename = "Value", default)]
    value: String,
}

/// Returns the document of these tags.
pub(super) fn document(tags: &ObjectTags) -> String {
    let element = |(key, value): &(String, String)| TagElement {
        key: key.clone(),
        value: value.clone(),
    };
    let set = TagElements {
        tags: tags.iter().map(element).collect(),
    };
    quick_xml::se::to_string(&Document::Tagging { set }).expect("texts are XML")
}

/// Parses the document of an object's tags.
///
/// # Errors
/// The mistake in it.
pub(super) fn parse(document: &[u8]) -> Result<ObjectTags, String> {
    let text = std::str::from_utf8(document).map_err(|error| error.to_string())?;
    let parsed = quick_xml::de::from_str(text).map_err(|error| error.to_string())?;
    let Document::Tagging { set } = parsed;
    let tags = set.tags.into_iter();
    Ok(tags.map(|tag| (tag.key, tag.value)).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn document_has_the_tags_it_was_made_of() {
        let pair = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
        let odd = [
            ("a", "1"),
            ("b c", ""),
            ("<&>\"'", " \u{fc} \u{2713} "),
            (" ", "\tx\n"),
        ];
        for tags in [vec![], vec![pair(odd[0])], odd.map(pair).to_vec()] {
            assert_eq!(parse(document(&tags).as_bytes()), Ok(tags));
        }
        let indented = "<?xml version=\"1.0\"?>\n<Tagging xmlns=\"x\">\n <TagSet>\n  <Tag>\n   <Key>k</Key><Value/>\n  </Tag>\n </TagSet>\n</Tagging>";
        assert_eq!(parse(indented.as_bytes()), Ok(vec![pair(("k", ""))]));
        assert_eq!(parse(b"<Tagging/>"), Ok(vec![]));
        for bad in [
            "",
            "<Tagging>",
            "<Error><Code>c</Code></Error>",
            "<Tagging><TagSet><Tag/></TagSet></Tagging>",
        ] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
