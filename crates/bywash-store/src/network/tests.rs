use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::digest::ContentDigest;
use crate::limits::MAX_RESPONSE_HEADERS;

/// Responds to each request with a list of that many bytes.
#[derive(Debug)]
struct Body(usize);

#[async_trait]
impl HttpService for Body {
    async fn call(&self, _: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (start, end) = ("<ListBucketResult>", "</ListBucketResult>");
        let blanks = " ".repeat(self.0 - start.len() - end.len());
        let page = format!("{start}{blanks}{end}");
        Ok(HttpResponse::new(HttpResponseBody::from(page)))
    }
}

fn get(url: &str) -> HttpRequest {
    let request = http::Request::get(url);
    request
        .body(object_store::client::HttpRequestBody::empty())
        .unwrap()
}

#[tokio::test]
async fn list_page_longer_than_the_limit_is_rejected() {
    let length = async |body: usize| {
        let client = Checked {
            client: HttpClient::new(Body(body)),
            typed: true,
        };
        let response = client.call(get("http://h/bucket?list-type=2")).await?;
        let page = response.into_body().bytes().await?;
        Ok::<_, HttpError>(page.len())
    };
    let at_limit = length(MAX_LIST_PAGE_BYTES).await;
    assert_eq!(at_limit.unwrap(), MAX_LIST_PAGE_BYTES);
    assert!(length(MAX_LIST_PAGE_BYTES + 1).await.is_err());
}

/// Accepts one connection, passes it to `respond`, and returns the address.
async fn serve_once<F>(respond: impl FnOnce(TcpStream) -> F + Send + 'static) -> String
where
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        // A client that refuses the response closes the connection.
        let _ = respond(stream).await;
    });
    format!("http://{address}/")
}

#[tokio::test]
async fn response_with_more_headers_than_the_limit_is_rejected() {
    let headers = async |count: usize| {
        let url = serve_once(async move |mut stream: TcpStream| {
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await?;
            let more = "x: y\r\n".repeat(count - 1);
            let response = format!("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n{more}\r\n");
            stream.write_all(response.as_bytes()).await
        });
        let client = Connector::default().connect(&ClientOptions::new()).unwrap();
        let response = client.execute(get(&url.await)).await?;
        Ok::<_, HttpError>(response.headers().len())
    };
    let at_limit = headers(MAX_RESPONSE_HEADERS).await;
    assert_eq!(at_limit.unwrap(), MAX_RESPONSE_HEADERS);
    assert!(headers(MAX_RESPONSE_HEADERS + 1).await.is_err());
}

const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const CONTINUATION: u8 = 9;

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend_from_slice(&[kind, flags, 0, 0, 0, stream]);
    frame.extend_from_slice(payload);
    frame
}

/// Writes a response with 200 and `count` headers of `HEADER_BYTES`, as RFC 9113 counts them.
async fn respond_by_http2(mut stream: TcpStream, count: usize) -> io::Result<()> {
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).await?;
    let mut preface = [0; 24];
    stream.read_exact(&mut preface).await?;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        stream.read_exact(&mut vec![0; length as usize]).await?;
        if head[3] == SETTINGS && head[4] == 0 {
            stream.write_all(&frame(SETTINGS, 1, 0, &[])).await?;
        }
        if head[3] == HEADERS {
            break;
        }
    }
    // `:status: 200` by its number in the table, then names and values as they are.
    let mut block = vec![0x88];
    for _ in 0..count {
        block.extend_from_slice(&[0, 1, b'x', 91]);
        block.extend_from_slice(&[b'y'; 91]);
    }
    let pieces: Vec<_> = block.chunks(16 << 10).collect();
    for (number, piece) in pieces.iter().enumerate() {
        // The stream ends with the headers, and they with the last piece.
        let (kind, ends_stream) = match number {
            0 => (HEADERS, 1),
            _ => (CONTINUATION, 0),
        };
        let ends_headers = if number + 1 == pieces.len() { 4 } else { 0 };
        let piece = frame(kind, ends_stream | ends_headers, 1, piece);
        stream.write_all(&piece).await?;
    }
    // Waits until the client has its response.
    stream.read_to_end(&mut Vec::new()).await.map(drop)
}

/// Name, value and 32 bytes: `x` and 91 of `y`.
const HEADER_BYTES: usize = 1 + 91 + 32;

#[tokio::test]
async fn http2_headers_longer_than_the_limit_are_rejected() {
    let headers = async |count: usize| {
        let url = serve_once(move |stream| respond_by_http2(stream, count)).await;
        let client = client_builder().http2_prior_knowledge().build().unwrap();
        let response = client.get(url).send().await?;
        Ok::<_, reqwest::Error>(response.headers().get_all("x").iter().count())
    };
    // In addition to the status: 7, 3 and 32 bytes.
    let max = (MAX_RESPONSE_HEADERS_BYTES as usize - 42) / HEADER_BYTES;
    assert_eq!(headers(max).await.unwrap(), max);
    assert!(headers(max + 1).await.is_err());
}

#[tokio::test]
async fn read_has_the_digest_that_its_response_states() {
    let digest = async |method: Method| {
        let url = serve_once(async |mut stream: TcpStream| {
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await?;
            let response =
                "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nx-goog-hash: crc32c=4waSgw==\r\n\r\n";
            stream.write_all(response.as_bytes()).await
        });
        let client = Connector::default().connect(&ClientOptions::new()).unwrap();
        let mut request = get(&url.await);
        *request.method_mut() = method;
        let response = client.execute(request).await.unwrap();
        response.extensions().get::<ContentDigest>().copied()
    };
    let stated = Some(ContentDigest::Crc32c(0xE306_9283));
    assert_eq!(digest(Method::GET).await, stated);
    assert_eq!(digest(Method::HEAD).await, stated);
    assert_eq!(digest(Method::PUT).await, None, "not a read");
}
