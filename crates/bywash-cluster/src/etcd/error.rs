//! Failures of requests to etcd.

use url::Url;

use super::version::RefusedVersion;

/// Longest part of an error's text that is kept.
pub(super) const MESSAGE_CHARS: usize = 200;

/// A request to etcd has failed.
#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    /// No response: the request may have been done.
    #[error("etcd at {endpoint} did not respond: {source}")]
    NoResponse {
        /// The endpoint.
        endpoint: Url,
        /// The cause.
        source: reqwest::Error,
    },
    /// etcd refused the request.
    #[error("etcd at {endpoint} refused a request with status {status}: {message}")]
    Refused {
        /// The endpoint.
        endpoint: Url,
        /// Status of the response.
        status: u16,
        /// Its text.
        message: String,
    },
    /// The response is not one of etcd.
    #[error("etcd at {endpoint} sent a response that is not understood: {message}")]
    BadResponse {
        /// The endpoint.
        endpoint: Url,
        /// Description of the fault.
        message: String,
    },
    /// No HTTP client could be made.
    #[error("cannot make an HTTP client: {source}")]
    NoClient {
        /// The cause.
        source: reqwest::Error,
    },
    /// The version is refused.
    #[error(transparent)]
    Version(#[from] RefusedVersion),
    /// Another `cluster_id` than before: etcd was restored or replaced.
    #[error("etcd at {endpoint} belongs to another cluster than before; the node registers again")]
    ClusterChanged {
        /// The endpoint.
        endpoint: Url,
    },
}

impl EtcdError {
    /// Whether the same request may succeed later without a change of settings: etcd does not
    /// respond, or a proxy in front of it states that it is not available.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self {
            Self::NoResponse { .. } => true,
            Self::Refused { status, .. } => *status >= 500,
            _ => false,
        }
    }
}

pub(super) fn bad(endpoint: &Url, message: &str) -> EtcdError {
    EtcdError::BadResponse {
        endpoint: endpoint.clone(),
        message: message.chars().take(MESSAGE_CHARS).collect(),
    }
}
