#![allow(clippy::unwrap_used, reason = "tests")]

pub(crate) mod fake;
mod uploads;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use url::Url;

use super::client::RESPONSE_BYTES;
use super::{ClusterName, Etcd, EtcdError, MemberState, PROTOCOL, Record, Watch};
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
        state: MemberState::Up,
        protocol: PROTOCOL,
        process: 1,
        buckets: BTreeMap::new(),
        keys: Vec::new(),
    };
    etcd.perform(request, Boot(boot), &record).await.unwrap()
}

async fn next(watch: &mut Watch<'_>) -> ViewChange {
    let next = tokio::time::timeout(Duration::from_secs(10), watch.next());
    next.await.unwrap().unwrap().unwrap().change
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
    let empty = one.list().await.unwrap();
    let nothing = ViewChange::Listed {
        members: vec![],
        shards: vec![],
    };
    assert_eq!(empty.change, nothing);
    let mut watch = one.watch(empty.revision + 1).await.unwrap();

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
    let listed = two.list().await.unwrap().change;
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

/// etcd itself, which ends with it.
pub(crate) struct Server {
    process: Child,
    folder: PathBuf,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Starts etcd itself, if `BYWASH_ETCD` names its program.
pub(crate) async fn start_real(name: &str) -> Option<(Server, Url)> {
    let program = std::env::var_os("BYWASH_ETCD")?;
    let folder = std::env::temp_dir().join(format!("bywash-{name}-{}", std::process::id()));
    let free = || {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", socket.local_addr().unwrap())
    };
    let (clients, peers) = (free(), free());
    let process = Command::new(program)
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
    let process = process.unwrap();
    let server = Server { process, folder };
    let endpoint = Url::parse(&clients).unwrap();
    let etcd = client(9, std::slice::from_ref(&endpoint));
    let mut ticks = tokio::time::interval(Duration::from_millis(100));
    while etcd.list().await.is_err() {
        ticks.tick().await;
    }
    Some((server, endpoint))
}

/// The same with etcd itself.
#[tokio::test]
async fn real_etcd_is_understood() {
    let Some((_server, endpoint)) = start_real("etcd").await else {
        return;
    };
    two_nodes_share_a_shard(endpoint.clone()).await;
    shards_in_batches(endpoint.clone()).await;
    uploads::nodes_share_records(endpoint).await;
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
async fn shards_are_taken_in_batches_of_which_all_or_none_is_done() {
    let (fake, endpoint) = Fake::start("3.6.16").await;
    shards_in_batches(endpoint).await;
    assert!(fake.transactions() < 20);
}

async fn shards_in_batches(endpoint: Url) {
    let etcd = client(1, &[endpoint]);
    perform(&etcd, EtcdRequest::Register, 5).await;
    let me = member(1, 5);
    let claim = |shard| EtcdRequest::Claim {
        shard: Shard(100 + shard),
        guard: ClaimGuard::NoKey,
        to: me,
    };
    let most: Vec<_> = (0..super::BATCH as u16).map(claim).collect();
    let done = etcd.perform_batch(&most).await.unwrap();
    let Some(EtcdReply::Done(epoch)) = done[0] else {
        panic!("{done:?}");
    };
    assert_eq!(done.len(), most.len());
    assert!(
        done.iter()
            .all(|reply| *reply == Some(EtcdReply::Done(epoch)))
    );
    // One of these has a key: it alone is known to be refused for its own condition.
    let mixed = [claim(1000), claim(0), claim(1001)];
    let refused = Some(EtcdReply::Refused(Some((me, epoch))));
    let replies = etcd.perform_batch(&mixed).await.unwrap();
    assert_eq!(replies, [None, refused, None]);
    assert!(matches!(
        perform(&etcd, mixed[0], 0).await,
        EtcdReply::Done(_)
    ));
    // A holder that is gone, under the revision that was seen.
    perform(&etcd, EtcdRequest::Register, 6).await;
    perform(&etcd, EtcdRequest::Revoke(me), 0).await;
    let take = |shard| EtcdRequest::Claim {
        shard: Shard(100 + shard as u16),
        guard: ClaimGuard::Gone(me, epoch),
        to: member(1, 6),
    };
    let taken = etcd.perform_batch(&[take(0), take(1)]).await.unwrap();
    assert!(matches!(taken[1], Some(EtcdReply::Done(later)) if later > epoch));
    let stale = etcd.perform_batch(&[take(1), take(2)]).await.unwrap();
    assert!(matches!(stale[..], [Some(EtcdReply::Refused(_)), None]));
}

#[tokio::test]
async fn record_is_written_anew_while_its_registration_lasts() {
    let (_, endpoint) = Fake::start("3.6.16").await;
    let etcd = client(1, &[endpoint]);
    perform(&etcd, EtcdRequest::Register, 5).await;
    let seen = etcd.list().await.unwrap().members.remove(0);
    let mut record = seen.record.unwrap();
    record.state = MemberState::Leaving;
    assert!(etcd.update(Boot(5), &record).await.unwrap());
    let again = etcd.list().await.unwrap().members.remove(0);
    assert_eq!(again.record, Some(record.clone()));
    assert_eq!(again.registered, seen.registered);
    perform(&etcd, EtcdRequest::Revoke(member(1, 5)), 0).await;
    assert!(!etcd.update(Boot(5), &record).await.unwrap());
}

#[tokio::test]
async fn old_version_is_refused() {
    let (_, endpoint) = Fake::start("3.6.8").await;
    let refused = client(1, &[endpoint]).check_versions().await.unwrap_err();
    assert!(matches!(refused, EtcdError::Version(_)), "{refused}");
    assert!(refused.to_string().contains("3.6.9"), "{refused}");
}

#[tokio::test]
async fn address_that_is_no_etcd_is_another_error_than_an_etcd_that_does_not_respond() {
    let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gone = Url::parse(&format!("http://{}", socket.local_addr().unwrap())).unwrap();
    drop(socket);
    let (fake, endpoint) = Fake::start("3.6.16").await;
    let other = endpoint.join("other").unwrap();
    for (endpoints, expected) in [
        (vec![gone.clone()], Some(true)),
        (vec![gone.clone(), other.clone()], Some(false)),
        (vec![other.clone(), gone.clone()], Some(false)),
        (vec![other, endpoint.clone()], None),
        (vec![endpoint.clone(), gone], None),
    ] {
        let checked = client(1, &endpoints).check_versions().await;
        assert_eq!(checked.err().map(|error| error.may_pass()), expected);
    }
    // A proxy in front of it.
    fake.set_down(true);
    let silent = client(1, &[endpoint]).check_versions().await.unwrap_err();
    assert!(silent.may_pass(), "{silent}");
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
    let revision = etcd.list().await.unwrap().revision;
    perform(&etcd, claim(ClaimGuard::NoKey, member(1, 5)), 0).await;
    let mut watch = etcd.watch(revision + 1).await.unwrap();
    let seen = watch.next().await.unwrap().unwrap();
    let (at, change) = (seen.revision, seen.change);
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
