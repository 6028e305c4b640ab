//! Requests about buckets, which S3 clients of objects lack.

use std::time::Duration;

use bywash::origin::client_builder;
use http::Method;
use object_store::aws::AmazonS3ConfigKey;
use object_store::path::Path;
use object_store::signer::Signer;

use super::remote::Remote;
use crate::failure::{Failure, Kind};
use crate::limits::MAX_RESPONSE_BYTES;

/// Validity of a request's signature.
const SIGNED_FOR: Duration = Duration::from_secs(60);
/// Max time of a request about a bucket: its response is small.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);
/// The region of a bucket made without one.
const DEFAULT_REGION: &str = "us-east-1";

impl Remote {
    /// Returns the region of `bucket`, if it is not the default one.
    pub(crate) fn region(&self, bucket: &str) -> Result<Option<String>, Failure> {
        let region = self
            .builder(bucket)?
            .get_config_value(&AmazonS3ConfigKey::Region);
        Ok(region.filter(|region| region != DEFAULT_REGION))
    }

    /// Sends a request about a bucket, or about the endpoint if that is empty. Returns the response's body.
    pub(crate) async fn bucket_request(
        &self,
        method: Method,
        bucket: &str,
        body: String,
        what: &str,
    ) -> Result<String, Failure> {
        let url = self.signed(method.clone(), bucket, what).await?;
        let unsent = |error: reqwest::Error| {
            let kind = if error.is_connect() || error.is_timeout() {
                Kind::Unreachable
            } else {
                Kind::Failed
            };
            // The URL has a signature.
            Failure::new(
                kind,
                format!(
                    "{what}: {}; check --endpoint or AWS_ENDPOINT_URL, and that the server runs",
                    error.without_url()
                ),
            )
        };
        let client = client_builder().timeout(RESPONSE_TIMEOUT).build();
        let sent = client
            .map_err(unsent)?
            .request(method, url)
            .body(body)
            .send();
        let mut response = sent.await.map_err(unsent)?;
        let status = response.status();
        let mut body = Vec::new();
        while let Some(piece) = response.chunk().await.map_err(unsent)? {
            if body.len() + piece.len() > MAX_RESPONSE_BYTES {
                return Err(Failure::failed(format!(
                    "{what}: the endpoint sent more than {} MiB; check --endpoint",
                    MAX_RESPONSE_BYTES >> 20
                )));
            }
            body.extend_from_slice(&piece);
        }
        let text = String::from_utf8_lossy(&body).into_owned();
        if status.is_success() {
            Ok(text)
        } else {
            Err(Failure::response(what, status, &text))
        }
    }

    /// Returns the URL of a bucket with a signature in it; without one where requests are not signed.
    async fn signed(&self, method: Method, bucket: &str, what: &str) -> Result<url::Url, Failure> {
        let failed = |error| Failure::store(what, &error);
        let mut builder = self.builder(if bucket.is_empty() { "any" } else { bucket })?;
        let endpoint = self.endpoint().map(String::from).unwrap_or_else(|| {
            let region = builder.get_config_value(&AmazonS3ConfigKey::Region);
            let region = region.unwrap_or_else(|| DEFAULT_REGION.to_owned());
            format!("https://s3.{region}.amazonaws.com")
        });
        let endpoint = endpoint.trim_end_matches('/');
        let skip = builder.get_config_value(&AmazonS3ConfigKey::SkipSignature);
        if skip.as_deref() == Some("true") {
            let url = format!("{endpoint}/{bucket}");
            return url::Url::parse(&url)
                .map_err(|error| Failure::usage(format!("{what}: {url}: {error}")));
        }
        if bucket.is_empty() {
            // Signs the endpoint itself, as if it were a bucket's own host.
            builder = builder
                .with_config(AmazonS3ConfigKey::S3Endpoint, endpoint)
                .with_virtual_hosted_style_request(true);
        }
        let client = builder.build().map_err(failed)?;
        let url = client.signed_url(method, &Path::ROOT, SIGNED_FOR).await;
        url.map_err(failed)
    }
}
