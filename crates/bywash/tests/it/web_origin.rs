//! Files of web servers, conforming and not, read through a bucket.

use std::sync::Arc;

use bytes::Bytes;
use bywash::origin::Redirects;
use bywash::origin::http::HttpStore;
use bywash::{
    Bucket, BucketStats, Consistency, Engine, EngineError, OriginError, OriginUrl, RetryPolicy,
};
use bywash_sim::advance_clock_by_ticks;
use bywash_sim::server::web::{Tag, Web, WebServerOptions};
use bywash_sim::server::{LoggedRequest, Server, ServerFault};
use bywash_support::pattern;
use futures::TryStreamExt;
use http::{HeaderMap, HeaderValue};
use object_store::path::Path;
use object_store::{
    Attribute, Error, GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode, PutPayload,
};

const BLOCK: usize = 64 << 10;

struct World {
    web: Arc<Web>,
    server: Server,
    engine: Engine,
    bucket: Bucket,
}

impl World {
    async fn new(server_options: WebServerOptions) -> Self {
        Self::with(server_options, "", "?sig=s3cr3t", &HeaderMap::new(), None).await
    }

    /// The bucket is the folder `/pub`; `secret` is the URL's user info.
    async fn with(
        server_options: WebServerOptions,
        secret: &str,
        query: &str,
        headers: &HeaderMap,
        redirects: Option<Redirects>,
    ) -> Self {
        let web = Arc::new(Web::new(server_options));
        let server = Server::start(Arc::<Web>::clone(&web)).await.unwrap();
        let host = server.url().replace("http://", "");
        let url = format!("http://{secret}{host}/pub/{query}");
        let OriginUrl::Http(url) = url.parse().unwrap() else {
            panic!("{url} is the address of a web server");
        };
        let retry = RetryPolicy {
            initial_backoff: std::time::Duration::from_millis(1),
            ..RetryPolicy::default()
        };
        let builder = Engine::builder().memory(16 << 20).block_size(BLOCK);
        let engine = builder.retry(retry).build().unwrap();
        let origin = Arc::new(HttpStore::open(&url, headers, redirects).unwrap());
        let bucket = engine.mount("web", origin, Consistency::Immutable).unwrap();
        Self {
            web,
            server,
            engine,
            bucket,
        }
    }

    fn stats(&self) -> BucketStats {
        self.engine.stats().buckets["web"]
    }

    async fn read(&self, key: &str, range: Option<GetRange>) -> object_store::Result<Bytes> {
        let options = GetOptions {
            range,
            ..GetOptions::default()
        };
        let path = Path::from(key);
        self.bucket.get_opts(&path, options).await?.bytes().await
    }
}

fn gets(log: &[LoggedRequest]) -> usize {
    log.iter()
        .filter(|request| request.line.starts_with("GET "))
        .count()
}

/// Returns each kind of server.
fn all_web_server_options() -> Vec<WebServerOptions> {
    let mut all = Vec::new();
    for ranges in [true, false] {
        for tag in [Tag::None, Tag::Weak, Tag::Strong] {
            for dates in [true, false] {
                for conditions in [true, false] {
                    let server_options = WebServerOptions {
                        ranges,
                        tag,
                        dates,
                        conditions,
                        ..WebServerOptions::default()
                    };
                    all.push(server_options);
                }
            }
        }
    }
    all
}

/// Versitygw does so with files put there behind its back.
#[tokio::test]
async fn object_without_etag_compared_by_parts_of_a_second_is_read_again_after_eviction() {
    let server_options = WebServerOptions {
        tag: Tag::None,
        fine_dates: true,
        ..WebServerOptions::default()
    };
    let world = World::new(server_options).await;
    // More than the memory holds, so that each read evicts the blocks of the last one.
    let data = pattern(1, 17 << 20);
    world.web.put("/pub/key", data.clone());
    for _ in 0..2 {
        assert!(world.read("key", None).await.unwrap() == data);
    }
}

#[tokio::test]
async fn any_server_returns_correct_bytes_and_objects_with_validators_are_cached() {
    let world = World::new(WebServerOptions::default()).await;
    for (number, server_options) in all_web_server_options().into_iter().enumerate() {
        world.web.set_options(server_options);
        let data = pattern(number as u64, 5 * BLOCK + 17);
        let key = format!("a b/c+%.{number}");
        world.web.put(&format!("/pub/{key}"), data.clone());
        let path = Path::parse(&key).unwrap();
        for range in [
            None,
            Some(GetRange::Bounded(0..1)),
            Some(GetRange::Bounded(
                3 * BLOCK as u64 - 5..4 * BLOCK as u64 + 5,
            )),
            Some(GetRange::Offset(5 * BLOCK as u64 + 16)),
            Some(GetRange::Suffix(100)),
        ] {
            let wanted = range
                .as_ref()
                .map(|range| range.as_range(data.len() as u64).unwrap());
            let wanted = wanted.map_or(data.clone(), |range| {
                data.slice(range.start as usize..range.end as usize)
            });
            let options = GetOptions {
                range,
                ..GetOptions::default()
            };
            let result = world.bucket.get_opts(&path, options).await.unwrap();
            assert_eq!(result.meta.size, data.len() as u64, "{server_options:?}");
            assert_eq!(
                result
                    .attributes
                    .get(&Attribute::ContentType)
                    .unwrap()
                    .as_ref(),
                "application/x-test"
            );
            assert_eq!(result.bytes().await.unwrap(), wanted, "{server_options:?}");
        }
        let before = world.stats().origin_requests;
        assert_eq!(
            world
                .bucket
                .get(&path)
                .await
                .unwrap()
                .bytes()
                .await
                .unwrap(),
            data
        );
        let requests = world.stats().origin_requests - before;
        let cached = server_options.tag == Tag::Strong || server_options.dates;
        assert_eq!(
            requests == 0,
            cached,
            "{server_options:?}: {requests} requests"
        );
        for request in world.server.take_log() {
            assert_eq!(request.headers["accept-encoding"], "identity");
            assert!(
                request
                    .line
                    .ends_with(&format!("/pub/a%20b/c+%25.{number}?sig=s3cr3t")),
                "{}",
                request.line
            );
        }
    }
}

#[tokio::test]
async fn object_replaced_while_read_is_never_mixed() {
    let world = World::new(WebServerOptions::default()).await;
    for (number, server_options) in all_web_server_options().into_iter().enumerate() {
        world.web.set_options(server_options);
        let (key, path) = (format!("/pub/{number}"), Path::from(number.to_string()));
        let (old, new) = (pattern(0, 64 * BLOCK), pattern(7, 64 * BLOCK));
        world.web.put(&key, old.clone());
        let mut body = world.bucket.get(&path).await.unwrap().into_stream();
        let mut got = body.try_next().await.unwrap().unwrap().to_vec();
        world.web.put(&key, new.clone());
        let end = loop {
            match body.try_next().await {
                Ok(Some(piece)) => got.extend_from_slice(&piece),
                end => break end,
            }
        };
        assert!(
            old.starts_with(&got),
            "{server_options:?}: bytes of two versions"
        );
        if let Err(error) = end {
            let changed = EngineError::find(&error);
            assert!(
                matches!(changed, Some(EngineError::VersionChanged { .. })),
                "{error}"
            );
            let again = world.bucket.get(&path).await.unwrap();
            assert_eq!(again.bytes().await.unwrap(), new, "{server_options:?}");
        } else {
            assert_eq!(got.len(), old.len(), "{server_options:?}");
        }
    }
}

#[tokio::test]
async fn reader_without_range_support_continues_its_parked_body() {
    // A body waits for the next request for some seconds only.
    advance_clock_by_ticks();
    let server_options = WebServerOptions {
        ranges: false,
        ..WebServerOptions::default()
    };
    let world = World::new(server_options).await;
    let data = pattern(0, 640 * BLOCK);
    world.web.put("/pub/k", data.clone());
    let mut body = world
        .bucket
        .get(&Path::from("k"))
        .await
        .unwrap()
        .into_stream();
    let mut got = 0;
    while let Some(piece) = body.try_next().await.unwrap() {
        assert_eq!(piece, data[got..got + piece.len()]);
        got += piece.len();
    }
    assert_eq!(got, data.len());
    // Each concurrent request has a body of its own.
    let fetches = world.stats().origin_data_requests;
    let sent = gets(&world.server.take_log());
    assert!(
        fetches > 8,
        "only {fetches} range fetches: the object is too short for this test"
    );
    assert!(sent <= 4, "{sent} GETs for {fetches} range fetches");
}

#[tokio::test]
async fn server_errors_map_to_matching_errors() {
    let world = World::new(WebServerOptions::default()).await;
    world.web.respond_with_status("/pub/gone", 410);
    world.web.respond_with_status("/pub/secret", 403);
    world.web.respond_with_status("/pub/login", 401);
    world.web.respond_with_status("/pub/teapot", 418);
    world.web.put("/pub/k", pattern(0, 10));
    let failure = async |key: &str| world.read(key, None).await.unwrap_err();
    assert!(matches!(failure("none").await, Error::NotFound { .. }));
    assert!(matches!(failure("gone").await, Error::NotFound { .. }));
    assert!(matches!(
        failure("secret").await,
        Error::PermissionDenied { .. }
    ));
    assert!(matches!(
        failure("login").await,
        Error::Unauthenticated { .. }
    ));
    let teapot = failure("teapot").await.to_string();
    assert!(
        teapot.contains("418") && !teapot.contains("s3cr3t"),
        "{teapot}"
    );
    let beyond = world
        .read("k", Some(GetRange::Offset(10)))
        .await
        .unwrap_err();
    let beyond = EngineError::find(&beyond);
    assert!(matches!(
        beyond,
        Some(EngineError::RangeNotSatisfiable { length: 10, .. })
    ));
    world.server.script("/pub/k", ServerFault::Unavailable);
    assert_eq!(
        world
            .read("k", Some(GetRange::Bounded(2..5)))
            .await
            .unwrap(),
        pattern(0, 10)[2..5]
    );
    let listing = world.bucket.list_with_delimiter(None).await.unwrap_err();
    assert!(matches!(listing, Error::NotSupported { .. }), "{listing}");
}

#[tokio::test]
async fn servers_without_head_or_length_are_queried_by_get() {
    for (head, length, ranges) in [
        (false, true, true),
        (false, true, false),
        (true, false, true),
        (true, false, false),
        (false, false, false),
    ] {
        let server_options = WebServerOptions {
            ranges,
            head,
            length,
            ..WebServerOptions::default()
        };
        let world = World::new(server_options).await;
        world.web.put("/pub/empty", Bytes::new());
        world.web.put("/pub/short", pattern(0, 1000));
        for (key, size) in [("empty", 0), ("short", 1000)] {
            let path = Path::from(key);
            assert_eq!(
                world.bucket.head(&path).await.unwrap().size,
                size,
                "{server_options:?}"
            );
            assert_eq!(
                world.read(key, None).await.unwrap(),
                pattern(0, size as usize),
                "{server_options:?}"
            );
        }
        let missing = world.bucket.head(&Path::from("none")).await.unwrap_err();
        assert!(
            matches!(missing, Error::NotFound { .. }),
            "{server_options:?}"
        );
    }
    // Too long to be measured.
    let chunked = WebServerOptions {
        ranges: false,
        length: false,
        ..WebServerOptions::default()
    };
    let world = World::new(chunked).await;
    world.web.put("/pub/long", pattern(0, (1 << 20) + 1));
    let error = world.read("long", None).await.unwrap_err();
    assert!(matches!(error, Error::NotSupported { .. }), "{error}");
    assert!(error.to_string().contains("Content-Length"), "{error}");
}

#[tokio::test]
async fn content_encoding_is_kept_and_reported() {
    let world = World::new(WebServerOptions::default()).await;
    let packed = pattern(3, 300);
    world
        .web
        .put_encoded("/pub/k.gz", packed.clone(), Some("gzip"));
    let result = world.bucket.get(&Path::from("k.gz")).await.unwrap();
    assert_eq!(
        result
            .attributes
            .get(&Attribute::ContentEncoding)
            .unwrap()
            .as_ref(),
        "gzip"
    );
    assert_eq!(result.bytes().await.unwrap(), packed);
}

fn token() -> HeaderMap {
    HeaderMap::from_iter([(
        http::HeaderName::from_static("x-api-key"),
        HeaderValue::from_static("t0ken"),
    )])
}

/// Another host with the file `/k`.
async fn elsewhere() -> Server {
    let other = Arc::new(Web::new(WebServerOptions::default()));
    other.put("/k", pattern(0, 10));
    Server::start(other).await.unwrap()
}

/// Checks that no request to another host contains a part of the URL or of the bucket's settings.
fn assert_nothing_secret(log: &[LoggedRequest]) {
    assert!(!log.is_empty());
    for request in log {
        assert_eq!(request.line.split(' ').nth(1), Some("/k"));
        let names: Vec<_> = request.headers.keys().map(|name| name.as_str()).collect();
        for name in &names {
            let known = ["accept", "accept-encoding", "host", "range"];
            assert!(known.contains(name), "{name} was sent to another host");
        }
        let shown = format!("{:?}", request.headers);
        for secret in ["s3cr3t", "t0ken", "me:pw", "bWU6cHc"] {
            assert!(!shown.contains(secret), "{shown}");
        }
    }
}

#[tokio::test]
async fn redirects_on_a_host_forward_headers_and_never_the_url() {
    let (server_options, token) = (WebServerOptions::default(), token());
    let world = World::with(server_options, "me:pw@", "?sig=s3cr3t", &token, None).await;
    world.web.put("/store/k", pattern(0, 10));
    world.web.redirect("/pub/near", "/store/k");
    assert_eq!(world.read("near", None).await.unwrap(), pattern(0, 10));
    let log = world.server.take_log();
    for request in &log {
        assert_eq!(request.headers["x-api-key"], "t0ken");
        assert_eq!(request.headers["authorization"], "Basic bWU6cHc=");
    }
    let second: Vec<_> = log
        .iter()
        .filter(|request| request.line == "GET /store/k")
        .collect();
    assert!(!second.is_empty());
    for request in second {
        let shown = format!("{:?}", request.headers);
        assert!(
            !shown.contains("s3cr3t") && !shown.contains("referer"),
            "{shown}"
        );
    }
}

#[tokio::test]
async fn redirect_to_another_host_is_refused_with_query_or_headers() {
    let other = elsewhere().await;
    let (far, none) = (format!("{}/k", other.url()), HeaderMap::new());
    let bound: [(&str, &HeaderMap, Option<Redirects>); 3] = [
        ("?sig=s3cr3t", &none, None),
        ("", &token(), None),
        ("", &none, Some(Redirects::SameHost)),
    ];
    for (query, headers, redirects) in bound {
        let world = World::with(
            WebServerOptions::default(),
            "me:pw@",
            query,
            headers,
            redirects,
        )
        .await;
        world.web.redirect("/pub/far", &far);
        world.web.redirect("/pub/there", "/pub/far");
        for key in ["far", "there"] {
            let error = world.read(key, None).await.unwrap_err();
            assert!(matches!(error, Error::NotSupported { .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains("another host, 127.0.0.1:"), "{text}");
            assert!(text.contains("redirects = \"any\""), "{text}");
            assert!(!text.contains("s3cr3t") && !text.contains("pw"), "{text}");
        }
    }
    assert!(other.take_log().is_empty());
}

#[tokio::test]
async fn redirect_to_another_host_forwards_no_secret() {
    let other = elsewhere().await;
    let far = format!("{}/k", other.url());
    let (none, any) = (HeaderMap::new(), Some(Redirects::Any));
    let free = [("", &none, None), ("?sig=s3cr3t", &token(), any)];
    for (query, headers, redirects) in free {
        let world = World::with(
            WebServerOptions::default(),
            "me:pw@",
            query,
            headers,
            redirects,
        )
        .await;
        world.web.redirect("/pub/far", &far);
        let range = Some(GetRange::Bounded(2..5));
        assert_eq!(
            world.read("far", range).await.unwrap(),
            pattern(0, 10)[2..5]
        );
        world.bucket.head(&Path::from("far")).await.unwrap();
        assert_nothing_secret(&other.take_log());
    }
}

#[tokio::test]
async fn host_that_redirects_back_gets_no_headers() {
    let token = token();
    let any = Some(Redirects::Any);
    let world = World::with(WebServerOptions::default(), "", "?sig=s3cr3t", &token, any).await;
    let back = Arc::new(Web::new(WebServerOptions::default()));
    let other = Server::start(Arc::<Web>::clone(&back)).await.unwrap();
    world.web.put("/k", pattern(0, 10));
    back.redirect("/back", &format!("{}/k", world.server.url()));
    world
        .web
        .redirect("/pub/far", &format!("{}/back", other.url()));
    assert_eq!(world.read("far", None).await.unwrap(), pattern(0, 10));
    let log = world.server.take_log();
    let returned: Vec<_> = log
        .into_iter()
        .filter(|request| request.line.ends_with(" /k"))
        .collect();
    assert_nothing_secret(&returned);
}

#[tokio::test]
async fn redirects_to_invalid_targets_are_refused() {
    let none = HeaderMap::new();
    let world = World::with(WebServerOptions::default(), "", "", &none, None).await;
    world.web.redirect("/pub/loop", "/pub/loop");
    for hop in 0..=10 {
        let next = format!("/pub/{}", hop + 1);
        world.web.redirect(&format!("/pub/{hop}"), &next);
    }
    world.web.put("/pub/11", pattern(0, 10));
    world.web.redirect("/pub/file", "file:///etc/hostname");
    world.web.redirect("/pub/odd", "http://[");
    // Ten redirects are followed, an eleventh is not.
    assert_eq!(world.read("1", None).await.unwrap(), pattern(0, 10));
    for (key, expected) in [
        ("loop", "more than 10"),
        ("0", "more than 10"),
        ("file", "a file address"),
    ] {
        let error = world.read(key, None).await.unwrap_err();
        assert!(
            matches!(error, Error::NotSupported { .. }),
            "{key}: {error}"
        );
        assert!(error.to_string().contains(expected), "{key}: {error}");
    }
    let odd = world.read("odd", None).await.unwrap_err();
    assert!(odd.to_string().contains("302"), "{odd}");
}

#[tokio::test]
async fn write_is_refused_before_any_request() {
    let world = World::new(WebServerOptions::default()).await;
    world.web.put("/pub/k", pattern(0, 10));
    let (from, to) = (Path::from("k"), Path::from("to"));
    let bucket = &world.bucket;
    let errors = [
        bucket
            .put(&to, PutPayload::from_static(b"x"))
            .await
            .unwrap_err(),
        bucket.delete(&from).await.unwrap_err(),
        bucket.copy(&from, &to).await.unwrap_err(),
        bucket
            .create_upload(&to, Default::default())
            .await
            .unwrap_err(),
        bucket
            .complete_upload(&to, "u", &[], PutMode::default())
            .await
            .unwrap_err(),
        bucket.abort_upload(&to, "u").await.unwrap_err(),
    ];
    for error in errors {
        let refused = OriginError::find(&error);
        assert!(
            matches!(refused, Some(OriginError::ReadOnly { .. })),
            "{error}"
        );
    }
    assert!(world.server.take_log().is_empty());
}
