#![allow(clippy::unwrap_used, reason = "tests")]

use futures::StreamExt;

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
fn a_composite_is_the_digest_of_digests() {
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

/// A taker that stops at the announced length must not have all bytes before they are verified.
#[test]
fn the_last_piece_waits_for_the_verdict() {
    let context = Arc::new(RequestContext::new("test".to_owned(), None));
    let headers = HeaderMap::from_iter([(
        http::HeaderName::from_static("x-amz-checksum-crc32"),
        HeaderValue::from_static("AAAAAA=="),
    )]);
    let checks = Checks::announced(&headers, None, &context).unwrap();
    let pieces = ["ab", "cd", "ef"].map(|piece| Ok::<_, std::io::Error>(Bytes::from(piece)));
    let body = StreamingBlob::wrap(futures::stream::iter(pieces));
    let mut body = VerifiedBody::new(body, checks, Some(6), Arc::clone(&context));
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(async {
            assert_eq!(body.next().await.unwrap().unwrap(), "ab");
            assert_eq!(body.next().await.unwrap().unwrap(), "cd");
            assert!(body.next().await.unwrap().is_err());
            assert!(body.next().await.is_none());
        });
    assert_eq!(*context.fault().unwrap().code(), S3ErrorCode::BadDigest);
    assert!(context.verified.get().is_none());
}
