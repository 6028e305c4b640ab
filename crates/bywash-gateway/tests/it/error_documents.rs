//! Tests of the elements of error documents, which clients read.

use chrono::{Duration, Utc};

use crate::http::HttpResponse;
use crate::server::{Server, signed};
use crate::sign::{KEY, SECRET, Signer, borrow, presign_v2_until, sha256_hex};

/// Checks status, code and elements of an error, and the elements that each document has.
#[track_caller]
fn expect(reply: HttpResponse, status: u16, code: &str, elements: &[(&str, &str)]) {
    let reply = reply.expect_error(status, code);
    for (name, value) in elements {
        assert_eq!(reply.tag(name).as_deref(), Some(*value), "{}", reply.text());
    }
    assert!(reply.tag("Resource").unwrap().starts_with('/'));
    assert_eq!(reply.tag("HostId").as_deref(), reply.header("x-amz-id-2"));
    assert_eq!(reply.header("content-type"), Some("application/xml"));
}

/// Requests and their errors, a line each: method, target and headers; status and code; elements.
const ERRORS: &str = r#"
GET /{b}/absent => 404 NoSuchKey => Key: absent
GET /no-such-bucket/k => 404 NoSuchBucket => BucketName: no-such-bucket
GET /{b}/key | Range: bytes=5-9 => 416 InvalidRange => RangeRequested: bytes=5-9 | ActualObjectSize: 5
GET /{b}/empty | Range: bytes=0-8388607 => 416 InvalidRange => RangeRequested: bytes=0-8388607 | ActualObjectSize: 0
GET /{b}/key | Range: bytes=-0 => 416 InvalidRange => RangeRequested: bytes=-0 | ActualObjectSize: 5
GET /{b}/key?partNumber=2 => 416 InvalidPartNumber => PartNumberRequested: 2 | ActualPartCount: 1
GET /{b}/key | If-Match: "x" => 412 PreconditionFailed => Condition: If-Match
PUT /{b}/key | If-None-Match: * => 412 PreconditionFailed => Condition: If-None-Match
DELETE /{b}/key | If-Match: "x" => 412 PreconditionFailed => Condition: If-Match
GET /{b}/key?versionId={v32} => 404 NoSuchVersion => Key: key | VersionId: {v32}
GET /{b}/key?versionId= => 400 InvalidArgument => ArgumentName: versionId | ArgumentValue: 
PUT /{b}/absent | x-amz-copy-source: {b}/absent => 404 NoSuchKey => Key: absent
PUT /{b}/absent | x-amz-copy-source: no-such-bucket/k => 404 NoSuchBucket => BucketName: no-such-bucket
PUT /{b}/key | Content-MD5: AAAAAAAAAAAAAAAAAAAAAA== => 400 BadDigest => ExpectedDigest: 00000000000000000000000000000000 | CalculatedDigest: XUFAKrxLKna5cZ2REBfFkg==
PUT /{b}/key | Content-MD5: x => 400 InvalidDigest => Content-MD5: x
PUT /{b}/key | x-amz-content-sha256: {sha256 of a} => 400 XAmzContentSHA256Mismatch => ClientComputedContentSHA256: {sha256 of a} | S3ComputedContentSHA256: {sha256}
PUT /{b}/{k1025} => 400 KeyTooLongError => Size: 1025 | MaxSizeAllowed: 1024
PUT /{b}/key | x-amz-meta-a: {m3000} => 400 MetadataTooLarge => Size: 3001 | MaxSizeAllowed: 2048
PUT /{b}/key | x-amz-storage-class: MARBLE => 400 InvalidStorageClass => StorageClassRequested: MARBLE
PUT /{b}/key | x-amz-tagging: a=1&a=2 => 400 InvalidTag => TagKey: a | TagValue: 2
PUT /{b}/key | x-amz-object-lock-mode: GOVERNANCE => 501 NotImplemented => Header: x-amz-object-lock-mode
PUT /{b}/key | x-amz-metadata-directive: MOVE | x-amz-copy-source: /{b}/key => 400 InvalidArgument => ArgumentName: x-amz-metadata-directive | ArgumentValue: MOVE
GET /{b}?max-keys=x => 400 InvalidArgument => ArgumentName: max-keys | ArgumentValue: x
GET /{b}?cors => 404 NoSuchCORSConfiguration => BucketName: {b}
GET /{b}?policy => 404 NoSuchBucketPolicy => BucketName: {b}
PUT /No_Bucket => 400 InvalidBucketName => BucketName: No_Bucket
GET /memory/%FF => 400 InvalidURI => URI: /memory/%FF
"#;

/// Names and values of `text`, whose pairs are separated by `|`.
fn pairs(text: &str) -> Vec<(&str, &str)> {
    let pairs = text.split('|').filter_map(|pair| pair.split_once(": "));
    pairs
        .map(|(name, value)| (name.trim(), value.trim()))
        .collect()
}

#[tokio::test]
async fn errors_of_objects_name_what_they_are_about() {
    let server = Server::anonymous().await;
    for bucket in crate::server::BUCKETS {
        for (key, body) in [("key", &b"hello"[..]), ("empty", b"")] {
            let target = format!("/{bucket}/{key}");
            server.put(&target, &[], body).await.expect(200);
        }
        let errors = ERRORS
            .replace("{b}", bucket)
            .replace("{v32}", &"v".repeat(32))
            .replace("{k1025}", &"k".repeat(1025))
            .replace("{m3000}", &"m".repeat(3000))
            .replace("{sha256 of a}", &sha256_hex(b"a"))
            .replace("{sha256}", &sha256_hex(b"hello"));
        for line in errors.lines().filter(|line| !line.is_empty()) {
            let [request, error, elements]: [&str; 3] =
                line.split(" => ").collect::<Vec<_>>().try_into().unwrap();
            let (request, headers) = request.split_once(" |").unwrap_or((request, ""));
            let (method, target) = request.trim().split_once(' ').unwrap();
            let (status, code) = error.split_once(' ').unwrap();
            let status = status.parse().unwrap();
            let body: &[u8] = match method {
                "PUT" => b"hello",
                _ => b"",
            };
            let reply = server.send(method, target, &pairs(headers), body).await;
            expect(reply, status, code, &pairs(elements));
            if method == "GET" {
                // A response to HEAD has no body, and the same status.
                let head = server.send("HEAD", target, &pairs(headers), b"").await;
                assert!(head.body.is_empty());
                assert!(head.header("x-amz-request-id").is_some());
                if elements.contains("Key")
                    || status != 400 && !target.contains(&format!("{bucket}?"))
                {
                    assert_eq!(head.status, status, "{target}");
                }
            }
        }
    }
    let elements = [("BucketName", "folder")];
    let reply = server.send("DELETE", "/folder", &[], b"").await;
    expect(reply, 409, "BucketNotEmpty", &elements);
}

#[tokio::test]
async fn errors_of_uploads_name_the_upload_and_the_part() {
    let server = Server::anonymous().await;
    let target = "/folder/key";
    let no_upload = format!("{target}?uploadId=none");
    for (method, target) in [
        ("GET", no_upload.clone()),
        ("DELETE", no_upload.clone()),
        ("PUT", format!("{no_upload}&partNumber=1")),
    ] {
        let reply = server.send(method, &target, &[], b"").await;
        expect(reply, 404, "NoSuchUpload", &[("UploadId", "none")]);
    }
    let begun = server
        .send("POST", &format!("{target}?uploads"), &[], b"")
        .await;
    let id = begun.expect(200).tag("UploadId").unwrap();
    let mut e_tags = Vec::new();
    for number in [1, 2] {
        let part = format!("{target}?partNumber={number}&uploadId={id}");
        let reply = server.put(&part, &[], b"small").await.expect(200);
        e_tags.push(reply.header("etag").unwrap().to_owned());
    }
    let part = |number: u16, e_tag: &str| {
        format!("<Part><PartNumber>{number}</PartNumber><ETag>{e_tag}</ETag></Part>")
    };
    let complete = async |parts: String| {
        let body = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
        let target = format!("{target}?uploadId={id}");
        server.send("POST", &target, &[], body.as_bytes()).await
    };
    let bare = e_tags[0].trim_matches('"');
    expect(
        complete(part(1, &e_tags[0]) + &part(2, &e_tags[1])).await,
        400,
        "EntityTooSmall",
        &[
            ("ETag", bare),
            ("MinSizeAllowed", "5242880"),
            ("ProposedSize", "5"),
            ("PartNumber", "1"),
        ],
    );
    expect(
        complete(part(3, "x")).await,
        400,
        "InvalidPart",
        &[("UploadId", &id), ("PartNumber", "3"), ("ETag", "x")],
    );
    expect(
        complete(part(2, &e_tags[1]) + &part(1, &e_tags[0])).await,
        400,
        "InvalidPartOrder",
        &[("UploadId", &id)],
    );
    for number in ["0", "10001", "x", "", "-1", "1.0"] {
        let reply = server
            .put(
                &format!("{target}?partNumber={number}&uploadId={id}"),
                &[],
                b"",
            )
            .await;
        let elements = [("ArgumentName", "partNumber"), ("ArgumentValue", number)];
        expect(reply, 400, "InvalidArgument", &elements);
    }
}

/// A signer with the right key and another secret.
fn another() -> Signer {
    Signer {
        secret_key: "another".to_owned(),
        ..Signer::default()
    }
}

#[tokio::test]
async fn errors_of_signatures_show_what_would_be_signed() {
    let server = Server::signed().await;
    let signer = another();
    let (headers, signature) = signer.headers(
        "GET",
        "/folder/a b",
        "",
        &sha256_hex(b""),
        &[("range", "bytes=0-1")],
    );
    let reply = server.get("/folder/a%20b", &borrow(&headers)).await;
    let request = format!(
        "GET\n/folder/a%20b\n\nhost:127.0.0.1\nrange:bytes=0-1\nx-amz-content-sha256:{empty}\nx-amz-date:{date}\n\n\
         host;range;x-amz-content-sha256;x-amz-date\n{empty}",
        empty = sha256_hex(b""),
        date = signer.date,
    );
    let text = format!(
        "AWS4-HMAC-SHA256\n{}\n{}\n{}",
        signer.date,
        signer.scope(),
        sha256_hex(request.as_bytes())
    );
    let bytes = |text: &str| {
        let pairs: Vec<_> = text.bytes().map(|byte| format!("{byte:02x}")).collect();
        pairs.join(" ")
    };
    expect(
        reply,
        403,
        "SignatureDoesNotMatch",
        &[
            ("AWSAccessKeyId", KEY),
            ("StringToSign", &text),
            ("SignatureProvided", &signature),
            ("StringToSignBytes", &bytes(&text)),
            ("CanonicalRequest", &request),
            ("CanonicalRequestBytes", &bytes(&request)),
        ],
    );
}

#[tokio::test]
async fn errors_of_signatures_of_long_requests_show_only_the_text_to_sign() {
    let server = Server::signed().await;
    let signer = another();
    // Of a long request only the text to sign is shown.
    let long = "v".repeat(5000);
    let (headers, _) = signer.headers(
        "GET",
        "/folder/a",
        "",
        &sha256_hex(b""),
        &[("x-amz-meta-a", &long)],
    );
    let reply = server.get("/folder/a", &borrow(&headers)).await;
    assert_eq!(reply.tag("CanonicalRequest"), None);
    expect(
        reply,
        403,
        "SignatureDoesNotMatch",
        &[("AWSAccessKeyId", KEY)],
    );
}

#[tokio::test]
async fn errors_of_signatures_name_the_access_key() {
    let server = Server::signed().await;
    let unknown = Signer {
        access_key: "nobody".to_owned(),
        ..Signer::default()
    };
    for target in [
        unknown.presign("GET", "/folder/a", 60),
        presign_v2_until(SECRET, "GET", "/folder/a", 60).replace(KEY, "nobody"),
    ] {
        let reply = server.get(&target, &[]).await;
        expect(
            reply,
            403,
            "InvalidAccessKeyId",
            &[("AWSAccessKeyId", "nobody")],
        );
    }
    let target = presign_v2_until("another", "GET", "/folder/a", 60);
    let expires = target.rsplit('=').next().unwrap();
    let text = format!("GET\n\n\n{expires}\n/folder/a");
    let reply = server.get(&target, &[]).await;
    expect(
        reply,
        403,
        "SignatureDoesNotMatch",
        &[("StringToSign", &text)],
    );
}

#[tokio::test]
async fn errors_of_signatures_state_both_times_and_headers_that_were_not_signed() {
    let server = Server::signed().await;
    let past = Signer {
        date: (Utc::now() - Duration::hours(2))
            .format("%Y%m%dT%H%M%SZ")
            .to_string(),
        ..Signer::default()
    };
    let (headers, _) = past.headers("GET", "/folder/a", "", &sha256_hex(b""), &[]);
    let reply = server.get("/folder/a", &borrow(&headers)).await;
    let elements = [
        ("RequestTime", past.date.as_str()),
        ("MaxAllowedSkewMilliseconds", "900000"),
    ];
    assert!(reply.tag("ServerTime").is_some());
    expect(reply, 403, "RequestTimeTooSkewed", &elements);
    let reply = server.get(&past.presign("GET", "/folder/a", 60), &[]).await;
    assert!(reply.tag("Expires").is_some() && reply.tag("ServerTime").is_some());
    expect(reply, 403, "AccessDenied", &[("X-Amz-Expires", "60")]);
    let target = Signer::default().presign("GET", "/folder/a", 60);
    let extra = [("x-amz-meta-b", "1"), ("x-amz-meta-a", "2")];
    let reply = server.get(&target, &extra).await;
    expect(
        reply,
        403,
        "AccessDenied",
        &[("HeadersNotSigned", "x-amz-meta-b, x-amz-meta-a")],
    );
    for payload in ["nonsense", "", "STREAMING-NOTHING"] {
        let (headers, _) = Signer::default().headers("GET", "/folder/a", "", payload, &[]);
        let reply = server.get("/folder/a", &borrow(&headers)).await;
        let code = if payload.is_empty() {
            "InvalidRequest"
        } else {
            "InvalidArgument"
        };
        reply.expect_error(400, code);
    }
}

#[tokio::test]
async fn refused_page_of_another_site_learns_method_and_kind() {
    let server = Server::start(signed()).await;
    let headers = [
        ("Origin", "https://example.com"),
        ("Access-Control-Request-Method", "PUT"),
    ];
    for (target, kind) in [("/folder/key", "OBJECT"), ("/folder", "BUCKET")] {
        let reply = server.send("OPTIONS", target, &headers, b"").await;
        let elements = [("Method", "PUT"), ("ResourceType", kind)];
        expect(reply, 403, "AccessForbidden", &elements);
    }
}
