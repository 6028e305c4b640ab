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
                combine(&parts, true),
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
        combine(&[(Some(&one), 3), (Some(&two), 3)], false)
            .unwrap()
            .value,
        expected
    );
    assert_eq!(
        combine(&[(Some(&one), 3), (Some(&two), 3)], true),
        None,
        "a SHA cannot be combined"
    );
    assert_eq!(combine(&[(Some(&one), 3), (None, 3)], false), None);
    assert_eq!(
        combine(
            &[(Some(&one), 3), (Some(&checksum(Algorithm::Sha1, b"x")), 3)],
            false
        ),
        None
    );
    assert_eq!(combine(&[], false), None);
}
