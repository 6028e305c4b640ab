//! ETags that S3 clients compute themselves: the MD5 of an object's bytes, or the MD5 of the MD5s of its parts and their number.
//!
//! A store of ours appends such an ETag to the one that names the version: `VERSION+MD5`. Caches and conditions compare both, so they
//! are as exact as without it, and it is sent wherever the version's ETag is.

use std::borrow::Cow;

use object_store::{Attribute, Attributes};

/// Separates the version's ETag from the client's.
const SEPARATOR: char = '+';
/// Hexadecimal digits of an MD5.
const MD5_DIGITS: usize = 32;

/// Attribute by which a writer gives a folder or memory store the client's ETag of an object. Reads return it in the ETag instead.
pub const CLIENT_ETAG: Attribute = Attribute::Metadata(Cow::Borrowed("bywash-etag"));

/// Returns whether `text` is an MD5 in lower-case digits, alone or with `-PARTS`.
fn is_client_etag(text: &str) -> bool {
    let (digest, parts) = text.split_once('-').unwrap_or((text, "1"));
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    digest.len() == MD5_DIGITS
        && digest.bytes().all(is_digit)
        && (1..=5).contains(&parts.len())
        && parts.bytes().all(|byte| byte.is_ascii_digit())
}

fn split(e_tag: &str) -> (&str, Option<&str>) {
    match e_tag.rsplit_once(SEPARATOR) {
        Some((version, client)) if is_client_etag(client) => (version, Some(client)),
        _ => (e_tag, None),
    }
}

/// Returns the ETag for clients: the one that they compute, or else the version's.
#[must_use]
pub fn client_etag(e_tag: &str) -> &str {
    let (version, client) = split(e_tag);
    client.unwrap_or(version)
}

/// Returns the ETag that clients compute, if the store keeps one.
#[must_use]
pub fn kept_client_etag(e_tag: &str) -> Option<&str> {
    split(e_tag).1
}

/// Returns whether `wanted`, from a condition, names the version with the ETag `e_tag`: by the client's ETag, by the version's, or by
/// both.
#[must_use]
pub fn etag_matches(e_tag: &str, wanted: &str) -> bool {
    // Stores differ in the quotes.
    let bare = |e_tag: &str| e_tag.trim_matches('"').to_owned();
    let (version, client) = split(e_tag);
    client == Some(&*bare(wanted)) || bare(split(wanted).0) == bare(version)
}

/// Returns the ETag of a version with the client's ETag `client`.
pub(crate) fn join(version: String, client: Option<&str>) -> String {
    match client.filter(|client| is_client_etag(client)) {
        Some(client) => format!("{version}{SEPARATOR}{client}"),
        None => version,
    }
}

/// Returns the client's ETag that a writer gave among the attributes.
pub(crate) fn given(attributes: &Attributes) -> Option<&str> {
    attributes.get(&CLIENT_ETAG).map(|value| value.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MD5: &str = "9e107d9d372bb6826bd81d3542a419d6";

    #[test]
    fn client_etag_is_found_only_where_a_store_appended_one() {
        for client in [MD5.to_owned(), format!("{MD5}-17")] {
            let both = join("1-2-3-4".to_owned(), Some(&client));
            assert_eq!(client_etag(&both), client);
            assert_eq!(kept_client_etag(&both), Some(&*client));
            for wanted in [&*client, "1-2-3-4", &both] {
                assert!(etag_matches(&both, wanted), "{wanted}");
            }
            assert!(!etag_matches(&both, "1-2-3-5"));
            assert!(!etag_matches(
                &both,
                &join("1-2-3-5".to_owned(), Some(&client))
            ));
        }
        for plain in [
            "",
            "0",
            "1-2-3-4",
            MD5,
            "a+b",
            "a+9E107D9D372BB6826BD81D3542A419D6",
        ] {
            assert_eq!(client_etag(plain), plain);
            assert_eq!(kept_client_etag(plain), None);
            assert!(etag_matches(plain, plain));
        }
        let quoted = join("\"5\"".to_owned(), Some(MD5));
        assert!(etag_matches(&quoted, "5") && etag_matches(&quoted, &format!("\"{MD5}\"")));
        assert_eq!(join("v".to_owned(), Some("no digest")), "v");
    }
}
