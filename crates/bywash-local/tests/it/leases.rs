//! Ends of leases: by release, by death at any moment, by the end of the server.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bywash_client::message::{
    Bounds, ByteRange, Conditions, Get, GetObject, Release, Reply, Request,
};
use bywash_client::{Client, ErrorCode, GetOptions};

use crate::door::{Door, RawClient, has, pattern, wait_for};

const MIB: usize = 1 << 20;

pub(crate) fn get(key: &str, end: u64) -> Request {
    Request::Get(Get {
        objects: vec![GetObject {
            bucket: "data".to_owned(),
            key: key.to_owned(),
            conditions: Conditions {
                if_match: None,
                if_none_match: None,
                version: None,
            },
            ranges: vec![ByteRange::Bounded(Bounds { start: 0, end })],
        }],
        inline_bytes: 0,
        deadline_ms: 60_000,
    })
}

#[test]
fn lease_ends_with_its_last_view() {
    let door = Door::new(64 << 20);
    door.warm("a", 4 * MIB);
    let bucket = door.bucket();
    let ranges = [0..MIB as u64, MIB as u64..2 * MIB as u64];
    let mut read = bucket
        .get_ranges("a", &ranges, &GetOptions::default())
        .unwrap();
    assert_eq!(door.stats().leased_bytes, 2 << 20);
    let kept = read.ranges.pop();
    drop(read);
    // Time for a release that must not come: the next request is served after it.
    bucket.get_range("a", 0..1).unwrap();
    assert_eq!(door.stats().leases, 1);
    drop(kept);
    wait_for(|| door.stats().leased_bytes == 0);
}

#[test]
fn client_killed_at_any_byte_leaves_nothing() {
    let door = Door::new(64 << 20);
    door.warm("a", 4 * MIB);
    let release = Request::Release(Release { leases: vec![1] });
    let mut sent = RawClient::hello();
    sent.extend(RawClient::request(2, &get("a", 4 << 20)));
    sent.extend(RawClient::request(0, &release));
    sent.extend(RawClient::request(3, &get("a", 3 << 20)));
    for end in 0..=sent.len() {
        let mut client = RawClient::connect(&door);
        client.send(&sent[..end]);
        drop(client);
    }
    door.wait_idle();
    assert!(door.bucket().get("a").unwrap().hit);
}

#[test]
fn client_killed_after_any_reply_leaves_nothing() {
    let door = Door::new(64 << 20);
    door.warm("a", 4 * MIB);
    for replies in 0..4 {
        let mut client = RawClient::connect(&door);
        client.send(&RawClient::hello());
        client.send(&RawClient::request(2, &get("a", 4 << 20)));
        for _ in 0..replies {
            client.receive().unwrap();
        }
        if replies > 1 {
            assert_eq!(door.stats().leases, 1);
        }
        drop(client);
        door.wait_idle();
    }
}

#[test]
fn release_of_unknown_leases_is_ignored() {
    let door = Door::new(64 << 20);
    door.warm("a", MIB);
    let mut client = RawClient::connect(&door);
    client.send(&RawClient::hello());
    client.receive().unwrap();
    let release = Request::Release(Release {
        leases: vec![0, 7, u32::MAX],
    });
    client.send(&RawClient::request(0, &release));
    client.send(&RawClient::request(2, &get("a", 1 << 20)));
    assert!(matches!(client.receive(), Some(Reply::Leased(_))));
}

#[test]
fn views_outlive_the_server_and_the_next_call_finds_the_next_one() {
    let door = Door::new(64 << 20);
    let bytes = door.warm("a", 3 * MIB);
    let client = door.client();
    let view = client.bucket("data").get("a").unwrap().bytes;
    door.stop();
    let gone = client.bucket("data").get("a").unwrap_err();
    assert_eq!(gone.code(), ErrorCode::Connection, "{gone}");
    assert!(gone.to_string().contains("bywash serve"), "{gone}");
    assert!(has(&view, &bytes));
    let socket = door.socket.clone();
    drop(door);
    assert!(has(&view, &bytes), "the memory stays mapped");
    assert!(Client::connect_to(socket).is_err());
}

#[test]
fn client_of_one_start_of_a_server_reads_from_no_other() {
    let (door, other) = (Door::new(64 << 20), Door::new(64 << 20));
    for door in [&door, &other] {
        door.put("a", vec![1]);
    }
    let once = Client::connect_once(&door.socket, Duration::from_secs(60)).unwrap();
    assert!(once.bucket("data").get("a").is_ok());
    // Another connection, to the same start.
    let both = [(); 2].map(|()| once.bucket("data").begin_head("a", &Default::default()));
    assert!(both.into_iter().all(|head| head.unwrap().wait().is_ok()));
    let any = door.client();
    door.stop();
    std::os::unix::fs::symlink(&other.socket, &door.socket).unwrap();
    assert!(any.bucket("data").get("a").is_ok(), "at the other server");
    for _ in 0..2 {
        let refused = once.bucket("data").get("a").unwrap_err();
        assert_eq!(refused.code(), ErrorCode::Connection, "{refused}");
        assert!(refused.to_string().contains("another server"), "{refused}");
    }
}

#[test]
fn view_stays_while_the_memory_is_turned_over() {
    let door = Door::new(32 << 20);
    let bytes = door.warm("a", 4 * MIB);
    let bucket = door.bucket();
    let view = bucket.get("a").unwrap().bytes;
    for round in 0..100 {
        let key = format!("other-{}", round % 7);
        if round < 7 {
            door.put(&key, pattern(&key, 6 * MIB));
        }
        assert!(bucket.get(&key).unwrap().bytes.into_vec() == pattern(&key, 6 * MIB));
    }
    assert!(has(&view, &bytes));
    assert!(
        door.engine.stats().pool.evictions > 400,
        "it was turned over"
    );
}

#[test]
fn threads_share_a_client() {
    let door = Arc::new(Door::new(64 << 20));
    let bytes = Arc::new(door.warm("a", 4 * MIB));
    let client = door.client();
    let threads: Vec<_> = (0..8)
        .map(|thread| {
            let (client, bytes) = (client.clone(), Arc::clone(&bytes));
            thread::spawn(move || {
                let bucket = client.bucket("data");
                for round in 0..40 {
                    let start = (thread * 100_003 + round * 7919) % (3 * MIB);
                    let view = bucket.get_range("a", start as u64..(start + MIB) as u64);
                    assert!(has(&view.unwrap().bytes, &bytes[start..start + MIB]));
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    wait_for(|| door.stats().leases == 0);
    drop(client);
    door.wait_idle();
}

#[test]
fn views_are_released_from_other_threads_while_calls_run() {
    let door = Door::new(64 << 20);
    door.warm("a", 2 * MIB);
    let bucket = door.bucket();
    let (send, receive) = std::sync::mpsc::sync_channel::<bywash_client::View>(64);
    let dropping = thread::spawn(move || receive.into_iter().count());
    for _ in 0..500 {
        send.send(bucket.get_range("a", 0..1 << 20).unwrap().bytes)
            .unwrap();
    }
    drop(send);
    assert_eq!(dropping.join().unwrap(), 500);
    wait_for(|| door.stats().leased_bytes == 0);
}

#[test]
fn deleted_bucket_leaves_leases_as_they_are() {
    let door = Door::new(64 << 20);
    let bytes = door.warm("a", 2 * MIB);
    let view = door.bucket().get("a").unwrap().bytes;
    let bucket = door.engine.bucket("data").unwrap();
    door.run(async {
        use object_store::ObjectStoreExt;
        bucket.delete(&"a".into()).await.unwrap();
    });
    let gone = door.bucket().get("a").unwrap_err();
    assert_eq!(gone.code(), ErrorCode::NotFound);
    assert!(has(&view, &bytes));
}

#[test]
fn connection_with_too_many_leases_gets_copies() {
    let door = Door::with(|builder| builder.memory(512 << 20).block_size(4096));
    door.warm("a", 4096);
    let mut client = RawClient::connect(&door);
    client.send(&RawClient::hello());
    client.receive().unwrap();
    for number in 0..10_000 {
        client.send(&RawClient::request(number, &get("a", 4096)));
        assert!(
            matches!(client.receive(), Some(Reply::Leased(_))),
            "lease {number}"
        );
        assert_eq!(client.receive(), Some(Reply::Done(())));
    }
    client.send(&RawClient::request(7, &get("a", 4096)));
    assert!(matches!(client.receive(), Some(Reply::Bytes(_))));
    assert_eq!(door.stats().leases, 10_000);
    drop(client);
    door.wait_idle();
}

#[test]
fn client_keeps_few_connections() {
    let door = Arc::new(Door::new(64 << 20));
    let bytes = door.warm("a", 2 * MIB);
    let client = door.client();
    let barrier = Arc::new(std::sync::Barrier::new(30));
    let threads: Vec<_> = (0..30)
        .map(|_| {
            let (client, barrier) = (client.clone(), Arc::clone(&barrier));
            thread::spawn(move || {
                let mut writer = client
                    .bucket("data")
                    .writer("w", &Default::default())
                    .unwrap();
                writer.write_all(b"x").unwrap();
                barrier.wait();
                writer.abort().unwrap();
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    wait_for(|| door.stats().clients == 16);
    assert!(has(&client.bucket("data").get("a").unwrap().bytes, &bytes));
}
