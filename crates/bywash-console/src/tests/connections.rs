//! The admin address and clients that hold on to it: too many clients, heads that do not end,
//! responses that are not read.

use std::net::SocketAddr;
use std::time::Duration;

use bywash::Share;
use tokio::net::TcpSocket;
use tokio::time::timeout;

use super::*;

/// Time after which a test has failed.
const LONG: Duration = Duration::from_secs(60);

async fn connect(address: SocketAddr, sent: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(sent).await.unwrap();
    stream
}

/// Waits until the server has closed the connection, and returns the bytes that it sent before.
async fn until_closed(mut stream: TcpStream) -> Vec<u8> {
    let mut response = Vec::new();
    // A reset also counts as the end.
    let _ = timeout(LONG, stream.read_to_end(&mut response))
        .await
        .expect("the server closes the connection");
    response
}

#[tokio::test]
async fn silent_connections_past_the_limit_keep_no_new_client_out() {
    let console = start(engine()).await;
    let mut silent = Vec::new();
    for _ in 0..MAX_ADMIN_CONNECTIONS + 16 {
        silent.push(connect(console.address, b"").await);
    }
    // It gets a response only after silent connections were closed for it and for those before it.
    let response = console.request("GET /healthz HTTP/1.1\r\nHost: localhost");
    let (status, _, _) = timeout(LONG, response).await.unwrap();
    assert_eq!(status, 200);
    let closed = silent.iter().filter(|stream| {
        let mut byte = [0];
        matches!(stream.try_read(&mut byte), Ok(0))
    });
    assert!(closed.count() > 16);
}

/// Sends a scrape on an open connection. Returns the status, or `None` if the connection is closed.
async fn scrape(stream: &mut TcpStream) -> Option<u16> {
    let request =
        format!("GET /metrics HTTP/1.1\r\nHost: metrics.example\r\nAuthorization: {KEY}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let (mut got, mut piece) = (Vec::new(), [0; 4 << 10]);
    loop {
        let length = timeout(LONG, stream.read(&mut piece)).await.unwrap().ok()?;
        if length == 0 {
            return None;
        }
        got.extend_from_slice(&piece[..length]);
        let text = String::from_utf8_lossy(&got);
        if let Some((head, body)) = text.split_once("\r\n\r\n")
            && header(head, "content-length").unwrap().parse() == Ok(body.len())
        {
            return head.split(' ').nth(1)?.parse().ok();
        }
    }
}

#[tokio::test]
async fn scraper_past_the_limit_of_the_metrics_address_takes_the_place_of_the_longest_idle() {
    let (address, server) = serve_metrics(engine(), vec![metrics_reader("key", None)]).await;
    let mut open = Vec::new();
    for _ in 0..MAX_METRICS_CONNECTIONS {
        open.push(connect(address, b"").await);
        assert_eq!(scrape(open.last_mut().unwrap()).await, Some(200));
    }
    // Waits in the backlog until another connection has been idle for a second.
    let mut next = connect(address, b"").await;
    assert_eq!(scrape(&mut next).await, Some(200));
    let mut served = Vec::new();
    for stream in &mut open {
        served.push(scrape(stream).await == Some(200));
    }
    // A slow machine may close more than one, always the connections that are idle longest.
    let closed = served.iter().take_while(|served| !**served).count();
    assert!((1..MAX_METRICS_CONNECTIONS).contains(&closed), "{served:?}");
    assert!(served[closed..].iter().all(|served| *served), "{served:?}");
    server.abort();
}

#[tokio::test]
async fn head_that_does_not_end_is_closed_at_its_deadline() {
    let limits = Limits {
        head: Duration::from_millis(200),
        ..Limits::default()
    };
    let console = start_limited(engine(), key(), None, limits).await;
    for sent in [
        "",
        "GET /stats HTT",
        "GET /stats HTTP/1.1\r\nHost: localhost\r\n",
    ] {
        let stream = connect(console.address, sent.as_bytes()).await;
        assert_eq!(until_closed(stream).await, b"", "{sent:?}");
    }
}

#[tokio::test]
async fn head_of_more_than_64_kib_is_refused() {
    let console = start(engine()).await;
    let head = |length| {
        let long = "a".repeat(length);
        format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: {long}")
    };
    let (status, _, _) = console.request(&head(60 << 10)).await;
    assert_eq!(status, 200);
    let stream = connect(console.address, head(64 << 10).as_bytes()).await;
    let response = String::from_utf8(until_closed(stream).await).unwrap();
    assert!(response.starts_with("HTTP/1.1 431 "), "{response}");
}

#[tokio::test]
async fn response_that_its_client_does_not_read_is_cut_and_its_memory_released() {
    let limits = Limits {
        stalled_body: Duration::from_millis(300),
        ..Limits::default()
    };
    let engine = engine();
    let console = start_limited(engine.clone(), key(), None, limits).await;
    let lines: String = (1..=60_000).map(|at| format!("m f=1 {at}\n")).collect();
    let (status, _, body) = console.post("/write", "", lines.as_bytes()).await;
    assert_eq!(status, 204, "{body}");
    let held = || engine.budget().held(Share::Upload);
    let before = held();
    let head = format!(
        "GET /series/query?source=m&start=0&end=60000 HTTP/1.1\r\nHost: localhost\r\nAuthorization: {KEY}\r\n\r\n"
    );
    // A small window, so that the kernel does not take the response for its client.
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(16 << 10).unwrap();
    let mut stalled = socket.connect(console.address).await.unwrap();
    stalled.write_all(head.as_bytes()).await.unwrap();
    let mut status = [0; 12];
    stalled.read_exact(&mut status).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 200");
    assert!(
        held() > before + (1 << 20),
        "{} bytes are charged, where there were {before}",
        held()
    );
    let released = async {
        while held() > before {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(
        timeout(LONG, released).await.is_ok(),
        "{} bytes stay charged, where there were {before}",
        held()
    );
    let mut response = Vec::new();
    let _ = timeout(LONG, stalled.read_to_end(&mut response))
        .await
        .unwrap();
    let text = String::from_utf8_lossy(&response);
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let whole: usize = header(head, "content-length").unwrap().parse().unwrap();
    assert!(body.len() < whole, "{} of {whole}", body.len());
}

#[tokio::test]
async fn login_with_a_long_body_is_refused() {
    let console = start(engine()).await;
    let body = format!("access_key=key&secret_key={}", "s".repeat(16 << 10));
    let headers = "Content-Type: application/x-www-form-urlencoded\r\n";
    let (status, _, _) = console.post("/login", headers, body.as_bytes()).await;
    assert_eq!(status, 413);
}
