//! Whole objects by one request, with their CRC32C: object_store's client sends none that all stores know.

use std::sync::atomic::Ordering::Relaxed;

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, Method};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path;
use object_store::{Attributes, GetResult, ObjectStore, PutOptions, PutPayload, PutResult, Result};

use super::S3Client;
use super::client::STORE;
use super::multipart::{Checksums, attribute_headers, complete_headers};
use super::tags::{is_unknown, no_tags, of_client};
use crate::cloud::CloudClient;
use crate::digest::{pieces_crc32c, pieces_md5};
use crate::error::not_supported_error;
use crate::http_client::{Request, Response};
use crate::odd_objects::Names;
use crate::stated_headers::{StatedAttributes, WANTED_ENCRYPTION};
use crate::whole_put::{compare, is_unknown_header, refused};

/// Settings of the builder that only object_store's own requests have: encryption, a payer, another checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Special {
    /// They encrypt each object.
    encrypts: bool,
}

impl Special {
    /// Removes the wish for encryption from the attributes of a write, which the settings fulfil.
    ///
    /// # Errors
    /// If they do not.
    pub(super) fn check(self, attributes: &mut Attributes) -> Result<()> {
        match attributes.remove(&WANTED_ENCRYPTION) {
            Some(_) if !self.encrypts => Err(not_supported_error(
                "its settings leave encryption out of writes; set aws_server_side_encryption",
            )),
            _ => Ok(()),
        }
    }
}

/// Returns the settings that only object_store's own requests have, if the builder has some.
pub(super) fn special_of(builder: &AmazonS3Builder) -> Option<Special> {
    let value = |name: &str| {
        let key = name.parse::<AmazonS3ConfigKey>().ok()?;
        builder.get_config_value(&key)
    };
    let given = [
        "aws_server_side_encryption",
        "aws_sse_kms_key_id",
        "aws_sse_customer_key_base64",
        "aws_checksum_algorithm",
    ];
    let switches = [
        AmazonS3ConfigKey::RequestPayer,
        AmazonS3ConfigKey::DisableTagging,
    ];
    let is_special = given.iter().any(|name| value(name).is_some())
        || switches.into_iter().any(|key| is_on(builder, key))
        || value("aws_conditional_put").as_deref() == Some("disabled");
    is_special.then(|| Special {
        encrypts: given[..3].iter().any(|name| value(name).is_some()),
    })
}

/// Returns whether a switch of the builder is on, in each spelling that its `build` takes for true.
pub(super) fn is_on(builder: &AmazonS3Builder, key: AmazonS3ConfigKey) -> bool {
    let value = builder.get_config_value(&key).unwrap_or_default();
    ["1", "true", "on", "yes", "y"].contains(&&*value.to_ascii_lowercase())
}

impl S3Client {
    /// Sends all bytes; returns the host and its response.
    async fn send_all(
        &self,
        key: &Path,
        pieces: &[Bytes],
        options: &PutOptions,
        md5_only: bool,
    ) -> Result<(String, Response)> {
        let conditions = complete_headers(Checksums::Md5, 0, &options.mode);
        let mut request = Request::new(Method::PUT)
            .headers(attribute_headers(&options.attributes))
            .headers(conditions.map_err(|text| self.http.generic(text))?)
            .body(pieces.to_vec());
        request = if md5_only {
            request.text("content-md5", &pieces_md5(pieces))
        } else {
            request.text("x-amz-checksum-crc32c", &pieces_crc32c(pieces))
        };
        let tags = options.tags.encoded();
        if !tags.is_empty() {
            request = request.text("x-amz-tagging", tags);
        }
        let url = self.presign(key, &request).await?;
        let host = url.host_str().unwrap_or_default().to_owned();
        Ok((host, self.http.send(url, request).await?))
    }

    /// Stores a whole object with its CRC32C, or with its MD5 at a store that does not know that header.
    async fn put_checked(
        &self,
        key: &Path,
        payload: PutPayload,
        options: &PutOptions,
    ) -> Result<PutResult> {
        let pieces: Vec<Bytes> = payload.into_iter().collect();
        let md5_only = self.md5_only.load(Relaxed);
        let (mut host, mut response) = self.send_all(key, &pieces, options, md5_only).await?;
        if is_unknown_header(&response) && !md5_only {
            (host, response) = self.send_all(key, &pieces, options, true).await?;
            // Otherwise it is another header that the store does not have.
            let is_it = !is_unknown_header(&response);
            self.md5_only.store(is_it, Relaxed);
        }
        if !options.tags.is_empty() && is_unknown(response.status) {
            return Err(no_tags());
        }
        if !response.status.is_success() {
            return Err(refused(STORE, key, &response, &options.mode));
        }
        compare(&host, key, &response, &pieces)?;
        let header = |name| response.header(name).map(str::to_owned);
        Ok(PutResult {
            e_tag: header("etag"),
            version: header("x-amz-version-id"),
            extensions: Default::default(),
        })
    }
}

#[async_trait]
impl CloudClient for S3Client {
    const NAMES: Names = Names {
        store: STORE,
        metadata: "x-amz-meta-",
        version: "x-amz-version-id",
    };

    /// By a presigned address: S3 requires that all headers are signed.
    async fn send(&self, key: &Path, request: Request) -> Result<Response> {
        let url = self.presign(key, &request).await?;
        self.http.send(url, request).await
    }

    async fn put(
        &self,
        key: &Path,
        payload: PutPayload,
        mut options: PutOptions,
    ) -> Result<PutResult> {
        let Some(special) = self.special else {
            return self.put_checked(key, payload, &options).await;
        };
        special.check(&mut options.attributes)?;
        let tagged = !options.tags.is_empty();
        let put = self.objects.put_opts(key, payload, options).await;
        put.map_err(|error| if tagged { of_client(key, error) } else { error })
    }

    fn found(&self, mut found: GetResult) -> GetResult {
        if let Some(StatedAttributes(stated)) = found.extensions.remove() {
            for (attribute, value) in &stated {
                found.attributes.insert(attribute.clone(), value.clone());
            }
        }
        found
    }

    fn reads_odd(&self) -> bool {
        self.reads_odd
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::network::install_tls_provider;

    #[test]
    fn switches_are_read_as_the_client_reads_them() {
        install_tls_provider();
        let words = [
            "1", "true", "on", "yes", "y", "0", "false", "off", "no", "n", "t", "",
        ];
        for word in words
            .iter()
            .flat_map(|word| [(*word).to_owned(), word.to_uppercase()])
        {
            let builder = AmazonS3Builder::new()
                .with_bucket_name("data")
                .with_config(AmazonS3ConfigKey::DisableTagging, &word);
            let on = is_on(&builder, AmazonS3ConfigKey::DisableTagging);
            assert_eq!(special_of(&builder).is_some(), on, "{word}");
            // The client shows its setting, and refuses other words.
            match builder.build() {
                Ok(client) => {
                    let shown = format!("{client:?}");
                    assert_eq!(shown.contains("disable_tagging: true"), on, "{word}");
                }
                Err(_) => assert!(!on, "{word}"),
            }
        }
    }
}
