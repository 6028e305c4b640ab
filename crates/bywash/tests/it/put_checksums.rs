//! Objects of at most one chunk are one request, which carries the store's checksum; the checksum that the store states is compared.

use std::sync::Arc;

use bytes::Bytes;
use bywash::origin::OriginOptions;
use bywash::{Bucket, Consistency, Engine, OriginError, OriginUrl, RetryPolicy, StatusError};
use bywash_sim::server::azure::Azure;
use bywash_sim::server::gcs::Gcs;
use bywash_sim::server::s3::S3;
use bywash_sim::server::{HttpRequest, HttpResponse, Protocol, Server, ServerFault};
use bywash_support::pattern;
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, UpdateVersion,
};

/// A kind of store, and the header in which it takes the checksum.
pub(crate) struct Store {
    pub(crate) url: &'static str,
    header: &'static str,
    pub(crate) server: Server,
    pub(crate) bucket: Bucket,
}

async fn store(url: &'static str, header: &'static str, protocol: Arc<dyn Protocol>) -> Store {
    store_with(url, header, protocol, RetryPolicy::default()).await
}

pub(crate) async fn store_with(
    url: &'static str,
    header: &'static str,
    protocol: Arc<dyn Protocol>,
    retry: RetryPolicy,
) -> Store {
    let server = Server::start(protocol).await.unwrap();
    let options: &[(&str, &str)] = match &url[..2] {
        "s3" => &[
            ("region", "us-east-1"),
            ("access_key_id", "key"),
            ("secret_access_key", "secret"),
        ],
        "gs" => &[("google_skip_signature", "true")],
        _ => &[("account_name", "account"), ("account_key", "c2VjcmV0")],
    };
    let address = server.url();
    let endpoint = match &url[..2] {
        "s3" => ("endpoint", address),
        "gs" => ("google_base_url", address),
        _ => ("azure_storage_endpoint", format!("{address}/account")),
    };
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    let mut options: std::collections::BTreeMap<String, String> =
        options.iter().map(owned).collect();
    options.insert(endpoint.0.to_owned(), endpoint.1);
    let options = OriginOptions {
        options,
        ..OriginOptions::default()
    };
    let origin = url
        .parse::<OriginUrl>()
        .unwrap()
        .open_with(&options)
        .unwrap();
    let builder = Engine::builder().memory(64 << 20).retry(retry);
    let engine = builder.build().unwrap();
    let bucket = engine
        .mount("test", origin, Consistency::default())
        .unwrap();
    Store {
        url,
        header,
        server,
        bucket,
    }
}

pub(crate) async fn all() -> Vec<Store> {
    vec![
        store("s3://data/p", "x-amz-checksum-crc32c", S3::new()).await,
        store("s3://data/p", "x-amz-checksum-crc32c", S3::plain()).await,
        store("gs://data/p", "x-goog-hash", Gcs::new()).await,
        store("az://data/p", "content-md5", Azure::new()).await,
    ]
}

fn path() -> Path {
    Path::from("dir/a b")
}

pub(crate) fn options(mode: PutMode) -> PutOptions {
    PutOptions {
        mode,
        attributes: Attributes::from_iter([
            (Attribute::ContentType, "text/plain"),
            (Attribute::Metadata("name".into()), "value"),
        ]),
        ..PutOptions::default()
    }
}

#[tokio::test]
async fn put_carries_the_checksum_and_attributes() {
    for store in all().await {
        for length in [0, 1, 100_000] {
            let body = pattern(length, usize::try_from(length).unwrap());
            // In two pieces.
            let middle = body.len() / 2;
            let payload = [body.slice(..middle), body.slice(middle..)];
            let payload = payload.into_iter().collect();
            let put = store
                .bucket
                .put_opts(&path(), payload, options(PutMode::Overwrite))
                .await
                .unwrap();
            let log = store.server.take_log();
            let [request] = &log[..] else {
                panic!("{}: {log:?}", store.url);
            };
            assert!(request.line.starts_with("PUT "), "{}", request.line);
            let checksum = request.headers.get(store.header);
            assert!(checksum.is_some(), "{}: {:?}", store.url, request.headers);
            let found = store.bucket.get(&path()).await.unwrap();
            assert_eq!(found.meta.e_tag, put.e_tag, "{}", store.url);
            assert_eq!(found.attributes, options(PutMode::Overwrite).attributes);
            assert_eq!(found.bytes().await.unwrap(), body);
            let _seen = store.server.take_log();
        }
    }
}

/// The store acknowledges, and has other bytes: known only by the checksum in its response.
#[tokio::test]
async fn checksum_in_the_response_is_compared() {
    for store in all().await {
        store.server.script("PUT ", ServerFault::FlipBit);
        let put = store.bucket.put(&path(), pattern(1, 1000).into()).await;
        let states_none = store.url.starts_with("s3") && put.is_ok();
        match put {
            // A store that ignores the checksum states none.
            Ok(_) => assert!(states_none),
            Err(error) => {
                let found = OriginError::find(&error);
                assert!(
                    matches!(found, Some(OriginError::UploadDamaged { .. })),
                    "{}: {error}",
                    store.url
                );
                let text = error.to_string();
                assert!(text.contains("was sent; upload it again"), "{text}");
            }
        }
    }
    let store = store("s3://data/p", "", S3::new()).await;
    store.server.script("PUT ", ServerFault::FlipBit);
    let put = store.bucket.put(&path(), pattern(1, 1000).into()).await;
    assert!(put.is_err(), "a store that keeps checksums states them");
}

#[tokio::test]
async fn conditions_of_a_put_hold_and_lost_connections_are_retried() {
    for store in all().await {
        let (bucket, url) = (&store.bucket, store.url);
        store.server.script("PUT ", ServerFault::ResetAfter(1));
        store.server.script("PUT ", ServerFault::Unavailable);
        let first = bucket.put(&path(), pattern(1, 1000).into()).await.unwrap();
        let create = options(PutMode::Create);
        let error = bucket
            .put_opts(&path(), Bytes::from("x").into(), create)
            .await
            .unwrap_err();
        assert!(
            matches!(error, Error::AlreadyExists { .. }),
            "{url}: {error}"
        );
        let update = |version: UpdateVersion| options(PutMode::Update(version));
        let second = bucket
            .put_opts(
                &path(),
                Bytes::from("xy").into(),
                update(first.clone().into()),
            )
            .await
            .unwrap();
        let error = bucket
            .put_opts(&path(), Bytes::from("z").into(), update(first.into()))
            .await
            .unwrap_err();
        assert!(
            matches!(error, Error::Precondition { .. }),
            "{url}: {error}"
        );
        let found = bucket.get(&path()).await.unwrap();
        assert_eq!(found.meta.e_tag, second.e_tag);
        assert_eq!(found.bytes().await.unwrap(), "xy");
    }
}

/// A server that does not know the header of the checksum.
struct Ancient(Arc<S3>);

impl Protocol for Ancient {
    fn respond(&self, request: &HttpRequest) -> HttpResponse {
        match request.header("x-amz-checksum-crc32c") {
            Some(_) => HttpResponse::status(501).body(
                "<Error><Code>NotImplemented</Code><Message>A header you provided</Message></Error>",
            ),
            None => self.0.respond(request),
        }
    }
}

#[tokio::test]
async fn store_without_the_checksum_header_gets_an_md5_from_then_on() {
    let store = store("s3://data/p", "", Arc::new(Ancient(S3::plain()))).await;
    for number in 0..2 {
        let body = pattern(number, 1000);
        store
            .bucket
            .put(&path(), body.clone().into())
            .await
            .unwrap();
        let found = store.bucket.get(&path()).await.unwrap();
        assert_eq!(found.bytes().await.unwrap(), body);
    }
    let log = store.server.take_log();
    let puts = log.iter().filter(|request| request.line.starts_with("PUT"));
    let with_md5: Vec<_> = puts
        .map(|request| request.headers.contains_key("content-md5"))
        .collect();
    assert_eq!(with_md5, [false, true, true]);
}

/// A store that finds the bytes damaged on their way.
struct Damages(Arc<S3>);

impl Protocol for Damages {
    fn respond(&self, request: &HttpRequest) -> HttpResponse {
        let mut request = request.clone();
        let mut bytes = request.body.to_vec();
        if request.method == http::Method::PUT
            && let Some(byte) = bytes.first_mut()
            && request.query("X-Amz-Signature").is_some()
        {
            *byte ^= 1;
        }
        request.body = bytes.into();
        self.0.respond(&request)
    }
}

#[tokio::test]
async fn bytes_damaged_on_the_way_make_no_object() {
    let s3 = S3::new();
    // It damages each attempt.
    let retry = RetryPolicy {
        deadline: std::time::Duration::from_millis(200),
        ..RetryPolicy::default()
    };
    let damages = Arc::new(Damages(Arc::clone(&s3)));
    let store = store_with("s3://data/p", "", damages, retry).await;
    let create = options(PutMode::Create);
    let put = store
        .bucket
        .put_opts(&path(), pattern(1, 1000).into(), create)
        .await;
    let error = put.unwrap_err();
    assert!(error.to_string().contains("BadDigest"), "{error}");
    assert!(s3.objects().get("data", "p/dir/a b").is_none());
}

#[tokio::test]
async fn refused_put_names_the_stores_reason() {
    struct Refuses;
    impl Protocol for Refuses {
        fn respond(&self, _: &HttpRequest) -> HttpResponse {
            HttpResponse::status(403)
                .body("<Error><Code>AccessDenied</Code><Message>no such right</Message></Error>")
        }
    }
    for url in ["s3://data/p", "gs://data/p", "az://data/p"] {
        let store = store(url, "", Arc::new(Refuses)).await;
        let put = store.bucket.put(&path(), Bytes::from("x").into()).await;
        let error = put.unwrap_err();
        assert!(matches!(error, Error::PermissionDenied { .. }), "{error}");
        let status = StatusError::find(&error).unwrap();
        assert!(status.detail.contains("AccessDenied"), "{}", status.detail);
    }
}
