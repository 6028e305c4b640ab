use chrono::TimeDelta;

use super::*;
use crate::uploads::tests::{name, part, same, upload};

/// A file of three parts and an attempt, and the ends of its records.
fn whole_file() -> (Vec<u8>, Vec<usize>, Upload) {
    let mut expected = upload(Some(Algorithm::Crc32c));
    let mut bytes = file(&name("a/key", "id"), &expected).unwrap();
    let mut ends = vec![bytes.len()];
    for number in [1, 2, 2] {
        let mut stored = part(u64::from(number) + ends.len() as u64);
        stored.modified += TimeDelta::nanoseconds(1);
        let stored = UploadChange::Part(number, stored);
        bytes.extend(change(&stored, bytes.len() as u64).unwrap());
        ends.push(bytes.len());
        expected.apply(stored);
    }
    let completing = UploadChange::Completing("parts".to_owned());
    bytes.extend(change(&completing, bytes.len() as u64).unwrap());
    ends.push(bytes.len());
    expected.apply(completing);
    (bytes, ends, expected)
}

#[test]
fn written_form_is_read_back_unchanged() {
    let (bytes, _, expected) = whole_file();
    let content = read(&bytes).unwrap();
    assert_eq!(content.name, name("a/key", "id"));
    assert_eq!(content.whole, bytes.len());
    same(&content.upload, &expected);
    assert_eq!(expected.parts.len(), 2, "the second is stored again");
    let rewritten = file(&content.name, &content.upload).unwrap();
    assert!(rewritten.len() < bytes.len(), "without superseded records");
    same(&read(&rewritten).unwrap().upload, &expected);
}

#[test]
fn truncated_file_is_read_up_to_its_last_valid_record() {
    let (bytes, ends, _) = whole_file();
    for cut in 0..bytes.len() {
        let found = read(&bytes[..cut]);
        match ends.iter().rev().find(|end| **end <= cut) {
            Some(end) => assert_eq!(found.unwrap().whole, *end, "cut at {cut}"),
            // The file is renamed only after its first record is on disk.
            None => assert!(
                matches!(
                    found,
                    Err(UploadFileError::Foreign | UploadFileError::Damaged { .. })
                ),
                "cut at {cut}"
            ),
        }
        let mut zeros = bytes[..cut].to_vec();
        zeros.resize(cut + 100, 0);
        if ends.contains(&cut) {
            assert_eq!(read(&zeros).unwrap().whole, cut, "zeros from {cut}");
        }
    }
}

#[test]
fn changed_byte_is_detected() {
    let (bytes, ..) = whole_file();
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 0x20;
        match read(&changed).unwrap_err() {
            UploadFileError::OtherFormat(_) => assert!((8..12).contains(&at)),
            UploadFileError::Foreign => assert!(at < 8),
            UploadFileError::Damaged { .. } => assert!(at >= 12),
        }
    }
}

#[test]
fn invalid_record_content_is_damage() {
    let (bytes, ..) = whole_file();
    let at = bytes.len();
    let with = |kind, body: &str| {
        let mut bytes = bytes.clone();
        assert!(FORMAT.append(&mut bytes, at as u64, kind, |out| out.extend(body.bytes())));
        read(&bytes)
    };
    assert!(with(COMPLETING, r#"{"parts":"x"}"#).is_ok());
    for (kind, body) in [
        (COMPLETING, "{}"),
        (COMPLETING, "no json"),
        (PART, r#"{"parts":"x"}"#),
        (0, r#"{"parts":"x"}"#),
        (COMPLETING + 1, r#"{"parts":"x"}"#),
        (
            BEGUN,
            r#"{"bucket":"b","key":"k","id":"i","initiated":0,"algorithm":null,"full_object":false,"mark":null}"#,
        ),
        (
            PART,
            r#"{"number":1,"e_tag":"e","size":1,"checksum":{"algorithm":"MD6","value":"x"},"modified":0}"#,
        ),
    ] {
        let found = with(kind, body).unwrap_err();
        assert!(
            matches!(found, UploadFileError::Damaged { at: found, .. } if found == at),
            "{kind} {body}: {found}"
        );
    }
    let long = "x".repeat(FORMAT.max_len);
    assert!(change(&UploadChange::Completing(long.clone()), 0).is_none());
    assert!(file(&name(&long, "id"), &upload(None)).is_none());
}
