//! The JSON API of Google's storage: batches.

use bywash_gateway::GcsConfig;
use serde_json::Value;

use crate::gcs::{document, refused};
use crate::gcs_server::GcsServer;
use crate::http::HttpResponse;

const KIND: [(&str, &str); 1] = [("Content-Type", "multipart/mixed; boundary=\"===b==\"")];

/// A batch of these calls: a request line, and a body.
fn batch(calls: &[(String, &str)]) -> String {
    let mut batch = String::new();
    for (number, (line, body)) in calls.iter().enumerate() {
        batch += &format!(
            "--===b==\nContent-Type: application/http\nMIME-Version: 1.0\nContent-ID: <id+{number}>\n\n{line} HTTP/1.1\n\
             Accept: application/json\nContent-Length: {}\n\n{body}\n",
            body.len()
        );
    }
    batch + "--===b==--"
}

async fn send(server: &GcsServer, calls: &[(String, &str)]) -> HttpResponse {
    let batch = batch(calls);
    let target = "/batch/storage/v1";
    server.post(target, &KIND, batch.as_bytes()).await
}

/// Returns status and document of each response, and checks their ids.
fn responses(response: &HttpResponse) -> Vec<(u16, Value)> {
    let kind = response.header("content-type").unwrap();
    let (_, boundary) = kind.split_once("boundary=").unwrap();
    let text = response.text();
    let parts: Vec<_> = text.split(&format!("--{boundary}")).collect();
    assert_eq!((parts[0], parts[parts.len() - 1]), ("", "--\r\n"));
    let parts = parts[1..parts.len() - 1].iter().enumerate();
    let part = |(number, part): (usize, &&str)| {
        let (of_part, rest) = part.split_once("\r\n\r\n").unwrap();
        assert!(of_part.contains(&format!("Content-ID: <response-id+{number}>")));
        let (head, body) = rest.split_once("\r\n\r\n").unwrap();
        let status = head.strip_prefix("HTTP/1.1 ").unwrap()[..3].parse();
        let body = body.strip_suffix("\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}", body.len())));
        (
            status.unwrap(),
            serde_json::from_str(body).unwrap_or_default(),
        )
    };
    parts.map(part).collect()
}

#[tokio::test]
async fn each_call_of_a_batch_has_its_response() {
    let server = GcsServer::start().await;
    for key in ["a", "b/c", "d"] {
        server.put_object("folder", key, b"x").await;
    }
    let object = |key: &str| format!("/storage/v1/b/folder/o/{key}");
    let calls = [
        // A client names the whole address.
        (format!("GET http://{}{}", server.address, object("a")), ""),
        (format!("DELETE {}", object("b%2Fc")), ""),
        (format!("DELETE {}", object("absent")), ""),
        (
            format!("PATCH {}?ifMetagenerationMatch=1", object("d")),
            r#"{"metadata":{"a":"1"}}"#,
        ),
        (format!("GET {}?alt=media", object("a")), ""),
        ("GET /storage/v1/b/folder/o".to_owned(), ""),
        ("POST /batch/storage/v1".to_owned(), ""),
        ("nonsense".to_owned(), ""),
        ("GET /storage/v1/b/folder".to_owned(), ""),
    ];
    let response = send(&server, &calls).await.expect(200);
    let found = responses(&response);
    let statuses: Vec<u16> = found.iter().map(|(status, _)| *status).collect();
    assert_eq!(statuses, [200, 204, 404, 200, 400, 400, 400, 400, 200]);
    assert_eq!(
        (&found[0].1["name"], &found[0].1["size"]),
        (&"a".into(), &"1".into())
    );
    let link = found[0].1["selfLink"].as_str().unwrap();
    // As the client of the batch addressed the server.
    assert_eq!(link, "http://127.0.0.1/storage/v1/b/folder/o/a");
    assert_eq!(found[2].1["error"]["errors"][0]["reason"], "notFound");
    assert_eq!(found[3].1["metadata"]["a"], "1");
    refused(server.get(&object("b%2Fc")).await, 404, "notFound");
    let changed = document(&server.get(&object("d")).await.expect(200));
    assert_eq!(changed["metageneration"], "2");
}

#[tokio::test]
async fn hundred_calls_are_served_in_order_and_more_are_refused() {
    let server = GcsServer::start().await;
    let call = |number: usize| (format!("GET /storage/v1/b/folder/o/{number}"), "");
    let calls: Vec<_> = (0..101).map(call).collect();
    for number in (0..100).step_by(2) {
        server.put_object("folder", &number.to_string(), b"x").await;
    }
    let found = responses(&send(&server, &calls[..100]).await.expect(200));
    assert_eq!(found.len(), 100);
    for (number, (status, found)) in found.iter().enumerate() {
        assert_eq!(*status, if number % 2 == 0 { 200 } else { 404 });
        if number % 2 == 0 {
            assert_eq!(found["name"], number.to_string());
        }
    }
    refused(send(&server, &calls).await, 400, "invalid");
}

#[tokio::test]
async fn batches_that_are_none_or_too_long_are_refused() {
    let server = GcsServer::start().await;
    let target = "/batch/storage/v1";
    refused(server.post(target, &[], b"x").await, 400, "invalid");
    refused(server.post(target, &KIND, b"x").await, 400, "invalid");
    let long = format!("{}--===b==--", " ".repeat(1 << 20));
    refused(
        server.post(target, &KIND, long.as_bytes()).await,
        400,
        "invalid",
    );
}

#[tokio::test]
async fn response_that_is_too_long_for_a_batch_is_named() {
    let server = GcsServer::start().await;
    server.put_object("folder", "key", b"x").await;
    let object = "/storage/v1/b/folder/o/key";
    let long = format!(r#"{{"contentDisposition":"{}"}}"#, "x".repeat(17 << 10));
    let changed = server.send("PATCH", object, &[], long.as_bytes()).await;
    changed.expect(200);
    let response = send(&server, &[(format!("GET {object}"), "")]).await;
    let found = responses(&response.expect(200));
    assert_eq!(found[0].0, 400);
    let message = found[0].1["error"]["message"].as_str().unwrap();
    assert!(message.contains("request of its own"), "{message}");
}

#[tokio::test]
async fn calls_of_a_batch_are_not_admitted_where_requests_are_not() {
    let mut config = GcsConfig::anonymous("");
    config.anonymous = false;
    let server = GcsServer::start_with(config).await;
    let calls = [("DELETE /storage/v1/b/folder".to_owned(), "")];
    refused(send(&server, &calls).await, 401, "required");
}
