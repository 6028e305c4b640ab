//! Whole objects by one request of the XML API, with their CRC32C, which Google verifies.

use std::fmt;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderMap, HeaderValue, Method};
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, GetOptions, GetResult, PutMode, PutOptions, PutPayload, PutResult,
    Result,
};

use super::GcsClient;
use super::client::{STORE, generic};
use super::sessions::generation;
use crate::put_digest::{compare, crc32c_text, refused};

/// A client that stores objects with a checksum, and under the conditions of [`generation`].
#[derive(Debug)]
pub(super) struct CheckedPuts {
    objects: object_store::gcp::GoogleCloudStorage,
    client: GcsClient,
}

impl fmt::Display for CheckedPuts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.objects.fmt(f)
    }
}

/// Returns content headers and user metadata as headers of a request.
pub(crate) fn attribute_headers(attributes: &Attributes) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (attribute, value) in attributes {
        let name = match attribute {
            Attribute::CacheControl => "cache-control".to_owned(),
            Attribute::ContentDisposition => "content-disposition".to_owned(),
            Attribute::ContentEncoding => "content-encoding".to_owned(),
            Attribute::ContentLanguage => "content-language".to_owned(),
            Attribute::ContentType => "content-type".to_owned(),
            Attribute::StorageClass => "x-goog-storage-class".to_owned(),
            Attribute::Metadata(name) => format!("x-goog-meta-{name}"),
            // None of object_store 0.14's attributes.
            _ => continue,
        };
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_str(value)) {
            headers.insert(name, value);
        }
    }
    headers
}

impl CheckedPuts {
    pub(super) fn new(client: &GcsClient) -> Self {
        Self {
            objects: client.objects.clone(),
            client: client.clone(),
        }
    }

    async fn put(
        &self,
        key: &Path,
        payload: PutPayload,
        options: &PutOptions,
    ) -> Result<PutResult> {
        let pieces: Vec<Bytes> = payload.into_iter().collect();
        let mut headers = attribute_headers(&options.attributes);
        headers
            .entry(CONTENT_TYPE)
            .or_insert(HeaderValue::from_static("application/octet-stream"));
        let condition = match &options.mode {
            PutMode::Overwrite => None,
            PutMode::Create => Some("0".to_owned()),
            PutMode::Update(version) => Some(generation(&self.objects, key, version).await?),
        };
        let condition = condition.map(|wanted| ("x-goog-if-generation-match", wanted));
        let hash = ("x-goog-hash", format!("crc32c={}", crc32c_text(&pieces)));
        for (name, value) in [Some(hash), condition].into_iter().flatten() {
            let value =
                HeaderValue::from_str(&value).map_err(|error| generic(error.to_string()))?;
            headers.insert(HeaderName::from_static(name), value);
        }
        let request = self.client.request(Method::PUT, key, &[]).await?;
        let request = request.headers(headers).body(pieces.clone());
        let response = self.client.http.send(request).await?;
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
}

crate::forward_object_store! {
    impl[] ObjectStore for CheckedPuts => objects {
        async fn put_opts(
            &self,
            path: &Path,
            payload: PutPayload,
            options: PutOptions,
        ) -> Result<PutResult> {
            self.put(path, payload, &options).await
        }

        async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
            self.objects.get_opts(path, options).await
        }
    }
}
