//! The check against DNS rebinding.
//!
//! A browser lets a page of `http://evil.example` read responses from `http://evil.example`, even after that name was
//! rebound to 127.0.0.1. Such a request still names its own host, so requests that name no loopback host are rejected.

use std::net::{IpAddr, Ipv6Addr};

use axum::extract::Request;
use axum::http::header::HOST;
use axum::http::{StatusCode, Version};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// Returns 403 unless every host that the request names is loopback.
///
/// A request of HTTP/1.0 without a host passes: browsers always send one, plain health checks do not. A request of HTTP/1.1
/// without a host, or with two, gets 400.
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
                "the admin endpoints accept only a loopback host name\n",
            )
                .into_response();
        }
    }
    next.run(request).await
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

/// Whether the text is empty, or a colon and a port number.
fn is_port(text: &str) -> bool {
    text.is_empty()
        || text
            .strip_prefix(':')
            .is_some_and(|port| port.parse::<u16>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

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
