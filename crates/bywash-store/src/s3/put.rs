//! Whole objects by one request, with their CRC32C: object_store's client sends none that all stores know.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method};
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path;
use object_store::{
    Attributes, Error, GetOptions, GetResult, PutOptions, PutPayload, PutResult, Result,
};

use super::S3Client;
use super::client::STORE;
use super::multipart::{Checksums, attribute_headers, complete_headers};
use super::tags::{is_unknown, no_tags, of_client};
use crate::http_client::{Request, Response};
use crate::put_digest::{compare, crc32c_text, is_unknown_header, md5_text, refused};
use crate::stated_headers::{StatedAttributes, WANTED_ENCRYPTION};

/// A client that stores objects with a checksum.
#[derive(Debug)]
pub(super) struct CheckedPuts {
    objects: Arc<AmazonS3>,
    client: S3Client,
    /// The store refused the header of the checksum, so that the MD5 is sent. A stale value costs a request, hence
    /// relaxed.
    md5_only: AtomicBool,
}

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
            Some(_) if !self.encrypts => Err(Error::NotSupported {
                source:
                    "its settings leave encryption out of writes; set aws_server_side_encryption"
                        .into(),
            }),
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

impl fmt::Display for CheckedPuts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.objects.fmt(f)
    }
}

impl CheckedPuts {
    pub(super) fn new(client: &S3Client) -> Self {
        Self {
            objects: Arc::clone(&client.client),
            client: client.clone(),
            md5_only: AtomicBool::new(false),
        }
    }

    /// Sends all bytes; returns the host and its response.
    async fn send(
        &self,
        key: &Path,
        pieces: &[Bytes],
        options: &PutOptions,
        md5_only: bool,
    ) -> Result<(String, Response)> {
        let generic = |text: String| self.client.http.generic(text);
        let mut headers = attribute_headers(&options.attributes);
        headers.extend(complete_headers(Checksums::Md5, 0, &options.mode).map_err(generic)?);
        let (name, value) = match md5_only {
            true => ("content-md5", md5_text(pieces)),
            false => ("x-amz-checksum-crc32c", crc32c_text(pieces)),
        };
        let tags = options.tags.encoded();
        let tagging = Some(("x-amz-tagging", tags.to_owned())).filter(|_| !tags.is_empty());
        for (name, value) in [Some((name, value)), tagging].into_iter().flatten() {
            let value =
                HeaderValue::from_str(&value).map_err(|error| generic(error.to_string()))?;
            headers.insert(HeaderName::from_static(name), value);
        }
        let url = self.client.presign(Method::PUT, key, &[], &headers).await?;
        let host = url.host_str().unwrap_or_default().to_owned();
        let request = Request::new(Method::PUT, url).headers(headers);
        let sent = self.client.http.send(request.body(pieces.to_vec()));
        Ok((host, sent.await?))
    }

    async fn put(
        &self,
        key: &Path,
        payload: PutPayload,
        options: &PutOptions,
    ) -> Result<PutResult> {
        let pieces: Vec<Bytes> = payload.into_iter().collect();
        let md5_only = self.md5_only.load(Relaxed);
        let (mut host, mut response) = self.send(key, &pieces, options, md5_only).await?;
        if is_unknown_header(&response) && !md5_only {
            (host, response) = self.send(key, &pieces, options, true).await?;
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

crate::forward_object_store! {
    impl[] ObjectStore for CheckedPuts => objects {
        async fn put_opts(
            &self,
            path: &Path,
            payload: PutPayload,
            mut options: PutOptions,
        ) -> Result<PutResult> {
            match self.client.special {
                Some(special) => {
                    special.check(&mut options.attributes)?;
                    let tagged = !options.tags.is_empty();
                    let put = self.objects.put_opts(path, payload, options).await;
                    put.map_err(|error| match tagged {
                        true => of_client(path, error),
                        false => error,
                    })
                }
                None => self.put(path, payload, &options).await,
            }
        }

        async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
            let mut read = self.objects.get_opts(path, options).await?;
            if let Some(StatedAttributes(stated)) = read.extensions.remove() {
                for (attribute, value) in &stated {
                    read.attributes.insert(attribute.clone(), value.clone());
                }
            }
            Ok(read)
        }
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
