//! Whole blobs by one request, with their MD5, which Azure verifies and keeps. Names of metadata are encoded.

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderName, Method};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::path::Path;
use object_store::{GetResult, ObjectStore, PutMode, PutOptions, PutPayload, PutResult, Result};

use super::names::{decoded, encoded, renamed};
use super::upload::BlockUpload;
use super::{AzureClient, STORE, committed, condition};
use crate::cloud::CloudClient;
use crate::digest::pieces_md5;
use crate::http_client::{Request, Response};
use crate::odd_objects::Names;
use crate::whole_put::compare;

/// Returns whether the builder has settings that only object_store's own request has: a customer's key, no tags.
pub(super) fn is_special(builder: &MicrosoftAzureBuilder) -> bool {
    let value = |key| builder.get_config_value(&key);
    value(AzureConfigKey::EncryptionKey).is_some()
        || value(AzureConfigKey::DisableTagging).as_deref() == Some("true")
}

#[async_trait]
impl CloudClient for AzureClient {
    const NAMES: Names = Names {
        store: STORE,
        metadata: "x-ms-meta-",
        version: "x-ms-version-id",
    };

    async fn send(&self, key: &Path, request: Request) -> Result<Response> {
        self.authorize(key, request).await
    }

    async fn put(
        &self,
        key: &Path,
        payload: PutPayload,
        mut options: PutOptions,
    ) -> Result<PutResult> {
        if self.special {
            options.attributes = renamed(&options.attributes, encoded);
            return self.objects.put_opts(key, payload, options).await;
        }
        let pieces: Vec<Bytes> = payload.into_iter().collect();
        let own = [
            ("x-ms-blob-type", "BlockBlob".to_owned()),
            ("content-md5", pieces_md5(&pieces)),
            ("x-ms-tags", options.tags.encoded().to_owned()),
        ];
        let own = own.into_iter().filter(|(_, value)| !value.is_empty());
        let request = Request::new(Method::PUT)
            .texts(BlockUpload::begin(&options.attributes).headers())
            .texts(condition(&options.mode)?)
            .texts(own.map(|(name, value)| (HeaderName::from_static(name), value)))
            .body(pieces.clone());
        let response = self.send(key, request).await?;
        if !response.status.is_success() {
            let is_create = matches!(options.mode, PutMode::Create);
            return Err(self.refused("write", key, &response, is_create));
        }
        compare("", key, &response, &pieces)?;
        Ok(committed(&response).into())
    }

    fn found(&self, mut found: GetResult) -> GetResult {
        found.attributes = renamed(&found.attributes, decoded);
        found
    }
}
