//! HTTP/1.1 without a client library, to send requests that no library would send.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A response and its body.
#[derive(Debug)]
pub struct HttpResponse {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Whether the body has the announced length.
    pub complete: bool,
}

impl HttpResponse {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(found, _)| found.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Returns the text of the first element `tag`.
    pub fn tag(&self, tag: &str) -> Option<String> {
        self.tags(tag).into_iter().next()
    }

    pub fn tags(&self, tag: &str) -> Vec<String> {
        let text = self.text();
        let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
        let inner = |piece: &str| piece.split_once(&close).map(|(inner, _)| inner.to_owned());
        text.split(&open).skip(1).filter_map(inner).collect()
    }

    /// Returns the error code. Panics if the response is not a complete S3 error.
    pub fn code(&self) -> String {
        let code = self
            .tag("Code")
            .unwrap_or_else(|| panic!("no error in {self:?}"));
        assert!(!self.tag("Message").unwrap().is_empty());
        assert_eq!(
            self.tag("RequestId").as_deref(),
            self.header("x-amz-request-id")
        );
        code
    }

    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.text());
        self
    }

    #[track_caller]
    pub fn expect_error(self, status: u16, code: &str) -> Self {
        assert_eq!(
            (self.status, self.code().as_str()),
            (status, code),
            "{}",
            self.text()
        );
        self
    }
}

fn parse(raw: &[u8]) -> HttpResponse {
    let end = raw
        .windows(4)
        .position(|window| window == b"\r\n\r\n")
        .unwrap_or_else(|| {
            panic!("no response head in {:?}", String::from_utf8_lossy(raw));
        });
    let head = String::from_utf8_lossy(&raw[..end]).into_owned();
    let mut lines = head.split("\r\n");
    let status = lines
        .next()
        .unwrap()
        .split(' ')
        .nth(1)
        .unwrap()
        .parse()
        .unwrap();
    let headers: Vec<_> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let mut response = HttpResponse {
        status,
        headers,
        body: raw[end + 4..].to_vec(),
        complete: true,
    };
    if response.header("transfer-encoding") == Some("chunked") {
        let (body, complete) = dechunk(&response.body);
        (response.body, response.complete) = (body, complete);
    } else if let Some(length) = response.header("content-length") {
        response.complete = response.body.len() == length.parse::<usize>().unwrap();
    }
    response
}

fn dechunk(mut raw: &[u8]) -> (Vec<u8>, bool) {
    let mut body = Vec::new();
    while let Some(line) = raw.windows(2).position(|window| window == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&raw[..line]).unwrap(), 16).unwrap();
        if size == 0 {
            return (body, true);
        }
        body.extend_from_slice(&raw[line + 2..][..size]);
        raw = &raw[line + 2 + size + 2..];
    }
    (body, false)
}

/// Sends raw bytes and reads until the server closes the connection.
pub async fn raw(address: SocketAddr, request: &[u8]) -> HttpResponse {
    let mut socket = TcpStream::connect(address).await.unwrap();
    // A server may respond and close before it has read the whole request.
    let _ = socket.write_all(request).await;
    read_response(&mut socket).await
}

pub async fn read_response(socket: &mut TcpStream) -> HttpResponse {
    let mut response = Vec::new();
    let _ = socket.read_to_end(&mut response).await;
    parse(&response)
}

pub fn head(method: &str, target: &str, headers: &[(&str, &str)]) -> String {
    let mut head =
        format!("{method} {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    head
}

/// Sends one request on a new connection. Adds Content-Length unless the headers frame the body.
pub async fn send(
    address: SocketAddr,
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> HttpResponse {
    let mut headers = headers.to_vec();
    let length = body.len().to_string();
    let framed = headers.iter().any(|(name, _)| {
        name.eq_ignore_ascii_case("content-length")
            || name.eq_ignore_ascii_case("transfer-encoding")
    });
    if !framed && ["PUT", "POST", "PATCH"].contains(&method) {
        headers.push(("Content-Length", &length));
    }
    let mut request = head(method, target, &headers).into_bytes();
    request.extend_from_slice(body);
    raw(address, &request).await
}

/// Encodes a body in HTTP chunks of `size` bytes; the last one has the rest.
pub fn http_chunks(body: &[u8], size: usize) -> Vec<u8> {
    let mut framed = Vec::new();
    for piece in body.chunks(size.max(1)) {
        framed.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
        framed.extend_from_slice(piece);
        framed.extend_from_slice(b"\r\n");
    }
    framed.extend_from_slice(b"0\r\n\r\n");
    framed
}

/// Returns a body of the bytes of [`crate::pattern()`].
pub fn pattern(length: usize) -> Vec<u8> {
    crate::pattern(0, length).into()
}

/// Reads until the server closes the connection.
pub async fn read_to_close(socket: &mut TcpStream) -> Vec<u8> {
    let mut received = Vec::new();
    let _ = socket.read_to_end(&mut received).await;
    received
}

/// A connection for successive requests.
pub struct Connection {
    socket: TcpStream,
    /// Bytes read after the end of the last response.
    buffered: Vec<u8>,
}

impl Connection {
    pub async fn open(address: SocketAddr) -> std::io::Result<Self> {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        let buffered = Vec::new();
        Ok(Self { socket, buffered })
    }

    /// Sends a complete request and reads the complete response. Depends on `method`: a response to HEAD has no body.
    pub async fn exchange(
        &mut self,
        method: &str,
        request: &[u8],
    ) -> std::io::Result<HttpResponse> {
        // A server may respond and close before it has read the whole request.
        let sent = self.socket.write_all(request).await;
        match self.read(method).await {
            Err(error) => Err(sent.err().unwrap_or(error)),
            response => response,
        }
    }

    async fn read_more(&mut self) -> std::io::Result<()> {
        self.buffered.reserve(32 * 1024);
        match self.socket.read_buf(&mut self.buffered).await? {
            0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    async fn read(&mut self, method: &str) -> std::io::Result<HttpResponse> {
        let end = loop {
            if let Some(end) = self
                .buffered
                .windows(4)
                .position(|four| four == b"\r\n\r\n")
            {
                break end + 4;
            }
            self.read_more().await?;
        };
        let mut response = parse_head(&self.buffered[..end])?;
        if response.status == 100 {
            self.buffered.drain(..end);
            return Box::pin(self.read(method)).await;
        }
        let bodiless = method == "HEAD" || response.status == 204 || response.status == 304;
        let mut needed = end;
        if !bodiless && response.header("transfer-encoding") == Some("chunked") {
            loop {
                let (body, complete) = dechunk_prefix(&self.buffered[end..]);
                if let Some(taken) = complete {
                    response.body = body;
                    needed = end + taken;
                    break;
                }
                self.read_more().await?;
            }
        } else if !bodiless {
            let length = response.header("content-length").unwrap_or("0");
            needed += length
                .parse::<usize>()
                .map_err(|_| std::io::Error::other("Content-Length is no number"))?;
            while self.buffered.len() < needed {
                self.read_more().await?;
            }
            response.body = self.buffered[end..needed].to_vec();
        }
        self.buffered.drain(..needed);
        Ok(response)
    }
}

fn parse_head(raw: &[u8]) -> std::io::Result<HttpResponse> {
    let head = String::from_utf8_lossy(raw).into_owned();
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1));
    let status = status.and_then(|text| text.parse().ok());
    Ok(HttpResponse {
        status: status.ok_or_else(|| std::io::Error::other("no status line"))?,
        headers: lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect(),
        body: Vec::new(),
        complete: true,
    })
}

/// Decodes a body in chunks. Returns the bytes so far and, once it is complete, its encoded length.
fn dechunk_prefix(raw: &[u8]) -> (Vec<u8>, Option<usize>) {
    let (mut body, mut offset) = (Vec::new(), 0);
    while let Some(line) = raw[offset..].windows(2).position(|two| two == b"\r\n") {
        let text = String::from_utf8_lossy(&raw[offset..offset + line]).into_owned();
        let Ok(size) = usize::from_str_radix(text.trim(), 16) else {
            return (body, None);
        };
        let data = offset + line + 2;
        if raw.len() < data + size + 2 {
            return (body, None);
        }
        body.extend_from_slice(&raw[data..data + size]);
        offset = data + size + 2;
        if size == 0 {
            return (body, Some(offset));
        }
    }
    (body, None)
}
