//! Memory of connections and messages: charged, refused beyond the limit, and released.

use bywash::{Reservation, Share};
use tokio::sync::Notify;

use super::*;
use crate::limits::{
    MAX_CALL_BYTES, MAX_FREE_CALL_BYTES, MAX_FREE_RESPONSE_BYTES, MAX_PEER_HEAD_BYTES,
    MAX_PEERS_MEMORY_DIVISOR, PEER_CONNECTION_BYTES, PEER_READ_BYTES,
};
use crate::message::{OpId, Token};

const MEMORY: u64 = 64 << 20;

/// Takes the remaining memory of an engine.
fn fill(engine: &Engine) -> Vec<Reservation> {
    let mut held = Vec::new();
    for step in [1 << 20, 1 << 10] {
        for share in [Share::Download, Share::Upload] {
            held.extend(std::iter::from_fn(|| engine.try_reserve(share, step)));
        }
    }
    held
}

/// As the begins of a request that deletes many objects.
fn begins(count: u64) -> Vec<PeerRequest> {
    let token = |op| Token {
        node: CLIENT,
        process: 1,
        op: OpId(op),
    };
    let begin = |op| PeerRequest::Begin {
        token: token(op),
        key: Key::new("bucket", format!("some/folder/{op:08}")),
    };
    (0..count).map(begin).collect()
}

async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    assert!(waited.await.is_ok(), "{what}");
}

async fn until_free(engine: &Engine) {
    until("all is released", || engine.budget().used() == 0).await;
}

/// A client that charges its memory to this engine.
fn client_in(engine: &Engine) -> PeerClient {
    let client = client();
    let none_for_calls = PortSettings {
        calls_bytes: 0,
        ..settings()
    };
    client.set_memory(&PeerMemory::new(engine, &none_for_calls));
    client
}

/// A service of endless block streams.
fn endless() -> Service {
    Service::reading(|_| {
        let bytes = futures::stream::iter([Ok(Bytes::from_static(b"1234"))]);
        async move { Ok(bytes.chain(futures::stream::pending()).boxed()) }.boxed()
    })
}

#[tokio::test]
async fn long_message_without_memory_is_busy_and_a_short_one_is_served() {
    let engine = engine();
    let port = start_in(&engine, Service::new(), &keys(&[1]), settings()).await;
    let client = client();
    let to = &port.address;
    assert!(call(&client, to).await.is_ok());
    assert_eq!(engine.budget().used(), PEER_CONNECTION_BYTES);
    let held = fill(&engine);
    let executed = port.service.executed();
    let refused = client.call(to, begins(1000), &|| ()).await;
    assert_eq!(refused, Err(PeerError::Busy));
    assert_eq!(port.service.executed(), executed);
    // By the same connection, or another could not be had.
    assert!(call(&client, to).await.is_ok());
    drop(held);
    let served = client.call(to, begins(1000), &|| ()).await;
    assert_eq!(served.unwrap().len(), 1000);
    drop(client);
    until_free(&engine).await;
}

#[tokio::test]
async fn message_is_charged_from_its_head_until_its_response() {
    let (go, begun) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let service = connections::waiting(&go, &begun);
    let engine = engine();
    let port = start_in(&engine, service, &keys(&[1]), settings()).await;
    let to = port.address.clone();
    for (count, charged) in [(1, false), (100, true)] {
        let to = to.clone();
        let caller = tokio::spawn(async move { client().call(&to, begins(count), &|| ()).await });
        begun.notified().await;
        let used = engine.budget().used();
        assert_eq!(used > PEER_CONNECTION_BYTES, charged, "{count}: {used}");
        for _ in 1..count {
            go.notify_one();
            begun.notified().await;
        }
        go.notify_one();
        assert!(caller.await.unwrap().is_ok());
        until_free(&engine).await;
    }
    // One byte below and above the size that the charge of a connection covers.
    let exact = |length: usize| {
        let drop = r#"[{"drop":{"bucket":"b","paths":["k"]}}]"#;
        drop.to_owned() + &" ".repeat(length - drop.len())
    };
    for (length, charged) in [
        (MAX_FREE_CALL_BYTES, false),
        (MAX_FREE_CALL_BYTES + 1, true),
    ] {
        let request = raw_request("/v1/call", &exact(length), ("", ""));
        let held = async {
            begun.notified().await;
            let used = engine.budget().used();
            go.notify_one();
            used
        };
        let (response, used) = tokio::join!(raw_exchange(&port, request.as_bytes()), held);
        assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
        assert_eq!(used > PEER_CONNECTION_BYTES, charged, "{length}: {used}");
    }
}

#[tokio::test]
async fn connections_beyond_their_part_of_the_memory_are_closed() {
    let (go, begun) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let engine = engine();
    let service = connections::waiting(&go, &begun);
    let port = start_in(&engine, service, &keys(&[1]), settings()).await;
    let most = MEMORY / MAX_PEERS_MEMORY_DIVISOR / PEER_CONNECTION_BYTES;
    connections::one_more_than(most, &port, (&go, &begun)).await;
    until_free(&engine).await;
    // Without any memory there is no connection at all.
    let held = fill(&engine);
    let refused = call(&client(), &port.address).await;
    assert_eq!(refused, Err(PeerError::Unreachable));
    drop(held);
    go.notify_one();
    assert!(call(&client(), &port.address).await.is_ok());
}

#[tokio::test]
async fn head_beyond_its_limit_is_refused() {
    let port = start(Service::new()).await;
    let long = format!("host: {}", "n".repeat(MAX_PEER_HEAD_BYTES));
    let request = raw_request("/v1/call", "[]", ("host: node", &long));
    let response = raw_exchange(&port, request.as_bytes()).await;
    assert!(response.starts_with("HTTP/1.1 431 "), "{response}");
    assert_eq!(port.service.executed(), 0);
}

#[tokio::test]
async fn reads_and_calls_without_memory_are_not_sent() {
    let port = start(Service::reading(|_| {
        let bytes = futures::stream::iter([Ok(Bytes::from_static(b"12345678"))]);
        async move { Ok(bytes.boxed()) }.boxed()
    }))
    .await;
    let engine = engine();
    let client = client_in(&engine);
    let held = fill(&engine);
    let refused = read(&client, &port.address, 8).await;
    assert_eq!(refused.err(), Some(PeerError::Busy));
    assert_eq!(call(&client, &port.address).await, Err(PeerError::Busy));
    assert_eq!(port.service.executed(), 0);
    drop(held);
    assert!(call(&client, &port.address).await.is_ok());
    let mut streams = Vec::new();
    for _ in 0..MEMORY / MAX_PEERS_MEMORY_DIVISOR / PEER_READ_BYTES {
        streams.push(read(&client, &port.address, 8).await.unwrap());
    }
    assert_eq!(engine.budget().used(), MEMORY / MAX_PEERS_MEMORY_DIVISOR);
    let refused = read(&client, &port.address, 8).await;
    assert_eq!(refused.err(), Some(PeerError::Busy));
    for stream in streams {
        assert_eq!(collect(stream).await.unwrap(), b"12345678");
    }
    assert_eq!(engine.budget().used(), 0);
}

#[tokio::test]
async fn calls_have_memory_that_neither_reads_nor_calls_that_wait_can_take() {
    let engine = engine();
    let port = start(endless()).await;
    let (to, client) = (&port.address, client());
    let for_calls = PortSettings {
        calls_bytes: 2 * PEER_CONNECTION_BYTES,
        ..settings()
    };
    let memory = PeerMemory::new(&engine, &for_calls);
    client.set_memory(&memory);
    let mut streams = Vec::new();
    while let Ok(stream) = read(&client, to, 8).await {
        streams.push(stream);
    }
    assert_eq!(engine.budget().used(), MEMORY / MAX_PEERS_MEMORY_DIVISOR);
    assert_eq!(call(&client, to).await, Ok(PeerResponse::Done));
    // A call that waits for an origin leaves the reserve of calls that do not.
    let waiting = memory.requested.call(1, true);
    assert!(waiting.is_ok() && memory.requested.call(1, true).is_err());
    let prompt = memory.requested.call(1, false);
    assert_eq!(call(&client, to).await, Err(PeerError::Busy));
    drop(prompt);
    // Nor does it need any memory of the budget.
    let _held = fill(&engine);
    assert_eq!(call(&client, to).await, Ok(PeerResponse::Done));
}

#[tokio::test]
async fn long_response_is_charged_before_it_is_read() {
    let mut writer = frame::FrameWriter::new();
    let text = |length| vec![b' '; length];
    let short = writer.response(&text(MAX_FREE_RESPONSE_BYTES)).unwrap();
    let mut writer = frame::FrameWriter::new();
    let long = writer.response(&text(MAX_CALL_BYTES)).unwrap();
    let engine = engine();
    let client = client_in(&engine);
    let mut held = fill(&engine);
    // Room for a call, and for no more.
    let free = |engine: &Engine| engine.budget().limit() - engine.budget().used();
    while free(&engine) < PEER_CONNECTION_BYTES {
        held.pop();
    }
    // Neither is one of the protocol.
    for (body, expected) in [(short, PeerError::Unreachable), (long, PeerError::Busy)] {
        let to = raw_server(body.to_vec()).await;
        assert_eq!(call(&client, &to).await, Err(expected));
    }
}
