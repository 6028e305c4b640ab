//! Raw bytes and stalls on a connection, for responses that violate HTTP.

use std::time::Duration;

use bytes::Bytes;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::HttpResponse;

/// WireStep on a connection in place of a response. The connection closes after the last one.
#[derive(Debug, Clone)]
pub(super) enum WireStep {
    /// Sends these bytes.
    Send(Bytes),
    /// Sends these bytes in pieces of a length, with a pause after each.
    Drip(Bytes, usize, Duration),
    /// Sends these bytes repeatedly until the client disconnects.
    Flood(Bytes),
    /// Sends nothing until the client disconnects.
    Stall,
    /// Resets the connection.
    Reset,
}

impl WireStep {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self::Send(Bytes::from(text.into()))
    }
}

/// Performs the steps. Ends early when the client disconnects.
pub(super) async fn perform(mut connection: TcpStream, steps: Vec<WireStep>) {
    for step in steps {
        if perform_step(&mut connection, step).await.is_err() {
            return;
        }
    }
    let _ = connection.shutdown().await;
}

async fn perform_step(connection: &mut TcpStream, step: WireStep) -> std::io::Result<()> {
    match step {
        WireStep::Send(bytes) => connection.write_all(&bytes).await,
        WireStep::Drip(bytes, piece, pause) => {
            for piece in bytes.chunks(piece) {
                connection.write_all(piece).await?;
                tokio::time::sleep(pause).await;
            }
            Ok(())
        }
        WireStep::Flood(bytes) => loop {
            connection.write_all(&bytes).await?;
            // A client on the same thread must be able to cancel.
            tokio::task::yield_now().await;
        },
        WireStep::Stall => disconnected(connection).await,
        WireStep::Reset => {
            // Drops unacknowledged bytes and sends a reset.
            connection.set_zero_linger()?;
            Err(std::io::ErrorKind::ConnectionReset.into())
        }
    }
}

/// Waits until the client disconnects.
async fn disconnected(connection: &mut TcpStream) -> std::io::Result<()> {
    use tokio::io::AsyncReadExt;
    let mut unread = [0; 1024];
    while connection.read(&mut unread).await? > 0 {}
    Err(std::io::ErrorKind::ConnectionAborted.into())
}

/// Formats the head of `response` in HTTP/1.1, with its final empty line. `length` is its Content-Length, valid or not.
pub(super) fn head(response: &HttpResponse, length: Option<&str>) -> String {
    let mut text = format!("HTTP/1.1 {}\r\n", response.status);
    for (name, value) in &response.headers {
        if name != "content-length" || length.is_none() {
            text.push_str(&format!(
                "{name}: {}\r\n",
                String::from_utf8_lossy(value.as_bytes())
            ));
        }
    }
    if let Some(length) = length {
        text.push_str(&format!("content-length: {length}\r\n"));
    }
    text.push_str("\r\n");
    text
}
