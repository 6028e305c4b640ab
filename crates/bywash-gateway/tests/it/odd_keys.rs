//! Keys of an origin that the endpoint writes none of: with empty segments, `.` or `..`, control characters, or a `/` at the end.

use std::sync::Arc;

use bywash_sim::server::Server as Store;
use bywash_sim::server::s3::S3;

use crate::lists::{encode, follow, model};
use crate::s3_origin::over;
use crate::server::Server;

const KEYS: [&str; 16] = [
    "/",
    "//",
    "/lead",
    "a",
    "a/",
    "a//",
    "a//b",
    "a//b/c",
    "a/b/c",
    "b//1",
    "b//2",
    "b/3",
    "folder/",
    "folder/-x",
    "folder/x",
    "plain",
];
const DOTS: [&str; 3] = ["./c", "d/../e", "d/."];
const CONTROL: &str = "e/\u{1}x";

/// An endpoint whose bucket `cloud` has these keys at its origin.
async fn with_keys(keys: &[&str]) -> (Store, Server, Arc<S3>) {
    let s3 = S3::new();
    for key in keys {
        let body = format!("body of {key:?}").into();
        let put = s3
            .objects()
            .put("data", key, body, Default::default(), |_| true);
        assert!(put.is_some());
    }
    let (store, server) = over(Arc::<S3>::clone(&s3)).await;
    (store, server, s3)
}

#[tokio::test]
async fn listings_have_odd_keys_in_order_with_any_prefix_and_delimiter() {
    let keys: Vec<&str> = KEYS.into_iter().chain(DOTS).collect();
    let (_store, server, _) = with_keys(&keys).await;
    for prefix in [
        "", "/", "//", "a", "a/", "a//", "b/", "b//", "d/", "d/.", "./", "folder/",
    ] {
        for delimiter in ["", "/"] {
            let expected = model(&keys, prefix, delimiter);
            let (prefix, delimiter) = (encode(prefix), encode(delimiter));
            let next = ("NextContinuationToken", "continuation-token");
            let base = format!("/cloud?list-type=2&prefix={prefix}&delimiter={delimiter}");
            for max in [1, 3, 1000] {
                let found = follow(&server, &base, max, next).await;
                assert_eq!(found, expected, "{prefix:?} {delimiter:?} {max}");
            }
        }
    }
}

#[tokio::test]
async fn odd_keys_are_read_copied_and_deleted() {
    let (_store, server, s3) = with_keys(&KEYS).await;
    for key in KEYS {
        let target = format!("/cloud/{}", encode(key));
        let head = server.send("HEAD", &target, &[], b"").await.expect(200);
        let body = format!("body of {key:?}");
        assert_eq!(
            head.header("content-length"),
            Some(&*body.len().to_string())
        );
        let e_tag = head.header("etag").unwrap().to_owned();
        assert_eq!(
            server.get(&target, &[]).await.expect(200).text(),
            body,
            "{key:?}"
        );
        let range = server.get(&target, &[("range", "bytes=0-3")]).await;
        assert_eq!(range.expect(206).text(), "body");
        let same = server.get(&target, &[("if-none-match", &e_tag)]).await;
        same.expect(304);
        let source = format!("/cloud/{}", encode(key));
        let headers = [("x-amz-copy-source", &*source)];
        let copied = server.put("/memory/copy", &headers, b"").await;
        copied.expect(200);
        assert_eq!(
            server.get("/memory/copy", &[]).await.expect(200).text(),
            body
        );
        server.send("DELETE", &target, &[], b"").await.expect(204);
        let deleted = server.get(&target, &[]).await;
        deleted.expect_error(404, "NoSuchKey");
    }
    assert_eq!(s3.objects().keys("data"), Vec::<String>::new());
}

#[tokio::test]
async fn one_request_deletes_odd_keys_beside_others() {
    let keys: Vec<&str> = KEYS.into_iter().chain(DOTS).collect();
    let (_store, server, s3) = with_keys(&keys).await;
    let objects: String = keys
        .iter()
        .map(|key| format!("<Object><Key>{key}</Key></Object>"))
        .collect();
    let document = format!("<Delete>{objects}</Delete>");
    let sent = server.send("POST", "/cloud?delete", &[], document.as_bytes());
    let response = sent.await.expect(200);
    assert_eq!(
        response.tags("Deleted").len(),
        KEYS.len(),
        "{}",
        response.text()
    );
    assert_eq!(response.tags("Code"), ["NotImplemented"; 3]);
    let mut left = DOTS.map(str::to_owned);
    left.sort();
    assert_eq!(s3.objects().keys("data"), left);
}

#[tokio::test]
async fn keys_that_no_url_has_are_refused_by_name() {
    let (_store, server, _) = with_keys(&DOTS).await;
    for key in DOTS {
        let target = format!("/cloud/{}", key.replace('.', "%2E").replace('/', "%2F"));
        let refused = server.get(&target, &[]).await;
        let refused = refused.expect_error(501, "NotImplemented");
        assert!(
            refused.text().contains("at the origin itself"),
            "{}",
            refused.text()
        );
    }
    // Keys that a folder cannot have belong to no object.
    let none = server.get("/folder/a%2F%2Fb", &[]).await;
    none.expect_error(404, "NoSuchKey");
}

#[tokio::test]
async fn names_that_xml_cannot_represent_are_left_out_unless_they_are_encoded() {
    let (_store, server, _) = with_keys(&["a", CONTROL, "z"]).await;
    let listed = server.get("/cloud?list-type=2", &[]).await.expect(200);
    assert_eq!(listed.tags("Key"), ["a", "z"]);
    assert_eq!(listed.header("x-bywash-left-out"), Some("1"));
    let encoded = server
        .get("/cloud?list-type=2&encoding-type=url", &[])
        .await;
    let encoded = encoded.expect(200);
    assert_eq!(encoded.tags("Key"), ["a", "e/%01x", "z"]);
    assert_eq!(encoded.header("x-bywash-left-out"), None);
    let found = server.get("/cloud/e/%01x", &[]).await.expect(200);
    assert_eq!(found.text(), format!("body of {CONTROL:?}"));
    assert_eq!(server.engine.stats().buckets["cloud"].left_out, 1);
}

#[tokio::test]
async fn no_key_is_written_that_reads_take_for_another() {
    let (_store, server, s3) = with_keys(&["a/.bywash-key=x"]).await;
    let listed = server.get("/cloud?list-type=2", &[]).await.expect(200);
    assert_eq!(listed.tags("Key"), ["a/.bywash-key=x"]);
    let found = server.get("/cloud/a/.bywash-key=x", &[]).await.expect(200);
    assert_eq!(found.text(), "body of \"a/.bywash-key=x\"");
    for key in ["a//b", "a/.bywash-key=y", "/", "%01"] {
        let refused = server.put(&format!("/cloud/{key}"), &[], b"x").await;
        refused.expect_error(400, "InvalidArgument");
    }
    assert_eq!(s3.objects().keys("data").len(), 1);
}
