//! The JSON API of Google's storage: buckets, objects, conditions, listings, copies.

use std::collections::BTreeMap;
use std::sync::Arc;

use bywash_gateway::{GcsConfig, S3Config};
use serde_json::{Value, json};

use crate::gcs_server::GcsServer;
use crate::http::pattern;
use crate::server::{BUCKETS, Server};

/// Reads the document of a response.
pub(crate) fn document(response: &crate::http::HttpResponse) -> Value {
    serde_json::from_slice(&response.body)
        .unwrap_or_else(|_| panic!("no JSON: {}", response.text()))
}

/// Whether an error is plain text, as for reads of bytes.
pub(crate) fn is_plain(response: &crate::http::HttpResponse) -> bool {
    response.header("content-type") == Some("text/plain; charset=utf-8")
}

/// Checks an error of Google's shape, or of the shape for reads of bytes.
#[track_caller]
pub(crate) fn refused(response: crate::http::HttpResponse, status: u16, reason: &str) {
    assert_eq!(response.status, status, "{}", response.text());
    if is_plain(&response) {
        assert!(!response.text().is_empty());
        return;
    }
    let error = document(&response);
    assert_eq!(error["error"]["code"], status);
    assert_eq!(error["error"]["errors"][0]["reason"], reason);
    assert!(!error["error"]["message"].as_str().unwrap().is_empty());
}

const CRC32C_OF_DIGITS: &str = "4waSgw==";
const MD5_OF_DIGITS: &str = "JfnnlDI7RTiF9RgfG2JNCw==";

#[tokio::test]
async fn buckets_are_created_listed_and_deleted() {
    let server = GcsServer::start().await;
    let created = server
        .post(
            "/storage/v1/b?project=p",
            &[],
            br#"{"name":"new","location":"EU"}"#,
        )
        .await
        .expect(200);
    assert_eq!(document(&created)["name"], "new");
    let layout = server.get("/storage/v1/b/new/storageLayout").await;
    let layout = document(&layout.expect(200));
    assert_eq!(layout["kind"], "storage#storageLayout");
    assert_eq!(layout["hierarchicalNamespace"], json!({"enabled": false}));
    let absent = server.get("/storage/v1/b/absent/storageLayout").await;
    refused(absent, 404, "notFound");
    let again = server
        .post("/storage/v1/b", &[], br#"{"name":"new"}"#)
        .await;
    refused(again, 409, "conflict");
    let invalid = server.post("/storage/v1/b", &[], br#"{"name":"A_"}"#).await;
    refused(invalid, 400, "invalid");
    // As Google's Go client creates one.
    let of_go = br#"{"name":"of-go","lifecycle":{"rule":[]}}"#;
    server.post("/storage/v1/b", &[], of_go).await.expect(200);
    server.delete("/storage/v1/b/of-go").await.expect(204);
    let labelled = br#"{"name":"other","labels":{"a":"b"}}"#;
    refused(
        server.post("/storage/v1/b", &[], labelled).await,
        400,
        "notImplemented",
    );
    let listed = server
        .get("/storage/v1/b?project=p&maxResults=2")
        .await
        .expect(200);
    let listed = document(&listed);
    let names = |listed: &Value| -> Vec<String> {
        let items = listed["items"].as_array().unwrap();
        items
            .iter()
            .map(|item| item["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names(&listed), ["folder", "memory"]);
    let token = listed["nextPageToken"].as_str().unwrap();
    let rest = server
        .get(&format!("/storage/v1/b?pageToken={token}"))
        .await;
    assert_eq!(names(&document(&rest)), ["new"]);
    server.put_object("new", "key", b"x").await;
    refused(server.delete("/storage/v1/b/new").await, 409, "conflict");
    server.delete("/storage/v1/b/new/o/key").await.expect(204);
    server.delete("/storage/v1/b/new").await.expect(204);
    refused(server.get("/storage/v1/b/new").await, 404, "notFound");
}

#[tokio::test]
async fn object_is_written_described_read_and_deleted() {
    let server = GcsServer::start().await;
    for bucket in BUCKETS {
        let target = format!("/upload/storage/v1/b/{bucket}/o?uploadType=media&name=a%2Fb%20c");
        let kind = [("Content-Type", "text/x")];
        let written = server.post(&target, &kind, b"123456789").await.expect(200);
        let written = document(&written);
        let object = format!("/storage/v1/b/{bucket}/o/a%2Fb%20c");
        let found = document(&server.get(&object).await.expect(200));
        assert_eq!(written, found);
        for (name, value) in [
            ("kind", "storage#object"),
            ("name", "a/b c"),
            ("bucket", bucket),
            ("size", "9"),
            ("contentType", "text/x"),
            ("crc32c", CRC32C_OF_DIGITS),
            ("md5Hash", MD5_OF_DIGITS),
            ("metageneration", "1"),
        ] {
            assert_eq!(found[name], value, "{bucket}: {name}");
        }
        let generation = found["generation"].as_str().unwrap();
        for target in [
            format!("{object}?alt=media"),
            format!("/download{object}?alt=media&generation={generation}"),
        ] {
            let read = server.get(&target).await.expect(200);
            assert_eq!(read.body, b"123456789");
            assert_eq!(read.header("content-type"), Some("text/x"));
            assert_eq!(read.header("x-goog-generation"), Some(generation));
            assert_eq!(read.header("x-goog-stored-content-length"), Some("9"));
            assert_eq!(
                read.header("x-goog-stored-content-encoding"),
                Some("identity")
            );
            let hashes: Vec<_> = read
                .headers
                .iter()
                .filter(|(name, _)| name == "x-goog-hash")
                .map(|(_, value)| value.clone())
                .collect();
            let expected = [
                format!("crc32c={CRC32C_OF_DIGITS}"),
                format!("md5={MD5_OF_DIGITS}"),
            ];
            assert_eq!(hashes, expected);
        }
        for (range, status, body) in [
            ("bytes=2-4", 206, "345"),
            ("bytes=7-", 206, "89"),
            ("bytes=-2", 206, "89"),
            ("bytes=0-1,4-5", 200, "123456789"),
        ] {
            let target = format!("{object}?alt=media");
            let read = server.send("GET", &target, &[("Range", range)], b"").await;
            assert_eq!((read.status, &*read.text()), (status, body), "{range}");
            assert_eq!(read.header("x-goog-hash").is_some(), status == 200);
        }
        let beyond = [("Range", "bytes=9-")];
        let target = format!("{object}?alt=media");
        let beyond = server.send("GET", &target, &beyond, b"").await;
        refused(beyond, 416, "requestedRangeNotSatisfiable");
        let other = format!("{object}?alt=media&generation=1");
        refused(server.get(&other).await, 404, "notFound");
        server.delete(&object).await.expect(204);
        refused(server.get(&object).await, 404, "notFound");
        refused(server.delete(&object).await, 404, "notFound");
    }
}

/// Google's own tests compare these texts.
#[tokio::test]
async fn errors_of_reads_of_bytes_are_plain_text() {
    let server = GcsServer::start().await;
    server.put_object("folder", "a/key", b"body").await;
    let object = "/storage/v1/b/folder/o/a%2Fkey";
    let absent = "/storage/v1/b/folder/o/absent";
    let range = [("Range", "bytes=4-")];
    for (target, headers, status, text) in [
        (absent, &[][..], 404, "No such object: folder/absent"),
        (object, &range[..], 416, "Request range not satisfiable"),
        ("/storage/v1/b/none/o/key", &[], 404, ""),
    ] {
        for target in [
            format!("{target}?alt=media"),
            format!("/download{target}?alt=media"),
        ] {
            let response = server.send("GET", &target, headers, b"").await;
            assert_eq!(response.status, status, "{target}");
            assert!(is_plain(&response), "{:?}", response.headers);
            assert!(response.text().starts_with(text), "{}", response.text());
        }
    }
    let described = server.get(absent).await;
    let message = document(&described)["error"]["message"].clone();
    assert!(!is_plain(&described) && message == "No such object: folder/absent");
    let unchanged = format!("{object}?alt=media&ifGenerationNotMatch=");
    let found = document(&server.get(object).await.expect(200));
    let unchanged = unchanged + found["generation"].as_str().unwrap();
    let unchanged = server.get(&unchanged).await.expect(304);
    assert!(unchanged.body.is_empty() && !is_plain(&unchanged));
}

/// Google's own tests look for the name of the checksum and for the one that they stated.
#[tokio::test]
async fn error_of_another_checksum_names_both() {
    let server = GcsServer::start().await;
    let target = "/upload/storage/v1/b/folder/o?uploadType=media&name=key";
    for (stated, name, wrong, found) in [
        ("crc32c=AAAAAA==", "CRC32C", "AAAAAA==", CRC32C_OF_DIGITS),
        (
            "md5=AAAAAAAAAAAAAAAAAAAAAA==",
            "MD5",
            "AAAAAAAAAAAAAAAAAAAAAA==",
            MD5_OF_DIGITS,
        ),
    ] {
        let hash = [("x-goog-hash", stated)];
        let response = server.post(target, &hash, b"123456789").await;
        let text = response.text();
        for part in [name, wrong, found] {
            assert!(text.contains(part), "{text}");
        }
        refused(response, 400, "invalid");
    }
}

#[tokio::test]
async fn metadata_that_is_not_ascii_comes_back_from_folders_and_from_s3() {
    let store = bywash_sim::server::Server::start(bywash_sim::server::s3::S3::new());
    let store = store.await.unwrap();
    let server = GcsServer::start().await;
    crate::s3_origin::mount_cloud(&server.engine, &store);
    let s3 = Server::start_beside(&server.engine).await;
    let kind = [("content-type", "multipart/related; boundary=b")];
    let expected = json!({"a": "J\u{fc}rgen \u{2713}", "b": "plain"});
    let metadata = json!({"name": "key", "metadata": expected});
    let body = format!(
        "--b\r\ncontent-type: application/json\r\n\r\n{metadata}\r\n--b\r\ncontent-type: text/y\r\n\r\nbody\r\n--b--"
    );
    for bucket in ["folder", "cloud"] {
        let target = format!("/upload/storage/v1/b/{bucket}/o?uploadType=multipart");
        let written = server.post(&target, &kind, body.as_bytes()).await;
        assert_eq!(
            document(&written.expect(200))["metadata"],
            expected,
            "{bucket}"
        );
        let copy = format!("/storage/v1/b/{bucket}/o/key/copyTo/b/{bucket}/o/copy");
        let copied = server.send_owned("POST", copy, b"").await.expect(200);
        assert_eq!(document(&copied)["metadata"], expected, "{bucket}");
        let read = s3.get(&format!("/{bucket}/copy"), &[]).await.expect(200);
        let words = Some("=?UTF-8?B?SsO8cmdlbiDinJM=?=");
        assert_eq!(
            (read.header("x-amz-meta-a"), read.body.as_slice()),
            (words, &b"body"[..])
        );
    }
}

#[tokio::test]
async fn upload_with_metadata_is_kept_with_it_and_both_endpoints_return_it() {
    let server = GcsServer::start().await;
    let s3 = Server::start_beside(&server.engine).await;
    let target = "/upload/storage/v1/b/folder/o?uploadType=multipart";
    let kind = [("content-type", "multipart/related; boundary=\"==b==\"")];
    let body = |metadata: &Value| {
        format!(
            "--==b==\r\ncontent-TYPE: application/json\r\n\r\n{metadata}\r\n--==b==\r\nCONTENT-type: text/y\r\n\r\n123456789\r\n--==b==--"
        )
    };
    let metadata = json!({
        "name": "key", "cacheControl": "no-store", "metadata": {"a": "b"}, "crc32c": CRC32C_OF_DIGITS,
        "md5Hash": MD5_OF_DIGITS,
    });
    let written = server
        .post(target, &kind, body(&metadata).as_bytes())
        .await
        .expect(200);
    let written = document(&written);
    assert_eq!(written["contentType"], "text/y");
    assert_eq!(written["cacheControl"], "no-store");
    assert_eq!(written["metadata"], json!({"a": "b"}));
    let read = s3.get("/folder/key", &[]).await.expect(200);
    assert_eq!(
        (read.body.as_slice(), read.header("x-amz-meta-a")),
        (&b"123456789"[..], Some("b"))
    );
    assert_eq!(
        read.header("etag"),
        Some("\"25f9e794323b453885f5181f1b624d0b\"")
    );
    for wrong in [
        json!({"name": "wrong", "crc32c": "AAAAAA=="}),
        json!({"name": "wrong", "md5Hash": "AAAAAAAAAAAAAAAAAAAAAA=="}),
        json!({"name": "wrong", "md5Hash": "x"}),
    ] {
        let refused_one = server.post(target, &kind, body(&wrong).as_bytes()).await;
        refused(refused_one, 400, "invalid");
    }
    let cut = body(&json!({"name": "wrong"}));
    let cut = &cut[..cut.len() - 4];
    refused(
        server.post(target, &kind, cut.as_bytes()).await,
        400,
        "invalid",
    );
    refused(
        server.get("/storage/v1/b/folder/o/wrong").await,
        404,
        "notFound",
    );
    let unnamed = server
        .post(target, &kind, body(&json!({})).as_bytes())
        .await;
    refused(unnamed, 400, "required");
}

#[tokio::test]
async fn conditions_become_the_origins_own() {
    let server = GcsServer::start().await;
    for bucket in BUCKETS {
        let target = format!("/upload/storage/v1/b/{bucket}/o?uploadType=media&name=key");
        let object = format!("/storage/v1/b/{bucket}/o/key");
        let write =
            |condition: String| server.send_owned("POST", format!("{target}&{condition}"), b"x");
        let first = document(&write("ifGenerationMatch=0".to_owned()).await.expect(200));
        let first = first["generation"].as_str().unwrap().to_owned();
        refused(
            write("ifGenerationMatch=0".to_owned()).await,
            412,
            "conditionNotMet",
        );
        refused(
            write("ifGenerationNotMatch=".to_owned() + &first).await,
            412,
            "conditionNotMet",
        );
        refused(
            write("ifMetagenerationMatch=2".to_owned()).await,
            412,
            "conditionNotMet",
        );
        refused(
            write("ifGenerationMatch=x".to_owned()).await,
            400,
            "invalidParameter",
        );
        let second = document(
            &write(format!("ifGenerationMatch={first}"))
                .await
                .expect(200),
        );
        let second = second["generation"].as_str().unwrap().to_owned();
        assert!(second.parse::<i64>().unwrap() != first.parse::<i64>().unwrap());
        refused(
            write(format!("ifGenerationMatch={first}")).await,
            412,
            "conditionNotMet",
        );
        let get = |query: String| server.get_owned(format!("{object}?{query}"));
        get(format!("ifGenerationMatch={second}")).await.expect(200);
        refused(
            get(format!("ifGenerationMatch={first}")).await,
            412,
            "conditionNotMet",
        );
        let same = get(format!("alt=media&ifGenerationNotMatch={second}"))
            .await
            .expect(304);
        assert!(same.body.is_empty());
        let delete = |query: String| server.send_owned("DELETE", format!("{object}?{query}"), b"");
        refused(
            delete(format!("ifGenerationMatch={first}")).await,
            412,
            "conditionNotMet",
        );
        delete(format!("ifGenerationMatch={second}"))
            .await
            .expect(204);
        refused(
            write(format!("ifGenerationMatch={second}")).await,
            412,
            "conditionNotMet",
        );
    }
}

#[tokio::test]
async fn deletion_of_a_generation_over_s3_is_decided_by_the_store_or_a_look_at_it() {
    let objects = bywash_sim::server::s3::S3::new();
    let store = bywash_sim::server::Server::start(Arc::clone(&objects) as Arc<_>);
    let store = store.await.unwrap();
    let object = "/storage/v1/b/cloud/o/part";
    for (setting, name) in [None, Some("etag"), Some("disabled")]
        .into_iter()
        .flat_map(|setting| ["generation", "ifGenerationMatch"].map(|name| (setting, name)))
    {
        let server = GcsServer::start().await;
        crate::s3_origin::mount_cloud_with(&server.engine, &store, setting);
        server.put_object("cloud", "part", b"part").await;
        let current = async || {
            let found = document(&server.get(object).await.expect(200));
            format!("{object}?{name}={}", found["generation"].as_str().unwrap())
        };
        let known = current().await;
        if setting == Some("disabled") {
            let response = server.delete(&known).await;
            assert!(response.text().contains("conditional deletes"));
            refused(response, 400, "notImplemented");
            continue;
        }
        // Another program replaces the version that the server knows. Without the setting this server compares it, and else the store.
        let put = objects.objects();
        put.put(
            "data",
            "part",
            b"other".as_slice().into(),
            BTreeMap::new(),
            |_| true,
        );
        refused(server.delete(&known).await, 412, "conditionNotMet");
        assert!(objects.objects().get("data", "part").is_some());
        server.delete(&current().await).await.expect(204);
        assert!(objects.objects().get("data", "part").is_none());
    }
}

#[tokio::test]
async fn one_of_many_conditional_writers_wins() {
    let server = GcsServer::start().await;
    let target = "/upload/storage/v1/b/folder/o?uploadType=media&name=one&ifGenerationMatch=0";
    let writers = (0..16).map(|_| server.send_owned("POST", target.to_owned(), b"x"));
    let written = futures::future::join_all(writers).await;
    let won = written
        .iter()
        .filter(|response| response.status == 200)
        .count();
    assert_eq!(won, 1);
    assert!(
        written
            .iter()
            .all(|response| [200, 412].contains(&response.status))
    );
}

/// Google's Go client sends it with each delete that names no version; gcsfuse took the 404 for an object that is gone.
#[tokio::test]
async fn generation_zero_is_the_current_one() {
    let server = GcsServer::start().await;
    for bucket in BUCKETS {
        server.put_object(bucket, "a", b"one").await;
        let object = format!("/storage/v1/b/{bucket}/o/a?generation=0");
        let media = format!("{object}&alt=media");
        for _ in 0..2 {
            assert_eq!(server.get(&media).await.expect(200).text(), "one");
        }
        server.get(&object).await.expect(200);
        let xml = format!("/{bucket}/a?generation=0");
        assert_eq!(server.get(&xml).await.expect(200).text(), "one");
        server.send("PATCH", &object, &[], b"{}").await.expect(200);
        let copy =
            format!("/storage/v1/b/{bucket}/o/a/rewriteTo/b/{bucket}/o/b?sourceGeneration=0");
        server.post(&copy, &[], b"").await.expect(200);
        server.delete(&object).await.expect(204);
        refused(server.delete(&object).await, 404, "notFound");
    }
}

#[tokio::test]
async fn listing_has_pages_prefixes_and_offsets() {
    let server = GcsServer::start().await;
    for bucket in BUCKETS {
        for key in ["a", "b/1", "b/2", "c", "d/1", "e"] {
            server.put_object(bucket, key, b"x").await;
        }
        let list = |query: &str| server.get_owned(format!("/storage/v1/b/{bucket}/o?{query}"));
        let names = |page: &Value| -> Vec<String> {
            let items = page["items"].as_array().unwrap();
            items
                .iter()
                .map(|item| item["name"].as_str().unwrap().to_owned())
                .collect()
        };
        let page = document(&list("prefix=b/").await.expect(200));
        assert_eq!(names(&page), ["b/1", "b/2"]);
        let object = document(
            &server
                .get_owned(format!("/storage/v1/b/{bucket}/o/b%2F1"))
                .await,
        );
        for name in ["generation", "etag", "size", "updated", "id"] {
            assert_eq!(page["items"][0][name], object[name], "{bucket}: {name}");
        }
        let page = document(&list("delimiter=/&maxResults=3").await.expect(200));
        assert_eq!(
            (names(&page), &page["prefixes"]),
            (vec!["a".to_owned(), "c".to_owned()], &json!(["b/"]))
        );
        let token = page["nextPageToken"].as_str().unwrap();
        let page = document(
            &list(&format!("delimiter=/&pageToken={token}"))
                .await
                .expect(200),
        );
        assert_eq!(
            (names(&page), &page["prefixes"]),
            (vec!["e".to_owned()], &json!(["d/"]))
        );
        assert!(page.get("nextPageToken").is_none());
        let page = document(&list("startOffset=b/2&endOffset=d/1").await.expect(200));
        assert_eq!(names(&page), ["b/2", "c"]);
        // gcloud sends it with each listing; there are no folders other than the names.
        let folders = "delimiter=/&includeFoldersAsPrefixes=True";
        let page = document(&list(folders).await.expect(200));
        assert_eq!(page["prefixes"], json!(["b/", "d/"]));
        refused(list("pageToken=!").await, 400, "invalidParameter");
        refused(list("maxResults=0").await, 400, "invalidParameter");
    }
    refused(server.get("/storage/v1/b/absent/o").await, 404, "notFound");
}

#[tokio::test]
async fn copies_have_the_bytes_and_metadata_of_their_source() {
    let server = GcsServer::start().await;
    let body = pattern(3 << 20);
    for (from, to) in [
        ("memory", "folder"),
        ("folder", "memory"),
        ("folder", "folder"),
    ] {
        let target = format!("/upload/storage/v1/b/{from}/o?uploadType=media&name=source");
        let kind = [("Content-Type", "text/x")];
        let source = document(&server.post(&target, &kind, &body).await.expect(200));
        let generation = source["generation"].as_str().unwrap();
        let place = format!("/storage/v1/b/{from}/o/source");
        let copy = format!("{place}/copyTo/b/{to}/o/a%2Fcopy");
        let copied = document(&server.post(&copy, &[], b"").await.expect(200));
        for name in ["size", "crc32c", "md5Hash", "contentType"] {
            assert_eq!(copied[name], source[name], "{name}");
        }
        let read = server
            .get(&format!("/storage/v1/b/{to}/o/a%2Fcopy?alt=media"))
            .await;
        assert!(read.body == body);
        let rewrite = format!("{place}/rewriteTo/b/{to}/o/rewritten");
        let metadata = br#"{"contentType":"text/z"}"#;
        let done = document(&server.post(&rewrite, &[], metadata).await.expect(200));
        assert_eq!(done["done"], true);
        assert_eq!(done["totalBytesRewritten"], (3 << 20).to_string());
        assert_eq!(done["resource"]["contentType"], "text/z");
        let absent = format!("{rewrite}?ifGenerationMatch=0");
        refused(server.post(&absent, &[], b"").await, 412, "conditionNotMet");
        let stale = format!("{rewrite}?ifSourceGenerationMatch=1");
        refused(server.post(&stale, &[], b"").await, 412, "conditionNotMet");
        let current = format!("{rewrite}?ifSourceGenerationMatch={generation}");
        // Go's client of the API sends `null` for metadata that are not given.
        server.post(&current, &[], b"null\n").await.expect(200);
        let none = format!("/storage/v1/b/{from}/o/absent/copyTo/b/{to}/o/x");
        let absent = server.post(&none, &[], b"").await;
        assert!(absent.text().contains("No such object"));
        refused(absent, 404, "notFound");
    }
}

#[tokio::test]
async fn what_is_not_served_is_refused_by_name() {
    let server = GcsServer::start().await;
    server.put_object("folder", "key", b"x").await;
    for (method, target) in [
        ("GET", "/storage/v1/b/folder/iam"),
        ("GET", "/storage/v1/projects/p/serviceAccount"),
        ("GET", "/storage/v1/b/folder/o/key?kmsKeyName=k"),
    ] {
        refused(
            server.send(method, target, &[], b"{}").await,
            400,
            "notImplemented",
        );
    }
    let key = [("x-goog-encryption-algorithm", "AES256")];
    let refused_one = server
        .send("GET", "/storage/v1/b/folder/o/key?alt=media", &key, b"")
        .await;
    refused(refused_one, 400, "notImplemented");
}

#[tokio::test]
async fn server_that_is_not_anonymous_refuses_all() {
    let mut config = GcsConfig::anonymous("");
    config.anonymous = false;
    let server = GcsServer::start_with(config).await;
    for (method, target) in [
        ("GET", "/storage/v1/b"),
        ("GET", "/storage/v1/b/folder/o/key?alt=media"),
        (
            "POST",
            "/upload/storage/v1/b/folder/o?uploadType=resumable&name=x",
        ),
        ("DELETE", "/storage/v1/b/folder"),
    ] {
        let bearer = [("Authorization", "Bearer anything")];
        for (headers, reason) in [(&bearer[..], "authError"), (&[], "required")] {
            let response = server.send(method, target, headers, b"").await;
            assert_eq!(response.header("www-authenticate"), Some("Bearer"));
            refused(response, 401, reason);
        }
    }
}

#[tokio::test]
async fn writes_of_pages_of_other_sites_are_refused() {
    let server = GcsServer::start().await;
    server.put_object("folder", "key", b"kept").await;
    let insert = "/upload/storage/v1/b/folder/o?uploadType=media&name=key";
    let copy = "/storage/v1/b/folder/o/key/copyTo/b/folder/o/copy";
    let own = format!("http://{}", server.address);
    for header in [
        ("Origin", "https://evil.example"),
        ("Origin", "null"),
        // A page that reached this address by another name (DNS rebinding) states that one.
        ("Origin", &own),
        ("Sec-Fetch-Site", "cross-site"),
    ] {
        for (method, target) in [
            ("POST", insert),
            ("POST", copy),
            ("POST", "/storage/v1/b"),
            ("DELETE", "/storage/v1/b/folder/o/key"),
        ] {
            let response = server.send(method, target, &[header], b"evil").await;
            refused(response, 403, "forbidden");
        }
        let read = "/storage/v1/b/folder/o/key?alt=media";
        let read = server.send("GET", read, &[header], b"").await;
        assert_eq!(read.expect(200).text(), "kept");
    }
    refused(
        server.get("/storage/v1/b/folder/o/copy").await,
        404,
        "notFound",
    );
    let program = [("Sec-Fetch-Site", "none")];
    server.post(insert, &program, b"new").await.expect(200);
}

#[tokio::test]
async fn deleted_bucket_leaves_no_uploads_and_no_rules_to_a_new_one() {
    let config = GcsConfig::anonymous("");
    let s3 = S3Config {
        shared: config.shared.clone(),
        ..S3Config::anonymous()
    };
    let server = GcsServer::start_with(config).await;
    let s3 = Server::start_with(server.engine.clone(), tempfile::tempdir().unwrap(), s3).await;
    let new = || server.post("/storage/v1/b", &[], br#"{"name":"new"}"#);
    new().await.expect(200);
    let public = [("x-amz-acl", "public-read")];
    s3.put("/new?acl", &public, b"").await.expect(200);
    let begun = s3.send("POST", "/new/key?uploads", &[], b"").await;
    begun.expect(200);
    let acl = s3.get("/new?acl", &[]).await.expect(200);
    assert!(acl.text().contains("AllUsers"));
    server.delete("/storage/v1/b/new").await.expect(204);
    new().await.expect(200);
    let acl = s3.get("/new?acl", &[]).await.expect(200);
    assert!(!acl.text().contains("AllUsers"));
    let uploads = s3.get("/new?uploads", &[]).await.expect(200);
    assert!(!uploads.text().contains("<UploadId>"));
}

#[tokio::test]
async fn metadata_longer_than_its_limit_is_refused() {
    let server = GcsServer::start().await;
    let long = format!(r#"{{"metadata":{{"a":"{}"}}}}"#, "x".repeat(64 << 10));
    let start = "/upload/storage/v1/b/folder/o?uploadType=resumable&name=x";
    refused(
        server.post(start, &[], long.as_bytes()).await,
        400,
        "invalid",
    );
    refused(
        server.post("/storage/v1/b", &[], long.as_bytes()).await,
        400,
        "invalid",
    );
}
