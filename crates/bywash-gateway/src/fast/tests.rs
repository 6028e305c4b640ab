//! Both ways against each other, over real connections: each drawn request is sent twice, once with a header that the
//! fast path does not know.

mod draw;

use std::cell::Cell;
use std::net::SocketAddr;
use std::sync::Arc;

use bywash::origin::memory::MemoryStore;
use bywash::{Consistency, Engine};
use bywash_support::http::{HttpResponse, raw};
use bywash_support::settings::seeds;
use bywash_support::sign::{KEY, SECRET};
use object_store::path::Path;
use object_store::{Attribute, Attributes, ObjectStore, PutOptions};
use tokio::net::TcpListener;

use self::draw::Drawn;
use crate::{Credential, S3Config, Scope, serve_s3};

/// An error of the fast path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// Wrong signatures are accepted.
    AnySignature,
    /// Old and expired signatures are accepted.
    AnyAge,
    /// If-Match is ignored.
    AnyCondition,
    /// Range is ignored.
    WholeForRange,
}

std::thread_local! {
    /// Fault of the fast paths that are made on this thread.
    static FAULT: Cell<Option<Fault>> = const { Cell::new(None) };
    /// Responses of the fast paths of this thread.
    static SERVED: Cell<u64> = const { Cell::new(0) };
}

pub(super) fn fault() -> Option<Fault> {
    FAULT.get()
}

pub(super) fn note_served() {
    SERVED.set(SERVED.get() + 1);
}

/// A key that reaches only the other bucket.
const CONFINED: (&str, &str) = ("confined-key", "confined-secret");
const BUCKET: &str = "bucket";
/// Sent to a request that must not go the fast way; no response depends on it.
const DETOUR: &str = "Cookie: detour\r\n";
const REQUESTS: usize = 500;

/// Keys and lengths of the objects.
const OBJECTS: [(&str, usize); 9] = [
    ("plain", 4096),
    ("a/b", 5),
    ("empty", 0),
    ("a b=c+d", 100),
    ("\u{fc}", 10),
    ("blocks", (3 << 20) + 77),
    ("block", 1 << 20),
    ("headers", 300),
    ("encoded", 30),
];

/// Serves the objects on a loopback port, as long as the runtime lives.
async fn start() -> (SocketAddr, Engine) {
    let engine = Engine::builder().memory(64 << 20).build().unwrap();
    for name in [BUCKET, "other"] {
        let store = Arc::new(MemoryStore::new());
        let bucket = engine.mount(name, store, Consistency::Immutable).unwrap();
        for (key, length) in OBJECTS {
            let body = bywash_support::pattern(1, length);
            let options = PutOptions {
                attributes: attributes(key),
                ..PutOptions::default()
            };
            let path = Path::parse(key).unwrap();
            bucket.put_opts(&path, body.into(), options).await.unwrap();
        }
    }
    let mut confined = Credential::new(CONFINED.0, CONFINED.1);
    confined.scope = Scope {
        buckets: Some(vec!["other".to_owned()]),
        read_only: true,
    };
    let config = S3Config {
        credentials: vec![Credential::new(KEY, SECRET), confined],
        domains: vec!["s3.example.com".to_owned()],
        ..S3Config::signed(Credential::new(KEY, SECRET))
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = serve_s3(engine.clone(), listener, config, std::future::pending());
    tokio::spawn(async move { Box::pin(serving).await.map(drop) });
    (address, engine)
}

fn attributes(key: &str) -> Attributes {
    let metadata = |name: &'static str| Attribute::Metadata(name.into());
    match key {
        "headers" => Attributes::from_iter([
            (Attribute::ContentType, "text/x"),
            (Attribute::CacheControl, "no-cache"),
            (Attribute::ContentDisposition, "attachment"),
            (metadata("mtime"), "1.5 \"quoted\""),
            (metadata("bywash-expires"), "Thu, 01 Dec 1994 16:00:00 GMT"),
            (metadata("bywash-tags"), "a=1&b=2"),
            (metadata("bywash-checksum-crc32"), "AAAAAA=="),
        ]),
        "encoded" => Attributes::from_iter([(metadata("name"), "\u{fc}ber")]),
        _ => Attributes::new(),
    }
}

/// What must be equal in both responses: all but their ids and dates.
fn comparable(response: &HttpResponse) -> (u16, Vec<(String, String)>, Vec<u8>) {
    let is_own = |name: &str| name == "date" || name == "x-amz-request-id";
    let mut headers = response.headers.clone();
    headers.retain(|(name, _)| !is_own(name));
    headers.sort();
    let mut body = response.body.clone();
    if let (Some(id), true) = (response.header("x-amz-request-id"), response.status >= 400) {
        let text = String::from_utf8_lossy(&body).replace(id, "ID");
        body = text.into_bytes();
    }
    (response.status, headers, body)
}

/// Sends drawn requests both ways. Returns descriptions of the different responses, and the number of responses of the
/// fast path by whether they were presigned, of HEAD, or partial.
async fn compare(seed: u64, requests: usize) -> (Vec<String>, [u64; 4]) {
    let (address, _engine) = start().await;
    let mut warm = Drawn::warm_up();
    let mut e_tags = Vec::new();
    for request in &mut warm {
        // Twice: the second read finds a compared version.
        for _ in 0..2 {
            let response = raw(address, &request.bytes("")).await.expect(200);
            let e_tag = response.header("etag").unwrap().to_owned();
            e_tags.push(e_tag);
        }
    }
    e_tags.dedup();
    let mut draws = draw::Draws::new(seed, e_tags);
    let (mut different, mut served) = (Vec::new(), [0; 4]);
    for _ in 0..requests {
        let request = draws.next();
        let long = raw(address, &request.bytes(DETOUR)).await;
        let before = SERVED.get();
        let short = raw(address, &request.bytes("")).await;
        if SERVED.get() > before {
            served[0] += 1;
            served[1] += u64::from(request.is_presigned());
            served[2] += u64::from(request.method == "HEAD");
            served[3] += u64::from(short.status == 206);
        }
        let (long, short) = (comparable(&long), comparable(&short));
        if long != short {
            let heads = |side: &(u16, Vec<(String, String)>, Vec<u8>)| {
                format!("{} {:?}, {} bytes", side.0, side.1, side.2.len())
            };
            different.push(format!(
                "{}\nlong way: {}\nfast path: {}",
                String::from_utf8_lossy(&request.bytes("")),
                heads(&long),
                heads(&short)
            ));
        }
    }
    (different, served)
}

#[tokio::test]
async fn fast_path_responds_as_the_long_way() {
    for seed in seeds(0..3) {
        let (different, [all, presigned, heads, partial]) = compare(seed, REQUESTS).await;
        assert!(different.is_empty(), "seed {seed}: {}", different[0]);
        // Enough of each kind went the fast way.
        let enough = (REQUESTS / 50) as u64;
        let header = all - presigned;
        let least = [header, presigned, heads, partial, all - heads - partial]
            .into_iter()
            .min();
        assert!(least >= Some(enough), "{all} {presigned} {heads} {partial}");
    }
}

#[tokio::test]
async fn wrong_fast_paths_are_found() {
    for fault in [
        Fault::AnySignature,
        Fault::AnyAge,
        Fault::AnyCondition,
        Fault::WholeForRange,
    ] {
        FAULT.set(Some(fault));
        let (different, _) = compare(1, REQUESTS).await;
        FAULT.set(None);
        assert!(!different.is_empty(), "{fault:?}");
    }
}

#[tokio::test]
async fn requests_of_both_ways_are_counted_alike() {
    let (address, engine) = start().await;
    for request in Drawn::warm_up() {
        raw(address, &request.bytes("")).await.expect(200);
    }
    let counted = |before: Option<&(bywash::BucketStats, u64)>| {
        let stats = engine.stats().buckets[BUCKET];
        let requests = engine.traffic().stats().requests;
        let (stats_before, requests_before) = before.copied().unwrap_or_default();
        (
            stats.requests - stats_before.requests,
            stats.bytes - stats_before.bytes,
            stats.hits - stats_before.hits,
            stats.misses - stats_before.misses,
            requests - requests_before,
        )
    };
    for request in Drawn::plain() {
        let mut ways = Vec::new();
        for detour in [DETOUR, ""] {
            let stats = engine.stats().buckets[BUCKET];
            let before = (stats, engine.traffic().stats().requests);
            let served = SERVED.get();
            raw(address, &request.bytes(detour)).await.expect(200);
            // The record is written when the server drops the body.
            while engine.traffic().stats().requests == before.1 {
                tokio::task::yield_now().await;
            }
            assert_eq!(SERVED.get() - served, u64::from(detour.is_empty()));
            ways.push(counted(Some(&before)));
        }
        assert_eq!(ways[0], ways[1], "{}", request.method);
    }
    let summary = engine.traffic().operations();
    let names: Vec<_> = summary.iter().map(|row| row.operation.as_str()).collect();
    assert_eq!(names, ["GetObject", "GetObject", "HeadObject"]);
}

#[tokio::test]
async fn request_is_in_flight_until_its_client_has_read() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    let (address, engine) = start().await;
    let request = Drawn::get("block");
    for _ in 0..2 {
        raw(address, &request.bytes("")).await.expect(200);
    }
    let traffic = || engine.traffic().stats();
    while traffic().in_flight > 0 {
        tokio::task::yield_now().await;
    }
    let (before, served) = (traffic().requests, SERVED.get());
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut client = socket.connect(address).await.unwrap();
    client.write_all(&request.bytes("")).await.unwrap();
    // The first bytes are here, and the socket takes no more.
    client.read_exact(&mut [0; 16]).await.unwrap();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(SERVED.get() - served, 1);
    assert_eq!((traffic().in_flight, traffic().requests), (1, before));
    let mut rest = vec![0; 1 << 16];
    while traffic().requests == before {
        let read = client.read(&mut rest).await.unwrap();
        assert!(read > 0, "the response ended, and its request did not");
    }
}

#[tokio::test]
async fn replaced_object_is_served_at_once() {
    let (address, engine) = start().await;
    let bucket = engine.bucket(BUCKET).unwrap();
    let path = Path::from("plain");
    let request = Drawn::get("plain");
    for round in 0..5_u8 {
        let body = vec![round; 100 + usize::from(round)];
        bucket
            .put_opts(&path, body.clone().into(), PutOptions::default())
            .await
            .unwrap();
        for _ in 0..3 {
            let response = raw(address, &request.bytes("")).await.expect(200);
            assert_eq!(response.body, body);
        }
    }
}
