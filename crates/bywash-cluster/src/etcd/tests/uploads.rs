//! Records of multipart uploads, in the fake and in etcd itself.

use std::sync::Arc;

use bywash::cluster_uploads::{
    RecordedState, RecordedUpload, SharedPosition, SharedUpload, SharedUploads, SharedUploadsError,
};
use chrono::DateTime;
use url::Url;

use super::super::EtcdUploads;
use super::super::uploads::{MAX_RECORD_BYTES, MAX_RECORDED_ATTEMPTS, MAX_RECORDED_UPLOADS};
use super::client;
use super::fake::Fake;

fn records(endpoint: &Url) -> EtcdUploads {
    let etcd = client(1, std::slice::from_ref(endpoint));
    etcd.accept();
    EtcdUploads::new(Arc::new(etcd))
}

fn upload(bucket: &str, key: &str, id: &str) -> SharedUpload {
    SharedUpload {
        bucket: bucket.to_owned(),
        key: key.to_owned(),
        id: id.to_owned(),
        initiated: DateTime::from_timestamp_nanos(1_600_000_000_987_654_321),
        algorithm: Some("CRC32".to_owned()),
        origin: Some("0123".to_owned()),
    }
}

fn open(attempts: &[&str], since_begin: bool) -> RecordedState {
    RecordedState::Open {
        attempts: attempts.iter().map(|&text| text.to_owned()).collect(),
        since_begin,
    }
}

/// All that the endpoint of a node asks of the records, by two nodes.
pub(super) async fn nodes_share_records(endpoint: Url) {
    let (one, two) = (records(&endpoint), records(&endpoint));
    let first = upload("b", "dir/key", "1");
    let unknown = two.state(first.name()).await.unwrap();
    assert_eq!(unknown, RecordedState::Unknown);
    one.begun(&first).await.unwrap();
    assert_eq!(two.state(first.name()).await.unwrap(), open(&[], true));
    assert_eq!(
        two.attempt(&first, "L1").await.unwrap(),
        open(&["L1"], true)
    );
    assert_eq!(
        one.attempt(&first, "L1").await.unwrap(),
        open(&["L1"], true)
    );
    let both = one.attempt(&first, "L2").await.unwrap();
    assert_eq!(both, open(&["L1", "L2"], true));
    // A late begin changes nothing.
    one.begun(&first).await.unwrap();
    assert_eq!(two.state(first.name()).await.unwrap(), both);

    one.completed(first.name(), "L2").await.unwrap();
    let completed = RecordedState::Completed("L2".to_owned());
    assert_eq!(two.state(first.name()).await.unwrap(), completed);
    assert_eq!(two.attempt(&first, "L1").await.unwrap(), completed);
    one.begun(&first).await.unwrap();
    assert_eq!(two.state(first.name()).await.unwrap(), completed);
    assert!(!two.ended(first.name()).await.unwrap(), "it is not open");

    // Without a record from the beginning, earlier attempts may be missing.
    let late = upload("b", "late", "1");
    assert_eq!(
        one.attempt(&late, "L1").await.unwrap(),
        open(&["L1"], false)
    );
    one.begun(&late).await.unwrap();
    assert_eq!(two.state(late.name()).await.unwrap(), open(&["L1"], false));
    assert!(two.ended(late.name()).await.unwrap());
    assert!(!one.ended(late.name()).await.unwrap());

    let listed = [
        upload("b", "a", "1"),
        upload("b", "a", "2"),
        upload("b", "a/b", "1"),
        upload("b", "\u{fc}", "1"),
    ];
    for other in listed.iter().chain(&[upload("b2", "a", "1")]) {
        one.begun(other).await.unwrap();
    }
    let all = two.list("b", SharedPosition::Key(""), 9).await.unwrap();
    let keys: Vec<_> = all.iter().map(|of| &*of.upload.key).collect();
    assert_eq!(keys, ["a", "a", "a/b", "\u{fc}"]);
    let has = |upload: &SharedUpload| all.iter().any(|of| of.upload == *upload);
    assert!(listed.iter().all(has));
    let mut from = (String::new(), String::new());
    for expected in &all {
        let position = match from.1.as_str() {
            "" => SharedPosition::Key(&from.0),
            id => SharedPosition::After(&from.0, id),
        };
        let page = two.list("b", position, 1).await.unwrap();
        assert_eq!(page, std::slice::from_ref(expected));
        from = (expected.upload.key.clone(), expected.upload.id.clone());
    }
    let position = SharedPosition::After(&from.0, &from.1);
    assert_eq!(two.list("b", position, 1).await.unwrap(), []);
    let from_key = two.list("b", SharedPosition::Key("a/"), 9).await.unwrap();
    assert_eq!(from_key.len(), 2);

    a_record_goes_as_it_was_listed_or_not_at_all(&one, &two, &all).await;
}

async fn a_record_goes_as_it_was_listed_or_not_at_all(
    one: &EtcdUploads,
    two: &EtcdUploads,
    all: &[RecordedUpload],
) {
    let [changed, unchanged] = [&all[0], &all[1]];
    assert_eq!(changed.changed, changed.upload.initiated);
    one.attempt(&changed.upload, "L1").await.unwrap();
    assert!(!two.forget(changed).await.unwrap());
    assert!(two.forget(unchanged).await.unwrap());
    assert!(!two.forget(unchanged).await.unwrap());
    let left = two.list("b", SharedPosition::Key("a"), 1).await.unwrap();
    assert_eq!(left[0].upload, changed.upload);
    assert!(left[0].changed > changed.changed);
}

#[tokio::test]
async fn uploads_are_recorded_for_all_nodes() {
    let (_, endpoint) = Fake::start("3.6.16").await;
    nodes_share_records(endpoint).await;
}

#[tokio::test]
async fn lists_recorded_at_once_by_two_nodes_are_both_kept() {
    let (_, endpoint) = Fake::start("3.6.16").await;
    let first = upload("b", "k", "1");
    records(&endpoint).begun(&first).await.unwrap();
    let attempts = ["L1", "L2", "L3", "L4"].map(|parts| {
        let (records, first) = (records(&endpoint), first.clone());
        tokio::spawn(async move { records.attempt(&first, parts).await })
    });
    for attempt in attempts {
        attempt.await.unwrap().unwrap();
    }
    let RecordedState::Open { mut attempts, .. } =
        records(&endpoint).state(first.name()).await.unwrap()
    else {
        panic!("it is open");
    };
    attempts.sort_unstable();
    assert_eq!(attempts, ["L1", "L2", "L3", "L4"]);
}

fn is_full<T>(result: Result<T, SharedUploadsError>) -> bool {
    matches!(result, Err(SharedUploadsError::Full(_)))
}

#[tokio::test]
async fn upload_past_the_limit_of_the_cluster_is_refused_until_one_ends() {
    let (fake, endpoint) = Fake::start("3.6.16").await;
    let records = records(&endpoint);
    let last = upload("b", "last", "1");
    records.begun(&last).await.unwrap();
    fake.put_many("/bywash/demo/uploads/b/k", MAX_RECORDED_UPLOADS - 1);
    let further = upload("b", "further", "1");
    assert!(is_full(records.begun(&further).await));
    let unknown = records.state(further.name()).await.unwrap();
    assert_eq!(unknown, RecordedState::Unknown);
    records.ended(last.name()).await.unwrap();
    records.begun(&further).await.unwrap();
}

#[tokio::test]
async fn records_and_lists_of_parts_past_their_limits_are_refused() {
    let (_, endpoint) = Fake::start("3.6.16").await;
    let records = records(&endpoint);
    let long = upload("b", "k", &"x".repeat(MAX_RECORD_BYTES));
    assert!(is_full(records.begun(&long).await));
    let first = upload("b", "k", "1");
    for number in 0..MAX_RECORDED_ATTEMPTS {
        records
            .attempt(&first, &format!("L{number}"))
            .await
            .unwrap();
    }
    assert!(is_full(records.attempt(&first, "another").await));
    records.attempt(&first, "L0").await.unwrap();
}

#[tokio::test]
async fn records_are_unavailable_without_etcd_and_found_at_the_next_endpoint() {
    let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gone = Url::parse(&format!("http://{}", socket.local_addr().unwrap())).unwrap();
    drop(socket);
    let first = upload("b", "k", "1");
    let refused = records(&gone).begun(&first).await.unwrap_err();
    assert!(
        matches!(refused, SharedUploadsError::Unavailable(_)),
        "{refused}"
    );
    let (_, endpoint) = Fake::start("3.6.16").await;
    let etcd = client(1, &[gone, endpoint]);
    etcd.accept();
    EtcdUploads::new(Arc::new(etcd))
        .begun(&first)
        .await
        .unwrap();
}

#[tokio::test]
async fn record_that_is_not_understood_hides_no_other() {
    let (fake, endpoint) = Fake::start("3.6.16").await;
    let records = records(&endpoint);
    let [first, last] = [upload("b", "a", "1"), upload("b", "z", "1")];
    for upload in [&first, &last] {
        records.begun(upload).await.unwrap();
    }
    fake.put_many("/bywash/demo/uploads/b/bad", 5);
    let listed = records.list("b", SharedPosition::Key(""), 2).await.unwrap();
    let uploads: Vec<SharedUpload> = listed.into_iter().map(|of| of.upload).collect();
    assert_eq!(uploads, [first, last]);
}

/// Earlier versions wrote none.
#[tokio::test]
async fn record_without_a_store_is_listed_without_one() {
    let (fake, endpoint) = Fake::start("3.6.16").await;
    let record = r#"{"bucket":"b","key":"k","id":"1","initiated":7,"begun":true}"#;
    fake.put("/bywash/demo/uploads/b/k", record);
    let records = records(&endpoint);
    let listed = records.list("b", SharedPosition::Key(""), 2).await.unwrap();
    assert_eq!((listed.len(), &listed[0].upload.origin), (1, &None));
}

#[tokio::test]
async fn records_are_unavailable_until_the_version_of_etcd_is_accepted() {
    let (fake, endpoint) = Fake::start("3.6.16").await;
    let etcd = client(1, &[endpoint]);
    let records = EtcdUploads::new(Arc::new(etcd.another()));
    let first = upload("b", "k", "1");
    let unavailable = |refused| matches!(refused, SharedUploadsError::Unavailable(_));
    assert!(unavailable(records.begun(&first).await.unwrap_err()));
    let listed = records.list("b", SharedPosition::Key(""), 1).await;
    assert!(unavailable(listed.unwrap_err()));
    let completed = records.completed(first.name(), "L1").await;
    assert!(unavailable(completed.unwrap_err()));
    assert_eq!(fake.transactions(), 0);
    etcd.check_versions().await.unwrap();
    records.begun(&first).await.unwrap();
}
