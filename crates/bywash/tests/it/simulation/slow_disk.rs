//! Disks that hang or are slower than the origin: clients hardly notice. In real time, which threads of the tier spend.

use std::time::{Duration, Instant};

use bywash::testing::{DiskFault, FakeDisk};
use bywash::{Consistency, DiskOptions};
use bywash_sim::{FaultProfile, SimOrigin};
use object_store::GetRange;

use crate::simulation::world::{BLOCK, World};

const HOUR: Consistency = Consistency::Revalidate(Duration::from_secs(3600));
/// Blocks that are read, one a request.
const BLOCKS: usize = 120;
/// Max time that a disk may add to a request.
const PROMISE: Duration = Duration::from_millis(100);
/// Pauses of the machine: less than such a disk takes.
const SLACK: Duration = Duration::from_millis(400);
/// Time of a read of the slow disk: less than of a disk that hangs.
const SLOW: Duration = Duration::from_millis(900);

fn open(origin: &SimOrigin, home: &tempfile::TempDir, disk: Option<&FakeDisk>) -> World {
    World::over(origin.clone(), HOUR, |builder| match disk {
        None => builder,
        Some(disk) => builder.fake_disk(disk.clone()).disk(DiskOptions {
            path: home.path().to_owned(),
            size: 64 << 20,
            daily_writes: None,
            min_block_size: None,
        }),
    })
}

/// Reads each block by a request of its own; returns the 99th percentile of their times.
async fn p99(world: &World) -> Duration {
    let mut times = Vec::new();
    // Not in order, so that nothing is read ahead.
    for block in (0..BLOCKS).map(|n| n * 7 % BLOCKS) {
        let start = (block * BLOCK) as u64;
        let range = GetRange::Bounded(start..start + BLOCK as u64);
        let begun = Instant::now();
        world.read_range(Some(range)).await;
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    times[times.len() * 99 / 100]
}

#[tokio::test]
async fn requests_take_at_most_a_tenth_of_a_second_longer_than_without_the_disk() {
    let home = tempfile::tempdir().unwrap();
    let origin = SimOrigin::new(7, FaultProfile::none());
    let disk = FakeDisk::new(8 << 20);
    let world = open(&origin, &home, Some(&disk));
    origin.write(&world.path, BLOCKS * BLOCK);
    p99(&world).await;
    assert!(world.engine.close_disk(Duration::from_secs(60)).await);
    drop(world);

    let allowed = p99(&open(&origin, &home, None)).await + PROMISE + SLACK;
    for fault in [DiskFault::SlowReads(SLOW), DiskFault::StallReads] {
        let disk = disk.killed();
        let world = open(&origin, &home, Some(&disk));
        let stats = world.engine.stats().disk.unwrap();
        assert_eq!(stats.blocks, BLOCKS as u64);
        disk.fail(fault);
        let p99 = p99(&world).await;
        assert!(p99 <= allowed, "{fault:?}: {p99:?} of {allowed:?}");
        let stats = world.engine.stats().disk.unwrap();
        assert!(stats.slow_reads > 0, "{fault:?}: {stats:?}");
        // The threads of the engine end.
        disk.heal();
    }
}
