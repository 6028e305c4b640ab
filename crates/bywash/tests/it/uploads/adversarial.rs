//! The five hardest cases of java-storage's resumable writer, by name.

use bytes::Bytes;
use bywash::{EngineError, OriginError, UploadOptions};
use object_store::Error;
use object_store::path::Path;
use proptest::prelude::*;

use super::fake::{Fake, IN_ORDER, SessionFault, crc32c};

const CHUNK: usize = 600;

fn body(length: usize) -> Bytes {
    bywash_support::pattern(11, length)
}

async fn upload(fake: &Fake, body: &Bytes) -> Result<bywash::UploadResult, Error> {
    let path = Path::from("hardest");
    let bucket = fake.bucket(CHUNK);
    let mut upload = bucket.upload(&path, UploadOptions::default()).await?;
    upload.write(body.clone()).await?;
    upload.finish().await
}

async fn object(fake: &Fake) -> Option<Bytes> {
    fake.object(&Path::from("hardest")).await
}

fn is_damaged(error: &Error) -> bool {
    matches!(
        OriginError::find(error),
        Some(OriginError::UploadDamaged { .. })
    )
}

/// (1) 503 after the server stored k bytes, for every k: the resend starts at k, and the checksum is right.
#[tokio::test(start_paused = true)]
async fn resends_from_k_after_a_503_with_k_bytes_stored() {
    let body = body(3 * CHUNK);
    for kept in 0..=CHUNK as u64 {
        let fake = Fake::with(&[SessionFault::None, SessionFault::LoseAfter(kept)], &[]);
        let result = upload(&fake, &body).await.unwrap();
        let offsets: Vec<_> = fake
            .state
            .lock()
            .log
            .iter()
            .map(|sent| sent.offset)
            .collect();
        let chunk = CHUNK as u64;
        let resent = (kept < chunk).then_some(chunk + kept);
        let right: Vec<_> = [0, chunk].into_iter().chain(resent).collect();
        assert_eq!(offsets, right, "kept {kept}");
        assert_eq!(result.resent_bytes, chunk - kept);
        assert_eq!(result.crc32c, crc32c(&body));
        assert_eq!(object(&fake).await.unwrap(), body);
    }
    // The same for the request that completes the upload.
    for kept in 0..=CHUNK as u64 {
        let fake = Fake::with(&[], &[SessionFault::LoseAfter(kept)]);
        let result = upload(&fake, &body).await.unwrap();
        assert_eq!(result.resent_bytes, CHUNK as u64 - kept);
        assert_eq!(object(&fake).await.unwrap(), body);
    }
}

/// (2) The response to the finalizing request is lost. It may have been processed, or only have stored all bytes:
/// success only if the store confirms the object.
#[tokio::test(start_paused = true)]
async fn lost_response_of_the_finalizing_request() {
    let body = body(2 * CHUNK + 1);
    for fault in [
        SessionFault::LoseResponse,
        SessionFault::LoseAfter(u64::MAX),
        SessionFault::LoseResponseAndForget,
    ] {
        let fake = Fake::with(&[], &[fault, SessionFault::LoseAfter(0)]);
        upload(&fake, &body).await.unwrap();
        assert_eq!(object(&fake).await.unwrap(), body, "{fault:?}");
    }
    // All bytes are stored and the object is not created: no success, however often the completion is requested.
    let fake = Fake::with(&[], &[SessionFault::LoseAfter(u64::MAX); 1_000]);
    let error = upload(&fake, &body).await.unwrap_err();
    assert!(matches!(
        OriginError::find(&error),
        Some(OriginError::OriginUnavailable { .. })
    ));
    assert_eq!(object(&fake).await, None);
    // The session is lost: the object decides, by the store's checksum alone.
    let fake = Fake::with(&[], &[SessionFault::Forget]);
    let error = upload(&fake, &body).await.unwrap_err();
    assert!(matches!(
        OriginError::find(&error),
        Some(OriginError::UploadLost { .. })
    ));
    let mut fake = Fake::with(&[], &[SessionFault::LoseResponseAndForget]);
    fake.checksums = false;
    let error = upload(&fake, &body).await.unwrap_err();
    let found = EngineError::find(&error);
    assert!(
        matches!(found, Some(EngineError::UploadUnproven { .. })),
        "{found:?}"
    );
    assert_eq!(object(&fake).await.unwrap(), body);
    // An empty object is one put, which is retried.
    let fake = Fake::new(IN_ORDER);
    upload(&fake, &Bytes::new()).await.unwrap();
    assert_eq!(object(&fake).await.unwrap(), "");
}

/// (3) The server acknowledges less, nothing or more than was sent, or regresses behind its acknowledgement.
#[tokio::test(start_paused = true)]
async fn server_acknowledges_less_nothing_more_or_regresses() {
    let body = body(3 * CHUNK);
    for kept in [0, 1, 256, CHUNK as u64 - 1] {
        let fake = Fake::with(
            &[
                SessionFault::Keep(kept),
                SessionFault::Keep(kept / 2),
                SessionFault::Keep(0),
            ],
            &[],
        );
        let result = upload(&fake, &body).await.unwrap();
        assert_eq!(result.crc32c, crc32c(&body));
        assert_eq!(object(&fake).await.unwrap(), body, "kept {kept}");
    }
    // It never stores anything: no success, an end by the deadline, and no tight loop.
    let fake = Fake::with(&[SessionFault::Keep(0); 10_000], &[]);
    let error = upload(&fake, &body).await.unwrap_err();
    assert!(matches!(
        OriginError::find(&error),
        Some(OriginError::OriginUnavailable { .. })
    ));
    assert!(fake.state.lock().log.len() < 100, "it waits in between");
    for faults in [
        vec![SessionFault::Claim(1)],
        vec![SessionFault::None, SessionFault::Claim(CHUNK as u64)],
        vec![SessionFault::None, SessionFault::Regress(CHUNK as u64 - 1)],
        vec![SessionFault::None, SessionFault::Regress(0)],
    ] {
        let fake = Fake::with(&faults, &[]);
        let error = upload(&fake, &body).await.unwrap_err();
        assert!(is_damaged(&error), "{faults:?}: {error}");
        assert_eq!(object(&fake).await, None);
    }
}

/// Possible faults of a request, weighted so that most uploads succeed.
pub(super) fn fault() -> impl Strategy<Value = SessionFault> {
    prop_oneof![
        6 => Just(SessionFault::None),
        3 => (0..900_u64).prop_map(SessionFault::Keep),
        3 => (0..900_u64).prop_map(SessionFault::LoseAfter),
        1 => Just(SessionFault::LoseResponse),
    ]
}

fn fatal() -> impl Strategy<Value = Option<SessionFault>> {
    prop_oneof![
        4 => Just(None),
        1 => (1..9_u64).prop_map(|more| Some(SessionFault::Claim(more))),
        1 => Just(Some(SessionFault::Forget)),
        1 => Just(Some(SessionFault::Refuse)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// (5) Any write sizes and partial acknowledgements: exactly the bytes, exactly the chunks, no memory before
    /// bytes must wait, and no loop if the store stores nothing.
    #[test]
    fn any_writes_and_partial_acknowledgements_store_the_exact_bytes(
        chunk in 1_usize..900,
        writes in prop::collection::vec(0_usize..2_500, 0..12),
        sends in prop::collection::vec(fault(), 0..25),
        ends in prop::collection::vec(fault(), 0..4),
        last in fatal(),
    ) {
        let runtime = bywash_sim::paused_runtime();
        runtime.block_on(async move {
            let length: usize = writes.iter().sum();
            let body = body(length);
            let fake = Fake::with(&sends, &ends);
            fake.state.lock().sends.extend(last);
            let path = Path::from("property");
            let mut upload = fake
                .bucket(chunk)
                .upload(&path, UploadOptions::default())
                .await
                .unwrap();
            let mut rest = body.clone();
            let mut failed = None;
            for size in writes {
                let piece = rest.split_to(size);
                if let Err(error) = upload.write(piece).await {
                    failed = Some(error);
                    break;
                }
            }
            let ended = match failed {
                None => upload.finish().await,
                Some(error) => Err(error),
            };
            let log = fake.state.lock().log.clone();
            for sent in &log {
                let start = sent.index * chunk as u64;
                let size: usize = sent.pieces.iter().map(|piece| piece.1).sum();
                assert_eq!(sent.offset + size as u64, start + chunk as u64, "whole chunks, but for the kept part");
            }
            match ended {
                Ok(result) => {
                    assert_eq!(fake.object(&path).await.unwrap(), body);
                    assert_eq!((result.length, result.crc32c), (length as u64, crc32c(&body)));
                    assert_eq!(result.sent_bytes - result.resent_bytes, length as u64);
                    assert!(result.buffers <= 1);
                    assert_eq!(fake.state.lock().opened, usize::from(length > chunk));
                }
                Err(error) => {
                    assert_eq!(fake.object(&path).await, None, "no success and no failure: {error}");
                    let found = OriginError::find(&error);
                    let right = match last {
                        Some(SessionFault::Claim(_)) => is_damaged(&error),
                        Some(SessionFault::Forget) => matches!(found, Some(OriginError::UploadLost { .. })),
                        Some(SessionFault::Refuse) => matches!(error, Error::PermissionDenied { .. }),
                        _ => false,
                    };
                    assert!(right, "{last:?}: {error}");
                }
            }
        });
    }
}
