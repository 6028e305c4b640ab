//! The upload as an `AsyncWrite`.

use bywash::{OriginError, UploadOptions};
use object_store::path::Path;
use tokio::io::AsyncWriteExt;

use super::fake::{Fake, IN_ORDER, SessionFault};

const CHUNK: usize = 1_000;

#[tokio::test(start_paused = true)]
async fn stream_accepts_all_bytes_and_only_finish_completes() {
    for piece in [1, 7, 999, 1_000, 1_001, 2_500] {
        let fake = Fake::with(
            &[SessionFault::Keep(3), SessionFault::LoseAfter(500)],
            &[SessionFault::LoseResponse],
        );
        let path = Path::from("stream");
        let bucket = fake.bucket(CHUNK);
        let upload = bucket.upload(&path, UploadOptions::default());
        let mut writer = upload.await.unwrap().into_writer();
        let body = bywash_support::pattern(5, 4 * CHUNK + 3);
        for piece in body.chunks(piece) {
            writer.write_all(piece).await.unwrap();
        }
        writer.flush().await.unwrap();
        writer.shutdown().await.unwrap();
        assert_eq!(fake.object(&path).await, None, "a shutdown is no end");
        let mut upload = writer.into_upload().await;
        assert_eq!(upload.position(), body.len() as u64);
        let result = upload.finish().await.unwrap();
        assert_eq!(result.buffers, 1);
        assert_eq!(
            fake.object(&path).await.unwrap(),
            body,
            "in pieces of {piece}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn failed_write_has_accepted_nothing_and_can_be_repeated() {
    let fake = Fake::new(IN_ORDER);
    let path = Path::from("stream");
    let options = UploadOptions {
        length: Some(2 * CHUNK as u64),
        ..UploadOptions::default()
    };
    let upload = fake.bucket(CHUNK).upload(&path, options).await.unwrap();
    let mut writer = upload.into_writer();
    let body = bywash_support::pattern(6, 2 * CHUNK);
    writer.write_all(&body[..CHUNK]).await.unwrap();
    fake.state.lock().sends.push_back(SessionFault::Refuse);
    let error = writer.write(&body[CHUNK..]).await.unwrap_err();
    assert!(error.to_string().contains("403"), "{error}");
    writer.write_all(&body[CHUNK..]).await.unwrap();
    let error = writer.write(b"more").await.unwrap_err();
    let error = error.get_ref().unwrap();
    let found = OriginError::find(error.downcast_ref().unwrap());
    assert!(
        matches!(found, Some(OriginError::LengthMismatch { .. })),
        "{found:?}"
    );
    writer.into_upload().await.finish().await.unwrap();
    assert_eq!(fake.object(&path).await.unwrap(), body);
}
