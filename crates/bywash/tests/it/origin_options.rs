//! Origins with their own settings, under object_store's names.

use std::sync::Arc;

use bywash::origin::{OriginOptions, ReadOnly};
use bywash::{Consistency, Engine, Origin, OriginError, OriginUrl};
use bywash_sim::server::azure::Azure;
use bywash_sim::server::gcs::Gcs;
use bywash_sim::server::s3::S3;
use bywash_sim::server::{LoggedRequest, Server};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};

fn open(url: &str, options: &[(&str, &str)]) -> object_store::Result<Arc<dyn Origin>> {
    let url: OriginUrl = url.parse().unwrap();
    let text = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    url.open_with(&OriginOptions {
        options: options.iter().map(text).collect(),
        ..OriginOptions::default()
    })
}

fn is_signed_with_its_options(request: &LoggedRequest) -> bool {
    let header = request.headers.get("authorization");
    let header = header.and_then(|value| value.to_str().ok()?.split_once("Credential="));
    let signed_by = header.map(|(_, signed_by)| signed_by);
    let signed_by = signed_by.or(request.signed_by.as_deref()).unwrap();
    signed_by.starts_with("mine/") && signed_by.contains("/eu-central-1/")
}

#[tokio::test]
async fn origins_use_their_own_options() {
    let (s3, gcs, azure) = (S3::new(), Gcs::new(), Azure::new());
    let s3_server = Server::start(Arc::<S3>::clone(&s3)).await.unwrap();
    let gcs_server = Server::start(Arc::<Gcs>::clone(&gcs)).await.unwrap();
    let azure_server = Server::start(Arc::<Azure>::clone(&azure)).await.unwrap();
    let service_account = format!(
        r#"{{"gcs_base_url": "{}", "disable_oauth": true, "client_email": "", "private_key": "", "private_key_id": ""}}"#,
        gcs_server.url()
    );
    let origins = [
        (
            "s3",
            open(
                "s3://data/p",
                &[
                    ("endpoint", &s3_server.url()),
                    ("region", "eu-central-1"),
                    ("AWS_ACCESS_KEY_ID", "mine"),
                    ("secret_access_key", "secret"),
                    ("allow_http", "true"),
                ],
            ),
        ),
        (
            "gs",
            open(
                "gs://data/p",
                &[("google_service_account_key", &service_account)],
            ),
        ),
        (
            "az",
            open(
                "az://data/p",
                &[
                    ("endpoint", &format!("{}/account", azure_server.url())),
                    ("account_name", "account"),
                    ("sas_key", "sv=2023-11-03&sig=s1gned"),
                ],
            ),
        ),
    ];
    // All at once, in one engine.
    let engine = Engine::builder().memory(64 << 20).build().unwrap();
    let path = Path::from("key");
    for (kind, origin) in origins {
        let name = format!("own-{kind}");
        let bucket = engine
            .mount(&name, origin.unwrap(), Consistency::default())
            .unwrap();
        let put = PutPayload::from_static(b"bytes");
        bucket.put(&path, put).await.unwrap();
        assert_eq!(
            bucket.get(&path).await.unwrap().bytes().await.unwrap(),
            "bytes"
        );
    }
    assert_eq!(s3.objects().get("data", "p/key").unwrap().bytes, "bytes");
    assert_eq!(
        azure.objects().get("account", "data/p/key").unwrap().bytes,
        "bytes"
    );
    assert!(s3_server.take_log().iter().all(is_signed_with_its_options));
    for request in azure_server.take_log() {
        assert!(request.line.contains("sig=s1gned"), "{}", request.line);
    }
    let stored = gcs.objects().get("data", "p/key").unwrap();
    assert_eq!(stored.bytes, "bytes");
}

#[tokio::test]
async fn read_only_origin_receives_no_write_request() {
    let s3 = S3::new();
    let server = Server::start(Arc::<S3>::clone(&s3)).await.unwrap();
    let options = [
        ("endpoint", &*server.url()),
        ("access_key_id", "k"),
        ("secret_access_key", "s"),
    ];
    let origin = open("s3://data", &options).unwrap();
    let (path, other) = (Path::from("key"), Path::from("other"));
    origin
        .put(&path, PutPayload::from_static(b"bytes"))
        .await
        .unwrap();
    let engine = Engine::builder().memory(64 << 20).build().unwrap();
    let origin = Arc::new(ReadOnly::new(origin));
    let bucket = engine
        .mount("data", origin, Consistency::default())
        .unwrap();
    assert_eq!(
        bucket.get(&path).await.unwrap().bytes().await.unwrap(),
        "bytes"
    );
    assert_eq!(
        bucket
            .list_with_delimiter(None)
            .await
            .unwrap()
            .objects
            .len(),
        1
    );
    let _ = server.take_log();
    let large = vec![PutPayload::from(vec![0; 20 << 20])];
    let errors = [
        bucket
            .put(&path, PutPayload::from_static(b"x"))
            .await
            .unwrap_err(),
        bucket.delete(&path).await.unwrap_err(),
        bucket.copy(&path, &other).await.unwrap_err(),
        bucket
            .create_upload(&other, Default::default())
            .await
            .unwrap_err(),
        upload(&bucket, &other, large).await.unwrap_err(),
    ];
    for error in errors {
        let refused = OriginError::find(&error);
        assert!(
            matches!(refused, Some(OriginError::ReadOnly { .. })),
            "{error}"
        );
        assert!(error.to_string().contains("read-only"), "{error}");
    }
    assert!(server.take_log().is_empty());
}

async fn upload(
    bucket: &bywash::Bucket,
    path: &Path,
    parts: Vec<PutPayload>,
) -> object_store::Result<()> {
    let mut upload = bucket.put_multipart(path).await?;
    for part in parts {
        upload.put_part(part).await?;
    }
    upload.complete().await.map(|_| ())
}

#[tokio::test]
async fn options_of_another_kind_are_rejected() {
    for (url, option) in [
        ("s3://data", "account_name"),
        ("gs://data", "region"),
        ("az://data", "region"),
        ("https://h/data", "region"),
        ("memory://", "region"),
        ("s3://data", "timeout"),
    ] {
        let error = open(url, &[(option, "hidden")]).unwrap_err().to_string();
        assert!(
            error.contains(option) && !error.contains("hidden"),
            "{url}: {error}"
        );
    }
}
