//! Raw sockets of hostile clients, with unfinished requests.

use std::net::SocketAddr;
use std::time::Duration;

use bywash_support::http::{Connection, HttpResponse, head};
use bywash_support::sign::{KEY, SECRET};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::client::{Account, ClockOffset, signed_head};
use crate::context::CaseContext;
use crate::record::{Class, Outcome};

/// Opens a connection with the smallest receive buffer, from the given loopback address.
pub(super) async fn open(address: SocketAddr, from: [u8; 4]) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(2048)?;
    socket.bind(SocketAddr::from((from, 0)))?;
    let connecting = socket.connect(address);
    tokio::time::timeout(Duration::from_secs(5), connecting)
        .await
        .map_err(|_| std::io::ErrorKind::TimedOut)?
}

/// Sends as much as the server accepts within two seconds. A stall is not an error.
pub(super) async fn send_available(socket: &mut TcpStream, bytes: &[u8]) {
    let _ = tokio::time::timeout(Duration::from_secs(2), socket.write_all(bytes)).await;
}

/// Formats a head signed with the server's key, with an unsigned payload of `length` bytes.
pub(super) fn unsigned_payload(request: (&str, &str, &str), length: Option<u64>) -> Vec<u8> {
    head_of(&Account::default(), request, length)
}

/// Formats a head signed with another key, with an unsigned payload of `length` bytes.
pub(super) fn head_of(
    account: &Account,
    request: (&str, &str, &str),
    length: Option<u64>,
) -> Vec<u8> {
    let signer = account.signer(ClockOffset::real());
    signed_head(&signer, request, &[], "UNSIGNED-PAYLOAD", length)
}

/// Reads at most 64 bytes each 500 ms, to the end.
pub(super) async fn read_slowly(socket: &mut TcpStream) {
    let mut byte = [0; 64];
    while let Ok(1..) = socket.read(&mut byte).await {
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Returns the time until the server closes the connection; `None` after `max`.
pub(super) async fn closed_within(socket: &mut TcpStream, max: Duration) -> Option<Duration> {
    let began = std::time::Instant::now();
    let reading = async {
        let mut buffer = [0; 1024];
        while let Ok(1..) = socket.read(&mut buffer).await {}
    };
    tokio::time::timeout(max, reading).await.ok()?;
    Some(began.elapsed())
}

/// Sends a request without an HTTP client. Returns a complete response, if it arrives in time.
pub(super) async fn exchange(
    address: SocketAddr,
    method: &str,
    request: &[u8],
    max: Duration,
) -> std::io::Result<HttpResponse> {
    let exchanging = async {
        let mut connection = Connection::open(address).await?;
        connection.exchange(method, request).await
    };
    tokio::time::timeout(max, exchanging)
        .await
        .map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))?
}

/// Sends one request to the console and judges its status.
pub(super) async fn admin(
    context: &CaseContext,
    class: Class,
    (method, target): (&str, &str),
    body: &[u8],
    good: &[u16],
) -> Option<HttpResponse> {
    let token = format!("Token {KEY}:{SECRET}");
    let length = body.len().to_string();
    let json = if body.starts_with(b"{") {
        "application/json"
    } else {
        "text/plain"
    };
    let headers = [
        ("Authorization", &*token),
        ("Content-Length", &*length),
        ("Content-Type", json),
    ];
    let mut request = head(method, target, &headers).into_bytes();
    request.extend_from_slice(body);
    let time = Duration::from_secs(20);
    let result = exchange(context.admin(), method, &request, time).await;
    let response = result.ok();
    let end = match &response {
        Some(response) if good.contains(&response.status) => Outcome::Correct,
        Some(response) if response.status >= 500 => {
            Outcome::Failed(format!("{target}: {}", response.status))
        }
        Some(response) => {
            Outcome::Wrong(format!("{target}: {} {}", response.status, response.text()))
        }
        None => Outcome::Failed(format!("{target}: no response")),
    };
    context.record.request(class, end);
    response
}
