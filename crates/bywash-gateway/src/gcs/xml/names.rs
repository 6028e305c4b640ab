//! Names of the XML API: headers that are parameters of the JSON API, and headers that Amazon's
//! protocol has too.

use http::{HeaderMap, HeaderName, Method};

use super::super::endpoint::GcsRequest;
use super::super::error::{GcsError, GcsResult};
use crate::meta::text;

/// Headers that name versions, with the parameters of the JSON API.
const VERSIONS: [(&str, &str); 5] = [
    ("x-goog-copy-source-generation", "sourceGeneration"),
    ("x-goog-if-generation-match", "ifGenerationMatch"),
    ("x-goog-if-metageneration-match", "ifMetagenerationMatch"),
    (
        "x-goog-copy-source-if-generation-match",
        "ifSourceGenerationMatch",
    ),
    (
        "x-goog-copy-source-if-metageneration-match",
        "ifSourceMetagenerationMatch",
    ),
];

/// Headers that would change the effect of a request, and are not served.
const NOT_SERVED: [&str; 12] = [
    "x-goog-encryption-kms-key-name",
    "x-goog-copy-source-encryption-algorithm",
    "x-goog-object-lock-mode",
    "x-goog-custom-time",
    "x-goog-copy-source-if-match",
    "x-goog-copy-source-if-none-match",
    "x-goog-copy-source-if-modified-since",
    "x-goog-copy-source-if-unmodified-since",
    "x-amz-copy-source-if-match",
    "x-amz-copy-source-if-none-match",
    "x-amz-copy-source-if-modified-since",
    "x-amz-copy-source-if-unmodified-since",
];

/// Headers of conditions of reads, which Google's storage does not heed with writes.
const OF_READS: [&str; 4] = [
    "if-match",
    "if-none-match",
    "if-modified-since",
    "if-unmodified-since",
];

/// Refuses headers by name that would otherwise be ignored.
pub(super) fn refuse_not_served(request: &GcsRequest) -> GcsResult<()> {
    let headers = &request.parts.headers;
    let is_read = matches!(request.parts.method, Method::GET | Method::HEAD);
    let of_reads = OF_READS.into_iter().filter(|_| !is_read);
    let mut names = NOT_SERVED.into_iter().chain(of_reads);
    if let Some(name) = names.find(|name| headers.contains_key(*name)) {
        return Err(GcsError::not_served(format!(
            "The header {name} is not served here with {}; leave it out.",
            request.parts.method
        )));
    }
    let class = text(headers, "x-goog-storage-class");
    if let Some(class) = class.or_else(|| text(headers, "x-amz-storage-class"))
        && class != "STANDARD"
    {
        return Err(GcsError::not_served(format!(
            "The storage class {class} is not served here; use STANDARD."
        )));
    }
    match text(headers, "x-goog-acl").or_else(|| text(headers, "x-amz-acl")) {
        None | Some("private" | "project-private" | "bucket-owner-full-control") => Ok(()),
        Some(acl) => Err(GcsError::not_served(format!(
            "The ACL {acl} is not served here; leave it out."
        ))),
    }
}

/// Adds the versions and conditions of headers to the parameters.
pub(super) fn to_parameters(request: &mut GcsRequest) {
    for (header, parameter) in VERSIONS {
        if let Some(value) = text(&request.parts.headers, header) {
            request.query.set(parameter, value);
        }
    }
}

/// The headers with the names of Amazon's protocol, which the shared modules read. A header of
/// Amazon's own stays.
pub(super) fn of_amazon(headers: &HeaderMap) -> HeaderMap {
    let mut named = HeaderMap::with_capacity(headers.len());
    for (name, value) in headers {
        let rest = name.as_str().strip_prefix("x-goog-");
        let amazon = rest.and_then(|rest| HeaderName::try_from(format!("x-amz-{rest}")).ok());
        named.append(amazon.unwrap_or_else(|| name.clone()), value.clone());
    }
    // Checked already: none that is left would be kept.
    named.remove("x-amz-acl");
    named
}
