//! Who may in: the keys of signed requests, and requests whose signature is not to be looked at.

use std::collections::HashMap;

use async_trait::async_trait;
use http::header::AUTHORIZATION;
use http::request::Parts;
use http::uri::PathAndQuery;
use s3s::auth::{S3Auth, SecretKey};
use s3s::{S3ErrorCode, S3Result};

use crate::config::Credential;
use crate::errors::fault;

/// The keys that may sign requests.
pub(crate) struct Keys(HashMap<String, SecretKey>);

impl Keys {
    pub(crate) fn new(credentials: &[Credential]) -> Self {
        let pair = |found: &Credential| {
            (
                found.access_key.clone(),
                SecretKey::from(found.secret_key.as_str()),
            )
        };
        Self(credentials.iter().map(pair).collect())
    }
}

#[async_trait]
impl S3Auth for Keys {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        self.0.get(access_key).cloned().ok_or_else(|| {
            let message =
                "The access key is not one of this endpoint's; use the key it was started with.";
            fault(S3ErrorCode::InvalidAccessKeyId, message)
        })
    }
}

/// Query parameters of presigned requests, SigV4 and SigV2.
const SIGNATURE_QUERY: [&str; 10] = [
    "x-amz-algorithm",
    "x-amz-credential",
    "x-amz-date",
    "x-amz-expires",
    "x-amz-signedheaders",
    "x-amz-signature",
    "x-amz-security-token",
    "awsaccesskeyid",
    "signature",
    "expires",
];

/// Removes a signature from a request, so that it is served as an unsigned one.
pub(crate) fn strip_signature(parts: &mut Parts) {
    parts.headers.remove(AUTHORIZATION);
    let Some(query) = parts.uri.query() else {
        return;
    };
    let is_signature = |pair: &&str| {
        let name = pair.split('=').next().unwrap_or_default();
        SIGNATURE_QUERY
            .iter()
            .any(|known| name.eq_ignore_ascii_case(known))
    };
    let kept: Vec<&str> = query
        .split('&')
        .filter(|pair| !is_signature(pair))
        .collect();
    let path = parts.uri.path();
    let target = if kept.is_empty() {
        path.to_owned()
    } else {
        format!("{path}?{}", kept.join("&"))
    };
    let mut uri = std::mem::take(&mut parts.uri).into_parts();
    // A part of a valid target is valid; were it not, the request would be served as it came.
    if let Ok(target) = target.parse::<PathAndQuery>() {
        uri.path_and_query = Some(target);
    }
    parts.uri = http::Uri::from_parts(uri).unwrap_or_default();
}
