//! Cross-origin requests: which pages of other sites may send which requests to a bucket.
//!
//! The first rule that allows a request decides, as in S3.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, StatusCode};
use s3s::{S3Error, S3ErrorCode, S3Result};
use serde::{Deserialize, Serialize};

use crate::errors::{WithElements, custom, fault};
use crate::meta::text;

/// One rule of a bucket.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct CorsRule {
    pub(crate) id: Option<String>,
    /// With at most one `*` each.
    pub(crate) origins: Vec<String>,
    pub(crate) methods: Vec<String>,
    /// In any case, with at most one `*` each.
    pub(crate) headers: Vec<String>,
    pub(crate) exposed: Vec<String>,
    pub(crate) max_age_s: Option<i32>,
}

/// A cross-origin request, as its headers describe it.
struct CrossRequest<'h> {
    origin: &'h str,
    method: &'h str,
    headers: Vec<&'h str>,
}

fn fits(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((start, end)) => {
            text.len() >= start.len() + end.len() && text.starts_with(start) && text.ends_with(end)
        }
    }
}

impl CorsRule {
    /// Checks a rule of a client.
    pub(crate) fn check(&self) -> S3Result<()> {
        const METHODS: [&str; 5] = ["GET", "PUT", "POST", "DELETE", "HEAD"];
        let wrong = |message: String| Err(fault(S3ErrorCode::InvalidRequest, message));
        if let Some(other) = self
            .methods
            .iter()
            .find(|name| !METHODS.contains(&&***name))
        {
            return wrong(format!(
                "Found unsupported HTTP method in CORS config. Unsupported method is {other}"
            ));
        }
        let stars = |text: &&String| text.matches('*').count() > 1;
        match self.origins.iter().chain(&self.headers).find(stars) {
            Some(text) => wrong(format!("{text:?} can not have more than one wildcard.")),
            None => Ok(()),
        }
    }

    fn allows(&self, request: &CrossRequest<'_>) -> bool {
        let header = |name: &&str| {
            let name = name.to_ascii_lowercase();
            let mut allowed = self.headers.iter();
            allowed.any(|pattern| fits(&pattern.to_ascii_lowercase(), &name))
        };
        self.origins
            .iter()
            .any(|pattern| fits(pattern, request.origin))
            && self.methods.iter().any(|method| method == request.method)
            && request.headers.iter().all(header)
    }

    fn response_headers(&self, request: &CrossRequest<'_>) -> HeaderMap {
        let any = self.origins.iter().any(|pattern| pattern == "*");
        let mut headers = HeaderMap::new();
        let mut put = |name: HeaderName, value: &str| {
            if let Ok(value) = HeaderValue::try_from(value) {
                headers.insert(name, value);
            }
        };
        put(
            header::ACCESS_CONTROL_ALLOW_ORIGIN,
            if any { "*" } else { request.origin },
        );
        if !any {
            put(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, "true");
        }
        put(
            header::ACCESS_CONTROL_ALLOW_METHODS,
            &self.methods.join(", "),
        );
        if !request.headers.is_empty() {
            put(
                header::ACCESS_CONTROL_ALLOW_HEADERS,
                &request.headers.join(", "),
            );
        }
        if !self.exposed.is_empty() {
            put(
                header::ACCESS_CONTROL_EXPOSE_HEADERS,
                &self.exposed.join(", "),
            );
        }
        if let Some(seconds) = self.max_age_s {
            put(header::ACCESS_CONTROL_MAX_AGE, &seconds.to_string());
        }
        put(
            header::VARY,
            "Origin, Access-Control-Request-Headers, Access-Control-Request-Method",
        );
        headers
    }
}

/// The headers of the response to a request from a page of another site; none if no rule allows it:
/// the browser then hides the response from the page.
pub(crate) fn response_headers(
    rules: &[CorsRule],
    method: &Method,
    headers: &HeaderMap,
) -> HeaderMap {
    let Some(origin) = text(headers, header::ORIGIN.as_str()) else {
        return HeaderMap::new();
    };
    let request = CrossRequest {
        origin,
        method: method.as_str(),
        headers: Vec::new(),
    };
    let rule = rules.iter().find(|rule| rule.allows(&request));
    rule.map_or_else(HeaderMap::new, |rule| rule.response_headers(&request))
}

/// Whether a request is a browser's question whether another one may be sent.
pub(crate) fn is_preflight(parts: &Parts) -> bool {
    parts.method == Method::OPTIONS
}

/// Responds to a preflight.
pub(crate) fn preflight(rules: &[CorsRule], parts: &Parts) -> S3Result<HeaderMap> {
    let header = |name: HeaderName| text(&parts.headers, name.as_str());
    let Some(origin) = header(header::ORIGIN) else {
        let message = "Insufficient information. Origin request header needed.";
        return Err(custom("BadRequest", StatusCode::BAD_REQUEST, message));
    };
    let Some(method) = header(header::ACCESS_CONTROL_REQUEST_METHOD) else {
        let message = "Invalid Access-Control-Request-Method: null";
        return Err(custom("BadRequest", StatusCode::BAD_REQUEST, message));
    };
    let requested = header(header::ACCESS_CONTROL_REQUEST_HEADERS).unwrap_or_default();
    let names = requested.split(',').map(str::trim);
    let request = CrossRequest {
        origin,
        method,
        headers: names.filter(|name| !name.is_empty()).collect(),
    };
    if rules.is_empty() {
        let error = refused("CORS is not enabled for this bucket.");
        return Err(error.with([("Method", method)]));
    }
    let rule = rules.iter().find(|rule| rule.allows(&request));
    let rule = rule.ok_or_else(|| {
        refused("This CORS request is not allowed. The evaluation of Origin, request method / Access-Control-Request-Method or \
                 Access-Control-Request-Headers are not whitelisted by the resource's CORS spec.")
            .with([("Method", method)])
    })?;
    Ok(rule.response_headers(&request))
}

/// The error for a request by which a page of another site would change something on a server
/// without keys.
pub(crate) fn refused_write() -> S3Error {
    refused(
        "Pages of other sites may change nothing here, unless a rule of the bucket's CORS configuration allows it.",
    )
}

fn refused(message: &'static str) -> S3Error {
    custom(
        "AccessForbidden",
        StatusCode::FORBIDDEN,
        format!("CORSResponse: {message}"),
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn rule() -> CorsRule {
        CorsRule {
            origins: vec!["https://*.example.com".to_owned()],
            methods: vec!["GET".to_owned(), "PUT".to_owned()],
            headers: vec!["x-amz-*".to_owned(), "Content-Type".to_owned()],
            exposed: vec!["ETag".to_owned()],
            max_age_s: Some(60),
            id: None,
        }
    }

    #[test]
    fn first_rule_that_allows_origin_method_and_headers_decides() {
        let asked = |origin: &str, method: &str, headers: &str| {
            let request = http::Request::options("/b/k")
                .header("Origin", origin)
                .header("Access-Control-Request-Method", method)
                .header("Access-Control-Request-Headers", headers);
            let (parts, ()) = request.body(()).unwrap().into_parts();
            preflight(&[rule()], &parts)
        };
        let allowed = asked("https://a.example.com", "PUT", "content-type, X-Amz-Date").unwrap();
        assert_eq!(
            allowed["access-control-allow-origin"],
            "https://a.example.com"
        );
        assert_eq!(
            allowed["access-control-allow-headers"],
            "content-type, X-Amz-Date"
        );
        assert_eq!(allowed["access-control-max-age"], "60");
        for (origin, method, headers) in [
            ("https://a.example.org", "PUT", ""),
            ("https://a.example.com", "DELETE", ""),
            ("https://a.example.com", "PUT", "authorization"),
        ] {
            let error = asked(origin, method, headers).unwrap_err();
            assert_eq!(error.status_code(), Some(StatusCode::FORBIDDEN));
        }
    }

    #[test]
    fn wrong_rules_are_refused() {
        rule().check().unwrap();
        for change in [
            |rule: &mut CorsRule| rule.methods.push("PATCH".to_owned()),
            |rule: &mut CorsRule| rule.origins.push("*.*".to_owned()),
            |rule: &mut CorsRule| rule.headers.push("**".to_owned()),
        ] {
            let mut wrong = rule();
            change(&mut wrong);
            wrong.check().unwrap_err();
        }
    }
}
