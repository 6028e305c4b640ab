//! Consumers that stop or read slowly, next to one that reads at full speed.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use bywash::{Bucket, Consistency, PieceByPiece};
use futures::StreamExt;
use futures::future::join_all;
use object_store::path::Path;
use object_store::{GetOptions, ObjectStore as _, ObjectStoreExt as _};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::simulation::world::{World, steady};

const HOUR: Consistency = Consistency::Revalidate(Duration::from_secs(3600));
const MIB: u64 = 1 << 20;
/// Bytes that a connection buffers before it stops polling a body.
const UNSENT: usize = 64 << 10;

/// Blocks of 1 MiB; six may be on loan.
fn world() -> World {
    let world = World::with(HOUR, |builder| {
        builder.memory(16 * MIB).block_size(MIB as usize)
    });
    world.origin.set_fault_profile(bywash_sim::FaultProfile {
        piece: 256 << 10..256 << 10,
        ..steady()
    });
    world
}

/// Reads like a connection: keeps bytes that its client has not taken, and polls the body while they are few. The
/// client starts when `open` is set, and takes `pause` for each piece.
async fn connection(
    bucket: Bucket,
    path: Path,
    mut open: watch::Receiver<bool>,
    pause: Duration,
) -> Vec<u8> {
    let mut options = GetOptions::default();
    options.extensions.insert(PieceByPiece);
    let mut body = bucket.get_opts(&path, options).await.unwrap().into_stream();
    let (mut unsent, mut read) = (VecDeque::<Bytes>::new(), Vec::new());
    let mut ended = false;
    while !ended || !unsent.is_empty() {
        let room = unsent.iter().map(Bytes::len).sum::<usize>() < UNSENT;
        tokio::select! {
            biased;
            piece = body.next(), if room && !ended => match piece {
                Some(piece) => {
                    let piece = piece.unwrap();
                    read.extend_from_slice(&piece);
                    unsent.push_back(piece);
                }
                None => ended = true,
            },
            () = async {
                open.wait_for(|open| *open).await.unwrap();
                if !pause.is_zero() {
                    sleep(pause).await;
                }
            }, if !unsent.is_empty() => drop(unsent.pop_front()),
        }
    }
    read
}

/// Starts `count` such readers of distinct objects; returns them with those objects.
fn readers(
    world: &World,
    count: u32,
    length: u64,
    pause: Duration,
    open: &watch::Sender<bool>,
) -> (Vec<JoinHandle<Vec<u8>>>, Vec<Bytes>) {
    (0..count)
        .map(|n| {
            let path = Path::from(format!("slow/{n}"));
            let version = world.origin.write(&path, length as usize);
            let (bucket, open) = (world.bucket.clone(), open.subscribe());
            let reader = tokio::spawn(connection(bucket, path, open, pause));
            (reader, version.body.clone())
        })
        .unzip()
}

async fn assert_right(readers: Vec<JoinHandle<Vec<u8>>>, bodies: &[Bytes]) {
    for (read, body) in join_all(readers).await.into_iter().zip(bodies) {
        assert!(read.unwrap() == *body, "other bytes than the object's");
    }
}

#[tokio::test(start_paused = true)]
async fn stopped_readers_leave_memory_for_the_next() {
    let world = world();
    let (open, _) = watch::channel(false);
    let length = 3 * MIB + 5;
    let (readers, bodies) = readers(&world, 100, length, Duration::ZERO, &open);
    let version = world.origin.write(&world.path, 100_000);
    // Three quarters of the memory are for downloads: at most twelve whole blocks.
    sleep(Duration::from_secs(30)).await;
    assert_eq!(world.engine.stats().budget.waiting, 0);
    let next = async { world.bucket.get(&world.path).await.unwrap().bytes().await };
    let next = timeout(Duration::from_secs(2), next).await;
    assert_eq!(next.expect("in time").unwrap(), version.body);
    open.send(true).unwrap();
    assert_right(readers, &bodies).await;
    // Each byte with its block, and once more at most.
    let sent = world.origin.data_bytes(None);
    assert!(sent <= 2 * (100 * length + 100_000), "{sent} bytes");
    world.assert_idle().await;
}

#[tokio::test(start_paused = true)]
async fn slow_readers_fetch_each_byte_at_most_twice() {
    let world = world();
    let (open, _) = watch::channel(true);
    let length = 2 * MIB + 5;
    let pause = Duration::from_millis(40);
    let (readers, bodies) = readers(&world, 50, length, pause, &open);
    assert_right(readers, &bodies).await;
    let sent = world.origin.data_bytes(None);
    assert!(sent <= 2 * 50 * length, "{sent} bytes");
    world.assert_idle().await;
}

/// Fast readers lose no block to each other, though most get copies.
#[tokio::test(start_paused = true)]
async fn fast_readers_beyond_the_loans_fetch_each_byte_once() {
    let world = world();
    let (open, _) = watch::channel(true);
    let length = 2 * MIB + 5;
    let (readers, bodies) = readers(&world, 50, length, Duration::ZERO, &open);
    assert_right(readers, &bodies).await;
    let sent = world.origin.data_bytes(None);
    assert_eq!(sent, 50 * length, "each byte once");
    world.assert_idle().await;
}
