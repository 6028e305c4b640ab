//! Chunks in flight in parallel, for stores that accept them so.

use std::sync::Arc;

use bytes::Bytes;
use bywash::origin::ChunkRule;
use bywash::{Consistency, OriginError, UploadOptions};
use object_store::Error;
use object_store::path::Path;
use proptest::prelude::*;
use tokio::sync::Barrier;

use super::fake::{Fake, IN_ORDER, SessionFault, crc32c, engine};

const CHUNK: usize = 4 << 10;

const PARALLEL: ChunkRule = ChunkRule {
    parallel: true,
    max_chunks: Some(10_000),
    ..IN_ORDER
};

fn options(parallel: usize) -> UploadOptions {
    UploadOptions {
        parallel,
        ..UploadOptions::default()
    }
}

#[tokio::test(start_paused = true)]
async fn configured_number_of_chunks_is_in_flight_and_buffers_are_reused() {
    let mut fake = Fake::new(PARALLEL);
    // Each request waits for two others: one at a time would wait forever.
    fake.barrier = Some(Arc::new(Barrier::new(3)));
    let engine = engine(CHUNK);
    let bucket = engine
        .mount("test", Arc::new(fake.clone()), Consistency::default())
        .unwrap();
    let path = Path::from("three");
    let mut upload = bucket.upload(&path, options(3)).await.unwrap();
    let body = bywash_support::pattern(1, 30 * CHUNK);
    for piece in body.chunks(1_000) {
        upload.write(Bytes::copy_from_slice(piece)).await.unwrap();
        let budget = engine.stats().budget;
        assert!(budget.used - budget.idle <= 4 * CHUNK as u64, "{budget:?}");
    }
    let result = upload.finish().await.unwrap();
    assert!(result.buffers <= 4, "{} buffers", result.buffers);
    assert_eq!((result.crc32c, result.resent_bytes), (crc32c(&body), 0));
    assert_eq!(fake.object(&path).await.unwrap(), body);
}

#[tokio::test(start_paused = true)]
async fn only_the_failed_chunk_is_resent() {
    let fake = Fake::new(PARALLEL);
    fake.state
        .lock()
        .sends
        .extend([SessionFault::None, SessionFault::Refuse]);
    let path = Path::from("refused");
    let mut upload = fake.bucket(CHUNK).upload(&path, options(4)).await.unwrap();
    let body = bywash_support::pattern(2, 8 * CHUNK);
    let error = upload.write(body.clone()).await.unwrap_err();
    assert!(matches!(error, Error::PermissionDenied { .. }), "{error}");
    let token = upload.capture();
    assert_eq!(token.position(), body.len() as u64, "all of it was taken");
    let result = upload.finish().await.unwrap();
    assert_eq!(result.resent_bytes, CHUNK as u64);
    assert_eq!(fake.object(&path).await.unwrap(), body);
}

#[tokio::test(start_paused = true)]
async fn takeover_skips_only_chunks_with_matching_digests() {
    for vouches in [true, false] {
        let mut fake = Fake::new(PARALLEL);
        fake.checksums = vouches;
        // The first chunk does not arrive, those behind it do.
        fake.state.lock().sends.push_back(SessionFault::Refuse);
        let path = Path::from("left");
        let mut upload = fake.bucket(CHUNK).upload(&path, options(4)).await.unwrap();
        let body = bywash_support::pattern(3, 6 * CHUNK);
        upload.write(body.slice(..4 * CHUNK)).await.unwrap();
        let failed = upload.write(body.slice(4 * CHUNK..5 * CHUNK)).await;
        assert!(failed.is_err());
        while fake.state.lock().log.len() < 4 {
            tokio::task::yield_now().await;
        }
        let token = upload.capture();
        assert_eq!(
            (token.acknowledged(), token.position()),
            (0, 5 * CHUNK as u64)
        );
        drop(upload);
        let mut upload = fake.bucket(CHUNK).restore_upload(&token).await.unwrap();
        upload.write(body.slice(5 * CHUNK..)).await.unwrap();
        let result = upload.finish().await.unwrap();
        let sent = if vouches { 3 } else { 6 };
        assert_eq!(result.sent_bytes, sent * CHUNK as u64);
        assert_eq!(fake.object(&path).await.unwrap(), body);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_writes_and_faults_in_parallel_store_the_exact_bytes(
        chunk in 1_usize..900,
        parallel in 1_usize..5,
        writes in prop::collection::vec(0_usize..2_500, 0..12),
        sends in prop::collection::vec(super::adversarial::fault(), 0..25),
        ends in prop::collection::vec(prop_oneof![
            Just(SessionFault::LoseAfter(0)), Just(SessionFault::LoseResponse), Just(SessionFault::LoseResponseAndForget)
        ], 0..4),
        lost in any::<bool>(),
    ) {
        let runtime = bywash_sim::paused_runtime();
        runtime.block_on(async move {
            let length: usize = writes.iter().sum();
            let body = bywash_support::pattern(11, length);
            let fake = Fake::new(PARALLEL);
            fake.state.lock().sends.extend(sends);
            fake.state.lock().sends.extend(lost.then_some(SessionFault::Forget));
            fake.state.lock().ends.extend(ends);
            let path = Path::from("property");
            let mut upload = fake.bucket(chunk).upload(&path, options(parallel)).await.unwrap();
            let mut rest = body.clone();
            let mut ended = Ok(());
            for size in writes {
                ended = upload.write(rest.split_to(size)).await;
                if ended.is_err() {
                    break;
                }
            }
            let ended = match ended {
                Ok(()) => upload.finish().await,
                Err(error) => Err(error),
            };
            match ended {
                Ok(result) => {
                    assert_eq!(fake.object(&path).await.unwrap(), body);
                    assert_eq!((result.length, result.crc32c), (length as u64, crc32c(&body)));
                    assert_eq!(result.sent_bytes - result.resent_bytes, length as u64);
                    assert!(result.buffers <= parallel as u64 + 1);
                }
                Err(error) => {
                    let found = OriginError::find(&error);
                    assert!(lost && matches!(found, Some(OriginError::UploadLost { .. })), "{error}");
                    assert_eq!(fake.object(&path).await, None);
                }
            }
        });
    }
}
