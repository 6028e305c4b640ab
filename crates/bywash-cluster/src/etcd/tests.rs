#![allow(clippy::unwrap_used, reason = "tests")]

mod fake;

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use url::Url;

use super::client::RESPONSE_BYTES;
use super::{ClusterName, Etcd, EtcdError, Record, Watch};
use crate::message::{ClaimGuard, EtcdReply, EtcdRequest, ViewChange};
use crate::names::{Boot, Epoch, Member, NodeId, Shard};
use fake::Fake;

const SHARD: Shard = Shard(3);

fn client(node: u64, endpoints: &[Url]) -> Etcd {
    // Fails only if a provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let http = reqwest::Client::builder().build().unwrap();
    let name = ClusterName::new("demo").unwrap();
    Etcd::new(name, NodeId(node), endpoints.to_vec(), http)
}

fn member(node: u64, boot: u64) -> Member {
    Member {
        node: NodeId(node),
        boot: Boot(boot),
    }
}

async fn perform(etcd: &Etcd, request: EtcdRequest, boot: u64) -> EtcdReply {
    let record = Record {
        address: "10.0.0.1:8423".to_owned(),
        weight: 512,
        up: true,
        protocol: 1,
    };
    etcd.perform(request, Boot(boot), &record).await.unwrap()
}

async fn next(watch: &mut Watch<'_>) -> ViewChange {
    let next = tokio::time::timeout(Duration::from_secs(10), watch.next());
    next.await.unwrap().unwrap().unwrap().1
}

fn claim(guard: ClaimGuard, to: Member) -> EtcdRequest {
    let shard = SHARD;
    EtcdRequest::Claim { shard, guard, to }
}

/// All that the state machine asks of etcd, by two nodes.
async fn two_nodes_share_a_shard(endpoint: Url) {
    let endpoints = [endpoint];
    let (one, two) = (client(1, &endpoints), client(2, &endpoints));
    one.check_versions().await.unwrap();
    let (revision, empty) = one.list().await.unwrap();
    let nothing = ViewChange::Listed {
        members: vec![],
        shards: vec![],
    };
    assert_eq!(empty, nothing);
    let mut watch = one.watch(revision + 1).await.unwrap();

    let (first, second) = (member(1, 11), member(2, u64::MAX));
    let registered = perform(&one, EtcdRequest::Register, 11).await;
    assert_eq!(registered, EtcdReply::Registered(Boot(11)));
    assert_eq!(next(&mut watch).await, ViewChange::Up(first, 512, true));
    let claimed = perform(&one, claim(ClaimGuard::NoKey, first), 0).await;
    let EtcdReply::Done(epoch) = claimed else {
        panic!("{claimed:?}");
    };
    assert_eq!(
        next(&mut watch).await,
        ViewChange::Shard(SHARD, first, epoch)
    );
    let refused = perform(&one, claim(ClaimGuard::NoKey, first), 0).await;
    assert_eq!(refused, EtcdReply::Refused(Some((first, epoch))));

    // It can be handed only to a member that is registered.
    let hand = |epoch| EtcdRequest::Hand {
        shard: SHARD,
        epoch,
        to: second,
    };
    let refused = perform(&one, hand(epoch), 0).await;
    assert_eq!(refused, EtcdReply::Refused(Some((first, epoch))));
    perform(&two, EtcdRequest::Register, u64::MAX).await;
    assert_eq!(next(&mut watch).await, ViewChange::Up(second, 512, true));
    let handed = perform(&one, hand(epoch), 0).await;
    let EtcdReply::Done(later) = handed else {
        panic!("{handed:?}");
    };
    assert!(later > epoch);
    assert_eq!(
        next(&mut watch).await,
        ViewChange::Shard(SHARD, second, later)
    );
    let stale = perform(&one, hand(epoch), 0).await;
    assert_eq!(stale, EtcdReply::Refused(Some((second, later))));

    // It is claimed only from a member that is gone, at the revision that was seen.
    let gone = |epoch| claim(ClaimGuard::Gone(second, epoch), first);
    let refused = EtcdReply::Refused(Some((second, later)));
    assert_eq!(perform(&one, gone(later), 0).await, refused);
    let keepalive = EtcdRequest::Keepalive(Boot(u64::MAX));
    assert_eq!(perform(&two, keepalive, 0).await, EtcdReply::Alive);
    perform(&two, EtcdRequest::Revoke(second), 0).await;
    assert_eq!(next(&mut watch).await, ViewChange::Down(second));
    assert_eq!(perform(&two, keepalive, 0).await, EtcdReply::Gone);
    assert_eq!(perform(&one, gone(epoch), 0).await, refused);
    let claimed = perform(&one, gone(later), 0).await;
    let EtcdReply::Done(last) = claimed else {
        panic!("{claimed:?}");
    };
    let (_, listed) = two.list().await.unwrap();
    let expected = ViewChange::Listed {
        members: vec![(first, 512, true)],
        shards: vec![(SHARD, first, last)],
    };
    assert_eq!(listed, expected);
}

#[tokio::test]
async fn nodes_register_and_take_shards_by_guarded_transactions() {
    let (_, endpoint) = Fake::start("3.6.16").await;
    two_nodes_share_a_shard(endpoint).await;
}

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The same with etcd itself, where `BYWASH_ETCD` names its program.
#[tokio::test]
async fn real_etcd_is_understood() {
    let Some(program) = std::env::var_os("BYWASH_ETCD") else {
        return;
    };
    let folder = std::env::temp_dir().join(format!("bywash-etcd-{}", std::process::id()));
    let free = || {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", socket.local_addr().unwrap())
    };
    let (clients, peers) = (free(), free());
    let server = Command::new(program)
        .arg("--data-dir")
        .arg(&folder)
        .args([
            "--listen-client-urls",
            &clients,
            "--advertise-client-urls",
            &clients,
        ])
        .args(["--listen-peer-urls", &peers, "--log-level", "error"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let server = Server(server.unwrap());
    let endpoint = Url::parse(&clients).unwrap();
    let etcd = client(9, std::slice::from_ref(&endpoint));
    let mut ticks = tokio::time::interval(Duration::from_millis(100));
    while etcd.list().await.is_err() {
        ticks.tick().await;
    }
    two_nodes_share_a_shard(endpoint).await;
    drop(server);
    let _ = std::fs::remove_dir_all(folder);
}

#[tokio::test]
async fn endpoint_without_a_response_gives_way_to_the_next() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent_url = format!("http://{}", silent.local_addr().unwrap());
    let (_, endpoint) = Fake::start("3.6.16").await;
    let etcd = client(1, &[Url::parse(&silent_url).unwrap(), endpoint]);
    assert_eq!(
        perform(&etcd, EtcdRequest::Register, 5).await,
        EtcdReply::Unknown
    );
    let registered = perform(&etcd, EtcdRequest::Register, 5).await;
    assert_eq!(registered, EtcdReply::Registered(Boot(5)));
}

#[tokio::test]
async fn old_version_is_refused() {
    let (_, endpoint) = Fake::start("3.6.8").await;
    let refused = client(1, &[endpoint]).check_versions().await.unwrap_err();
    assert!(matches!(refused, EtcdError::Version(_)), "{refused}");
    assert!(refused.to_string().contains("3.6.9"), "{refused}");
}

#[tokio::test]
async fn restored_cluster_is_reported_once() {
    let (fake, endpoint) = Fake::start("3.6.16").await;
    let etcd = client(1, &[endpoint]);
    etcd.list().await.unwrap();
    fake.restore();
    let changed = etcd.list().await.unwrap_err();
    assert!(
        matches!(changed, EtcdError::ClusterChanged { .. }),
        "{changed}"
    );
    etcd.list().await.unwrap();
}

#[tokio::test]
async fn watch_of_a_compacted_revision_ends() {
    let (fake, endpoint) = Fake::start("3.6.16").await;
    let etcd = client(1, &[endpoint]);
    perform(&etcd, EtcdRequest::Register, 5).await;
    fake.compact();
    let mut watch = etcd.watch(1).await.unwrap();
    assert_eq!(watch.next().await.unwrap(), None);
    // A revision that is not compacted is watched from its beginning.
    let (revision, _) = etcd.list().await.unwrap();
    perform(&etcd, claim(ClaimGuard::NoKey, member(1, 5)), 0).await;
    let mut watch = etcd.watch(revision + 1).await.unwrap();
    let (at, change) = watch.next().await.unwrap().unwrap();
    assert_eq!(at, revision + 1);
    assert_eq!(change, ViewChange::Shard(SHARD, member(1, 5), Epoch(at)));
}

#[tokio::test]
async fn response_beyond_its_limit_is_refused() {
    let long = || async { "x".repeat(RESPONSE_BYTES + 1) };
    let router = axum::Router::new().route("/version", axum::routing::get(long));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    let etcd = client(1, &[Url::parse(&endpoint).unwrap()]);
    let refused = etcd.check_versions().await.unwrap_err();
    assert!(refused.to_string().contains("too long"), "{refused}");
}
