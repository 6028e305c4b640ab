//! Whole blobs by one request, with their MD5, which Azure verifies and keeps. Names of metadata are encoded.

use std::fmt;

use bytes::Bytes;
use http::{HeaderName, Method};
use object_store::azure::{AzureConfigKey, MicrosoftAzure, MicrosoftAzureBuilder};
use object_store::path::Path;
use object_store::{GetOptions, GetResult, PutMode, PutOptions, PutPayload, PutResult, Result};

use super::names::{decoded, encoded, renamed};
use super::upload::BlockUpload;
use super::{AzureClient, committed, condition};
use crate::put_digest::{compare, md5_text};

/// A client that stores blobs with a checksum and metadata under any name.
#[derive(Debug)]
pub(super) struct CheckedPuts {
    objects: MicrosoftAzure,
    client: AzureClient,
    /// Settings of the builder that only object_store's own request has.
    special: bool,
}

/// Returns whether the builder has settings that only object_store's own request has: a customer's key, no tags.
pub(super) fn is_special(builder: &MicrosoftAzureBuilder) -> bool {
    let value = |key| builder.get_config_value(&key);
    value(AzureConfigKey::EncryptionKey).is_some()
        || value(AzureConfigKey::DisableTagging).as_deref() == Some("true")
}

impl fmt::Display for CheckedPuts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.objects.fmt(f)
    }
}

impl CheckedPuts {
    pub(super) fn new(client: &AzureClient, special: bool) -> Self {
        Self {
            objects: client.objects.clone(),
            client: client.clone(),
            special,
        }
    }

    async fn put(
        &self,
        key: &Path,
        payload: PutPayload,
        options: &PutOptions,
    ) -> Result<PutResult> {
        let pieces: Vec<Bytes> = payload.into_iter().collect();
        let length = pieces.iter().map(|piece| piece.len() as u64).sum();
        let mut headers = BlockUpload::begin(&options.attributes).headers();
        headers.extend(condition(&options.mode)?);
        let own = [
            ("x-ms-blob-type", "BlockBlob".to_owned()),
            ("content-md5", md5_text(&pieces)),
            ("x-ms-tags", options.tags.encoded().to_owned()),
        ];
        let own = own.into_iter().filter(|(_, value)| !value.is_empty());
        headers.extend(own.map(|(name, value)| (HeaderName::from_static(name), value)));
        let request = self
            .client
            .request(Method::PUT, key, &[], &headers, length)
            .await?;
        let response = self.client.http.send(request.body(pieces.clone())).await?;
        if !response.status.is_success() {
            let is_create = matches!(options.mode, PutMode::Create);
            return Err(self.client.refused("write", key, &response, is_create));
        }
        compare("", key, &response, &pieces)?;
        Ok(committed(&response).into())
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
            if self.special {
                options.attributes = renamed(&options.attributes, encoded);
                return self.objects.put_opts(path, payload, options).await;
            }
            self.put(path, payload, &options).await
        }

        async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
            let mut found = self.objects.get_opts(path, options).await?;
            found.attributes = renamed(&found.attributes, decoded);
            Ok(found)
        }
    }
}
