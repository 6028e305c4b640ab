//! Tests of the memory of listings and request XML: charged, bounded, released.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bywash::origin::memory::MemoryStore;
use bywash::{Consistency, Engine, Share};
use bywash_gateway::{Limits, S3Config, serve_s3};
use bywash_sim::advance_clock_by_ticks;
use object_store::ObjectStoreExt;
use object_store::path::Path;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::http::{HttpResponse, head, read_response, send};
use crate::server::{BUCKETS, Server};

const MIB: u64 = 1 << 20;
/// Small enough that a few pages fill it.
const MEMORY: u64 = 16 * MIB;

struct Small {
    engine: Engine,
    address: std::net::SocketAddr,
}

/// An endpoint with little memory and a short admission deadline. Bucket `bkt` has 1000 keys of `len` characters.
async fn small(len: usize) -> Small {
    advance_clock_by_ticks();
    let engine = Engine::builder()
        .memory(MEMORY)
        .admission_deadline(Duration::from_secs(2))
        .build()
        .unwrap();
    let store = Arc::new(MemoryStore::new());
    let bucket = engine.mount("bkt", store, Consistency::default()).unwrap();
    for number in 0..1000 {
        let key = format!("{number:04}{}", "x".repeat(len - 4));
        bucket.put(&Path::from(key), "".into()).await.unwrap();
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let config = S3Config {
        limits: Limits {
            stalled_body: Duration::from_secs(3600),
            silent_body: Duration::from_secs(3600),
            ..Limits::default()
        },
        ..S3Config::anonymous()
    };
    let serving = serve_s3(engine.clone(), listener, config, std::future::pending());
    tokio::spawn(async move { Box::pin(serving).await.unwrap() });
    Small { engine, address }
}

impl Small {
    async fn get(&self, target: &str) -> HttpResponse {
        send(self.address, "GET", target, &[], b"").await
    }

    fn held(&self) -> u64 {
        self.engine.budget().held(Share::Download)
    }

    /// Waits until no request holds memory.
    async fn nothing_held(&self) {
        while self.held() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// A connection with a small window, so that the kernel does not buffer a whole response.
    async fn connect(&self) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(16 << 10).unwrap();
        socket.connect(self.address).await.unwrap()
    }
}

/// Reads the status of a response and then stops reading.
async fn begin(socket: &mut TcpStream) -> u16 {
    let mut first = [0; 12];
    socket.read_exact(&mut first).await.unwrap();
    std::str::from_utf8(&first[9..]).unwrap().parse().unwrap()
}

#[tokio::test]
async fn slow_readers_of_listings_are_bounded_and_the_next_gets_slow_down() {
    let server = small(500).await;
    let (mut slow, mut refused) = (Vec::new(), 0);
    for _ in 0..24 {
        let mut socket = server.connect().await;
        let request = head("GET", "/bkt?list-type=2", &[]);
        socket.write_all(request.as_bytes()).await.unwrap();
        match begin(&mut socket).await {
            200 => slow.push(socket),
            503 => {
                let rest = read_reply_after(socket).await;
                assert!(rest.contains("<Code>SlowDown</Code>"), "{rest}");
                refused += 1;
                if refused == 2 {
                    break;
                }
            }
            other => panic!("status {other}"),
        }
        assert!(server.held() <= MEMORY / 2, "documents keep to their part");
    }
    assert!(refused > 0, "no listing was refused");
    assert!(slow.len() > 1, "some were served");
    assert!(
        server.held() > slow.len() as u64 * 400_000,
        "responses stay charged"
    );
    // Other requests still get memory.
    let body = vec![7; 1 << 20];
    send(server.address, "PUT", "/bkt/object", &[], &body)
        .await
        .expect(200);
    assert!(server.get("/bkt/object").await.expect(200).body == body);
    drop(slow);
    while server.held() > 2 * MIB {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(
        server
            .get("/bkt?list-type=2")
            .await
            .expect(200)
            .tags("Key")
            .len(),
        1000
    );
}

async fn read_reply_after(mut socket: TcpStream) -> String {
    let mut rest = Vec::new();
    let _ = socket.read_to_end(&mut rest).await;
    String::from_utf8_lossy(&rest).into_owned()
}

#[tokio::test]
async fn listings_release_their_charge() {
    let server = small(100).await;
    for target in [
        "/bkt",
        "/bkt?list-type=2&max-keys=10",
        "/bkt?versions",
        "/",
        "/bkt?uploads",
        "/bkt?list-type=2&prefix=none",
    ] {
        server.get(target).await.expect(200);
    }
    server
        .get("/none?list-type=2")
        .await
        .expect_error(404, "NoSuchBucket");
    server.nothing_held().await;
}

#[tokio::test]
async fn pages_of_long_names_are_shorter_and_the_listing_is_complete() {
    let server = small(1000).await;
    let (mut found, mut token, mut pages) = (BTreeSet::new(), String::new(), 0);
    loop {
        let page = server
            .get(&format!("/bkt?list-type=2{token}"))
            .await
            .expect(200);
        let keys = page.tags("Key");
        assert!(!keys.is_empty() && keys.len() < 1000);
        found.extend(keys);
        pages += 1;
        match page.tag("NextContinuationToken") {
            Some(next) => token = format!("&continuation-token={next}"),
            None => break,
        }
    }
    assert_eq!((found.len(), pages), (1000, 2));
    // A page within the limit is complete.
    let page = server
        .get("/bkt?list-type=2&max-keys=100")
        .await
        .expect(200);
    assert_eq!(page.tags("Key").len(), 100);
}

#[tokio::test]
async fn stalled_xml_is_charged_and_the_next_gets_slow_down() {
    let server = small(20).await;
    let length = (4 * MIB).to_string();
    let request = head(
        "POST",
        "/bkt?delete",
        &[
            ("Content-Length", &length),
            ("Content-MD5", "AAAAAAAAAAAAAAAAAAAAAA=="),
        ],
    );
    let mut stalled = server.connect().await;
    stalled.write_all(request.as_bytes()).await.unwrap();
    // All but the end: the request waits with all of its memory.
    stalled
        .write_all(&vec![b' '; (4 * MIB - 1) as usize])
        .await
        .unwrap();
    while server.held() < 4 * MIB {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut next = server.connect().await;
    next.write_all(request.as_bytes()).await.unwrap();
    // Rejected during the send: the rest is not read.
    let _ = next.write_all(&vec![b' '; (4 * MIB) as usize]).await;
    let reply = read_response(&mut next).await.expect_error(503, "SlowDown");
    assert!(reply.header("retry-after").is_some());
    assert!(server.held() <= MEMORY / 2);
    drop(stalled);
    server.nothing_held().await;
    let body = b"<Delete><Object><Key>0000xxxxxxxxxxxxxxxx</Key></Object></Delete>";
    let reply = send(server.address, "POST", "/bkt?delete", &[], body).await;
    assert_eq!(reply.expect(200).tags("Key").len(), 1);
    server.nothing_held().await;
}

#[tokio::test]
async fn one_entry_above_the_xml_limit_is_rejected() {
    let server = small(20).await;
    let xml = |entries: usize| {
        format!(
            "<CompleteMultipartUpload>{}</CompleteMultipartUpload>",
            "<Part/>".repeat(entries)
        )
    };
    let target = "/bkt/k?uploadId=none";
    // At the limit: rejected for the upload or its parts, but parsed.
    let max = 10_016;
    let reply = send(server.address, "POST", target, &[], xml(max).as_bytes()).await;
    assert!(!reply.text().contains("entries"), "{}", reply.text());
    let reply = send(server.address, "POST", target, &[], xml(max + 1).as_bytes()).await;
    let reply = reply.expect_error(400, "MalformedXML");
    assert!(reply.text().contains("10017 entries"), "{}", reply.text());
    let body = vec![b' '; (4 * MIB + 1) as usize];
    send(server.address, "POST", target, &[], &body)
        .await
        .expect_error(400, "MaxMessageLengthExceeded");
    server.nothing_held().await;
}

#[tokio::test]
async fn values_in_cdata_sections_are_read_as_text() {
    let server = Server::anonymous().await;
    for bucket in BUCKETS {
        let key = format!("/{bucket}/a&b");
        server.put(&key, &[], b"bytes").await.expect(200);
        let tagging = b"<Tagging><TagSet><Tag><Key>k</Key><Value><![CDATA[a+b]]></Value></Tag></TagSet></Tagging>";
        let target = format!("{key}?tagging");
        server.put(&target, &[], tagging).await.expect(200);
        let tags = server.get(&target, &[]).await;
        assert_eq!(tags.expect(200).tags("Value"), ["a+b"]);
        let markup = b"<Tagging><TagSet><Tag><Key>k</Key><Value><![CDATA[&&&&]]></Value></Tag></TagSet></Tagging>";
        let refused = server.put(&target, &[], markup).await;
        refused.expect_error(400, "MalformedXML");
        let delete = b"<Delete><Object><Key>a<![CDATA[&]]>b</Key></Object></Delete>";
        let target = format!("/{bucket}?delete");
        let deleted = server.send("POST", &target, &[], delete).await;
        assert_eq!(deleted.expect(200).tags("Deleted").len(), 1);
        assert_eq!(server.get(&key, &[]).await.status, 404);
    }
}
