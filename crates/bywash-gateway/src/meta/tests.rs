#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;

#[test]
fn keys_are_stored_unchanged_or_not_at_all() {
    for key in [
        "a", "a/b", "a b", "..a", "a..", "\u{fc}", "%2F", "a\\b", "a%2Fb",
    ] {
        assert_eq!(path_of(key).unwrap().as_ref(), key);
    }
    for key in [
        "", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "a/./b", "a\0b", "a\nb", "a\u{7f}b",
    ] {
        assert_eq!(
            *path_of(key).unwrap_err().code(),
            S3ErrorCode::InvalidArgument,
            "{key:?}"
        );
    }
    assert_eq!(
        *path_of(&"k".repeat(1025)).unwrap_err().code(),
        S3ErrorCode::KeyTooLongError
    );
    assert!(path_of(&"k".repeat(1024)).is_ok());
    assert!(
        is_folder_marker("a/b/")
            && !is_folder_marker("a//")
            && !is_folder_marker("../")
            && !is_folder_marker("/")
    );
}

#[test]
fn e_tags_with_and_without_quotes() {
    for stored in ["abc", "\"abc\"", "W/\"abc\""] {
        assert_eq!(bare(stored), "abc");
    }
    assert_eq!(e_tag("abc"), ETag::Strong("abc".to_owned()));
    assert_eq!(e_tag("W/\"abc\""), ETag::Weak("abc".to_owned()));
    assert_eq!(e_tag_like("\"x\"", "abc"), "\"abc\"");
    assert_eq!(e_tag_like("x", "\"abc\""), "abc");
}

#[test]
fn checksums_and_expiry_are_kept_beside_user_metadata() {
    let mut headers = HeaderMap::new();
    headers.insert("x-amz-meta-a", HeaderValue::from_static("1"));
    headers.insert(
        "expires",
        HeaderValue::from_static("Wed, 21 Oct 2026 07:28:00 GMT"),
    );
    headers.insert("content-encoding", HeaderValue::from_static("aws-chunked"));
    let mut attributes = attributes_of(&headers).unwrap();
    assert_eq!(attributes.get(&Attribute::ContentEncoding), None);
    let checksum = Checksum {
        algorithm: Algorithm::Crc64Nvme,
        value: "AAAAAAAAAAA=".to_owned(),
    };
    keep_checksum(&mut attributes, &checksum);
    assert_eq!(kept_checksum(&attributes), Some(checksum));
    let user = user_metadata(&attributes).unwrap();
    assert_eq!(
        (user.len(), user.get("a").map(String::as_str)),
        (1, Some("1"))
    );
}
