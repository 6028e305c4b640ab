//! End of an upload: checks before success, and the remains of an unfinished one.

use bytes::Bytes;
use bywash::{EngineError, OriginError, UploadOptions};
use object_store::path::Path;
use object_store::{Error, ObjectStoreExt, PutMode};

use super::fake::{Fake, IN_ORDER, SessionFault, crc32c};

const CHUNK: usize = 4 << 10;

fn body(length: usize) -> Bytes {
    bywash_support::pattern(9, length)
}

fn origin_error(error: &Error) -> &OriginError {
    OriginError::find(error).unwrap_or_else(|| panic!("{error} is none of the origin's"))
}

#[tokio::test(start_paused = true)]
async fn response_that_contradicts_the_request_is_no_success() {
    for fault in [SessionFault::WrongChecksum, SessionFault::WrongLength] {
        let fake = Fake::with(&[], &[fault]);
        let bucket = fake.bucket(CHUNK);
        let mut upload = bucket
            .upload(&Path::from("a"), UploadOptions::default())
            .await
            .unwrap();
        upload.write(body(3 * CHUNK)).await.unwrap();
        let error = upload.finish().await.unwrap_err();
        let found = origin_error(&error);
        assert!(
            matches!(found, OriginError::UploadDamaged { .. }),
            "{fault:?}: {found}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn announced_length_and_checksum_are_enforced() {
    let body = body(2 * CHUNK + 5);
    for length in [0, CHUNK, 2 * CHUNK + 4, 2 * CHUNK + 6, 9 * CHUNK] {
        let fake = Fake::new(IN_ORDER);
        let options = UploadOptions {
            length: Some(length as u64),
            ..UploadOptions::default()
        };
        let path = Path::from("length");
        let mut upload = fake.bucket(CHUNK).upload(&path, options).await.unwrap();
        let written = upload.write(body.clone()).await;
        let error = match written {
            Ok(()) => upload.finish().await.unwrap_err(),
            Err(error) => error,
        };
        let found = origin_error(&error);
        assert!(
            matches!(found, OriginError::LengthMismatch { .. }),
            "{found}"
        );
        assert!(upload.finish().await.is_err());
        upload.abort().await.unwrap();
        assert_eq!((fake.object(&path).await, fake.open_sessions()), (None, 0));
    }
    for length in [10, body.len()] {
        let fake = Fake::new(IN_ORDER);
        let path = Path::from("checksum");
        let right = crc32c(&body[..length]);
        for (crc, good) in [(right ^ 1, false), (right, true)] {
            let options = UploadOptions {
                crc32c: Some(crc),
                ..UploadOptions::default()
            };
            let mut upload = fake.bucket(CHUNK).upload(&path, options).await.unwrap();
            upload.write(body.slice(..length)).await.unwrap();
            match upload.finish().await {
                Ok(result) => assert!(good && result.crc32c == right),
                Err(error) => {
                    let found = EngineError::find(&error);
                    assert!(!good && matches!(found, Some(EngineError::ChecksumMismatch { .. })));
                    assert_eq!(fake.object(&path).await, None);
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn dropped_upload_is_neither_finished_nor_lost() {
    let fake = Fake::new(IN_ORDER);
    let bucket = fake.bucket(CHUNK);
    let path = Path::from("dropped");
    let body = body(3 * CHUNK + 100);
    let mut upload = bucket
        .upload(&path, UploadOptions::default())
        .await
        .unwrap();
    upload.write(body.slice(..2 * CHUNK + 7)).await.unwrap();
    let token = upload.capture();
    drop(upload);
    assert_eq!(fake.object(&path).await, None);
    assert_eq!(fake.open_sessions(), 1);
    assert!(
        !format!("{token:?}").contains("session-1"),
        "it may be a capability"
    );

    let mut upload = fake.bucket(CHUNK).restore_upload(&token).await.unwrap();
    assert_eq!(upload.position(), 2 * CHUNK as u64 + 7);
    upload.write(body.slice(2 * CHUNK + 7..)).await.unwrap();
    let result = upload.finish().await.unwrap();
    assert_eq!(result.resent_bytes, 0);
    assert_eq!(fake.object(&path).await.unwrap(), body);
}

#[tokio::test(start_paused = true)]
async fn aborted_upload_leaves_no_bytes_and_accepts_no_more() {
    let fake = Fake::new(IN_ORDER);
    let path = Path::from("aborted");
    let mut upload = fake
        .bucket(CHUNK)
        .upload(&path, UploadOptions::default())
        .await
        .unwrap();
    upload.write(body(3 * CHUNK)).await.unwrap();
    upload.abort().await.unwrap();
    upload.abort().await.unwrap();
    assert_eq!((fake.object(&path).await, fake.open_sessions()), (None, 0));
    for error in [
        upload.write(body(1)).await.unwrap_err(),
        upload.finish().await.unwrap_err(),
    ] {
        assert!(matches!(
            origin_error(&error),
            OriginError::UploadEnded { how: "aborted", .. }
        ));
    }

    let mut done = fake
        .bucket(CHUNK)
        .upload(&path, UploadOptions::default())
        .await
        .unwrap();
    done.write(body(3 * CHUNK)).await.unwrap();
    let first = done.finish().await.unwrap();
    assert_eq!(
        done.finish().await.unwrap().put.e_tag,
        first.put.e_tag,
        "the same result again"
    );
    let error = done.abort().await.unwrap_err();
    assert!(matches!(
        origin_error(&error),
        OriginError::UploadEnded {
            how: "finished",
            ..
        }
    ));
    assert!(fake.object(&path).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn preconditions_hold_at_completion() {
    let fake = Fake::new(IN_ORDER);
    let bucket = fake.bucket(CHUNK);
    let path = Path::from("create");
    for length in [10, 3 * CHUNK] {
        let options = UploadOptions {
            mode: PutMode::Create,
            ..UploadOptions::default()
        };
        let mut upload = bucket.upload(&path, options).await.unwrap();
        upload.write(body(length)).await.unwrap();
        bucket.put(&path, "first".into()).await.unwrap();
        let error = upload.finish().await.unwrap_err();
        assert!(matches!(error, Error::AlreadyExists { .. }), "{error}");
        assert_eq!(fake.object(&path).await.unwrap(), "first");
        upload.abort().await.unwrap();
        bucket.delete(&path).await.unwrap();
    }
    assert_eq!(fake.open_sessions(), 0);
}

#[tokio::test(start_paused = true)]
async fn refusal_is_not_retried() {
    let fake = Fake::with(&[SessionFault::None, SessionFault::Refuse], &[]);
    let path = Path::from("refused");
    let mut upload = fake
        .bucket(CHUNK)
        .upload(&path, UploadOptions::default())
        .await
        .unwrap();
    let error = upload.write(body(4 * CHUNK)).await.unwrap_err();
    assert!(matches!(error, Error::PermissionDenied { .. }), "{error}");
    assert_eq!(fake.state.lock().log.len(), 2, "it was not tried again");
}

#[tokio::test(start_paused = true)]
async fn completion_with_dropped_future_continues_and_returns_its_result_later() {
    let fake = Fake::with(&[], &[SessionFault::LoseResponse]);
    let path = Path::from("left");
    let mut upload = fake
        .bucket(CHUNK)
        .upload(&path, UploadOptions::default())
        .await
        .unwrap();
    let body = body(3 * CHUNK);
    upload.write(body.clone()).await.unwrap();
    {
        let mut finish = std::pin::pin!(upload.finish());
        assert!(futures::poll!(finish.as_mut()).is_pending());
    }
    let error = upload.write(Bytes::from_static(b"more")).await.unwrap_err();
    assert!(matches!(
        origin_error(&error),
        OriginError::UploadEnded { .. }
    ));
    upload.finish().await.unwrap();
    assert_eq!(fake.object(&path).await.unwrap(), body);
}
