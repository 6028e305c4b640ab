//! Requests that a page of another site made in a browser (cross-site request forgery).
//!
//! Such a page can send some requests anywhere, without reading the response. Browsers state in `Origin` and `Sec-Fetch-Site`
//! where a request comes from. Programs send neither.

use http::Method;
use http::header::{HeaderMap, HeaderName, ORIGIN};

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Whether a request with this method may change something.
#[must_use]
pub fn may_change(method: &Method) -> bool {
    !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

/// Whether a request comes from a page of another site, as its browser states it. `host`: the host of this server's own pages,
/// which are served without TLS; `None` if it has no pages.
#[must_use]
pub fn is_from_another_site(headers: &HeaderMap, host: Option<&[u8]>) -> bool {
    let is_ours = |origin: &[u8]| {
        origin
            .strip_prefix(b"http://")
            .is_some_and(|origin| Some(origin) == host)
    };
    let mut origins = headers.get_all(ORIGIN).iter();
    let mut sites = headers.get_all(FETCH_SITE).iter();
    origins.any(|origin| !is_ours(origin.as_bytes()))
        || sites.any(|site| site.as_bytes() == b"cross-site")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    const HOST: Option<&[u8]> = Some(b"127.0.0.1:8422");

    fn headers(name: HeaderName, value: Option<&str>) -> HeaderMap {
        let value = value.map(|value| (name, value.parse().unwrap()));
        value.into_iter().collect()
    }

    #[test]
    fn requests_of_other_sites_are_detected_by_origin() {
        for ours in [None, Some("http://127.0.0.1:8422")] {
            let found = is_from_another_site(&headers(ORIGIN, ours), HOST);
            assert!(!found, "{ours:?}");
        }
        for other in [
            "null",
            "http://evil.example",
            "http://127.0.0.1:8423",
            "https://127.0.0.1:8422",
            "http://127.0.0.1:84220",
            "",
        ] {
            let found = is_from_another_site(&headers(ORIGIN, Some(other)), HOST);
            assert!(found, "{other}");
        }
        // A server without pages.
        let own = headers(ORIGIN, Some("http://127.0.0.1:8422"));
        assert!(is_from_another_site(&own, None));
        assert!(!is_from_another_site(&HeaderMap::new(), None));
    }

    #[test]
    fn requests_of_other_sites_are_detected_by_their_fetch_site() {
        for (site, other) in [
            ("cross-site", true),
            ("same-origin", false),
            ("none", false),
        ] {
            let headers = headers(FETCH_SITE, Some(site));
            assert_eq!(is_from_another_site(&headers, HOST), other, "{site}");
        }
    }
}
