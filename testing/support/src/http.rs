//! HTTP by hand: what no client library would send must be sendable.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Whether the body was as long as announced.
    pub whole: bool,
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(found, _)| found.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// What is between the first `<tag>` and its end.
    pub fn tag(&self, tag: &str) -> Option<String> {
        self.tags(tag).into_iter().next()
    }

    pub fn tags(&self, tag: &str) -> Vec<String> {
        let text = self.text();
        let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
        let inner = |piece: &str| piece.split_once(&close).map(|(inner, _)| inner.to_owned());
        text.split(&open).skip(1).filter_map(inner).collect()
    }

    /// The error code of the answer, after checking that the answer is a complete error.
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

fn parse(raw: &[u8]) -> Reply {
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
    let mut reply = Reply {
        status,
        headers,
        body: raw[end + 4..].to_vec(),
        whole: true,
    };
    if reply.header("transfer-encoding") == Some("chunked") {
        let (body, whole) = dechunk(&reply.body);
        (reply.body, reply.whole) = (body, whole);
    } else if let Some(length) = reply.header("content-length") {
        reply.whole = reply.body.len() == length.parse::<usize>().unwrap();
    }
    reply
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

/// Sends bytes as they are and reads until the server closes.
pub async fn raw(address: SocketAddr, request: &[u8]) -> Reply {
    let mut socket = TcpStream::connect(address).await.unwrap();
    // A server that has its answer may close before it has read everything.
    let _ = socket.write_all(request).await;
    read_reply(&mut socket).await
}

pub async fn read_reply(socket: &mut TcpStream) -> Reply {
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer).await;
    parse(&answer)
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

/// One request on a connection of its own. Adds Content-Length unless the headers frame the body.
pub async fn send(
    address: SocketAddr,
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Reply {
    let mut headers = headers.to_vec();
    let length = body.len().to_string();
    let framed = headers.iter().any(|(name, _)| {
        name.eq_ignore_ascii_case("content-length")
            || name.eq_ignore_ascii_case("transfer-encoding")
    });
    if !framed && (method == "PUT" || method == "POST") {
        headers.push(("Content-Length", &length));
    }
    let mut request = head(method, target, &headers).into_bytes();
    request.extend_from_slice(body);
    raw(address, &request).await
}

/// A body in HTTP chunks of the sizes given, the last one with the rest.
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

/// Bytes that differ from place to place.
pub fn pattern(length: usize) -> Vec<u8> {
    (0..length as u64)
        .map(|at| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8)
        .collect()
}

/// Reads whatever comes until the server closes.
pub async fn read_to_close(socket: &mut TcpStream) -> Vec<u8> {
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer).await;
    answer
}

/// A connection that carries one request after another.
pub struct Connection {
    socket: TcpStream,
    /// Bytes read beyond the last response.
    ahead: Vec<u8>,
}

impl Connection {
    pub async fn open(address: SocketAddr) -> std::io::Result<Self> {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        let ahead = Vec::new();
        Ok(Self { socket, ahead })
    }

    /// Sends a whole request and reads its whole response. `method` is needed again: a response to HEAD has no body.
    pub async fn exchange(&mut self, method: &str, request: &[u8]) -> std::io::Result<Reply> {
        // A server that has its response may close before it has read everything.
        let sent = self.socket.write_all(request).await;
        match self.read(method).await {
            Err(error) => Err(sent.err().unwrap_or(error)),
            reply => reply,
        }
    }

    async fn more(&mut self) -> std::io::Result<()> {
        self.ahead.reserve(32 * 1024);
        match self.socket.read_buf(&mut self.ahead).await? {
            0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    async fn read(&mut self, method: &str) -> std::io::Result<Reply> {
        let end = loop {
            if let Some(end) = self.ahead.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            self.more().await?;
        };
        let mut reply = parse_head(&self.ahead[..end])?;
        if reply.status == 100 {
            self.ahead.drain(..end);
            return Box::pin(self.read(method)).await;
        }
        let bodiless = method == "HEAD" || reply.status == 204 || reply.status == 304;
        let mut needed = end;
        if !bodiless && reply.header("transfer-encoding") == Some("chunked") {
            loop {
                let (body, whole) = dechunk_prefix(&self.ahead[end..]);
                if let Some(taken) = whole {
                    reply.body = body;
                    needed = end + taken;
                    break;
                }
                self.more().await?;
            }
        } else if !bodiless {
            let length = reply.header("content-length").unwrap_or("0");
            needed += length
                .parse::<usize>()
                .map_err(|_| std::io::Error::other("Content-Length is no number"))?;
            while self.ahead.len() < needed {
                self.more().await?;
            }
            reply.body = self.ahead[end..needed].to_vec();
        }
        self.ahead.drain(..needed);
        Ok(reply)
    }
}

fn parse_head(raw: &[u8]) -> std::io::Result<Reply> {
    let head = String::from_utf8_lossy(raw).into_owned();
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1));
    let status = status.and_then(|text| text.parse().ok());
    Ok(Reply {
        status: status.ok_or_else(|| std::io::Error::other("no status line"))?,
        headers: lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect(),
        body: Vec::new(),
        whole: true,
    })
}

/// The body decoded so far, and how many bytes it took when it is whole.
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
