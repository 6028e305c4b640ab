//! HTTP clients of all origins: request headers, redirects, and checks of responses.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use async_trait::async_trait;
use http::header::ACCEPT_ENCODING;
use http::{HeaderValue, Method};
use http_body_util::{BodyExt, Limited};
use object_store::ClientOptions;
use object_store::client::{
    ClientConfigKey, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest,
    HttpResponse, HttpResponseBody, HttpService,
};
use rand::seq::SliceRandom;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::{Attempt, Policy};
use url::Url;

use super::response::{Expected, List};
use crate::EngineError;
use crate::limits::{
    MAX_LIST_PAGE_BYTES, MAX_REDIRECTS, MAX_RESPONSE_BYTES, MAX_RESPONSE_HEADERS_BYTES,
};
use crate::time::parse_duration;
use crate::upload::http::install_tls_provider;

/// Time to connect to an origin.
const CONNECT: Duration = Duration::from_secs(5);

/// Returns the settings of every HTTP client of an origin and of the command line.
///
/// A URL may be a secret, so no Referer is sent. A redirect to another host is refused: neither signature nor headers
/// were meant for it.
pub fn client_builder() -> reqwest::ClientBuilder {
    install_tls_provider();
    reqwest::Client::builder()
        .connect_timeout(CONNECT)
        .referer(false)
        .redirect(Policy::custom(follow_on_host))
        // The limit of HTTP/1 is the client's default, MAX_RESPONSE_HEADERS. An explicit limit clears a table for each
        // response: an origin that sends endless 100 Continue would occupy a worker for seconds.
        .http2_max_header_list_size(MAX_RESPONSE_HEADERS_BYTES)
        // Bytes are kept as sent, whatever the client's features.
        .no_gzip()
        .no_brotli()
        .no_zstd()
        .no_deflate()
}

fn follow_on_host(attempt: Attempt<'_>) -> reqwest::redirect::Action {
    let Some(last) = attempt.previous().last() else {
        return attempt.follow();
    };
    if !is_same_host(last, attempt.url()) {
        return attempt.error("the server redirects to another host, which the request is not for");
    }
    if attempt.previous().len() > MAX_REDIRECTS {
        return attempt.error("the server redirects too often");
    }
    attempt.follow()
}

/// Returns whether `next` is on the host of `last`, with the same port and no less TLS.
pub(super) fn is_same_host(last: &Url, next: &Url) -> bool {
    let secured = (last.scheme(), next.scheme()) == ("http", "https");
    let same_port = last.port_or_known_default() == next.port_or_known_default();
    let no_ports = last.port().is_none() && next.port().is_none();
    let same_service = match last.scheme() == next.scheme() {
        true => same_port,
        // The usual redirect to TLS.
        false => secured && (no_ports || same_port),
    };
    last.host() == next.host() && same_service
}

/// Creates clients for object_store with the settings of [`client_builder`].
#[derive(Debug, Default)]
pub struct Connector {
    /// Maximum time of one request, with its body; `None` where the caller limits it.
    pub request_timeout: Option<Duration>,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let connect_timeout = options.get_config_value(&ClientConfigKey::ConnectTimeout);
        // Instance metadata, which may be absent, is requested with a shorter timeout.
        let connect_timeout = connect_timeout.and_then(|text| parse_duration(&text).ok());
        let mut builder = client_builder()
            .connect_timeout(connect_timeout.unwrap_or(CONNECT))
            .user_agent(concat!("bywash/", env!("CARGO_PKG_VERSION")))
            .dns_resolver(Shuffled)
            .http1_only();
        if let Some(timeout) = self.request_timeout {
            builder = builder.timeout(timeout);
        }
        let client = builder
            .build()
            .map_err(|error| object_store::Error::Generic {
                store: "HTTP",
                source: Box::new(error),
            })?;
        Ok(HttpClient::new(Checked(HttpClient::new(client))))
    }
}

/// Resolves names to addresses in random order, so that clients spread over a store's front ends.
struct Shuffled;

impl Resolve for Shuffled {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let mut addresses: Vec<SocketAddr> = found.collect();
            addresses.shuffle(&mut rand::rng());
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

/// A client of object_store with checked responses.
#[derive(Debug)]
struct Checked(HttpClient);

#[async_trait]
impl HttpService for Checked {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let expected = Expected::of(request.method(), request.headers());
        let object = request.uri().path().to_owned();
        let is_data = *request.method() == Method::GET && List::of(&request).is_none();
        if is_data && !is_google(&request) {
            // Besides the signature, which was computed before and does not cover it.
            let headers = request.headers_mut();
            let identity = HeaderValue::from_static("identity");
            headers.entry(ACCEPT_ENCODING).or_insert(identity);
        }
        let list = List::of(&request);
        let (parts, body) = self.0.execute(request).await?.into_parts();
        let bad = |detail| bad_response(&object, detail);
        expected.check(parts.status, &parts.headers).map_err(bad)?;
        let body = if !parts.status.is_success() {
            HttpResponseBody::from(error_text(body).await)
        } else if is_data {
            body
        } else {
            let whole = Limited::new(body, MAX_LIST_PAGE_BYTES).collect().await;
            let failed = |source| HttpError::new_boxed(HttpErrorKind::Unknown, source);
            let page = whole.map_err(failed)?.to_bytes();
            if let Some(list) = list {
                list.check(&page).map_err(bad)?;
            }
            HttpResponseBody::from(page)
        };
        Ok(HttpResponse::from_parts(parts, body))
    }
}

fn bad_response(object: &str, detail: String) -> HttpError {
    let object = object.to_owned();
    HttpError::new(
        HttpErrorKind::Unknown,
        EngineError::BadResponse { object, detail },
    )
}

/// Google decompresses stored gzip for clients that ask for identity, and serves no ranges of it.
fn is_google(request: &HttpRequest) -> bool {
    let host = request.uri().host().unwrap_or_default();
    host == "googleapis.com" || host.ends_with(".googleapis.com")
}

/// Reads the beginning of an error response. If it ends early, its status still counts.
async fn error_text(body: HttpResponseBody) -> String {
    let mut body = std::pin::pin!(body);
    let mut text = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        let piece = frame.into_data().unwrap_or_default();
        let room = MAX_RESPONSE_BYTES - text.len();
        text.extend_from_slice(&piece[..piece.len().min(room)]);
        if text.len() == MAX_RESPONSE_BYTES {
            break;
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// Hosts to which redirects of a web origin are followed; never from `https` to `http`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Redirects {
    /// Only the host of the URL, by name and port.
    SameHost,
    /// Any host. The URL's query and user info and the bucket's headers are not sent there.
    Any,
}

impl std::str::FromStr for Redirects {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "same-host" => Ok(Self::SameHost),
            "any" => Ok(Self::Any),
            other => Err(format!(
                "redirects {other:?} is not known; write same-host or any"
            )),
        }
    }
}

impl fmt::Display for Redirects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SameHost => "same-host",
            Self::Any => "any",
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests;
