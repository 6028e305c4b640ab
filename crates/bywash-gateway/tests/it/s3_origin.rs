//! Tests over an S3 origin: tags, which it keeps next to its objects, and metadata, which it
//! accepts in ASCII only.

use std::sync::Arc;

use bywash::origin::s3::S3Store;
use bywash::{Consistency, Engine};
use bywash_gateway::S3Config;
use bywash_sim::server::s3::S3;
use bywash_sim::server::{HttpRequest, HttpResponse, Protocol, Server as Store};
use bywash_support::sign::{KEY, SECRET};
use object_store::aws::AmazonS3Builder;
use object_store::path::Path;

use crate::multipart::{complete, completion, create, part};
use crate::server::Server;

/// A store that gives this response to requests for tags.
struct Hidden {
    store: Arc<S3>,
    status: u16,
    body: &'static str,
    /// Whether reads of an object state its number of tags.
    counts: bool,
}

impl Protocol for Hidden {
    fn respond(&self, request: &HttpRequest) -> HttpResponse {
        if request.query("tagging").is_some() {
            return HttpResponse::status(self.status).body(self.body);
        }
        let mut response = self.store.respond(request);
        if !self.counts {
            response.headers.remove("x-amz-tagging-count");
        }
        response
    }
}

const DENIED: &str = "<Error><Code>AccessDenied</Code><Message>m</Message></Error>";

/// Starts an endpoint over a store that gives this response to requests for tags, with an object of one tag.
async fn over_hidden(status: u16, body: &'static str, counts: bool) -> (Store, Server) {
    let hidden = Hidden {
        store: S3::new(),
        status,
        body,
        counts,
    };
    let (store, server) = over(Arc::new(hidden)).await;
    let tagged = [("x-amz-tagging", "a=1")];
    server.put("/cloud/a", &tagged, b"body").await.expect(200);
    (store, server)
}

/// Starts an endpoint with the bucket `cloud` over a store, in addition to `folder` and `memory`.
pub(crate) async fn over(protocol: Arc<dyn Protocol>) -> (Store, Server) {
    let store = Store::start(protocol).await.unwrap();
    let root = tempfile::tempdir().unwrap();
    let engine = Server::engine(64 << 20, &root);
    mount_cloud(&engine, &store);
    let server = Server::start_with(engine, root, S3Config::anonymous()).await;
    (store, server)
}

/// Mounts a store as the bucket `cloud`.
pub(crate) fn mount_cloud(engine: &Engine, store: &Store) {
    mount_cloud_as(engine, "cloud", store);
}

/// Mounts a store as the bucket `name`.
pub(crate) fn mount_cloud_as(engine: &Engine, name: &str, store: &Store) {
    mount_named(engine, name, store, None);
}

/// Mounts a store as the bucket `cloud`, with this setting of conditional deletes.
pub(crate) fn mount_cloud_with(engine: &Engine, store: &Store, conditional_delete: Option<&str>) {
    mount_named(engine, "cloud", store, conditional_delete);
}

fn mount_named(engine: &Engine, name: &str, store: &Store, conditional_delete: Option<&str>) {
    let builder = AmazonS3Builder::new()
        .with_endpoint(store.url())
        .with_bucket_name("data")
        .with_access_key_id(KEY)
        .with_secret_access_key(SECRET)
        .with_allow_http(true);
    let origin = S3Store::from_builder(builder, "data", &Path::default()).unwrap();
    let origin = origin.with_conditional_delete(conditional_delete).unwrap();
    let consistency = Consistency::Immutable;
    engine.mount(name, Arc::new(origin), consistency).unwrap();
}

/// Tags of an object as `key=value`, in order.
async fn tags(server: &Server, target: &str) -> Vec<String> {
    let found = server.get(&format!("{target}?tagging"), &[]).await;
    let found = found.expect(200);
    let pairs = found.tags("Key").into_iter().zip(found.tags("Value"));
    pairs.map(|(key, value)| format!("{key}={value}")).collect()
}

/// Number of tags in the responses to a HEAD and to a GET.
async fn count(server: &Server, target: &str) -> Option<String> {
    let head = server.send("HEAD", target, &[], b"").await.expect(200);
    let read = server.get(target, &[]).await.expect(200);
    let count = |name| read.header(name).map(str::to_owned);
    let counted = count("x-amz-tagging-count");
    assert_eq!(head.header("x-amz-tagging-count"), counted.as_deref());
    counted
}

fn document(tags: &[(&str, &str)]) -> String {
    let tag =
        |(key, value): &(&str, &str)| format!("<Tag><Key>{key}</Key><Value>{value}</Value></Tag>");
    let tags: String = tags.iter().map(tag).collect();
    format!("<Tagging><TagSet>{tags}</TagSet></Tagging>")
}

#[tokio::test]
async fn tags_of_an_s3_origin_pass_through() {
    let (store, server) = over(S3::new()).await;
    let header = [("x-amz-tagging", "colour=blue&shape=very+round")];
    server.put("/cloud/a", &header, b"body").await.expect(200);
    assert_eq!(
        tags(&server, "/cloud/a").await,
        ["colour=blue", "shape=very round"]
    );
    assert_eq!(count(&server, "/cloud/a").await.as_deref(), Some("2"));
    let other = document(&[("new", "1 &amp; 2")]);
    let set = server.put("/cloud/a?tagging", &[], other.as_bytes()).await;
    set.expect(200);
    assert_eq!(tags(&server, "/cloud/a").await, ["new=1 &amp; 2"]);
    assert_eq!(count(&server, "/cloud/a").await.as_deref(), Some("1"));
    let deleted = server.send("DELETE", "/cloud/a?tagging", &[], b"").await;
    deleted.expect(204);
    assert_eq!(tags(&server, "/cloud/a").await, Vec::<String>::new());
    assert_eq!(count(&server, "/cloud/a").await, None);
    let none = server.get("/cloud/none?tagging", &[]).await;
    none.expect_error(404, "NoSuchKey");
    let log = store.take_log();
    let is_write = |line: &str| line.starts_with("PUT /data/a") && !line.contains("tagging");
    let writes = log.iter().filter(|sent| is_write(&sent.line)).count();
    assert_eq!(writes, 1, "the object was not written anew");
}

#[tokio::test]
async fn uploads_and_copies_keep_or_replace_tags_of_an_s3_origin() {
    let (_store, server) = over(S3::new()).await;
    let tagged = [("x-amz-tagging", "a=1")];
    let id = create(&server, "/cloud/from", &tagged).await;
    let e_tag = part(&server, "/cloud/from", &id, 1, b"body").await;
    let body = completion(&[(1, &e_tag)]);
    let completed = complete(&server, "/cloud/from", &id, &[], &body).await;
    completed.expect(200);
    assert_eq!(tags(&server, "/cloud/from").await, ["a=1"]);
    server
        .put("/folder/from", &tagged, b"body")
        .await
        .expect(200);
    for source in ["/cloud/from", "/folder/from"] {
        for bucket in ["cloud", "folder", "memory"] {
            let target = format!("/{bucket}/to");
            let from = ("x-amz-copy-source", source);
            let described = ("x-amz-metadata-directive", "REPLACE");
            let retagged = ("x-amz-tagging-directive", "REPLACE");
            for (headers, expected) in [
                (&[from][..], &["a=1"][..]),
                (&[from, described], &["a=1"]),
                (&[from, retagged, ("x-amz-tagging", "b=2")], &["b=2"]),
                (&[from, retagged], &[]),
            ] {
                server.put(&target, headers, b"").await.expect(200);
                assert_eq!(
                    tags(&server, &target).await,
                    expected,
                    "{headers:?} {target}"
                );
            }
        }
    }
}

#[tokio::test]
async fn tag_that_an_s3_origin_refuses_is_invalid() {
    let (_store, server) = over(S3::new()).await;
    server
        .put("/cloud/a", &[("x-amz-tagging", "a=1")], b"body")
        .await
        .expect(200);
    let own = [("x-amz-tagging", "aws:a=1")];
    let put = server.put("/cloud/a", &own, b"other").await;
    put.expect_error(400, "InvalidTag");
    let begun = server.send("POST", "/cloud/a?uploads", &own, b"").await;
    begun.expect_error(400, "InvalidTag");
    let body = document(&[("aws:a", "1")]);
    let set = server.put("/cloud/a?tagging", &[], body.as_bytes()).await;
    set.expect_error(400, "InvalidTag");
    // Refused here.
    let many = (0..11).map(|number| format!("k{number}=1"));
    let many = many.collect::<Vec<_>>().join("&");
    let put = server
        .put("/cloud/a", &[("x-amz-tagging", &many)], b"")
        .await;
    put.expect_error(400, "InvalidTag");
    assert_eq!(tags(&server, "/cloud/a").await, ["a=1"]);
    assert_eq!(server.get("/cloud/a", &[]).await.text(), "body");
}

#[tokio::test]
async fn metadata_that_is_not_ascii_reaches_an_s3_origin_in_encoded_words() {
    let objects = S3::new();
    let (_store, server) = over(Arc::<S3>::clone(&objects)).await;
    let (raw, word) = ("J\u{fc}rgen \u{2713}", "=?UTF-8?B?SsO8cmdlbiDinJM=?=");
    let named = [("x-amz-meta-name", raw)];
    server.put("/cloud/put", &named, b"x").await.expect(200);
    server.put("/folder/key", &named, b"x").await.expect(200);
    let from = [("x-amz-copy-source", "/folder/key")];
    server.put("/cloud/copy", &from, b"").await.expect(200);
    let id = create(&server, "/cloud/parts", &named).await;
    let e_tag = part(&server, "/cloud/parts", &id, 1, b"x").await;
    let body = completion(&[(1, &e_tag)]);
    let completed = complete(&server, "/cloud/parts", &id, &[], &body).await;
    completed.expect(200);
    for key in ["put", "copy", "parts"] {
        let stored = objects.objects().get("data", key).unwrap();
        assert_eq!(stored.headers["x-amz-meta-name"], word, "{key}");
        let read = server.get(&format!("/cloud/{key}"), &[]).await.expect(200);
        assert_eq!(read.header("x-amz-meta-name"), Some(word), "{key}");
    }
}

#[tokio::test]
async fn metadata_that_is_too_long_in_encoded_words_is_refused() {
    let (_store, server) = over(S3::new()).await;
    let long = "\u{fc}".repeat(700);
    let named = [("x-amz-meta-name", &*long)];
    server.put("/folder/key", &named, b"x").await.expect(200);
    let put = server.put("/cloud/put", &named, b"x").await;
    put.expect_error(400, "MetadataTooLarge");
    let begun = server.send("POST", "/cloud/parts?uploads", &named, b"");
    begun.await.expect_error(400, "MetadataTooLarge");
    let from = [("x-amz-copy-source", "/folder/key")];
    let copied = server.put("/cloud/copy", &from, b"").await;
    copied.expect_error(400, "MetadataTooLarge");
}

#[tokio::test]
async fn tags_that_are_not_stated_and_cannot_be_read_are_not_copied() {
    let from = [("x-amz-copy-source", "/cloud/a")];
    // The last is a server that ignores the query, and sends the object.
    for (status, body) in [(403, DENIED), (404, ""), (501, ""), (200, "body")] {
        let (_store, server) = over_hidden(status, body, false).await;
        server.put("/folder/a", &from, b"").await.expect(200);
        assert_eq!(tags(&server, "/folder/a").await, Vec::<String>::new());
        if status == 403 {
            let read = server.get("/cloud/a?tagging", &[]).await;
            read.expect_error(403, "AccessDenied");
        }
    }
}

#[tokio::test]
async fn copy_fails_if_tags_are_stated_and_cannot_be_read() {
    let from = [("x-amz-copy-source", "/cloud/a")];
    for (status, body, shown) in [
        (403, DENIED, (403, "AccessDenied")),
        (200, "body", (501, "NotImplemented")),
    ] {
        let (_store, server) = over_hidden(status, body, true).await;
        let copied = server.put("/folder/a", &from, b"").await;
        copied.expect_error(shown.0, shown.1);
    }
}

const FILE_NAME: &str = "attachment; filename=\"\u{fc}ber.txt\"";

#[tokio::test]
async fn text_of_other_programs_is_read_from_the_store() {
    let s3 = S3::new();
    let headers = [
        ("content-disposition", FILE_NAME),
        ("cache-control", "max-age=1"),
        ("x-amz-meta-a", "\u{fc}"),
        ("x-amz-meta-b", "plain"),
    ];
    let owned = headers.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let put = s3
        .objects()
        .put("data", "a", "body".into(), owned.into(), |_| true);
    assert!(put.is_some());
    let (_store, server) = over(s3).await;
    for method in ["GET", "HEAD", "GET"] {
        let read = server.send(method, "/cloud/a", &[], b"").await.expect(200);
        assert_eq!(read.header("content-disposition"), Some(FILE_NAME));
        assert_eq!(read.header("cache-control"), Some("max-age=1"));
        assert_eq!(read.header("x-amz-meta-a"), Some("=?UTF-8?B?w7w=?="));
        assert_eq!(read.header("x-amz-meta-b"), Some("plain"));
    }
}

#[tokio::test]
async fn content_headers_that_are_not_ascii_reach_an_s3_origin_as_they_are() {
    let objects = S3::new();
    let (_store, server) = over(Arc::<S3>::clone(&objects)).await;
    let sent = [
        ("content-disposition", FILE_NAME),
        ("content-language", "\u{fc}"),
        ("cache-control", "x=\u{2713}"),
        ("content-type", "text/\u{fc}"),
    ];
    server.put("/cloud/put", &sent, b"x").await.expect(200);
    let id = create(&server, "/cloud/parts", &sent).await;
    let e_tag = part(&server, "/cloud/parts", &id, 1, b"x").await;
    let body = completion(&[(1, &e_tag)]);
    let completed = complete(&server, "/cloud/parts", &id, &[], &body).await;
    completed.expect(200);
    let replace = [
        ("x-amz-copy-source", "/cloud/parts"),
        ("x-amz-metadata-directive", "REPLACE"),
    ];
    let replace: Vec<_> = replace.into_iter().chain(sent).collect();
    server.put("/cloud/new", &replace, b"").await.expect(200);
    let copy = [("x-amz-copy-source", "/cloud/put")];
    server.put("/cloud/copy", &copy, b"").await.expect(200);
    for key in ["put", "parts", "new", "copy"] {
        let read = server.get(&format!("/cloud/{key}"), &[]).await.expect(200);
        let stored = objects.objects().get("data", key).unwrap();
        for (name, value) in sent {
            assert_eq!(stored.headers[name], value, "{key}");
            assert_eq!(read.header(name), Some(value), "{key}");
        }
    }
}

#[tokio::test]
async fn expiry_that_is_not_ascii_is_refused_by_name() {
    let (_store, server) = over(S3::new()).await;
    server.put("/cloud/a", &[], b"x").await.expect(200);
    for (name, value) in [("expires", "\u{fc}")] {
        let copy = [
            ("x-amz-copy-source", "/cloud/a"),
            ("x-amz-metadata-directive", "REPLACE"),
            (name, value),
        ];
        for (method, target, headers) in [
            ("PUT", "/cloud/b", &copy[2..]),
            ("PUT", "/cloud/b", &copy),
            ("POST", "/cloud/b?uploads", &copy[2..]),
        ] {
            let refused = server.send(method, target, headers, b"").await;
            let refused = refused.expect_error(400, "InvalidArgument");
            let message = refused.tag("Message").unwrap();
            assert!(
                message.contains(name) && message.contains("encode"),
                "{message}"
            );
        }
    }
    assert_eq!(server.get("/cloud/b", &[]).await.status, 404);
}
