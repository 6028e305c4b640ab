//! The checks against DNS rebinding and against pages of other sites.
//!
//! A browser lets a page of `http://evil.example` read what `http://evil.example` answers, even
//! after that name has been pointed at 127.0.0.1. What such a request cannot change is the host it
//! names. So only requests that name a loopback host are answered.

use std::net::{IpAddr, Ipv6Addr};

use axum::extract::Request;
use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// Answers 403 unless every host the request names is loopback.
///
/// A request that names none passes: browsers always send one, plain HTTP/1.0 health checks do not.
pub(crate) async fn require_loopback(request: Request, next: Next) -> Response {
    let headers = request.headers().get_all(HOST).iter();
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

/// Answers 403 to a change that a page of another site asks for.
///
/// A browser names the site in `Origin` with every request that is no plain GET; programs send none.
pub(crate) async fn refuse_other_sites(request: Request, next: Next) -> Response {
    if !request.method().is_safe() && is_of_other_site(&request) {
        tracing::warn!(
            path = request.uri().path(),
            "refused a change asked for by another site"
        );
        return (
            StatusCode::FORBIDDEN,
            "the admin endpoints take no changes from pages of other sites\n",
        )
            .into_response();
    }
    next.run(request).await
}

fn is_of_other_site(request: &Request) -> bool {
    let header = |name| {
        let value = request.headers().get(name);
        value.map(|value: &HeaderValue| value.to_str().unwrap_or_default())
    };
    let own = header(HOST);
    header(ORIGIN).is_some_and(|origin| origin.split_once("://").map(|(_, host)| host) != own)
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
mod tests {
    use super::is_loopback;

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
