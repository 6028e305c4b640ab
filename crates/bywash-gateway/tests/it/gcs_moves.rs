//! The JSON API of Google's storage: moves of objects within a bucket.

use serde_json::{Value, json};

use crate::gcs::{document, refused};
use crate::gcs_server::GcsServer;
use crate::http::pattern;
use crate::server::Server;

const ALL: [&str; 3] = ["folder", "memory", "cloud"];

/// A store, and a server with the bucket `cloud` over it: without conditional deletes, unless `conditional_delete` states them.
async fn over_s3(conditional_delete: Option<&str>) -> (bywash_sim::server::Server, GcsServer) {
    let store = bywash_sim::server::Server::start(bywash_sim::server::s3::S3::new());
    let store = store.await.unwrap();
    let server = GcsServer::start().await;
    crate::s3_origin::mount_cloud_with(&server.engine, &store, conditional_delete);
    (store, server)
}

fn of(bucket: &str, key: &str) -> String {
    format!("/storage/v1/b/{bucket}/o/{}", key.replace('/', "%2F"))
}

fn to(bucket: &str, from: &str, to: &str) -> String {
    format!("{}/moveTo/o/{}", of(bucket, from), to.replace('/', "%2F"))
}

async fn described(server: &GcsServer, bucket: &str, key: &str) -> Value {
    document(&server.get(&of(bucket, key)).await.expect(200))
}

fn generation(object: &Value) -> i64 {
    object["generation"].as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn moved_object_keeps_bytes_and_metadata_and_is_a_new_generation() {
    let (_store, server) = over_s3(None).await;
    let s3 = Server::start_beside(&server.engine).await;
    for bucket in ALL {
        let body = pattern(3 << 20);
        server.put_object(bucket, "d/target", b"older").await;
        server.put_object(bucket, "source", &body).await;
        let patch = br#"{"contentType":"text/y","cacheControl":"no-store","metadata":{"gcsfuse_mtime":"x","B":"\u00e4"}}"#;
        let source = of(bucket, "source");
        server.send("PATCH", &source, &[], patch).await.expect(200);
        let tags = b"<Tagging><TagSet><Tag><Key>t</Key><Value>1</Value></Tag></TagSet></Tagging>";
        let target = format!("/{bucket}/source?tagging");
        s3.put(&target, &[], tags).await.expect(200);
        // A target that is newer than the source: generations never go back.
        server.put_object(bucket, "d/target", b"newer").await;
        let before = described(&server, bucket, "source").await;
        let replaced = described(&server, bucket, "d/target").await;
        let path = to(bucket, "source", "d/target");
        let moved = document(&server.post(&path, &[], b"").await.expect(200));
        assert_eq!(moved, described(&server, bucket, "d/target").await);
        for kept in [
            "size",
            "crc32c",
            "md5Hash",
            "contentType",
            "cacheControl",
            "metadata",
        ] {
            assert_eq!(moved[kept], before[kept], "{bucket}: {kept}");
        }
        assert_eq!(moved["name"], "d/target");
        assert_eq!(before["metageneration"], "2", "{bucket}");
        assert_eq!(moved["metageneration"], "1", "{bucket}");
        if bucket != "cloud" {
            // Over S3, of times to a second, the same bytes have one generation within it.
            assert!(generation(&moved) > generation(&replaced), "{bucket}");
            assert!(generation(&moved) > generation(&before), "{bucket}");
        }
        let target = of(bucket, "d/target") + "?alt=media";
        let read = server.get(&target).await.expect(200);
        assert!(read.body == body, "{bucket}");
        let tags = s3.get(&format!("/{bucket}/d/target?tagging"), &[]).await;
        assert!(
            tags.text().contains("<Key>t</Key>"),
            "{bucket}: {}",
            tags.text()
        );
        refused(server.get(&source).await, 404, "notFound");
        let page = document(&server.get(&format!("/storage/v1/b/{bucket}/o")).await);
        let names: Vec<_> = page["items"].as_array().unwrap().iter().collect();
        assert_eq!(names.len(), 1, "{bucket}: {page}");
    }
}

#[tokio::test]
async fn move_heeds_the_conditions_of_its_source_and_its_target() {
    let (_store, server) = over_s3(None).await;
    for bucket in ALL {
        server.put_object(bucket, "a", b"one").await;
        server.put_object(bucket, "b", b"two").await;
        let source = generation(&described(&server, bucket, "a").await);
        let target = generation(&described(&server, bucket, "b").await);
        let path = to(bucket, "a", "b");
        for (query, status) in [
            ("ifSourceGenerationMatch=1".to_owned(), 412),
            (format!("ifSourceGenerationNotMatch={source}"), 412),
            ("ifSourceMetagenerationMatch=7".to_owned(), 412),
            ("ifSourceMetagenerationNotMatch=1".to_owned(), 412),
            ("ifGenerationMatch=0".to_owned(), 412),
            (format!("ifGenerationMatch={source}"), 412),
            (format!("ifGenerationNotMatch={target}"), 412),
            ("sourceGeneration=1".to_owned(), 404),
            ("ifSourceGenerationMatch=x".to_owned(), 400),
        ] {
            let response = server.post(&format!("{path}?{query}"), &[], b"").await;
            assert_eq!(
                response.status,
                status,
                "{bucket} {query}: {}",
                response.text()
            );
        }
        for (key, body) in [("a", "one"), ("b", "two")] {
            let read = server.get(&(of(bucket, key) + "?alt=media")).await;
            assert_eq!(read.text(), body, "{bucket}");
        }
        let query = format!(
            "ifSourceGenerationMatch={source}&ifSourceMetagenerationMatch=1&ifGenerationMatch={target}"
        );
        let moved = server.post(&format!("{path}?{query}"), &[], b"").await;
        moved.expect(200);
        let create = to(bucket, "b", "c") + "?ifGenerationMatch=0";
        let fields = format!("{create}&fields=name");
        let moved = document(&server.post(&fields, &[], b"").await.expect(200));
        assert_eq!(moved, json!({"name": "c"}), "{bucket}");
        let absent = server.post(&to(bucket, "a", "c"), &[], b"").await;
        assert!(absent.text().contains("No such object"));
        refused(absent, 404, "notFound");
        let same = server.post(&to(bucket, "c", "c"), &[], b"").await;
        refused(same, 400, "invalid");
        let read = server.get(&(of(bucket, "c") + "?alt=media")).await;
        assert_eq!(read.expect(200).text(), "one", "{bucket}");
    }
}

#[tokio::test]
async fn names_below_and_above_each_other_are_moved() {
    let (_store, server) = over_s3(None).await;
    let long = "x".repeat(400);
    for bucket in ALL {
        let names = [
            "a",
            "a/b",
            "a/b/c",
            "z",
            "a",
            &long,
            ".bywash/x",
            "a b+c%2F",
            "ü/日本",
        ];
        server.put_object(bucket, "first", b"body").await;
        let mut at = "first".to_owned();
        for name in names {
            let escaped = |name: &str| name.replace('%', "%25").replace(' ', "%20");
            let path = to(bucket, &escaped(&at), &escaped(name));
            let moved = document(&server.post(&path, &[], b"").await.expect(200));
            assert_eq!(moved["name"], *name, "{bucket}");
            refused(
                server.get(&of(bucket, &escaped(&at))).await,
                404,
                "notFound",
            );
            at = name.to_owned();
        }
    }
}

/// Programs claim work by a rename: of many that rename one object, one has it.
#[tokio::test]
async fn one_of_many_moves_of_an_object_wins() {
    let server = GcsServer::start().await;
    for bucket in ["folder", "memory"] {
        for _ in 0..5 {
            server.put_object(bucket, "work", b"x").await;
            let moves = (0..8).map(|number| {
                let path = to(bucket, "work", &format!("taken/{number}"));
                let server = &server;
                async move { server.post(&path, &[], b"").await.status }
            });
            let mut statuses = futures::future::join_all(moves).await;
            statuses.sort_unstable();
            assert_eq!(statuses[0], 200, "{bucket}");
            assert!(
                statuses[1..].iter().all(|status| *status == 404),
                "{statuses:?}"
            );
            let page = format!("/storage/v1/b/{bucket}/o?prefix=taken/");
            let page = document(&server.get(&page).await);
            let items = page["items"].as_array().unwrap();
            assert_eq!(items.len(), 1, "{bucket}");
            let name = items[0]["name"].as_str().unwrap();
            server.delete(&of(bucket, name)).await.expect(204);
        }
    }
}

/// Moves during writes of their source: the last write is under one of both names, over each kind
/// of store.
#[tokio::test]
async fn source_that_is_replaced_during_a_move_is_not_lost() {
    for conditional_delete in [None, Some("etag")] {
        let (_store, server) = over_s3(conditional_delete).await;
        for bucket in ALL {
            for round in 0..20 {
                server.put_object(bucket, "source", b"before").await;
                let text = format!("{bucket} {round}");
                let path = to(bucket, "source", "target");
                let (_, moved) = tokio::join!(
                    server.put_object(bucket, "source", text.as_bytes()),
                    server.post(&path, &[], b"")
                );
                assert!([200, 404, 503].contains(&moved.status), "{}", moved.text());
                let read =
                    async |key: &str| server.get(&(of(bucket, key) + "?alt=media")).await.text();
                let (source, target) = (read("source").await, read("target").await);
                assert!(
                    source == text || target == text,
                    "{source} {target}, not {text}"
                );
            }
        }
    }
}

#[tokio::test]
async fn move_is_a_call_of_a_batch() {
    let server = GcsServer::start().await;
    server.put_object("folder", "a", b"x").await;
    let call = format!(
        "--b\r\nContent-Type: application/http\r\n\r\nPOST {} HTTP/1.1\r\n\r\n\r\n--b--\r\n",
        to("folder", "a", "b")
    );
    let kind = [("Content-Type", "multipart/mixed; boundary=b")];
    let sent = server
        .post("/batch/storage/v1", &kind, call.as_bytes())
        .await;
    assert!(sent.text().contains("HTTP/1.1 200"), "{}", sent.text());
    described(&server, "folder", "b").await;
}
