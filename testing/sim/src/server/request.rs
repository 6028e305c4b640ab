//! Requests and responses of a [`super::Protocol`].

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use http_body_util::Full;
use percent_encoding::percent_decode_str;

use super::ServerFault;

/// A request with its body.
#[derive(Debug, Clone)]
pub struct HttpRequest {
    /// Method.
    pub method: Method,
    /// Path as sent: percent-encoded, with its leading slash.
    pub path: String,
    /// Decoded names and values of the query, in order.
    pub query: Vec<(String, String)>,
    /// Headers as sent.
    pub headers: HeaderMap,
    /// Received part of the body.
    pub body: Bytes,
    /// Whether the whole body was received. Otherwise the response is dropped.
    pub complete: bool,
    /// Fault of the request. The server injects those of the network, protocols those of the store.
    pub fault: Option<ServerFault>,
    /// Address of the server, `http://127.0.0.1:PORT`.
    pub base: String,
    raw_query: String,
}

impl HttpRequest {
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

    /// Returns method, path and query as sent, without signatures, which differ between runs.
    #[must_use]
    pub fn line(&self) -> String {
        let pairs = self.raw_query.split('&');
        let query: Vec<_> = pairs.filter(|pair| !pair.starts_with("X-Amz-")).collect();
        let query = query.join("&");
        let mark = if query.is_empty() { "" } else { "?" };
        format!("{} {}{mark}{query}", self.method, self.path)
    }

    /// Returns path and query as sent.
    #[must_use]
    pub fn target(&self) -> String {
        let mark = if self.raw_query.is_empty() { "" } else { "?" };
        format!("{}{mark}{}", self.path, self.raw_query)
    }

    /// Returns the first decoded value of that name in the query.
    #[must_use]
    pub fn query(&self, name: &str) -> Option<&str> {
        let pair = self.query.iter().find(|(known, _)| known == name)?;
        Some(&pair.1)
    }

    /// Returns the value of a header, if it is text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Splits the path `/bucket/some/key` into bucket and key, both decoded.
    #[must_use]
    pub fn bucket_and_key(&self) -> (String, String) {
        let path = self.path.trim_start_matches('/');
        let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
        (decode(bucket), decode(key))
    }
}

/// Decodes percent-encoding; invalid UTF-8 becomes replacement characters.
pub(crate) fn decode(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// Response of a protocol.
#[derive(Debug, Clone)]
pub struct HttpResponse {
    /// Status.
    pub status: StatusCode,
    /// Headers. The server adds Content-Length.
    pub headers: HeaderMap,
    /// Body.
    pub body: Bytes,
}

impl HttpResponse {
    /// Creates a response without headers and body.
    ///
    /// # Panics
    /// If `status` is not an HTTP status.
    #[must_use]
    pub fn status(status: u16) -> Self {
        Self {
            status: StatusCode::from_u16(status).expect("tests use valid statuses"),
            headers: HeaderMap::new(),
            body: Bytes::new(),
        }
    }

    /// Adds a header.
    ///
    /// # Panics
    /// If `value` is not valid in a header.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: &str) -> Self {
        let value = HeaderValue::from_str(value).expect("tests use plain text in headers");
        self.headers.insert(HeaderName::from_static(name), value);
        self
    }

    /// Sets the body.
    #[must_use]
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// Converts the response for hyper; with `corrupt`, its body becomes neither JSON nor XML.
    pub(super) fn into_hyper(self, corrupt: bool) -> http::Response<Full<Bytes>> {
        let body = if corrupt {
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
