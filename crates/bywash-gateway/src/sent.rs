//! The head of a request as its client sent it, next to the one that `s3s` sees.
//!
//! `s3s` parses headers and parameters into types before an operation runs, and rejects many that
//! S3 reads as text or not at all. So it sees a request that names the operation, bucket and key
//! alone; operations read the values here. `docs/headers.md` lists the side that decides each
//! value.

use std::sync::Arc;

use http::header::CONTENT_LENGTH;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use s3s::{S3ErrorCode, S3Request, S3Result};

use crate::copy_source::COPY_SOURCE;
use crate::errors::fault;
use crate::host::Target;
use crate::routes;

/// Headers without which `s3s` does not know an operation, with a value that it parses.
const REQUIRED: [(&str, &str, &str); 3] = [
    ("CopyObject", COPY_SOURCE, "bucket/key"),
    ("UploadPartCopy", COPY_SOURCE, "bucket/key"),
    ("GetObjectAttributes", "x-amz-object-attributes", "ETag"),
];

/// Address and headers of a request.
#[derive(Debug, Clone)]
pub(crate) struct SentHead {
    headers: HeaderMap,
    uri: Uri,
}

impl SentHead {
    /// Leaves the parts of a request that `s3s` needs for `operation`, and keeps the request as
    /// sent for [`Self::restore`].
    pub(crate) fn keep(
        parts: &mut Parts,
        target: &Target,
        operation: &'static str,
    ) -> S3Result<()> {
        let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let mut address = format!("/{}", encoded(&target.bucket));
        if !target.key.is_empty() {
            address.extend(["/", &encoded(&target.key)]);
        }
        address.extend(["?", &routes::selector(&parts.method, target, operation)]);
        let address = Uri::try_from(address).map_err(|error| {
            let message = format!("The request's address cannot be passed on: {error}.");
            fault(S3ErrorCode::InternalError, message)
        })?;
        let uri = std::mem::replace(&mut parts.uri, address);
        let mut needed = HeaderMap::new();
        if let Some(length) = parts.headers.get(CONTENT_LENGTH) {
            needed.insert(CONTENT_LENGTH, length.clone());
        }
        for (of, name, value) in REQUIRED {
            if of == operation {
                needed.insert(
                    HeaderName::from_static(name),
                    HeaderValue::from_static(value),
                );
            }
        }
        let headers = std::mem::replace(&mut parts.headers, needed);
        parts.extensions.insert(Arc::new(Self { headers, uri }));
        Ok(())
    }

    /// Gives a request the head that its client sent.
    pub(crate) fn restore<T>(request: &mut S3Request<T>) {
        if let Some(sent) = request.extensions.remove::<Arc<Self>>() {
            let Self { headers, uri } = Arc::unwrap_or_clone(sent);
            (request.headers, request.uri) = (headers, uri);
        }
    }
}
