#![allow(clippy::unwrap_used, reason = "tests")]

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::error_class::is_transient;

/// Listens, and hands its one connection to `serve`.
async fn server<F>(serve: impl FnOnce(TcpStream) -> F + Send + 'static) -> Url
where
    F: Future<Output = ()> + Send,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (connection, _) = listener.accept().await.unwrap();
        serve(connection).await;
    });
    format!("http://{address}/upload?upload_id=SECRET")
        .parse()
        .unwrap()
}

/// Reads a request's head and as much body as it announces.
async fn read_request(connection: &mut TcpStream) -> (String, Vec<u8>) {
    let mut all = Vec::new();
    loop {
        let end = all.windows(4).position(|window| window == b"\r\n\r\n");
        if let Some(end) = end {
            let head = String::from_utf8(all[..end].to_vec())
                .unwrap()
                .to_lowercase();
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "))
                .map_or(0, |length| length.parse().unwrap());
            let mut body = all.split_off(end + 4);
            let read = body.len();
            body.resize(length, 0);
            connection.read_exact(&mut body[read..]).await.unwrap();
            return (head, body);
        }
        assert_ne!(connection.read_buf(&mut all).await.unwrap(), 0);
    }
}

#[tokio::test]
async fn pieces_leave_in_order_under_their_length() {
    let (send, receive) = tokio::sync::oneshot::channel();
    let url = server(async move |mut connection| {
        send.send(read_request(&mut connection).await).unwrap();
        let response = b"HTTP/1.1 308 Resume\r\nrange: bytes=0-9\r\ncontent-length: 5\r\n\r\nhello";
        connection.write_all(response).await.unwrap();
    })
    .await;
    let long: Bytes = (0..STEP_BYTES + 7).map(|at| (at % 251) as u8).collect();
    let pieces = vec![Bytes::from_static(b"head"), Bytes::new(), long.clone()];
    let request = Request::new(Method::PUT)
        .header(
            http::header::CONTENT_RANGE,
            HeaderValue::from_static("bytes */*"),
        )
        .body(pieces)
        .max_response_bytes(4);
    let response = HttpClient::new("test")
        .unwrap()
        .send(url, request)
        .await
        .unwrap();
    assert_eq!(response.status.as_u16(), 308);
    assert_eq!(response.header("range"), Some("bytes=0-9"));
    assert_eq!(&response.body[..], b"hell");
    let (head, body) = receive.await.unwrap();
    assert!(head.contains("content-range: bytes */*"), "{head}");
    assert!(!head.contains("transfer-encoding"), "{head}");
    assert_eq!(&body[..4], b"head");
    assert_eq!(body[4..], long[..]);
}

#[tokio::test]
async fn silent_server_is_a_transient_failure() {
    let (held, release) = tokio::sync::oneshot::channel::<()>();
    let url = server(async move |mut connection| {
        read_request(&mut connection).await;
        let _ = release.await;
    })
    .await;
    let client = HttpClient::new("test").unwrap();
    let request = Request::new(Method::PUT).stall(Duration::from_millis(25));
    let error = client.send(url, request).await.unwrap_err();
    assert!(
        error.to_string().contains("no byte moved for 25 ms"),
        "{error}"
    );
    assert!(is_transient(&error));
    drop(held);
}

#[tokio::test]
async fn errors_and_debug_output_name_no_address() {
    let url = server(async move |mut connection| {
        read_request(&mut connection).await;
    })
    .await;
    let request = Request::new(Method::PUT);
    assert!(!format!("{request:?}").contains("SECRET"));
    let error = HttpClient::new("test")
        .unwrap()
        .send(url, request)
        .await
        .unwrap_err();
    assert!(is_transient(&error), "{error}");
    for text in [error.to_string(), format!("{error:?}")] {
        assert!(
            !text.contains("SECRET") && !text.contains("127.0.0.1"),
            "{text}"
        );
    }
}

#[test]
fn status_maps_to_the_matching_error() {
    let error = |status: u16| {
        let response = Response {
            status: StatusCode::from_u16(status).unwrap(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
        };
        response.error("GCS", "upload", "a/b", "reason")
    };
    let odd = Response {
        status: StatusCode::SERVICE_UNAVAILABLE,
        headers: HeaderMap::new(),
        body: Bytes::new(),
    };
    let odd = odd.error("GCS", "upload", "status 404", "reason");
    assert!(is_transient(&odd), "{odd}");
    assert!(matches!(error(404), Error::NotFound { .. }));
    assert!(matches!(error(412), Error::Precondition { .. }));
    assert!(matches!(error(401), Error::Unauthenticated { .. }));
    assert!(matches!(error(403), Error::PermissionDenied { .. }));
    for transient in [408, 429, 500, 502, 503, 504] {
        assert!(is_transient(&error(transient)), "{transient}");
    }
    assert!(!is_transient(&error(400)));
    let text = error(503).to_string();
    let words = "status 503 Service Unavailable: upload a/b: reason";
    assert!(text.ends_with(words), "{text}");
}

#[tokio::test]
async fn request_without_a_body_states_its_length_where_stores_require_it() {
    for (method, states) in [
        (Method::PUT, true),
        (Method::POST, true),
        (Method::GET, false),
        (Method::DELETE, false),
    ] {
        let (sent, receive) = tokio::sync::oneshot::channel();
        let url = server(async move |mut connection| {
            let _ = sent.send(read_request(&mut connection).await);
        })
        .await;
        let request = Request::new(method.clone());
        // There is no response.
        let _ = HttpClient::new("test").unwrap().send(url, request).await;
        let (head, _) = receive.await.unwrap();
        assert_eq!(head.contains("content-length: 0"), states, "{head}");
    }
}
