//! Requests and replies as protocols see them.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use http_body_util::Full;
use percent_encoding::percent_decode_str;

use super::ServerFault;

/// A request, its body read.
#[derive(Debug, Clone)]
pub struct Asked {
    /// As sent.
    pub method: Method,
    /// As sent, percent-encoded, with the slash it begins with.
    pub path: String,
    /// Names and values, decoded, in order.
    pub query: Vec<(String, String)>,
    /// As sent.
    pub headers: HeaderMap,
    /// What came of the body.
    pub body: Bytes,
    /// The body came whole. Otherwise nobody reads the reply.
    pub complete: bool,
    /// What goes wrong. The server sees to whatever a network can do; protocols look for the others.
    pub fault: Option<ServerFault>,
    /// The server's own address, `http://127.0.0.1:PORT`.
    pub base: String,
    raw_query: String,
}

impl Asked {
    pub(super) fn new(head: http::request::Parts, base: String) -> Self {
        let raw_query = head.uri.query().unwrap_or_default().to_owned();
        let query = raw_query
            .split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| {
                let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                (
                    decode(&name.replace('+', " ")),
                    decode(&value.replace('+', " ")),
                )
            })
            .collect();
        Self {
            method: head.method,
            path: head.uri.path().to_owned(),
            query,
            headers: head.headers,
            body: Bytes::new(),
            complete: true,
            fault: None,
            base,
            raw_query,
        }
    }

    /// Method, path and query as sent, but for signatures, which no two runs share.
    #[must_use]
    pub fn line(&self) -> String {
        let pairs = self.raw_query.split('&');
        let query: Vec<_> = pairs.filter(|pair| !pair.starts_with("X-Amz-")).collect();
        let query = query.join("&");
        let mark = if query.is_empty() { "" } else { "?" };
        format!("{} {}{mark}{query}", self.method, self.path)
    }

    /// Path and query as sent.
    #[must_use]
    pub fn target(&self) -> String {
        let mark = if self.raw_query.is_empty() { "" } else { "?" };
        format!("{}{mark}{}", self.path, self.raw_query)
    }

    /// The query's first value of that name, decoded.
    #[must_use]
    pub fn query(&self, name: &str) -> Option<&str> {
        let pair = self.query.iter().find(|(known, _)| known == name)?;
        Some(&pair.1)
    }

    /// A header's text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The path cut at the slash after its first piece, both decoded: `/bucket/some/key`.
    #[must_use]
    pub fn bucket_and_key(&self) -> (String, String) {
        let path = self.path.trim_start_matches('/');
        let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
        (decode(bucket), decode(key))
    }
}

/// Percent-decoded; bytes that are no UTF-8 become marks of replacement.
pub(crate) fn decode(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// What a protocol answers.
#[derive(Debug, Clone)]
pub struct Reply {
    /// The status.
    pub status: StatusCode,
    /// Content-Length comes by itself.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

impl Reply {
    /// Without headers and body.
    ///
    /// # Panics
    /// If `status` is no status.
    #[must_use]
    pub fn status(status: u16) -> Self {
        Self {
            status: StatusCode::from_u16(status).expect("a test names statuses that exist"),
            headers: HeaderMap::new(),
            body: Bytes::new(),
        }
    }

    /// Adds a header.
    ///
    /// # Panics
    /// If the text cannot stand in a header.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: &str) -> Self {
        let value = HeaderValue::from_str(value).expect("a test's headers are plain text");
        self.headers.insert(HeaderName::from_static(name), value);
        self
    }

    /// Sets the body.
    #[must_use]
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// As hyper sends it; with `garbled`, a body of the same status that is neither JSON nor XML.
    pub(super) fn response(self, garbled: bool) -> http::Response<Full<Bytes>> {
        let body = if garbled {
            Bytes::from_static(b"{\"<garb")
        } else {
            self.body
        };
        let mut response = http::Response::new(Full::new(body));
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        response
    }
}
