//! The checks against what other sites make a browser do.
//!
//! A browser lets a page of `http://evil.example` read what `http://evil.example` answers, even
//! after that name has been pointed at 127.0.0.1. What such a request cannot change is the host it
//! names. So only requests that name a loopback host are answered.
//!
//! A page elsewhere can also send a form here, without reading the answer. Browsers say of such a request where it comes from;
//! what changes anything is refused then.

use std::net::{IpAddr, Ipv6Addr};

use axum::extract::Request;
use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, Method, StatusCode, Version};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// Answers 403 unless every host the request names is loopback.
///
/// A request of HTTP/1.0 that names none passes: browsers always send one, plain health checks do not. Answers 400 to one of HTTP/1.1
/// without a host, or with two.
pub(crate) async fn require_loopback(request: Request, next: Next) -> Response {
    let headers = request.headers().get_all(HOST).iter();
    let count = request.headers().get_all(HOST).iter().count();
    if count > 1 || (count == 0 && request.version() == Version::HTTP_11) {
        return (StatusCode::BAD_REQUEST, "send one Host header\n").into_response();
    }
    let named = headers.map(|value| value.to_str().unwrap_or_default());
    let named = named.chain(
        request
            .uri()
            .authority()
            .map(|authority| authority.as_str()),
    );
    for host in named {
        if !is_loopback(host) {
            tracing::warn!(
                host,
                path = request.uri().path(),
                "refused an admin request that names a foreign host"
            );
            return (
                StatusCode::FORBIDDEN,
                "the admin endpoints answer only to a loopback host name\n",
            )
                .into_response();
        }
    }
    next.run(request).await
}

/// Answers 403 to a request that may change something and comes from a page of another site.
///
/// Programs send no `Origin`, so they pass; so do pages of this server.
pub(crate) async fn refuse_other_sites(request: Request, next: Next) -> Response {
    let changes = !matches!(*request.method(), Method::GET | Method::HEAD);
    if changes && comes_from_elsewhere(request.headers()) {
        tracing::warn!(
            path = request.uri().path(),
            "refused a request that another site's page made"
        );
        return (
            StatusCode::FORBIDDEN,
            "requests from pages of other sites are refused\n",
        )
            .into_response();
    }
    next.run(request).await
}

fn comes_from_elsewhere(headers: &HeaderMap) -> bool {
    let host = headers.get(HOST).map(|host| host.as_bytes());
    let is_ours = |origin: &[u8]| {
        origin
            .strip_prefix(b"http://")
            .is_some_and(|origin| Some(origin) == host)
    };
    headers
        .get_all(ORIGIN)
        .iter()
        .any(|origin| !is_ours(origin.as_bytes()))
}

/// Whether `host`, as in a `Host` header, with or without port, can only mean this machine.
fn is_loopback(host: &str) -> bool {
    if let Some(rest) = host.strip_prefix('[') {
        let Some((address, port)) = rest.split_once(']') else {
            return false;
        };
        return is_port(port)
            && address
                .parse::<Ipv6Addr>()
                .is_ok_and(|address| address.is_loopback());
    }
    let (name, port) = host
        .find(':')
        .map_or((host, ""), |colon| host.split_at(colon));
    is_port(port)
        && (name.eq_ignore_ascii_case("localhost")
            || name
                .parse::<IpAddr>()
                .is_ok_and(|address| address.is_loopback()))
}

/// Nothing, or a colon and a port number.
fn is_port(text: &str) -> bool {
    text.is_empty()
        || text
            .strip_prefix(':')
            .is_some_and(|port| port.parse::<u16>().is_ok())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn other_sites_are_told_by_their_origin() {
        let headers = |origin: Option<&str>| {
            let host = (HOST, "127.0.0.1:8422".parse().unwrap());
            let origin = origin.map(|origin| (ORIGIN, origin.parse().unwrap()));
            [host].into_iter().chain(origin).collect::<HeaderMap>()
        };
        for ours in [None, Some("http://127.0.0.1:8422")] {
            assert!(!comes_from_elsewhere(&headers(ours)), "{ours:?}");
        }
        for other in [
            "null",
            "http://evil.example",
            "http://127.0.0.1:8423",
            "https://127.0.0.1:8422",
            "http://127.0.0.1:84220",
            "",
        ] {
            assert!(comes_from_elsewhere(&headers(Some(other))), "{other}");
        }
    }

    #[test]
    fn only_loopback_names_pass() {
        for host in [
            "localhost",
            "LocalHost:8422",
            "127.0.0.1",
            "127.0.0.1:8422",
            "127.8.9.1:1",
            "[::1]",
            "[::1]:8422",
        ] {
            assert!(is_loopback(host), "{host}");
        }
        let foreign = [
            "",
            "evil.example",
            "evil.example:8422",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "127.0.0.1@evil.example",
            "localhost:8422:evil",
            "localhost:evil",
            "10.0.0.1:8422",
            "0.0.0.0:8422",
            "::1",
            "[::1",
            "[::1]evil.example",
            "[2001:db8::1]:8422",
        ];
        for host in foreign {
            assert!(!is_loopback(host), "{host}");
        }
    }
}
