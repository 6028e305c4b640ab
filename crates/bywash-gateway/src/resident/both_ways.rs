//! Tests of the fast paths against the long way, over real connections: each request is sent twice,
//! once with a header that no fast path knows. Shared by the tests of both endpoints.

use std::cell::Cell;
use std::net::SocketAddr;
use std::sync::Arc;

use bywash::origin::memory::MemoryStore;
use bywash::{Consistency, Engine};
use bywash_support::http::{HttpResponse, raw};
use object_store::path::Path;
use object_store::{Attributes, ObjectStore, PutOptions};
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

/// An error of a fast path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Wrong signatures are accepted.
    AnySignature,
    /// Old and expired signatures are accepted.
    AnyAge,
    /// If-Match is ignored.
    AnyCondition,
    /// Any token is accepted, and none.
    AnyToken,
    /// Tokens reach all buckets.
    AnyBucket,
    /// The generation that is named is ignored.
    AnyGeneration,
    /// Nothing is decompressed.
    Compressed,
    /// Range is ignored.
    WholeForRange,
}

std::thread_local! {
    /// Fault of the fast paths that are made on this thread.
    static FAULT: Cell<Option<Fault>> = const { Cell::new(None) };
    /// Responses of the fast paths of this thread.
    static SERVED: Cell<u64> = const { Cell::new(0) };
}

pub(crate) fn fault() -> Option<Fault> {
    FAULT.get()
}

pub(super) fn note_served() {
    SERVED.set(SERVED.get() + 1);
}

/// Returns how many responses the fast paths of this thread have given.
pub(crate) fn served() -> u64 {
    SERVED.get()
}

/// Buckets with the same objects; some accounts reach only the second.
pub(crate) const BUCKETS: [&str; 2] = ["bucket", "other"];
/// Sent with a request that must not go the fast way; no response depends on it.
const DETOUR: &str = "Cookie: detour\r\n";
/// Drawn requests of a seed.
pub(crate) const REQUESTS: usize = 500;

/// Keys and lengths of the objects that both endpoints have.
pub(crate) const OBJECTS: [(&str, usize); 8] = [
    ("plain", 4096),
    ("a/b", 5),
    ("empty", 0),
    ("a b=c+d", 100),
    ("\u{fc}", 10),
    ("blocks", (3 << 20) + 77),
    ("block", 1 << 20),
    ("headers", 300),
];

/// Returns an engine that has these objects in both buckets.
pub(crate) async fn stored(
    objects: &[(&str, usize)],
    attributes: impl Fn(&str) -> Attributes,
) -> Engine {
    let engine = Engine::builder().memory(64 << 20).build().unwrap();
    for name in BUCKETS {
        let store = Arc::new(MemoryStore::new());
        let bucket = engine.mount(name, store, Consistency::Immutable).unwrap();
        for (key, length) in objects {
            let body = bywash_support::pattern(1, *length);
            let options = PutOptions {
                attributes: attributes(key),
                ..PutOptions::default()
            };
            let path = Path::parse(key).unwrap();
            bucket.put_opts(&path, body.into(), options).await.unwrap();
        }
    }
    engine
}

pub(crate) fn pick<T: Clone>(random: &mut StdRng, from: &[T]) -> T {
    from.choose(random).unwrap().clone()
}

/// Draws a value of Range for an object of this length; many are odd or wrong.
pub(crate) fn range(random: &mut StdRng, length: usize) -> String {
    let first = random.random_range(0..=length + length / 8);
    let last = first + random.random_range(0..=length);
    let forms = [
        format!("bytes={first}-{last}"),
        format!("bytes={first}-{last}"),
        format!("bytes={first}-"),
        format!("bytes=-{last}"),
        format!("bytes=0-{}", length.saturating_sub(1)),
        "bytes=-0".to_owned(),
        "bytes=5-2".to_owned(),
        "bytes=0-1,3-4".to_owned(),
        "bytes=0-99999999999999999999".to_owned(),
        "lines=0-1".to_owned(),
        "bytes= 0-1".to_owned(),
        "bytes=00-01".to_owned(),
    ];
    pick(random, &forms)
}

/// Encodes a text as the path of a request, with `/` as it is, or as a part of it.
pub(crate) fn encode(text: &str, is_path: bool) -> String {
    let byte = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
            char::from(byte).to_string()
        }
        b'/' if is_path => "/".to_owned(),
        byte => format!("%{byte:02X}"),
    };
    text.bytes().map(byte).collect()
}

/// Elements of errors that name the time of a request, which is signed again each time.
const OF_THE_TIME: [&str; 8] = [
    "CanonicalRequest",
    "CanonicalRequestBytes",
    "Expires",
    "RequestTime",
    "ServerTime",
    "SignatureProvided",
    "StringToSign",
    "StringToSignBytes",
];

/// An error document without the texts of [`OF_THE_TIME`].
fn timeless(document: &str) -> String {
    OF_THE_TIME.iter().fold(document.to_owned(), |text, name| {
        let (open, close) = (format!("<{name}>"), format!("</{name}>"));
        match text.split_once(&open) {
            Some((head, rest)) => {
                let rest = rest.split_once(&close).map_or(rest, |(_, rest)| rest);
                format!("{head}{open}{close}{rest}")
            }
            None => text,
        }
    })
}

/// Parts that must be equal in both responses: all but their ids, in the header of this name and in
/// texts of errors, and dates.
fn comparable(response: &HttpResponse, id_header: &str) -> (u16, Vec<(String, String)>, Vec<u8>) {
    let mut headers = response.headers.clone();
    headers.retain(|(name, _)| name != "date" && name != id_header);
    headers.sort();
    let mut body = response.body.clone();
    if let (Some(id), true) = (response.header(id_header), response.status >= 400) {
        let text = String::from_utf8_lossy(&body).replace(id, "ID");
        body = timeless(&text).into_bytes();
    }
    (response.status, headers, body)
}

/// The responses to one request.
#[derive(Debug)]
pub(crate) struct BothWays {
    pub(crate) response: HttpResponse,
    /// Whether a fast path gave it.
    pub(crate) is_fast: bool,
    /// How the response of the long way differs.
    pub(crate) difference: Option<String>,
}

/// Sends a request both ways; `request` makes it with further header lines.
pub(crate) async fn both_ways(
    address: SocketAddr,
    id_header: &str,
    request: impl Fn(&str) -> Vec<u8>,
) -> BothWays {
    let long = raw(address, &request(DETOUR)).await;
    let before = served();
    let response = raw(address, &request("")).await;
    let is_fast = served() > before;
    let (long, short) = [&long, &response]
        .map(|response| comparable(response, id_header))
        .into();
    let head = |side: &(u16, Vec<(String, String)>, Vec<u8>)| {
        format!("{} {:?}, {} bytes", side.0, side.1, side.2.len())
    };
    let difference = (long != short).then(|| {
        format!(
            "{}\nlong way: {}\nfast path: {}",
            String::from_utf8_lossy(&request("")),
            head(&long),
            head(&short)
        )
    });
    BothWays {
        response,
        is_fast,
        difference,
    }
}

/// Runs a comparison, which returns the differences, with each fault in the fast path: it must find some.
pub(crate) async fn assert_found(faults: &[Fault], compare: impl AsyncFn() -> Vec<String>) {
    for fault in faults {
        FAULT.set(Some(*fault));
        let different = compare().await;
        FAULT.set(None);
        assert!(!different.is_empty(), "{fault:?}");
    }
}

/// Sends a request for an object of the first bucket both ways, and asserts that both are counted alike. Returns both responses.
pub(crate) async fn assert_counted_alike(
    engine: &Engine,
    address: SocketAddr,
    request: impl Fn(&str) -> Vec<u8>,
) -> [HttpResponse; 2] {
    let counters = || {
        let stats = engine.stats().buckets[BUCKETS[0]];
        let requests = engine.traffic().stats().requests;
        [
            requests,
            stats.requests,
            stats.bytes,
            stats.hits,
            stats.misses,
        ]
    };
    let (mut responses, mut ways) = (Vec::new(), Vec::new());
    for detour in [DETOUR, ""] {
        let (before, served_before) = (counters(), served());
        responses.push(raw(address, &request(detour)).await.expect(200));
        // The record is written when the server drops the body.
        while counters()[0] == before[0] {
            tokio::task::yield_now().await;
        }
        assert_eq!(served() - served_before, u64::from(detour.is_empty()));
        let now = counters();
        ways.push([0, 1, 2, 3, 4].map(|counter| now[counter] - before[counter]));
    }
    assert_eq!(
        ways[0],
        ways[1],
        "{}",
        String::from_utf8_lossy(&request(""))
    );
    responses.try_into().unwrap()
}

/// Replaces an object of the first bucket some times, and asserts that a request returns its bytes at once.
pub(crate) async fn assert_replaced_is_served(
    engine: &Engine,
    address: SocketAddr,
    key: &str,
    request: impl Fn() -> Vec<u8>,
) {
    let bucket = engine.bucket(BUCKETS[0]).unwrap();
    let path = Path::from(key);
    for round in 0..5_u8 {
        let body = vec![round; 100 + usize::from(round)];
        let put = bucket.put_opts(&path, body.clone().into(), PutOptions::default());
        put.await.unwrap();
        for _ in 0..3 {
            let response = raw(address, &request()).await.expect(200);
            assert_eq!(response.body, body);
        }
    }
    assert!(served() > 0);
}
