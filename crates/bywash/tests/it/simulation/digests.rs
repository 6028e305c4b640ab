//! Whole reads compared with the object's digest, at an origin that flips bits.

use std::time::Duration;

use bytes::Bytes;
use bywash::{Consistency, ContentDigest, DownloadOptions, EngineError, Verify};
use bywash_sim::{Fault, FaultKind, FaultProfile};
use object_store::{Error, GetRange};
use tokio::io::AsyncReadExt as _;

use crate::simulation::world::{BLOCK, World, steady};

const HOUR: Consistency = Consistency::Revalidate(Duration::from_secs(3600));
const SIZE: usize = 12 * BLOCK + 77;
/// Bytes of one ranged GET of a download: not a multiple of any frame.
const PART: u64 = 2 * BLOCK as u64 + 5;

fn crc32c(bytes: &[u8]) -> ContentDigest {
    let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes);
    ContentDigest::Crc32c(u32::try_from(crc).unwrap())
}

fn crc64(bytes: &[u8]) -> ContentDigest {
    let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, bytes);
    ContentDigest::Crc64Nvme(crc)
}

fn md5(bytes: &[u8]) -> ContentDigest {
    use md5::Digest as _;
    ContentDigest::Md5(md5::Md5::digest(bytes).into())
}

fn sha256(bytes: &[u8]) -> ContentDigest {
    use sha2::Digest as _;
    ContentDigest::Sha256(sha2::Sha256::digest(bytes).into())
}

/// An origin that states `digest`, and one object.
fn world(digest: fn(&[u8]) -> ContentDigest) -> World {
    let world = World::new(HOUR);
    world.origin.state_digest(digest);
    world.origin.write(&world.path, SIZE);
    world
}

fn body(world: &World) -> Bytes {
    world.oracle.current(&world.path).unwrap().body.clone()
}

fn options(digest: Option<ContentDigest>) -> DownloadOptions {
    DownloadOptions {
        part_size: PART,
        digest,
        ..DownloadOptions::default()
    }
}

async fn download(world: &World, options: DownloadOptions) -> Result<Bytes, Error> {
    let begun = world.bucket.download(&world.path, options).await?;
    Ok(begun.finish().await?.into_contiguous())
}

fn is_mismatch(error: &Error) -> bool {
    let found = EngineError::find(error);
    matches!(found, Some(EngineError::DigestMismatch { .. }))
}

fn flip(at: u64) -> Vec<Fault> {
    vec![Fault::Flip { at }]
}

#[tokio::test(start_paused = true)]
async fn download_with_a_flipped_bit_is_repeated_once_from_the_origin() {
    for digest in [crc32c, crc64, md5, sha256] {
        let world = world(digest);
        // In the third part.
        world
            .origin
            .script(&world.path, [vec![], vec![], flip(100)]);
        let bytes = download(&world, options(None)).await.unwrap();
        assert_eq!(bytes, body(&world));
        assert_eq!(world.stats().digest_mismatches, 1);
        let parts = (SIZE as u64).div_ceil(PART);
        assert_eq!(world.origin.data_requests(None), 2 * parts);
        drop(bytes);
        world.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn download_with_flipped_bits_twice_is_a_digest_mismatch_and_leaves_nothing() {
    let world = world(crc32c);
    world.origin.set_fault_profile(FaultProfile {
        faults: vec![(FaultKind::Flip, 1.0)],
        ..steady()
    });
    let error = download(&world, options(None)).await.unwrap_err();
    assert!(is_mismatch(&error), "{error}");
    assert_eq!(world.stats().digest_mismatches, 2);
    world.assert_idle().await;
    assert_eq!(world.engine.stats().pool.resident_blocks, 0);
    // Whatever was wrong has ended with it.
    world.origin.set_fault_profile(steady());
    let bytes = download(&world, options(None)).await.unwrap();
    assert_eq!(bytes, body(&world));
}

#[tokio::test(start_paused = true)]
async fn reader_of_a_download_never_sees_the_end_of_bytes_with_another_digest() {
    let world = world(crc32c);
    world.origin.script(&world.path, [flip(0)]);
    let begun = world.bucket.download(&world.path, options(None)).await;
    let download = begun.unwrap();
    let mut reader = download.reader();
    let mut read = Vec::new();
    let error = reader.read_to_end(&mut read).await.unwrap_err();
    assert!(error.to_string().contains("CRC32C"), "{error}");
    drop(reader);
    let bytes = download.finish().await.unwrap().into_contiguous();
    assert_eq!(bytes, body(&world), "the second attempt");
}

#[tokio::test(start_paused = true)]
async fn object_replaced_before_the_second_attempt_is_version_changed() {
    let world = world(crc32c);
    let begun = world.bucket.download(&world.path, options(None)).await;
    let parts = (SIZE as u64).div_ceil(PART) as usize;
    let mut faults = vec![vec![]; parts - 2];
    faults.push(flip(0));
    faults.push(vec![Fault::ChangeBefore]);
    world.origin.script(&world.path, faults);
    let error = begun.unwrap().finish().await.unwrap_err();
    let changed = matches!(
        EngineError::find(&error),
        Some(EngineError::VersionChanged { .. })
    );
    assert!(changed, "{error}");
}

#[tokio::test(start_paused = true)]
async fn given_digest_is_compared_though_verification_is_off() {
    let world = World::with(HOUR, |builder| builder.verify(Verify::Off));
    world.origin.state_digest(crc32c);
    world.origin.write(&world.path, SIZE);
    let right = sha256(&body(&world));
    let bytes = download(&world, options(Some(right))).await.unwrap();
    assert_eq!(bytes, body(&world));
    let error = download(&world, options(Some(sha256(b"other"))))
        .await
        .unwrap_err();
    assert!(is_mismatch(&error), "{error}");
    assert!(error.to_string().contains("SHA-256"), "{error}");
    // The control: the stated digest is not compared.
    world.origin.script(&world.path, [flip(7)]);
    let bytes = download(&world, options(None)).await.unwrap();
    assert_ne!(bytes, body(&world));
    let part = DownloadOptions {
        range: Some(GetRange::Bounded(0..1)),
        ..options(Some(right))
    };
    let error = download(&world, part).await.unwrap_err();
    assert!(error.to_string().contains("setting digest"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn empty_object_is_compared_too() {
    let world = world(crc32c);
    world.origin.write(&world.path, 0);
    assert_eq!(download(&world, options(None)).await.unwrap(), "");
    let wrong = options(Some(sha256(b"other")));
    assert!(is_mismatch(&download(&world, wrong).await.unwrap_err()));
}
