//! The JSON API of Google's storage: changes of metadata, and objects composed of others.

use serde_json::{Value, json};

use crate::gcs::{document, refused};
use crate::gcs_server::GcsServer;
use crate::http::pattern;
use crate::server::{BUCKETS, Server};

/// A store, and a server with the bucket `cloud` over it.
async fn over_s3() -> (bywash_sim::server::Server, GcsServer) {
    let store = bywash_sim::server::Server::start(bywash_sim::server::s3::S3::new());
    let store = store.await.unwrap();
    let server = GcsServer::start().await;
    crate::s3_origin::mount_cloud(&server.engine, &store);
    (store, server)
}

async fn change(server: &GcsServer, method: &str, target: &str, body: &Value) -> Value {
    let body = body.to_string();
    let changed = server.send(method, target, &[], body.as_bytes()).await;
    document(&changed.expect(200))
}

#[tokio::test]
async fn patch_merges_metadata_and_moves_its_number() {
    let (_store, server) = over_s3().await;
    for bucket in ["folder", "memory", "cloud"] {
        // More than a chunk, so that the bytes go through an upload.
        let body = pattern(3 << 20);
        server.put_object(bucket, "key", &body).await;
        let object = format!("/storage/v1/b/{bucket}/o/key");
        let before = document(&server.get(&object).await.expect(200));
        let set = json!({"contentType": "text/y", "cacheControl": "no-store", "metadata": {"a": "1", "b": "2"}});
        let first = change(&server, "PATCH", &object, &set).await;
        assert_eq!(first["metageneration"], "2", "{bucket}");
        assert_eq!(first["metadata"], json!({"a": "1", "b": "2"}));
        for kept in ["size", "crc32c", "md5Hash"] {
            assert_eq!(first[kept], before[kept], "{bucket}: {kept}");
        }
        let merge = json!({"cacheControl": null, "metadata": {"a": null, "c": "3"}});
        let second = change(&server, "PATCH", &object, &merge).await;
        assert_eq!(second["metageneration"], "3");
        assert_eq!(second["metadata"], json!({"b": "2", "c": "3"}));
        assert_eq!(second["contentType"], "text/y");
        assert!(second.get("cacheControl").is_none());
        let found = document(&server.get(&object).await.expect(200));
        assert_eq!(found, second, "{bucket}");
        let replace = json!({"contentLanguage": "de", "metadata": {"d": "4"}});
        let third = change(&server, "PUT", &object, &replace).await;
        assert_eq!(third["metadata"], json!({"d": "4"}));
        assert_eq!(third["contentLanguage"], "de");
        assert_ne!(third["contentType"], "text/y");
        let read = server.get(&format!("{object}?alt=media")).await.expect(200);
        assert!(read.body == body, "{bucket}");
        assert_eq!(read.header("x-goog-metageneration"), Some("4"));
        // A new object starts over.
        server.put_object(bucket, "key", b"x").await;
        let anew = document(&server.get(&object).await.expect(200));
        assert_eq!(anew["metageneration"], "1");
        let absent = format!("/storage/v1/b/{bucket}/o/absent");
        refused(
            server.send("PATCH", &absent, &[], b"{}").await,
            404,
            "notFound",
        );
    }
}

#[tokio::test]
async fn patch_heeds_its_conditions() {
    let (_store, server) = over_s3().await;
    for bucket in ["folder", "memory", "cloud"] {
        server.put_object(bucket, "key", b"body").await;
        let object = format!("/storage/v1/b/{bucket}/o/key");
        let generation = document(&server.get(&object).await.expect(200))["generation"].clone();
        let generation = generation.as_str().unwrap();
        let stale = format!("{object}?ifGenerationMatch=1");
        let patch =
            |target: String| server.send_owned("PATCH", target, br#"{"metadata":{"a":"1"}}"#);
        refused(patch(stale).await, 412, "conditionNotMet");
        let current = format!("{object}?ifGenerationMatch={generation}");
        patch(current).await.expect(200);
        let first = format!("{object}?ifMetagenerationMatch=1");
        let second = format!("{object}?ifMetagenerationMatch=2");
        if bucket == "cloud" {
            // An S3 origin does not notice another change of metadata in between.
            refused(patch(second).await, 400, "notImplemented");
            let found = document(&server.get(&object).await.expect(200));
            let generation = found["generation"].as_str().unwrap();
            let with_meta = |number: u8| {
                patch(format!(
                    "{object}?generation={generation}&ifMetagenerationMatch={number}"
                ))
            };
            refused(with_meta(1).await, 412, "conditionNotMet");
            with_meta(2).await.expect(200);
            continue;
        }
        refused(patch(first).await, 412, "conditionNotMet");
        patch(second.clone()).await.expect(200);
        refused(patch(second.clone()).await, 412, "conditionNotMet");
        let deleted = server.delete(&second).await;
        refused(deleted, 412, "conditionNotMet");
        let third = format!("{object}?ifMetagenerationMatch=3");
        server.get(&third).await.expect(200);
        server.delete(&third).await.expect(204);
    }
}

#[tokio::test]
async fn concurrent_patches_are_all_kept() {
    // Over S3 all versions with these bytes have the same ETag.
    let (_store, server) = over_s3().await;
    for bucket in ["folder", "memory", "cloud"] {
        server.put_object(bucket, "key", b"body").await;
        let object = format!("/storage/v1/b/{bucket}/o/key");
        let patches = (0..24).map(|number| {
            let body = json!({"metadata": {format!("m{number}"): "x"}}).to_string();
            let target = &object;
            let server = &server;
            async move { server.send("PATCH", target, &[], body.as_bytes()).await }
        });
        for patched in futures::future::join_all(patches).await {
            // The next patch may be applied before the response describes the result of this one.
            let is_written = patched.text().contains("the object was written");
            assert!(patched.status == 200 || is_written, "{}", patched.text());
        }
        let found = document(&server.get(&object).await.expect(200));
        assert_eq!(found["metadata"].as_object().unwrap().len(), 24, "{bucket}");
        assert_eq!(found["metageneration"], "25");
    }
}

#[tokio::test]
async fn tags_and_copies_over_s3_are_kept_beside_patches() {
    let (_store, server) = over_s3().await;
    let s3 = Server::start_beside(&server.engine).await;
    let (key, object) = ("/cloud/key", "/storage/v1/b/cloud/o/key");
    for round in 0..8 {
        server.put_object("cloud", "key", b"body").await;
        let patches = (0..4).map(|number| {
            let body = json!({"metadata": {format!("m{number}"): "x"}}).to_string();
            let server = &server;
            async move { server.send("PATCH", object, &[], body.as_bytes()).await }
        });
        let tag = async {
            let tags =
                b"<Tagging><TagSet><Tag><Key>k</Key><Value>v</Value></Tag></TagSet></Tagging>";
            let tagged = s3.put("/cloud/key?tagging", &[], tags).await;
            tagged.expect(200);
        };
        let copy = async {
            let headers = [
                ("x-amz-copy-source", key),
                ("x-amz-metadata-directive", "REPLACE"),
                ("x-amz-meta-c", "1"),
            ];
            s3.put(key, &headers, b"").await.expect(200);
        };
        tokio::join!(futures::future::join_all(patches), tag, copy);
        let read = s3.get(key, &[]).await.expect(200);
        assert_eq!(read.header("x-amz-tagging-count"), Some("1"), "{round}");
        assert_eq!(read.header("x-amz-meta-c"), Some("1"), "{round}");
    }
}

#[tokio::test]
async fn patch_keeps_tags_and_what_the_other_endpoint_wrote() {
    let (store, server) = over_s3().await;
    let s3 = Server::start_beside(&server.engine).await;
    for bucket in ["folder", "cloud"] {
        let tagged = [("x-amz-tagging", "a=1"), ("x-amz-meta-x", "y")];
        s3.put(&format!("/{bucket}/key"), &tagged, b"body")
            .await
            .expect(200);
        let object = format!("/storage/v1/b/{bucket}/o/key");
        change(&server, "PATCH", &object, &json!({"metadata": {"z": "1"}})).await;
        let tags = s3.get(&format!("/{bucket}/key?tagging"), &[]).await;
        assert!(tags.expect(200).text().contains("<Key>a</Key>"), "{bucket}");
        let read = s3.get(&format!("/{bucket}/key"), &[]).await.expect(200);
        assert_eq!(read.header("x-amz-meta-x"), Some("y"));
        assert_eq!(read.header("x-amz-meta-z"), Some("1"));
        assert_eq!(read.header("x-amz-meta-bywashmetageneration"), None);
        assert_eq!(read.text(), "body");
    }
    drop(store);
}

#[tokio::test]
async fn patch_of_a_long_object_over_s3_is_a_copy_that_the_store_makes() {
    let objects = bywash_sim::server::s3::S3::new();
    let protocol = std::sync::Arc::clone(&objects);
    let store = bywash_sim::server::Server::start(protocol);
    let store = store.await.unwrap();
    let server = GcsServer::start().await;
    crate::s3_origin::mount_cloud(&server.engine, &store);
    let body = pattern(12 << 20);
    let insert = "/upload/storage/v1/b/cloud/o?uploadType=media&name=a%20b%2F%2Bkey";
    server.post(insert, &[], &body).await.expect(200);
    let object = "/storage/v1/b/cloud/o/a%20b%2F%2Bkey";
    server.get(object).await.expect(200);
    let _of_upload = store.take_log();
    let set = json!({"contentType": "text/y", "metadata": {"a": "1"}});
    let patched = change(&server, "PATCH", object, &set).await;
    assert_eq!(patched["metadata"], json!({"a": "1"}));
    assert_eq!(patched["metageneration"], "2");
    let log = store.take_log();
    let sent: u64 = log.iter().map(|request| request.received).sum();
    assert!(sent < 1024, "{sent} bytes");
    let reads: Vec<_> = log
        .iter()
        .map(|request| request.line.as_str())
        .filter(|line| line.starts_with("GET ") && !line.contains("?tagging"))
        .collect();
    assert_eq!(reads, [""; 0]);
    let read = server.get(&format!("{object}?alt=media")).await.expect(200);
    assert!(read.body == body && read.header("content-type") == Some("text/y"));
    // Another writer's object, which is not known here: the copy is refused by the store, and made of it.
    let other = pattern(11 << 20);
    let mut stored = objects.objects().get("data", "a b/+key").unwrap();
    stored.headers.retain(|name, _| !name.contains("checksum"));
    stored.headers.remove("etag");
    let written = objects.objects().put(
        "data",
        "a b/+key",
        other.clone().into(),
        stored.headers,
        |_| true,
    );
    assert!(written.is_some());
    let set = json!({"metadata": {"b": "2"}});
    let patched = change(&server, "PATCH", object, &set).await;
    assert_eq!(patched["metadata"], json!({"a": "1", "b": "2"}));
    let log = store.take_log();
    let refused = |request: &bywash_sim::server::LoggedRequest| request.status == Some(412);
    assert!(log.iter().any(refused));
    let read = server.get(&format!("{object}?alt=media")).await.expect(200);
    assert!(read.body == other);
    assert_eq!(objects.open_uploads(), 0);
    // Without such copies, the bytes pass the server.
    let missing = bywash_sim::server::ServerFault::Refuse(501);
    store.script("partNumber=1", missing);
    let set = json!({"metadata": {"c": "3"}});
    let patched = change(&server, "PATCH", object, &set).await;
    let expected = json!({"a": "1", "b": "2", "c": "3"});
    assert_eq!(patched["metadata"], expected);
    let log = store.take_log();
    let sent: u64 = log.iter().map(|request| request.received).sum();
    assert!(sent >= other.len() as u64, "{sent} bytes");
    let read = server.get(&format!("{object}?alt=media")).await.expect(200);
    assert!(read.body == other);
    assert_eq!(objects.open_uploads(), 0);
}

/// The store keeps the CRC32C of an upload in parts, and none of a copy that it makes; of one chunk it is among the metadata.
#[tokio::test]
async fn patched_copy_over_s3_keeps_the_checksum() {
    for (size, plain) in [
        (6 << 20, false),
        (20 << 20, false),
        (6 << 20, true),
        (20 << 20, true),
    ] {
        let objects = match plain {
            false => bywash_sim::server::s3::S3::new(),
            true => bywash_sim::server::s3::S3::plain(),
        };
        let store = bywash_sim::server::Server::start(objects).await.unwrap();
        let server = GcsServer::start().await;
        crate::s3_origin::mount_cloud(&server.engine, &store);
        let body = pattern(size);
        let insert = "/upload/storage/v1/b/cloud/o?uploadType=media&name=key";
        let written = document(&server.post(insert, &[], &body).await.expect(200));
        assert!(written["crc32c"].is_string());
        let object = "/storage/v1/b/cloud/o/key";
        for (key, method) in [("a", "PATCH"), ("b", "PUT")] {
            let _before = store.take_log();
            let set = json!({"metadata": {key: "1"}});
            let patched = change(&server, method, object, &set).await;
            let log = store.take_log();
            let copied = log
                .iter()
                .any(|request| request.headers.contains_key("x-amz-copy-source"));
            assert!(copied, "{log:?}");
            // A server without checksums states none for an object that was sent in parts.
            let kept = !plain || size == 6 << 20;
            let expected = if kept {
                &written["crc32c"]
            } else {
                &Value::Null
            };
            assert_eq!(patched["crc32c"], *expected, "{size} {plain} {method}");
            let read = server.get(&format!("{object}?alt=media")).await.expect(200);
            let crc32c = written["crc32c"].as_str().unwrap();
            let hash = kept.then(|| format!("crc32c={crc32c}"));
            assert_eq!(read.header("x-goog-hash"), hash.as_deref());
            assert!(read.body == body);
        }
    }
}

#[tokio::test]
async fn patch_of_what_is_not_kept_is_refused_by_name() {
    let server = GcsServer::start().await;
    server.put_object("folder", "key", b"body").await;
    let object = "/storage/v1/b/folder/o/key";
    for (body, status, reason) in [
        (
            r#"{"customTime":"2020-01-01T00:00:00Z"}"#,
            400,
            "notImplemented",
        ),
        (r#"{"temporaryHold":true}"#, 400, "notImplemented"),
        (r#"{"metadata":{"a b":"1"}}"#, 400, "invalid"),
        ("[]", 400, "parseError"),
    ] {
        let response = server.send("PATCH", object, &[], body.as_bytes()).await;
        refused(response, status, reason);
    }
    let found = document(&server.get(object).await.expect(200));
    assert_eq!(found["metageneration"], "1");
}

/// The document of a compose of these sources.
fn sources(names: &[&str]) -> Value {
    let names = names.iter().map(|name| json!({"name": name}));
    json!({"sourceObjects": names.collect::<Vec<_>>()})
}

#[tokio::test]
async fn composed_object_has_the_bytes_and_checksum_of_its_sources() {
    let (_store, server) = over_s3().await;
    let long = pattern(3 << 20);
    for bucket in ["folder", "memory", "cloud"] {
        for (name, body) in [
            ("a", &b"1234"[..]),
            ("b", b""),
            ("c", b"56789"),
            ("d", &long),
        ] {
            server.put_object(bucket, name, body).await;
        }
        let object = format!("/storage/v1/b/{bucket}/o/all%2Fof");
        let mut body = sources(&["a", "b", "c"]);
        body["destination"] = json!({"contentType": "text/z", "metadata": {"m": "1"}});
        let target = format!("{object}/compose");
        let composed = change(&server, "POST", &target, &body).await;
        assert_eq!(composed["name"], "all/of");
        assert_eq!(
            (&composed["size"], &composed["contentType"]),
            (&json!("9"), &json!("text/z"))
        );
        assert_eq!(composed["metadata"], json!({"m": "1"}));
        assert_eq!(composed["crc32c"], "4waSgw==", "{bucket}");
        assert!(composed.get("md5Hash").is_none());
        let media = format!("{object}?alt=media");
        assert_eq!(server.get(&media).await.expect(200).text(), "123456789");
        // Onto itself, with a source whose checksum need not be known.
        let again = change(&server, "POST", &target, &sources(&["all/of", "d"])).await;
        assert_eq!(again["size"], (9 + long.len()).to_string());
        assert!(again["crc32c"].is_string());
        let read = server.get(&media).await.expect(200).body;
        assert!(read[..9] == *b"123456789" && read[9..] == long[..]);
    }
}

/// As a mount appends to a file: the object and a temporary one become the object, with conditions on both of its numbers.
#[tokio::test]
async fn composed_object_takes_the_place_of_its_sources_if_they_are_to_be_deleted() {
    let (_store, server) = over_s3().await;
    for bucket in ["folder", "memory", "cloud"] {
        server.put_object(bucket, "log", b"one").await;
        server.put_object(bucket, "tmp", b"two").await;
        server.put_object(bucket, "kept", b"three").await;
        let object = |key: &str| format!("/storage/v1/b/{bucket}/o/{key}");
        let log = document(&server.get(&object("log")).await.expect(200));
        let (generation, meta) = (&log["generation"], &log["metageneration"]);
        let both = format!(
            "ifGenerationMatch={}&ifMetagenerationMatch={}",
            generation.as_str().unwrap(),
            meta.as_str().unwrap()
        );
        let target = format!("{}/compose?{both}", object("log"));
        let body = json!({
            "sourceObjects": [{"name": "log", "generation": generation}, {"name": "tmp"}, {"name": "tmp"}],
            "destination": {"metadata": {"gcsfuse_mtime": "x"}},
            "deleteSourceObjects": true,
        });
        let stale = target.replace("ifMetagenerationMatch=1", "ifMetagenerationMatch=2");
        let text = body.to_string();
        refused(
            server.post(&stale, &[], text.as_bytes()).await,
            412,
            "conditionNotMet",
        );
        server.get(&object("tmp")).await.expect(200);
        let composed = server.post(&target, &[], text.as_bytes()).await;
        assert_eq!(
            document(&composed.expect(200))["metadata"],
            json!({"gcsfuse_mtime": "x"})
        );
        refused(server.get(&object("tmp")).await, 404, "notFound");
        let read = server.get(&(object("log") + "?alt=media")).await;
        assert_eq!(read.text(), "onetwotwo", "{bucket}");
        server.get(&object("kept")).await.expect(200);
    }
}

#[tokio::test]
async fn compose_heeds_its_conditions_and_limits() {
    let server = GcsServer::start().await;
    for bucket in BUCKETS {
        server.put_object(bucket, "a", b"a").await;
        let target = format!("/storage/v1/b/{bucket}/o/target/compose");
        let post = |query: &str, body: Value| {
            let target = format!("{target}?{query}");
            let (server, body) = (&server, body.to_string());
            async move { server.post(&target, &[], body.as_bytes()).await }
        };
        let first = post("ifGenerationMatch=0", sources(&["a"])).await;
        let first = document(&first.expect(200));
        let again = post("ifGenerationMatch=0", sources(&["a"])).await;
        refused(again, 412, "conditionNotMet");
        let generation = first["generation"].as_str().unwrap();
        let query = format!("ifGenerationMatch={generation}");
        post(&query, sources(&["target", "a"])).await.expect(200);
        let stale = json!({"sourceObjects": [{"name": "a", "objectPreconditions": {"ifGenerationMatch": 1}}]});
        refused(post("", stale).await, 412, "conditionNotMet");
        let other = json!({"sourceObjects": [{"name": "a", "generation": "1"}]});
        refused(post("", other).await, 404, "notFound");
        refused(post("", sources(&["a", "absent"])).await, 404, "notFound");
        post("", sources(&["a"; 32])).await.expect(200);
        refused(post("", sources(&["a"; 33])).await, 400, "invalid");
        refused(post("", sources(&[])).await, 400, "invalid");
        let media = format!("/storage/v1/b/{bucket}/o/target?alt=media");
        assert_eq!(server.get(&media).await.text(), "a".repeat(32));
    }
}
