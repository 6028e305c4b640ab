//! Tests of part checksums and their combination.

use crate::checksums::checksums;
use crate::http::pattern;
use crate::multipart::{MIN, complete, completion, create, reply_kind, upload};
use crate::server::{BUCKETS, Server};

#[tokio::test]
async fn parts_are_verified_and_listed() {
    let server = Server::anonymous().await;
    for bucket in BUCKETS {
        let target = format!("/{bucket}/key");
        let id = create(&server, &target, &[]).await;
        for (number, (name, value)) in (1..).zip(checksums(b"hello")) {
            let reply = upload(&server, &target, &id, number, &[(name, &value)], b"hello")
                .await
                .expect(200);
            assert_eq!(reply.header(name), Some(value.as_str()));
            upload(&server, &target, &id, number, &[(name, &value)], b"jello")
                .await
                .expect_error(400, "BadDigest");
        }
        let mut listed = Vec::new();
        let mut marker = 0;
        loop {
            let page = format!("{target}?uploadId={id}&max-parts=2&part-number-marker={marker}");
            let reply = server.get(&page, &[]).await.expect(200);
            assert!(reply.tags("Size").iter().all(|size| size == "5"));
            listed.extend(reply.tags("PartNumber"));
            match reply.tag("NextPartNumberMarker") {
                Some(next) if reply.tag("IsTruncated").as_deref() == Some("true") => {
                    marker = next.parse().unwrap()
                }
                _ => break,
            }
        }
        assert_eq!(listed, ["1", "2", "3", "4", "5"]);
        let reply = server
            .get(&format!("{target}?uploadId={id}"), &[])
            .await
            .expect(200);
        for (tag, (_, value)) in [
            "ChecksumCRC32",
            "ChecksumCRC32C",
            "ChecksumCRC64NVME",
            "ChecksumSHA1",
            "ChecksumSHA256",
        ]
        .into_iter()
        .zip(checksums(b"hello"))
        {
            assert_eq!(reply.tag(tag), Some(value), "{tag}");
        }
    }
}

#[tokio::test]
async fn checksums_of_parts_combine_to_the_objects() {
    let server = Server::anonymous().await;
    let body = pattern(MIN + 777);
    let pieces = [&body[..MIN], &body[MIN..]];
    let whole = checksums(&body);
    let tags = [
        "ChecksumCRC32",
        "ChecksumCRC32C",
        "ChecksumCRC64NVME",
        "ChecksumSHA1",
        "ChecksumSHA256",
    ];
    for (at, tag) in tags.into_iter().enumerate() {
        for kind in ["COMPOSITE", "FULL_OBJECT"] {
            let possible = match tag {
                "ChecksumCRC64NVME" => kind == "FULL_OBJECT",
                "ChecksumSHA1" | "ChecksumSHA256" => kind == "COMPOSITE",
                _ => true,
            };
            if !possible {
                continue;
            }
            let algorithm = tag.strip_prefix("Checksum").unwrap();
            let headers = [
                ("x-amz-checksum-algorithm", algorithm),
                ("x-amz-checksum-type", kind),
            ];
            let id = create(&server, "/memory/key", &headers).await;
            let mut parts = Vec::new();
            for (number, piece) in (1..).zip(pieces) {
                let (name, value) = &checksums(piece)[at];
                let reply = upload(&server, "/memory/key", &id, number, &[(name, value)], piece)
                    .await
                    .expect(200);
                parts.push((number, reply.header("etag").unwrap().to_owned()));
            }
            let parts: Vec<(u32, &str)> = parts
                .iter()
                .map(|(number, e_tag)| (*number, e_tag.as_str()))
                .collect();
            let xml = completion(&parts);
            let (name, value) = &whole[at];
            if kind == "FULL_OBJECT" {
                let wrong = &checksums(b"other")[at].1;
                complete(&server, "/memory/key", &id, &[(name, wrong)], &xml)
                    .await
                    .expect_error(400, "BadDigest");
                let reply = complete(&server, "/memory/key", &id, &[(name, value)], &xml)
                    .await
                    .expect(200);
                assert_eq!(reply.tag(tag).as_ref(), Some(value));
            } else {
                let reply = complete(&server, "/memory/key", &id, &[], &xml)
                    .await
                    .expect(200);
                assert!(reply.tag(tag).unwrap().ends_with("-2"), "{}", reply.text());
            }
            assert!(reply_kind(&server, "/memory/key", &body).await);
        }
    }
    let refused = [
        ("x-amz-checksum-algorithm", "SHA256"),
        ("x-amz-checksum-type", "FULL_OBJECT"),
    ];
    server
        .send("POST", "/memory/key?uploads", &refused, b"")
        .await
        .expect_error(400, "InvalidRequest");
}

#[tokio::test]
async fn read_of_a_part_has_the_checksum_of_the_part() {
    let server = Server::anonymous().await;
    for bucket in BUCKETS {
        let target = format!("/{bucket}/key");
        let pieces = [pattern(MIN), pattern(777)];
        let algorithm = [("x-amz-checksum-algorithm", "CRC32")];
        let mode = [("x-amz-checksum-mode", "ENABLED")];
        for pieces in [&pieces[..], &pieces[1..]] {
            let id = create(&server, &target, &algorithm).await;
            let mut parts = Vec::new();
            for (number, piece) in (1..).zip(pieces) {
                let sent = upload(&server, &target, &id, number, &[], piece).await;
                parts.push(sent.expect(200).header("etag").unwrap().to_owned());
            }
            let parts: Vec<_> = (1..).zip(parts.iter().map(String::as_str)).collect();
            let done = complete(&server, &target, &id, &[], &completion(&parts)).await;
            done.expect(200);
            for (number, piece) in (1..).zip(pieces) {
                let (name, value) = &checksums(piece)[0];
                for method in ["GET", "HEAD"] {
                    let part = format!("{target}?partNumber={number}");
                    let read = server.send(method, &part, &mode, b"").await.expect(206);
                    assert_eq!(read.header(name), Some(&**value), "{method} {number}");
                    assert_eq!(read.header("x-amz-checksum-type"), None);
                    let count = pieces.len().to_string();
                    assert_eq!(read.header("x-amz-mp-parts-count"), Some(&*count));
                    let read = server.send(method, &part, &[], b"").await.expect(206);
                    assert_eq!(read.header(name), None);
                }
            }
            let whole = server.get(&target, &mode).await.expect(200);
            let whole = whole.header("x-amz-checksum-crc32").unwrap();
            assert!(whole.ends_with(&format!("-{}", pieces.len())), "{whole}");
        }
        // An object that was not uploaded in parts is its only part.
        let (name, value) = &checksums(b"one")[0];
        let sent = [(*name, &**value)];
        server.put(&target, &sent, b"one").await.expect(200);
        let part = format!("{target}?partNumber=1");
        let read = server.get(&part, &mode).await.expect(206);
        assert_eq!(read.header(name), Some(&**value));
    }
}
