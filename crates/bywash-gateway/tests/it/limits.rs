//! Tests of clients that stall, send too much, or stay too long.

use std::time::Duration;

use bywash_gateway::{Limits, S3Config};
use bywash_sim::advance_clock_by_ticks;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::http::{head, pattern, raw, read_response, read_to_close, send};
use crate::server::{BUCKETS, Server};

const SHORT: Duration = Duration::from_millis(300);

/// An endpoint with limits longer than scheduling pauses of the machine.
async fn with(limits: Limits) -> Server {
    advance_clock_by_ticks();
    Server::start(S3Config {
        limits,
        ..S3Config::anonymous()
    })
    .await
}

#[tokio::test]
async fn stalled_reader_is_closed() {
    let server = with(Limits {
        stalled_body: SHORT,
        ..Limits::default()
    })
    .await;
    let body = pattern(64 << 20);
    server.put("/folder/key", &[], &body).await.expect(200);
    // A small window, so that the kernel does not buffer the whole body.
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(64 << 10).unwrap();
    let mut socket = socket.connect(server.address).await.unwrap();
    socket
        .write_all(head("GET", "/folder/key", &[]).as_bytes())
        .await
        .unwrap();
    let mut first = [0; 1024];
    socket.read_exact(&mut first).await.unwrap();
    // The endpoint closes by itself: both requests end, and the number in progress falls to zero.
    let begun = Instant::now();
    let ended = || server.engine.traffic().stats().requests == 2;
    while server.engine.stats().pool.flights > 0 || !ended() {
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "still serving a client that takes nothing"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let rest = read_to_close(&mut socket).await;
    assert!(rest.len() + first.len() < body.len(), "the body was cut");
    // All other clients are served.
    assert!(server.get("/folder/key", &[]).await.expect(200).body == body);
}

/// Stalled readers hold memory only briefly: the next one is served.
#[tokio::test]
async fn sixty_four_stalled_readers_do_not_stop_the_next() {
    advance_clock_by_ticks();
    let limits = Limits {
        stalled_body: Duration::from_secs(1),
        ..Limits::default()
    };
    let config = S3Config {
        limits,
        ..S3Config::anonymous()
    };
    let server = Server::start_in(64 << 20, config).await;
    server
        .put("/folder/large", &[], &pattern(96 << 20))
        .await
        .expect(200);
    let body = pattern(10 << 20);
    server.put("/folder/other", &[], &body).await.expect(200);
    let mut stalled = Vec::new();
    for client in 0..64 {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(64 << 10).unwrap();
        let mut socket = socket.connect(server.address).await.unwrap();
        // Different offsets, to share as few blocks as possible.
        let range = format!("bytes={}-", client << 20);
        socket
            .write_all(head("GET", "/folder/large", &[("Range", &range)]).as_bytes())
            .await
            .unwrap();
        stalled.push(socket);
    }
    let engine = server.engine.clone();
    let watching = tokio::spawn(async move {
        loop {
            let budget = engine.stats().budget;
            assert!(budget.used <= budget.limit, "{budget:?}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    let begun = Instant::now();
    assert!(server.get("/folder/other", &[]).await.expect(200).body == body);
    assert!(
        begun.elapsed() < Duration::from_secs(40),
        "{:?}",
        begun.elapsed()
    );
    assert!(!watching.is_finished());
    watching.abort();
}

/// More readers of different objects than memory has blocks: they stall, and the next one is served.
#[tokio::test]
async fn slow_readers_above_the_memory_leave_memory_for_the_next() {
    const READERS: usize = 200;
    advance_clock_by_ticks();
    let limits = Limits {
        stalled_body: Duration::from_secs(3600),
        ..Limits::default()
    };
    let config = S3Config {
        limits,
        ..S3Config::anonymous()
    };
    let server = Server::start_in(64 << 20, config).await;
    let body = pattern((1 << 20) + 7);
    let folder = server.root.path().join("folder");
    std::fs::write(folder.join("first"), &body).unwrap();
    for reader in 0..READERS {
        // Different objects in one file.
        let name = format!("slow-{reader}");
        std::fs::hard_link(folder.join("first"), folder.join(name)).unwrap();
    }
    let small = pattern(100_000);
    server.put("/folder/next", &[], &small).await.expect(200);
    let mut slow = Vec::new();
    for reader in 0..READERS {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(16 << 10).unwrap();
        let mut socket = socket.connect(server.address).await.unwrap();
        let target = format!("/folder/slow-{reader}");
        let request = head("GET", &target, &[("Connection", "close")]);
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut first = [0; 12];
        let begun = socket.read_exact(&mut first);
        let begun = tokio::time::timeout(Duration::from_secs(20), begun).await;
        begun.expect("a response begins").unwrap();
        assert_eq!(&first, b"HTTP/1.1 200");
        slow.push(socket);
    }
    let begun = Instant::now();
    assert!(server.get("/folder/next", &[]).await.expect(200).body == small);
    let waited = begun.elapsed();
    assert!(waited < Duration::from_secs(2), "{waited:?}");
    let budget = server.engine.stats().budget;
    assert!(budget.used <= budget.limit, "{budget:?}");
    // All slow clients continue and get their bytes.
    let mut reading = JoinSet::new();
    for mut socket in slow {
        reading.spawn(async move { read_to_close(&mut socket).await });
    }
    for rest in reading.join_all().await {
        assert!(rest.ends_with(&body), "other bytes than the object's");
    }
}

#[tokio::test]
async fn slow_reader_is_served() {
    let server = with(Limits {
        stalled_body: SHORT,
        ..Limits::default()
    })
    .await;
    let body = pattern(8 << 20);
    server.put("/memory/key", &[], &body).await.expect(200);
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    socket
        .write_all(head("GET", "/memory/key", &[]).as_bytes())
        .await
        .unwrap();
    let (mut buffer, mut got) = (vec![0; 1 << 20], 0);
    loop {
        match socket.read(&mut buffer).await.unwrap() {
            0 => break,
            bytes => got += bytes,
        }
        tokio::time::sleep(SHORT / 10).await;
    }
    assert!(got > body.len());
}

#[tokio::test]
async fn silent_sender_gets_request_timeout() {
    let server = with(Limits {
        silent_body: SHORT,
        ..Limits::default()
    })
    .await;
    for bucket in BUCKETS {
        server
            .put(&format!("/{bucket}/key"), &[], b"old")
            .await
            .expect(200);
        let files = server.files();
        for (announced, sent) in [("10", 3), ("40000000", 20_000_000)] {
            let mut socket = TcpStream::connect(server.address).await.unwrap();
            let target = format!("/{bucket}/key");
            socket
                .write_all(head("PUT", &target, &[("Content-Length", announced)]).as_bytes())
                .await
                .unwrap();
            socket.write_all(&pattern(sent)).await.unwrap();
            read_response(&mut socket)
                .await
                .expect_error(400, "RequestTimeout");
        }
        assert_eq!(
            server
                .get(&format!("/{bucket}/key"), &[])
                .await
                .expect(200)
                .text(),
            "old"
        );
        server.settled(&files).await;
    }
    // Also for operations whose body is buffered first.
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    socket
        .write_all(head("POST", "/memory?delete", &[("Content-Length", "100")]).as_bytes())
        .await
        .unwrap();
    read_response(&mut socket)
        .await
        .expect_error(400, "RequestTimeout");
}

#[tokio::test]
async fn slow_sender_is_served() {
    let server = with(Limits {
        silent_body: SHORT,
        ..Limits::default()
    })
    .await;
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    socket
        .write_all(head("PUT", "/memory/key", &[("Content-Length", "10")]).as_bytes())
        .await
        .unwrap();
    for _ in 0..10 {
        tokio::time::sleep(SHORT / 5).await;
        socket.write_all(b"x").await.unwrap();
    }
    read_response(&mut socket).await.expect(200);
}

#[tokio::test]
async fn head_above_the_limit_is_rejected() {
    let server = with(Limits {
        head_bytes: 16 << 10,
        ..Limits::default()
    })
    .await;
    server
        .put("/memory/key", &[("x-other", &"h".repeat(12 << 10))], b"x")
        .await
        .expect(200);
    let reply = server
        .put("/memory/key", &[("x-other", &"h".repeat(20 << 10))], b"x")
        .await;
    assert_eq!(reply.status, 431);
    let reply = raw(server.address, b"nonsense\r\n\r\n").await;
    assert_eq!(reply.status, 400);
}

#[tokio::test]
async fn idle_connections_and_slow_heads_are_closed() {
    let server = with(Limits {
        idle: SHORT,
        head: SHORT,
        ..Limits::default()
    })
    .await;
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    assert!(read_to_close(&mut silent).await.is_empty());
    let mut slow = TcpStream::connect(server.address).await.unwrap();
    slow.write_all(b"GET / HTTP/1.1\r\nHost:").await.unwrap();
    read_to_close(&mut slow).await;
    let mut kept = TcpStream::connect(server.address).await.unwrap();
    kept.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        .await
        .unwrap();
    let response = read_to_close(&mut kept).await;
    assert!(response.starts_with(b"HTTP/1.1 200"));
}

/// Sends a head in small pieces until the server closes. Returns whether the server closed by itself.
async fn drip(socket: &mut TcpStream) -> bool {
    for _ in 0..1000 {
        if socket.write_all(b"x").await.is_err() {
            return true;
        }
        tokio::time::sleep(SHORT / 10).await;
    }
    false
}

#[tokio::test]
async fn heads_and_idle_connections_have_separate_deadlines() {
    let server = with(Limits {
        head: SHORT,
        ..Limits::default()
    })
    .await;
    // The first head of a connection, and one after a request.
    let mut first = TcpStream::connect(server.address).await.unwrap();
    first.write_all(b"GET /").await.unwrap();
    assert!(
        drip(&mut first).await,
        "each drop came in time, the head did not"
    );
    let mut kept = TcpStream::connect(server.address).await.unwrap();
    for _ in 0..2 {
        kept.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            .await
            .unwrap();
        let mut status = [0; 12];
        kept.read_exact(&mut status).await.unwrap();
        assert_eq!(&status, b"HTTP/1.1 200");
        // Idle for longer than a head may take.
        let mut rest = [0; 4096];
        while let Ok(Ok(read)) = tokio::time::timeout(SHORT * 3, kept.read(&mut rest)).await {
            assert!(read > 0, "an idle connection was closed");
        }
    }
    kept.write_all(b"GET /").await.unwrap();
    assert!(drip(&mut kept).await);
}

#[tokio::test]
async fn unfinished_heads_above_their_memory_are_refused_with_slow_down() {
    advance_clock_by_ticks();
    // A 32nd of the memory: 512 KiB, so 3 heads of 60 KB.
    let server = Server::start_in(16 << 20, S3Config::anonymous()).await;
    let mut unfinished = Vec::new();
    for _ in 0..30 {
        let mut socket = TcpStream::connect(server.address).await.unwrap();
        socket
            .write_all(b"GET / HTTP/1.1\r\nx-other: ")
            .await
            .unwrap();
        // It may be refused during the write.
        let _ = socket.write_all(&[b'h'; 60_000]).await;
        unfinished.push(socket);
    }
    let refused = || server.engine.traffic().stats().refused_heads;
    let begun = Instant::now();
    while refused() < 26 {
        assert!(begun.elapsed() < Duration::from_secs(8), "{}", refused());
        tokio::time::sleep(SHORT / 30).await;
    }
    let used = server.engine.stats().budget.used;
    assert!(used >= 3 * 120_000, "the heads are charged: {used}");
    get_root(server.address).await;
    server
        .put("/memory/key", &[("x-other", &"h".repeat(3 << 10))], b"x")
        .await
        .expect(200);
    let mut responses = 0;
    for mut socket in unfinished {
        let mut first = [0; 1];
        let read = tokio::time::timeout(SHORT, socket.peek(&mut first)).await;
        if let Ok(Ok(1)) = read {
            let reply = read_response(&mut socket).await;
            assert!(reply.complete);
            assert_eq!(reply.header("retry-after"), Some("5"));
            reply.expect_error(503, "SlowDown");
            responses += 1;
        }
    }
    assert_eq!(responses, refused());
    // Their memory is released too.
    let begun = Instant::now();
    while server
        .get("/memory/key", &[("x-other", &"h".repeat(50 << 10))])
        .await
        .status
        != 200
    {
        assert!(begun.elapsed() < Duration::from_secs(8));
    }
}

/// A request in progress that waits for its body.
async fn begin_put(server: &Server) -> TcpStream {
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    let headers = [("Content-Length", "4"), ("Expect", "100-continue")];
    let head = head("PUT", "/memory/slow", &headers);
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut line = [0; 25];
    socket.read_exact(&mut line).await.unwrap();
    socket
}

#[tokio::test]
async fn connections_beyond_the_limit_wait_while_all_serve_requests() {
    let server = with(Limits {
        connections: 2,
        ..Limits::default()
    })
    .await;
    let mut first = begin_put(&server).await;
    let _second = begin_put(&server).await;
    let third = tokio::spawn(get_root(server.address));
    tokio::time::sleep(bywash_gateway::limits::MIN_RECLAIM_IDLE * 2).await;
    assert!(!third.is_finished());
    first.write_all(b"body").await.unwrap();
    read_response(&mut first).await.expect(200);
    third.await.unwrap();
    assert_eq!(server.engine.traffic().stats().reclaimed_connections, 0);
}

#[tokio::test]
async fn half_open_and_idle_connections_are_reclaimed_for_new_ones() {
    const ALL: usize = 200;
    let server = with(Limits {
        connections: ALL,
        ..Limits::default()
    })
    .await;
    let mut kept = TcpStream::connect(server.address).await.unwrap();
    kept.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        .await
        .unwrap();
    kept.read_exact(&mut [0; 12]).await.unwrap();
    let mut busy = begin_put(&server).await;
    let mut half_open = Vec::new();
    for number in 0..ALL * 2 {
        let mut socket = TcpStream::connect(server.address).await.unwrap();
        if number % 2 == 0 {
            // Some were closed already.
            let _ = socket.write_all(b"GET / HT").await;
        }
        half_open.push(socket);
    }
    // Max 10 s for a head and 60 s idle.
    let begun = Instant::now();
    for _ in 0..3 {
        get_root(server.address).await;
    }
    assert!(
        begun.elapsed() < Duration::from_secs(8),
        "{:?}",
        begun.elapsed()
    );
    assert!(server.engine.traffic().stats().reclaimed_connections > 0);
    // The longest idle one was closed first; one with a request in progress stays.
    read_to_close(&mut kept).await;
    busy.write_all(b"body").await.unwrap();
    read_response(&mut busy).await.expect(200);
}

/// A connection from another loopback address, as if from another machine.
async fn connect_from(source: &str, server: &Server) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(format!("{source}:0").parse().unwrap()).unwrap();
    socket.connect(server.address).await.unwrap()
}

#[tokio::test]
async fn address_above_its_connection_limit_is_rejected_and_others_are_not() {
    advance_clock_by_ticks();
    let config = S3Config {
        limits: Limits {
            connections_per_address: Some(2),
            ..Limits::default()
        },
        trusted_proxies: vec!["127.0.0.3".parse().unwrap()],
        ..S3Config::anonymous()
    };
    let server = Server::start(config).await;
    let refused = || server.engine.traffic().stats().refused_connections;
    let first = connect_from("127.0.0.2", &server).await;
    let _second = connect_from("127.0.0.2", &server).await;
    let mut third = connect_from("127.0.0.2", &server).await;
    assert!(read_to_close(&mut third).await.is_empty());
    assert_eq!(refused(), 1);
    let mut exempt = Vec::new();
    for source in ["127.0.0.1", "127.0.0.3"] {
        for _ in 0..4 {
            exempt.push(connect_from(source, &server).await);
        }
    }
    for socket in &mut exempt {
        socket
            .write_all(head("GET", "/", &[]).as_bytes())
            .await
            .unwrap();
        read_response(socket).await.expect(200);
    }
    assert_eq!(refused(), 1);
    drop(first);
    // Its slot is free once the server has seen the end.
    let begun = Instant::now();
    loop {
        let mut again = connect_from("127.0.0.2", &server).await;
        let _ = again.write_all(head("GET", "/", &[]).as_bytes()).await;
        if read_to_close(&mut again).await.starts_with(b"HTTP/1.1 200") {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(8));
        tokio::time::sleep(SHORT / 30).await;
    }
}

async fn get_root(address: std::net::SocketAddr) {
    send(address, "GET", "/", &[], b"").await.expect(200);
}

#[tokio::test]
async fn requests_in_progress_end_before_the_endpoint_does() {
    let mut server = with(Limits::default()).await;
    let address = server.address;
    let mut writing = TcpStream::connect(address).await.unwrap();
    writing
        .write_all(head("PUT", "/memory/key", &[("Content-Length", "10")]).as_bytes())
        .await
        .unwrap();
    writing.write_all(b"01234").await.unwrap();
    let idle = TcpStream::connect(address).await.unwrap();
    // Only after the other connection got a response is this request certainly in progress.
    send(address, "GET", "/", &[], b"").await.expect(200);
    server.begin_stop();
    while TcpStream::connect(address).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    writing.write_all(b"56789").await.unwrap();
    read_response(&mut writing).await.expect(200);
    let engine = server.engine.clone();
    assert_eq!(server.stopped().await.cut, 0);
    drop(idle);
    use object_store::ObjectStoreExt;
    let stored = engine
        .bucket("memory")
        .unwrap()
        .head(&"key".into())
        .await
        .unwrap();
    assert_eq!(stored.size, 10);
}

#[tokio::test]
async fn requests_exceeding_the_drain_are_cut() {
    let mut server = with(Limits {
        drain: SHORT,
        ..Limits::default()
    })
    .await;
    let mut writing = TcpStream::connect(server.address).await.unwrap();
    writing
        .write_all(
            head(
                "PUT",
                "/memory/key",
                &[("Content-Length", "10"), ("Expect", "100-continue")],
            )
            .as_bytes(),
        )
        .await
        .unwrap();
    let mut line = [0; 25];
    writing.read_exact(&mut line).await.unwrap();
    server.begin_stop();
    assert_eq!(server.stopped().await.cut, 1);
    assert!(read_to_close(&mut writing).await.is_empty());
}

/// A server of 64 MiB on a clock of ticks, at which bodies are silent for a short time while others wait for memory.
async fn with_contended_body() -> Server {
    let limits = Limits {
        contended_body: SHORT,
        ..Limits::default()
    };
    advance_clock_by_ticks();
    let config = S3Config {
        limits,
        ..S3Config::anonymous()
    };
    Server::start_in(64 << 20, config).await
}

/// Sends the head and 20,000 bytes of a PUT of 8 MiB.
async fn begun_put(server: &Server, key: &str) -> TcpStream {
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    let target = format!("/memory/{key}");
    let head = head("PUT", &target, &[("Content-Length", "8388608")]);
    socket.write_all(head.as_bytes()).await.unwrap();
    socket.write_all(&pattern(20_000)).await.unwrap();
    socket
}

/// Waits until begun uploads hold memory.
async fn hold_memory(server: &Server) {
    while server.engine.budget().held(bywash::Share::Upload) < 8 << 20 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn stalled_senders_give_up_their_memory_while_others_wait() {
    let server = with_contended_body().await;
    let begun = Instant::now();
    let mut stalled = Vec::new();
    for number in 0..20 {
        stalled.push(begun_put(&server, &format!("stalled-{number}")).await);
    }
    hold_memory(&server).await;
    let body = pattern(8 << 20);
    server.put("/memory/key", &[], &body).await.expect(200);
    // Without it, two rounds of the limit of any body.
    assert!(begun.elapsed() < Limits::default().silent_body);
    assert!(server.get("/memory/key", &[]).await.expect(200).body == body);
    // Whoever gave up its memory is told to send it again; the last ones, for which no one waits, are not.
    let mut first = stalled.swap_remove(0);
    read_response(&mut first)
        .await
        .expect_error(400, "RequestTimeout");
}

#[tokio::test]
async fn senders_of_a_byte_now_and_then_give_up_their_memory_while_others_wait() {
    let server = with_contended_body().await;
    let mut slow = JoinSet::new();
    for number in 0..20 {
        let mut socket = begun_put(&server, &format!("slow-{number}")).await;
        slow.spawn(async move {
            loop {
                tokio::time::sleep(SHORT * 4 / 5).await;
                if socket.write_all(b"x").await.is_err() {
                    return;
                }
            }
        });
    }
    hold_memory(&server).await;
    let begun = Instant::now();
    let body = pattern(8 << 20);
    server.put("/memory/key", &[], &body).await.expect(200);
    // Without a rate, it waits for their whole bodies, to the limit of a wait for memory.
    assert!(begun.elapsed() < Limits::default().silent_body);
    assert!(server.engine.traffic().stats().slow_bodies > 0);
    slow.abort_all();
}

#[tokio::test]
async fn senders_of_a_byte_now_and_then_go_on_while_no_one_waits() {
    let limits = Limits {
        contended_body: SHORT,
        ..Limits::default()
    };
    let server = with(limits).await;
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    let head = head("PUT", "/memory/key", &[("Content-Length", "8")]);
    socket.write_all(head.as_bytes()).await.unwrap();
    for byte in b"one by 1" {
        socket.write_all(&[*byte]).await.unwrap();
        tokio::time::sleep(SHORT).await;
    }
    read_response(&mut socket).await.expect(200);
    assert_eq!(server.engine.traffic().stats().slow_bodies, 0);
    let read = server.get("/memory/key", &[]).await.expect(200);
    assert_eq!(read.text(), "one by 1");
}
