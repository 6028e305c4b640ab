//! Calls and their responses.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use bywash::ContentDigest;
use bywash::cluster::ObjectVersion;
use object_store::{Attribute, Attributes, ObjectMeta};
use tokio::sync::Notify;

use super::*;
use crate::limits::MAX_BATCHED_REQUESTS;
use crate::message::{OpId, Token};

fn version() -> Arc<ObjectVersion> {
    let mut attributes = Attributes::new();
    attributes.insert(Attribute::ContentType, "text/plain".into());
    attributes.insert(Attribute::Metadata("owner".into()), "ä\n\u{1F600}".into());
    Arc::new(ObjectVersion {
        meta: ObjectMeta {
            location: Path::from("a/b"),
            last_modified: chrono::DateTime::from_timestamp(1_700_000_000, 123_456_789).unwrap(),
            size: u64::MAX,
            e_tag: Some("\"1\"".to_owned()),
            version: None,
        },
        attributes,
        tag_count: 3,
        digest: Some(ContentDigest::Sha256([9; 32])),
    })
}

fn requests() -> Vec<PeerRequest> {
    let key = Key::new("bucket", "a/ä");
    let token = Token {
        node: NodeId(u64::MAX),
        process: 1 << 63,
        op: OpId(0),
    };
    vec![
        PeerRequest::Open {
            key: key.clone(),
            window: Duration::from_nanos(1_500_000_001),
        },
        PeerRequest::Begin {
            token,
            key: key.clone(),
        },
        PeerRequest::End {
            token,
            key: key.clone(),
        },
        PeerRequest::Drop { key },
        PeerRequest::Released(Boot(u64::MAX)),
    ]
}

fn responses() -> Vec<Response> {
    vec![
        PeerResponse::Version {
            version: Some(version()),
            lease: Duration::from_millis(700),
        },
        PeerResponse::Version {
            version: None,
            lease: Duration::ZERO,
        },
        PeerResponse::AskOrigin,
        PeerResponse::NotMine,
        PeerResponse::Done,
        PeerResponse::Dropped,
        PeerResponse::Released(true),
        PeerResponse::Released(false),
    ]
}

#[tokio::test]
async fn each_request_arrives_and_each_response_returns() {
    let all = Arc::new(Mutex::new(responses()));
    let left = Arc::clone(&all);
    let port = start(Service::responding(move |_| {
        let next = left.lock().unwrap().remove(0);
        async { next }.boxed()
    }))
    .await;
    let client = client();
    for response in responses() {
        let first = vec![requests().remove(0)];
        let got = client.call(&port.address, first, &|| ()).await;
        assert_eq!(got, Ok(vec![response]));
    }
    *all.lock().unwrap() = vec![PeerResponse::Done; 5];
    for request in requests() {
        let got = client.call(&port.address, vec![request], &|| ()).await;
        assert_eq!(got, Ok(vec![PeerResponse::Done]));
    }
    let calls = port.service.calls.lock().unwrap();
    let expected: Vec<_> = requests()
        .into_iter()
        .map(|request| (CLIENT, request))
        .collect();
    assert_eq!(calls[responses().len()..], expected);
}

#[tokio::test]
async fn requests_of_a_message_have_a_response_each_in_their_order() {
    let port = start(Service::responding(|request| {
        let response = match request {
            PeerRequest::Drop { .. } => PeerResponse::Dropped,
            PeerRequest::Open { .. } => PeerResponse::AskOrigin,
            PeerRequest::Released(_) => PeerResponse::Released(true),
            _ => PeerResponse::Done,
        };
        async { response }.boxed()
    }))
    .await;
    let got = client().call(&port.address, requests(), &|| ()).await;
    let expected = [
        PeerResponse::AskOrigin,
        PeerResponse::Done,
        PeerResponse::Done,
        PeerResponse::Dropped,
        PeerResponse::Released(true),
    ];
    assert_eq!(got.unwrap(), expected);
    let executed = port.service.executed();
    assert_eq!(executed, requests().len());
    // None is executed of a message with one too many.
    let many = vec![drop_request(); MAX_BATCHED_REQUESTS];
    let got = client().call(&port.address, many.clone(), &|| ()).await;
    assert_eq!(got.unwrap().len(), MAX_BATCHED_REQUESTS);
    let further = [many, vec![drop_request()]].concat();
    for refused in [further, Vec::new()] {
        let got = client().call(&port.address, refused, &|| ()).await;
        assert_eq!(got, Err(PeerError::Unreachable));
    }
    assert_eq!(port.service.executed(), executed + MAX_BATCHED_REQUESTS);
}

#[tokio::test]
async fn slow_service_is_alive() {
    let enough = Arc::new(Notify::new());
    let go = Arc::clone(&enough);
    let port = start(Service::responding(move |_| {
        let go = Arc::clone(&go);
        async move {
            go.notified().await;
            PeerResponse::Dropped
        }
        .boxed()
    }))
    .await;
    let seen = AtomicU32::new(0);
    let alive = || {
        if seen.fetch_add(1, SeqCst) == 20 {
            enough.notify_one();
        }
    };
    let requests = vec![drop_request()];
    let got = client().call(&port.address, requests, &alive).await;
    assert_eq!(got, Ok(vec![PeerResponse::Dropped]));
    assert!(seen.load(SeqCst) > 20);
}

#[tokio::test]
async fn client_that_leaves_ends_the_call_at_the_service() {
    let (begun, began) = oneshot::channel::<()>();
    let (held, dropped) = oneshot::channel::<()>();
    let once = Mutex::new(Some((begun, held)));
    let port = start(Service::responding(move |_| {
        let (begun, held) = once.lock().unwrap().take().unwrap();
        async move {
            let _held = held;
            begun.send(()).unwrap();
            std::future::pending().await
        }
        .boxed()
    }))
    .await;
    let to = port.address.clone();
    let caller = tokio::spawn(async move { call(&client(), &to).await });
    began.await.unwrap();
    caller.abort();
    assert!(dropped.await.is_err(), "the service's future is dropped");
}

#[tokio::test]
async fn response_that_fits_no_frame_leads_to_the_origin() {
    let mut long = version().as_ref().clone();
    let value = "x".repeat(crate::limits::MAX_FRAME_BYTES);
    long.attributes
        .insert(Attribute::CacheControl, value.into());
    let long = Arc::new(long);
    let port = start(Service::responding(move |_| {
        let version = Some(Arc::clone(&long));
        let lease = Duration::ZERO;
        async move { PeerResponse::Version { version, lease } }.boxed()
    }))
    .await;
    assert_eq!(
        call(&client(), &port.address).await,
        Ok(PeerResponse::AskOrigin)
    );
}
