//! HTTP clients of all origins: request headers, redirects, and checks of responses.

use std::net::SocketAddr;
use std::time::Duration;

use async_trait::async_trait;
use http::header::{ACCEPT_ENCODING, LOCATION};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
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

use super::digest::stated_digest;
use super::odd_pages::with_paths;
use super::response::{Expected, List};
use super::stated_headers::{StatedAttributes, TextAttributes};
use super::tag_document::stated_count;
use crate::error::{OriginError, StatusError, generic_error};
use crate::limits::{
    MAX_LIST_PAGE_BYTES, MAX_REDIRECTS, MAX_RESPONSE_BYTES, MAX_RESPONSE_HEADERS_BYTES,
};
use crate::time::parse_duration;

/// Time to connect to an origin.
const CONNECT: Duration = Duration::from_secs(5);

/// Installs ring as the process's TLS provider unless the program installed another one before.
pub(super) fn install_tls_provider() {
    // Fails only if a provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

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
        // Bytes are kept as sent, with any features of the client.
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

/// Returns the settings of [`client_builder`] for a store's own pool: HTTP/1.1, and no redirects. [`Checked`] follows
/// redirects of reads; a write would send its body elsewhere, and Google uses 308 for "resume incomplete".
pub(super) fn pool(
    connect_timeout: Option<Duration>,
    request_timeout: Option<Duration>,
) -> reqwest::ClientBuilder {
    let builder = client_builder()
        .redirect(Policy::none())
        .connect_timeout(connect_timeout.unwrap_or(CONNECT))
        .user_agent(concat!("bywash/", env!("CARGO_PKG_VERSION")))
        .dns_resolver(Shuffled)
        .http1_only();
    match request_timeout {
        Some(timeout) => builder.timeout(timeout),
        None => builder,
    }
}

/// Connects object_store's clients: over a pool that exists, or each over a new one.
#[derive(Debug, Default)]
pub struct Connector {
    pool: Option<reqwest::Client>,
    request_timeout: Option<Duration>,
}

impl Connector {
    /// Returns a connector for requests that take at most this time, with their bodies.
    #[must_use]
    pub fn with_timeout(request_timeout: Duration) -> Self {
        Self {
            pool: None,
            request_timeout: Some(request_timeout),
        }
    }

    pub(super) fn over(pool: reqwest::Client) -> Self {
        Self {
            pool: Some(pool),
            request_timeout: None,
        }
    }
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let connect_timeout = options.get_config_value(&ClientConfigKey::ConnectTimeout);
        let connect_timeout = connect_timeout.and_then(|text| parse_duration(&text).ok());
        let client = match &self.pool {
            Some(pool) if connect_timeout.is_none_or(|timeout| timeout >= CONNECT) => pool.clone(),
            // Instance metadata, which may be absent, is requested with a shorter timeout.
            _ => pool(connect_timeout, self.request_timeout)
                .build()
                .map_err(|error| generic_error("HTTP", error))?,
        };
        Ok(HttpClient::new(Checked {
            client: HttpClient::new(client),
            typed: self.pool.is_some(),
        }))
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

/// A client of object_store with checked responses. It follows the redirects of reads on their host.
#[derive(Debug)]
struct Checked {
    client: HttpClient,
    /// Whether a status for which object_store has no variant becomes a [`StatusError`]. A client that retries by
    /// itself must see it as a response.
    typed: bool,
}

impl Checked {
    async fn follow(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let is_read = [Method::GET, Method::HEAD].contains(request.method());
        for _ in 0..=MAX_REDIRECTS {
            let response = self.client.execute(request.clone()).await?;
            let Some(next) = redirected(&request, &response).filter(|_| is_read) else {
                return Ok(response);
            };
            *request.uri_mut() = next.map_err(|detail| status_error(response.status(), detail))?;
        }
        let detail = "the server redirects too often".to_owned();
        Err(status_error(StatusCode::LOOP_DETECTED, detail))
    }
}

/// Returns the target of a redirect from `last`; `None` if the response is not one.
pub(super) fn redirect_target(last: &Url, status: StatusCode, headers: &HeaderMap) -> Option<Url> {
    use StatusCode as S;
    let statuses = [
        S::MOVED_PERMANENTLY,
        S::FOUND,
        S::SEE_OTHER,
        S::TEMPORARY_REDIRECT,
        S::PERMANENT_REDIRECT,
    ];
    let location = headers.get(LOCATION)?.to_str().ok()?;
    let target = statuses.contains(&status).then(|| last.join(location).ok());
    target?
}

/// Returns the target of a redirect, if the response is one.
///
/// # Errors
/// If it leads to another host.
fn redirected(request: &HttpRequest, response: &HttpResponse) -> Option<Result<http::Uri, String>> {
    let last = Url::parse(&request.uri().to_string()).ok()?;
    let next = redirect_target(&last, response.status(), response.headers())?;
    Some(if is_same_host(&last, &next) {
        next.as_str()
            .parse()
            .map_err(|_| "a bad address".to_owned())
    } else {
        Err("the server redirects to another host, which the request is not for".to_owned())
    })
}

#[async_trait]
impl HttpService for Checked {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let expected = Expected::of(request.method(), request.headers());
        let object = request.uri().path().to_owned();
        let host = request.uri().host().unwrap_or_default().to_owned();
        let is_data = *request.method() == Method::GET && List::of(&request).is_none();
        let is_head = *request.method() == Method::HEAD;
        if is_data && !is_google(&request) {
            // In addition to the signature, which was computed before and does not cover it.
            let headers = request.headers_mut();
            let identity = HeaderValue::from_static("identity");
            headers.entry(ACCEPT_ENCODING).or_insert(identity);
        }
        let list = List::of(&request);
        let (mut parts, body) = self.follow(request).await?.into_parts();
        let bad = |detail| bad_response(&object, detail);
        expected.check(parts.status, &parts.headers).map_err(bad)?;
        if (is_data || is_head)
            && let Some(digest) = stated_digest(&host, parts.status, &parts.headers)
        {
            parts.extensions.insert(digest);
        }
        if let Some(tags) = stated_count(&parts.headers).filter(|_| is_data || is_head) {
            parts.extensions.insert(tags);
        }
        if let Some(stated) = StatedAttributes::of(&parts.headers).filter(|_| is_data || is_head) {
            parts.extensions.insert(stated);
        }
        if (is_data || is_head)
            && let Some(texts) = TextAttributes::take(&mut parts.headers)
        {
            parts.extensions.insert(texts);
        }
        let body = if !parts.status.is_success() {
            let text = error_text(body).await;
            // A list has no variant for any status: object_store wraps every failure of it into a private type, which is retried. That is
            // right for a conflict only: S3's OperationAborted passes.
            let is_left = match list {
                Some(_) => parts.status == StatusCode::CONFLICT,
                None => HAS_VARIANT.contains(&parts.status),
            };
            if self.typed && !is_left {
                return Err(status_error(parts.status, text));
            }
            HttpResponseBody::from(text)
        } else if is_data {
            body
        } else {
            let whole = Limited::new(body, MAX_LIST_PAGE_BYTES).collect().await;
            let failed = |source| HttpError::new_boxed(HttpErrorKind::Unknown, source);
            let page = whole.map_err(failed)?.to_bytes();
            match list {
                Some(list) => {
                    list.check(&page).map_err(bad)?;
                    if let Some(left_out) = left_out(&parts.headers) {
                        parts.extensions.insert(left_out);
                    }
                    HttpResponseBody::from(with_paths(page))
                }
                None => HttpResponseBody::from(page),
            }
        };
        Ok(HttpResponse::from_parts(parts, body))
    }
}

/// Header of a listing of Bywash's: the number of entries that are left out of it.
pub const LEFT_OUT: HeaderName = HeaderName::from_static("x-bywash-left-out");

/// Entries that a server has left out of a page of a listing, as it states.
#[derive(Debug, Clone, Copy)]
pub(super) struct LeftOutByServer(pub(super) u64);

fn left_out(headers: &HeaderMap) -> Option<LeftOutByServer> {
    let count = headers.get(LEFT_OUT)?.to_str().ok()?;
    count.parse().ok().map(LeftOutByServer)
}

/// Statuses for which object_store has an error variant, except in lists. It would turn any other into a private type.
const HAS_VARIANT: [StatusCode; 6] = [
    StatusCode::NOT_MODIFIED,
    StatusCode::UNAUTHORIZED,
    StatusCode::FORBIDDEN,
    StatusCode::NOT_FOUND,
    StatusCode::CONFLICT,
    StatusCode::PRECONDITION_FAILED,
];

fn status_error(status: StatusCode, detail: String) -> HttpError {
    HttpError::new(HttpErrorKind::Unknown, StatusError::new(status, detail))
}

fn bad_response(object: &str, detail: String) -> HttpError {
    let object = object.to_owned();
    HttpError::new(
        HttpErrorKind::Unknown,
        OriginError::BadResponse { object, detail },
    )
}

/// Google decompresses stored gzip for clients that request identity, and serves no ranges of it.
fn is_google(request: &HttpRequest) -> bool {
    is_google_host(request.uri().host().unwrap_or_default())
}

pub(crate) fn is_google_host(host: &str) -> bool {
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests;
