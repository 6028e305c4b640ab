//! Chunks whose length changes while an object is written.

use bytes::Bytes;
use bywash::origin::ChunkRule;
use bywash::upload::JournalOptions;
use bywash::{EngineError, Upload, UploadOptions, UploadToken};
use object_store::path::Path;

use super::fake::{Fake, IN_ORDER, SessionFault, crc32c};

const CHUNK: usize = 40;

/// Chunks of eight bytes.
const UNITS: ChunkRule = ChunkRule {
    granule: 8,
    min: 8,
    ..IN_ORDER
};

const PARALLEL: ChunkRule = ChunkRule {
    parallel: true,
    max_chunks: Some(10_000),
    ..UNITS
};

fn path() -> Path {
    Path::from("changing")
}

async fn upload(fake: &Fake, chunk: u64, parallel: usize, length: Option<u64>) -> Upload {
    let options = UploadOptions {
        chunk: Some(chunk),
        parallel,
        length,
        ..UploadOptions::default()
    };
    fake.bucket(CHUNK).upload(&path(), options).await.unwrap()
}

fn sent(fake: &Fake) -> Vec<(u64, u64, usize)> {
    let log = fake.state.lock().log.clone();
    let mut sent: Vec<_> = log
        .iter()
        .map(|sent| {
            let length = sent.pieces.iter().map(|(_, length)| length).sum();
            (sent.index, sent.offset, length)
        })
        .collect();
    sent.sort_unstable();
    sent
}

#[tokio::test(start_paused = true)]
async fn chunk_length_changes_between_chunks_and_odd_ones_are_rounded_down() {
    let body = bywash_support::pattern(1, 200);
    for (rule, parallel) in [(UNITS, 1), (PARALLEL, 3)] {
        let fake = Fake::new(rule);
        // 21 is two units and an odd rest.
        let mut upload = upload(&fake, 21, parallel, None).await;
        upload.write(body.slice(..36)).await.unwrap();
        // 4 bytes wait in a chunk of 16, which keeps its length.
        upload.set_chunk(45).unwrap();
        upload.write(body.slice(36..150)).await.unwrap();
        // Below the minimum.
        upload.set_chunk(3).unwrap();
        upload.write(body.slice(150..)).await.unwrap();
        let result = upload.finish().await.unwrap();
        let all = [
            (0, 0, 16),
            (1, 16, 16),
            (2, 32, 16),
            (3, 48, 40),
            (4, 88, 40),
            (5, 128, 40),
            (6, 168, 8),
            (7, 176, 8),
            (8, 184, 8),
            (9, 192, 8),
        ];
        let sent = sent(&fake);
        // In order the last chunk is sent with the completion.
        let expected = &all[..all.len() - usize::from(parallel == 1)];
        assert_eq!(sent, expected, "parallel: {parallel}");
        assert_eq!(result.crc32c, crc32c(&body));
        assert_eq!(fake.object(&path()).await.unwrap(), body);
    }
}

#[tokio::test(start_paused = true)]
async fn chunk_length_that_the_store_does_not_take_changes_nothing() {
    let rule = ChunkRule {
        max: 64,
        max_chunks: Some(4),
        ..PARALLEL
    };
    let fake = Fake::new(rule);
    let mut upload = upload(&fake, 64, 1, Some(200)).await;
    let body = bywash_support::pattern(2, 200);
    upload.write(body.slice(..65)).await.unwrap();
    for wrong in [0, 72] {
        let error = upload.set_chunk(wrong).unwrap_err();
        let found = EngineError::find(&error).unwrap().to_string();
        assert!(
            found.contains("multiples of 8 bytes, from 8 to 64"),
            "{found}"
        );
    }
    // Two chunks are left for 72 bytes, so they are made long enough.
    upload.set_chunk(8).unwrap();
    upload.write(body.slice(65..)).await.unwrap();
    upload.finish().await.unwrap();
    let lengths: Vec<_> = sent(&fake).iter().map(|sent| sent.2).collect();
    assert_eq!(lengths, [64, 64, 40, 32]);
    assert_eq!(fake.object(&path()).await.unwrap(), body);
}

/// Captured at every byte around two changes, and continued by another process, which cuts the rest at the same offsets.
#[tokio::test(start_paused = true)]
async fn upload_with_changed_chunks_is_captured_at_every_byte() {
    let body = bywash_support::pattern(3, 200);
    for (rule, parallel) in [(UNITS, 1), (PARALLEL, 2)] {
        for at in 0..=body.len() {
            let fake = Fake::new(rule);
            let mut original = upload(&fake, 16, parallel, None).await;
            for position in 0..at {
                match position {
                    36 => original.set_chunk(24).unwrap(),
                    120 => original.set_chunk(8).unwrap(),
                    _ => {}
                }
                let byte = body.slice(position..=position);
                original.write(byte).await.unwrap();
            }
            let token = original.capture().to_bytes().unwrap();
            let token = UploadToken::from_bytes(token.into()).unwrap();
            assert_eq!(token.position(), at as u64);
            drop(original);
            let mut restored = fake.bucket(CHUNK).restore_upload(&token).await.unwrap();
            restored.write(body.slice(at..)).await.unwrap();
            let result = restored.finish().await.unwrap();
            assert_eq!(result.crc32c, crc32c(&body), "at {at}");
            assert_eq!(fake.object(&path()).await.unwrap(), body, "at {at}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn change_waits_for_chunks_in_flight_also_after_a_failure() {
    let fake = Fake::new(PARALLEL);
    let mut upload = upload(&fake, 16, 3, None).await;
    let body = bywash_support::pattern(4, 100);
    upload.write(body.slice(..40)).await.unwrap();
    upload.set_chunk(32).unwrap();
    fake.state.lock().sends.extend([SessionFault::Refuse; 3]);
    let mut refused = 0;
    let mut write = upload.write(body.slice(40..)).await;
    while write.is_err() {
        refused += 1;
        write = upload.write(Bytes::new()).await;
    }
    while upload.finish().await.is_err() {
        refused += 1;
    }
    assert!((1..=3).contains(&refused), "{refused}");
    assert_eq!(fake.object(&path()).await.unwrap(), body);
}

#[tokio::test(start_paused = true)]
async fn journaled_upload_in_parts_keeps_its_chunks() {
    let fake = Fake::new(PARALLEL);
    let options = UploadOptions {
        chunk: Some(16),
        journal: Some(JournalOptions {
            url: "fake://changing".to_owned(),
            endpoint: None,
            source: None,
        }),
        ..UploadOptions::default()
    };
    let mut upload = fake.bucket(CHUNK).upload(&path(), options).await.unwrap();
    let error = upload.set_chunk(32).unwrap_err();
    assert!(error.to_string().contains("without a journal"), "{error}");
}
