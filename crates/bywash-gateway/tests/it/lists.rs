//! Tests of listings, compared with a model of S3.

use std::collections::BTreeSet;
use std::sync::Arc;

use bywash::Consistency;
use bywash::origin::s3::S3Store;
use object_store::ObjectStoreExt;
use object_store::aws::AmazonS3Builder;
use object_store::path::Path;

use crate::http::HttpResponse;
use crate::server::{BUCKETS, Server};

/// Content of one listing page.
#[derive(Debug, PartialEq, Default)]
pub(crate) struct Page {
    keys: Vec<String>,
    prefixes: Vec<String>,
}

/// The listing as S3 defines it, computed from all keys.
pub(crate) fn model(keys: &[&str], prefix: &str, delimiter: &str) -> Page {
    let mut page = Page::default();
    let sorted: BTreeSet<&str> = keys.iter().copied().collect();
    for key in sorted.into_iter().filter(|key| key.starts_with(prefix)) {
        let cut = (!delimiter.is_empty())
            .then(|| key[prefix.len()..].find(delimiter))
            .flatten();
        match cut {
            Some(at) => {
                let common = key[..prefix.len() + at + delimiter.len()].to_owned();
                if page.prefixes.last() != Some(&common) {
                    page.prefixes.push(common);
                }
            }
            None => page.keys.push(key.to_owned()),
        }
    }
    page
}

pub(crate) fn encode(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

fn page_of(reply: &HttpResponse) -> Page {
    let prefixes = reply.tags("CommonPrefixes").into_iter().map(|inner| {
        inner
            .strip_prefix("<Prefix>")
            .unwrap()
            .strip_suffix("</Prefix>")
            .unwrap()
            .to_owned()
    });
    Page {
        keys: reply.tags("Key"),
        prefixes: prefixes.collect(),
    }
}

/// Follows a listing to its end, in either protocol version.
pub(crate) async fn follow(server: &Server, base: &str, max: usize, next: (&str, &str)) -> Page {
    let (tag, parameter) = next;
    let mut whole = Page::default();
    let mut target = format!("{base}&max-keys={max}");
    loop {
        let reply = server.get(&target, &[]).await.expect(200);
        let page = page_of(&reply);
        let count = page.keys.len() + page.prefixes.len();
        assert!(count <= max);
        if tag == "NextContinuationToken" {
            assert_eq!(reply.tag("KeyCount").unwrap(), count.to_string());
        }
        whole.keys.extend(page.keys);
        whole.prefixes.extend(page.prefixes);
        if reply.tag("IsTruncated").as_deref() != Some("true") {
            assert_eq!(reply.tag(tag), None);
            return whole;
        }
        assert_eq!(count, max, "a page with more to come is full");
        target = format!(
            "{base}&max-keys={max}&{parameter}={}",
            encode(&reply.tag(tag).unwrap())
        );
    }
}

const KEYS: [&str; 24] = [
    "a",
    "a-b",
    "a.b",
    "a/b",
    "a/b/c",
    "a/b/d/e",
    "a0",
    "aa",
    "b/1",
    "b/2",
    "b/3",
    "b/4/x",
    "c",
    "dir",
    "dir/x",
    "dirt",
    // Stored after the keys that follow it.
    "photos/",
    "photos/-1",
    "photos/2024/a.jpg",
    "photos/2024/b.jpg",
    "photos/2025/c.jpg",
    "photos.txt",
    "z",
    "\u{fc}ber/x",
];

#[tokio::test]
async fn every_page_size_lists_the_same() {
    let server = Server::anonymous().await;
    for bucket in BUCKETS {
        for key in KEYS {
            server
                .put(&format!("/{bucket}/{}", encode(key)), &[], b"x")
                .await
                .expect(200);
        }
        for prefix in [
            "",
            "a",
            "a/",
            "a/b",
            "b/",
            "b/4",
            "dir",
            "dir/",
            "photos/",
            "photos/2024/a",
            "zz",
            "\u{fc}",
            "no//such",
        ] {
            for delimiter in ["", "/", "b", "os/20"] {
                let expected = model(&KEYS, prefix, delimiter);
                let base = format!("prefix={}&delimiter={}", encode(prefix), encode(delimiter));
                for max in [1, 2, 3, 1000] {
                    let v2 = format!("/{bucket}?list-type=2&{base}");
                    let found = follow(
                        &server,
                        &v2,
                        max,
                        ("NextContinuationToken", "continuation-token"),
                    )
                    .await;
                    assert_eq!(
                        found, expected,
                        "v2 {bucket} {prefix:?} {delimiter:?} {max}"
                    );
                    let v1 = format!("/{bucket}?{base}");
                    let found = follow(&server, &v1, max, ("NextMarker", "marker")).await;
                    assert_eq!(
                        found, expected,
                        "v1 {bucket} {prefix:?} {delimiter:?} {max}"
                    );
                    let versions = format!("/{bucket}?versions&{base}");
                    let found =
                        follow(&server, &versions, max, ("NextKeyMarker", "key-marker")).await;
                    assert_eq!(
                        found, expected,
                        "versions {bucket} {prefix:?} {delimiter:?} {max}"
                    );
                }
            }
        }
    }
}

#[tokio::test]
async fn empty_continuation_token_is_that_of_the_first_page() {
    let server = Server::anonymous().await;
    for key in ["a", "b"] {
        server
            .put(&format!("/folder/{key}"), &[], b"x")
            .await
            .expect(200);
    }
    let target = "/folder?list-type=2&continuation-token=";
    let listed = server.get(target, &[]).await.expect(200);
    assert_eq!(listed.tags("Key"), ["a", "b"]);
    assert!(
        listed
            .text()
            .contains("<ContinuationToken></ContinuationToken>")
            || listed.text().contains("<ContinuationToken/>")
    );
}

#[tokio::test]
async fn listing_starts_at_its_marker() {
    let server = Server::anonymous().await;
    for bucket in BUCKETS {
        for key in KEYS {
            server
                .put(&format!("/{bucket}/{}", encode(key)), &[], b"x")
                .await
                .expect(200);
        }
        for after in [
            "",
            "a",
            "a/",
            "a/b",
            "a0",
            "b/2",
            "b",
            "photos/",
            "photos/2024/zzz",
            "zzz",
            "/a",
            "a//b",
            "\u{10ffff}",
        ] {
            let expected: Vec<_> = model(&KEYS, "", "")
                .keys
                .into_iter()
                .filter(|key| key.as_str() > after)
                .collect();
            for target in [
                format!("/{bucket}?list-type=2&start-after={}", encode(after)),
                format!("/{bucket}?marker={}", encode(after)),
                format!("/{bucket}?versions&key-marker={}", encode(after)),
            ] {
                let reply = server.get(&target, &[]).await.expect(200);
                assert_eq!(reply.tags("Key"), expected, "{target}");
            }
        }
        // A marker that is a common prefix covers all of it; one inside leaves the rest.
        let reply = server
            .get(&format!("/{bucket}?delimiter=/&marker=b/"), &[])
            .await
            .expect(200);
        assert_eq!(page_of(&reply).prefixes, ["dir/", "photos/", "\u{fc}ber/"]);
        let reply = server
            .get(&format!("/{bucket}?delimiter=/&marker=b/3"), &[])
            .await
            .expect(200);
        assert_eq!(
            page_of(&reply).prefixes,
            ["b/", "dir/", "photos/", "\u{fc}ber/"]
        );
    }
}

#[tokio::test]
async fn large_folders_are_skipped() {
    let server = Server::anonymous().await;
    let mut keys = Vec::new();
    for folder in 0..12 {
        for file in 0..140 {
            keys.push(format!("f{folder:02}/{file:03}"));
        }
        keys.push(format!("f{folder:02}.txt"));
    }
    let engine_bucket = server.engine.bucket("memory").unwrap();
    for key in &keys {
        engine_bucket
            .put(&object_store::path::Path::from(key.as_str()), "x".into())
            .await
            .unwrap();
    }
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    for (prefix, delimiter) in [("", "/"), ("f0", "/"), ("", "0/1"), ("f11/", "/")] {
        let expected = model(&keys, prefix, delimiter);
        for max in [5, 7, 1000] {
            let base = format!(
                "/memory?list-type=2&prefix={}&delimiter={}",
                encode(prefix),
                encode(delimiter)
            );
            let found = follow(
                &server,
                &base,
                max,
                ("NextContinuationToken", "continuation-token"),
            )
            .await;
            assert_eq!(found, expected, "{prefix:?} {delimiter:?} {max}");
        }
    }
}

#[tokio::test]
async fn level_above_one_page_beside_large_folders_is_listed() {
    let server = Server::anonymous().await;
    let bucket = server.engine.bucket("folder").unwrap();
    let path = |key: &str| server.root.path().join("folder").join(key);
    let mut keys = Vec::new();
    for folder in 0..12 {
        std::fs::create_dir(path(&format!("f{folder:02}"))).unwrap();
        keys.extend((0..140).map(|file| format!("f{folder:02}/{file:03}")));
    }
    keys.extend((0..1200).map(|file| format!("g{file:04}")));
    for key in &keys {
        std::fs::write(path(key), "x").unwrap();
    }
    // The request that the endpoint makes after its restarts.
    let level = bucket.list_level("", "f04/", 1000).await.unwrap();
    let entries = (level.entries.common_prefixes, level.entries.objects);
    assert_eq!((entries.0.len(), entries.1.len()), (7, 993));
    assert_eq!(level.next.as_deref(), Some("g0992"));
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    for prefix in ["", "f", "g"] {
        let base = format!("/folder?list-type=2&delimiter=/&prefix={prefix}");
        let next = ("NextContinuationToken", "continuation-token");
        for max in [700, 1000] {
            let found = follow(&server, &base, max, next).await;
            assert_eq!(found, model(&keys, prefix, "/"), "{prefix:?} {max}");
        }
    }
}

/// A server whose bucket `far` is another one's content below `below`.
async fn before(origin: &Server, below: &str) -> Server {
    before_bucket(origin, "memory", below).await
}

/// As [`before`], of this bucket of the other server.
async fn before_bucket(origin: &Server, bucket: &str, below: &str) -> Server {
    let builder = AmazonS3Builder::new()
        .with_endpoint(format!("http://{}", origin.address))
        .with_bucket_name(bucket)
        .with_skip_signature(true);
    let far = S3Store::from_builder(builder, bucket, &Path::from(below)).unwrap();
    let server = Server::anonymous().await;
    let mounted = server
        .engine
        .mount("far", Arc::new(far), Consistency::default());
    mounted.unwrap();
    server
}

#[tokio::test]
async fn page_costs_one_list_request() {
    let origin = Server::anonymous().await;
    let keys: Vec<String> = (0..2500).map(|n| format!("data/part-{n:04}")).collect();
    let bucket = origin.engine.bucket("memory").unwrap();
    for key in keys.iter().map(String::as_str).chain(["data/other", "e"]) {
        bucket.put(&Path::from(key), "x".into()).await.unwrap();
    }
    let origin_requests = || origin.engine.stats().buckets["memory"].requests;
    // Any server continues any page.
    let servers = [before(&origin, "").await, before(&origin, "data").await];
    for (prefix, expected) in [("data/part-", 3), ("part-2", 1), ("data/part-0", 1)] {
        let server = &servers[usize::from(!prefix.starts_with("data"))];
        let wanted = |key: &&String| key.contains(prefix);
        let wanted: Vec<&str> = keys.iter().filter(wanted).map(String::as_str).collect();
        let already = origin_requests();
        let base = format!("/far?list-type=2&prefix={prefix}");
        let next = ("NextContinuationToken", "continuation-token");
        let found = follow(server, &base, 1000, next).await.keys;
        assert!(
            found
                .iter()
                .zip(&wanted)
                .all(|(key, wanted)| wanted.ends_with(key.as_str()))
        );
        assert_eq!(
            (found.len(), origin_requests() - already),
            (wanted.len(), expected),
            "{prefix}"
        );
    }
    let first = servers[0].get("/far?list-type=2&max-keys=2", &[]).await;
    let token = encode(&first.tag("NextContinuationToken").unwrap());
    let another = before(&origin, "").await;
    let target = format!("/far?list-type=2&max-keys=1&continuation-token={token}");
    let second = another.get(&target, &[]).await.expect(200);
    assert_eq!(second.tags("Key"), ["data/part-0001"]);
}

#[tokio::test]
async fn list_of_a_bucket_that_the_origin_does_not_have_is_no_such_bucket() {
    let origin = Server::anonymous().await;
    let server = before_bucket(&origin, "absent", "").await;
    for query in ["list-type=2", "list-type=2&delimiter=/", "delimiter=/"] {
        let reply = server.get(&format!("/far?{query}"), &[]).await;
        reply.expect_error(404, "NoSuchBucket");
    }
    assert_eq!(server.engine.stats().buckets["far"].retries, 0);
}

#[tokio::test]
async fn origin_with_pages_lists_the_same() {
    let origin = Server::anonymous().await;
    let bucket = origin.engine.bucket("memory").unwrap();
    let server = before(&origin, "below/it").await;
    // The endpoint that is the origin here rejects the reserved name.
    let mut keys = KEYS.to_vec();
    keys.retain(|key| !key.ends_with('/') && !key.contains("/-"));
    for key in &keys {
        let path = Path::parse(format!("below/it/{key}")).unwrap();
        bucket.put(&path, "x".into()).await.unwrap();
    }
    bucket.put(&"below/its".into(), "x".into()).await.unwrap();
    for prefix in ["", "a", "a/", "b/4", "dir", "photos/", "zz", "\u{fc}"] {
        for (delimiter, max) in [("", 1), ("", 2), ("/", 1), ("/", 3), ("os/20", 2)] {
            let expected = model(&keys, prefix, delimiter);
            let base = format!(
                "/far?list-type=2&prefix={}&delimiter={delimiter}",
                encode(prefix)
            );
            let next = ("NextContinuationToken", "continuation-token");
            let found = follow(&server, &base, max, next).await;
            assert_eq!(found, expected, "{prefix:?} {delimiter:?} {max}");
        }
    }
}

#[tokio::test]
async fn names_are_encoded_on_request() {
    let server = Server::anonymous().await;
    let key = "a b+c/\u{fc}&<x>";
    server
        .put(&format!("/memory/{}", encode(key)), &[], b"x")
        .await
        .expect(200);
    let target = "/memory?list-type=2&encoding-type=url&prefix=a%20&delimiter=%26&start-after=a";
    let reply = server.get(target, &[]).await.expect(200);
    assert_eq!(page_of(&reply).prefixes, ["a%20b%2Bc/%C3%BC%26"]);
    assert!(reply.tags("Prefix").contains(&"a%20".to_owned()));
    assert_eq!(reply.tag("Delimiter").as_deref(), Some("%26"));
    assert_eq!(reply.tag("EncodingType").as_deref(), Some("url"));
    let reply = server
        .get("/memory?encoding-type=url", &[])
        .await
        .expect(200);
    assert_eq!(
        reply.tag("Key").as_deref(),
        Some("a%20b%2Bc/%C3%BC%26%3Cx%3E")
    );
    let reply = server.get("/memory", &[]).await.expect(200);
    assert_eq!(
        reply.tag("Key").as_deref(),
        Some("a b+c/\u{fc}&amp;&lt;x&gt;")
    );
    server
        .get("/memory?encoding-type=base64", &[])
        .await
        .expect_error(400, "InvalidArgument");
}

#[tokio::test]
async fn listing_entries_have_all_fields() {
    let server = Server::anonymous().await;
    let written = server.put("/folder/key", &[], b"12345").await.expect(200);
    let e_tag = written.header("etag").unwrap().trim_matches('"').to_owned();
    let reply = server.get("/folder?list-type=2", &[]).await.expect(200);
    assert_eq!(reply.tag("Size").as_deref(), Some("5"));
    assert_eq!(
        reply
            .tag("ETag")
            .unwrap()
            .replace("&quot;", "\"")
            .trim_matches('"'),
        e_tag
    );
    assert_eq!(reply.tag("StorageClass").as_deref(), Some("STANDARD"));
    assert_eq!(reply.tag("Name").as_deref(), Some("folder"));
    assert!(reply.tag("LastModified").unwrap().ends_with('Z'));
    assert_eq!(reply.tag("Owner"), None);
    let reply = server
        .get("/folder?list-type=2&fetch-owner=true", &[])
        .await
        .expect(200);
    assert!(reply.tag("Owner").is_some());
    let reply = server.get("/folder?versions", &[]).await.expect(200);
    assert_eq!(
        (
            reply.tag("VersionId").as_deref(),
            reply.tag("IsLatest").as_deref()
        ),
        (Some("null"), Some("true"))
    );
    let reply = server
        .get("/folder?list-type=2&max-keys=0", &[])
        .await
        .expect(200);
    assert_eq!(
        (reply.tags("Key").len(), reply.tag("IsTruncated").as_deref()),
        (0, Some("false"))
    );
    server
        .get("/folder?max-keys=-1", &[])
        .await
        .expect_error(400, "InvalidArgument");
    server
        .get("/folder?max-keys=many", &[])
        .await
        .expect_error(400, "InvalidArgument");
    server
        .get("/folder?list-type=2&continuation-token=x", &[])
        .await
        .expect_error(400, "InvalidArgument");
    let reply = server
        .get("/folder?list-type=2&max-keys=100000", &[])
        .await
        .expect(200);
    assert_eq!(reply.tag("MaxKeys").as_deref(), Some("1000"));
}

#[tokio::test]
async fn start_that_xml_cannot_represent_is_not_repeated() {
    let server = Server::anonymous().await;
    for bucket in BUCKETS {
        for key in ["my ", "my file", "mz"] {
            let target = format!("/{bucket}/{}", encode(key));
            server.put(&target, &[], b"x").await.expect(200);
        }
        let list = format!("/{bucket}?list-type=2&start-after=my%1F%F4%8F%BF%BD");
        let plain = server.get(&list, &[]).await.expect(200);
        assert_eq!(page_of(&plain).keys, ["my ", "my file", "mz"]);
        assert_eq!(plain.tag("StartAfter"), None);
        let encoded = server.get(&format!("{list}&encoding-type=url"), &[]).await;
        let encoded = encoded.expect(200);
        let start = encoded.tag("StartAfter");
        assert_eq!(start.as_deref(), Some("my%1F%F4%8F%BF%BD"));
        assert_eq!(encoded.tags("Key"), ["my%20", "my%20file", "mz"]);
        for (parameter, repeated) in [("marker", "Marker"), ("versions&key-marker", "KeyMarker")] {
            let list = format!("/{bucket}?{parameter}=my%1F&encoding-type=url");
            let reply = server.get(&list, &[]).await.expect(200);
            assert_eq!(reply.tag(repeated).as_deref(), Some("my%1F"));
        }
    }
}
