//! The JSON API of Google's storage: entries that listings leave out, and the contents of their
//! items.

use serde_json::{Value, json};

use crate::gcs::{document, refused};
use crate::gcs_server::GcsServer;
use crate::server::BUCKETS;

fn names(page: &Value) -> Vec<&str> {
    let items = page["items"].as_array().unwrap();
    items
        .iter()
        .map(|item| item["name"].as_str().unwrap())
        .collect()
}

async fn list(server: &GcsServer, bucket: &str, query: &str) -> Value {
    let target = format!("/storage/v1/b/{bucket}/o?{query}");
    document(&server.get(&target).await.expect(200))
}

#[tokio::test]
async fn list_of_versions_has_the_one_of_each_object() {
    let server = GcsServer::start().await;
    for bucket in BUCKETS {
        server.put_object(bucket, "key", b"old").await;
        server.put_object(bucket, "key", b"new").await;
        let list = format!("/storage/v1/b/{bucket}/o");
        let all = document(
            &server
                .get(&format!("{list}?versions=True"))
                .await
                .expect(200),
        );
        assert_eq!(all, document(&server.get(&list).await.expect(200)));
        // Google's Python client deletes a bucket with its objects so.
        let generation = all["items"][0]["generation"].as_str().unwrap();
        let version = format!("{list}/key?generation={generation}");
        server.delete(&version).await.expect(204);
        refused(
            server.get(&format!("{list}?softDeleted=true")).await,
            400,
            "notImplemented",
        );
    }
}

#[tokio::test]
async fn items_are_described_as_the_objects_are() {
    let server = GcsServer::start().await;
    for bucket in BUCKETS {
        let target = format!("/upload/storage/v1/b/{bucket}/o?uploadType=multipart");
        let kind = [("content-type", "multipart/related; boundary=b")];
        let metadata = json!({"name": "d/key", "metadata": {"a": "1"}, "cacheControl": "no-store"});
        let body =
            format!("--b\r\n\r\n{metadata}\r\n--b\r\ncontent-type: text/y\r\n\r\nbody\r\n--b--");
        server
            .post(&target, &kind, body.as_bytes())
            .await
            .expect(200);
        let object = format!("/storage/v1/b/{bucket}/o/d%2Fkey");
        server
            .send_owned("PATCH", object.clone(), b"{}")
            .await
            .expect(200);
        let found = document(&server.get(&object).await.expect(200));
        let page = list(&server, bucket, "").await;
        assert_eq!(page["items"], json!([found]), "{bucket}");
        assert_eq!(found["metageneration"], "2");
    }
}

#[tokio::test]
async fn items_over_s3_have_what_its_listing_has() {
    let store = bywash_sim::server::Server::start(bywash_sim::server::s3::S3::new());
    let store = store.await.unwrap();
    let server = GcsServer::start().await;
    crate::s3_origin::mount_cloud(&server.engine, &store);
    server.put_object("cloud", "key", b"body").await;
    let page = list(&server, "cloud", "").await;
    let item = &page["items"][0];
    assert_eq!((&item["name"], &item["size"]), (&json!("key"), &json!("4")));
    for absent in ["contentType", "metageneration", "crc32c"] {
        assert!(item.get(absent).is_none(), "{absent}");
    }
    // rclone reads a listed object by its address, which names the generation.
    let link = item["mediaLink"].as_str().unwrap();
    let target = link.split_once("/download/").unwrap().1;
    let read = server.get(&format!("/download/{target}")).await.expect(200);
    assert_eq!(read.body, b"body");
    // A client that names properties of the objects themselves gets them, by a request for each object.
    let metadata = br#"{"metadata":{"gcsfuse_symlink_target":"x"}}"#;
    let object = "/storage/v1/b/cloud/o/key";
    server
        .send("PATCH", object, &[], metadata)
        .await
        .expect(200);
    let named = "fields=items(name,metadata,metageneration)";
    let page = list(&server, "cloud", named).await;
    let expected = json!({
        "name": "key",
        "metadata": {"gcsfuse_symlink_target": "x"},
        "metageneration": "2",
    });
    assert_eq!(page, json!({"items": [expected]}));
    let page = list(&server, "cloud", "fields=items(name,size)").await;
    assert_eq!(page["items"][0], json!({"name": "key", "size": "4"}));
}

#[tokio::test]
async fn responses_to_writes_name_metadata_as_the_request_does() {
    let store = bywash_sim::server::Server::start(bywash_sim::server::s3::S3::new());
    let store = store.await.unwrap();
    let server = GcsServer::start().await;
    crate::s3_origin::mount_cloud(&server.engine, &store);
    let given = json!({"partIndex": "7", "plain": "x"});
    let metadata = json!({"name": "part", "metadata": given});
    let body = format!("--b\r\n\r\n{metadata}\r\n--b\r\n\r\nbytes\r\n--b--");
    let kind = [("content-type", "multipart/related; boundary=b")];
    let compose = json!({"sourceObjects": [{"name": "part"}], "destination": {"metadata": given}});
    let compose = compose.to_string();
    for bucket in ["folder", "cloud"] {
        let insert = format!("/upload/storage/v1/b/{bucket}/o?uploadType=multipart");
        let written = server.post(&insert, &kind, body.as_bytes()).await;
        assert_eq!(document(&written.expect(200))["metadata"], given);
        let target = format!("/storage/v1/b/{bucket}/o/whole/compose");
        let written = server.send_owned("POST", target, compose.as_bytes());
        assert_eq!(document(&written.await.expect(200))["metadata"], given);
    }
    // S3 keeps names in small letters.
    let kept = server.get("/storage/v1/b/cloud/o/whole").await.expect(200);
    assert_eq!(
        document(&kept)["metadata"],
        json!({"partindex": "7", "plain": "x"})
    );
}

/// Google's Node client compares digests where the bytes are said to be as they are stored, and fails without any.
#[tokio::test]
async fn objects_of_parts_over_s3_have_no_digest_and_no_coding() {
    let store = bywash_sim::server::Server::start(bywash_sim::server::s3::S3::new());
    let store = store.await.unwrap();
    let server = GcsServer::start().await;
    crate::s3_origin::mount_cloud(&server.engine, &store);
    let bytes = crate::http::pattern(20 << 20);
    server.put_object("cloud", "key", &bytes).await;
    let target = "/storage/v1/b/cloud/o/key?alt=media";
    let whole = server.get(target).await.expect(200);
    for absent in ["x-goog-hash", "x-goog-stored-content-encoding"] {
        assert_eq!(whole.header(absent), None, "{absent}");
    }
    assert!(whole.body == bytes);
    let range = [("Range", "bytes=0-9")];
    let part = server.send("GET", target, &range, b"").await.expect(206);
    let coding = part.header("x-goog-stored-content-encoding");
    assert_eq!(coding, Some("identity"));
}

#[tokio::test]
async fn page_with_much_metadata_has_fewer_items_and_the_next_continues() {
    let server = GcsServer::start().await;
    let long = "x".repeat(2000);
    let keys: Vec<String> = (0..40).map(|number| format!("key{number:02}")).collect();
    for key in &keys {
        server.put_object("memory", key, b"x").await;
        let object = format!("/storage/v1/b/memory/o/{key}");
        let body = format!(r#"{{"contentDisposition":"{long}","metadata":{{"a":"{long}"}}}}"#);
        server
            .send("PATCH", &object, &[], body.as_bytes())
            .await
            .expect(200);
    }
    let mut found = Vec::new();
    let mut pages = 0;
    let mut query = "maxResults=40".to_owned();
    loop {
        let page = list(&server, "memory", &query).await;
        found.extend(names(&page).into_iter().map(str::to_owned));
        pages += 1;
        match page["nextPageToken"].as_str() {
            Some(token) => query = format!("maxResults=40&pageToken={token}"),
            None => break,
        }
    }
    assert_eq!(found, keys);
    assert!(pages > 1, "the page is limited in bytes");
}

#[tokio::test]
async fn pattern_leaves_out_other_names() {
    let server = GcsServer::start().await;
    for bucket in BUCKETS {
        for key in ["a1", "a2", "b/1.csv", "b/2.csv", "b/c/3.csv", "b/d.txt"] {
            server.put_object(bucket, key, b"x").await;
        }
        for (query, expected) in [
            ("matchGlob=a*", &["a1", "a2"][..]),
            ("matchGlob=b/*.csv", &["b/1.csv", "b/2.csv"]),
            ("matchGlob=b/**.csv", &["b/1.csv", "b/2.csv", "b/c/3.csv"]),
            ("matchGlob=**.{txt,none}", &["b/d.txt"]),
            ("matchGlob=*&prefix=a", &["a1", "a2"]),
            ("matchGlob=b/**&prefix=b/c", &["b/c/3.csv"]),
            ("matchGlob=b/**&prefix=a", &[]),
            (
                "matchGlob=b/**&startOffset=b/2&endOffset=b/d",
                &["b/2.csv", "b/c/3.csv"],
            ),
        ] {
            let page = list(&server, bucket, query).await;
            assert_eq!(names(&page), expected, "{bucket}: {query}");
            assert!(page.get("nextPageToken").is_none(), "{query}");
        }
        let page = list(&server, bucket, "matchGlob=**.csv&maxResults=2").await;
        assert_eq!(names(&page), ["b/1.csv", "b/2.csv"]);
        let token = page["nextPageToken"].as_str().unwrap();
        let query = format!("matchGlob=**.csv&maxResults=2&pageToken={token}");
        assert_eq!(names(&list(&server, bucket, &query).await), ["b/c/3.csv"]);
    }
    for (query, status, reason) in [
        ("matchGlob=[a", 400, "invalidParameter"),
        ("matchGlob=*&delimiter=/", 400, "notImplemented"),
    ] {
        let target = format!("/storage/v1/b/folder/o?{query}");
        refused(server.get(&target).await, status, reason);
    }
}

#[tokio::test]
async fn objects_named_as_a_prefix_are_items_if_the_client_wants_them() {
    let server = GcsServer::start().await;
    for bucket in BUCKETS {
        for key in ["a", "b/", "b/1", "c/1", "d"] {
            server.put_object(bucket, key, b"x").await;
        }
        let without = list(&server, bucket, "delimiter=/").await;
        assert_eq!(names(&without), ["a", "d"]);
        for value in ["true", "True"] {
            let query = format!("delimiter=/&includeTrailingDelimiter={value}");
            let page = list(&server, bucket, &query).await;
            assert_eq!(names(&page), ["a", "b/", "d"], "{bucket}");
            assert_eq!(page["prefixes"], json!(["b/", "c/"]));
        }
        for (offset, items, prefixes) in [
            ("startOffset=b/0", vec!["d"], vec!["b/", "c/"]),
            ("startOffset=b/", vec!["b/", "d"], vec!["b/", "c/"]),
            ("endOffset=c/1", vec!["a", "b/"], vec!["b/"]),
            ("endOffset=c/2", vec!["a", "b/"], vec!["b/", "c/"]),
            ("startOffset=b/1&endOffset=c", vec![], vec!["b/"]),
        ] {
            let query = format!("delimiter=/&includeTrailingDelimiter=true&{offset}");
            let page = list(&server, bucket, &query).await;
            assert_eq!(names(&page), items, "{bucket} {offset}");
            assert_eq!(page["prefixes"], json!(prefixes), "{bucket} {offset}");
        }
    }
}

#[tokio::test]
async fn documents_have_the_fields_that_the_client_wants() {
    let server = GcsServer::start().await;
    for key in ["a", "b"] {
        server.put_object("folder", key, b"x").await;
    }
    let page = list(
        &server,
        "folder",
        "maxResults=1&fields=items(name,size),nextPageToken",
    )
    .await;
    let token = page["nextPageToken"].clone();
    assert_eq!(
        page,
        json!({"items": [{"name": "a", "size": "1"}], "nextPageToken": token})
    );
    let object = "/storage/v1/b/folder/o/a";
    let found = server.get(&format!("{object}?fields=name,bucket")).await;
    assert_eq!(
        document(&found.expect(200)),
        json!({"name": "a", "bucket": "folder"})
    );
    // The bytes of an object are no document.
    let read = server.get(&format!("{object}?alt=media&fields=name")).await;
    assert_eq!(read.expect(200).text(), "x");
    let write = "/upload/storage/v1/b/folder/o?uploadType=media&name=c&fields=name(";
    refused(server.post(write, &[], b"x").await, 400, "invalidParameter");
    let absent = server.get("/storage/v1/b/folder/o/c?fields=name").await;
    refused(absent, 404, "notFound");
}

#[tokio::test]
async fn buckets_take_changes_that_change_nothing() {
    let server = GcsServer::start().await;
    let bucket = "/storage/v1/b/folder";
    let found = document(&server.get(bucket).await.expect(200));
    for method in ["PATCH", "PUT"] {
        let body = found.to_string();
        let same = server.send(method, bucket, &[], body.as_bytes()).await;
        assert_eq!(document(&same.expect(200)), found);
        let same = server.send(method, bucket, &[], br#"{"labels":{}}"#).await;
        same.expect(200);
        for (name, body) in [
            ("labels", r#"{"labels":{"a":"b"}}"#),
            ("storageClass", r#"{"storageClass":"NEARLINE"}"#),
            ("versioning", r#"{"versioning":{"enabled":true}}"#),
        ] {
            let response = server.send(method, bucket, &[], body.as_bytes()).await;
            assert!(response.text().contains(name), "{}", response.text());
            refused(response, 400, "notImplemented");
        }
    }
    let stale = format!("{bucket}?ifMetagenerationMatch=2");
    refused(
        server.send("PATCH", &stale, &[], b"{}").await,
        412,
        "conditionNotMet",
    );
    refused(server.delete(&stale).await, 412, "conditionNotMet");
    let absent = server
        .send("PATCH", "/storage/v1/b/absent", &[], b"{}")
        .await;
    refused(absent, 404, "notFound");
}

#[tokio::test]
async fn filter_of_contexts_is_refused_by_name() {
    let server = GcsServer::start().await;
    let target = "/storage/v1/b/memory/o?filter=contexts.%22k%22:*";
    let listed = server.get(target).await;
    assert!(listed.text().contains("filter"), "{}", listed.text());
    refused(listed, 400, "notImplemented");
}
