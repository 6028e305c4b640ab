//! Connections: their limits, and the end of the server.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

use super::*;

/// A service whose calls wait for `go`, and which reports that one has begun.
pub(super) fn waiting(go: &Arc<Notify>, begun: &Arc<Notify>) -> Service {
    let (go, begun) = (Arc::clone(go), Arc::clone(begun));
    Service::responding(move |_| {
        let (go, begun) = (Arc::clone(&go), Arc::clone(&begun));
        async move {
            begun.notify_one();
            go.notified().await;
            PeerResponse::Done
        }
        .boxed()
    })
}

/// Has `most` calls in progress at a port of [`waiting`], and finds no room for another. Then it lets them end.
pub(super) async fn one_more_than(most: u64, port: &Running, (go, begun): (&Notify, &Notify)) {
    let mut callers = Vec::new();
    for _ in 0..most {
        let to = port.address.clone();
        callers.push(tokio::spawn(async move { call(&client(), &to).await }));
        begun.notified().await;
    }
    let refused = call(&client(), &port.address).await;
    assert_eq!(refused, Err(PeerError::Unreachable));
    for caller in callers {
        go.notify_one();
        assert_eq!(caller.await.unwrap(), Ok(PeerResponse::Done));
    }
}

#[tokio::test]
async fn half_open_connections_keep_no_member_out() {
    const CONNECTIONS: usize = 10_000;
    const PLACES: usize = 100;
    const HELD: usize = 250;
    let few = PortSettings {
        handshakes: PLACES,
        handshake: Duration::from_secs(60),
        ..settings()
    };
    let port = start_with(Service::new(), &keys(&[1]), few).await;
    let early = client();
    assert!(call(&early, &port.address).await.is_ok());
    let mut held = VecDeque::new();
    for number in 0..CONNECTIONS {
        let mut socket = TcpStream::connect(&port.address.address).await.unwrap();
        if number % 2 == 0 {
            // The beginning of a handshake.
            let _ = socket.write_all(&[0x16, 3, 1, 0]).await;
        }
        held.push_back(socket);
        if held.len() > HELD {
            held.pop_front();
        }
        if number % 100 == 0 {
            // A member that is connected notices nothing.
            assert!(call(&early, &port.address).await.is_ok(), "{number}");
        }
    }
    // One that is not takes the place of the oldest.
    assert!(call(&client(), &port.address).await.is_ok());
    // The port holds no more than its places: the others were closed.
    for mut socket in held.drain(..HELD - PLACES) {
        let read = socket.read(&mut [0]).await;
        assert!(matches!(read, Ok(0) | Err(_)));
    }
    let mut last = held.pop_back().unwrap();
    let still = tokio::time::timeout(Duration::from_millis(20), last.read(&mut [0])).await;
    assert!(still.is_err(), "the newest has its place");
}

#[tokio::test]
async fn handshake_that_takes_too_long_is_ended() {
    let short = PortSettings {
        handshake: Duration::from_millis(20),
        ..settings()
    };
    let port = start_with(Service::new(), &keys(&[1]), short).await;
    let mut socket = TcpStream::connect(&port.address.address).await.unwrap();
    assert!(matches!(socket.read(&mut [0]).await, Ok(0) | Err(_)));
}

#[tokio::test]
async fn idle_connection_is_closed_and_the_next_call_has_another() {
    let short = PortSettings {
        idle: Duration::from_millis(50),
        ..settings()
    };
    let port = start_with(Service::new(), &keys(&[1]), short).await;
    // Authenticated and silent.
    let response = raw_exchange(&port, b"").await;
    assert!(!response.contains("200"), "{response}");
    let client = client();
    for _ in 0..3 {
        assert!(call(&client, &port.address).await.is_ok());
        // Longer than the server keeps it.
        tokio::time::sleep(Duration::from_millis(120)).await;
    }
}

#[tokio::test]
async fn connection_beyond_the_limit_is_closed() {
    let (go, begun) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let two = PortSettings {
        connections: 2,
        ..settings()
    };
    let port = start_with(waiting(&go, &begun), &keys(&[1]), two).await;
    one_more_than(2, &port, (&go, &begun)).await;
    // Their clients are gone, and their connections with them.
    go.notify_one();
    while let Err(error) = call(&client(), &port.address).await {
        assert_eq!(error, PeerError::Unreachable);
    }
}

#[tokio::test]
async fn connection_that_is_idle_longest_makes_room_for_a_new_one() {
    let (go, begun) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let service = {
        let (go, begun) = (Arc::clone(&go), Arc::clone(&begun));
        let calls = AtomicUsize::new(0);
        Service::responding(move |_| {
            let (go, begun) = (Arc::clone(&go), Arc::clone(&begun));
            let is_first = calls.fetch_add(1, Ordering::SeqCst) == 0;
            async move {
                if is_first {
                    begun.notify_one();
                    go.notified().await;
                }
                PeerResponse::Done
            }
            .boxed()
        })
    };
    let two = PortSettings {
        connections: 2,
        ..settings()
    };
    let port = start_with(service, &keys(&[1]), two).await;
    let to = port.address.clone();
    let busy = tokio::spawn(async move { call(&client(), &to).await });
    begun.notified().await;
    // Authenticated and silent, like the connection of a node without power.
    let mut silent = raw_connection(&port).await;
    let members = [client(), client()];
    for member in [&members[0], &members[1], &members[0]] {
        assert_eq!(call(member, &port.address).await, Ok(PeerResponse::Done));
    }
    assert!(matches!(silent.read(&mut [0]).await, Ok(0) | Err(_)));
    // The one with a request keeps its room.
    go.notify_one();
    assert_eq!(busy.await.unwrap(), Ok(PeerResponse::Done));
}

#[tokio::test]
async fn stopped_server_ends_its_requests_first() {
    let (go, begun) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let port = start(waiting(&go, &begun)).await;
    let idle = client();
    go.notify_one();
    assert!(call(&idle, &port.address).await.is_ok());
    begun.notified().await;
    let to = port.address.clone();
    let last = tokio::spawn(async move { call(&client(), &to).await });
    begun.notified().await;
    port.stop.send(()).unwrap();
    // The listener is closed while the last request is in progress.
    while TcpStream::connect(&port.address.address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert!(!last.is_finished() && !port.ended.is_finished());
    go.notify_one();
    assert_eq!(last.await.unwrap(), Ok(PeerResponse::Done));
    assert_eq!(port.ended.await.unwrap(), 0);
    assert_eq!(
        call(&idle, &port.address).await,
        Err(PeerError::Unreachable)
    );
}

#[tokio::test]
async fn request_that_never_ends_is_cut_after_the_drain() {
    let (go, begun) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let short = PortSettings {
        drain: Duration::from_millis(50),
        ..settings()
    };
    let port = start_with(waiting(&go, &begun), &keys(&[1]), short).await;
    let to = port.address.clone();
    let caller = tokio::spawn(async move { call(&client(), &to).await });
    begun.notified().await;
    port.stop.send(()).unwrap();
    assert_eq!(port.ended.await.unwrap(), 1);
    assert_eq!(caller.await.unwrap(), Err(PeerError::Unreachable));
}
