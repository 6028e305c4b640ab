//! Objects with odd keys ([`crate::odd_keys`]): object_store's client cannot name them.

use http::header::{ACCEPT_ENCODING, AUTHORIZATION};
use http::{HeaderMap, HeaderValue, Method};
use object_store::Result;
use object_store::path::Path;

use super::GcsClient;
use crate::network::is_google_host;
use crate::odd_keys::{key_of, refused};

impl GcsClient {
    /// See [`crate::cloud::CloudClient::send_odd`].
    pub(super) async fn send_odd_request(
        &self,
        method: Method,
        path: &Path,
        mut headers: HeaderMap,
    ) -> Result<reqwest::Response> {
        let key = key_of(path);
        // The whole key is one segment of a URL, which must be neither of these.
        if [".", ".."].contains(&&*key) {
            return Err(refused(path));
        }
        let url = self.url(&key)?;
        if let Some(bearer) = self.bearer().await? {
            let bearer = HeaderValue::try_from(format!("Bearer {bearer}"));
            headers.insert(
                AUTHORIZATION,
                bearer.map_err(|error| self.http.generic(error))?,
            );
        }
        if method != Method::DELETE {
            // Google decompresses objects stored as gzip for clients that accept no gzip.
            let encoding = if is_google_host(url.host_str().unwrap_or_default()) {
                "gzip"
            } else {
                "identity"
            };
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(encoding));
        }
        self.http.start(method, url, headers).await
    }
}
