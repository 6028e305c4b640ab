//! Writes: whole, in pieces, continued, under conditions, discarded.

use bywash_client::{ErrorCode, GetOptions, PutOptions, WriteCondition};

use crate::door::{Door, pattern};

const MIB: usize = 1 << 20;

#[test]
fn object_written_whole_is_read_back() {
    let door = Door::new(64 << 20);
    let bucket = door.bucket();
    for len in [0, 1, 100, 128 << 10, (128 << 10) + 1, 5 * MIB] {
        let bytes = pattern("k", len);
        let written = bucket.put("k", &bytes, &PutOptions::default()).unwrap();
        let head = bucket.head("k", &GetOptions::default()).unwrap();
        assert_eq!(written.etag, head.etag, "of {len} bytes");
        assert!(bucket.get("k").unwrap().bytes.into_vec() == bytes);
    }
}

#[test]
fn etag_is_the_md5_that_s3_clients_expect() {
    let door = Door::new(64 << 20);
    let written = door
        .bucket()
        .put("k", b"hello", &PutOptions::default())
        .unwrap();
    assert_eq!(
        written.etag.as_deref(),
        Some("5d41402abc4b2a76b9719d911017c592")
    );
}

#[test]
fn headers_and_metadata_are_kept() {
    let door = Door::new(64 << 20);
    let bucket = door.bucket();
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let options = PutOptions {
        attributes: vec![
            pair("content-type", "text/plain"),
            pair("x-amz-meta-who", "me"),
        ],
        ..PutOptions::default()
    };
    bucket.put("k", b"x", &options).unwrap();
    let kept = bucket.head("k", &GetOptions::default()).unwrap().attributes;
    assert!(
        kept.contains(&pair("content-type", "text/plain")),
        "{kept:?}"
    );
    assert!(kept.contains(&pair("x-amz-meta-who", "me")), "{kept:?}");
    let wrong = PutOptions {
        attributes: vec![pair("no header", "x")],
        ..PutOptions::default()
    };
    let refused = bucket.put("k", b"x", &wrong).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::InvalidArgument, "{refused}");
    let many = PutOptions {
        attributes: (0..201)
            .map(|at| pair(&format!("x-amz-meta-{at}"), "v"))
            .collect(),
        ..PutOptions::default()
    };
    let refused = bucket.put("k", b"x", &many).unwrap_err();
    assert!(refused.to_string().contains("200 attributes"), "{refused}");
}

#[test]
fn conditions_of_writes_hold() {
    let door = Door::new(64 << 20);
    let bucket = door.bucket();
    let with = |condition| PutOptions {
        condition,
        ..PutOptions::default()
    };
    let first = bucket
        .put("k", b"1", &with(WriteCondition::Create))
        .unwrap();
    let again = bucket
        .put("k", b"2", &with(WriteCondition::Create))
        .unwrap_err();
    assert_eq!(again.code(), ErrorCode::AlreadyExists, "{again}");
    let etag = first.etag.unwrap();
    bucket
        .put("k", b"3", &with(WriteCondition::IfMatch(etag.clone())))
        .unwrap();
    let stale = bucket
        .put("k", b"4", &with(WriteCondition::IfMatch(etag.clone())))
        .unwrap_err();
    assert_eq!(stale.code(), ErrorCode::Precondition, "{stale}");
    assert!(bucket.get("k").unwrap().bytes.into_vec() == b"3");
    let absent = bucket
        .put("none", b"4", &with(WriteCondition::IfMatch(etag.clone())))
        .unwrap_err();
    assert_eq!(absent.code(), ErrorCode::NotFound, "{absent}");
    let other = bucket.delete_if("k", &etag).unwrap_err();
    assert_eq!(other.code(), ErrorCode::Precondition, "{other}");
    let now = bucket
        .head("k", &GetOptions::default())
        .unwrap()
        .etag
        .unwrap();
    bucket.delete_if("k", &now).unwrap();
    assert_eq!(bucket.get("k").unwrap_err().code(), ErrorCode::NotFound);
}

#[test]
fn write_in_pieces_is_visible_when_it_is_finished() {
    let door = Door::new(64 << 20);
    let bucket = door.bucket();
    let bytes = pattern("k", 40 * MIB);
    let mut writer = bucket.writer("k", &PutOptions::default()).unwrap();
    for piece in bytes.chunks(1_000_003) {
        writer.write_all(piece).unwrap();
    }
    assert_eq!(writer.position(), bytes.len() as u64);
    assert_eq!(bucket.get("k").unwrap_err().code(), ErrorCode::NotFound);
    writer.finish().unwrap();
    let mut read = vec![0; bytes.len()];
    bucket
        .read_into("k", 0, &mut read, &GetOptions::default())
        .unwrap();
    assert!(read == bytes);
}

#[test]
fn aborted_and_dropped_writes_leave_nothing() {
    let door = Door::new(64 << 20);
    let bucket = door.bucket();
    for drops in [true, false] {
        let mut writer = bucket.writer("k", &PutOptions::default()).unwrap();
        writer.write_all(&pattern("k", 20 * MIB)).unwrap();
        if drops {
            drop(writer);
        } else {
            writer.abort().unwrap();
        }
        assert_eq!(bucket.get("k").unwrap_err().code(), ErrorCode::NotFound);
    }
}

#[test]
fn captured_write_is_continued_by_another_client() {
    let door = Door::new(64 << 20);
    let bytes = pattern("k", 12 * MIB);
    let options = PutOptions {
        chunk: Some(5 * MIB as u64),
        ..PutOptions::default()
    };
    let mut writer = door.bucket().writer("k", &options).unwrap();
    writer.write_all(&bytes).unwrap();
    let captured = writer.capture().unwrap();
    assert!(captured.position > 0);
    drop(writer);
    let bucket = door.bucket();
    let mut resumed = bucket.resume(&captured.token).unwrap();
    assert_eq!(resumed.position(), captured.position);
    let rest = &bytes[captured.position as usize..];
    resumed.write_all(rest).unwrap();
    resumed.finish().unwrap();
    assert!(bucket.get("k").unwrap().bytes.into_vec() == bytes);
}

#[test]
fn copies_have_the_bytes_and_the_metadata_of_their_source() {
    let door = Door::new(64 << 20);
    let client = door.client();
    let (from, other) = (
        client.bucket("data"),
        client.attach("memory://", &[]).unwrap(),
    );
    let who = ("x-amz-meta-who".to_owned(), "me".to_owned());
    let bytes = pattern("k", 3 * MIB);
    let options = PutOptions {
        attributes: vec![who.clone()],
        ..PutOptions::default()
    };
    let written = from.put("k", &bytes, &options).unwrap();
    for to in [&from, &other] {
        from.copy("k", to, "copy", &WriteCondition::Create).unwrap();
        let copied = to.get("copy").unwrap();
        assert!(copied.bytes.into_vec() == bytes);
        let head = to.head("copy", &GetOptions::default()).unwrap();
        assert_eq!(head.etag, written.etag, "the MD5 of the bytes");
        assert!(head.attributes.contains(&who), "{:?}", head.attributes);
        let again = from.copy("k", to, "copy", &WriteCondition::Create);
        assert_eq!(again.unwrap_err().code(), ErrorCode::AlreadyExists);
        let stale = WriteCondition::IfMatch("5d41402abc4b2a76b9719d911017c592".to_owned());
        let refused = from.copy("k", to, "copy", &stale).unwrap_err();
        assert_eq!(refused.code(), ErrorCode::Precondition, "{refused}");
        let current = WriteCondition::IfMatch(head.etag.unwrap());
        from.copy("k", to, "copy", &current).unwrap();
    }
    let none = from.copy("none", &other, "x", &WriteCondition::None);
    assert_eq!(none.unwrap_err().code(), ErrorCode::NotFound);
    let itself = from.copy("k", &from, "k", &WriteCondition::None);
    assert_eq!(itself.unwrap_err().code(), ErrorCode::InvalidArgument);
}

#[test]
fn keys_are_deleted_and_the_others_named() {
    let door = Door::new(64 << 20);
    let bucket = door.bucket();
    for key in ["a", "b"] {
        bucket.put(key, b"x", &PutOptions::default()).unwrap();
    }
    let long = "k".repeat(1025);
    let failed = bucket
        .delete_all(&["a", "absent", "bad//key", &long, "b"])
        .unwrap();
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert_eq!(failed[0].0, long);
    assert_eq!(failed[0].1.code(), ErrorCode::InvalidArgument);
    assert_eq!(bucket.list("").count(), 0);
}

#[test]
fn writer_of_a_lost_server_says_so() {
    let door = Door::new(64 << 20);
    let mut writer = door.bucket().writer("k", &PutOptions::default()).unwrap();
    writer.write_all(b"some").unwrap();
    door.stop();
    let failed = loop {
        match writer.write_all(&pattern("k", MIB)) {
            Ok(()) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(failed.code(), ErrorCode::Connection, "{failed}");
    let again = writer.write_all(b"more").unwrap_err();
    assert!(again.to_string().contains("begin again"), "{again}");
}
