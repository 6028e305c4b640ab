//! Objects with odd keys ([`crate::odd_keys`]): object_store's client cannot name them.

use async_trait::async_trait;
use http::header::{ACCEPT_ENCODING, AUTHORIZATION};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use object_store::path::Path;
use object_store::{GetOptions, GetResult, Result};

use super::GcsClient;
use super::client::STORE;
use crate::cloud::OddObjects;
use crate::error::StatusError;
use crate::network::is_google_host;
use crate::odd_keys::{key_of, refused};
use crate::odd_objects::{Names, OddRead};

const NAMES: Names = Names {
    store: STORE,
    metadata: "x-goog-meta-",
    version: "x-goog-generation",
};

#[async_trait]
impl OddObjects for GcsClient {
    async fn get(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let read = OddRead::new(&options)?;
        let sent = self.send_odd(read.method.clone(), path, read.headers.clone());
        read.read(&NAMES, path, &options, sent.await?)
    }

    async fn delete(&self, path: &Path) -> Result<()> {
        let response = self
            .send_odd(Method::DELETE, path, HeaderMap::new())
            .await?;
        match response.status() {
            status if status.is_success() || status == StatusCode::NOT_FOUND => Ok(()),
            status => {
                Err(StatusError::new(status, format!("delete {path}")).of(STORE, path.as_ref()))
            }
        }
    }
}

impl GcsClient {
    async fn send_odd(
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
            let encoding = match is_google_host(url.host_str().unwrap_or_default()) {
                true => "gzip",
                false => "identity",
            };
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(encoding));
        }
        self.http.start(method, url, headers).await
    }
}
