//! Both ways against each other, over real connections: each drawn request is sent twice, once with a header that the
//! fast path does not know.

use std::net::SocketAddr;

use bywash::Engine;
use bywash_support::account::{NAME, PEM, der, token};
use bywash_support::http::{raw, send};
use bywash_support::settings::seeds;
use chrono::Utc;
use object_store::{Attribute, Attributes};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;

use crate::resident::both_ways::{
    self, BUCKETS, Fault, REQUESTS, assert_counted_alike, assert_found, assert_replaced_is_served,
    both_ways, encode,
};
use crate::{GcsAccount, GcsConfig, Scope, serve_gcs};

/// An account that reaches only the other bucket.
const CONFINED: &str = "confined";
const ENDPOINT: &str = "http://gcs.test";
const ID_HEADER: &str = "x-guploader-uploadid";
/// Objects that only this endpoint has, and their lengths: one that is compressed, one with two digests.
const OWN: [(&str, usize); 2] = [("gzip", 80), ("hashed", 5)];

/// Keys and lengths of the objects.
fn objects() -> Vec<(&'static str, usize)> {
    let shared = both_ways::OBJECTS.into_iter();
    shared.chain(OWN).collect()
}

/// A server of these objects, as long as the runtime lives.
struct Fixture {
    address: SocketAddr,
    engine: Engine,
    /// Tokens that are right, of the confined account, and wrong.
    tokens: Vec<String>,
    /// Generations of the objects of the bucket, by key.
    generations: Vec<(&'static str, String)>,
    _folders: [TempDir; 2],
}

fn attributes(key: &str) -> Attributes {
    let metadata = |name: &'static str| Attribute::Metadata(name.into());
    match key {
        "headers" => Attributes::from_iter([
            (Attribute::ContentType, "text/x"),
            (Attribute::CacheControl, "no-cache"),
            (Attribute::ContentDisposition, "attachment"),
            (metadata("colour"), "blue \"quoted\""),
            (metadata("bywash-checksum-crc32c"), "AAAAAA=="),
        ]),
        "gzip" => Attributes::from_iter([(Attribute::ContentEncoding, "gzip")]),
        _ => Attributes::new(),
    }
}

fn keep(account: &str, scope: Scope, folder: &TempDir) {
    let account = GcsAccount::new(account, &der(PEM), ENDPOINT, scope).unwrap();
    account.keep(folder.path()).unwrap();
}

/// Exchanges an assertion of an account for an access token.
async fn access_token(address: SocketAddr, account: &str) -> String {
    let email = format!("{account}@bywash.iam.gserviceaccount.com");
    let now = Utc::now().timestamp();
    let claims = json!({"iss": email, "sub": email, "aud": format!("{ENDPOINT}/token"), "iat": now, "exp": now + 3600});
    let form = format!(
        "grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer&assertion={}",
        token(&claims)
    );
    let kind = [("Content-Type", "application/x-www-form-urlencoded")];
    let given = send(address, "POST", "/token", &kind, form.as_bytes()).await;
    let given: Value = serde_json::from_slice(&given.expect(200).body).unwrap();
    given["access_token"].as_str().unwrap().to_owned()
}

impl Fixture {
    async fn start(anonymous: bool) -> Self {
        let [accounts, sessions] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        keep(NAME, Scope::default(), &accounts);
        let scope = Scope {
            buckets: Some(vec!["other".to_owned()]),
            read_only: true,
        };
        keep(CONFINED, scope, &accounts);
        let config = GcsConfig {
            anonymous,
            accounts: Some(accounts.path().to_owned()),
            ..GcsConfig::anonymous(sessions.path())
        };
        let engine = both_ways::stored(&objects(), attributes).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = serve_gcs(engine.clone(), listener, config, std::future::pending());
        tokio::spawn(async move { Box::pin(serving).await.map(drop) });
        let mut fixture = Self {
            address,
            engine,
            tokens: Vec::new(),
            generations: Vec::new(),
            _folders: [accounts, sessions],
        };
        for account in [NAME, CONFINED] {
            let token = access_token(address, account).await;
            fixture.tokens.push(token);
        }
        fixture.upload_hashed().await;
        fixture.warm_up().await;
        fixture
    }

    /// Stores an object with two digests.
    async fn upload_hashed(&self) {
        let bearer = format!("Bearer {}", self.tokens[0]);
        let bucket = BUCKETS[0];
        let target = format!("/upload/storage/v1/b/{bucket}/o?uploadType=media&name=hashed");
        let headers = [("Authorization", bearer.as_str())];
        let stored = send(self.address, "POST", &target, &headers, b"hello").await;
        stored.expect(200);
    }

    /// Reads all objects, so that their blocks are in memory and the accounts known.
    async fn warm_up(&mut self) {
        for bucket in BUCKETS {
            for (key, _) in objects() {
                let mut request = Drawn::media(key, &self.tokens[0]);
                request.bucket = bucket;
                request.headers.push(("accept-encoding", "gzip".to_owned()));
                // Twice: the second read finds a compared version.
                for _ in 0..2 {
                    let response = raw(self.address, &request.bytes("")).await.expect(200);
                    let generation = response.header("x-goog-generation").unwrap();
                    if bucket == BUCKETS[0] {
                        self.generations.push((key, generation.to_owned()));
                    }
                }
            }
        }
        // The account of this one is known from now on.
        let mut request = Drawn::media("plain", &self.tokens[1]);
        request.bucket = "other";
        raw(self.address, &request.bytes("")).await.expect(200);
    }
}

/// A request.
#[derive(Debug, Clone)]
struct Drawn {
    method: &'static str,
    /// Texts of the path of the object: before the bucket, between bucket and key, and after the
    /// key.
    form: [&'static str; 3],
    bucket: &'static str,
    key: String,
    query: Vec<String>,
    headers: Vec<(&'static str, String)>,
}

const JSON: [&str; 3] = ["/storage/v1/b/", "/o/", "alt=media"];
const DOWNLOAD: [&str; 3] = ["/download/storage/v1/b/", "/o/", "alt=media"];
const XML: [&str; 3] = ["/", "/", ""];

impl Drawn {
    fn media(key: &str, token: &str) -> Self {
        Self {
            method: "GET",
            form: JSON,
            bucket: BUCKETS[0],
            key: encode(key, false),
            query: Vec::new(),
            headers: vec![("authorization", format!("Bearer {token}"))],
        }
    }

    /// The request, with further header lines.
    fn bytes(&self, more: &str) -> Vec<u8> {
        let [before, between, parameter] = self.form;
        let query = self.query.iter().map(String::as_str);
        let query: Vec<&str> = query
            .chain([parameter])
            .filter(|pair| !pair.is_empty())
            .collect();
        let mut text = format!(
            "{} {before}{}{between}{}",
            self.method, self.bucket, self.key
        );
        if !query.is_empty() {
            text.push_str(&format!("?{}", query.join("&")));
        }
        text.push_str(" HTTP/1.1\r\nConnection: close\r\nHost: 127.0.0.1\r\n");
        for (name, value) in &self.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text.push_str(more);
        text.push_str("\r\n");
        text.into_bytes()
    }
}

/// A source of requests: reads in the common form, most with something unusual or wrong.
struct Draws<'a> {
    random: StdRng,
    fixture: &'a Fixture,
}

impl Draws<'_> {
    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        both_ways::pick(&mut self.random, from)
    }

    fn next(&mut self) -> Drawn {
        let (key, length) = self.pick(&objects());
        let mut drawn = Drawn::media(key, &self.fixture.tokens[0]);
        drawn.form = self.pick(&[JSON, JSON, DOWNLOAD, XML, XML]);
        if self.random.random_bool(0.3) {
            let range = both_ways::range(&mut self.random, length);
            drawn.headers.push(("range", range));
        }
        if self.random.random_bool(0.2) {
            let (_, mut generation) = self.pick(&self.fixture.generations);
            if self.random.random_bool(0.6) {
                let known = self.fixture.generations.iter().find(|(of, _)| *of == key);
                generation = known.unwrap().1.clone();
            }
            drawn.query.push(format!("generation={generation}"));
        }
        if self.random.random_bool(0.5) {
            let codings = ["gzip", "gzip, deflate", "identity", "gzip;q=0"];
            let coding = self.pick(&codings).to_owned();
            drawn.headers.push(("accept-encoding", coding));
        }
        for _ in 0..self.pick(&[0, 0, 1, 1, 2]) {
            match self.random.random_range(0..3) {
                0 => self.change_token(&mut drawn),
                1 => self.change_target(&mut drawn),
                _ => self.add_header(&mut drawn),
            }
        }
        drawn
    }

    fn change_token(&mut self, drawn: &mut Drawn) {
        let [good, confined] = [0, 1].map(|at| self.fixture.tokens[at].clone());
        let mut wrong = good.clone();
        wrong.replace_range(10..11, if &good[10..11] == "A" { "B" } else { "A" });
        let forms = [
            format!("Bearer {confined}"),
            format!("Bearer {confined}"),
            format!("bearer  {good} "),
            format!("Bearer {wrong}"),
            format!("Bearer {good}.x"),
            format!("Basic {good}"),
            "Bearer".to_owned(),
        ];
        let form = self.pick(&forms);
        drawn.headers.retain(|(name, _)| *name != "authorization");
        if self.random.random_bool(0.9) {
            drawn.headers.push(("authorization", form));
        }
    }

    fn change_target(&mut self, drawn: &mut Drawn) {
        match self.random.random_range(0..5) {
            0 => drawn.bucket = self.pick(&["other", "absent", "b%75cket", ""]),
            1 => {
                let keys = ["absent", "", "a//b", "%FF", "a%2Fb/", "plain%00", "a/b"];
                drawn.key = self.pick(&keys).to_owned();
            }
            2 => drawn.method = self.pick(&["HEAD", "OPTIONS", "DELETE"]),
            3 => {
                let forms = [
                    ["/storage/v1/b/", "/o/", ""],
                    ["/download/storage/v1/b/", "/o/", ""],
                    ["//", "/", ""],
                    ["/storage/v1/b/", "/O/", "alt=media"],
                ];
                drawn.form = self.pick(&forms);
            }
            _ => {
                let parameters = [
                    "prettyPrint=false",
                    "projection=full",
                    "userProject=p",
                    "alt=json",
                    "ifGenerationMatch=1",
                    "generation=x",
                    "fields=name",
                    "acl",
                    "response-content-type=text%2Fhtml",
                    "access_token=x",
                ];
                drawn.query.push(self.pick(&parameters).to_owned());
            }
        }
    }

    fn add_header(&mut self, drawn: &mut Drawn) {
        let header = self.pick(&[
            ("x-goog-api-client", "gl-python/3"),
            ("x-goog-user-project", "p"),
            ("cache-control", "no-transform"),
            ("cache-control", "no-cache"),
            ("if-none-match", "*"),
            ("if-match", "\"x\""),
            ("x-goog-if-generation-match", "1"),
            ("x-goog-encryption-algorithm", "AES256"),
            ("x-http-method-override", "PATCH"),
            ("range", "bytes=1-2"),
            ("expect", "100-continue"),
        ]);
        drawn.headers.push((header.0, header.1.to_owned()));
    }
}

/// Sends drawn requests both ways. Returns descriptions of the different responses, and the number of responses of the
/// fast path: all, by the XML API, of a part, and of a named generation.
async fn compare(seed: u64, anonymous: bool) -> (Vec<String>, [u64; 4]) {
    let fixture = Fixture::start(anonymous).await;
    let mut draws = Draws {
        random: StdRng::seed_from_u64(seed),
        fixture: &fixture,
    };
    let (mut different, mut counts) = (Vec::new(), [0; 4]);
    for _ in 0..REQUESTS {
        let mut request = draws.next();
        if request.method == "DELETE" {
            // Only once, or there would be nothing left.
            request.key.push_str("-absent");
        }
        let both = both_ways(fixture.address, ID_HEADER, |more| request.bytes(more)).await;
        if both.is_fast {
            let is_named = request.query.iter().any(|pair| pair.starts_with("gen"));
            counts[0] += 1;
            counts[1] += u64::from(request.form == XML);
            counts[2] += u64::from(both.response.status == 206);
            counts[3] += u64::from(is_named);
        }
        different.extend(both.difference);
    }
    (different, counts)
}

#[tokio::test]
async fn fast_path_responds_as_the_long_way() {
    for (seed, anonymous) in seeds(0..2).flat_map(|seed| [(seed, false), (seed, true)]) {
        let (different, served) = compare(seed, anonymous).await;
        assert!(different.is_empty(), "seed {seed}: {}", different[0]);
        // Enough of each kind went the fast way, and the long way.
        let [all, xml, partial, named] = served;
        let least = [xml, all - xml, partial, all - partial, named].into_iter();
        assert!(least.min() >= Some((REQUESTS / 50) as u64), "{served:?}");
        assert!(all <= (REQUESTS * 9 / 10) as u64, "{served:?}");
    }
}

#[tokio::test]
async fn wrong_fast_paths_are_found() {
    let faults = [
        Fault::AnyToken,
        Fault::AnyBucket,
        Fault::AnyGeneration,
        Fault::WholeForRange,
        Fault::Compressed,
    ];
    assert_found(&faults, async || compare(1, false).await.0).await;
}

#[tokio::test]
async fn requests_of_both_ways_are_counted_alike_and_have_all_digests() {
    let fixture = Fixture::start(false).await;
    let (engine, address) = (&fixture.engine, fixture.address);
    for form in [JSON, XML] {
        let mut request = Drawn::media("hashed", &fixture.tokens[0]);
        request.form = form;
        let responses = assert_counted_alike(engine, address, |more| request.bytes(more)).await;
        for response in responses {
            let hashes = response.headers.iter();
            let hashes = hashes.filter(|(name, _)| name == "x-goog-hash");
            assert_eq!(hashes.count(), 2);
        }
    }
    let summary = engine.traffic().operations();
    for name in ["storage.objects.get.media", "storage.xml.get"] {
        assert!(summary.iter().any(|row| row.operation == name), "{name}");
    }
}

#[tokio::test]
async fn replaced_object_is_served_at_once() {
    let fixture = Fixture::start(false).await;
    let request = Drawn::media("plain", &fixture.tokens[0]);
    let (engine, address) = (&fixture.engine, fixture.address);
    assert_replaced_is_served(engine, address, "plain", || request.bytes("")).await;
}
