//! The check against cross-site request forgery (CSRF).
//!
//! A page of another site can send a form here, without reading the response. Browsers state in
//! `Origin` which site made a request; one that changes anything is refused if that is another.

use axum::extract::Request;
use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// Returns 403 to a request that may change something and was made by a page of another site.
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

/// Returns 403 to a request that does not come from a page of this server, as far as the browser states it.
pub(crate) async fn require_own_page(request: Request, next: Next) -> Response {
    let headers = request.headers();
    if headers.contains_key(ORIGIN) && !comes_from_elsewhere(headers) {
        return next.run(request).await;
    }
    let reason = "this is for the page of this server; programs use /cache/warm and /cache/drop\n";
    (StatusCode::FORBIDDEN, reason).into_response()
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn requests_of_other_sites_are_detected_by_origin() {
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
}
