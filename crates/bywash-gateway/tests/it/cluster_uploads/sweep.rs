//! Records of uploads that their origin has forgotten.

use bywash::cluster::{ClusterMember, ClusterStatus};
use bywash_gateway::limits::MAX_CHECKED_UPLOADS;
use chrono::TimeDelta;

use super::authority::Authority;
use super::*;
use crate::s3_origin::mount_cloud_as;

const OLD: TimeDelta = TimeDelta::days(2);
const VERY_OLD: TimeDelta = TimeDelta::days(31);

impl Cluster {
    /// Starts a node that searches all the time.
    async fn sweeping(&self) -> Server {
        let mut config = self.config([1; 32]);
        config.cluster_uploads.as_mut().unwrap().sweep_every = Duration::from_millis(20);
        let node = self.node_with(config).await;
        node.get("/cloud?uploads", &[]).await.expect(200);
        node
    }

    /// Aborts an upload at the origin alone.
    async fn abort_at_the_origin(&self, id: &str) {
        let other = S3Config {
            cluster_uploads: Some(ClusterUploads {
                seal: Arc::new(HmacSeal::new([1; 32], [])),
                shared: Arc::<Records>::default(),
                sweep_every: Duration::from_secs(3600),
            }),
            ..S3Config::anonymous()
        };
        let node = self.node_with(other).await;
        let target = format!("{TARGET}?uploadId={id}");
        let aborted = node.send("DELETE", &target, &[], b"").await;
        assert_eq!(aborted.status, 204, "{}", aborted.text());
        node.kill();
    }

    /// Waits until `count` further lists of the records have begun.
    async fn lists(&self, count: usize) {
        let before = self.records.lists().len();
        let more = async {
            while self.records.lists().len() < before + count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let more = tokio::time::timeout(Duration::from_secs(20), more).await;
        more.unwrap();
    }
}

fn removed(node: &Server) -> u64 {
    node.engine.traffic().stats().removed_upload_records
}

#[tokio::test]
async fn old_record_goes_once_the_origin_has_forgotten_its_upload() {
    for kind in [Kind::S3, Kind::Gcs] {
        let cluster = Cluster::of(kind).await;
        let ids = [
            cluster.begin(TARGET).await,
            cluster.begin(TARGET).await,
            cluster.begin(TARGET).await,
        ];
        let [forgotten, open, young] = &ids;
        for id in [forgotten, young] {
            cluster.abort_at_the_origin(id).await;
        }
        for id in [forgotten, open] {
            cluster.records.make_older(id, OLD);
        }
        let node = cluster.sweeping().await;
        // Both lists are of searches that began after the start: the second is over when the third begins.
        cluster.lists(3).await;
        let mut left = [open.clone(), young.clone()];
        left.sort();
        assert_eq!(cluster.records.ids(), left, "{kind:?}");
        assert_eq!(removed(&node), 1);
        cluster.records.make_older(young, OLD);
        cluster.lists(3).await;
        assert_eq!(
            cluster.records.ids(),
            std::slice::from_ref(open),
            "{kind:?}"
        );
        // The upload that is open can still be completed.
        node.kill();
        let part = cluster.part(open, 1, b"all").await;
        cluster.complete(open, &[(1, &*part)]).await.expect(200);
    }
}

#[tokio::test]
async fn record_stays_while_the_origin_does_not_know_its_bucket_or_fails() {
    let cluster = Cluster::s3().await;
    let id = cluster.begin(TARGET).await;
    cluster.abort_at_the_origin(&id).await;
    cluster.records.make_older(&id, OLD);
    // Requests of the search for the bucket, once the origin does not know the upload; and the list
    // of its parts.
    for asked in ["list-type=2", "uploadId="] {
        for _ in 0..100 {
            cluster.store.script(asked, ServerFault::Refuse(403));
        }
        let node = cluster.sweeping().await;
        cluster.lists(4).await;
        assert_eq!(cluster.records.open(), 1, "{asked}");
        assert_eq!(removed(&node), 0);
        node.kill();
    }
}

#[tokio::test]
async fn record_that_no_origin_can_be_asked_about_goes_after_a_month() {
    let cluster = Cluster::of(Kind::Azure).await;
    let [begun, abandoned] = [cluster.begin(TARGET).await, cluster.begin(TARGET).await];
    cluster.part(&begun, 1, b"a part").await;
    let foreign = create(&cluster.node_with_key([2; 32]).await, "/cloud/foreign", &[]).await;
    for id in [&begun, &abandoned, &foreign] {
        cluster.records.make_older(id, OLD);
    }
    let node = cluster.sweeping().await;
    cluster.lists(3).await;
    assert_eq!(cluster.records.open(), 3);
    for id in [&begun, &abandoned, &foreign] {
        cluster.records.make_older(id, VERY_OLD);
    }
    cluster.lists(3).await;
    assert_eq!(cluster.records.ids(), [begun], "it has a part");
    assert_eq!(removed(&node), 2);
}

#[tokio::test]
async fn search_ends_at_its_limit_and_the_next_goes_on_from_there() {
    let cluster = Cluster::s3().await;
    let seal = HmacSeal::new([1; 32], []);
    for number in 0..=MAX_CHECKED_UPLOADS {
        let key = format!("{number:04}");
        let upload = SharedUpload {
            id: seal.seal("cloud", &key, br#"{"o":"1","t":0}"#),
            bucket: "cloud".to_owned(),
            key,
            initiated: Default::default(),
            algorithm: None,
            origin: None,
        };
        cluster.records.begun(&upload).await.unwrap();
    }
    let node = cluster.sweeping().await;
    let all = MAX_CHECKED_UPLOADS as u64 + 1;
    let gone = async {
        while removed(&node) < all {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), gone)
        .await
        .unwrap();
    // The page after the last that may be asked about is listed again by the next search.
    let lists = cluster.records.lists();
    let of_last = lists.iter().filter(|count| **count == 1).count();
    assert_eq!(of_last, 2, "{lists:?}");
}

/// Records an upload that no origin knows, of the store with the digest `origin`.
async fn record_forgotten(cluster: &Cluster, bucket: &str, key: &str, origin: Option<&str>) {
    let upload = SharedUpload {
        id: HmacSeal::new([1; 32], []).seal(bucket, key, br#"{"o":"1","t":0}"#),
        bucket: bucket.to_owned(),
        key: key.to_owned(),
        initiated: Default::default(),
        algorithm: None,
        origin: origin.map(str::to_owned),
    };
    cluster.records.begun(&upload).await.unwrap();
}

/// Starts a node that searches all the time, with the store as the buckets `cloud` and `later`.
async fn sweeping_two_buckets(cluster: &Cluster, authority: &Authority) -> Server {
    let builder = Engine::builder().memory(64 << 20);
    let engine = builder.cluster(authority.nodes()).build().unwrap();
    cluster.mount(&engine);
    mount_cloud_as(&engine, "later", &cluster.store);
    let mut config = cluster.config([1; 32]);
    config.cluster_uploads.as_mut().unwrap().sweep_every = Duration::from_millis(20);
    let node = Server::start_with(engine, tempfile::tempdir().unwrap(), config).await;
    node.get("/cloud?uploads", &[]).await.expect(200);
    node
}

/// Has the authority show a member with other settings of these buckets.
fn set_other_settings(authority: &Authority, buckets: &[&str]) {
    let other = ClusterMember {
        other_settings: buckets.iter().map(|&name| name.to_owned()).collect(),
        ..ClusterMember::default()
    };
    *authority.status.lock().unwrap() = Some(ClusterStatus {
        members: vec![other],
        ..ClusterStatus::default()
    });
}

async fn until_removed(node: &Server, count: u64) {
    let gone = async {
        while removed(node) < count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), gone)
        .await
        .unwrap();
}

/// With another URL the upload may be open at the other node's origin.
#[tokio::test]
async fn bucket_of_which_another_node_has_other_settings_is_not_searched() {
    let cluster = Cluster::s3().await;
    for bucket in ["cloud", "later"] {
        record_forgotten(&cluster, bucket, "key", None).await;
    }
    let authority = Authority::default();
    set_other_settings(&authority, &["cloud"]);
    let node = sweeping_two_buckets(&cluster, &authority).await;
    // The bucket that is searched sorts after the other one.
    until_removed(&node, 1).await;
    assert_eq!(cluster.records.open(), 1);
    set_other_settings(&authority, &[]);
    until_removed(&node, 2).await;
}

/// The store that a record names is the only one that knows its upload, regardless of the settings
/// and the membership of other nodes.
#[tokio::test]
async fn record_is_judged_by_the_store_that_it_names() {
    let cluster = Cluster::s3().await;
    let authority = Authority::default();
    set_other_settings(&authority, &["cloud"]);
    let engine = Engine::builder().memory(64 << 20).build().unwrap();
    cluster.mount(&engine);
    let own = engine.bucket("cloud").unwrap().origin_digest().unwrap();
    record_forgotten(&cluster, "cloud", "own", Some(&own)).await;
    record_forgotten(&cluster, "cloud", "other", Some("0123")).await;
    record_forgotten(&cluster, "later", "key", None).await;
    let node = sweeping_two_buckets(&cluster, &authority).await;
    until_removed(&node, 2).await;
    let [other] = &cluster.records.ids()[..] else {
        panic!("{:?}", cluster.records.ids());
    };
    // It began long ago, and may be open as long as there is a node with another store.
    cluster.lists(4).await;
    assert_eq!(cluster.records.open(), 1, "{other}");
    set_other_settings(&authority, &[]);
    until_removed(&node, 3).await;
}

#[tokio::test]
async fn record_of_another_store_or_of_none_is_judged_by_none_within_a_month() {
    let cluster = Cluster::s3().await;
    let ids = [cluster.begin(TARGET).await, cluster.begin(TARGET).await];
    for (id, origin) in ids.iter().zip([Some("0123"), None]) {
        cluster.abort_at_the_origin(id).await;
        cluster.records.make_older(id, OLD);
        cluster.records.set_origin(id, origin);
    }
    let node = cluster.sweeping().await;
    cluster.lists(4).await;
    assert_eq!((cluster.records.open(), removed(&node)), (2, 0));
    for id in &ids {
        cluster.records.make_older(id, VERY_OLD);
    }
    until_removed(&node, 2).await;
}

#[tokio::test]
async fn bucket_that_fails_does_not_keep_the_search_from_the_next() {
    let cluster = Cluster::s3().await;
    for key in ["bad/1", "bad/2", "bad/3", "bad/4"] {
        record_forgotten(&cluster, "cloud", key, None).await;
    }
    record_forgotten(&cluster, "later", "good", None).await;
    for _ in 0..10_000 {
        cluster.store.script("/data/bad/", ServerFault::Refuse(403));
    }
    let node = sweeping_two_buckets(&cluster, &Authority::default()).await;
    until_removed(&node, 1).await;
    assert_eq!(cluster.records.open(), 4);
}
