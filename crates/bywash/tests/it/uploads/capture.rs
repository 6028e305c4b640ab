//! Captured by one process, restored by another: (4) of the five hardest cases of java-storage's resumable writer.

use bytes::Bytes;
use bywash::{EngineError, OriginError, Upload, UploadOptions, UploadToken};
use object_store::Error;
use object_store::path::Path;

use super::fake::{Fake, SessionFault, crc32c};

const CHUNK: usize = 40;

fn body() -> Bytes {
    bywash_support::pattern(11, 3 * CHUNK + 7)
}

fn path() -> Path {
    Path::from("hardest")
}

async fn begin(at: usize, faults: &[SessionFault]) -> (Fake, Upload) {
    let fake = Fake::with(faults, &[]);
    let bucket = fake.bucket(CHUNK);
    let mut upload = bucket
        .upload(&path(), UploadOptions::default())
        .await
        .unwrap();
    // A refusal in the middle leaves part of a chunk acknowledged.
    let _refused = upload.write(body().slice(..at)).await;
    (fake, upload)
}

/// The token as another process gets it.
fn sent(token: &UploadToken) -> UploadToken {
    UploadToken::from_bytes(token.to_bytes().unwrap().into()).unwrap()
}

fn is_damaged(error: &Error) -> bool {
    matches!(
        OriginError::find(error),
        Some(OriginError::UploadDamaged { .. })
    )
}

/// (4) Captured at every byte position, after partial flushes too, and restored in another process, while the
/// original is dropped, or continues, or the session is gone.
#[tokio::test(start_paused = true)]
async fn captured_at_every_position_and_restored_in_another_process() {
    let body = body();
    for at in 0..=body.len() {
        for faults in [&[][..], &[SessionFault::Keep(13), SessionFault::Refuse]] {
            let (fake, original) = begin(at, faults).await;
            let token = original.capture();
            assert_eq!(token.position(), at as u64);
            drop(original);
            fake.state.lock().sends.clear();
            let mut restored = fake
                .bucket(CHUNK)
                .restore_upload(&sent(&token))
                .await
                .unwrap();
            restored.write(body.slice(at..)).await.unwrap();
            let again = restored.capture();
            assert_eq!(again.position(), body.len() as u64);
            let result = restored.finish().await.unwrap();
            assert_eq!(result.crc32c, crc32c(&body), "at {at}, {faults:?}");
            assert_eq!(
                fake.object(&path()).await.unwrap(),
                body,
                "at {at}, {faults:?}"
            );
        }
    }
}

/// The original continues and finishes; the session is finished, or unknown. A process with the token succeeds only
/// with the same bytes, since the object proves to be theirs.
#[tokio::test(start_paused = true)]
async fn restored_upload_detects_that_the_original_finished() {
    let body = body();
    for (at, gone, checksums) in [
        (CHUNK + 1, false, true),
        (CHUNK + 1, true, true),
        (3 * CHUNK, true, true),
        (body.len(), false, true),
        (body.len(), true, true),
        (CHUNK + 1, true, false),
    ] {
        let (mut fake, _) = begin(0, &[]).await;
        fake.checksums = checksums;
        let bucket = fake.bucket(CHUNK);
        let mut original = bucket
            .upload(&path(), UploadOptions::default())
            .await
            .unwrap();
        original.write(body.slice(..at)).await.unwrap();
        let token = original.capture();
        original.write(body.slice(at..)).await.unwrap();
        original.finish().await.unwrap();
        if gone {
            fake.forget_sessions();
        }
        for same in [true, false] {
            let bucket = fake.bucket(CHUNK);
            let mut restored = bucket.restore_upload(&sent(&token)).await.unwrap();
            let mut rest = body.slice(at..).to_vec();
            if !same {
                rest.push(7);
            }
            restored.write(rest.into()).await.unwrap();
            match restored.finish().await {
                Ok(result) => assert!(same && checksums && result.sent_bytes == 0),
                Err(error) => {
                    let right = match (EngineError::find(&error), OriginError::find(&error)) {
                        (Some(EngineError::UploadUnproven { .. }), _) => same && !checksums,
                        (
                            _,
                            Some(
                                OriginError::UploadLost { .. } | OriginError::UploadDamaged { .. },
                            ),
                        ) => !same,
                        _ => false,
                    };
                    assert!(right, "at {at}, gone {gone}, same {same}: {error}");
                }
            }
            assert_eq!(fake.object(&path()).await.unwrap(), body);
        }
    }
}

/// The original continues and dies: the store is ahead of the token. Its bytes are not resent, and verified at the end.
#[tokio::test(start_paused = true)]
async fn bytes_stored_after_the_capture_are_not_resent() {
    let body = body();
    let (fake, mut original) = begin(CHUNK + 1, &[]).await;
    let token = original.capture();
    original
        .write(body.slice(CHUNK + 1..3 * CHUNK + 1))
        .await
        .unwrap();
    drop(original);
    assert_eq!(fake.kept().len(), 3 * CHUNK);
    let mut restored = fake
        .bucket(CHUNK)
        .restore_upload(&sent(&token))
        .await
        .unwrap();
    restored.write(body.slice(CHUNK + 1..)).await.unwrap();
    let result = restored.finish().await.unwrap();
    assert_eq!((result.sent_bytes, result.resent_bytes), (7, 0));
    assert_eq!(fake.object(&path()).await.unwrap(), body);
    // Another source: the stored bytes differ from it.
    let (fake, mut original) = begin(CHUNK + 1, &[]).await;
    let token = original.capture();
    original
        .write(body.slice(CHUNK + 1..3 * CHUNK + 1))
        .await
        .unwrap();
    drop(original);
    let mut restored = fake
        .bucket(CHUNK)
        .restore_upload(&sent(&token))
        .await
        .unwrap();
    let mut other = body.slice(CHUNK + 1..).to_vec();
    other[CHUNK] ^= 1;
    let written = restored.write(other.into()).await;
    let error = match written {
        Ok(()) => restored.finish().await.unwrap_err(),
        Err(error) => error,
    };
    assert!(is_damaged(&error), "{error}");
    assert_eq!(fake.object(&path()).await, None);
}

/// Restored twice from one token: both send to one session, and neither undoes the other.
#[tokio::test(start_paused = true)]
async fn two_restored_uploads_leave_the_exact_object_or_an_error() {
    let body = body();
    for at in CHUNK + 1..=body.len() {
        let (fake, original) = begin(CHUNK + 1, &[]).await;
        let token = sent(&original.capture());
        drop(original);
        let bucket = fake.bucket(CHUNK);
        let mut one = bucket.restore_upload(&token).await.unwrap();
        let mut other = bucket.restore_upload(&token).await.unwrap();
        one.write(body.slice(CHUNK + 1..at)).await.unwrap();
        let stored = match other.write(body.slice(CHUNK + 1..)).await {
            Ok(()) => other.finish().await.map(drop),
            error => error,
        };
        let again = match one.write(body.slice(at..)).await {
            Ok(()) => one.finish().await.map(drop),
            error => error,
        };
        assert!(stored.is_ok() || again.is_ok(), "at {at}: {stored:?}");
        assert_eq!(fake.object(&path()).await.unwrap(), body, "at {at}");
    }
}

/// The session is unknown to the store: an error with that reason.
#[tokio::test(start_paused = true)]
async fn lost_session_is_an_error() {
    let body = body();
    let (fake, original) = begin(2 * CHUNK + 1, &[]).await;
    fake.state.lock().sends.push_back(SessionFault::Forget);
    let mut restored = fake
        .bucket(CHUNK)
        .restore_upload(&sent(&original.capture()))
        .await
        .unwrap();
    let error = restored
        .write(body.slice(2 * CHUNK + 1..))
        .await
        .unwrap_err();
    let found = OriginError::find(&error);
    assert!(
        matches!(found, Some(OriginError::UploadLost { .. })),
        "{found:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn truncated_or_corrupted_token_is_rejected() {
    let (_fake, upload) = begin(2 * CHUNK + 3, &[]).await;
    let bytes = upload.capture().to_bytes().unwrap();
    let read = |bytes: &[u8]| UploadToken::from_bytes(Bytes::copy_from_slice(bytes));
    assert_eq!(read(&bytes).unwrap().position(), 2 * CHUNK as u64 + 3);
    for at in 0..bytes.len() {
        let cut = read(&bytes[..at]).unwrap_err();
        assert!(
            matches!(cut, EngineError::InvalidToken { .. }),
            "cut at {at}"
        );
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        let flipped = read(&flipped).unwrap_err();
        assert!(
            matches!(flipped, EngineError::InvalidToken { .. }),
            "byte {at}"
        );
    }
}
