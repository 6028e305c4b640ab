//! Requests that a page of another site made in a browser (cross-site request forgery).
//!
//! Such a page can send some requests anywhere, without reading the response. Browsers state the
//! source of a request in `Origin` and `Sec-Fetch-Site`. Programs send neither. The endpoints that
//! use this check have no pages of their own.

use http::Method;
use http::header::{HeaderMap, HeaderName, ORIGIN};
use http::request::Parts;

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Whether a request may change something and was made by a page.
pub(crate) fn is_write_of_a_page(parts: &Parts) -> bool {
    may_change(&parts.method) && is_from_a_page(&parts.headers)
}

/// Whether a request with this method may change something.
fn may_change(method: &Method) -> bool {
    !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

/// Whether a request was made by a page, as its browser states it.
fn is_from_a_page(headers: &HeaderMap) -> bool {
    let mut sites = headers.get_all(FETCH_SITE).iter();
    headers.contains_key(ORIGIN) || sites.any(|site| site.as_bytes() == b"cross-site")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn requests_of_pages_are_detected_by_origin_and_fetch_site() {
        assert!(!is_from_a_page(&HeaderMap::new()));
        for (name, value, of_page) in [
            (ORIGIN, "null", true),
            (ORIGIN, "", true),
            (ORIGIN, "http://127.0.0.1:8421", true),
            (FETCH_SITE, "cross-site", true),
            (FETCH_SITE, "same-origin", false),
            (FETCH_SITE, "none", false),
        ] {
            let headers = [(name.clone(), value.parse().unwrap())]
                .into_iter()
                .collect();
            assert_eq!(is_from_a_page(&headers), of_page, "{name}: {value}");
        }
    }
}
