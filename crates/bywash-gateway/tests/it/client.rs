//! Tests with a real client, object_store's, which signs its requests; and checks of such a client at any endpoint.

use std::time::Duration;

use futures::TryStreamExt;
use http::Method;
use object_store::aws::{AmazonS3, AmazonS3Builder, Checksum};
use object_store::path::Path;
use object_store::signer::Signer;
use object_store::{
    Attribute, Attributes, CopyMode, CopyOptions, Error, GetOptions, GetRange, MultipartUpload,
    ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, UpdateVersion,
    WriteMultipart,
};

use crate::http::pattern;
use crate::server::{BUCKETS, KEY, SECRET, Server};

fn client(server: &Server, bucket: &str) -> AmazonS3 {
    let _ = rustls::crypto::ring::default_provider().install_default();
    AmazonS3Builder::new()
        .with_endpoint(format!("http://{}", server.address))
        .with_allow_http(true)
        .with_bucket_name(bucket)
        .with_region("us-east-1")
        .with_access_key_id(KEY)
        .with_secret_access_key(SECRET)
        .with_checksum_algorithm(Checksum::SHA256)
        .build()
        .unwrap()
}

/// Checks writes, reads of ranges, heads and deletes.
pub(crate) async fn check_puts_gets_and_deletes(store: &impl ObjectStore) {
    let path = Path::from("some folder/key + 1");
    let body = pattern(300_000);
    let attributes = Attributes::from_iter([
        (Attribute::ContentType, "text/x"),
        (Attribute::CacheControl, "no-store"),
        (Attribute::Metadata("a".into()), "b"),
    ]);
    let put = PutOptions {
        attributes: attributes.clone(),
        ..PutOptions::default()
    };
    let written = store
        .put_opts(&path, body.clone().into(), put)
        .await
        .unwrap();
    let found = store.get(&path).await.unwrap();
    assert_eq!(found.meta.e_tag, written.e_tag);
    assert_eq!(found.meta.version, written.version);
    assert_eq!(found.attributes, attributes);
    assert!(found.bytes().await.unwrap() == body);
    for range in [
        GetRange::Bounded(5..17),
        GetRange::Offset(299_990),
        GetRange::Suffix(7),
    ] {
        let expected = range.as_range(300_000).unwrap();
        let options = GetOptions {
            range: Some(range),
            ..GetOptions::default()
        };
        let got = store.get_opts(&path, options).await.unwrap();
        assert_eq!(got.range, expected);
        let wanted = &body[expected.start as usize..expected.end as usize];
        assert_eq!(got.bytes().await.unwrap(), wanted);
    }
    let head = store.head(&path).await.unwrap();
    assert_eq!((head.size, head.version), (300_000, written.version));
    store.delete(&path).await.unwrap();
    assert!(matches!(
        store.head(&path).await,
        Err(Error::NotFound { .. })
    ));
}

/// Checks conditions of writes and reads: on ETags, and on versions where the store states them.
pub(crate) async fn check_conditions(store: &impl ObjectStore) {
    let path = Path::from("key");
    let mode = |mode| PutOptions {
        mode,
        ..PutOptions::default()
    };
    let first = store
        .put_opts(&path, "1".into(), mode(PutMode::Create))
        .await
        .unwrap();
    let again = store
        .put_opts(&path, "2".into(), mode(PutMode::Create))
        .await;
    assert!(
        matches!(again, Err(Error::AlreadyExists { .. })),
        "{again:?}"
    );
    let version = UpdateVersion::from(first.clone());
    let update = mode(PutMode::Update(version.clone()));
    let second = store.put_opts(&path, "3".into(), update).await.unwrap();
    let stale = store
        .put_opts(&path, "4".into(), mode(PutMode::Update(version)))
        .await;
    assert!(
        matches!(stale, Err(Error::Precondition { .. })),
        "{stale:?}"
    );
    let with = |options: GetOptions| store.get_opts(&path, options);
    let same = with(GetOptions {
        if_none_match: second.e_tag.clone(),
        ..GetOptions::default()
    });
    assert!(matches!(same.await, Err(Error::NotModified { .. })));
    let old = with(GetOptions {
        if_match: first.e_tag.clone(),
        ..GetOptions::default()
    });
    assert!(matches!(old.await, Err(Error::Precondition { .. })));
    let current = with(GetOptions {
        if_match: second.e_tag.clone(),
        version: second.version.clone(),
        ..GetOptions::default()
    });
    assert_eq!(current.await.unwrap().bytes().await.unwrap(), "3");
    if first.version.is_some() {
        let gone = with(GetOptions {
            version: first.version,
            ..GetOptions::default()
        });
        assert!(matches!(gone.await, Err(Error::NotFound { .. })));
    }
}

#[tokio::test]
async fn client_puts_gets_and_deletes() {
    let server = Server::signed().await;
    for bucket in BUCKETS {
        check_puts_gets_and_deletes(&client(&server, bucket)).await;
    }
}

#[tokio::test]
async fn client_conditions_guard_writes_and_reads() {
    let server = Server::signed().await;
    for bucket in BUCKETS {
        check_conditions(&client(&server, bucket)).await;
    }
}

/// The keys of listed objects.
fn locations(objects: &[ObjectMeta]) -> Vec<&str> {
    objects.iter().map(|meta| meta.location.as_ref()).collect()
}

#[tokio::test]
async fn client_copies_lists_and_uploads_in_parts() {
    let server = Server::signed().await;
    for bucket in BUCKETS {
        let store = client(&server, bucket);
        let body = pattern(17 << 20);
        let upload = store.put_multipart(&Path::from("large")).await.unwrap();
        let mut writer = WriteMultipart::new_with_chunk_size(upload, 6 << 20);
        writer.write(&body);
        writer.finish().await.unwrap();
        assert!(
            store
                .get(&Path::from("large"))
                .await
                .unwrap()
                .bytes()
                .await
                .unwrap()
                == body
        );
        let mut upload = store.put_multipart(&Path::from("aborted")).await.unwrap();
        upload
            .put_part(PutPayload::from(vec![0; 5 << 20]))
            .await
            .unwrap();
        upload.abort().await.unwrap();
        store
            .copy(&Path::from("large"), &Path::from("a/copy"))
            .await
            .unwrap();
        let create = CopyOptions {
            mode: CopyMode::Overwrite,
            ..CopyOptions::default()
        };
        store
            .copy_opts(&Path::from("large"), &Path::from("a/b/copy"), create)
            .await
            .unwrap();
        assert!(
            store
                .get(&Path::from("a/copy"))
                .await
                .unwrap()
                .bytes()
                .await
                .unwrap()
                == body
        );
        let all: Vec<_> = store.list(None).try_collect().await.unwrap();
        assert_eq!(locations(&all), ["a/b/copy", "a/copy", "large"]);
        assert!(all.iter().all(|meta| meta.size == 17 << 20));
    }
}

#[tokio::test]
async fn client_lists_and_deletes() {
    let server = Server::signed().await;
    for bucket in BUCKETS {
        let store = client(&server, bucket);
        let names = ["a/b/copy", "a/copy", "large"];
        for name in names {
            store.put(&Path::from(name), "x".into()).await.unwrap();
        }
        let level = store
            .list_with_delimiter(Some(&Path::from("a")))
            .await
            .unwrap();
        assert_eq!(level.common_prefixes, [Path::from("a/b")]);
        assert_eq!(locations(&level.objects), ["a/copy"]);
        let after: Vec<_> = store
            .list_with_offset(None, &Path::from("a/copy"))
            .try_collect()
            .await
            .unwrap();
        assert_eq!(locations(&after), ["large"]);
        let paths = futures::stream::iter(names.map(|name| Ok(Path::from(name))));
        let deleted: Vec<_> = store
            .delete_stream(Box::pin(paths))
            .try_collect()
            .await
            .unwrap();
        assert_eq!(deleted, names.map(Path::from));
        assert!(store.list(None).try_next().await.unwrap().is_none());
    }
}

#[tokio::test]
async fn client_presigned_urls_allow_their_method_only() {
    let server = Server::signed().await;
    let store = client(&server, "folder");
    let url = store
        .signed_url(Method::PUT, &Path::from("p r e"), Duration::from_secs(60))
        .await
        .unwrap();
    let http = reqwest::Client::builder()
        .timeout(Duration::from_secs(30))
        .build()
        .unwrap();
    let reply = http.put(url).body("presigned").send().await.unwrap();
    assert_eq!(reply.status(), 200);
    let url = store
        .signed_url(Method::GET, &Path::from("p r e"), Duration::from_secs(60))
        .await
        .unwrap();
    assert_eq!(
        http.get(url.clone())
            .send()
            .await
            .unwrap()
            .text()
            .await
            .unwrap(),
        "presigned"
    );
    assert_eq!(http.delete(url).send().await.unwrap().status(), 403);
}

#[tokio::test]
async fn second_read_sends_no_origin_request() {
    let server = Server::signed().await;
    let store = client(&server, "folder");
    let body = pattern(5 << 20);
    store
        .put(&Path::from("key"), body.clone().into())
        .await
        .unwrap();
    assert!(
        store
            .get(&Path::from("key"))
            .await
            .unwrap()
            .bytes()
            .await
            .unwrap()
            == body
    );
    let cold = server.engine.stats().buckets["folder"].origin_data_requests;
    assert!(
        store
            .get(&Path::from("key"))
            .await
            .unwrap()
            .bytes()
            .await
            .unwrap()
            == body
    );
    assert_eq!(
        server.engine.stats().buckets["folder"].origin_data_requests,
        cold
    );
}
