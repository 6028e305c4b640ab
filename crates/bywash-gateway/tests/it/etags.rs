//! Tests of ETags that clients compute, and of the parts kept with an object.

use bywash_gateway::{ETagStyle, S3Config};
use md5::Digest as _;

use crate::checksums::checksums;
use crate::http::pattern;
use crate::multipart::{MIN, complete, completion, create, part, upload};
use crate::server::{BUCKETS, Server};

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn md5(bytes: &[u8]) -> String {
    hex(&md5::Md5::digest(bytes))
}

fn quoted(e_tag: &str) -> String {
    format!("\"{e_tag}\"")
}

/// Returns the ETag of an object, which listings show too.
async fn e_tag(server: &Server, bucket: &str, key: &str) -> String {
    let head = server
        .send("HEAD", &format!("/{bucket}/{key}"), &[], b"")
        .await;
    let e_tag = head.expect(200).header("etag").unwrap().to_owned();
    let read = server
        .get(&format!("/{bucket}/{key}"), &[])
        .await
        .expect(200);
    assert_eq!(read.header("etag"), Some(&*e_tag));
    for list in ["list-type=2", "versions", ""] {
        let target = format!("/{bucket}?{list}&prefix={key}");
        let listed = server.get(&target, &[]).await.expect(200);
        assert_eq!(listed.tag("ETag"), Some(e_tag.clone()), "{list}");
    }
    e_tag.trim_matches('"').to_owned()
}

#[tokio::test]
async fn etag_of_an_object_put_whole_is_its_md5() {
    let server = Server::anonymous().await;
    for bucket in BUCKETS {
        // Empty, one piece, and more than a chunk, which is sent by a session.
        for length in [0, 5, 100_000, (17 << 20) + 3] {
            let body = pattern(length);
            let key = format!("of-{length}");
            let put = server
                .put(&format!("/{bucket}/{key}"), &[], &body)
                .await
                .expect(200);
            assert_eq!(put.header("etag"), Some(&*quoted(&md5(&body))), "{length}");
            assert_eq!(e_tag(&server, bucket, &key).await, md5(&body));
        }
    }
    let before = e_tag(&server, "folder", "of-100000").await;
    let server = server.restarted(S3Config::anonymous()).await;
    assert_eq!(e_tag(&server, "folder", "of-100000").await, before);
}

#[tokio::test]
async fn file_of_another_program_has_its_identity_as_etag() {
    let server = Server::anonymous().await;
    server.put("/folder/key", &[], b"data").await.expect(200);
    assert_eq!(e_tag(&server, "folder", "key").await, md5(b"data"));
    let file = server.root.path().join("folder/key");
    std::fs::write(&file, "atad").unwrap();
    // The server learns of the change when it next checks the file.
    let server = server.restarted(S3Config::anonymous()).await;
    let identity = e_tag(&server, "folder", "key").await;
    assert_eq!(identity.split('-').count(), 4, "{identity}");
    // Its copy is written here.
    let source = [("x-amz-copy-source", "folder/key")];
    server.put("/folder/copy", &source, b"").await.expect(200);
    assert_eq!(e_tag(&server, "folder", "copy").await, md5(b"atad"));
}

#[tokio::test]
async fn fast_etags_are_identities_and_those_kept_before_stay() {
    let server = Server::anonymous().await;
    server.put("/folder/before", &[], b"data").await.expect(200);
    let config = S3Config {
        etag: ETagStyle::Fast,
        ..S3Config::anonymous()
    };
    let server = server.restarted(config).await;
    assert_eq!(e_tag(&server, "folder", "before").await, md5(b"data"));
    let put = server.put("/folder/fast", &[], b"data").await.expect(200);
    let fast = e_tag(&server, "folder", "fast").await;
    assert_eq!(put.header("etag"), Some(&*quoted(&fast)));
    assert_eq!(fast.split('-').count(), 4, "{fast}");
    let id = create(&server, "/folder/parts", &[]).await;
    let one = part(&server, "/folder/parts", &id, 1, b"part").await;
    let xml = completion(&[(1, &one)]);
    let done = complete(&server, "/folder/parts", &id, &[], &xml)
        .await
        .expect(200);
    let again = complete(&server, "/folder/parts", &id, &[], &xml)
        .await
        .expect(200);
    assert_eq!(again.text(), done.text());
}

#[tokio::test]
async fn copies_and_new_tags_keep_the_etag_of_the_bytes() {
    let server = Server::anonymous().await;
    for bucket in BUCKETS {
        let body = pattern(70_000);
        server
            .put(&format!("/{bucket}/from"), &[], &body)
            .await
            .expect(200);
        for to in BUCKETS {
            let source = format!("{bucket}/from");
            let target = format!("/{to}/copy");
            for replaced in [false, true] {
                let mut headers = vec![("x-amz-copy-source", &*source)];
                if replaced {
                    headers.push(("x-amz-metadata-directive", "REPLACE"));
                    headers.push(("x-amz-checksum-algorithm", "CRC32"));
                }
                let copied = server.put(&target, &headers, b"").await.expect(200);
                let (name, crc) = &checksums(&body)[0];
                assert_eq!(*name, "x-amz-checksum-crc32");
                let found = copied.tag("ChecksumCRC32");
                assert_eq!(found.as_ref(), replaced.then_some(crc), "{}", copied.text());
                assert_eq!(e_tag(&server, to, "copy").await, md5(&body));
            }
        }
        let tags = "<Tagging><TagSet><Tag><Key>a</Key><Value>1</Value></Tag></TagSet></Tagging>";
        let target = format!("/{bucket}/from?tagging");
        server.put(&target, &[], tags.as_bytes()).await.expect(200);
        assert_eq!(e_tag(&server, bucket, "from").await, md5(&body));
    }
}

/// An object of three parts with the numbers 1, 2 and 7; returns its bytes, and the lengths of the parts.
async fn of_parts(server: &Server, target: &str, headers: &[(&str, &str)]) -> (Vec<u8>, String) {
    let body = pattern(2 * MIN + 777);
    let pieces = [&body[..MIN], &body[MIN..2 * MIN], &body[2 * MIN..]];
    let id = create(server, target, headers).await;
    let mut parts = Vec::new();
    let mut digests = Vec::new();
    for (number, piece) in [1, 2, 7].into_iter().zip(pieces) {
        let reply = upload(server, target, &id, number, &[], piece)
            .await
            .expect(200);
        let found = reply.header("etag").unwrap().to_owned();
        assert_eq!(found, quoted(&md5(piece)));
        if !headers.is_empty() {
            // Computed here, as the client sent none.
            let (name, value) = &checksums(piece)[0];
            assert_eq!(reply.header(name), Some(&**value));
        }
        digests.extend(md5::Md5::digest(piece));
        parts.push((number, found));
    }
    let listed = server
        .get(&format!("{target}?uploadId={id}"), &[])
        .await
        .expect(200);
    let shown: Vec<_> = parts.iter().map(|(_, e_tag)| e_tag.clone()).collect();
    assert_eq!(listed.tags("ETag"), shown);
    let parts: Vec<_> = parts
        .iter()
        .map(|(number, e_tag)| (*number, &**e_tag))
        .collect();
    let done = complete(server, target, &id, &[], &completion(&parts))
        .await
        .expect(200);
    let expected = format!("{}-3", hex(&md5::Md5::digest(&digests)));
    assert_eq!(done.tag("ETag").unwrap().trim_matches('"'), expected);
    (body, expected)
}

#[tokio::test]
async fn etag_of_an_object_of_parts_is_the_md5_of_their_md5s() {
    let server = Server::anonymous().await;
    for bucket in BUCKETS {
        let (_, expected) = of_parts(&server, &format!("/{bucket}/key"), &[]).await;
        assert_eq!(e_tag(&server, bucket, "key").await, expected);
        for replaced in [false, true] {
            let mut headers = vec![("x-amz-copy-source", "folder/key")];
            if replaced {
                headers.push(("x-amz-metadata-directive", "REPLACE"));
            }
            if bucket == "folder" {
                server.put("/memory/copy", &headers, b"").await.expect(200);
                assert_eq!(e_tag(&server, "memory", "copy").await, expected);
            }
        }
        let source = [("x-amz-copy-source", &*format!("{bucket}/key"))];
        let id = create(&server, "/folder/of-copies", &[]).await;
        let copied = upload(&server, "/folder/of-copies", &id, 1, &source, b"").await;
        let copied = copied.expect(200).tag("ETag").unwrap();
        assert_eq!(copied.trim_matches('"'), md5(&pattern(2 * MIN + 777)));
    }
}

#[tokio::test]
async fn parts_of_an_object_are_read_by_their_numbers() {
    let server = Server::anonymous().await;
    for bucket in BUCKETS {
        let target = format!("/{bucket}/key");
        let (body, expected) = of_parts(&server, &target, &[]).await;
        let ranges = [(1, 0..MIN), (2, MIN..2 * MIN), (7, 2 * MIN..body.len())];
        for (number, range) in ranges {
            let of_part = format!("{target}?partNumber={number}");
            for method in ["GET", "HEAD"] {
                let reply = server.send(method, &of_part, &[], b"").await.expect(206);
                assert_eq!(reply.header("x-amz-mp-parts-count"), Some("3"));
                assert_eq!(reply.header("etag"), Some(&*quoted(&expected)));
                let shown = format!("bytes {}-{}/{}", range.start, range.end - 1, body.len());
                assert_eq!(reply.header("content-range"), Some(&*shown));
                assert_eq!(
                    reply.header("content-length"),
                    Some(&*range.len().to_string())
                );
                assert!(method == "HEAD" || reply.body == body[range.clone()]);
            }
        }
        for number in [0, 3, 8] {
            let of_part = format!("{target}?partNumber={number}");
            let reply = server.get(&of_part, &[]).await;
            assert!(
                reply.status == 416 || number == 0,
                "{number}: {}",
                reply.status
            );
        }
        server
            .get(&format!("{target}?partNumber=1"), &[("Range", "bytes=0-1")])
            .await
            .expect_error(400, "InvalidRequest");
        // An object put whole has one part, and no count.
        let whole = format!("/{bucket}/whole");
        server.put(&whole, &[], b"data").await.expect(200);
        let reply = server
            .get(&format!("{whole}?partNumber=1"), &[])
            .await
            .expect(206);
        assert_eq!(
            (&*reply.body, reply.header("x-amz-mp-parts-count")),
            (&b"data"[..], None)
        );
        server
            .get(&format!("{whole}?partNumber=2"), &[])
            .await
            .expect_error(416, "InvalidPartNumber");
        let (if_match, other) = (("If-Match", &*expected), ("If-Match", "other"));
        let first = format!("{target}?partNumber=1");
        server.get(&first, &[if_match]).await.expect(206);
        server
            .get(&first, &[other])
            .await
            .expect_error(412, "PreconditionFailed");
    }
}

#[tokio::test]
async fn checksums_of_an_object_of_parts_are_kept_and_listed() {
    let server = Server::anonymous().await;
    for bucket in BUCKETS {
        for kind in ["COMPOSITE", "FULL_OBJECT"] {
            let target = format!("/{bucket}/{kind}");
            let headers = [
                ("x-amz-checksum-algorithm", "CRC32"),
                ("x-amz-checksum-type", kind),
            ];
            let (body, expected) = of_parts(&server, &target, &headers).await;
            let mode = [("x-amz-checksum-mode", "ENABLED")];
            let reply = server.get(&target, &mode).await.expect(200);
            assert_eq!(reply.header("x-amz-checksum-type"), Some(kind));
            let found = reply.header("x-amz-checksum-crc32").unwrap();
            match kind {
                "COMPOSITE" => assert!(found.ends_with("-3"), "{found}"),
                _ => assert_eq!(found, checksums(&body)[0].1),
            }
            let attributes = "ETag,Checksum,ObjectParts,ObjectSize,StorageClass";
            let first = [
                ("x-amz-object-attributes", attributes),
                ("x-amz-max-parts", "2"),
            ];
            let page = server
                .get(&format!("{target}?attributes"), &first)
                .await
                .expect(200);
            assert_eq!(page.tag("ETag").as_ref(), Some(&expected), "without quotes");
            assert_eq!(page.tag("ChecksumType").as_deref(), Some(kind));
            assert_eq!(
                page.tag("PartsCount").as_deref(),
                Some("3"),
                "{}",
                page.text()
            );
            assert_eq!(page.tags("PartNumber"), ["1", "2"]);
            assert_eq!(page.tag("IsTruncated").as_deref(), Some("true"));
            let next = page.tag("NextPartNumberMarker").unwrap();
            let second = [
                ("x-amz-object-attributes", attributes),
                ("x-amz-part-number-marker", &*next),
            ];
            let page = server
                .get(&format!("{target}?attributes"), &second)
                .await
                .expect(200);
            assert_eq!(page.tags("PartNumber"), ["7"]);
            let of_part = page.tags("ChecksumCRC32").last().unwrap().clone();
            assert_eq!(of_part, checksums(&body[2 * MIN..])[0].1);
            assert_eq!(page.tag("IsTruncated").as_deref(), Some("false"));
        }
    }
}
