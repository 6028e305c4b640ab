#![allow(clippy::unwrap_used, reason = "tests")]
use bytes::Bytes;
use http::StatusCode;

use super::*;
use crate::digest::ContentDigest;
use crate::multipart_xml::{MultipartOutcome, PartsPage, complete_body};
use crate::session::Finished;

fn response(status: u16, body: &str) -> Response {
    Response {
        status: StatusCode::from_u16(status).unwrap(),
        headers: HeaderMap::new(),
        body: Bytes::copy_from_slice(body.as_bytes()),
    }
}

fn error(status: u16, code: &str) -> Response {
    let body =
        format!("<?xml version=\"1.0\"?>\n<Error><Code>{code}</Code><Message>m</Message></Error>");
    response(status, &body)
}

fn part(number: u64, size: u64) -> (u64, Part) {
    let e_tag = format!("\"{number:032x}\"");
    let crc32c = None;
    (
        number,
        Part {
            number,
            size,
            e_tag,
            crc32c,
            modified: None,
        },
    )
}

#[test]
fn completion_with_status_200_and_leading_spaces_may_be_an_error() {
    let done = "<CompleteMultipartUploadResult><ETag>\"e-2\"</ETag><ChecksumCRC32C>4waSgw==</ChecksumCRC32C></CompleteMultipartUploadResult>";
    let finished = Finished {
        e_tag: Some("\"e-2\"".to_owned()),
        ..Finished::default()
    };
    let finished = MultipartOutcome::Finished(finished, Some("4waSgw==".to_owned()));
    assert_eq!(crc32c_of_base64("4waSgw=="), Some(0xE306_9283));
    for body in [done.to_owned(), format!(" \n  {done}")] {
        assert_eq!(
            MultipartOutcome::of_completion(&response(200, &body)),
            finished
        );
    }
    assert_eq!(
        MultipartOutcome::of_completion(&error(200, "InternalError")),
        MultipartOutcome::Transient("InternalError: m".to_owned())
    );
    for nothing in ["", "   ", "<html>", "<CompleteMultipartUploadResult>"] {
        let outcome = MultipartOutcome::of_completion(&response(200, nothing));
        assert!(
            matches!(outcome, MultipartOutcome::Transient(_)),
            "{nothing:?}: {outcome:?}"
        );
    }
}

#[test]
fn error_codes_map_to_outcomes() {
    let reason = |code: &str| format!("{code}: m");
    for (status, code, outcome) in [
        (404, "NoSuchUpload", MultipartOutcome::Gone),
        (200, "NoSuchUpload", MultipartOutcome::Gone),
        (400, "InvalidPart", MultipartOutcome::PartMismatch),
        (
            400,
            "BadDigest",
            MultipartOutcome::Damaged(reason("BadDigest")),
        ),
        (
            409,
            "ConditionalRequestConflict",
            MultipartOutcome::Conflict(reason("ConditionalRequestConflict")),
        ),
        (
            412,
            "PreconditionFailed",
            MultipartOutcome::Refused(reason("PreconditionFailed")),
        ),
        (
            400,
            "EntityTooSmall",
            MultipartOutcome::Refused(reason("EntityTooSmall")),
        ),
        (
            503,
            "SlowDown",
            MultipartOutcome::Refused(reason("SlowDown")),
        ),
    ] {
        assert_eq!(
            MultipartOutcome::of_failure(&error(status, code)),
            outcome,
            "{status} {code}"
        );
    }
    // A 404 with a truncated body does not show that the bucket is missing.
    assert!(matches!(
        MultipartOutcome::of_failure(&response(404, "<Err")),
        MultipartOutcome::Transient(_)
    ));
    assert_eq!(
        MultipartOutcome::of_failure(&response(502, "<html>")),
        MultipartOutcome::Refused(String::new())
    );
}

#[test]
fn parts_after_a_gap_have_no_range() {
    let parts = Parts::from([part(1, 5), part(2, 7), part(4, 5)]);
    let ranges: Vec<_> = stored_ranges(&parts)
        .into_iter()
        .map(|kept| kept.range)
        .collect();
    assert_eq!(ranges, [0..5, 5..12]);
    assert_eq!(
        stored_ranges(&parts)[0].digest,
        Some(ContentDigest::Md5([
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1
        ]))
    );
    assert_eq!(stored_ranges(&Parts::from([part(2, 5)])), []);
}

#[test]
fn completion_lists_exactly_the_parts_of_the_object() {
    let parts = Parts::from([part(1, 5), part(2, 7), part(3, 5)]);
    let covered = |length| covering(&parts, length).map(|parts| parts.len());
    // Parts beyond the end are left out; an object that ends within a part does not match.
    assert_eq!(
        (covered(17), covered(12), covered(5)),
        (Some(3), Some(2), Some(1))
    );
    assert_eq!((covered(11), covered(18), covered(0)), (None, None, None));
    assert_eq!(covering(&Parts::from([part(2, 5)]), 5), None);
    assert_eq!(covering(&Parts::new(), 0), None);
    let empty = Parts::from([part(1, 0)]);
    assert_eq!(covering(&empty, 0).map(|parts| parts.len()), Some(1));
    let body = complete_body(elements(&covering(&parts, 5).unwrap(), Checksums::Md5));
    assert!(
        body.contains("<PartNumber>1</PartNumber>") && !body.contains("Checksum"),
        "{body}"
    );
}

#[test]
fn part_pages_parse_with_and_without_checksums() {
    let body = "<?xml version=\"1.0\"?><ListPartsResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
        <UploadId>u</UploadId><NextPartNumberMarker>2</NextPartNumberMarker><IsTruncated>true</IsTruncated>\
        <Part><PartNumber>1</PartNumber><LastModified>2026-01-01T00:00:00Z</LastModified><ETag>\"a\"</ETag><Size>5</Size></Part>\
        <Part><PartNumber>2</PartNumber><ETag>\"b\"</ETag><ChecksumCRC32C>4waSgw==</ChecksumCRC32C><Size>7</Size></Part>\
        </ListPartsResult>";
    let page = PartsPage::parse(body.as_bytes()).unwrap();
    assert_eq!(page.next(), Some("2"));
    assert_eq!(page.parts.len(), 2);
    let parts: Parts = page
        .parts
        .into_iter()
        .map(|part| (part.number, part))
        .collect();
    let digests: Vec<_> = stored_ranges(&parts)
        .into_iter()
        .map(|kept| kept.digest)
        .collect();
    assert_eq!(digests, [None, Some(ContentDigest::Crc32c(0xE306_9283))]);
    let last =
        PartsPage::parse(b"<ListPartsResult><UploadId>u</UploadId><IsTruncated>false</IsTruncated></ListPartsResult>")
            .unwrap();
    assert_eq!((last.next(), last.parts.len()), (None, 0));
    assert!(
        PartsPage::parse(b"<html>").is_err()
            || PartsPage::parse(b"<html>").unwrap().parts.is_empty()
    );
}

#[test]
fn token_contains_upload_and_checksums() {
    for checksums in [Checksums::Md5, Checksums::Parts, Checksums::Object] {
        let upload = S3Upload {
            id: "an id".to_owned(),
            checksums,
        };
        let plain = upload.token(&Parts::new());
        let parts = Parts::from([part(1, 5), part(3, 7)]);
        let known = upload.token(&parts);
        assert!(known.starts_with(&plain));
        assert!(same_upload(&plain, &known));
        assert_eq!(
            S3Upload::parse(&plain),
            Some((upload.clone(), Parts::new()))
        );
        assert_eq!(S3Upload::parse(&known), Some((upload, parts)));
    }
    for bad in [
        "",
        "md5",
        "md5 ",
        "sha9 id",
        "http://a/b",
        "md5 id\n",
        "md5 id\n{}",
    ] {
        assert_eq!(S3Upload::parse(bad), None, "{bad}");
    }
}

#[test]
fn object_of_plain_parts_has_a_computable_etag() {
    // Of the MD5s of "a" and "b".
    let e_tags = [
        "\"0cc175b9c0f1b6a831c399e269772661\"",
        "\"92eb5ffee6ae2fec3ad71c777531578f\"",
    ];
    let parts: Vec<_> = e_tags
        .iter()
        .zip(1..)
        .map(|(e_tag, number)| Part {
            number,
            size: 1,
            e_tag: (*e_tag).to_owned(),
            crc32c: None,
            modified: None,
        })
        .collect();
    let e_tag = object_e_tag(&parts);
    assert_eq!(
        e_tag.as_deref(),
        Some("\"96e024ba2074fe77e8e965ba43a704be-2\"")
    );
    let opaque = Part {
        e_tag: "\"opaque\"".to_owned(),
        ..parts[0].clone()
    };
    assert_eq!(object_e_tag(&[opaque]), None);
}

#[test]
fn tokens_of_one_upload_match_despite_other_checksums() {
    assert!(same_upload("md5 an id", "object an id"));
    assert!(!same_upload("md5 an id", "md5 another"));
    assert!(same_upload("id", "object id"));
    assert!(same_upload("id", "id"));
    assert!(!same_upload("id", "md5 id2"));
}
