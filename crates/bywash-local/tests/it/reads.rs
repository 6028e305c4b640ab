//! Reads: leased bytes and copied bytes.

use bywash::Verify;
use bywash_client::limits::MAX_KEPT_PARTS;
use bywash_client::{ByteRange, ErrorCode, GetOptions, RangesOf, View, byte_range};
use bywash_support::faulty_store::Fault;

use crate::door::{Door, has, pattern};

const MIB: usize = 1 << 20;

#[test]
fn cold_and_warm_reads_are_leases_of_the_same_bytes() {
    let door = Door::new(64 << 20);
    let bytes = pattern("a", 5 * MIB + 17);
    door.put("a", bytes.clone());
    let bucket = door.bucket();
    let cold = bucket.get("a").unwrap();
    let warm = bucket.get("a").unwrap();
    assert!(!cold.hit && warm.hit);
    for object in [cold, warm] {
        assert!(object.bytes.is_leased());
        assert_eq!(object.bytes.segments().len(), 6, "a segment a block");
        assert_eq!(object.metadata.size, bytes.len() as u64);
        assert_eq!(object.metadata.key, "a");
        assert!(object.bytes.into_vec() == bytes);
    }
    let stats = door.stats();
    assert_eq!(stats.shared_bytes, 2 * bytes.len() as u64);
    assert_eq!(stats.copied_bytes, 0);
}

#[test]
fn ranges_of_every_kind_have_their_bytes() {
    let door = Door::new(64 << 20);
    let bytes = door.warm("a", 3 * MIB + 5);
    let bucket = door.bucket();
    let all = bytes.len() as u64;
    for inline in [0, 1 << 30] {
        let options = GetOptions {
            inline_bytes: Some(inline),
            ..GetOptions::default()
        };
        let get = |range| bucket.get_with("a", range, &options).unwrap();
        let bounded = |start, end| get(byte_range(start..end));
        for (start, end) in [
            (0, 1),
            (1, all),
            (MIB as u64 - 1, MIB as u64 + 1),
            (all - 1, all),
        ] {
            let object = bounded(start, end);
            assert_eq!(object.range, start..end);
            assert!(object.bytes.into_vec() == bytes[start as usize..end as usize]);
        }
        let beyond = bounded(all - 3, all + 1000);
        assert_eq!(beyond.range, all - 3..all, "cut at the end");
        let last = get(ByteRange::Last(9));
        assert!(last.bytes.into_vec() == bytes[bytes.len() - 9..]);
        let from = get(ByteRange::From(2 * MIB as u64));
        assert!(from.bytes.into_vec() == bytes[2 * MIB..]);
        let missing = bucket
            .get_with("a", byte_range(all..all + 1), &options)
            .unwrap_err();
        assert_eq!(missing.code(), ErrorCode::InvalidRange, "{missing}");
    }
}

#[test]
fn thousand_ranges_of_one_version_are_one_lease() {
    let door = Door::new(64 << 20);
    let bytes = door.warm("a", 8 * MIB);
    let bucket = door.bucket();
    let ranges: Vec<_> = (0..1000_u64)
        .map(|at| at * 8000..at * 8000 + 10_000)
        .collect();
    let read = bucket
        .get_ranges("a", &ranges, &GetOptions::default())
        .unwrap();
    assert!(read.hit);
    assert_eq!(door.stats().leases, 1);
    for (range, (start, view)) in ranges.iter().zip(read.ranges) {
        assert_eq!(range.start, start);
        let end = range.end.min(bytes.len() as u64);
        assert!(view.into_vec() == bytes[range.start as usize..end as usize]);
    }
    door.wait_idle_of_leases();
}

impl Door {
    pub(crate) fn wait_idle_of_leases(&self) {
        crate::door::wait_for(|| self.stats().leases == 0);
    }
}

#[test]
fn ranges_of_cold_objects_are_loaded_once() {
    let door = Door::new(64 << 20);
    let bytes = pattern("a", 6 * MIB);
    door.put("a", bytes.clone());
    let ranges: Vec<_> = (0..60_u64)
        .map(|at| at * 100_000..at * 100_000 + 50_000)
        .collect();
    let read = door
        .bucket()
        .get_ranges("a", &ranges, &GetOptions::default())
        .unwrap();
    assert!(!read.hit);
    for (range, (_, view)) in ranges.iter().zip(read.ranges) {
        assert!(view.into_vec() == bytes[range.start as usize..range.end as usize]);
    }
    let origin = door.engine.stats().buckets["data"].origin_bytes;
    assert!(origin <= bytes.len() as u64, "{origin} bytes of the origin");
}

#[test]
fn many_objects_have_a_result_each_in_their_order() {
    let door = Door::new(64 << 20);
    let (a, b) = (door.warm("a", 100), door.warm("b", 2 * MIB));
    let some = [byte_range(5..6), byte_range(MIB as u64..MIB as u64 + 20)];
    let whole = [];
    let of = |key, ranges| RangesOf {
        bucket: "data",
        key,
        ranges,
    };
    let objects = [
        of("a", &whole[..]),
        of("missing", &whole),
        of("b", &some),
        of("b", &whole),
    ];
    let mut results = door
        .client()
        .get_many(&objects, &GetOptions::default())
        .unwrap();
    assert_eq!(results.len(), 4);
    assert!(results.remove(0).unwrap().ranges.remove(0).1.into_vec() == a);
    let missing = results.remove(0).unwrap_err();
    assert_eq!(missing.code(), ErrorCode::NotFound, "{missing}");
    let ranges = results.remove(0).unwrap().ranges;
    assert_eq!(
        ranges[0]
            .1
            .segments()
            .flatten()
            .copied()
            .collect::<Vec<_>>(),
        [b[5]]
    );
    assert!(has(&ranges[1].1, &b[MIB..MIB + 20]));
    assert!(results.remove(0).unwrap().ranges.remove(0).1.into_vec() == b);
}

#[test]
fn conditions_hold_by_the_etags_that_clients_see() {
    let door = Door::new(64 << 20);
    door.warm("a", 100);
    let bucket = door.bucket();
    let etag = bucket
        .head("a", &GetOptions::default())
        .unwrap()
        .etag
        .unwrap();
    let options = |if_match: Option<&str>, if_none_match: Option<&str>| GetOptions {
        if_match: if_match.map(str::to_owned),
        if_none_match: if_none_match.map(str::to_owned),
        ..GetOptions::default()
    };
    let get = |options| bucket.get_with("a", ByteRange::Whole(()), &options);
    get(options(Some(&etag), None)).unwrap();
    get(options(None, Some("other"))).unwrap();
    let failed = get(options(Some("other"), None)).unwrap_err();
    assert_eq!(failed.code(), ErrorCode::Precondition);
    let same = get(options(None, Some(&etag))).unwrap_err();
    assert_eq!(same.code(), ErrorCode::NotModified);
    let head = bucket.head("a", &options(None, Some(&etag))).unwrap_err();
    assert_eq!(head.code(), ErrorCode::NotModified);
}

#[test]
fn small_reads_are_copied_and_hold_nothing() {
    let door = Door::new(64 << 20);
    let bytes = door.warm("a", 4 * MIB);
    let object = door.bucket().get_range("a", 1000..5000).unwrap();
    assert!(!object.bytes.is_leased());
    assert!(object.bytes.contiguous() == Some(&bytes[1000..5000]));
    assert_eq!(door.stats().leases, 0);
    assert_eq!(door.stats().refused, 0, "a copy was the better way");
}

#[test]
fn empty_objects_are_read() {
    let door = Door::new(64 << 20);
    door.put("empty", Vec::new());
    let object = door.bucket().get("empty").unwrap();
    assert!(object.bytes.is_empty());
    assert_eq!(object.metadata.size, 0);
    let mut nothing = [];
    let read = door
        .bucket()
        .read_into("empty", 0, &mut nothing, &GetOptions::default());
    read.unwrap();
}

#[test]
fn bytes_are_read_into_the_callers_memory() {
    let door = Door::new(64 << 20);
    let bytes = door.warm("a", 3 * MIB);
    let mut target = vec![0; 2 * MIB];
    let bucket = door.bucket();
    bucket
        .read_into("a", 500, &mut target, &GetOptions::default())
        .unwrap();
    assert!(target == bytes[500..500 + 2 * MIB]);
    door.wait_idle_of_leases();
    let short = bucket.read_into("a", 2 * MIB as u64, &mut target, &GetOptions::default());
    assert_eq!(short.unwrap_err().code(), ErrorCode::InvalidRange);
}

#[test]
fn failed_load_is_an_error_of_its_reader_alone() {
    let door = Door::new(64 << 20);
    door.warm("b", 2 * MIB);
    door.put("a", pattern("a", 2 * MIB));
    let bucket = door.bucket();
    for _ in 0..64 {
        door.store.fault("get", "a", Fault::Fail);
    }
    let failed = bucket.get("a").unwrap_err();
    assert_eq!(failed.code(), ErrorCode::Unavailable, "{failed}");
    assert!(failed.to_string().contains("read a"), "{failed}");
    assert!(bucket.get("b").unwrap().hit, "the connection goes on");
}

#[test]
fn read_that_takes_too_long_ends_at_its_deadline_and_the_next_one_is_served() {
    let door = Door::new(64 << 20);
    door.warm("b", 2 * MIB);
    door.put("a", pattern("a", 2 * MIB));
    door.store.fault("get", "a", Fault::HoldRequest);
    let client = door
        .client()
        .with_deadline(std::time::Duration::from_millis(300));
    let late = client.bucket("data").get("a").unwrap_err();
    assert_eq!(late.code(), ErrorCode::Deadline, "{late}");
    // Its own deadline may end before a busy machine has served it.
    let mut next = (0..20).filter_map(|_| client.bucket("data").get("b").ok());
    assert!(next.next().unwrap().hit);
    door.store.release(1);
}

#[test]
fn object_replaced_while_leased_keeps_its_old_bytes_for_the_lease() {
    let door = Door::new(64 << 20);
    let old = door.warm("a", 3 * MIB);
    let bucket = door.bucket();
    let before = bucket.get("a").unwrap();
    let new = pattern("new", 2 * MIB);
    door.put("a", new.clone());
    let after = bucket.get("a").unwrap();
    assert!(after.bytes.into_vec() == new);
    assert!(has(&before.bytes, &old));
    assert_ne!(before.metadata.etag, after.metadata.etag);
}

#[test]
fn digest_is_compared_before_the_first_view() {
    let door = Door::with(|builder| builder.memory(64 << 20).verify(Verify::Whole));
    let bytes = door.warm("a", 3 * MIB);
    let object = door.bucket().get("a").unwrap();
    assert!(object.bytes.is_leased());
    assert!(object.bytes.into_vec() == bytes);
}

#[test]
fn server_without_shared_memory_copies() {
    let door = Door::with(|builder| builder.memory(64 << 20).shared_memory(false));
    let bytes = door.warm("a", 3 * MIB);
    assert!(!door.client().server().unwrap().shares_memory);
    let ranges = [10..20_u64, MIB as u64..2 * MIB as u64];
    let read = door
        .bucket()
        .get_ranges("a", &ranges, &GetOptions::default())
        .unwrap();
    assert!(read.ranges[1].1.contiguous() == Some(&bytes[MIB..2 * MIB]));
    assert_eq!(door.stats().leases, 0);
}

#[test]
fn blocks_in_huge_pages_are_copied() {
    let door = Door::with(|builder| builder.memory(64 << 20).block_size(4 << 20));
    let bytes = door.warm("a", 9 * MIB);
    let object = door.bucket().get("a").unwrap();
    assert!(object.bytes.into_vec() == bytes);
    assert_eq!(door.stats().leases, 0);
}

#[test]
fn small_blocks_and_tails_have_their_bytes() {
    let door = Door::with(|builder| builder.memory(64 << 20).block_size(4096));
    let bytes = door.warm("a", 100_001);
    let object = door.bucket().get_range("a", 4095..100_001).unwrap();
    assert!(object.bytes.is_leased());
    assert_eq!(object.bytes.segments().len(), 25);
    assert!(object.bytes.into_vec() == bytes[4095..]);
}

#[test]
fn listing_pages_and_delimiters_are_those_of_the_endpoint() {
    let door = Door::new(64 << 20);
    for key in ["a/1", "a/2", "b", "c/d/e"] {
        door.put(key, vec![1]);
    }
    let bucket = door.bucket();
    let keys = |prefix| -> Vec<String> {
        bucket
            .list(prefix)
            .map(|object| object.unwrap().key)
            .collect()
    };
    assert_eq!(keys(""), ["a/1", "a/2", "b", "c/d/e"]);
    assert_eq!(keys("a/"), ["a/1", "a/2"]);
    let page = bucket
        .list_page(bywash_client::ListOptions {
            delimiter: "/",
            limit: 2,
            ..Default::default()
        })
        .unwrap();
    assert_eq!(page.prefixes, ["a/"]);
    assert_eq!(page.objects[0].key, "b");
    let rest = bucket
        .list_page(bywash_client::ListOptions {
            delimiter: "/",
            after: page.next.as_deref(),
            ..Default::default()
        })
        .unwrap();
    assert_eq!(rest.prefixes, ["c/"]);
    assert_eq!(rest.next, None);
}

#[test]
fn attached_origin_is_a_bucket() {
    let door = Door::new(64 << 20);
    let client = door.client();
    let bucket = client.attach("memory://", &[]).unwrap();
    bucket.put("k", b"v", &Default::default()).unwrap();
    assert!(bucket.get("k").unwrap().bytes.into_vec() == b"v");
    let names: Vec<_> = client
        .buckets()
        .unwrap()
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert_eq!(names, ["attached", "data"]);
    let wrong = client.attach("ftp://host/file", &[]).unwrap_err();
    assert_eq!(wrong.code(), ErrorCode::InvalidArgument);
}

#[test]
fn missing_buckets_and_keys_are_named() {
    let door = Door::new(64 << 20);
    let client = door.client();
    let bucket = client.bucket("absent").get("k").unwrap_err();
    assert_eq!(bucket.code(), ErrorCode::NoSuchBucket);
    assert!(bucket.to_string().contains("absent"), "{bucket}");
    let key = client.bucket("data").get("some/key").unwrap_err();
    assert_eq!(key.code(), ErrorCode::NotFound);
    assert!(key.to_string().contains("some/key"), "{key}");
    let odd = client.bucket("data").get("a//b/../c").unwrap_err();
    // No object has a key that cannot be stored.
    assert_eq!(odd.code(), ErrorCode::NotFound, "{odd}");
}

#[test]
fn download_is_read_while_it_arrives_and_whole_at_its_end() {
    use std::io::{Read, Seek, SeekFrom};

    let door = Door::new(128 << 20);
    let bytes = pattern("a", 20 * MIB + 3);
    door.put("a", bytes.clone());
    let mut download = door.bucket().download("a").unwrap();
    assert_eq!(download.len(), bytes.len() as u64);
    let mut some = vec![0; 100_000];
    download.read_exact(&mut some).unwrap();
    assert!(some == bytes[..100_000]);
    assert_eq!(
        download.seek(SeekFrom::End(-5)).unwrap(),
        bytes.len() as u64 - 5
    );
    let mut rest = Vec::new();
    download.read_to_end(&mut rest).unwrap();
    assert!(rest == bytes[bytes.len() - 5..]);
    assert!(download.seek(SeekFrom::Current(-(1 << 40))).is_err());
    assert_eq!(download.stream_position().unwrap(), bytes.len() as u64);
    assert_eq!(download.read_at(1 << 40, &mut some).unwrap(), 0);
    assert_eq!(
        download.read_at(12 * MIB as u64, &mut some).unwrap(),
        100_000
    );
    assert!(some == bytes[12 * MIB..12 * MIB + 100_000]);
    assert!(download.finish().unwrap().into_vec() == bytes);
    let origin = door.engine.stats().buckets["data"].origin_bytes;
    assert!(
        origin <= bytes.len() as u64 + 4096,
        "{origin} bytes, each loaded once"
    );
}

#[test]
fn download_of_a_replaced_object_is_an_error() {
    let door = Door::new(128 << 20);
    door.put("a", pattern("a", 20 * MIB));
    let mut download = door.bucket().download("a").unwrap();
    let mut some = [0; 100];
    download.read_at(0, &mut some).unwrap();
    door.put("a", pattern("b", 20 * MIB));
    let changed = download.read_at(15 * MIB as u64, &mut some).unwrap_err();
    assert_eq!(changed.code(), ErrorCode::VersionChanged, "{changed}");
}

#[test]
fn blocks_are_one_slice_side_by_side() {
    let door = Door::with(|builder| builder.memory(64 << 20).block_size(64 << 10));
    let bytes = door.warm("a", 3 * MIB + 777);
    let bucket = door.bucket();
    for (start, end) in [
        (0, bytes.len()),
        (5, 65_537),
        (65_535, 131_073),
        (100_000, 3 * MIB + 776),
    ] {
        let view = bucket
            .get_range("a", start as u64..end as u64)
            .unwrap()
            .bytes;
        assert!(
            view.is_leased() && view.segments().len() > 1,
            "{start}..{end}"
        );
        let one = view.into_contiguous();
        assert!(one.is_leased());
        assert!(
            one.contiguous() == Some(&bytes[start..end]),
            "{start}..{end}"
        );
        assert_eq!(door.stats().leases, 1);
        drop(one);
        door.wait_idle_of_leases();
    }
    let copied = bucket
        .get_range("a", 0..10)
        .unwrap()
        .bytes
        .into_contiguous();
    assert!(copied.contiguous() == Some(&bytes[..10]));
}

#[test]
fn joined_maps_are_kept_and_show_the_bytes_of_their_lease() {
    let block = 4096;
    let door = Door::with(|builder| builder.memory(128 << 20).block_size(block));
    let bucket = door.bucket();
    let joined = |key: &str| {
        let one = bucket.get(key).unwrap().bytes.into_contiguous();
        assert!(one.is_leased(), "{key}");
        one
    };
    let address = |view: &View| view.contiguous().unwrap().as_ptr();
    let small = door.warm("small", 5 * block);
    // One part more than all that may be kept.
    let large = door.warm("large", (MAX_KEPT_PARTS + 1) * block);
    let first = joined("small");
    assert_eq!(address(&first), address(&joined("small")));
    // It is mapped again each time, and evicts all kept maps.
    for _ in 0..2 {
        assert!(joined("large").contiguous() == Some(&large));
    }
    assert!(first.contiguous() == Some(&small));
    drop(first);
    // Frames are reused while their maps are kept.
    for round in 0..200 {
        let key = format!("k{}", round % 7);
        let bytes = pattern(&round.to_string(), 5 * block);
        door.put(&key, bytes.clone());
        for _ in 0..2 {
            assert!(joined(&key).contiguous() == Some(&bytes), "{round}");
        }
    }
    door.wait_idle_of_leases();
}

#[test]
fn event_loops_receive_without_waiting() {
    let door = Door::new(64 << 20);
    let bytes = door.warm("a", 5 * MIB);
    let client = door.client();
    for inline in [0, u32::MAX] {
        let options = GetOptions {
            inline_bytes: Some(inline),
            ..GetOptions::default()
        };
        let object = |key| RangesOf {
            bucket: "data",
            key,
            ranges: &[],
        };
        let mut pending = client
            .begin_get(&[object("a"), object("absent"), object("a")], &options)
            .unwrap();
        let results = loop {
            if let Some(results) = pending.poll().unwrap() {
                break results;
            }
            std::thread::yield_now();
        };
        assert_eq!(
            pending.poll().unwrap_err().code(),
            ErrorCode::Connection,
            "it has ended"
        );
        let found: Vec<_> = results.into_iter().map(Result::ok).collect();
        assert!(found[1].is_none());
        for ranges in [&found[0], &found[2]] {
            assert!(has(&ranges.as_ref().unwrap().ranges[0].1, &bytes));
        }
    }
    drop(client.begin_get(&[], &GetOptions::default()).unwrap());
    assert!(
        client.buckets().is_ok(),
        "a dropped read closes its connection alone"
    );
}
