//! Whole reads compared with the object's digest, at an origin that flips bits.

use std::time::Duration;

use bytes::Bytes;
use bywash::{
    Consistency, ContentDigest, DownloadOptions, EngineError, FileDownloadOptions, PieceByPiece,
    Verify,
};
use bywash_sim::{Consume, Fault, FaultKind, FaultProfile, Observation, Outcome, Validators};
use futures::future::join_all;
use object_store::path::Path;
use object_store::{Error, GetOptions, GetRange};
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
    // Any fault has ended with it.
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

/// Reads the whole object.
async fn see(world: &World) -> Observation {
    world.see(GetOptions::default(), Consume::All).await
}

/// Checks that a read failed because of its digest, before its last byte.
fn assert_mismatch(world: &World, seen: Observation) {
    let seen = world.right(seen);
    let Outcome::Failed(error) = &seen.outcome else {
        panic!("{:?}", seen.outcome);
    };
    assert!(is_mismatch(error), "{error}");
    assert!(seen.body.len() < body(world).len());
}

#[tokio::test(start_paused = true)]
async fn whole_read_with_a_flipped_bit_ends_before_its_last_bytes_and_leaves_no_block() {
    for digest in [crc32c, crc64, md5, sha256] {
        let world = world(digest);
        world.origin.script(&world.path, [flip(5 * BLOCK as u64)]);
        let seen = see(&world).await;
        assert!(seen.body.len() >= 11 * BLOCK, "it was held back");
        assert_mismatch(&world, seen);
        assert_eq!(world.stats().digest_mismatches, 1);
        world.assert_idle().await;
        assert_eq!(world.engine.stats().pool.resident_blocks, 0);
        assert_eq!(world.read().await, body(&world));
        // Warm.
        assert_eq!(world.read().await, body(&world));
        assert_eq!(world.stats().digest_mismatches, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn whole_read_of_one_block_with_a_flipped_bit_starts_over_once() {
    let world = world(crc32c);
    world.origin.write(&world.path, 100);
    world.origin.script(&world.path, [flip(7)]);
    assert_eq!(world.read().await, body(&world));
    assert_eq!(world.origin.data_requests(None), 2);
    world.origin.write(&world.path, 101);
    let _ = world.bucket.drop_cached("");
    world.origin.script(&world.path, [flip(7), flip(9)]);
    let seen = see(&world).await;
    assert_eq!(seen.range, None, "no response has begun");
    assert_mismatch(&world, seen);
    assert_eq!(world.stats().digest_mismatches, 3);
    assert_eq!(world.read().await, body(&world));
}

#[tokio::test(start_paused = true)]
async fn block_cached_by_a_ranged_read_is_compared_by_the_next_whole_read() {
    let world = world(crc32c);
    world.origin.script(&world.path, [flip(3)]);
    let range = GetOptions {
        range: Some(GetRange::Bounded(0..10)),
        ..GetOptions::default()
    };
    // The control: nothing shows in a range that a bit of it is flipped.
    let seen = world.see(range, Consume::All).await;
    assert!(matches!(seen.outcome, Outcome::Complete));
    world.judge(&seen).unwrap_err();
    assert_mismatch(&world, see(&world).await);
    assert_eq!(world.read().await, body(&world));
}

/// Reads ten bytes in the middle of the object.
async fn see_range(world: &World) -> Observation {
    let start = 6 * BLOCK as u64;
    let range = GetOptions {
        range: Some(GetRange::Bounded(start..start + 10)),
        ..GetOptions::default()
    };
    world.see(range, Consume::All).await
}

fn always() -> World {
    let world = World::with(HOUR, |builder| builder.verify(Verify::Always));
    world.origin.state_digest(crc32c);
    world.origin.write(&world.path, SIZE);
    world
}

#[tokio::test(start_paused = true)]
async fn ranged_read_with_verify_always_compares_the_whole_object_first_and_once() {
    let world = always();
    // Elsewhere than in the range.
    world.origin.script(&world.path, [flip(3)]);
    let all = join_all((0..5).map(|_| see_range(&world))).await;
    for seen in all {
        world.right(seen);
    }
    assert_eq!(world.stats().digest_mismatches, 1);
    let sent = world.origin.data_requests(None);
    world.right(see_range(&world).await);
    assert_eq!(world.origin.data_requests(None), sent, "compared before");
    world.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn ranged_read_with_verify_always_of_bytes_with_another_digest_fails_before_it_begins() {
    let world = always();
    world.origin.set_fault_profile(FaultProfile {
        faults: vec![(FaultKind::Flip, 1.0)],
        ..steady()
    });
    let seen = see_range(&world).await;
    assert_eq!(seen.range, None, "no response has begun");
    assert_mismatch(&world, seen);
    world.assert_idle().await;
    assert_eq!(world.engine.stats().pool.resident_blocks, 0);
    world.origin.set_fault_profile(steady());
    world.right(see_range(&world).await);
}

#[tokio::test(start_paused = true)]
async fn file_with_a_flipped_bit_is_fetched_once_more_and_then_an_error() {
    for is_repeated in [false, true] {
        let world = world(crc32c);
        let home = tempfile::tempdir().unwrap();
        let target = home.path().join("file");
        world.origin.script(&world.path, [flip(5 * BLOCK as u64)]);
        if is_repeated {
            world.origin.set_fault_profile(FaultProfile {
                faults: vec![(FaultKind::Flip, 1.0)],
                ..steady()
            });
        }
        let options = FileDownloadOptions::default();
        let fetched = world
            .bucket
            .download_to(&world.path, &target, options)
            .await;
        if !is_repeated {
            fetched.unwrap();
            assert_eq!(std::fs::read(&target).unwrap(), body(&world));
        } else {
            let error = fetched.unwrap_err();
            assert!(is_mismatch(&error), "{error}");
            assert!(!target.exists());
            assert_eq!(world.engine.stats().pool.resident_blocks, 0);
        }
        world.assert_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn block_loaded_again_after_its_version_was_verified_is_compared() {
    let mut world = world(crc32c);
    assert_eq!(world.read().await, body(&world));
    let resident = |world: &World| world.bucket.cached("dir")[0].resident_blocks;
    assert_eq!(resident(&world), 13);
    let object = std::mem::replace(&mut world.path, Path::from("filler"));
    world.origin.write(&world.path, 40 << 20);
    world.read().await;
    world.path = object;
    assert!(resident(&world) < 13);
    world
        .origin
        .script(&world.path, [flip(0), flip(0), flip(0)]);
    assert_mismatch(&world, see(&world).await);
}

#[tokio::test(start_paused = true)]
async fn body_read_piece_by_piece_is_compared() {
    let world = world(crc32c);
    world.origin.script(&world.path, [flip(2 * BLOCK as u64)]);
    let mut options = GetOptions::default();
    options.extensions.insert(PieceByPiece);
    let seen = world.see(options.clone(), Consume::All).await;
    assert_mismatch(&world, seen);
    let seen = world.right(world.see(options, Consume::All).await);
    assert_eq!(seen.body, body(&world));
}

#[tokio::test(start_paused = true)]
async fn object_without_validator_is_compared_and_its_last_piece_withheld() {
    let world = World::new(HOUR);
    world.origin.state_digest(crc32c);
    world.origin.set_validators(Validators::None);
    world.origin.write(&world.path, SIZE);
    world.origin.script(&world.path, [flip(3)]);
    assert_mismatch(&world, see(&world).await);
    assert_eq!(world.read().await, body(&world));
}

/// Whole reads and downloads, several at once, at an origin that flips a bit in every fourth response. Returns how many
/// were right, ended with an error, and were wrong.
async fn read_beside_flips(seed: u64, verify: Verify) -> [u64; 3] {
    let world = World::seeded(seed, HOUR, |builder| builder.verify(verify));
    world.origin.state_digest(crc64);
    world.origin.set_fault_profile(FaultProfile {
        faults: vec![(FaultKind::Flip, 0.25)],
        ..steady()
    });
    let world = &world;
    let mut counts = [0; 3];
    for round in 0..4 {
        if round % 2 == 0 {
            let size = BLOCK as u64 * (seed % 7) + seed * 31 % 5_000 + 1;
            world
                .origin
                .write(&world.path, usize::try_from(size).unwrap());
            let _ = world.bucket.drop_cached("");
        }
        for seen in join_all((0..3).map(|_| see(world))).await {
            let kind = match (world.judge(&seen), &seen.outcome) {
                (Err(_), _) => 2,
                (Ok(_), Outcome::Complete) => 0,
                (Ok(_), _) => 1,
            };
            counts[kind] += 1;
        }
        match download(world, options(None)).await {
            Ok(bytes) => counts[2 * usize::from(bytes != body(world))] += 1,
            Err(error) => {
                assert!(is_mismatch(&error), "{error}");
                counts[1] += 1;
            }
        }
    }
    world.assert_idle().await;
    counts
}

#[test]
fn seeded_flips_are_detected_with_verification_and_returned_without() {
    let play = |verify| {
        let mut total = [0; 3];
        for seed in 0..60 {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_time().start_paused(true).build().unwrap();
            let counts = runtime.block_on(read_beside_flips(seed, verify));
            (0..3).for_each(|kind| total[kind] += counts[kind]);
        }
        total
    };
    let [right, errors, wrong] = play(Verify::Whole);
    assert_eq!(wrong, 0, "of {right} right and {errors} errors");
    assert!(right > 200 && errors > 50, "{right} right, {errors} errors");
    // The control: the judge notices flipped bits.
    let [right, errors, wrong] = play(Verify::Off);
    assert_eq!(errors, 0);
    assert!(wrong > 50, "{right} right, {wrong} wrong");
}
