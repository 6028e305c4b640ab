#![allow(clippy::unwrap_used, reason = "tests")]

use futures::StreamExt;
use http::HeaderValue;

use super::*;
use crate::record::RequestIds;

/// A consumer that stops at the announced length must not have all bytes before verification.
#[test]
fn last_piece_is_returned_only_after_verification() {
    let context = Arc::new(RequestContext::new(RequestIds::new().next(), None));
    let headers = HeaderMap::from_iter([(
        http::HeaderName::from_static("x-amz-checksum-crc32"),
        HeaderValue::from_static("AAAAAA=="),
    )]);
    let checks = Checks::announced(&headers, &context).unwrap();
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
