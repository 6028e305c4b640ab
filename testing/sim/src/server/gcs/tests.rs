#![allow(clippy::unwrap_used, reason = "tests")]

use bytes::Bytes;

use super::super::objects::crc32c;
use super::super::{HttpRequest, ServerFault};
use super::*;
use bywash_support::pattern;

const UNIT: usize = 256 * 1024;

fn send(gcs: &Gcs, method: &str, uri: &str, headers: &[(&str, &str)], body: &[u8]) -> HttpResponse {
    send_with_fault(gcs, method, uri, headers, body, None)
}

fn send_with_fault(
    gcs: &Gcs,
    method: &str,
    uri: &str,
    headers: &[(&str, &str)],
    body: &[u8],
    fault: Option<ServerFault>,
) -> HttpResponse {
    let mut builder = http::Request::builder().method(method).uri(uri);
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    let (head, ()) = builder.body(()).unwrap().into_parts();
    let mut request = HttpRequest::new(head, "http://fake".to_owned());
    request.body = Bytes::copy_from_slice(body);
    request.fault = fault;
    gcs.respond(&request)
}

fn header<'r>(response: &'r HttpResponse, name: &str) -> Option<&'r str> {
    response
        .headers
        .get(name)
        .map(|value| value.to_str().unwrap())
}

fn start(gcs: &Gcs, more: &str) -> String {
    let uri = format!("/upload/storage/v1/b/data/o?uploadType=resumable&name=a%2Fb{more}");
    let metadata = br#"{"contentType":"text/plain","metadata":{"k":"v"}}"#;
    let response = send(gcs, "POST", &uri, &[], metadata);
    assert_eq!(response.status, 200);
    header(&response, "location")
        .unwrap()
        .replace("http://fake", "")
}

fn put(gcs: &Gcs, session: &str, range: &str, body: &[u8]) -> HttpResponse {
    send(gcs, "PUT", session, &[("content-range", range)], body)
}

/// Returns status and acknowledged range.
fn seen(response: &HttpResponse) -> (u16, Option<&str>) {
    (response.status.as_u16(), header(response, "range"))
}

#[test]
fn session_of_chunks_becomes_an_object() {
    let gcs = Gcs::new();
    let bytes = pattern(1, UNIT + 10);
    let session = start(&gcs, "");
    assert_eq!(seen(&put(&gcs, &session, "bytes */*", b"")), (308, None));
    let first = put(&gcs, &session, "bytes 0-262143/*", &bytes[..UNIT]);
    assert_eq!(seen(&first), (308, Some("bytes=0-262143")));
    // A repeated chunk changes nothing.
    let again = put(&gcs, &session, "bytes 0-262143/*", &bytes[..UNIT]);
    assert_eq!(seen(&again), (308, Some("bytes=0-262143")));
    assert_eq!(gcs.open_sessions(), 1);
    assert!(gcs.objects().get("data", "a/b").is_none());
    let last = put(&gcs, &session, "bytes 262144-262153/262154", &bytes[UNIT..]);
    assert_eq!(last.status, 200);
    let resource: serde_json::Value = serde_json::from_slice(&last.body).unwrap();
    assert_eq!(resource["size"], "262154");
    assert_eq!(resource["contentType"], "text/plain");
    assert_eq!(resource["metadata"]["k"], "v");
    assert_eq!(resource["crc32c"], crc_text(crc32c(&bytes)));
    assert_eq!(gcs.objects().get("data", "a/b").unwrap().bytes, bytes);
    // A client that lost the final response gets it again.
    assert_eq!(put(&gcs, &session, "bytes */*", b"").body, last.body);
    assert_eq!(gcs.open_sessions(), 0);
}

#[test]
fn empty_object_needs_its_total_length() {
    let gcs = Gcs::new();
    let session = start(&gcs, "");
    assert_eq!(put(&gcs, &session, "bytes */*", b"").status, 308);
    assert_eq!(put(&gcs, &session, "bytes */1", b"").status, 308);
    assert_eq!(put(&gcs, &session, "bytes */0", b"").status, 200);
    assert!(gcs.objects().get("data", "a/b").unwrap().bytes.is_empty());
}

#[test]
fn gaps_and_odd_chunks_fail_with_the_errors_of_the_real_store() {
    let gcs = Gcs::new();
    let session = start(&gcs, "");
    let gap = put(&gcs, &session, "bytes 262144-524287/*", &[0; UNIT]);
    assert_eq!(gap.status, 503);
    assert_eq!(
        header(&gap, "content-type"),
        Some("text/plain; charset=utf-8")
    );
    let text = std::str::from_utf8(&gap.body).unwrap();
    let words = "Invalid request.  According to the Content-Range header, the upload offset is 262144 byte(s), \
                 which exceeds already uploaded size of 0 byte(s).";
    assert_eq!(text, words);
    let odd = put(&gcs, &session, "bytes 0-9/*", &[0; 10]);
    assert_eq!(odd.status, 400);
    assert!(
        odd.body
            .starts_with(b"Invalid request.  The number of bytes uploaded")
    );
    // The length of the body differs from its range.
    assert_eq!(put(&gcs, &session, "bytes 0-9/10", b"short").status, 400);
}

#[test]
fn completion_checks_hash_and_generation() {
    let gcs = Gcs::new();
    let session = start(&gcs, "&ifGenerationMatch=0");
    let finish = |session: &str, hash: &str| {
        let headers = [("content-range", "bytes 0-3/4"), ("x-goog-hash", hash)];
        send(&gcs, "PUT", session, &headers, b"data")
            .status
            .as_u16()
    };
    assert_eq!(finish(&session, "crc32c=AAAAAA=="), 400);
    let right = format!("crc32c={}", crc_text(crc32c(b"data")));
    assert_eq!(finish(&session, &right), 200);
    assert_eq!(finish(&start(&gcs, "&ifGenerationMatch=0"), &right), 412);
    assert_eq!(finish(&start(&gcs, "&ifGenerationMatch=1"), &right), 200);
}

#[test]
fn cancelled_and_forgotten_sessions_are_gone() {
    let gcs = Gcs::new();
    let session = start(&gcs, "");
    assert_eq!(send(&gcs, "DELETE", &session, &[], b"").status, 499);
    assert_eq!(put(&gcs, &session, "bytes */*", b"").status, 404);
    let other = start(&gcs, "");
    assert_ne!(session, other);
    gcs.forget_sessions();
    assert!([404, 410].contains(&put(&gcs, &other, "bytes */*", b"").status.as_u16()));
}

#[test]
fn clients_without_308_get_200() {
    let gcs = Gcs::new();
    let session = start(&gcs, "");
    let headers = [
        ("content-range", "bytes 0-262143/*"),
        ("x-guploader-no-308", "yes"),
    ];
    let response = send(&gcs, "POST", &session, &headers, &[0; UNIT]);
    assert_eq!(seen(&response), (200, Some("bytes=0-262143")));
    assert_eq!(
        header(&response, "x-http-status-code-override"),
        Some("308")
    );
}

#[test]
fn faults_store_less_acknowledge_wrongly_and_lose_bytes() {
    let gcs = Gcs::new();
    let bytes = pattern(2, 2 * UNIT);
    let session = start(&gcs, "");
    let chunk = |range: &str, body: &[u8], fault| {
        let headers = [("content-range", range)];
        let response = send_with_fault(&gcs, "PUT", &session, &headers, body, Some(fault));
        (
            response.status.as_u16(),
            header(&response, "range").map(str::to_owned),
        )
    };
    let all = "bytes 0-524287/*";
    assert_eq!(
        chunk(all, &bytes, ServerFault::StoreAtMost(10)),
        (308, Some("bytes=0-9".to_owned()))
    );
    let more = chunk(all, &bytes, ServerFault::AcknowledgeMore(5));
    assert_eq!(more, (308, Some("bytes=0-524292".to_owned())));
    let less = chunk("bytes */*", b"", ServerFault::AcknowledgeLess(524_288));
    assert_eq!(less, (308, None));
    let lost = chunk("bytes */*", b"", ServerFault::LoseBytes(524_280));
    assert_eq!(lost, (308, Some("bytes=0-7".to_owned())));
    chunk(all, &bytes, ServerFault::FlipBit);
    assert_eq!(put(&gcs, &session, "bytes */524288", b"").status, 200);
    let stored = gcs.objects().get("data", "a/b").unwrap().bytes;
    let corrupt: Vec<usize> = (0..stored.len())
        .filter(|&at| stored[at] != bytes[at])
        .collect();
    assert_eq!(corrupt, [8]);
}

#[test]
fn signed_start_requires_each_signed_header() {
    let gcs = Gcs::new();
    let uri = "/data/a/b?X-Goog-SignedHeaders=host%3Bx-goog-if-generation-match%3Bx-goog-resumable";
    let mut headers = vec![("host", "fake"), ("x-goog-resumable", "start")];
    assert_eq!(send(&gcs, "POST", uri, &headers, b"").status, 400);
    headers.push(("x-goog-if-generation-match", "0"));
    let response = send(&gcs, "POST", uri, &headers, b"");
    assert_eq!(response.status, 201);
    let session = header(&response, "location")
        .unwrap()
        .replace("http://fake", "");
    let end = put(&gcs, &session, "bytes 0-3/4", b"data");
    assert_eq!(end.status, 200);
    assert!(end.body.is_empty());
    assert_eq!(header(&end, "x-goog-stored-content-length"), Some("4"));
}

#[test]
fn xml_api_creates_reads_lists_and_deletes_objects() {
    let gcs = Gcs::new();
    let create = [("x-goog-if-generation-match", "0"), ("x-goog-meta-k", "v")];
    for key in ["a/1", "a/2", "b"] {
        let uri = format!("/data/{key}");
        assert_eq!(send(&gcs, "PUT", &uri, &create, b"0123456789").status, 200);
        assert_eq!(send(&gcs, "PUT", &uri, &create, b"x").status, 412);
    }
    let part = send(&gcs, "GET", "/data/a/1", &[("range", "bytes=2-4")], b"");
    assert_eq!(&part.body[..], b"234");
    assert_eq!(header(&part, "content-range"), Some("bytes 2-4/10"));
    assert_eq!(header(&part, "x-goog-meta-k"), Some("v"));
    assert_eq!(
        send(&gcs, "GET", "/data/a/1", &[("range", "bytes=10-")], b"").status,
        416
    );
    let text =
        |uri: &str| String::from_utf8(send(&gcs, "GET", uri, &[], b"").body.to_vec()).unwrap();
    let first = text("/data?list-type=2&max-keys=1");
    assert!(
        first.contains("<Key>a/1</Key>") && !first.contains("<Key>a/2</Key>"),
        "{first}"
    );
    assert!(first.contains("<NextContinuationToken>a/1<"), "{first}");
    let rest = text("/data?list-type=2&continuation-token=a/1");
    assert!(
        !rest.contains("<Key>a/1</Key>") && rest.contains("<Key>b</Key>"),
        "{rest}"
    );
    let grouped = text("/data?list-type=2&delimiter=/");
    assert_eq!(
        grouped.matches("<Prefix>a/</Prefix>").count(),
        1,
        "{grouped}"
    );
    assert_eq!(send(&gcs, "DELETE", "/data/b", &[], b"").status, 204);
    assert_eq!(send(&gcs, "GET", "/data/b", &[], b"").status, 404);
}
