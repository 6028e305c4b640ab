//! Requests are counted and logged as at the HTTP endpoints.

use bywash_client::{GetOptions, PutOptions, WriteCondition};

use crate::door::{Door, wait_for};

#[test]
fn requests_are_counted_by_operation_status_and_object() {
    let door = Door::new(64 << 20);
    let bucket = door.bucket();
    bucket
        .put("k", &[7; 300_000], &PutOptions::default())
        .unwrap();
    // Leased, copied into the reply, and refused.
    assert_eq!(bucket.get("k").unwrap().bytes.len(), 300_000);
    assert_eq!(bucket.get_range("k", 1..3).unwrap().bytes.len(), 2);
    bucket.get("none").unwrap_err();
    bucket.head("k", &GetOptions::default()).unwrap();
    bucket
        .copy("k", &bucket, "copy", &WriteCondition::None)
        .unwrap();
    bucket.delete("k").unwrap();
    let traffic = door.engine.traffic();
    // A record is written after the reply.
    wait_for(|| traffic.stats().in_flight == 0);
    let served = |name: &str| {
        let operations = traffic.operations().into_iter();
        let found = operations.filter(|found| found.operation == name);
        found.map(|found| found.latencies.count()).sum::<u64>()
    };
    for (operation, count) in [
        ("put_object", 1),
        ("get_object", 3),
        ("head_object", 1),
        ("copy_object", 1),
        ("delete_object", 1),
    ] {
        assert_eq!(served(operation), count, "{operation}");
    }
    let statuses = traffic.statuses();
    assert!(statuses.contains(&(404, 1)), "{statuses:?}");
    let stats = traffic.stats();
    assert_eq!(stats.sent, 300_002);
    assert_eq!(stats.received, 300_000);
    let hottest = traffic.hottest(1);
    assert_eq!((&*hottest[0].bucket, &*hottest[0].key), ("data", "k"));
}
