//! Resumable sessions: each row of the protocol, and each failure that Google's Java client distinguishes.

use bywash_gateway::{GcsConfig, Limits};
use serde_json::Value;

use crate::gcs::{document, is_plain, refused};
use crate::gcs_server::GcsServer;
use crate::http::{HttpResponse, http_chunks, pattern};
use crate::server::BUCKETS;

pub(crate) const CHUNK: usize = 256 << 10;

/// A session of a client.
pub(crate) struct Session<'a> {
    pub(crate) server: &'a GcsServer,
    pub(crate) target: String,
}

impl<'a> Session<'a> {
    pub(crate) async fn start(
        server: &'a GcsServer,
        bucket: &str,
        key: &str,
        query: &str,
        metadata: &[u8],
    ) -> Self {
        let target =
            format!("/upload/storage/v1/b/{bucket}/o?uploadType=resumable&name={key}{query}");
        let started = server.post(&target, &[], metadata).await.expect(200);
        Self::of(server, &started)
    }

    /// The session of the response to its start.
    pub(crate) fn of(server: &'a GcsServer, started: &HttpResponse) -> Self {
        let location = started.header("location").unwrap();
        let begin = location.find("/upload/").unwrap();
        // Google's tests compare them.
        let id = started.header("x-guploader-uploadid").unwrap();
        assert!(location.ends_with(&format!("&upload_id={id}")));
        Self {
            target: location[begin..].to_owned(),
            server,
        }
    }

    pub(crate) async fn put(&self, range: &str, body: &[u8]) -> HttpResponse {
        let headers = [("Content-Range", range)];
        self.server.send("PUT", &self.target, &headers, body).await
    }

    /// Sends a query of the status, with the object's length as the client knows it.
    pub(crate) async fn status(&self, total: &str) -> HttpResponse {
        self.put(&format!("bytes */{total}"), b"").await
    }
}

/// Checks a response about an open session that has `bytes` bytes.
#[track_caller]
pub(crate) fn open(response: &HttpResponse, bytes: usize) {
    assert_eq!(response.status, 308, "{}", response.text());
    let range = (bytes > 0).then(|| format!("bytes=0-{}", bytes - 1));
    assert_eq!(response.header("range"), range.as_deref());
}

#[track_caller]
pub(crate) fn finished(response: &HttpResponse, bytes: usize) -> Value {
    assert_eq!(response.status, 200, "{}", response.text());
    let object = document(response);
    assert_eq!(object["size"], bytes.to_string());
    object
}

async fn content(server: &GcsServer, bucket: &str, key: &str) -> Vec<u8> {
    let target = format!("/storage/v1/b/{bucket}/o/{key}?alt=media");
    server.get(&target).await.expect(200).body
}

#[tokio::test]
async fn chunks_by_put_and_post_become_the_object() {
    let server = GcsServer::start().await;
    let body = pattern(3 * CHUNK + 5);
    for bucket in BUCKETS {
        let metadata = br#"{"contentType":"text/x","metadata":{"a":"b"}}"#;
        let session = Session::start(&server, bucket, "key", "", metadata).await;
        open(&session.status("*").await, 0);
        let first = session.put("bytes 0-262143/*", &body[..CHUNK]).await;
        open(&first, CHUNK);
        let range = format!("bytes {CHUNK}-{}/*", 3 * CHUNK - 1);
        let headers = [("Content-Range", &*range)];
        let posted = &body[CHUNK..3 * CHUNK];
        let second = server.send("POST", &session.target, &headers, posted).await;
        open(&second, 3 * CHUNK);
        open(&session.status("*").await, 3 * CHUNK);
        refused(
            server.get(&format!("/storage/v1/b/{bucket}/o/key")).await,
            404,
            "notFound",
        );
        let range = format!("bytes {}-{}/{}", 3 * CHUNK, 3 * CHUNK + 4, 3 * CHUNK + 5);
        let last = session.put(&range, &body[3 * CHUNK..]).await;
        let object = finished(&last, body.len());
        assert_eq!(
            (&object["contentType"], &object["metadata"]["a"]),
            (&"text/x".into(), &"b".into())
        );
        assert!(content(&server, bucket, "key").await == body);
        // The CRC32C of the whole is the one that the other way to write computes.
        server.put_object(bucket, "plain", &body).await;
        let plain = document(&server.get(&format!("/storage/v1/b/{bucket}/o/plain")).await);
        assert_eq!(object["crc32c"], plain["crc32c"]);
        // Any request of a finished session gets the object.
        for (range, resent) in [("bytes */*", 0), ("bytes 0-262143/*", CHUNK)] {
            let again = session.put(range, &body[..resent]).await;
            assert_eq!(finished(&again, body.len()), object);
        }
    }
}

#[tokio::test]
async fn object_ends_with_its_last_bytes_or_without_data_and_may_be_empty() {
    let server = GcsServer::start().await;
    for bucket in BUCKETS {
        let session = Session::start(&server, bucket, "without", "", b"").await;
        open(
            &session.put("bytes 0-262143/*", &pattern(CHUNK)).await,
            CHUNK,
        );
        finished(&session.status("262144").await, CHUNK);
        let session = Session::start(&server, bucket, "empty", "", b"").await;
        finished(&session.status("0").await, 0);
        let session = Session::start(&server, bucket, "whole", "", b"").await;
        let whole = server
            .send("PUT", &session.target, &[], b"all at once")
            .await;
        finished(&whole, 11);
        assert_eq!(content(&server, bucket, "whole").await, b"all at once");
        let session = Session::start(&server, bucket, "one", "", b"").await;
        finished(&session.put("bytes 0-3/4", b"last").await, 4);
    }
}

#[tokio::test]
async fn cancelled_and_unknown_sessions_do_not_exist() {
    let server = GcsServer::start().await;
    let session = Session::start(&server, "folder", "key", "", b"").await;
    open(
        &session.put("bytes 0-262143/*", &pattern(CHUNK)).await,
        CHUNK,
    );
    let cancelled = server.delete(&session.target).await.expect(499);
    assert!(cancelled.body.is_empty());
    refused(session.status("*").await, 404, "notFound");
    refused(server.delete(&session.target).await, 404, "notFound");
    refused(
        server.get("/storage/v1/b/folder/o/key").await,
        404,
        "notFound",
    );
    assert!(server.session_files().is_empty());
    for id in ["0", "..%2F..%2Fetc", &"0".repeat(64), &"g".repeat(64)] {
        let target = format!("/upload/storage/v1/b/folder/o?uploadType=resumable&upload_id={id}");
        let unknown = server
            .send("PUT", &target, &[("Content-Range", "bytes */*")], b"")
            .await;
        refused(unknown, 404, "notFound");
    }
}

#[tokio::test]
async fn clients_that_take_no_308_get_200_and_its_override() {
    let server = GcsServer::start().await;
    let session = Session::start(&server, "memory", "key", "", b"").await;
    let headers = [
        ("Content-Range", "bytes 0-262143/*"),
        ("X-GUploader-No-308", "yes"),
    ];
    let first = server
        .send("POST", &session.target, &headers, &pattern(CHUNK))
        .await;
    assert_eq!(first.status, 200);
    assert_eq!(first.header("x-http-status-code-override"), Some("308"));
    assert_eq!(first.header("range"), Some("bytes=0-262143"));
    assert!(first.body.is_empty());
}

#[tokio::test]
async fn gap_is_refused_in_plain_text_and_stores_nothing() {
    let server = GcsServer::start().await;
    for bucket in BUCKETS {
        let session = Session::start(&server, bucket, "key", "", b"").await;
        open(
            &session.put("bytes 0-262143/*", &pattern(CHUNK)).await,
            CHUNK,
        );
        let gap = session.put("bytes 524288-786431/*", &pattern(CHUNK)).await;
        assert_eq!(gap.status, 503);
        assert_eq!(
            gap.header("content-type"),
            Some("text/plain; charset=utf-8")
        );
        let message = "Invalid request.  According to the Content-Range header, the upload offset is 524288 byte(s), which \
                       exceeds already uploaded size of 262144 byte(s).";
        assert_eq!(gap.text(), message);
        open(&session.status("*").await, CHUNK);
    }
}

#[tokio::test]
async fn resent_bytes_are_taken_once() {
    let server = GcsServer::start().await;
    let body = pattern(3 * CHUNK);
    for bucket in BUCKETS {
        let session = Session::start(&server, bucket, "key", "", b"").await;
        let first = || session.put("bytes 0-262143/*", &body[..CHUNK]);
        open(&first().await, CHUNK);
        open(&first().await, CHUNK);
        // Half of it is known.
        open(
            &session.put("bytes 0-524287/*", &body[..2 * CHUNK]).await,
            2 * CHUNK,
        );
        let last = session
            .put("bytes 262144-786431/786432", &body[CHUNK..])
            .await;
        finished(&last, 3 * CHUNK);
        assert!(content(&server, bucket, "key").await == body);
    }
}

#[tokio::test]
async fn short_chunks_that_are_not_the_last_are_refused() {
    let server = GcsServer::start().await;
    let session = Session::start(&server, "folder", "key", "", b"").await;
    let short = session.put("bytes 0-99999/*", &pattern(100_000)).await;
    // Google's own tests compare its words.
    assert!(
        is_plain(&short)
            && short
                .text()
                .starts_with("Invalid request.  The number of bytes")
    );
    assert!(
        short
            .text()
            .contains("  The received request contained 100000 bytes,")
    );
    refused(short, 400, "invalid");
    refused(
        session.put("bytes 0-99999/200000", &pattern(100_000)).await,
        400,
        "invalid",
    );
    refused(
        session.put("bytes 0-262143/*", &pattern(7)).await,
        400,
        "invalid",
    );
    refused(session.put("bytes 9-2/*", b"").await, 400, "invalid");
    open(&session.status("*").await, 0);
}

#[tokio::test]
async fn hash_at_the_end_is_compared() {
    let server = GcsServer::start().await;
    for (hash, is_stored) in [("4waSgw==", true), ("AAAAAA==", false)] {
        let session = Session::start(&server, "folder", "hashed", "", b"").await;
        let hash = format!("crc32c={hash}");
        let headers = [("Content-Range", "bytes 0-8/9"), ("x-goog-hash", &*hash)];
        let last = server
            .send("PUT", &session.target, &headers, b"123456789")
            .await;
        if is_stored {
            drop(finished(&last, 9))
        } else {
            refused(last, 400, "invalid")
        }
        let object = "/storage/v1/b/folder/o/hashed";
        let found = server.get(object).await;
        assert_eq!(found.status, if is_stored { 200 } else { 404 });
        server.delete(object).await;
    }
    let session = Session::start(&server, "folder", "k", "", br#"{"crc32c":"AAAAAA=="}"#).await;
    refused(
        session.put("bytes 0-8/9", b"123456789").await,
        400,
        "invalid",
    );
}

#[tokio::test]
async fn hash_of_the_start_is_compared() {
    let server = GcsServer::start().await;
    let start = "/upload/storage/v1/b/folder/o?uploadType=resumable&name=hashed";
    let wrong = [("x-goog-hash", "crc32c=AAAAAA==")];
    let started = server.post(start, &wrong, b"").await.expect(200);
    let session = Session::of(&server, &started);
    refused(
        session.put("bytes 0-8/9", b"123456789").await,
        400,
        "invalid",
    );
}

#[tokio::test]
async fn condition_of_the_start_holds_at_the_end() {
    let server = GcsServer::start().await;
    for bucket in BUCKETS {
        let query = "&ifGenerationMatch=0";
        let early = Session::start(&server, bucket, "key", query, b"").await;
        let late = Session::start(&server, bucket, "key", query, b"").await;
        finished(
            &early.put("bytes 0-3/4", b"early".get(..4).unwrap()).await,
            4,
        );
        refused(
            late.put("bytes 0-3/4", b"late").await,
            412,
            "conditionNotMet",
        );
        assert_eq!(content(&server, bucket, "key").await, b"earl");
        let target =
            format!("/upload/storage/v1/b/{bucket}/o?uploadType=resumable&name=key{query}");
        refused(late.status("*").await, 404, "notFound");
        // Checked at the end only, as the object may be deleted until then.
        server.post(&target, &[], b"").await.expect(200);
    }
}

/// Scenarios of Google's Java client: responses that it takes for its own fault, for lost data, or
/// for success.
#[tokio::test]
async fn failure_scenarios_have_the_responses_that_clients_tell_apart() {
    let server = GcsServer::start().await;
    let half = pattern(CHUNK);
    let key = |number: u32| format!("scenario-{number}");
    // 1: appends to a finished session.
    let session = Session::start(&server, "folder", &key(1), "", b"").await;
    open(
        &session.put("bytes 0-524287/*", &pattern(2 * CHUNK)).await,
        2 * CHUNK,
    );
    finished(&session.status("524288").await, 2 * CHUNK);
    finished(&session.put("bytes 0-262143/*", &half).await, 2 * CHUNK);
    // 2: ends with fewer bytes than were acknowledged.
    let session = Session::start(&server, "folder", &key(2), "", b"").await;
    open(
        &session.put("bytes 0-524287/*", &pattern(2 * CHUNK)).await,
        2 * CHUNK,
    );
    open(&session.status("262144").await, 2 * CHUNK);
    // 3: ends with more.
    let session = Session::start(&server, "folder", &key(3), "", b"").await;
    open(&session.put("bytes 0-262143/*", &half).await, CHUNK);
    open(&session.status("524288").await, CHUNK);
    // 4, 4.1, 4.2: ends a finished session with the same length, with more, with less.
    finished(&session.status("262144").await, CHUNK);
    for total in ["262144", "524288", "131072"] {
        finished(&session.status(total).await, CHUNK);
    }
    // 5: begins after the end of the session's bytes.
    let session = Session::start(&server, "folder", &key(5), "", b"").await;
    open(&session.put("bytes 0-262143/*", &half).await, CHUNK);
    let gap = session.put("bytes 524288-786431/*", &half).await;
    assert_eq!(
        (gap.status, gap.header("content-type")),
        (503, Some("text/plain; charset=utf-8"))
    );
    // 7: never acknowledges more than was sent.
    open(
        &session.put("bytes 262144-524287/*", &half).await,
        2 * CHUNK,
    );
    // 9: acknowledges less than was announced, if less arrived.
    let session = Session::start(&server, "folder", &key(9), "", b"").await;
    broken(&server, &session, 0, 2 * CHUNK, &half).await;
    open(&session.status("*").await, CHUNK);
    let rest = session.put("bytes 262144-524287/524288", &half).await;
    finished(&rest, 2 * CHUNK);
}

/// Sends a chunk that ends early, after `body`.
async fn broken(
    server: &GcsServer,
    session: &Session<'_>,
    first: usize,
    length: usize,
    body: &[u8],
) {
    use tokio::io::AsyncWriteExt;
    let mut socket = tokio::net::TcpStream::connect(server.address)
        .await
        .unwrap();
    let head = format!(
        "PUT {} HTTP/1.1\r\nHost: x\r\nContent-Range: bytes {first}-{}/*\r\nContent-Length: {length}\r\n\r\n",
        session.target,
        first + length - 1
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    socket.write_all(body).await.unwrap();
    socket.shutdown().await.unwrap();
    crate::http::read_to_close(&mut socket).await;
}

#[tokio::test]
async fn status_ends_the_body_of_a_connection_that_is_stuck() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let server = GcsServer::start().await;
    let session = Session::start(&server, "folder", "key", "", b"").await;
    let mut socket = tokio::net::TcpStream::connect(server.address)
        .await
        .unwrap();
    let head = format!(
        "PUT {} HTTP/1.1\r\nHost: x\r\nContent-Range: bytes 0-524287/*\r\nContent-Length: 524288\r\nExpect: 100-continue\r\n\r\n",
        session.target
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    // Sent when the request has its turn and reads the body.
    let go_on = b"HTTP/1.1 100 Continue\r\n\r\n";
    let mut response = [0; 25];
    socket.read_exact(&mut response).await.unwrap();
    assert_eq!(&response, go_on);
    // Stays open, and sends nothing more. The server would wait for it for half a minute.
    let begun = std::time::Instant::now();
    open(&session.status("*").await, 0);
    finished(&session.put("bytes 0-3/4", b"done").await, 4);
    assert!(begun.elapsed() < Limits::default().silent_body);
}

#[tokio::test]
async fn sessions_continue_after_a_restart_with_what_was_acknowledged() {
    let mut server = GcsServer::start().await;
    let body = pattern(5 * CHUNK + 17);
    let session = Session::start(&server, "folder", "key", "&ifGenerationMatch=0", b"").await;
    let target = session.target.clone();
    open(
        &session.put("bytes 0-524287/*", &body[..2 * CHUNK]).await,
        2 * CHUNK,
    );
    let range = format!("bytes {}-{}/*", 2 * CHUNK, 3 * CHUNK + 99);
    open(
        &session.put(&range, &body[2 * CHUNK..3 * CHUNK + 100]).await,
        3 * CHUNK + 100,
    );
    let done = Session::start(&server, "folder", "done", "", b"").await;
    let object = finished(&done.put("bytes 0-3/4", b"done").await, 4);
    let done = done.target.clone();
    server.restart().await;
    let session = Session {
        server: &server,
        target,
    };
    open(&session.status("*").await, 3 * CHUNK + 100);
    let range = format!(
        "bytes {}-{}/{}",
        3 * CHUNK + 100,
        body.len() - 1,
        body.len()
    );
    finished(
        &session.put(&range, &body[3 * CHUNK + 100..]).await,
        body.len(),
    );
    assert!(content(&server, "folder", "key").await == body);
    let done = Session {
        server: &server,
        target: done,
    };
    assert_eq!(finished(&done.status("*").await, 4), object);
}

#[tokio::test]
async fn lost_response_to_the_end_of_a_conditional_session_is_found_again() {
    let mut server = GcsServer::start().await;
    let session = Session::start(&server, "folder", "key", "&ifGenerationMatch=0", b"").await;
    let target = session.target.clone();
    let before = server.session_files();
    let open_file = server.sessions.path().join(&before[0]);
    let saved = std::fs::read(&open_file).unwrap();
    finished(&session.put("bytes 0-3/4", b"once").await, 4);
    // As after a crash between the object and the record of the end.
    let done = open_file.with_extension("done");
    std::fs::remove_file(done).unwrap();
    std::fs::write(&open_file, saved).unwrap();
    server.restart().await;
    let session = Session {
        server: &server,
        target,
    };
    open(&session.status("*").await, 0);
    finished(&session.put("bytes 0-3/4", b"once").await, 4);
    assert_eq!(content(&server, "folder", "key").await, b"once");
}

#[tokio::test]
async fn sessions_past_the_limit_are_refused_until_one_ends() {
    let mut config = GcsConfig::anonymous("");
    config.limits.open_uploads = 2;
    let server = GcsServer::start_with(config).await;
    let one = Session::start(&server, "folder", "one", "", b"").await;
    let _two = Session::start(&server, "folder", "two", "", b"").await;
    let start = "/upload/storage/v1/b/folder/o?uploadType=resumable&name=three";
    refused(server.post(start, &[], b"").await, 503, "backendError");
    finished(&one.put("bytes 0-3/4", b"done").await, 4);
    server.post(start, &[], b"").await.expect(200);
}

#[tokio::test]
async fn files_of_sessions_are_their_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let server = GcsServer::start().await;
    let session = Session::start(&server, "folder", "key", "", b"").await;
    open(
        &session.put("bytes 0-262143/*", &pattern(CHUNK)).await,
        CHUNK,
    );
    let files = server.session_files();
    assert_eq!(files.len(), 1);
    let mode =
        |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(server.sessions.path()), 0o700);
    assert_eq!(mode(&server.sessions.path().join(&files[0])), 0o600);
}

#[tokio::test]
async fn writers_beyond_the_memory_for_them_continue_from_their_files() {
    // So little memory that no writer waits in it.
    let server = GcsServer::start_in(32 << 20, GcsConfig::anonymous("")).await;
    let body = pattern(6 * CHUNK);
    for bucket in BUCKETS {
        let session = Session::start(&server, bucket, "key", "", b"").await;
        for at in 0..5 {
            let range = format!("bytes {}-{}/*", at * CHUNK, (at + 1) * CHUNK - 1);
            let chunk = &body[at * CHUNK..(at + 1) * CHUNK];
            open(&session.put(&range, chunk).await, (at + 1) * CHUNK);
        }
        let range = format!("bytes {}-{}/{}", 5 * CHUNK, 6 * CHUNK - 1, 6 * CHUNK);
        finished(&session.put(&range, &body[5 * CHUNK..]).await, 6 * CHUNK);
        assert!(content(&server, bucket, "key").await == body);
    }
}

/// A store that notes at each request for the metadata of an object whether the end of a session is recorded.
struct Watched {
    store: std::sync::Arc<bywash_sim::server::s3::S3>,
    sessions: std::sync::OnceLock<std::path::PathBuf>,
    recorded: parking_lot::Mutex<Vec<bool>>,
}

impl bywash_sim::server::Protocol for Watched {
    fn respond(
        &self,
        request: &bywash_sim::server::HttpRequest,
    ) -> bywash_sim::server::HttpResponse {
        if request.method == "HEAD"
            && let Some(folder) = self.sessions.get()
        {
            let mut files = std::fs::read_dir(folder).unwrap();
            let is_done = files.any(|file| {
                file.unwrap()
                    .file_name()
                    .to_str()
                    .unwrap()
                    .ends_with(".done")
            });
            self.recorded.lock().push(is_done);
        }
        self.store.respond(request)
    }
}

#[tokio::test]
async fn end_is_recorded_before_the_object_is_looked_at() {
    let watched = std::sync::Arc::new(Watched {
        store: bywash_sim::server::s3::S3::new(),
        sessions: std::sync::OnceLock::new(),
        recorded: parking_lot::Mutex::default(),
    });
    let protocol = std::sync::Arc::<Watched>::clone(&watched);
    let store = bywash_sim::server::Server::start(protocol).await.unwrap();
    let server = GcsServer::start().await;
    crate::s3_origin::mount_cloud(&server.engine, &store);
    let session = Session::start(&server, "cloud", "key", "", b"").await;
    let sessions = server.sessions.path().to_owned();
    watched.sessions.set(sessions).unwrap();
    let object = finished(&session.put("bytes 0-3/4", b"once").await, 4);
    assert!(object["generation"].is_string());
    let recorded = watched.recorded.lock().clone();
    assert!(!recorded.is_empty() && recorded.iter().all(|is_done| *is_done));
    assert_eq!(finished(&session.status("*").await, 4), object);
}

#[tokio::test]
async fn length_that_was_announced_is_that_of_the_object() {
    let server = GcsServer::start().await;
    let body = pattern(2 * CHUNK + 5);
    let length = body.len();
    let start = |bucket: &'static str, announced: usize| {
        let server = &server;
        async move {
            let target = format!("/upload/storage/v1/b/{bucket}/o?uploadType=resumable&name=key");
            let announced = announced.to_string();
            let headers = [("X-Upload-Content-Length", &*announced)];
            let started = server.post(&target, &headers, b"").await.expect(200);
            Session::of(server, &started)
        }
    };
    let whole = format!("bytes 0-{}/{length}", length - 1);
    for bucket in BUCKETS {
        for announced in [length - 1, length + 1] {
            let session = start(bucket, announced).await;
            let refused = session.put(&whole, &body).await;
            assert_eq!(refused.status, 400, "{}", refused.text());
            assert!(refused.text().contains("does not match the expected size"));
            let refused = server.send("PUT", &session.target, &[], &body).await;
            assert_eq!(refused.status, 400, "{}", refused.text());
        }
        // Without a length of its own; it is short, and continues.
        let session = start(bucket, length).await;
        let chunked = [("Transfer-Encoding", "chunked")];
        let short = http_chunks(&body[..CHUNK], CHUNK);
        let refused = server.send("PUT", &session.target, &chunked, &short).await;
        assert_eq!(refused.status, 400, "{}", refused.text());
        open(&session.status("*").await, CHUNK);
        // It ends when it has its length, whether or not the request says so.
        let range = format!("bytes {CHUNK}-{}/*", 2 * CHUNK - 1);
        open(
            &session.put(&range, &body[CHUNK..2 * CHUNK]).await,
            2 * CHUNK,
        );
        let range = format!("bytes {}-{}/{length}", 2 * CHUNK, length - 1);
        finished(&session.put(&range, &body[2 * CHUNK..]).await, length);
        assert!(content(&server, bucket, "key").await == body);
        let session = start(bucket, 2 * CHUNK).await;
        let range = format!("bytes 0-{}/*", 2 * CHUNK - 1);
        finished(&session.put(&range, &body[..2 * CHUNK]).await, 2 * CHUNK);
        // A request of the session announces it too.
        let session = Session::start(&server, bucket, "key", "", b"").await;
        let range = format!("bytes 0-{}/{length}", CHUNK - 1);
        open(&session.put(&range, &body[..CHUNK]).await, CHUNK);
        assert_eq!(session.status(&CHUNK.to_string()).await.status, 400);
        let range = format!("bytes {CHUNK}-{}/{}", 2 * CHUNK - 1, 2 * CHUNK);
        let refused = session.put(&range, &body[CHUNK..2 * CHUNK]).await;
        assert_eq!(refused.status, 400, "{}", refused.text());
        open(&session.status("*").await, CHUNK);
        let range = format!("bytes {CHUNK}-{}/{length}", length - 1);
        finished(&session.put(&range, &body[CHUNK..]).await, length);
        // The last chunk may be short, whether or not the request says that it is the last.
        let session = start(bucket, 3).await;
        assert_eq!(session.put("bytes 0-1/*", b"ab").await.status, 400);
        finished(&session.put("bytes 0-2/*", b"abc").await, 3);
        // An empty object.
        let session = start(bucket, 0).await;
        finished(&session.status("0").await, 0);
    }
}
