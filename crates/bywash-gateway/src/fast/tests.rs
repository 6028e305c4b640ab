//! Both ways against each other, over real connections: each drawn request is sent twice, once with a header that the
//! fast path does not know.

mod draw;

use std::net::SocketAddr;

use bywash::Engine;
use bywash_support::http::raw;
use bywash_support::settings::seeds;
use bywash_support::sign::{KEY, SECRET};
use object_store::{Attribute, Attributes};
use tokio::net::TcpListener;

use self::draw::Drawn;
use crate::resident::both_ways::{
    self, Fault, REQUESTS, assert_counted_alike, assert_found, assert_replaced_is_served,
    both_ways, served,
};
use crate::{Credential, S3Config, Scope, serve_s3};

/// A key that reaches only the other bucket.
const CONFINED: (&str, &str) = ("confined-key", "confined-secret");
const ID_HEADER: &str = "x-amz-request-id";
/// An object with metadata that only this endpoint has, and its length.
const ENCODED: (&str, usize) = ("encoded", 30);

/// Keys and lengths of the objects.
fn objects() -> Vec<(&'static str, usize)> {
    let shared = both_ways::OBJECTS.into_iter();
    shared.chain([ENCODED]).collect()
}

/// Serves the objects on a loopback port, as long as the runtime lives.
async fn start() -> (SocketAddr, Engine) {
    let engine = both_ways::stored(&objects(), attributes).await;
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

/// Sends drawn requests both ways. Returns descriptions of the different responses, and the number of responses of the
/// fast path by whether they were presigned, of HEAD, or partial.
async fn compare(seed: u64) -> (Vec<String>, [u64; 4]) {
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
    let (mut different, mut counts) = (Vec::new(), [0; 4]);
    for _ in 0..REQUESTS {
        let request = draws.next();
        let both = both_ways(address, ID_HEADER, |more| request.bytes(more)).await;
        if both.is_fast {
            counts[0] += 1;
            counts[1] += u64::from(request.is_presigned());
            counts[2] += u64::from(request.method == "HEAD");
            counts[3] += u64::from(both.response.status == 206);
        }
        different.extend(both.difference);
    }
    (different, counts)
}

#[tokio::test]
async fn fast_path_responds_as_the_long_way() {
    for seed in seeds(0..3) {
        let (different, [all, presigned, heads, partial]) = compare(seed).await;
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
    let faults = [
        Fault::AnySignature,
        Fault::AnyAge,
        Fault::AnyCondition,
        Fault::WholeForRange,
    ];
    assert_found(&faults, async || compare(1).await.0).await;
}

#[tokio::test]
async fn requests_of_both_ways_are_counted_alike() {
    let (address, engine) = start().await;
    for request in Drawn::warm_up() {
        raw(address, &request.bytes("")).await.expect(200);
    }
    for request in Drawn::plain() {
        assert_counted_alike(&engine, address, |more| request.bytes(more)).await;
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
    let (before, served_before) = (traffic().requests, served());
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut client = socket.connect(address).await.unwrap();
    client.write_all(&request.bytes("")).await.unwrap();
    // The first bytes are here, and the socket takes no more.
    client.read_exact(&mut [0; 16]).await.unwrap();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(served() - served_before, 1);
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
    let request = Drawn::get("plain");
    assert_replaced_is_served(&engine, address, "plain", || request.bytes("")).await;
}
