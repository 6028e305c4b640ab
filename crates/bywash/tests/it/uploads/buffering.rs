//! Copies of bytes, and times at which memory is allocated.

use bytes::Bytes;
use bywash::origin::ChunkRule;
use bywash::{EngineError, UploadOptions};
use object_store::path::Path;

use super::fake::{Fake, IN_ORDER, SessionFault, crc32c};

const CHUNK: usize = 8 << 10;

fn body(length: usize) -> Bytes {
    bywash_support::pattern(7, length)
}

#[tokio::test(start_paused = true)]
async fn callers_whole_chunks_are_sent_without_copy_or_memory() {
    let fake = Fake::new(IN_ORDER);
    let bucket = fake.bucket(CHUNK);
    let path = Path::from("whole");
    let mut upload = bucket
        .upload(&path, UploadOptions::default())
        .await
        .unwrap();
    let body = body(4 * CHUNK);
    upload.write(body.slice(..3 * CHUNK)).await.unwrap();
    upload.write(body.slice(3 * CHUNK..)).await.unwrap();
    let result = upload.finish().await.unwrap();
    let start = body.as_ptr() as usize;
    let pieces: Vec<_> = fake
        .state
        .lock()
        .log
        .iter()
        .map(|sent| sent.pieces.clone())
        .collect();
    // The last chunk was sent with the completion.
    let whole: Vec<_> = (0..3).map(|n| vec![(start + n * CHUNK, CHUNK)]).collect();
    assert_eq!(pieces, whole);
    assert_eq!(result.buffers, 0, "nothing had to wait");
    assert_eq!(result.sent_bytes, body.len() as u64);
    assert_eq!(fake.object(&path).await.unwrap(), body);
}

#[tokio::test(start_paused = true)]
async fn last_bytes_of_a_known_length_are_sent_without_buffering() {
    let side_by_side = ChunkRule {
        parallel: true,
        ..IN_ORDER
    };
    for rule in [IN_ORDER, side_by_side] {
        for length in [1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 7] {
            let fake = Fake::new(rule);
            let bucket = fake.bucket(CHUNK);
            let path = Path::from("known");
            let options = UploadOptions {
                length: Some(length as u64),
                parallel: 2,
                ..UploadOptions::default()
            };
            let body = body(length);
            let mut upload = bucket.upload(&path, options).await.unwrap();
            upload.write(body.clone()).await.unwrap();
            upload.write(Bytes::new()).await.unwrap();
            let result = upload.finish().await.unwrap();
            assert_eq!(result.buffers, 0, "{length} bytes waited");
            assert_eq!(result.crc32c, crc32c(&body), "{length} bytes");
            assert_eq!(fake.object(&path).await.unwrap(), body);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn queued_bytes_and_a_slice_are_sent_as_one_gathered_chunk() {
    let fake = Fake::new(IN_ORDER);
    let bucket = fake.bucket(CHUNK);
    let path = Path::from("gathered");
    let mut upload = bucket
        .upload(&path, UploadOptions::default())
        .await
        .unwrap();
    let body = body(3 * CHUNK);
    upload.write(body.slice(..100)).await.unwrap();
    upload.write(body.slice(100..)).await.unwrap();
    let first = fake.state.lock().log[0].clone();
    assert_eq!(first.pieces.len(), 2);
    assert_eq!(first.pieces[0].1, 100, "what was queued, from the buffer");
    let rest = (body.as_ptr() as usize + 100, CHUNK - 100);
    assert_eq!(first.pieces[1], rest, "the caller's own bytes");
    let result = upload.finish().await.unwrap();
    assert_eq!(result.buffers, 1);
    assert_eq!(fake.object(&path).await.unwrap(), body);
}

#[tokio::test(start_paused = true)]
async fn memory_is_allocated_when_bytes_must_wait_and_reused_for_all_chunks() {
    let fake = Fake::new(IN_ORDER);
    let engine = super::fake::engine(CHUNK);
    let origin = std::sync::Arc::new(fake.clone());
    let bucket = engine
        .mount("test", origin, bywash::Consistency::default())
        .unwrap();
    let held = || {
        let budget = engine.stats().budget;
        budget.used - budget.idle
    };
    let path = Path::from("small-writes");
    let mut upload = bucket
        .upload(&path, UploadOptions::default())
        .await
        .unwrap();
    assert_eq!(held(), 0);
    let body = body(50 * CHUNK + 1);
    upload.write(body.slice(..2 * CHUNK)).await.unwrap();
    assert_eq!(held(), 0, "whole chunks are the caller's memory");
    for piece in body.slice(2 * CHUNK..).chunks(1_000) {
        upload.write(Bytes::copy_from_slice(piece)).await.unwrap();
        assert_eq!(held(), CHUNK as u64);
    }
    let result = upload.finish().await.unwrap();
    assert_eq!(result.buffers, 1);
    assert_eq!(held(), 0, "a finished upload holds nothing");
    assert_eq!(fake.object(&path).await.unwrap(), body);
}

#[tokio::test(start_paused = true)]
async fn lent_buffer_is_replaced_and_never_overwritten() {
    let fake = Fake::new(IN_ORDER);
    fake.state.lock().hoard = Some(Vec::new());
    let bucket = fake.bucket(CHUNK);
    let path = Path::from("lent");
    let mut upload = bucket
        .upload(&path, UploadOptions::default())
        .await
        .unwrap();
    let body = body(5 * CHUNK);
    for piece in body.chunks(1_000) {
        upload.write(Bytes::copy_from_slice(piece)).await.unwrap();
    }
    let result = upload.finish().await.unwrap();
    assert!(result.buffers > 1, "each chunk found the last one lent");
    let hoard = fake.state.lock().hoard.take().unwrap().concat();
    assert_eq!(hoard, body[..hoard.len()]);
    assert_eq!(hoard.len(), 4 * CHUNK);
}

#[tokio::test(start_paused = true)]
async fn upload_of_one_chunk_is_one_put_without_a_session() {
    for length in [0, 1, CHUNK - 1, CHUNK] {
        let fake = Fake::new(IN_ORDER);
        let bucket = fake.bucket(CHUNK);
        let path = Path::from("small");
        let mut upload = bucket
            .upload(&path, UploadOptions::default())
            .await
            .unwrap();
        let body = body(length);
        for piece in body.chunks(3_000) {
            upload.write(Bytes::copy_from_slice(piece)).await.unwrap();
        }
        let result = upload.finish().await.unwrap();
        assert_eq!(fake.state.lock().opened, 0);
        assert_eq!((result.length, result.resent_bytes), (length as u64, 0));
        assert_eq!(result.crc32c, super::fake::crc32c(&body));
        assert_eq!(fake.object(&path).await.unwrap(), body);
    }
}

#[tokio::test(start_paused = true)]
async fn chunks_are_lengthened_to_the_stores_rule() {
    for known in [false, true] {
        let fake = Fake::new(ChunkRule {
            granule: 3_000,
            min: 12_000,
            ..IN_ORDER
        });
        let bucket = fake.bucket(CHUNK);
        let path = Path::from("fitted");
        let body = body(5 * CHUNK);
        let options = UploadOptions {
            length: known.then_some(body.len() as u64),
            ..UploadOptions::default()
        };
        let mut upload = bucket.upload(&path, options).await.unwrap();
        for piece in body.chunks(5_000) {
            upload.write(Bytes::copy_from_slice(piece)).await.unwrap();
        }
        upload.finish().await.unwrap();
        let sent: Vec<_> = fake
            .state
            .lock()
            .log
            .iter()
            .map(|sent| sent.offset)
            .collect();
        assert_eq!(sent, [0, 12_000, 24_000], "known: {known}");
        assert_eq!(fake.object(&path).await.unwrap(), body);
        let none = UploadOptions {
            chunk: Some(0),
            length: Some(body.len() as u64),
            ..UploadOptions::default()
        };
        let refused = bucket.upload(&path, none).await.unwrap_err();
        let found = EngineError::find(&refused).unwrap();
        assert!(matches!(
            found,
            EngineError::InvalidSetting {
                setting: "chunk",
                ..
            }
        ));
        assert!(found.to_string().contains("multiples of 3000"), "{found}");
        assert_eq!(fake.state.lock().opened, 1, "refused before it is opened");
    }
}

#[tokio::test(start_paused = true)]
async fn write_with_dropped_future_has_accepted_its_bytes() {
    let fake = Fake::with(&[SessionFault::LoseAfter(100)], &[]);
    let bucket = fake.bucket(CHUNK);
    let path = Path::from("dropped");
    let mut upload = bucket
        .upload(&path, UploadOptions::default())
        .await
        .unwrap();
    let body = body(3 * CHUNK + 17);
    {
        // It fails, and waits before it retries: dropped there.
        let mut write = std::pin::pin!(upload.write(body.clone()));
        assert!(futures::poll!(write.as_mut()).is_pending());
    }
    assert_eq!(upload.position(), body.len() as u64);
    let result = upload.finish().await.unwrap();
    assert_eq!(result.resent_bytes, CHUNK as u64 - 100);
    assert_eq!(fake.object(&path).await.unwrap(), body);
}
