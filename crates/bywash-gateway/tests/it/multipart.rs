//! Tests of multipart uploads.

use crate::http::{HttpResponse, pattern};
use crate::server::{BUCKETS, Server};

pub const MIN: usize = 5 << 20;

pub async fn create(server: &Server, target: &str, headers: &[(&str, &str)]) -> String {
    let reply = server
        .send("POST", &format!("{target}?uploads"), headers, b"")
        .await
        .expect(200);
    reply.tag("UploadId").unwrap()
}

pub async fn upload(
    server: &Server,
    target: &str,
    id: &str,
    number: u32,
    headers: &[(&str, &str)],
    body: &[u8],
) -> HttpResponse {
    server
        .put(
            &format!("{target}?partNumber={number}&uploadId={id}"),
            headers,
            body,
        )
        .await
}

pub async fn part(server: &Server, target: &str, id: &str, number: u32, body: &[u8]) -> String {
    upload(server, target, id, number, &[], body)
        .await
        .expect(200)
        .header("etag")
        .unwrap()
        .to_owned()
}

pub fn completion(parts: &[(u32, &str)]) -> String {
    let parts: String = parts
        .iter()
        .map(|(number, e_tag)| {
            format!("<Part><PartNumber>{number}</PartNumber><ETag>{e_tag}</ETag></Part>")
        })
        .collect();
    format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>")
}

pub async fn complete(
    server: &Server,
    target: &str,
    id: &str,
    headers: &[(&str, &str)],
    xml: &str,
) -> HttpResponse {
    server
        .send(
            "POST",
            &format!("{target}?uploadId={id}"),
            headers,
            xml.as_bytes(),
        )
        .await
}

#[tokio::test]
async fn parts_in_any_order_become_the_object() {
    let server = Server::anonymous().await;
    for bucket in BUCKETS {
        let target = format!("/{bucket}/deep/key");
        let body = pattern(2 * MIN + 12345);
        let id = create(
            &server,
            &target,
            &[("Content-Type", "text/x"), ("x-amz-meta-a", "b")],
        )
        .await;
        let last = part(&server, &target, &id, 9000, &body[2 * MIN..]).await;
        part(&server, &target, &id, 2, b"replaced below").await;
        let first = part(&server, &target, &id, 1, &body[..MIN]).await;
        let second = part(&server, &target, &id, 2, &body[MIN..2 * MIN]).await;
        server
            .get(&target, &[])
            .await
            .expect_error(404, "NoSuchKey");
        let xml = completion(&[
            (1, &first),
            (2, &second.replace('"', "&quot;")),
            (9000, last.trim_matches('"')),
        ]);
        let reply = complete(&server, &target, &id, &[], &xml).await.expect(200);
        assert_eq!(
            (reply.tag("Bucket").as_deref(), reply.tag("Key").as_deref()),
            (Some(bucket), Some("deep/key"))
        );
        // The host that the client named.
        let url = format!("http://127.0.0.1{target}");
        assert_eq!(reply.tag("Location"), Some(url));
        let read = server.get(&target, &[]).await.expect(200);
        assert!(read.body == body);
        assert_eq!(
            read.header("etag").unwrap().trim_matches('"'),
            reply.tag("ETag").unwrap().trim_matches('"')
        );
        assert_eq!(
            (read.header("content-type"), read.header("x-amz-meta-a")),
            (Some("text/x"), Some("b"))
        );
        // The client missed the response.
        let again = complete(&server, &target, &id, &[], &xml).await.expect(200);
        assert_eq!(again.text(), reply.text());
        for other in [
            completion(&[(1, &first), (2, &second)]),
            completion(&[(1, &first)]),
        ] {
            complete(&server, &target, &id, &[], &other)
                .await
                .expect_error(404, "NoSuchUpload");
        }
        server.put(&target, &[], b"replaced").await.expect(200);
        complete(&server, &target, &id, &[], &xml)
            .await
            .expect_error(404, "NoSuchUpload");
    }
}

#[tokio::test]
async fn completions_that_break_a_rule_are_rejected() {
    let server = Server::anonymous().await;
    for bucket in BUCKETS {
        let target = format!("/{bucket}/key");
        let id = create(&server, &target, &[]).await;
        let one = part(&server, &target, &id, 1, &pattern(100)).await;
        let two = part(&server, &target, &id, 2, &pattern(100)).await;
        let rules = [
            (completion(&[(1, &one), (2, &two)]), "EntityTooSmall"),
            (completion(&[(2, &two), (1, &one)]), "InvalidPartOrder"),
            (completion(&[(1, &one), (1, &one)]), "InvalidPartOrder"),
            (completion(&[(1, "\"other\"")]), "InvalidPart"),
            (completion(&[(3, &one)]), "InvalidPart"),
            (completion(&[(0, &one)]), "InvalidArgument"),
            (completion(&[]), "MalformedXML"),
            ("<CompleteMultipartUpload><Part>".to_owned(), "MalformedXML"),
            (
                completion(&[(1, &one)])
                    .replace("</ETag>", "</ETag><ChecksumCRC32>AAAAAA==</ChecksumCRC32>"),
                "",
            ),
        ];
        for (xml, code) in &rules[..rules.len() - 1] {
            complete(&server, &target, &id, &[], xml)
                .await
                .expect_error(400, code);
        }
        complete(
            &server,
            &target,
            &id,
            &[("x-amz-mp-object-size", "99")],
            &completion(&[(1, &one)]),
        )
        .await
        .expect_error(400, "InvalidRequest");
        server
            .get(&target, &[])
            .await
            .expect_error(404, "NoSuchKey");
        // A rejected completion leaves the upload unchanged.
        complete(
            &server,
            &target,
            &id,
            &[("x-amz-mp-object-size", "100")],
            &rules[rules.len() - 1].0,
        )
        .await
        .expect(200);
        assert!(server.get(&target, &[]).await.expect(200).body == pattern(100));
    }
}

#[tokio::test]
async fn conditional_completions_follow_their_conditions() {
    let server = Server::anonymous().await;
    for bucket in BUCKETS {
        let target = format!("/{bucket}/key");
        server.put(&target, &[], b"old").await.expect(200);
        let id = create(&server, &target, &[]).await;
        let one = part(&server, &target, &id, 1, b"new").await;
        let xml = completion(&[(1, &one)]);
        for condition in [("If-None-Match", "*"), ("If-Match", "\"other\"")] {
            complete(&server, &target, &id, &[condition], &xml)
                .await
                .expect_error(412, "PreconditionFailed");
        }
        assert_eq!(server.get(&target, &[]).await.expect(200).text(), "old");
        let e_tag = server
            .get(&target, &[])
            .await
            .header("etag")
            .unwrap()
            .to_owned();
        complete(&server, &target, &id, &[("If-Match", &e_tag)], &xml)
            .await
            .expect(200);
        assert_eq!(server.get(&target, &[]).await.expect(200).text(), "new");
        let absent = format!("/{bucket}/absent");
        let id = create(&server, &absent, &[]).await;
        let one = part(&server, &absent, &id, 1, b"new").await;
        let xml = completion(&[(1, &one)]);
        complete(&server, &absent, &id, &[("If-Match", "\"x\"")], &xml)
            .await
            .expect_error(404, "NoSuchKey");
        complete(&server, &absent, &id, &[("If-None-Match", "*")], &xml)
            .await
            .expect(200);
    }
}

#[tokio::test]
pub async fn uploads_that_are_not_there() {
    let server = Server::anonymous().await;
    for bucket in BUCKETS {
        let target = format!("/{bucket}/key");
        let files = server.files();
        let id = create(&server, &target, &[]).await;
        part(&server, &target, &id, 1, &pattern(1000)).await;
        let other = format!("/{bucket}/other");
        upload(&server, &other, &id, 1, &[], b"x")
            .await
            .expect_error(404, "NoSuchUpload");
        server
            .send("DELETE", &format!("{target}?uploadId={id}"), &[], b"")
            .await
            .expect(204);
        assert_eq!(server.files(), files, "an aborted upload leaves nothing");
        for id in [id.as_str(), "never"] {
            upload(&server, &target, id, 1, &[], b"x")
                .await
                .expect_error(404, "NoSuchUpload");
            complete(&server, &target, id, &[], &completion(&[(1, "x")]))
                .await
                .expect_error(404, "NoSuchUpload");
            server
                .get(&format!("{target}?uploadId={id}"), &[])
                .await
                .expect_error(404, "NoSuchUpload");
            server
                .send("DELETE", &format!("{target}?uploadId={id}"), &[], b"")
                .await
                .expect_error(404, "NoSuchUpload");
        }
        let id = create(&server, &target, &[]).await;
        for number in [0, 10_001] {
            upload(&server, &target, &id, number, &[], b"x")
                .await
                .expect_error(400, "InvalidArgument");
        }
        upload(&server, &target, &id, 10_000, &[], b"x")
            .await
            .expect(200);
    }
}

pub async fn reply_kind(server: &Server, target: &str, body: &[u8]) -> bool {
    server.get(target, &[]).await.expect(200).body == body
}

#[tokio::test]
async fn parts_are_copied_from_objects() {
    let server = Server::anonymous().await;
    let body = pattern(MIN + 1000);
    for from in BUCKETS {
        server
            .put(&format!("/{from}/from"), &[], &body)
            .await
            .expect(200);
        for to in BUCKETS {
            let target = format!("/{to}/to");
            let source = format!("/{from}/from");
            let id = create(&server, &target, &[]).await;
            let first = [
                ("x-amz-copy-source", source.as_str()),
                ("x-amz-copy-source-range", "bytes=0-5242879"),
            ];
            let one = upload(&server, &target, &id, 1, &first, b"")
                .await
                .expect(200)
                .tag("ETag")
                .unwrap();
            let second = [
                ("x-amz-copy-source", source.as_str()),
                ("x-amz-copy-source-range", "bytes=5242880-5243879"),
            ];
            let two = upload(&server, &target, &id, 2, &second, b"")
                .await
                .expect(200)
                .tag("ETag")
                .unwrap();
            for (range, status) in [
                ("bytes=5242880-5243880", 400),
                ("bytes=5-", 400),
                ("0-5", 400),
            ] {
                let headers = [
                    ("x-amz-copy-source", source.as_str()),
                    ("x-amz-copy-source-range", range),
                ];
                let reply = upload(&server, &target, &id, 3, &headers, b"").await;
                assert_eq!(reply.status, status, "{range} {}", reply.text());
            }
            let unmet = [
                ("x-amz-copy-source", source.as_str()),
                ("x-amz-copy-source-if-match", "\"other\""),
            ];
            upload(&server, &target, &id, 3, &unmet, b"")
                .await
                .expect_error(412, "PreconditionFailed");
            complete(
                &server,
                &target,
                &id,
                &[],
                &completion(&[(1, &one), (2, &two)]),
            )
            .await
            .expect(200);
            assert!(reply_kind(&server, &target, &body).await);
        }
    }
}

#[tokio::test]
pub async fn uploads_are_listed_by_pages() {
    let server = Server::anonymous().await;
    let mut expected = Vec::new();
    for key in ["a", "b/1", "b/2", "c", "c", "d/x"] {
        expected.push((
            key.to_owned(),
            create(&server, &format!("/memory/{key}"), &[]).await,
        ));
    }
    create(&server, "/folder/elsewhere", &[]).await;
    expected.sort();
    let mut found = Vec::new();
    let mut target = "/memory?uploads&max-uploads=2".to_owned();
    loop {
        let reply = server.get(&target, &[]).await.expect(200);
        let uploads = reply.tags("Upload");
        assert!(uploads.len() <= 2);
        found.extend(reply.tags("Key").into_iter().zip(reply.tags("UploadId")));
        if reply.tag("IsTruncated").as_deref() != Some("true") {
            break;
        }
        let (key, id) = (
            reply.tag("NextKeyMarker").unwrap(),
            reply.tag("NextUploadIdMarker").unwrap(),
        );
        target = format!("/memory?uploads&max-uploads=2&key-marker={key}&upload-id-marker={id}");
    }
    assert_eq!(found, expected);
    let reply = server
        .get("/memory?uploads&delimiter=/", &[])
        .await
        .expect(200);
    assert_eq!(reply.tags("Key"), ["a", "c", "c"]);
    assert_eq!(
        reply.tags("CommonPrefixes"),
        ["<Prefix>b/</Prefix>", "<Prefix>d/</Prefix>"]
    );
    let (mut names, mut markers) = (Vec::new(), String::new());
    loop {
        let target = format!("/memory?uploads&delimiter=/&max-uploads=1{markers}");
        let reply = server.get(&target, &[]).await.expect(200);
        names.extend(reply.tags("Key"));
        names.extend(reply.tags("CommonPrefixes"));
        if reply.tag("IsTruncated").as_deref() != Some("true") {
            break;
        }
        let key = reply.tag("NextKeyMarker").unwrap();
        let id = reply.tag("NextUploadIdMarker").unwrap_or_default();
        markers = format!("&key-marker={key}&upload-id-marker={id}");
    }
    let (b, d) = ("<Prefix>b/</Prefix>", "<Prefix>d/</Prefix>");
    assert_eq!(names, ["a", b, "c", "c", d]);
    let reply = server
        .get("/memory?uploads&prefix=b/&key-marker=a", &[])
        .await
        .expect(200);
    assert_eq!(reply.tags("Key"), ["b/1", "b/2"]);
    let reply = server
        .get("/memory?uploads&prefix=b/", &[])
        .await
        .expect(200);
    assert_eq!(reply.tags("Key"), ["b/1", "b/2"]);
    let reply = server
        .get("/memory?uploads&key-marker=b/2", &[])
        .await
        .expect(200);
    assert_eq!(reply.tags("Key"), ["c", "c", "d/x"]);
}

#[tokio::test]
async fn uploads_above_the_limit_are_rejected() {
    let limits = bywash_gateway::Limits {
        open_uploads: 2,
        ..Default::default()
    };
    let server = Server::start(bywash_gateway::S3Config {
        limits,
        ..bywash_gateway::S3Config::anonymous()
    })
    .await;
    let first = create(&server, "/memory/a", &[]).await;
    create(&server, "/memory/b", &[]).await;
    let reply = server
        .send("POST", "/memory/c?uploads", &[], b"")
        .await
        .expect_error(503, "SlowDown");
    assert!(reply.header("retry-after").is_some());
    server
        .send("DELETE", &format!("/memory/a?uploadId={first}"), &[], b"")
        .await
        .expect(204);
    create(&server, "/memory/c", &[]).await;
}
