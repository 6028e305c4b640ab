//! Odd keys in the pages of listings, before object_store's clients parse them.

use std::borrow::Cow;

use bytes::Bytes;
use percent_encoding::percent_decode_str;
use quick_xml::escape::{escape, unescape};

use super::odd_keys::encoded;

/// Elements of listings that are keys or common prefixes, in the protocols of S3, Google and Azure.
const ELEMENTS: [&str; 3] = ["Key", "Prefix", "Name"];

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
    let key = if is_encoded {
        Cow::Owned(percent_decode_str(&key).decode_utf8().ok()?.into_owned())
    } else {
        key
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
    use object_store::path::Path;

    use super::*;
    use crate::odd_keys::key_of;
    use crate::odd_keys::tests::ODD;

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
