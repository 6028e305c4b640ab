//! Random messages decode to the encoded ones.

use std::ops::Range;

use bywash::ContentDigest;
use bywash::cluster::ObjectVersion;
use object_store::{Attribute, Attributes, ObjectMeta};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::super::wire;
use super::*;
use crate::message::{OpId, Token};

fn key() -> impl Strategy<Value = Key> {
    (any::<String>(), any::<String>()).prop_map(|(bucket, path)| Key::new(bucket, path))
}

fn duration() -> impl Strategy<Value = Duration> {
    let parts = (any::<u64>(), 0..1_000_000_000u32);
    parts.prop_map(|(seconds, nanoseconds)| Duration::new(seconds, nanoseconds))
}

fn token() -> impl Strategy<Value = Token> {
    (any::<u64>(), any::<u64>(), any::<u64>()).prop_map(|(node, process, op)| Token {
        node: NodeId(node),
        process,
        op: OpId(op),
    })
}

fn request() -> impl Strategy<Value = PeerRequest> {
    prop_oneof![
        (key(), duration()).prop_map(|(key, window)| PeerRequest::Open { key, window }),
        (token(), key()).prop_map(|(token, key)| PeerRequest::Begin { token, key }),
        (token(), key()).prop_map(|(token, key)| PeerRequest::End { token, key }),
        key().prop_map(|key| PeerRequest::Drop { key }),
        any::<u64>().prop_map(|boot| PeerRequest::Released(Boot(boot))),
    ]
}

/// Messages, some with requests that are one record of it.
fn requests() -> impl Strategy<Value = Vec<PeerRequest>> {
    let parts = (token(), key(), vec(any::<(u64, String)>(), 1..6), 0..3);
    let joined = parts.prop_map(|(token, key, writes, kind)| {
        let request = |(op, path): (u64, String)| {
            let key = Key::new(Arc::clone(&key.bucket), path);
            let op = OpId(op);
            let token = Token { op, ..token };
            match kind {
                0 => PeerRequest::Begin { token, key },
                1 => PeerRequest::End { token, key },
                _ => PeerRequest::Drop { key },
            }
        };
        writes.into_iter().map(request).collect::<Vec<_>>()
    });
    let any = vec(
        prop_oneof![joined, request().prop_map(|one| vec![one])],
        1..4,
    );
    any.prop_map(|messages| messages.concat())
}

fn attribute() -> impl Strategy<Value = Attribute> {
    prop_oneof![
        Just(Attribute::ContentDisposition),
        Just(Attribute::ContentEncoding),
        Just(Attribute::ContentLanguage),
        Just(Attribute::ContentType),
        Just(Attribute::CacheControl),
        Just(Attribute::StorageClass),
        any::<String>().prop_map(|name| Attribute::Metadata(name.into())),
    ]
}

fn digest() -> impl Strategy<Value = ContentDigest> {
    prop_oneof![
        any::<u32>().prop_map(ContentDigest::Crc32),
        any::<u32>().prop_map(ContentDigest::Crc32c),
        any::<u64>().prop_map(ContentDigest::Crc64Nvme),
        any::<[u8; 16]>().prop_map(ContentDigest::Md5),
        any::<[u8; 32]>().prop_map(ContentDigest::Sha256),
    ]
}

/// Seconds of the dates that chrono has.
const SECONDS: Range<i64> = -8_334_601_228_800..8_210_266_876_800;

fn meta() -> impl Strategy<Value = ObjectMeta> {
    let parts = (
        any::<String>(),
        SECONDS,
        0..1_000_000_000u32,
        any::<u64>(),
        option::of(any::<String>()),
        option::of(any::<String>()),
    );
    parts.prop_map(
        |(path, seconds, nanoseconds, size, e_tag, version)| ObjectMeta {
            location: Path::from(path),
            last_modified: chrono::DateTime::from_timestamp(seconds, nanoseconds).unwrap(),
            size,
            e_tag,
            version,
        },
    )
}

fn version() -> impl Strategy<Value = Arc<ObjectVersion>> {
    let attributes = vec((attribute(), any::<String>()), 0..6);
    let parts = (meta(), attributes, any::<u32>(), option::of(digest()));
    parts.prop_map(|(meta, drawn, tag_count, digest)| {
        let mut attributes = Attributes::new();
        for (name, value) in drawn {
            attributes.insert(name, value.into());
        }
        Arc::new(ObjectVersion {
            meta,
            attributes,
            tag_count,
            digest,
        })
    })
}

fn response() -> impl Strategy<Value = Response> {
    prop_oneof![
        8 => (option::of(version()), duration())
            .prop_map(|(version, lease)| PeerResponse::Version { version, lease }),
        1 => Just(PeerResponse::AskOrigin),
        1 => Just(PeerResponse::NotMine),
        1 => Just(PeerResponse::Done),
        1 => Just(PeerResponse::Dropped),
        1 => any::<bool>().prop_map(PeerResponse::Released),
    ]
}

fn peer_read() -> impl Strategy<Value = PeerRead> {
    let numbers = any::<[u64; 3]>().prop_filter_map("an empty range", |mut numbers| {
        numbers.sort_unstable();
        (numbers[0] < numbers[1]).then_some(numbers)
    });
    let texts = (any::<String>(), any::<String>(), any::<String>());
    let age = any::<Option<Duration>>();
    (texts, numbers, age).prop_map(
        |((bucket, path, e_tag), [start, end, size], age)| PeerRead {
            bucket,
            path: Path::from(path),
            e_tag,
            size,
            range: start..end,
            age,
        },
    )
}

proptest! {
    #[test]
    fn requests_are_decoded_to_what_was_encoded(requests in requests()) {
        let encoded = wire::encode_requests(&requests).unwrap();
        let mut before = None;
        let added = |request| wire::max_added_len(before.replace(request), request);
        let max: usize = requests.iter().map(added).sum();
        prop_assert!(encoded.len() <= max + 2, "{} > {max}", encoded.len());
        prop_assert_eq!(wire::decode_requests(&encoded), Ok(requests));
    }

    #[test]
    fn responses_are_decoded_to_what_was_encoded(responses in vec(response(), 0..4)) {
        let encoded = wire::encode_responses(&responses).unwrap();
        prop_assert_eq!(wire::decode_responses(&encoded), Ok(responses));
    }

    #[test]
    fn reads_are_decoded_to_what_was_encoded(wanted in peer_read(), peek in any::<bool>()) {
        let encoded = wire::encode_read(&wanted, peek).unwrap();
        prop_assert_eq!(wire::decode_read(&encoded), Ok((wanted, peek)));
    }
}

#[test]
fn ranges_paths_and_dates_that_are_none_are_refused() {
    let read = |start: u64, end: u64, path: &str| {
        format!(
            r#"{{"bucket":"b","path":"{path}","e_tag":"1","size":9,"start":{start},"end":{end},"peek":true}}"#
        )
    };
    assert!(wire::decode_read(read(0, 9, "a/b").as_bytes()).is_ok());
    for bad in [
        read(9, 9, "a"),
        read(5, 4, "a"),
        read(0, 10, "a"),
        read(0, 9, "a//b"),
        read(0, 9, "../b"),
    ] {
        assert!(wire::decode_read(bad.as_bytes()).is_err(), "{bad}");
    }
    let version = |modified: &str| {
        format!(
            r#"[{{"version":{{"version":{{"path":"a","size":1,"modified":{modified}}},"lease":{{"secs":0,"nanos":0}}}}}}]"#
        )
    };
    assert!(wire::decode_responses(version("[0,0]").as_bytes()).is_ok());
    for bad in ["[9223372036854775807,0]", "[0,4294967295]", "[0.5,0]"] {
        assert!(
            wire::decode_responses(version(bad).as_bytes()).is_err(),
            "{bad}"
        );
    }
    // Nesting is no way to exhaust the stack.
    let deep = "[".repeat(60_000);
    assert!(wire::decode_requests(deep.as_bytes()).is_err());
}
