#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;

#[test]
fn e_tags_are_equal_with_and_without_quotes() {
    for stored in ["abc", "\"abc\"", "W/\"abc\""] {
        assert_eq!(bare(stored), "abc");
    }
    assert_eq!(e_tag("abc"), ETag::Strong("abc".to_owned()));
    assert_eq!(e_tag("W/\"abc\""), ETag::Weak("abc".to_owned()));
    assert_eq!(e_tag_like("\"x\"", "abc"), "\"abc\"");
    assert_eq!(e_tag_like("x", "\"abc\""), "abc");
}

#[test]
fn checksums_and_expiry_are_stored_with_user_metadata() {
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
    let mut user = HeaderMap::new();
    user_metadata(&attributes, &mut user);
    assert_eq!(
        (user.len(), &user["x-amz-meta-a"]),
        (1, &HeaderValue::from_static("1"))
    );
}
