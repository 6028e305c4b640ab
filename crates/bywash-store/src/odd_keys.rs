//! Keys that no path of object_store has: with an empty segment, `.` or `..` as a segment, or a control character. Other programs
//! write them (`report//part`, `folder/`), and one such key makes a whole page of object_store's listings fail.
//!
//! Such a key gets a path: its plain folders, then one segment with the rest in percent encoding. Listings have the path, and
//! [`key_of`] returns the key. Which origins can read by such a path is [`crate::Origin::reads_odd_keys`]; none writes by it.

use std::borrow::Cow;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{Error, Result};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use quick_xml::escape::{escape, unescape};

/// Begins the segment with the encoded rest of a key. A key that has it is encoded too, so each path has one key.
const MARK: &str = ".bywash-key=";
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_');
/// Elements of listings that are keys or common prefixes, in the protocols of S3, Google and Azure.
const ELEMENTS: [&str; 3] = ["Key", "Prefix", "Name"];

fn is_plain(segment: &str) -> bool {
    !segment.is_empty()
        && segment != "."
        && segment != ".."
        && !segment.starts_with(MARK)
        && !segment.chars().any(|c| c.is_ascii_control())
}

/// Returns the path of a key, encoded if it has no other.
#[must_use]
pub fn path_of_key(key: &str) -> Path {
    let text = encoded(key).map_or(Cow::Borrowed(key), Cow::Owned);
    // Segments that it takes are plain, and an encoded one is plain.
    Path::parse(text.as_ref()).unwrap_or_default()
}

/// Returns the text of the path of an odd key; `None` for any other key.
fn encoded(key: &str) -> Option<String> {
    let mut begin = 0;
    for segment in key.split('/') {
        if !is_plain(segment) {
            let (folders, rest) = key.split_at(begin);
            let rest = utf8_percent_encode(rest, ESCAPED);
            return Some(format!("{folders}{MARK}{rest}"));
        }
        begin += segment.len() + 1;
    }
    None
}

/// Returns the key of a path, which is its text unless the key is odd.
#[must_use]
pub fn key_of(path: &Path) -> Cow<'_, str> {
    let text = path.as_ref();
    match split(path) {
        Some((folders, rest)) => {
            let rest = percent_decode_str(rest).decode_utf8_lossy();
            Cow::Owned(format!("{folders}{rest}"))
        }
        None => Cow::Borrowed(text),
    }
}

/// Name of the object that an endpoint stores for a key that ends with `/`, in that folder.
pub const FOLDER_MARKER: &str = ".bywash-folder";

/// Returns the path of the key `folder/` for the path of its marker. Other programs store an object under that key itself.
pub(crate) fn folder_of_marker(path: &Path) -> Option<Path> {
    let folder = path.as_ref().strip_suffix(FOLDER_MARKER)?;
    folder.ends_with('/').then(|| path_of_key(folder))
}

/// Returns whether a key has a segment that only the paths of odd keys have. No such key is written.
#[must_use]
pub fn is_reserved(key: &str) -> bool {
    key.split('/').any(|segment| segment.starts_with(MARK))
}

/// Returns whether the key of a path is odd.
#[must_use]
pub fn is_odd(path: &Path) -> bool {
    split(path).is_some()
}

/// Returns the plain folders of an odd key's path, with their `/`, and the encoded rest.
fn split(path: &Path) -> Option<(&str, &str)> {
    let text = path.as_ref();
    let begin = text.rfind('/').map_or(0, |at| at + 1);
    let (folders, last) = text.split_at(begin);
    Some((folders, last.strip_prefix(MARK)?))
}

/// Returns whether the key has a segment `.` or `..`, which no URL can have.
pub(crate) fn has_dots(key: &str) -> bool {
    key.split('/').any(|segment| [".", ".."].contains(&segment))
}

/// Returns the error of an operation on an odd key that the origin's client cannot name.
pub(crate) fn refused(path: &Path) -> Error {
    let key = key_of(path);
    Error::NotSupported {
        source: format!(
            "the key {key:?} has an empty segment, `.` or `..`, or a control character; reach it at the origin itself, or copy it there \
             to another key"
        )
        .into(),
    }
}

/// Fails for an odd key.
pub(crate) fn check(path: &Path) -> Result<()> {
    match is_odd(path) {
        true => Err(refused(path)),
        false => Ok(()),
    }
}

/// Gives odd keys in a page of a listing their paths, which object_store's clients parse.
pub(crate) fn with_paths(page: Bytes) -> Bytes {
    let Ok(text) = std::str::from_utf8(&page) else {
        return page;
    };
    match rewritten(text) {
        Some(text) => text.into(),
        None => page,
    }
}

/// Returns the page with the paths of its odd keys; `None` if it has none.
fn rewritten(page: &str) -> Option<String> {
    let (mut written, mut copied, mut at) = (String::new(), 0, 0);
    while let Some(open) = page[at..].find('<').map(|begin| at + begin) {
        let Some(close) = page[open..].find('>').map(|end| open + end) else {
            break;
        };
        at = close + 1;
        let tag = &page[open + 1..close];
        let (name, attributes) = tag.split_once(' ').unwrap_or((tag, ""));
        if !ELEMENTS.contains(&name) {
            continue;
        }
        let Some(end) = page[at..].find('<').map(|end| at + end) else {
            break;
        };
        if let Some(path) = path_in(name, attributes, &page[at..end]) {
            written.push_str(&page[copied..at]);
            written.push_str(&escape(&path));
            copied = end;
        }
        at = end;
    }
    written.push_str(&page[copied..]);
    (copied > 0).then_some(written)
}

/// Returns the text of the path that an element of a listing is to have; `None` if it may stay as it is.
fn path_in(name: &str, attributes: &str, text: &str) -> Option<String> {
    let key = unescape(text).ok()?;
    // Azure encodes names that XML cannot contain.
    let is_encoded = attributes.contains("Encoded=\"true\"");
    let key = match is_encoded {
        true => Cow::Owned(percent_decode_str(&key).decode_utf8().ok()?.into_owned()),
        false => key,
    };
    // A common prefix, also of Azure, and not only one that ends in `/`.
    let folder = key.strip_suffix('/').filter(|_| name != "Key");
    let path = match folder {
        Some(folder) => encoded(folder).and_then(|_| Some(encoded(&key)? + "/")),
        None if key.is_empty() => None,
        None => encoded(&key),
    };
    path.or_else(|| is_encoded.then(|| key.into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ODD: [&str; 14] = [
        "a//b",
        "/a",
        "a/",
        "a//",
        "/",
        "//",
        ".",
        "a/./b",
        "a/../b",
        "..",
        "a/b\nc",
        "a\u{7f}",
        "a/.bywash-key=x",
        "\u{fc}//<&>",
    ];

    #[test]
    fn path_of_an_odd_key_is_that_of_no_other() {
        for key in ODD {
            let path = path_of_key(key);
            assert!(is_odd(&path), "{key:?}");
            assert_eq!(key_of(&path), key);
            assert_eq!(Path::parse(path.as_ref()).ok(), Some(path.clone()));
            assert!(check(&path).is_err_and(|error| error.to_string().contains("key")));
        }
        for key in ["a", "a/b", "a b/%2F", ".a/..b", "\u{fc}", ".bywash-folder"] {
            let path = path_of_key(key);
            assert!(!is_odd(&path) && check(&path).is_ok());
            assert_eq!((path.as_ref(), &*key_of(&path)), (key, key));
        }
    }

    fn keys_of_page(page: &str, element: &str) -> Vec<String> {
        let opening = format!("<{element}>");
        let parts = page.split(&opening).skip(1);
        let texts = parts.filter_map(|part| part.split('<').next());
        let paths = texts.map(|text| unescape(text).map(Cow::into_owned));
        let paths = paths.map(|path| Path::parse(path.unwrap_or_default()).unwrap_or_default());
        paths.map(|path| key_of(&path).into_owned()).collect()
    }

    #[test]
    fn pages_have_paths_of_all_keys_and_prefixes() {
        let keys: Vec<&str> = ODD.into_iter().chain(["plain", "a/b &amp"]).collect();
        let contents = keys.iter().map(|key| {
            let key = escape(*key);
            format!("<Contents><Key>{key}</Key><Size>1</Size></Contents>")
        });
        let contents: String = contents.collect();
        let page = format!("<ListBucketResult><Prefix></Prefix>{contents}</ListBucketResult>");
        let page = with_paths(page.into());
        let page = std::str::from_utf8(&page).unwrap_or_default();
        assert_eq!(keys_of_page(page, "Key"), keys);
        assert!(page.ends_with("</ListBucketResult>") && page.contains("<Prefix></Prefix>"));
        let prefixes = ["a//", "/", "//", "a/../"];
        let listed =
            prefixes.map(|prefix| format!("<BlobPrefix><Name>{prefix}</Name></BlobPrefix>"));
        let page = with_paths(listed.concat().into());
        let page = std::str::from_utf8(&page).unwrap_or_default();
        assert_eq!(keys_of_page(page, "Name"), prefixes);
        let encoded = with_paths("<Name Encoded=\"true\">a%01%2Fb</Name>".into());
        assert_eq!(
            encoded,
            "<Name Encoded=\"true\">.bywash-key=a%01%2Fb</Name>"
        );
    }

    #[test]
    fn page_without_odd_keys_is_left_as_it_is() {
        for page in [
            "<ListBucketResult><Name>data</Name><Prefix>a/</Prefix><Contents><Key>a/b</Key></Contents></ListBucketResult>",
            "<CommonPrefixes><Prefix>a/</Prefix></CommonPrefixes>",
            "<Key>a",
            "<Key",
            "no list",
            "",
        ] {
            assert_eq!(rewritten(page), None, "{page}");
        }
    }
}
