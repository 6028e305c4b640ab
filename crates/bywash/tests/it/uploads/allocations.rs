//! Allocations of a warm upload: almost none, with any sizes of the writes.

use bytes::Bytes;
use bywash::UploadOptions;
use object_store::path::Path;

use super::fake::{Fake, IN_ORDER};

const CHUNK: usize = 1 << 20;
const CHUNKS: usize = 24;

/// Allocations per chunk: the future of the request, and a handle per frame of the buffer.
const MAX_PER_CHUNK: u64 = 4;

#[test]
fn warm_upload_allocates_a_handful_per_chunk() {
    let runtime = bywash_sim::paused_runtime();
    let body = bywash_support::pattern(1, 64 << 10);
    for piece in [1_000, 64 << 10, 3 * CHUNK + 5] {
        let piece = Bytes::from(body.repeat(piece.div_ceil(body.len()))).slice(..piece);
        let mut fake = Fake::new(IN_ORDER);
        fake.discard = true;
        let (mut upload, bucket) = runtime.block_on(async {
            let bucket = fake.bucket(CHUNK);
            let path = Path::from("warm");
            let mut upload = bucket
                .upload(&path, UploadOptions::default())
                .await
                .unwrap();
            while upload.position() < 4 * CHUNK as u64 {
                upload.write(piece.clone()).await.unwrap();
            }
            (upload, bucket)
        });
        let before = upload.position();
        let counted = allocation_counter::measure(|| {
            runtime.block_on(async {
                while upload.position() < before + (CHUNKS * CHUNK) as u64 {
                    upload.write(piece.clone()).await.unwrap();
                }
            });
        });
        let sent = upload.position() - before;
        assert!(
            counted.bytes_total * 100 <= sent,
            "{} bytes allocated for {sent}, in pieces of {}",
            counted.bytes_total,
            piece.len()
        );
        let chunks = sent / CHUNK as u64;
        assert!(
            counted.count_total <= MAX_PER_CHUNK * (chunks + 1),
            "{} allocations for {chunks} chunks, in pieces of {}",
            counted.count_total,
            piece.len()
        );
        drop(bucket);
    }
}
