//! Tests of the access log: one record a request, and none by default.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use bywash_gateway::{AccessLog, AccessLogFormat, AccessLogTarget, S3Config};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::http::{head, pattern};
use crate::server::{KEY, Server, signed};
use crate::sign::Signer;

struct Logged {
    server: Server,
    log: AccessLog,
    path: PathBuf,
    _folder: tempfile::TempDir,
}

/// A server that logs to a file `name`, which `make` may create first.
async fn start(config: S3Config, format: AccessLogFormat, make: impl FnOnce(&Path)) -> Logged {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("access.log");
    make(&path);
    let root = tempfile::tempdir().unwrap();
    let engine = Server::engine(16 << 20, &root);
    let log = AccessLog::open(AccessLogTarget::File(path.clone()), format, &engine)
        .await
        .unwrap();
    let config = S3Config {
        access_log: Some(log.clone()),
        ..config
    };
    let server = Server::start_with(engine, root, config).await;
    Logged {
        server,
        log,
        path,
        _folder: folder,
    }
}

impl Logged {
    /// Stops the server and its log. Returns the lines.
    async fn lines(self) -> Vec<String> {
        self.server.stopped().await;
        assert!(self.log.close().await);
        let text = std::fs::read_to_string(&self.path).unwrap();
        text.lines().map(str::to_owned).collect()
    }
}

#[tokio::test]
async fn every_request_has_its_json_line() {
    let logged = start(S3Config::anonymous(), AccessLogFormat::Json, |_| {}).await;
    let server = &logged.server;
    server
        .put("/memory/log%20this", &[], b"12345")
        .await
        .expect(200);
    let reply = server
        .get("/memory/log%20this", &[("User-Agent", "a \"test\"")])
        .await
        .expect(200);
    server.get("/memory/log-absent", &[]).await.expect(404);
    // A key that contains a whole line.
    server
        .get("/memory/a%0A%7B%22status%22%3A1%7D%22%1B%5B2J", &[])
        .await
        .expect(404);
    // A client that leaves within a body.
    server
        .put("/folder/log-large", &[], &pattern(32 << 20))
        .await
        .expect(200);
    let mut socket = tokio::net::TcpStream::connect(server.address)
        .await
        .unwrap();
    socket
        .write_all(head("GET", "/folder/log-large", &[]).as_bytes())
        .await
        .unwrap();
    socket.read_exact(&mut [0; 100]).await.unwrap();
    drop(socket);
    // The record of a cut body is written when the server notices.
    while server.engine.traffic().stats().requests < 6 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let mode = std::fs::metadata(&logged.path).unwrap().permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
    let id = reply.header("x-amz-request-id").unwrap().to_owned();
    let lines = logged.lines().await;
    let lines: Vec<serde_json::Value> = lines
        .iter()
        .map(|line| {
            assert!(!line.contains('\u{1b}'), "{line}");
            serde_json::from_str(line).unwrap()
        })
        .collect();
    assert_eq!(lines.len(), 6);
    for (line, operation, key, status) in [
        (&lines[0], "PutObject", "log this", 200),
        (&lines[1], "GetObject", "log this", 200),
        (&lines[2], "GetObject", "log-absent", 404),
        (&lines[3], "GetObject", "a\n{\"status\":1}\"\u{1b}[2J", 404),
        (&lines[4], "PutObject", "log-large", 200),
        (&lines[5], "GetObject", "log-large", 200),
    ] {
        assert_eq!(line["operation"], operation, "{line}");
        assert_eq!(line["key"], key, "{line}");
        assert_eq!(line["status"], status, "{line}");
        assert_eq!(line["remote_address"], "127.0.0.1", "{line}");
        assert!(line["duration_ms"].is_number(), "{line}");
    }
    assert_eq!(lines[0]["bytes_in"], 5);
    assert_eq!(lines[0]["bucket"], "memory");
    assert_eq!(lines[1]["bytes"], 5);
    assert_eq!(lines[1]["request_id"], id);
    assert_eq!(lines[1]["user_agent"], "a \"test\"");
    assert_eq!(lines[1]["outcome"], "complete");
    assert!(lines[1]["cache"].is_string(), "{}", lines[1]);
    assert_eq!(lines[5]["outcome"], "cut");
}

#[tokio::test]
async fn combined_lines_name_the_key_that_signed_and_hide_its_signature() {
    let logged = start(signed(), AccessLogFormat::Combined, |_| {}).await;
    let target = Signer::default().presign("GET", "/memory/absent%22", 60);
    logged.server.get(&target, &[]).await.expect(404);
    logged.server.get("/memory/unsigned", &[]).await.expect(403);
    let lines = logged.lines().await;
    assert_eq!(lines.len(), 2);
    assert!(
        lines[0].starts_with(&format!("127.0.0.1 - {KEY} [")),
        "{}",
        lines[0]
    );
    let (_, rest) = lines[0].split_once("] ").unwrap();
    assert!(
        rest.starts_with("\"GET /memory/absent%22 HTTP/1.1\" 404 "),
        "{rest}"
    );
    assert!(rest.ends_with(" \"-\" \"-\""), "{rest}");
    assert!(lines[1].starts_with("127.0.0.1 - - ["), "{}", lines[1]);
}

#[tokio::test]
async fn reopened_log_continues_in_a_new_file() {
    let logged = start(S3Config::anonymous(), AccessLogFormat::Json, |_| {}).await;
    logged.server.get("/memory/before", &[]).await.expect(404);
    // Flushed within a second, or by the next reopening.
    let old = logged.path.with_extension("old");
    std::fs::rename(&logged.path, &old).unwrap();
    while !std::fs::read_to_string(&old).unwrap().contains("before") {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    logged.log.reopen();
    while !logged.path.exists() {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    logged.server.get("/memory/after", &[]).await.expect(404);
    assert_eq!(std::fs::read_to_string(&old).unwrap().lines().count(), 1);
    let lines = logged.lines().await;
    assert_eq!(lines.len(), 1);
    assert!(lines[0].contains("\"after\""), "{lines:?}");
}

/// A pipe without a reader stands for a stalled disk.
#[tokio::test]
async fn stalled_disk_delays_no_request_and_drops_are_counted() {
    let make = |path: &Path| {
        let made = std::process::Command::new("mkfifo").arg(path).status();
        assert!(made.unwrap().success());
    };
    let logged = start(S3Config::anonymous(), AccessLogFormat::Json, make).await;
    let mut reader = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(&logged.path)
        .unwrap();
    let traffic = std::sync::Arc::clone(logged.server.engine.traffic());
    let dropped = || traffic.stats().dropped_access_records;
    let target = format!("/memory/{}", "k".repeat(1000));
    let mut sent = 0;
    while dropped() == 0 {
        logged.server.get(&target, &[]).await.expect(404);
        sent += 1;
        assert!(sent < 5000, "nothing was dropped");
    }
    // Each request has a line or is counted: once the pipe is read, the rest arrives.
    let read = tokio::task::spawn_blocking(move || {
        let (mut text, mut piece) = (Vec::new(), [0; 1 << 16]);
        while !text.ends_with(b"end\n") {
            let length = reader.read(&mut piece).unwrap();
            text.extend_from_slice(&piece[..length]);
        }
        String::from_utf8(text).unwrap()
    });
    let path = logged.path.clone();
    let Logged { server, log, .. } = logged;
    server.stopped().await;
    assert!(log.close().await);
    let mut writer = std::fs::OpenOptions::new().append(true).open(path).unwrap();
    std::io::Write::write_all(&mut writer, b"end\n").unwrap();
    let text = read.await.unwrap();
    let mut written = 0;
    for line in text.lines().filter(|line| *line != "end") {
        serde_json::from_str::<serde_json::Value>(line).unwrap();
        written += 1;
    }
    assert_eq!(written + dropped(), sent);
}
