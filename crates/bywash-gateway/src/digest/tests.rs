#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;

fn checksum(algorithm: Algorithm, body: &[u8]) -> Checksum {
    let mut hasher = algorithm.hasher();
    hasher.update(body);
    Checksum {
        algorithm,
        value: BASE64_STANDARD.encode(hasher.finish()),
    }
}

#[test]
fn crcs_of_parts_combine_to_that_of_the_whole() {
    let body: Vec<u8> = (0..100_000_u32).map(|at| (at % 251) as u8).collect();
    for algorithm in [Algorithm::Crc32, Algorithm::Crc32c, Algorithm::Crc64Nvme] {
        for cuts in [
            vec![],
            vec![0],
            vec![1, 70_000],
            vec![50_000, 50_000, 99_999],
        ] {
            let mut parts = Vec::new();
            let mut from = 0;
            for to in cuts.iter().copied().chain([body.len()]) {
                parts.push((checksum(algorithm, &body[from..to]), (to - from) as u64));
                from = to;
            }
            let parts: Vec<_> = parts
                .iter()
                .map(|(checksum, length)| (Some(checksum), *length))
                .collect();
            assert_eq!(
                combine(&parts, ChecksumKind::FullObject),
                Some(checksum(algorithm, &body)),
                "{algorithm:?} {cuts:?}"
            );
        }
    }
}

#[test]
fn composite_checksum_is_the_digest_of_digests() {
    let (one, two) = (
        checksum(Algorithm::Sha256, b"one"),
        checksum(Algorithm::Sha256, b"two"),
    );
    let digests = [
        one.algorithm.decode(&one.value).unwrap(),
        two.algorithm.decode(&two.value).unwrap(),
    ]
    .concat();
    let expected = format!("{}-2", checksum(Algorithm::Sha256, &digests).value);
    assert_eq!(
        combine(&[(Some(&one), 3), (Some(&two), 3)], ChecksumKind::Composite)
            .unwrap()
            .value,
        expected
    );
    assert_eq!(
        combine(
            &[(Some(&one), 3), (Some(&two), 3)],
            ChecksumKind::FullObject
        ),
        None,
        "a SHA cannot be combined"
    );
    assert_eq!(
        combine(&[(Some(&one), 3), (None, 3)], ChecksumKind::Composite),
        None
    );
    assert_eq!(
        combine(
            &[(Some(&one), 3), (Some(&checksum(Algorithm::Sha1, b"x")), 3)],
            ChecksumKind::Composite
        ),
        None
    );
    assert_eq!(combine(&[], ChecksumKind::Composite), None);
}

#[test]
fn md5_continues_from_its_state_as_text() {
    let body: Vec<u8> = (0..=255).cycle().take(1000).collect();
    for middle in [0, 1, 63, 64, 65, 999, 1000] {
        let mut md5 = ResumableMd5::default();
        md5.update(&body[..middle]);
        let text = serde_json::to_string(&md5).unwrap();
        let mut md5: ResumableMd5 = serde_json::from_str(&text).unwrap();
        md5.update(&body[middle..]);
        assert_eq!(md5.digest(), <[u8; 16]>::from(md5::Md5::digest(&body)));
    }
    let long = BASE64_STANDARD.encode([255; 88]);
    for damaged in ["", "x", "AAAA", &*long] {
        let state = serde_json::Value::from(damaged);
        assert!(
            serde_json::from_value::<ResumableMd5>(state).is_err(),
            "{damaged}"
        );
    }
}
