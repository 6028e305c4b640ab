//! Whole objects by one request of the XML API, with their CRC32C, which Google verifies.

use async_trait::async_trait;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method};
use object_store::path::Path;
use object_store::{Attributes, PutMode, PutOptions, PutPayload, PutResult, Result};

use super::GcsClient;
use super::client::{STORE, authorised};
use super::sessions::generation;
use super::text_put::has_text;
use crate::cloud::CloudClient;
use crate::digest::pieces_crc32c;
use crate::http_client::{Request, Response};
use crate::odd_objects::Names;
use crate::stated_headers::AttributeNames;
use crate::whole_put::{compare, refused};

/// Returns content headers and user metadata as headers of a request.
pub(crate) fn attribute_headers(attributes: &Attributes) -> HeaderMap {
    let names = AttributeNames {
        content: "",
        class: "x-goog-storage-class",
        metadata: "x-goog-meta-",
    };
    names.headers(attributes)
}

#[async_trait]
impl CloudClient for GcsClient {
    const NAMES: Names = Names {
        store: STORE,
        metadata: "x-goog-meta-",
        version: "x-goog-generation",
    };

    /// By the XML API.
    async fn send(&self, key: &Path, request: Request) -> Result<Response> {
        let mut url = self.url(key.as_ref())?;
        let query = request.pairs();
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let request = authorised(request, self.bearer().await?.as_deref())?;
        self.http.send(url, request).await
    }

    /// Stores an object with its CRC32C, under the conditions of [`generation`].
    async fn put(&self, key: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let pieces: Vec<Bytes> = payload.into_iter().collect();
        let condition = match &options.mode {
            PutMode::Overwrite => None,
            PutMode::Create => Some("0".to_owned()),
            PutMode::Update(version) => Some(generation(&self.objects, key, version).await?),
        };
        if has_text(&options.attributes) {
            return self
                .put_text(key, pieces, &options, condition.as_deref())
                .await;
        }
        let mut headers = attribute_headers(&options.attributes);
        headers
            .entry(CONTENT_TYPE)
            .or_insert(HeaderValue::from_static("application/octet-stream"));
        let mut request = Request::new(Method::PUT)
            .headers(headers)
            .text("x-goog-hash", &format!("crc32c={}", pieces_crc32c(&pieces)))
            .body(pieces.clone());
        if let Some(wanted) = condition {
            request = request.text("x-goog-if-generation-match", &wanted);
        }
        let response = self.send(key, request).await?;
        if !response.status.is_success() {
            return Err(refused(STORE, key, &response, &options.mode));
        }
        compare("", key, &response, &pieces)?;
        let header = |name| response.header(name).map(str::to_owned);
        Ok(PutResult {
            e_tag: header("etag"),
            version: header("x-goog-generation"),
            extensions: Default::default(),
        })
    }

    fn reads_odd(&self) -> bool {
        true
    }

    async fn send_odd(
        &self,
        method: Method,
        key: &Path,
        headers: HeaderMap,
    ) -> Result<reqwest::Response> {
        self.send_odd_request(method, key, headers).await
    }
}
