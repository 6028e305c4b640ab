//! The XML API of Google's storage, by a real client, object_store's, and by raw HTTP.

use std::time::Duration;

use bywash_gateway::{Credential, GcsAccount, GcsConfig, S3Config, Scope};
use bywash_support::account::{PEM, der};
use bywash_support::sign::{KEY, SECRET, Signer as AwsSigner};
use futures::TryStreamExt;
use http::Method;
use object_store::gcp::{GoogleCloudStorage, GoogleCloudStorageBuilder};
use object_store::path::Path;
use object_store::signer::{SignedUrlOptions, Signer};
use object_store::{
    ClientOptions, CopyMode, CopyOptions, Error, MultipartUpload, ObjectStore, ObjectStoreExt,
    WriteMultipart,
};
use tempfile::TempDir;

use crate::client::{check_conditions, check_puts_gets_and_deletes};
use crate::gcs::document;
use crate::gcs_server::GcsServer;
use crate::http::{HttpResponse, pattern};
use crate::server::{BUCKETS, Server};

struct Keyed {
    server: GcsServer,
    accounts: TempDir,
}

async fn keyed() -> Keyed {
    keyed_with(GcsConfig::anonymous("")).await
}

async fn keyed_with(config: GcsConfig) -> Keyed {
    let accounts = tempfile::tempdir().unwrap();
    let config = GcsConfig {
        anonymous: false,
        accounts: Some(accounts.path().to_owned()),
        credentials: vec![Credential::new(KEY, SECRET)],
        ..config
    };
    let server = GcsServer::start_with(config).await;
    Keyed { server, accounts }
}

impl Keyed {
    /// A client with a new key file, which names the server.
    fn client(&self, name: &str, bucket: &str, scope: Scope) -> GoogleCloudStorage {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let endpoint = format!("http://{}", self.server.address);
        let account = GcsAccount::new(name, &der(PEM), &endpoint, scope).unwrap();
        account.keep(self.accounts.path()).unwrap();
        GoogleCloudStorageBuilder::new()
            .with_service_account_key(account.key_file(PEM))
            .with_bucket_name(bucket)
            .with_client_options(ClientOptions::new().with_allow_http(true))
            .build()
            .unwrap()
    }

    /// Sends a request signed with the secret key.
    async fn signed(
        &self,
        method: &str,
        path: &str,
        query: &str,
        extra: &[(&str, &str)],
    ) -> HttpResponse {
        let (headers, _) =
            AwsSigner::default().headers(method, path, query, "UNSIGNED-PAYLOAD", extra);
        let headers: Vec<_> = headers
            .iter()
            .map(|(name, value)| (&**name, &**value))
            .collect();
        let target = match query {
            "" => path.to_owned(),
            query => format!("{path}?{query}"),
        };
        self.server.send(method, &target, &headers, b"bytes").await
    }
}

#[tokio::test]
async fn client_puts_gets_and_deletes() {
    let keyed = keyed().await;
    for bucket in BUCKETS {
        let store = keyed.client(bucket, bucket, Scope::default());
        check_puts_gets_and_deletes(&store).await;
    }
}

#[tokio::test]
async fn client_conditions_guard_writes_and_reads() {
    let keyed = keyed().await;
    for bucket in BUCKETS {
        let store = keyed.client(bucket, bucket, Scope::default());
        check_conditions(&store).await;
    }
}

#[tokio::test]
async fn client_lists_pages_prefixes_and_offsets() {
    let keyed = keyed().await;
    let store = keyed.client("lister", "folder", Scope::default());
    let mut names = Vec::new();
    for group in ["a&b", "c<d", "\u{fc}"] {
        for number in 0..5 {
            names.push(format!("top/{group}/{number}"));
        }
    }
    for name in &names {
        store
            .put(&Path::parse(name).unwrap(), "x".into())
            .await
            .unwrap();
    }
    let listed: Vec<_> = store
        .list(Some(&Path::from("top")))
        .try_collect()
        .await
        .unwrap();
    let found: Vec<_> = listed
        .iter()
        .map(|meta| meta.location.to_string())
        .collect();
    assert_eq!(found, names);
    let head = store.head(&listed[0].location).await.unwrap();
    assert_eq!((head.size, &head.e_tag), (listed[0].size, &listed[0].e_tag));
    let level = store
        .list_with_delimiter(Some(&Path::from("top")))
        .await
        .unwrap();
    let prefixes: Vec<_> = level
        .common_prefixes
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(prefixes, ["top/a&b", "top/c<d", "top/\u{fc}"]);
    let after = Path::parse(&names[12]).unwrap();
    let rest = store.list_with_offset(Some(&Path::from("top")), &after);
    let rest: Vec<_> = rest.try_collect().await.unwrap();
    assert_eq!(rest.len(), 2);
    // Raw, in pages and with encoded names.
    let page = keyed.signed(
        "GET",
        "/folder",
        "encoding-type=url&list-type=2&max-keys=6",
        &[],
    );
    let page = page.await.expect(200);
    assert_eq!(page.tags("Key").len(), 6);
    assert_eq!(page.tag("Key").unwrap(), "top/a%26b/0");
    assert_eq!(page.tag("IsTruncated").unwrap(), "true");
    let generation = page.tag("Generation").unwrap();
    assert_eq!(Some(generation), head.version);
    let token = page.tag("NextContinuationToken").unwrap();
    let query = format!("continuation-token={token}&list-type=2");
    let next = keyed
        .signed("GET", "/folder", &query, &[])
        .await
        .expect(200);
    assert_eq!(next.tag("Key").unwrap(), "top/c&lt;d/1");
    assert_eq!(next.tag("KeyCount").unwrap(), "9");
}

#[tokio::test]
async fn client_uploads_in_parts_and_aborts() {
    let keyed = keyed().await;
    for bucket in BUCKETS {
        let store = keyed.client(bucket, bucket, Scope::default());
        let path = Path::from("large");
        let body = pattern(12 << 20);
        let upload = store.put_multipart(&path).await.unwrap();
        let mut writer = WriteMultipart::new_with_chunk_size(upload, 5 << 20);
        writer.write(&body);
        let put = writer.finish().await.unwrap();
        let found = store.get(&path).await.unwrap();
        assert_eq!(
            (&found.meta.e_tag, &found.meta.version),
            (&put.e_tag, &put.version)
        );
        assert!(found.bytes().await.unwrap() == body);
        let head = keyed
            .signed("HEAD", &format!("/{bucket}/large"), "", &[])
            .await
            .expect(200);
        assert!(head.header("x-goog-hash").unwrap().starts_with("crc32c="));
        let target = format!("/{bucket}/raw");
        let raw = keyed.signed("POST", &target, "uploads=", &[]);
        let namespace = "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"";
        assert!(raw.await.expect(200).text().contains(namespace));
        let mut left = store.put_multipart(&Path::from("left")).await.unwrap();
        left.put_part("x".into()).await.unwrap();
        left.abort().await.unwrap();
        let empty = store.put_multipart(&Path::from("empty")).await.unwrap();
        WriteMultipart::new(empty).finish().await.unwrap();
        assert_eq!(store.head(&Path::from("empty")).await.unwrap().size, 0);
    }
}

#[tokio::test]
async fn client_copies_and_renames() {
    let keyed = keyed().await;
    for bucket in BUCKETS {
        let store = keyed.client(bucket, bucket, Scope::default());
        let (from, to) = (Path::from("a/from +"), Path::from("to"));
        store.put(&from, "bytes".into()).await.unwrap();
        store.copy(&from, &to).await.unwrap();
        let create = CopyOptions::new().with_mode(CopyMode::Create);
        let again = store.copy_opts(&from, &to, create).await;
        assert!(
            matches!(again, Err(Error::AlreadyExists { .. })),
            "{again:?}"
        );
        assert_eq!(
            store.get(&to).await.unwrap().bytes().await.unwrap(),
            "bytes"
        );
        let absent = store.copy(&Path::from("absent"), &to).await;
        assert!(matches!(absent, Err(Error::NotFound { .. })), "{absent:?}");
        store.rename(&to, &Path::from("renamed")).await.unwrap();
        assert!(store.head(&to).await.is_err());
    }
}

#[tokio::test]
async fn buckets_with_the_first_names_of_json_paths_are_reached() {
    let keyed = keyed().await;
    for bucket in [
        "storage",
        "upload",
        "download",
        "resumable",
        "batch",
        "token",
    ] {
        keyed.server.engine.create_bucket(bucket).unwrap();
        let store = keyed.client(bucket, bucket, Scope::default());
        for name in ["key", "v1.csv", "storage/v10/b"] {
            let path = Path::from(name);
            store.put(&path, name.into()).await.unwrap();
            let read = store.get(&path).await.unwrap().bytes().await.unwrap();
            assert_eq!(read, name, "{bucket}");
            if name == "key" {
                store.copy(&path, &Path::from("copy")).await.unwrap();
            }
        }
        let listed: Vec<_> = store.list(None).try_collect().await.unwrap();
        assert_eq!(listed.len(), 4, "{bucket}");
        store.delete(&Path::from("key")).await.unwrap();
    }
    // Paths that are of the JSON API there are so for all.
    let of_json = keyed
        .signed("GET", "/storage/v1/b/storage/o/v10", "", &[])
        .await;
    assert_eq!(document(&of_json.expect(404))["error"]["code"], 404);
}

#[tokio::test]
async fn scope_of_an_account_holds_for_the_xml_api() {
    let keyed = keyed().await;
    let owner = keyed.client("owner", "folder", Scope::default());
    let path = Path::from("key");
    owner.put(&path, "kept".into()).await.unwrap();
    let scope = Scope {
        buckets: Some(vec!["folder".to_owned()]),
        read_only: true,
    };
    let reader = keyed.client("reader", "folder", scope.clone());
    assert_eq!(
        reader.get(&path).await.unwrap().bytes().await.unwrap(),
        "kept"
    );
    let denied = |error: &Error| matches!(error, Error::PermissionDenied { .. });
    assert!(denied(
        &reader.put(&path, "changed".into()).await.unwrap_err()
    ));
    assert!(denied(&reader.delete(&path).await.unwrap_err()));
    let other = keyed.client("other", "memory", scope);
    assert!(denied(&other.get(&path).await.unwrap_err()));
    let server = &keyed.server;
    for (method, target) in [
        ("GET", "/folder/key"),
        ("PUT", "/folder/key"),
        ("GET", "/folder?list-type=2"),
    ] {
        let refused = server.send(method, target, &[], b"").await.expect(401);
        assert_eq!(refused.tag("Code").unwrap(), "AuthenticationRequired");
    }
    assert_eq!(
        owner.get(&path).await.unwrap().bytes().await.unwrap(),
        "kept"
    );
}

/// Path and query of a signed URL.
fn target(url: &impl std::fmt::Display) -> String {
    let url = url.to_string();
    url[url.find("/folder").unwrap()..].to_owned()
}

#[tokio::test]
async fn signed_urls_of_a_client_read_write_and_start_sessions() {
    let keyed = keyed().await;
    let store = keyed.client("signer", "folder", Scope::default());
    let path = Path::from("a b/key");
    let valid = Duration::from_secs(60);
    let put = target(&store.signed_url(Method::PUT, &path, valid).await.unwrap());
    let server = &keyed.server;
    let written = server.send("PUT", &put, &[], b"bytes").await.expect(200);
    assert!(written.header("etag").is_some() && written.header("x-goog-generation").is_some());
    let get = target(&store.signed_url(Method::GET, &path, valid).await.unwrap());
    assert_eq!(server.get(&get).await.expect(200).body, b"bytes");
    for (method, target) in [("DELETE", &get), ("PUT", &get), ("GET", &put)] {
        let refused = server.send(method, target, &[], b"").await.expect(403);
        assert_eq!(refused.tag("Code").unwrap(), "AccessDenied");
    }
    let resumable = http::HeaderName::from_static("x-goog-resumable");
    let start = http::HeaderValue::from_static("start");
    let options = SignedUrlOptions::new().with_signed_header(resumable, start);
    let url = store
        .signed_url_opts(Method::POST, &path, valid, &options)
        .await
        .unwrap();
    // As Google's Java client sends it.
    let post = format!("{}&uploadType=resumable", target(&url));
    let headers = [("x-goog-resumable", "start"), ("content-type", "text/x")];
    let started = server.send("POST", &post, &headers, b"").await.expect(201);
    let session = started.header("location").unwrap();
    let session = &session[session.find("/upload").unwrap()..];
    server
        .send("PUT", session, &[], b"by session")
        .await
        .expect(200);
    let read = server.get(&get).await.expect(200);
    assert_eq!(
        (read.text().as_str(), read.header("content-type")),
        ("by session", Some("text/x"))
    );
    server.send("POST", &post, &[], b"").await.expect(400);
}

#[tokio::test]
async fn headers_of_either_name_describe_objects() {
    let keyed = keyed().await;
    let headers = [
        ("x-goog-meta-one", "1"),
        ("x-amz-meta-two", "2"),
        ("content-type", "text/x"),
        ("x-goog-storage-class", "STANDARD"),
    ];
    keyed
        .signed("PUT", "/folder/key", "", &headers)
        .await
        .expect(200);
    let found = keyed
        .signed("HEAD", "/folder/key", "", &[])
        .await
        .expect(200);
    for (name, value) in [
        ("x-goog-meta-one", "1"),
        ("x-goog-meta-two", "2"),
        ("content-type", "text/x"),
        ("content-length", "5"),
        ("x-goog-stored-content-length", "5"),
        ("x-goog-metageneration", "1"),
    ] {
        assert_eq!(found.header(name), Some(value), "{name}");
    }
    let copy = [
        ("x-goog-copy-source", "folder/key"),
        ("x-goog-metadata-directive", "REPLACE"),
        ("x-goog-meta-three", "3"),
    ];
    let copied = keyed
        .signed("PUT", "/folder/copy", "", &copy)
        .await
        .expect(200);
    assert!(copied.tag("ETag").is_some() && copied.tag("LastModified").is_some());
    let found = keyed
        .signed("HEAD", "/folder/copy", "", &[])
        .await
        .expect(200);
    assert_eq!(found.header("x-goog-meta-three"), Some("3"));
    assert_eq!(found.header("x-goog-meta-one"), None);
    for (name, value) in [
        ("x-goog-acl", "public-read"),
        ("x-goog-storage-class", "NEARLINE"),
        ("x-goog-custom-time", "2020-01-01T00:00:00Z"),
        ("if-none-match", "*"),
        ("x-amz-server-side-encryption", "AES256"),
    ] {
        let refused = keyed
            .signed("PUT", "/folder/other", "", &[(name, value)])
            .await;
        let refused = refused.expect(400);
        assert_eq!(refused.tag("Code").unwrap(), "NotImplemented", "{name}");
    }
    let digest = [("content-md5", "AAAAAAAAAAAAAAAAAAAAAA==")];
    let changed = keyed
        .signed("PUT", "/folder/other", "", &digest)
        .await
        .expect(400);
    assert_eq!(changed.tag("Code").unwrap(), "BadDigest");
    let absent = keyed
        .signed("GET", "/folder/other", "", &[])
        .await
        .expect(404);
    assert_eq!(absent.tag("Code").unwrap(), "NoSuchKey");
    let absent = keyed
        .signed("GET", "/absent", "list-type=2", &[])
        .await
        .expect(404);
    assert_eq!(absent.tag("Code").unwrap(), "NoSuchBucket");
}

#[tokio::test]
async fn copy_is_of_the_generation_that_its_header_names() {
    let server = GcsServer::start().await;
    for bucket in ["folder", "memory"] {
        let key = format!("/{bucket}/key");
        let put = |body: &'static [u8]| server.send("PUT", &key, &[], body);
        let generation = |written: HttpResponse| {
            let written = written.expect(200);
            written.header("x-goog-generation").unwrap().to_owned()
        };
        let old = generation(put(b"old").await);
        let new = generation(put(b"new").await);
        let target = format!("/{bucket}/copy");
        for (wanted, status) in [(&old, 404), (&new, 200)] {
            let headers = [
                ("x-goog-copy-source", &key[1..]),
                ("x-goog-copy-source-generation", wanted),
            ];
            let copied = server.send("PUT", &target, &headers, b"").await;
            copied.expect(status);
        }
        assert_eq!(server.get(&target).await.expect(200).body, b"new");
    }
}

#[tokio::test]
async fn conditions_of_a_copy_that_are_not_heeded_are_refused() {
    let keyed = keyed().await;
    let put = keyed.signed("PUT", "/folder/key", "", &[]).await;
    put.expect(200);
    for (name, value) in [
        ("x-goog-copy-source-if-match", "\"other\""),
        ("x-amz-copy-source-if-none-match", "*"),
        (
            "x-amz-copy-source-if-modified-since",
            "Sat, 01 Jan 2000 00:00:00 GMT",
        ),
        ("x-amz-server-side-encryption", "AES256"),
    ] {
        let headers = [("x-goog-copy-source", "folder/key"), (name, value)];
        let refused = keyed.signed("PUT", "/folder/other", "", &headers).await;
        let refused = refused.expect(400);
        assert!(refused.tag("Message").unwrap().contains(name), "{name}");
    }
}

#[tokio::test]
async fn json_and_xml_state_the_same_generation() {
    let server = GcsServer::start().await;
    let written = server
        .send("PUT", "/folder/a%2Fkey", &[], b"bytes")
        .await
        .expect(200);
    let described = server
        .get("/storage/v1/b/folder/o/a%2Fkey")
        .await
        .expect(200);
    let described = document(&described);
    let generation = described["generation"].as_str().unwrap();
    assert_eq!(written.header("x-goog-generation"), Some(generation));
    let crc32c = format!("crc32c={}", described["crc32c"].as_str().unwrap());
    assert_eq!(written.header("x-goog-hash"), Some(crc32c.as_str()));
    let stale = [("x-goog-if-generation-match", "1")];
    let refused = server
        .send("DELETE", "/folder/a%2Fkey", &stale, b"")
        .await
        .expect(412);
    assert_eq!(refused.tag("Code").unwrap(), "PreconditionFailed");
    let current = [("x-goog-if-generation-match", generation)];
    server
        .send("DELETE", "/folder/a%2Fkey", &current, b"")
        .await
        .expect(204);
}

#[tokio::test]
async fn hash_of_a_part_is_compared() {
    let server = GcsServer::start().await;
    let begun = server.send("POST", "/folder/key?uploads", &[], b"").await;
    let id = begun.expect(200).tag("UploadId").unwrap();
    let part = format!("/folder/key?partNumber=1&uploadId={id}");
    for (hash, status) in [
        // Of other bytes.
        ("crc32c=AAAAAA==", 400),
        ("md5=AAAAAAAAAAAAAAAAAAAAAA==", 400),
        ("crc32c=4waSgw==", 200),
    ] {
        let headers = [("x-goog-hash", hash)];
        let stored = server.send("PUT", &part, &headers, b"123456789").await;
        assert_eq!(stored.status, status, "{hash}: {}", stored.text());
        let (_, value) = hash.split_once('=').unwrap();
        match status {
            // Fields that Google's Python client reads of an error of a part.
            400 => {
                assert_eq!(stored.tag("Code").as_deref(), Some("BadDigest"));
                assert!(stored.tag("Details").unwrap().contains(value));
            }
            _ => {
                let hashes = stored
                    .headers
                    .iter()
                    .filter(|(name, _)| name == "x-goog-hash");
                let hashes: Vec<_> = hashes.map(|(_, hash)| hash.as_str()).collect();
                assert_eq!(hashes, [hash, "md5=JfnnlDI7RTiF9RgfG2JNCw=="]);
            }
        }
    }
}

#[tokio::test]
async fn uploads_in_parts_are_those_of_the_s3_endpoint() {
    let config = GcsConfig::anonymous("");
    let s3 = S3Config {
        shared: config.shared.clone(),
        ..S3Config::anonymous()
    };
    let server = GcsServer::start_with(config).await;
    let s3 = Server::start_with(server.engine.clone(), tempfile::tempdir().unwrap(), s3).await;
    let begun = server
        .send("POST", "/folder/key?uploads", &[], b"")
        .await
        .expect(200);
    // Google's Python client looks for the name with its namespace.
    let namespace = "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"";
    assert!(begun.text().contains(namespace));
    let id = begun.tag("UploadId").unwrap();
    let part = format!("/folder/key?partNumber=1&uploadId={id}");
    let stored = server.send("PUT", &part, &[], b"bytes").await.expect(200);
    assert_eq!(stored.header("x-goog-hash"), Some("crc32c=0G6ckg=="));
    let e_tag = stored.header("etag").unwrap();
    let parts = s3
        .get(&format!("/folder/key?uploadId={id}"), &[])
        .await
        .expect(200);
    assert_eq!(parts.tags("PartNumber"), ["1"]);
    let list = format!(
        "<CompleteMultipartUpload><Part><ETag>{e_tag}</ETag><PartNumber>1</PartNumber></Part></CompleteMultipartUpload>"
    );
    let end = format!("/folder/key?uploadId={id}");
    let other = list.replace(e_tag, "other");
    let refused = server
        .send("POST", &end, &[], other.as_bytes())
        .await
        .expect(400);
    assert_eq!(refused.tag("Code").unwrap(), "InvalidPart");
    let made = server
        .send("POST", &end, &[], list.as_bytes())
        .await
        .expect(200);
    // A client that missed the response repeats the request.
    let again = server
        .send("POST", &end, &[], list.as_bytes())
        .await
        .expect(200);
    assert_eq!(made.tag("ETag"), again.tag("ETag"));
    assert_eq!(s3.get("/folder/key", &[]).await.expect(200).body, b"bytes");
    let lost = server.send("PUT", &part, &[], b"bytes").await.expect(404);
    assert_eq!(lost.tag("Code").unwrap(), "NoSuchUpload");
    for bad in [
        "",
        "<",
        "<CompleteMultipartUpload><Part/></CompleteMultipartUpload>",
    ] {
        let refused = server.send("POST", &end, &[], bad.as_bytes()).await;
        refused.expect(400);
    }
    let many = "<Part><ETag>x</ETag><PartNumber>1</PartNumber></Part>".repeat(10_001);
    let many = format!("<CompleteMultipartUpload>{many}</CompleteMultipartUpload>");
    let refused = server
        .send("POST", &end, &[], many.as_bytes())
        .await
        .expect(400);
    assert!(refused.text().contains("10001 parts"), "{}", refused.text());
}

#[tokio::test]
async fn not_modified_and_writes_without_a_length_are_as_at_google() {
    let server = GcsServer::start().await;
    for bucket in BUCKETS {
        let target = format!("/{bucket}/key");
        let sent = [
            ("cache-control", "max-age=5"),
            ("expires", "Thu, 01 Dec 1994 16:00:00 GMT"),
        ];
        server.send("PUT", &target, &sent, b"x").await.expect(200);
        let known = server.get(&target).await.expect(200);
        let condition = [("if-none-match", known.header("etag").unwrap())];
        for method in ["GET", "HEAD"] {
            let unchanged = server.send(method, &target, &condition, b"").await;
            let unchanged = unchanged.expect(304);
            for name in ["etag", "last-modified", "cache-control"] {
                assert!(unchanged.header(name).is_some(), "{method} {name}");
                assert_eq!(unchanged.header(name), known.header(name), "{name}");
            }
        }
        let head = crate::http::head("PUT", &target, &[]);
        let refused = crate::http::raw(server.address, head.as_bytes()).await;
        assert_eq!(
            refused.expect(411).tag("Code").as_deref(),
            Some("MissingContentLength")
        );
        for key in ["a//b", "a/../b"] {
            let target = format!("/{bucket}/{key}");
            assert_eq!(server.get(&target).await.status, 404);
            let target = format!("/storage/v1/b/{bucket}/o/{}", key.replace('/', "%2F"));
            assert_eq!(server.get(&target).await.status, 404);
            assert_eq!(server.delete(&target).await.status, 404);
        }
    }
}

#[tokio::test]
async fn hash_that_cannot_be_compared_is_refused() {
    let server = GcsServer::start().await;
    let crc = "crc32c=4waSgw==";
    let twice = format!("{crc},crc32c=AAAAAA==");
    let same = format!("{crc}, {crc},md5=JfnnlDI7RTiF9RgfG2JNCw==");
    for (hashes, status) in [
        (&["crc32c"][..], 400),
        (&["sha1=AAAA"], 400),
        (&[crc, "crc32c=AAAAAA=="], 400),
        (&["crc32c=AAAAAA==", crc], 400),
        (&[&twice], 400),
        (&[&same], 200),
        (&[crc, ""], 200),
    ] {
        let headers: Vec<_> = hashes.iter().map(|hash| ("x-goog-hash", *hash)).collect();
        let target = "/upload/storage/v1/b/folder/o?uploadType=media&name=key";
        let put = server.send("PUT", "/folder/key", &headers, b"123456789");
        assert_eq!(put.await.status, status, "{hashes:?}");
        let put = server.post(target, &headers, b"123456789").await;
        assert_eq!(put.status, status, "{hashes:?}");
    }
}
