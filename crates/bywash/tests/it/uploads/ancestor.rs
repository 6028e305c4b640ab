//! The example in the documentation of Google's Java writer (`DefaultBufferedWritableByteChannel`): 61 bytes in writes of 16,
//! through a buffer of three units.
//!
//! ```text
//!           0                                                           61
//! object   |-------------------------------------------------------------|
//! writes   |---------------|---------------|---------------|-------------|
//! chunks   |--|--|--|--|--|--|--|--|--|--|--|--|--|--|--|--|--|--|--|--|-|
//! copied    ...............#..............##............................#
//! ```
//!
//! Only bytes that must wait for a later write are copied (`#`): one of the first write, two of the second, none of the third,
//! one of the last. All others are sent from the caller's own memory; a chunk that began with copied bytes is sent as two
//! pieces. Both writers make the same 21 requests. Ours sends the last full chunk with the next write, because a chunk that
//! ends the object is sent with its completion.

use bytes::Bytes;
use bywash::UploadOptions;
use object_store::path::Path;

use super::fake::{Fake, IN_ORDER, crc32c};

const LENGTH: usize = 61;
const WRITE: usize = 16;
/// Units of a chunk; a unit of the fake store is one byte.
const UNITS: usize = 3;

#[tokio::test(start_paused = true)]
async fn ancestors_example_copies_only_what_waits() {
    let fake = Fake::new(IN_ORDER);
    let bucket = fake.bucket(4 << 10);
    let path = Path::from("example");
    let options = UploadOptions {
        chunk: Some(UNITS as u64),
        ..UploadOptions::default()
    };
    let mut upload = bucket.upload(&path, options).await.unwrap();
    let body = bywash_support::pattern(61, LENGTH);
    // Chunks that the store has after each write.
    let mut chunks = Vec::new();
    for at in (0..LENGTH).step_by(WRITE) {
        let write = body.slice(at..LENGTH.min(at + WRITE));
        upload.write(write).await.unwrap();
        chunks.push(fake.state.lock().log.len());
    }
    assert_eq!(chunks, [5, 10, 15, 20]);
    let own = body.as_ptr() as usize..body.as_ptr() as usize + LENGTH;
    let sent = fake.state.lock().log.clone();
    let mut copied = Vec::new();
    for (number, request) in sent.iter().enumerate() {
        assert_eq!(request.offset, (number * UNITS) as u64);
        let length: usize = request.pieces.iter().map(|(_, length)| length).sum();
        assert_eq!(length, UNITS, "each full chunk is a request");
        for (at, (address, length)) in request.pieces.iter().enumerate() {
            if own.contains(address) {
                continue;
            }
            assert_eq!(at, 0, "copied bytes come first");
            copied.push((number, *length));
        }
    }
    // The chunks over the boundaries at 16 and 32.
    assert_eq!(copied, [(5, 1), (10, 2)]);
    let result = upload.finish().await.unwrap();
    assert_eq!((result.length, result.buffers), (LENGTH as u64, 1));
    assert_eq!((result.sent_bytes, result.resent_bytes), (LENGTH as u64, 0));
    assert_eq!(result.crc32c, crc32c(&body));
    assert_eq!(fake.object(&path).await.unwrap(), body);
}

/// As the ancestor's own property test: any object, unit count and write give the exact bytes, and the same requests.
#[tokio::test(start_paused = true)]
async fn requests_do_not_depend_on_the_writes() {
    for length in [1, 60, 61, 97] {
        for units in [1, 3, 16, 50] {
            let mut requests: Option<Vec<(u64, usize)>> = None;
            for write in [1, 2, 16, 48, 100] {
                let fake = Fake::new(IN_ORDER);
                let options = UploadOptions {
                    chunk: Some(units),
                    ..UploadOptions::default()
                };
                let path = Path::from("example");
                let bucket = fake.bucket(4 << 10);
                let mut upload = bucket.upload(&path, options).await.unwrap();
                let body = bywash_support::pattern(units, length);
                for piece in body.chunks(write) {
                    upload.write(Bytes::copy_from_slice(piece)).await.unwrap();
                }
                upload.finish().await.unwrap();
                assert_eq!(fake.object(&path).await.unwrap(), body);
                let log = fake.state.lock().log.clone();
                let sent = log.iter().map(|sent| {
                    let length = sent.pieces.iter().map(|(_, length)| length).sum();
                    (sent.offset, length)
                });
                let sent: Vec<_> = sent.collect();
                let first = requests.get_or_insert_with(|| sent.clone());
                assert_eq!(
                    *first, sent,
                    "{length} bytes by {units} in writes of {write}"
                );
            }
        }
    }
}
