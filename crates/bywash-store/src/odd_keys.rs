//! Keys that no path of object_store has: with an empty segment, `.` or `..` as a segment, or a control character. Other programs
//! write them (`report//part`, `folder/`), and one such key makes a whole page of object_store's listings fail.
//!
//! Such a key gets a path: its plain folders, then one segment with the rest in percent encoding. Listings have the path, and
//! [`key_of`] returns the key. Which origins can read by such a path is [`crate::Capabilities::reads_odd_keys`]; none writes by it.

use std::borrow::Cow;

use object_store::path::Path;
use object_store::{Error, Result};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::error::not_supported_error;

/// Begins the segment with the encoded rest of a key. A key that has it is encoded too, so each path has one key.
const MARK: &str = ".bywash-key=";
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_');

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
pub(crate) fn encoded(key: &str) -> Option<String> {
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
    not_supported_error(format!(
        "the key {key:?} has an empty segment, `.` or `..`, or a control character; reach it at the origin itself, or copy it there \
             to another key"
    ))
}

/// Fails for an odd key.
pub(crate) fn check(path: &Path) -> Result<()> {
    if is_odd(path) {
        Err(refused(path))
    } else {
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const ODD: [&str; 14] = [
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
}
