//! Bytes on a connection that no HTTP server would send.

use std::time::Duration;

use bytes::Bytes;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::Reply;

/// What happens on a connection in place of a response. After the last step it closes.
#[derive(Debug, Clone)]
pub(super) enum Step {
    /// These bytes.
    Send(Bytes),
    /// These bytes in pieces, a pause after each.
    Drip(Bytes, usize, Duration),
    /// These bytes again and again, until the client leaves.
    Flood(Bytes),
    /// Nothing more, until the client leaves.
    Stall,
    /// The connection is reset.
    Reset,
}

impl Step {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self::Send(Bytes::from(text.into()))
    }
}

/// Carries out the steps. Ends early when the client leaves.
pub(super) async fn perform(mut connection: TcpStream, steps: Vec<Step>) {
    for step in steps {
        if take(&mut connection, step).await.is_err() {
            return;
        }
    }
    let _ = connection.shutdown().await;
}

async fn take(connection: &mut TcpStream, step: Step) -> std::io::Result<()> {
    match step {
        Step::Send(bytes) => connection.write_all(&bytes).await,
        Step::Drip(bytes, piece, pause) => {
            for piece in bytes.chunks(piece) {
                connection.write_all(piece).await?;
                tokio::time::sleep(pause).await;
            }
            Ok(())
        }
        Step::Flood(bytes) => loop {
            connection.write_all(&bytes).await?;
            // A client on the same thread must be able to give up.
            tokio::task::yield_now().await;
        },
        Step::Stall => left(connection).await,
        Step::Reset => {
            // What is not acknowledged yet is dropped with the connection, and a reset sent.
            connection.set_zero_linger()?;
            Err(std::io::ErrorKind::ConnectionReset.into())
        }
    }
}

/// Waits until the client leaves.
async fn left(connection: &mut TcpStream) -> std::io::Result<()> {
    use tokio::io::AsyncReadExt;
    let mut unread = [0; 1024];
    while connection.read(&mut unread).await? > 0 {}
    Err(std::io::ErrorKind::ConnectionAborted.into())
}

/// The head of `reply` as HTTP/1.1 sends it, up to and with the empty line. Content-Length is as `length` says.
pub(super) fn head(reply: &Reply, length: Option<&str>) -> String {
    let mut text = format!("HTTP/1.1 {}\r\n", reply.status);
    for (name, value) in &reply.headers {
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
