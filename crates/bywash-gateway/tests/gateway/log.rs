//! The log line of each request.

use std::io::Write;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::http::{head, pattern};
use crate::server::Server;

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Lines {
    /// Waits for the line that has all of `parts`.
    async fn line(&self, parts: &[&str]) -> String {
        // A minute: who waits so long waits for ever.
        for _ in 0..6000 {
            let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
            if let Some(line) = text
                .lines()
                .find(|line| parts.iter().all(|part| line.contains(part)))
            {
                return line.to_owned();
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        panic!(
            "no line with {parts:?} in {}",
            String::from_utf8_lossy(&self.0.lock().unwrap())
        );
    }
}

#[tokio::test]
async fn every_request_has_its_line() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(move || writer.clone())
        .with_ansi(false)
        .with_env_filter("bywash::access=info")
        .finish();
    // For all tests of this binary: a subscriber of one thread only would miss what another thread
    // was the first to reach.
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let server = Server::anonymous().await;
    server
        .put("/memory/log%20this", &[], b"12345")
        .await
        .expect(200);
    lines
        .line(&[
            "method=PUT",
            "bucket=\"memory\"",
            "key=\"log this\"",
            "status=200",
            "bytes_in=5",
        ])
        .await;
    let reply = server.get("/memory/log%20this", &[]).await.expect(200);
    let id = format!(
        "request_id=\"{}\"",
        reply.header("x-amz-request-id").unwrap()
    );
    lines
        .line(&[
            &id,
            "method=GET",
            "status=200",
            "bytes=5",
            "duration_ms=",
            "outcome=\"complete\"",
        ])
        .await;
    server.get("/memory/log-absent", &[]).await.expect(404);
    lines.line(&["key=\"log-absent\"", "status=404"]).await;
    // A client that leaves in the middle of a body.
    server
        .put("/memory/log-large", &[], &pattern(32 << 20))
        .await
        .expect(200);
    let mut socket = tokio::net::TcpStream::connect(server.address)
        .await
        .unwrap();
    socket
        .write_all(head("GET", "/memory/log-large", &[]).as_bytes())
        .await
        .unwrap();
    socket.read_exact(&mut [0; 100]).await.unwrap();
    drop(socket);
    lines
        .line(&["key=\"log-large\"", "method=GET", "outcome=\"cut\""])
        .await;
}
