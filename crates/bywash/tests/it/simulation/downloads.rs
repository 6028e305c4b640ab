//! Downloads: the bytes of one version, all or none, each fetched once.

use std::sync::Arc;
use std::time::Duration;

use bywash::{Consistency, DownloadOptions, EngineError, OriginError, RetryPolicy, Segments};
use bywash_sim::{Fault, FaultKind, FaultProfile, Validators};
use futures::future::join_all;
use object_store::{Error, GetRange, ObjectStoreExt as _};
use tokio::io::AsyncReadExt as _;
use tokio::time::sleep;

use crate::simulation::world::{BLOCK, World, steady};

const HOUR: Consistency = Consistency::Revalidate(Duration::from_secs(3600));
/// Bytes of one ranged GET: not a multiple of any frame.
const SHARD: u64 = 3 * BLOCK as u64 + 5;
const SIZE: usize = 20 * BLOCK + 77;

#[tokio::test(start_paused = true)]
async fn download_takes_what_is_in_memory_from_there() {
    let world = world();
    world.origin.write(&world.path, SIZE);
    let body = world.read().await;
    let sent = world.origin.data_requests(None);
    assert_eq!(
        download(&world, None).await.unwrap().into_contiguous(),
        body
    );
    let part = download(&world, Some(GetRange::Bounded(5..2 * BLOCK as u64))).await;
    assert_eq!(part.unwrap().into_contiguous(), body[5..2 * BLOCK]);
    assert_eq!(world.origin.data_requests(None), sent, "all of it is there");

    // A new version, with only its end there.
    world.origin.write(&world.path, SIZE);
    let _ = world.bucket.drop_cached("");
    let start = 15 * BLOCK;
    let range = start as u64..SIZE as u64;
    let end = world.bucket.get_range(&world.path, range).await.unwrap();
    let sent = world.origin.data_requests(None);
    let bytes = download(&world, None).await.unwrap().into_contiguous();
    assert_eq!(bytes[start..], end);
    let parts = (SIZE as u64).div_ceil(SHARD);
    let requested = world.origin.data_requests(None) - sent;
    assert!(
        requested < parts,
        "{requested} of {parts} parts were requested"
    );
    world.assert_idle().await;
}

fn world() -> World {
    World::with(HOUR, |builder| {
        builder.retry(RetryPolicy {
            deadline: Duration::from_secs(5),
            ..RetryPolicy::default()
        })
    })
}

fn options(range: Option<GetRange>) -> DownloadOptions {
    DownloadOptions {
        range,
        part_size: SHARD,
        ..DownloadOptions::default()
    }
}

async fn download(world: &World, range: Option<GetRange>) -> Result<Segments, Error> {
    let begun = world.bucket.download(&world.path, options(range)).await;
    begun?.finish().await
}

async fn failure(world: &World) -> Error {
    let error = download(world, None).await.unwrap_err();
    world.assert_idle().await;
    assert_eq!(world.engine.stats().pool.resident_blocks, 0);
    error
}

/// A read through the cache that fails.
async fn read_failure(world: &World) -> Error {
    let error = match world.bucket.get(&world.path).await {
        Ok(result) => result.bytes().await.unwrap_err(),
        Err(error) => error,
    };
    world.assert_idle().await;
    error
}

fn is_bad_answer(error: &Error) -> bool {
    match OriginError::find(error) {
        Some(OriginError::BadResponse { .. }) => true,
        Some(OriginError::OriginUnavailable { source, .. }) => {
            source.downcast_ref::<Error>().is_some_and(|error| {
                matches!(
                    OriginError::find(error),
                    Some(OriginError::BadResponse { .. })
                )
            })
        }
        _ => false,
    }
}

fn has_changed(error: &Error) -> bool {
    matches!(
        EngineError::find(error),
        Some(EngineError::VersionChanged { .. })
    )
}

#[tokio::test(start_paused = true)]
async fn download_sends_parallel_requests_and_fetches_each_byte_once() {
    let world = world();
    let version = world.origin.write(&world.path, SIZE);
    let download = world.bucket.download(&world.path, options(None)).await;
    let download = download.unwrap();
    assert_eq!(download.meta().size, SIZE as u64);
    assert_eq!(*download.range(), 0..SIZE as u64);
    let segments = download.finish().await.unwrap();
    assert!(segments.iter().len() > 1, "it is in several frames");
    assert_eq!(segments.into_contiguous(), version.body);
    let log = world.origin.log();
    assert_eq!(log.len() as u64, (SIZE as u64).div_ceil(SHARD), "{log:?}");
    assert!(log[1..].iter().all(|request| request.pinned), "{log:?}");
    assert_eq!(
        log[1..4].iter().map(|request| request.at).min(),
        log[1..4].iter().map(|request| request.at).max(),
        "they are under way together"
    );
    assert_eq!(world.origin.data_bytes(None), SIZE as u64);
    let stats = world.stats();
    assert_eq!(stats.origin_requests, log.len() as u64);
    assert_eq!(stats.origin_bytes, SIZE as u64);
    assert_eq!(stats.bytes, SIZE as u64);
    world.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn downloaded_ranges_equal_the_requested_ones() {
    let size = SIZE as u64;
    for (range, right) in [
        (Some(GetRange::Bounded(5..size - 3)), 5..SIZE - 3),
        (
            Some(GetRange::Bounded(SHARD..2 * size)),
            SHARD as usize..SIZE,
        ),
        (Some(GetRange::Offset(size - 1)), SIZE - 1..SIZE),
        (
            Some(GetRange::Suffix(SHARD + 9)),
            SIZE - SHARD as usize - 9..SIZE,
        ),
        (Some(GetRange::Bounded(7..8)), 7..8),
    ] {
        let world = world();
        let version = world.origin.write(&world.path, SIZE);
        let segments = download(&world, range.clone()).await.unwrap();
        assert_eq!(
            segments.into_contiguous(),
            version.body.slice(right.clone()),
            "{range:?}"
        );
        assert_eq!(
            world.origin.data_bytes(None),
            right.len() as u64,
            "{range:?}"
        );
    }
    let world = world();
    world.origin.write(&world.path, SIZE);
    let beyond = download(&world, Some(GetRange::Offset(size)))
        .await
        .unwrap_err();
    assert!(
        matches!(
            EngineError::find(&beyond),
            Some(EngineError::RangeNotSatisfiable { length, .. }) if *length == size
        ),
        "{beyond:?}"
    );
    world.origin.write(&world.path, 0);
    assert!(download(&world, None).await.unwrap().is_empty());
    world.origin.remove(&world.path);
    let absent = download(&world, None).await.unwrap_err();
    assert!(matches!(absent, Error::NotFound { .. }), "{absent:?}");
    world.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn one_fault_of_each_kind_refetches_no_byte() {
    let faults = [
        Fault::Unavailable,
        Fault::StallResponse,
        Fault::Reset { after: 0 },
        Fault::Reset { after: 5_000 },
        Fault::Short { after: 5_000 },
        Fault::Stall { after: 5_000 },
        Fault::WrongRange,
    ];
    for fault in faults {
        // Of the first response, which determines the version, and of a later one.
        for before in [0, 2] {
            let world = World::new(HOUR);
            let version = world.origin.write(&world.path, SIZE);
            let mut script = vec![vec![]; before];
            script.push(vec![fault]);
            world.origin.script(&world.path, script);
            println!("{fault:?} after {before}");
            let segments = download(&world, None).await.unwrap();
            assert_eq!(segments.into_contiguous(), version.body);
            // A response of another range is dropped; its first piece may have been sent.
            let spared = if matches!(fault, Fault::WrongRange) {
                4096
            } else {
                0
            };
            let sent = world.origin.data_bytes(None);
            assert!(sent <= SIZE as u64 + spared, "{fault:?}: {sent} of {SIZE}");
            world.assert_idle().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn object_shorter_than_announced_is_an_error_never_a_gap() {
    for by in [1, SHARD, 5 * SHARD] {
        let world = world();
        world.origin.write(&world.path, SIZE);
        world
            .origin
            .report_wrong_size(&world.path, SIZE as u64 + by);
        let error = failure(&world).await;
        assert!(
            is_bad_answer(&error) || has_changed(&error),
            "{by}: {error}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn object_longer_than_announced_is_an_error() {
    // A body that continues past its range, and a whole body past its announced size.
    let world = world();
    world.origin.write(&world.path, SIZE);
    world
        .origin
        .script(&world.path, [vec![], vec![Fault::Long { by: 1 }]]);
    let error = failure(&world).await;
    assert!(is_bad_answer(&error), "{error}");
    let world = self::world();
    world.origin.set_validators(Validators::None);
    world.origin.write(&world.path, 2 * BLOCK);
    world
        .origin
        .script(&world.path, [vec![Fault::Long { by: 9_000 }]]);
    let error = failure(&world).await;
    assert!(is_bad_answer(&error), "{error}");
}

#[tokio::test(start_paused = true)]
async fn bodies_that_always_end_early_are_an_error_never_a_gap() {
    let world = world();
    world.origin.write(&world.path, SIZE);
    world.origin.script(
        &world.path,
        [vec![], vec![]]
            .into_iter()
            .chain(vec![vec![Fault::Short { after: 0 }]; 1_000]),
    );
    let error = failure(&world).await;
    assert!(is_bad_answer(&error), "{error}");
    let error = read_failure(&world).await;
    assert!(is_bad_answer(&error), "{error}");
}

#[tokio::test(start_paused = true)]
async fn wrong_size_leaves_no_gap_in_cached_blocks() {
    let world = world();
    let version = world.origin.write(&world.path, SIZE);
    world
        .origin
        .report_wrong_size(&world.path, SIZE as u64 + 3 * BLOCK as u64);
    let error = read_failure(&world).await;
    assert!(is_bad_answer(&error) || has_changed(&error), "{error}");
    // Only whole blocks of real bytes are cached.
    let whole = SIZE / BLOCK * BLOCK;
    let bytes = world.bucket.get_range(&world.path, 0..whole as u64).await;
    assert_eq!(bytes.unwrap(), version.body.slice(..whole));
    assert!(
        world.engine.stats().pool.resident_bytes <= whole as u64,
        "{:?}",
        world.engine.stats()
    );
}

#[tokio::test(start_paused = true)]
async fn object_that_changes_during_a_download_is_version_changed() {
    for validators in [
        Validators::Strong,
        Validators::Weak,
        Validators::LastModified,
    ] {
        let world = world();
        world.origin.set_validators(validators);
        world.origin.write(&world.path, SIZE);
        let fault = Fault::ChangeDuring { after: 2 * 4096 };
        world.origin.script(&world.path, [vec![fault]]);
        let error = failure(&world).await;
        assert!(has_changed(&error), "{validators:?}: {error}");
        let now = world.oracle.current(&world.path).unwrap();
        let again = download(&world, None).await.unwrap();
        assert_eq!(
            again.into_contiguous(),
            now.body,
            "the next one is of the new version"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn unreachable_origin_is_origin_unavailable() {
    let world = world();
    world.origin.write(&world.path, SIZE);
    let begun = world.bucket.download(&world.path, options(None)).await;
    let download = begun.unwrap();
    world.origin.set_fault_profile(FaultProfile {
        faults: vec![(FaultKind::Unavailable, 1.0)],
        ..steady()
    });
    let mut reader = download.reader();
    let error = download.finish().await.unwrap_err();
    assert!(
        matches!(
            OriginError::find(&error),
            Some(OriginError::OriginUnavailable { .. })
        ),
        "{error}"
    );
    let error = reader.read_to_end(&mut Vec::new()).await.unwrap_err();
    assert!(error.to_string().contains("failed"), "{error}");
    drop(reader);
    world.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn prefix_is_readable_while_the_rest_is_in_flight() {
    let world = world();
    let version = world.origin.write(&world.path, SIZE);
    let begun = world.bucket.download(&world.path, options(None)).await;
    let download = begun.unwrap();
    let mut reader = download.reader();
    let mut first = vec![0; 4096];
    reader.read_exact(&mut first).await.unwrap();
    assert_eq!(first, version.body[..4096]);
    assert!(world.origin.data_bytes(None) < SIZE as u64 / 4);
    assert!(download.contiguous() >= 4096);
    // Only this reader waits for the end.
    let mut rest = Vec::new();
    reader.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, version.body[4096..]);
    let segments = download.finish().await.unwrap();
    assert_eq!(segments.into_contiguous(), version.body);
}

#[tokio::test(start_paused = true)]
async fn dropped_download_stops_and_frees_its_memory() {
    let world = world();
    world.origin.write(&world.path, SIZE);
    let begun = world.bucket.download(&world.path, options(None)).await;
    let download = begun.unwrap();
    sleep(Duration::from_millis(15)).await;
    assert!(download.contiguous() > 0);
    drop(download);
    sleep(Duration::from_millis(1)).await;
    let sent = world.origin.data_bytes(None);
    world.assert_idle().await;
    assert_eq!(world.origin.data_bytes(None), sent, "nothing more is sent");
    assert!(sent < SIZE as u64 / 2, "{sent}");
}

#[tokio::test(start_paused = true)]
async fn download_without_a_validator_is_one_request() {
    let world = world();
    world.origin.set_validators(Validators::None);
    let version = world.origin.write(&world.path, SIZE);
    let segments = download(&world, None).await.unwrap();
    assert_eq!(segments.into_contiguous(), version.body);
    let log = world.origin.log();
    assert_eq!(log.len(), 2, "the one that tells so, and that one: {log:?}");
    world
        .origin
        .script(&world.path, [vec![], vec![Fault::Reset { after: 9_000 }]]);
    let error = failure(&world).await;
    assert!(
        EngineError::find(&error).is_none(),
        "what comes next may be another version: {error}"
    );
}

/// It changes between the HEAD, which states its length, and the GET: without a validator only a range past its end shows that.
#[tokio::test(start_paused = true)]
async fn object_without_a_validator_that_becomes_shorter_is_downloaded_anew() {
    let world = world();
    world.origin.set_validators(Validators::None);
    world.origin.write(&world.path, SIZE);
    let shorten = async {
        sleep(Duration::from_millis(15)).await;
        world.origin.write(&world.path, 1)
    };
    let end = download(&world, Some(GetRange::Suffix(SHARD)));
    let (shorter, segments) = tokio::join!(shorten, end);
    assert_eq!(segments.unwrap().into_contiguous(), shorter.body);
    world.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn downloads_wait_for_memory_when_they_do_not_fit_together() {
    // 48 blocks for downloads; each uses 22.
    let world = Arc::new(World::with(HOUR, |builder| {
        builder.memory(64 * BLOCK as u64)
    }));
    let version = world.origin.write(&world.path, SIZE);
    world.read().await;
    let downloads = (0..6).map(|_| {
        let world = Arc::clone(&world);
        tokio::spawn(async move {
            // A range, as whole versions are shared.
            let range = GetRange::Bounded(0..SIZE as u64);
            let segments = download(&world, Some(range)).await.unwrap();
            let budget = world.engine.stats().budget;
            assert!(budget.used <= budget.limit, "{budget:?}");
            segments.into_contiguous()
        })
    });
    for bytes in join_all(downloads).await {
        assert_eq!(bytes.unwrap(), version.body);
    }
    world.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn download_larger_than_memory_fails_at_once() {
    let world = World::with(HOUR, |builder| builder.memory(64 * BLOCK as u64));
    world.origin.write(&world.path, 60 * BLOCK);
    let begun = tokio::time::Instant::now();
    let error = download(&world, None).await.unwrap_err();
    assert!(
        matches!(
            EngineError::find(&error),
            Some(EngineError::ExceedsMemory { length, .. }) if *length == 60 * BLOCK as u64
        ),
        "{error}"
    );
    assert!(begun.elapsed() < Duration::from_secs(1));
    world.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn download_that_waits_too_long_for_memory_gets_slow_down() {
    let world = World::with(HOUR, |builder| {
        builder
            .memory(64 * BLOCK as u64)
            .admission_deadline(Duration::from_secs(3))
    });
    let version = world.origin.write(&world.path, 30 * BLOCK);
    let held = download(&world, None).await.unwrap();
    let error = download(&world, None).await.unwrap_err();
    assert!(
        matches!(
            EngineError::find(&error),
            Some(EngineError::SlowDown { waited_s: 3, .. })
        ),
        "{error}"
    );
    drop(held);
    let again = download(&world, None).await.unwrap();
    assert_eq!(again.into_contiguous(), version.body);
    assert_eq!(
        world
            .bucket
            .get(&world.path)
            .await
            .unwrap()
            .bytes()
            .await
            .unwrap(),
        version.body
    );
}
