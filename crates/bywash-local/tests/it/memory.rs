//! Memory: leases beyond the loans are copies, nothing waits, the ceiling holds.

use std::time::{Duration, Instant};

use bywash_client::{GetOptions, View};

use crate::door::{Door, RawClient, has, pattern, wait_for};

const MIB: usize = 1 << 20;

#[test]
fn leases_beyond_the_loans_are_copies_that_wait_for_nothing() {
    let door = Door::new(64 << 20);
    let bucket = door.bucket();
    let mut views: Vec<View> = Vec::new();
    for object in 0..12 {
        let key = format!("k{object}");
        door.put(&key, pattern(&key, 4 * MIB));
        let begun = Instant::now();
        let bytes = bucket.get(&key).unwrap().bytes;
        assert!(begun.elapsed() < Duration::from_secs(30));
        assert!(has(&bytes, &pattern(&key, 4 * MIB)));
        views.push(bytes);
    }
    let leased = views.iter().filter(|view| view.is_leased()).count();
    // Half of the downloads' memory, three quarters of all, is 24 MiB; a cold read has a loan of one block too.
    assert_eq!(leased, 5);
    let stats = door.stats();
    assert_eq!(stats.leased_bytes, 20 << 20);
    assert_eq!(stats.refused, 7);
    assert!(door.engine.budget().used() <= 64 << 20);
    views.clear();
    wait_for(|| door.stats().leased_bytes == 0);
    assert!(bucket.get("k11").unwrap().bytes.is_leased());
}

#[test]
fn many_clients_with_the_largest_lease_keep_no_other_out() {
    let door = Door::new(64 << 20);
    let bytes = door.warm("a", 20 * MIB);
    door.warm("b", 2 * MIB);
    door.warm("c", 8 * MIB);
    let read = |key: &str| {
        let client = door.client();
        let whole = bywash_client::ByteRange::Whole(());
        let object = client
            .bucket("data")
            .get_with(key, whole, &GetOptions::default());
        (client, object.unwrap().bytes)
    };
    // All hold the same frames, which count once, also where a read has to ask for the version.
    let mut clients: Vec<_> = (0..100).map(|_| read("a")).collect();
    assert!(clients.iter().all(|(_, view)| view.is_leased()));
    assert_eq!(door.stats().leased_bytes, 20 << 20);
    clients.push(read("c"));
    assert!(!clients[100].1.is_leased(), "beyond the loans");
    let begun = Instant::now();
    let other = door.bucket().get("b").unwrap();
    assert!(other.bytes.into_vec() == pattern("b", 2 * MIB));
    assert!(begun.elapsed() < Duration::from_secs(20));
    clients.drain(1..);
    assert!(has(&clients[0].1, &bytes));
    wait_for(|| door.stats().leases == 1);
    assert_eq!(door.stats().leased_bytes, 20 << 20);
    drop(clients);
    door.wait_idle();
}

#[test]
fn connections_are_charged_and_bounded_by_the_memory() {
    let door = Door::new(16 << 20);
    door.warm("a", 100);
    // An eighth of 16 MiB, in connections of 32 KiB.
    let mut clients: Vec<_> = (0..64)
        .map(|_| {
            let mut client = RawClient::connect(&door);
            client.send(&RawClient::hello());
            client.receive().unwrap();
            client
        })
        .collect();
    assert!(door.engine.budget().used() >= 64 * (32 << 10));
    let refused = bywash_client::Client::connect_to(&door.socket).unwrap_err();
    assert_eq!(refused.code(), bywash_client::ErrorCode::Limit, "{refused}");
    assert!(
        refused.to_string().contains("bywash local status"),
        "{refused}"
    );
    assert_eq!(door.stats().rejected, 1);
    clients.pop();
    wait_for(|| bywash_client::Client::connect_to(&door.socket).is_ok());
}

#[test]
fn lowered_limit_and_leases_leave_each_other_alone() {
    let door = Door::new(128 << 20);
    let bytes = door.warm("a", 16 * MIB);
    let bucket = door.bucket();
    let view = bucket.get("a").unwrap().bytes;
    assert!(view.is_leased());
    let lowered = door.engine.set_memory(64 << 20);
    lowered.unwrap();
    assert!(has(&view, &bytes));
    assert!(door.engine.budget().used() <= 64 << 20);
    let below = door.engine.set_memory(16 << 20);
    assert!(below.is_err(), "16 MiB are leased");
    assert!(has(&view, &bytes));
    drop(view);
    wait_for(|| door.stats().leased_bytes == 0);
    door.engine.set_memory(32 << 20).unwrap();
    assert!(bucket.get("a").unwrap().bytes.into_vec() == bytes);
}

#[test]
fn memory_is_returned_when_all_clients_have_gone() {
    let door = Door::new(64 << 20);
    door.warm("a", 8 * MIB);
    let before = door.engine.budget().held(bywash::Share::Upload);
    for _ in 0..20 {
        let bucket = door.bucket();
        let _view = bucket.get("a").unwrap();
        let mut writer = bucket.writer("w", &Default::default()).unwrap();
        writer.write_all(&pattern("w", 300_000)).unwrap();
    }
    door.wait_idle();
    wait_for(|| door.engine.budget().held(bywash::Share::Upload) == before);
    let bucket = door.engine.bucket("data").unwrap();
    let list = door.run(async {
        use futures::TryStreamExt;
        use object_store::ObjectStore;
        bucket.list(None).try_collect::<Vec<_>>().await.unwrap()
    });
    assert_eq!(list.len(), 1, "writes that did not end left no object");
}

#[test]
fn lease_of_too_many_blocks_is_a_copy() {
    let door = Door::with(|builder| builder.memory(512 << 20).block_size(4096));
    let bytes = door.warm("a", 4096 * 16_385);
    let bucket = door.bucket();
    let whole = bucket.get("a").unwrap().bytes;
    assert!(!whole.is_leased());
    assert!(has(&whole, &bytes));
    let most = bucket.get_range("a", 0..4096 * 16_384).unwrap().bytes;
    assert!(most.is_leased());
    assert!(has(&most, &bytes[..4096 * 16_384]));
}

#[test]
fn long_requests_are_charged_and_refused_without_memory() {
    let door = Door::new(16 << 20);
    door.warm("a", 100_000);
    let bucket = door.bucket();
    bucket.head("a", &GetOptions::default()).unwrap();
    let reserve = || door.engine.try_reserve(bywash::Share::Download, 64 << 10);
    let held: Vec<_> = std::iter::from_fn(reserve).collect();
    let ranges: Vec<_> = (0..9_000_u64).map(|at| at..at + 1).collect();
    let refused = bucket
        .get_ranges("a", &ranges, &GetOptions::default())
        .unwrap_err();
    assert_eq!(
        refused.code(),
        bywash_client::ErrorCode::SlowDown,
        "{refused}"
    );
    drop(held);
    let read = bucket
        .get_ranges("a", &ranges, &GetOptions::default())
        .unwrap();
    assert_eq!(read.ranges.len(), 9_000);
}
