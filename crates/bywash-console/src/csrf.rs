//! The check against cross-site request forgery (CSRF).
//!
//! A page of another site can send a form here, without reading the response. Browsers state which site a request comes from; one
//! that changes anything is refused if that is another.

use axum::extract::Request;
use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bywash_gateway::other_sites::{is_from_another_site, may_change};

/// Returns 403 to a request that may change something and comes from a page of another site.
///
/// Programs send no `Origin`, so they pass; so do pages of this server.
pub(crate) async fn refuse_other_sites(request: Request, next: Next) -> Response {
    if may_change(request.method()) && comes_from_elsewhere(request.headers()) {
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
    is_from_another_site(headers, host)
}
