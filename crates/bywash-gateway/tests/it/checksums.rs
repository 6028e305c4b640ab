//! Tests of body digests: stored, returned, and rejected if wrong.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use md5::Digest as _;

use crate::http::{HttpResponse, http_chunks, pattern};
use crate::multipart::{complete, completion, create, part};
use crate::server::{BUCKETS, Server};
use crate::sign::{Signer, borrow, sha256_hex};

fn crc(algorithm: crc_fast::CrcAlgorithm, length: usize, body: &[u8]) -> String {
    BASE64_STANDARD.encode(&crc_fast::checksum(algorithm, body).to_be_bytes()[8 - length..])
}

/// Header and value for each algorithm.
pub fn checksums(body: &[u8]) -> [(&'static str, String); 5] {
    use crc_fast::CrcAlgorithm::{Crc32Iscsi, Crc32IsoHdlc, Crc64Nvme};
    [
        ("x-amz-checksum-crc32", crc(Crc32IsoHdlc, 4, body)),
        ("x-amz-checksum-crc32c", crc(Crc32Iscsi, 4, body)),
        ("x-amz-checksum-crc64nvme", crc(Crc64Nvme, 8, body)),
        (
            "x-amz-checksum-sha1",
            BASE64_STANDARD.encode(sha1::Sha1::digest(body)),
        ),
        (
            "x-amz-checksum-sha256",
            BASE64_STANDARD.encode(sha2::Sha256::digest(body)),
        ),
    ]
}

#[test]
fn digests_match_standard_test_vectors() {
    let check = checksums(b"123456789").map(|(_, value)| value);
    // The check values of the CRC catalogue, and the values of FIPS 180, computed with sha1sum and
    // sha256sum.
    assert_eq!(
        check[0],
        BASE64_STANDARD.encode(0xcbf4_3926_u32.to_be_bytes())
    );
    assert_eq!(
        check[1],
        BASE64_STANDARD.encode(0xe306_9283_u32.to_be_bytes())
    );
    assert_eq!(
        check[2],
        BASE64_STANDARD.encode(0xae8b_1486_0a79_9888_u64.to_be_bytes())
    );
    let hex = |value: &str| crate::sign::hex(&BASE64_STANDARD.decode(value).unwrap());
    assert_eq!(hex(&check[3]), "f7c3bc1d808e04732adf679965ccc34ca7ae3441");
    assert_eq!(
        hex(&check[4]),
        "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225"
    );
}

#[tokio::test]
async fn valid_checksums_are_stored_and_returned() {
    let server = Server::anonymous().await;
    for bucket in BUCKETS {
        for length in [0, 5, 100_000] {
            let body = pattern(length);
            for (name, value) in checksums(&body) {
                let target = format!("/{bucket}/{name}");
                let reply = server
                    .put(&target, &[(name, &value)], &body)
                    .await
                    .expect(200);
                assert_eq!(reply.header(name), Some(value.as_str()));
                assert_eq!(reply.header("x-amz-checksum-type"), Some("FULL_OBJECT"));
                let with_checksum = [("x-amz-checksum-mode", "ENABLED")];
                for method in ["GET", "HEAD"] {
                    let reply = server
                        .send(method, &target, &with_checksum, b"")
                        .await
                        .expect(200);
                    assert_eq!(
                        reply.header(name),
                        Some(value.as_str()),
                        "{method} {target}"
                    );
                    let reply = server.send(method, &target, &[], b"").await.expect(200);
                    assert_eq!(reply.header(name), None);
                }
                if length > 1 {
                    let part = [("x-amz-checksum-mode", "ENABLED"), ("Range", "bytes=0-0")];
                    let reply = server.get(&target, &part).await.expect(206);
                    assert_eq!(
                        reply.header(name),
                        None,
                        "a part's bytes have another checksum"
                    );
                }
            }
            let md5 = BASE64_STANDARD.encode(md5::Md5::digest(&body));
            server
                .put(&format!("/{bucket}/md5"), &[("Content-MD5", &md5)], &body)
                .await
                .expect(200);
        }
    }
}

#[tokio::test]
async fn wrong_checksums_store_nothing() {
    let server = Server::anonymous().await;
    for bucket in BUCKETS {
        server
            .put(&format!("/{bucket}/old"), &[], b"old bytes")
            .await
            .expect(200);
        let files = server.files();
        // One body for a single put, and one stored in parts.
        for length in [5, (16 << 20) + 9] {
            let body = pattern(length);
            let wrong = checksums(b"something else");
            let md5 = BASE64_STANDARD.encode(md5::Md5::digest(b"something else"));
            let mut cases: Vec<(&str, &str)> = wrong
                .iter()
                .map(|(name, value)| (*name, value.as_str()))
                .collect();
            cases.push(("Content-MD5", &md5));
            if length > 5 {
                cases.drain(..3);
            }
            for (name, value) in cases {
                for key in ["old", "new"] {
                    server
                        .put(&format!("/{bucket}/{key}"), &[(name, value)], &body)
                        .await
                        .expect_error(400, "BadDigest");
                }
            }
            let payload = sha256_hex(b"something else");
            server
                .put(
                    &format!("/{bucket}/new"),
                    &[("x-amz-content-sha256", &payload)],
                    &body,
                )
                .await
                .expect_error(400, "XAmzContentSHA256Mismatch");
        }
        assert_eq!(
            server
                .get(&format!("/{bucket}/old"), &[])
                .await
                .expect(200)
                .text(),
            "old bytes"
        );
        server
            .get(&format!("/{bucket}/new"), &[])
            .await
            .expect_error(404, "NoSuchKey");
        server.settled(&files).await;
    }
}

#[tokio::test]
async fn malformed_checksums_are_rejected() {
    let server = Server::anonymous().await;
    for (name, _) in checksums(b"") {
        for value in [
            "AAAA",
            "not base64",
            "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
        ] {
            server
                .put("/memory/new", &[(name, value)], b"x")
                .await
                .expect_error(400, "InvalidRequest");
        }
    }
    for value in ["AAAA", "?", "zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz"] {
        server
            .put("/memory/new", &[("Content-MD5", value)], b"x")
            .await
            .expect_error(400, "InvalidDigest");
    }
    let two = [
        ("x-amz-checksum-crc32", "AAAAAA=="),
        ("x-amz-checksum-crc32c", "AAAAAA=="),
    ];
    server
        .put("/memory/new", &two, b"x")
        .await
        .expect_error(400, "InvalidRequest");
    server
        .get("/memory/new", &[])
        .await
        .expect_error(404, "NoSuchKey");
}

/// An unsigned aws-chunked body with a trailer.
fn trailed(body: &[u8], size: usize, trailer: &str) -> Vec<u8> {
    let mut framed = Vec::new();
    for piece in body.chunks(size) {
        framed.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
        framed.extend_from_slice(piece);
        framed.extend_from_slice(b"\r\n");
    }
    framed.extend_from_slice(format!("0\r\n{trailer}\r\n\r\n").as_bytes());
    framed
}

const TRAILED: &str = "STREAMING-UNSIGNED-PAYLOAD-TRAILER";

#[tokio::test]
async fn trailers_are_verified_signed_or_not() {
    let open = Server::anonymous().await;
    let closed = Server::signed().await;
    let signer = Signer::default();
    // A single chunk, as some clients send, and many.
    for (length, size) in [
        (0, 1),
        (5, 5),
        (300_000, 300_000),
        (300_000, 65_536),
        ((17 << 20) + 1, 1 << 20),
    ] {
        let body = pattern(length);
        let decoded = length.to_string();
        // The framing of a large body does not depend on the algorithm.
        let algorithms = if length > 1 << 20 { 1 } else { 5 };
        for ((name, value), (_, wrong)) in checksums(&body)
            .into_iter()
            .zip(checksums(b"other"))
            .take(algorithms)
        {
            for (value, good) in [(value, true), (wrong, false)] {
                let framed = trailed(&body, size, &format!("{name}:{value}"));
                let extra = [
                    ("content-encoding", "aws-chunked"),
                    ("x-amz-decoded-content-length", decoded.as_str()),
                    ("x-amz-trailer", name),
                ];
                let (headers, _) = signer.headers("PUT", "/memory/key", "", TRAILED, &extra);
                for server in [&open, &closed] {
                    let mut chunked = borrow(&headers);
                    chunked.push(("transfer-encoding", "chunked"));
                    for reply in [
                        server.put("/memory/key", &borrow(&headers), &framed).await,
                        server
                            .put("/memory/key", &chunked, &http_chunks(&framed, 8000))
                            .await,
                    ] {
                        if good {
                            assert_eq!(reply.expect(200).header(name), Some(value.as_str()));
                        } else {
                            reply.expect_error(400, "BadDigest");
                        }
                    }
                }
                if good {
                    let with_checksum = [("x-amz-checksum-mode", "ENABLED")];
                    let reply = open.get("/memory/key", &with_checksum).await.expect(200);
                    assert!(reply.body == body);
                    assert_eq!(reply.header("content-encoding"), None);
                    assert_eq!(reply.header(name), Some(value.as_str()), "{length}");
                }
            }
        }
    }
}

#[tokio::test]
async fn missing_announced_trailer_fails() {
    for server in [Server::anonymous().await, Server::signed().await] {
        let extra = [
            ("x-amz-decoded-content-length", "5"),
            ("x-amz-trailer", "x-amz-checksum-crc32"),
        ];
        let (headers, _) = Signer::default().headers("PUT", "/memory/key", "", TRAILED, &extra);
        for trailer in [
            "x-amz-checksum-crc32c:AAAAAA==",
            "x-amz-checksum-crc32:AAA",
            "x-amz-checksum-crc32:",
        ] {
            server
                .put(
                    "/memory/key",
                    &borrow(&headers),
                    &trailed(b"hello", 5, trailer),
                )
                .await
                .expect_error(400, "MalformedTrailerError");
        }
        let bare = b"5\r\nhello\r\n0\r\n\r\n";
        server
            .put("/memory/key", &borrow(&headers), bare)
            .await
            .expect_error(400, "MalformedTrailerError");
    }
}

#[tokio::test]
async fn checksum_trailers_that_nothing_compares_are_refused() {
    let sums = checksums(b"hello");
    let value = |wanted: &str| {
        let sum = sums.iter().find(|(name, _)| *name == wanted);
        format!("{wanted}:{}", sum.unwrap().1)
    };
    let crc = value("x-amz-checksum-crc32");
    for server in [Server::anonymous().await, Server::signed().await] {
        let extra = [
            ("x-amz-decoded-content-length", "5"),
            ("x-amz-trailer", "x-amz-checksum-crc32"),
        ];
        let (headers, _) = Signer::default().headers("PUT", "/memory/key", "", TRAILED, &extra);
        // Right or wrong: they were not announced, or came twice.
        for other in [
            value("x-amz-checksum-sha256"),
            "x-amz-checksum-sha1:AAAA".to_owned(),
            crc.clone(),
            "x-amz-checksum-crc32:AAAAAA==".to_owned(),
        ] {
            for trailers in [format!("{crc}\r\n{other}"), format!("{other}\r\n{crc}")] {
                let body = trailed(b"hello", 5, &trailers);
                let put = server.put("/memory/key", &borrow(&headers), &body).await;
                put.expect_error(400, "MalformedTrailerError");
            }
        }
    }
}

/// Algorithms with a type, and whether S3 has the pair; without one the second of an algorithm that has both is named.
const KINDS: [(&str, &str, &str); 15] = [
    ("CRC32", "", "COMPOSITE"),
    ("CRC32", "FULL_OBJECT", "FULL_OBJECT"),
    ("CRC32", "COMPOSITE", "COMPOSITE"),
    ("CRC32C", "", "COMPOSITE"),
    ("CRC32C", "FULL_OBJECT", "FULL_OBJECT"),
    ("CRC32C", "COMPOSITE", "COMPOSITE"),
    ("CRC64NVME", "", "FULL_OBJECT"),
    ("CRC64NVME", "FULL_OBJECT", "FULL_OBJECT"),
    ("CRC64NVME", "COMPOSITE", ""),
    ("SHA1", "", "COMPOSITE"),
    ("SHA1", "FULL_OBJECT", ""),
    ("SHA1", "COMPOSITE", "COMPOSITE"),
    ("SHA256", "", "COMPOSITE"),
    ("SHA256", "FULL_OBJECT", ""),
    ("SHA256", "COMPOSITE", "COMPOSITE"),
];

/// An upload of one part with a checksum, at `target`.
struct Upload<'a> {
    server: &'a Server,
    bucket: &'a str,
    algorithm: &'a str,
    kind: &'a str,
    id: String,
    e_tag: String,
}

impl Upload<'_> {
    fn target(&self) -> String {
        format!("/{}/key", self.bucket)
    }

    /// Name of the checksum's header.
    fn header(&self) -> String {
        format!("x-amz-checksum-{}", self.algorithm.to_ascii_lowercase())
    }

    /// Uploads the part, with a checksum of each algorithm in turn: only the upload's is taken.
    async fn part(&mut self) {
        let part = format!("{}?partNumber=1&uploadId={}", self.target(), self.id);
        for (name, value) in &checksums(b"hello") {
            let headers = [(*name, value.as_str())];
            let reply = self.server.put(&part, &headers, b"hello").await;
            if **name == self.header() {
                reply.expect(200);
            } else {
                let refused = reply.expect_error(400, "InvalidRequest");
                let message = refused.tag("Message").unwrap();
                let algorithm = self.algorithm.to_ascii_lowercase();
                assert!(message.contains(&algorithm), "{message}");
            }
        }
        let reply = self.server.put(&part, &[], b"hello").await.expect(200);
        reply.header("etag").unwrap().clone_into(&mut self.e_tag);
    }

    async fn complete(&self, kind: &str) -> HttpResponse {
        let part = format!("<PartNumber>1</PartNumber><ETag>{}</ETag>", self.e_tag);
        let body =
            format!("<CompleteMultipartUpload><Part>{part}</Part></CompleteMultipartUpload>");
        let target = format!("{}?uploadId={}", self.target(), self.id);
        let headers = [("x-amz-checksum-type", kind)];
        let server = self.server;
        server
            .send("POST", &target, &headers, body.as_bytes())
            .await
    }

    /// Checks lists of the upload and its parts, and that only its own type completes it. Returns the checksum.
    async fn ends(&self) -> String {
        for list in [
            format!("{}?uploadId={}", self.target(), self.id),
            format!("/{}?uploads", self.bucket),
        ] {
            let listed = self.server.get(&list, &[]).await;
            assert_eq!(listed.tag("ChecksumType").as_deref(), Some(self.kind));
        }
        for other in ["COMPOSITE", "FULL_OBJECT", "neither"] {
            if other != self.kind {
                let refused = self.complete(other).await;
                let refused = refused.expect_error(400, "InvalidRequest");
                let message = refused.tag("Message").unwrap();
                assert!(other == "neither" || message.contains(self.kind));
            }
        }
        let done = self.complete(&self.kind.to_ascii_lowercase()).await;
        self.is_named(&done.expect(200), self.kind == "COMPOSITE")
    }

    /// Checks the checksum and its type in a document, and returns it.
    #[track_caller]
    fn is_named(&self, document: &HttpResponse, has_suffix: bool) -> String {
        let kind = document.tag("ChecksumType");
        assert_eq!(kind.as_deref(), Some(self.kind), "{}", document.text());
        let element = format!("Checksum{}", self.algorithm);
        let value = document.tag(&element).unwrap();
        assert_eq!(value.ends_with("-1"), has_suffix, "{value}");
        value
    }
}

#[tokio::test]
async fn types_of_checksums_are_named_by_each_response() {
    let server = Server::anonymous().await;
    for (bucket, (algorithm, named, kind)) in BUCKETS.into_iter().cycle().zip(KINDS) {
        let target = format!("/{bucket}/key");
        let mut headers = vec![("x-amz-checksum-algorithm", algorithm)];
        headers.extend((!named.is_empty()).then_some(("x-amz-checksum-type", named)));
        let begun = server
            .send("POST", &format!("{target}?uploads"), &headers, b"")
            .await;
        if kind.is_empty() {
            begun.expect_error(400, "InvalidRequest");
            continue;
        }
        let begun = begun.expect(200);
        assert_eq!(begun.header("x-amz-checksum-algorithm"), Some(algorithm));
        assert_eq!(begun.header("x-amz-checksum-type"), Some(kind));
        let mut upload = Upload {
            server: &server,
            bucket,
            algorithm,
            kind,
            id: begun.tag("UploadId").unwrap(),
            e_tag: String::new(),
        };
        upload.part().await;
        let value = upload.ends().await;
        for method in ["GET", "HEAD"] {
            let mode = [("x-amz-checksum-mode", "ENABLED")];
            let reply = server.send(method, &target, &mode, b"").await.expect(200);
            assert_eq!(reply.header(&upload.header()), Some(value.as_str()));
            assert_eq!(reply.header("x-amz-checksum-type"), Some(kind));
        }
        let names = [("x-amz-object-attributes", "Checksum")];
        let attributes = server.get(&format!("{target}?attributes"), &names).await;
        let plain = upload.is_named(&attributes, false);
        assert_eq!(plain, value.trim_end_matches("-1"));
        let source = [("x-amz-copy-source", target.as_str())];
        let copied = server.put(&format!("/{bucket}/copy"), &source, b"").await;
        let copied = upload.is_named(&copied, kind == "COMPOSITE");
        assert_eq!(copied, value);
    }
}

#[tokio::test]
async fn types_without_an_algorithm_and_unknown_algorithms_are_refused() {
    let server = Server::anonymous().await;
    for headers in [
        [("x-amz-checksum-type", "COMPOSITE")],
        [("x-amz-checksum-algorithm", "MD5")],
    ] {
        let reply = server
            .send("POST", "/memory/key?uploads", &headers, b"")
            .await;
        reply.expect_error(400, "InvalidRequest");
    }
}

#[tokio::test]
async fn digests_of_xml_are_compared_before_it_is_applied() {
    let server = Server::anonymous().await;
    for bucket in BUCKETS {
        let key = format!("/{bucket}/key");
        let tagged = [("x-amz-tagging", "a=1&b=2")];
        server.put(&key, &tagged, b"x").await.expect(200);
        let tags = "<Tagging><TagSet><Tag><Key>c</Key><Value>3</Value></Tag></TagSet></Tagging>";
        let cors = "<CORSConfiguration><CORSRule><AllowedMethod>GET</AllowedMethod>\
                    <AllowedOrigin>*</AllowedOrigin></CORSRule></CORSConfiguration>";
        let delete = "<Delete><Object><Key>key</Key></Object></Delete>";
        let (cors_of, created) = (format!("/{bucket}?cors"), format!("/new-{bucket}"));
        let requests = [
            ("PUT", format!("{key}?tagging"), tags),
            ("PUT", cors_of.clone(), cors),
            ("PUT", format!("{key}?acl"), ""),
            ("PUT", created.clone(), ""),
            ("POST", format!("/{bucket}?delete"), delete),
        ];
        let public = ("x-amz-acl", "public-read");
        let other = checksums(b"something else");
        let mut cases = vec![
            ("Content-MD5", "AAAAAAAAAAAAAAAAAAAAAA==", "BadDigest"),
            ("Content-MD5", "x", "InvalidDigest"),
            ("x-amz-checksum-crc32", "x", "InvalidRequest"),
        ];
        cases.extend(
            other
                .iter()
                .map(|(name, value)| (*name, value.as_str(), "BadDigest")),
        );
        for (method, target, xml) in &requests {
            for (name, value, code) in &cases {
                let headers = [public, (*name, *value)];
                let reply = server.send(method, target, &headers, xml.as_bytes()).await;
                reply.expect_error(400, code);
            }
        }
        let kept = server.get(&key, &[]).await.expect(200);
        assert_eq!(kept.header("x-amz-tagging-count"), Some("2"));
        server.get(&cors_of, &[]).await.expect(404);
        server.get(&created, &[]).await.expect(404);
        let acl = server.get(&format!("{key}?acl"), &[]).await.expect(200);
        assert!(!acl.text().contains("AllUsers"));
        for (method, target, xml) in &requests {
            let md5 = BASE64_STANDARD.encode(md5::Md5::digest(xml));
            let sums = checksums(xml.as_bytes());
            let (name, sum) = &sums[0];
            let headers = [public, ("Content-MD5", &*md5), (*name, &**sum)];
            let reply = server.send(method, target, &headers, xml.as_bytes()).await;
            reply.expect(200);
        }
        server.get(&key, &[]).await.expect(404);
    }
}

#[tokio::test]
async fn md5_of_a_completion_is_that_of_its_xml() {
    let server = Server::anonymous().await;
    for bucket in BUCKETS {
        let target = format!("/{bucket}/key");
        let id = create(
            &server,
            &target,
            &[
                ("x-amz-checksum-algorithm", "CRC32"),
                ("x-amz-checksum-type", "FULL_OBJECT"),
            ],
        )
        .await;
        let e_tag = part(&server, &target, &id, 1, b"bytes").await;
        let xml = completion(&[(1, &e_tag)]);
        let sums = checksums(b"bytes");
        let object = (sums[0].0, sums[0].1.as_str());
        let wrong = ("Content-MD5", "AAAAAAAAAAAAAAAAAAAAAA==");
        let refused = complete(&server, &target, &id, &[object, wrong], &xml).await;
        refused.expect_error(400, "BadDigest");
        server.get(&target, &[]).await.expect(404);
        let md5 = BASE64_STANDARD.encode(md5::Md5::digest(&xml));
        let right = ("Content-MD5", md5.as_str());
        let completed = complete(&server, &target, &id, &[object, right], &xml).await;
        completed.expect(200);
        assert_eq!(server.get(&target, &[]).await.text(), "bytes");
    }
}
