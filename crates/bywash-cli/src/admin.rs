//! Client of the admin endpoints of a running server; all verbs that ask a server use it.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use bywash::origin::client_builder;
use bywash_console::RefusedLines;
use reqwest::{Client, Method, RequestBuilder, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use url::Url;

use crate::failure::{Failure, Kind};
use crate::serve::data_dir::{Credentials, Session};

/// Max time from a request to the last byte of its response: enough for a large export.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(300);

/// Max time of a request whose work grows with the server's memory.
const LONG_TIMEOUT: Duration = Duration::from_secs(3600);

/// Sends requests to the admin address of one server, with its key pair.
///
/// The key pair must not leave this machine unencrypted. So the address is loopback, no proxy of the environment is used,
/// and redirects stay on the address.
#[derive(Debug)]
pub(crate) struct AdminClient {
    client: Client,
    address: SocketAddr,
    /// `None` if no data folder was found: an anonymous server needs none.
    credentials: Option<Credentials>,
}

impl AdminClient {
    /// Finds the server of `data_dir`, or takes the one at `address`.
    pub(crate) fn find(data_dir: &Path, address: Option<SocketAddr>) -> Result<Self, Failure> {
        let session = Session::read(data_dir);
        let (address, session) = match (address, session) {
            (Some(address), session) => (address, session.ok()),
            (None, session) => {
                let session = session?;
                let address = session.admin.ok_or_else(|| {
                    Failure::usage(format!(
                        "{} does not name the admin address of its server; give --admin-addr, or restart the server",
                        data_dir.display()
                    ))
                })?;
                (address, Some(session))
            }
        };
        if !address.ip().is_loopback() {
            return Err(Failure::usage(format!(
                "the admin address {address} is not loopback; run this on the server's machine"
            )));
        }
        let client = client_builder()
            .no_proxy()
            .timeout(RESPONSE_TIMEOUT)
            .build()
            .map_err(|error| Failure::failed(format!("cannot make an HTTP client: {error}")))?;
        Ok(Self {
            client,
            address,
            credentials: session.map(|session| session.credentials),
        })
    }

    /// The server's address, for messages.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends a GET and parses the JSON of its response.
    pub(crate) async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, &str)],
    ) -> Result<T, Failure> {
        let request = self.request(Method::GET, path, query)?;
        self.parsed(&self.send(request).await?)
    }

    /// Sends a POST of JSON and parses the JSON of its response.
    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &serde_json::Value,
    ) -> Result<T, Failure> {
        let request = self
            .request(Method::POST, path, &[])?
            .header("content-type", "application/json")
            .timeout(LONG_TIMEOUT)
            .body(body.to_string());
        self.parsed(&self.send(request).await?)
    }

    fn parsed<T: DeserializeOwned>(&self, body: &[u8]) -> Result<T, Failure> {
        serde_json::from_slice(body).map_err(|error| {
            Failure::failed(format!(
                "{} is no server of this version: {error}",
                self.address
            ))
        })
    }

    /// Begins a request to `path`, with the key pair.
    pub(crate) fn request(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, &str)],
    ) -> Result<RequestBuilder, Failure> {
        let text = format!("http://{}{path}", self.address);
        let mut url =
            Url::parse(&text).map_err(|error| Failure::usage(format!("{text}: {error}")))?;
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let request = self.client.request(method, url);
        Ok(match &self.credentials {
            Some(pair) => request.basic_auth(&pair.access_key, Some(&pair.secret_key)),
            None => request,
        })
    }

    /// Sends a request and returns the body of its response. Any status but success is a failure with the server's reason.
    pub(crate) async fn send(&self, request: RequestBuilder) -> Result<Bytes, Failure> {
        let unreachable = |error: reqwest::Error| {
            let text = format!(
                "no server responds at {}: {error}; start one with bywash serve, or name its --data-dir",
                self.address
            );
            Failure::new(Kind::Unreachable, text)
        };
        let response = request.send().await.map_err(unreachable)?;
        let status = response.status();
        let body = response.bytes().await.map_err(unreachable)?;
        if status.is_success() {
            return Ok(body);
        }
        let kind = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Kind::Denied,
            StatusCode::NOT_FOUND => Kind::NotFound,
            StatusCode::BAD_REQUEST => Kind::Usage,
            _ => Kind::Failed,
        };
        Err(Failure::new(kind, reason(&body)))
    }
}

/// Body of a refused request.
#[derive(Deserialize)]
struct Refusal {
    error: String,
}

/// The reason that a server gives for a refusal, as text.
fn reason(body: &[u8]) -> String {
    if let Ok(lines) = serde_json::from_slice::<RefusedLines>(body) {
        return lines.to_string();
    }
    let refusal: Result<Refusal, _> = serde_json::from_slice(body);
    refusal.map_or_else(
        |_| String::from_utf8_lossy(body).trim_end().to_owned(),
        |refusal| refusal.error,
    )
}
