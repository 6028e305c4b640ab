//! The `az://` origin: object_store's client, plus uploads by blocks in any order.
//!
//! Azure has no uploads, only blocks that a blob does not show before they are committed. So an upload's id is made
//! here, and encodes the headers that the blob gets with the commit. Another commit to the same blob drops its
//! uncommitted blocks; otherwise they expire after a week.

mod address;
mod client;
mod connection;
mod delete;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod names;
mod put;
mod session;
mod upload;

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HeaderName, IF_MATCH, IF_NONE_MATCH};
use http::{Method, StatusCode};
use object_store::azure::{AzureAuthorizer, AzureConfigKey, MicrosoftAzure, MicrosoftAzureBuilder};
use object_store::client::{HttpRequest, HttpRequestBody};
use object_store::path::Path;
use object_store::{Error, ObjectStore, PutMode, PutMultipartOptions, PutResult, Result};
use url::Url;

use self::address::Address;
use self::put::CheckedPuts;
use self::upload::{BlockUpload, block_list};
use super::access::Access;
use super::cloud::{Cloud, client_options, no_retries};
use super::http_client::{HttpClient, Request, Response};
use super::interface::{
    Capabilities, CompleteOptions, DeleteCondition, ListedParts, Origin, PartBody, UploadedPart,
    VersionDeletes, invalid_part,
};
use super::odd_keys::check;
use super::options::OriginOptions;
use crate::limits::MAX_BLOCK_LIST_BYTES;
use crate::session::{Finished, SessionOptions, SessionToken, UploadSession};

/// Settings that may change the result of a read.
const READ_SETTINGS: [&str; 17] = [
    "azure_storage_account_name",
    "azure_storage_client_id",
    "azure_storage_tenant_id",
    "azure_storage_authority_host",
    "azure_storage_sas_key",
    "azure_storage_token",
    "azure_storage_use_emulator",
    "azure_use_fabric_endpoint",
    "azure_storage_endpoint",
    "azure_msi_endpoint",
    "azure_object_id",
    "azure_msi_resource_id",
    "azure_federated_token_file",
    "azure_use_azure_cli",
    "azure_skip_signature",
    "azure_credential_type",
    "azure_storage_encryption_key",
];
/// Settings that only prove the name of the account or of its client.
const PROOFS: [&str; 3] = [
    "azure_storage_account_key",
    "azure_storage_client_secret",
    "azure_fabric_session_token",
];

/// A container of Azure Blob Storage, or of a server with its protocol.
pub type AzureStore = Cloud<AzureClient>;

/// Client for the uploads of an [`AzureStore`].
#[derive(Debug, Clone)]
pub struct AzureClient {
    objects: MicrosoftAzure,
    http: HttpClient,
    address: Address,
}

impl AzureStore {
    /// Opens `container` with the settings of [`builder_from_env`]. Sends no request.
    pub fn from_env(container: &str, prefix: &Path) -> Result<Self> {
        let builder = builder_from_env()?.with_container_name(container);
        Self::from_builder(builder, container, prefix)
    }

    /// Opens `container` with these settings, or with the environment's if there are none. Sends no request.
    ///
    /// # Errors
    /// If a setting is not valid, or Azure does not have it.
    pub fn with_options(container: &str, prefix: &Path, options: &OriginOptions) -> Result<Self> {
        if options.is_empty() {
            return Self::from_env(container, prefix);
        }
        let (string, options) =
            options.split_off(&["connection_string", "azure_storage_connection_string"]);
        let mut builder =
            string.map_or_else(|| Ok(MicrosoftAzureBuilder::new()), |text| connect(&text))?;
        let settings = options.keys::<AzureConfigKey>("azure")?;
        for (key, value) in &settings {
            builder = builder.with_config(*key, value);
        }
        let store = Self::from_builder(builder.with_container_name(container), container, prefix)?;
        Ok(store.read_with(|access| access.add_all_but(&PROOFS, &settings)))
    }

    /// Opens `container` with `builder`'s settings, except retries and time limits, which are the engine's.
    pub fn from_builder(
        builder: MicrosoftAzureBuilder,
        container: &str,
        prefix: &Path,
    ) -> Result<Self> {
        let http = HttpClient::new(STORE)?;
        let address = Address::of(&builder, container).map_err(|text| http.generic(text));
        let special = put::is_special(&builder);
        let mut access = Access::default();
        let value = |key: &AzureConfigKey| builder.get_config_value(key);
        access.add_named(&READ_SETTINGS, value);
        let objects = builder
            .with_client_options(client_options())
            .with_http_connector(http.connector())
            .with_retry(no_retries())
            .build()?;
        // After the builder's own errors, which are more precise.
        let address = address?;
        let endpoint = address.container.to_string();
        let client = AzureClient {
            objects,
            http,
            address,
        };
        let objects: Arc<dyn ObjectStore> = Arc::new(CheckedPuts::new(&client, special));
        let name = format!("az://{container}");
        let store = Self::new(&name, endpoint, objects, prefix, client);
        Ok(store.read_with(|of| *of = access))
    }

    /// See [`AzureClient::request`].
    async fn request(
        &self,
        method: Method,
        path: &Path,
        query: &[(&str, &str)],
        headers: &[(HeaderName, String)],
        length: u64,
    ) -> Result<Request> {
        check(path)?;
        let key = self.full_path(path);
        self.client
            .request(method, &key, query, headers, length)
            .await
    }

    /// See [`AzureClient::refused`].
    fn refused(&self, operation: &str, path: &Path, response: &Response, is_create: bool) -> Error {
        self.client.refused(operation, path, response, is_create)
    }
}

impl AzureClient {
    /// Returns a request for a blob, authorized as the settings allow. `length` is the body's, in bytes; the body is
    /// yet to be set.
    async fn request(
        &self,
        method: Method,
        key: &Path,
        query: &[(&str, &str)],
        headers: &[(HeaderName, String)],
        length: u64,
    ) -> Result<Request> {
        let url = self.address.blob(key, query);
        let mut unsigned = http::Request::builder().method(method).uri(url.as_str());
        for (name, value) in headers {
            unsigned = unsigned.header(name, value);
        }
        let mut signed: HttpRequest = unsigned
            .header(CONTENT_LENGTH, length)
            .body(HttpRequestBody::empty())
            .map_err(|error| self.http.generic(error))?;
        if self.address.anonymous {
            address::add_version(&mut signed);
        } else {
            let credential = self.objects.credentials().get_credential().await?;
            AzureAuthorizer::new(&credential, &self.address.account).try_authorize(&mut signed)?;
        }
        let (mut signed, _) = signed.into_parts();
        if length > 0 {
            // The client sets it from the body; a second header would be a bad request.
            signed.headers.remove(CONTENT_LENGTH);
        }
        let url = Url::parse(&signed.uri.to_string()).map_err(|error| self.http.generic(error))?;
        Ok(Request::new(signed.method, url).headers(signed.headers))
    }

    /// Returns the error for a refused request. `is_create`: the blob must not exist.
    fn refused(&self, operation: &str, path: &Path, response: &Response, is_create: bool) -> Error {
        let code = upload::error_code(response);
        let object = path.to_string();
        match (&*code, response.error(STORE, operation, &object, &code)) {
            ("BlobAlreadyExists", error) => Error::AlreadyExists {
                path: object,
                source: Box::new(error),
            },
            // The bytes were damaged in transit, and are sent again.
            ("Md5Mismatch", _) => {
                let text = format!("{operation} {object}: {code}");
                self.http.generic(text)
            }
            // Not the caller's condition: another program holds a lease.
            (code, Error::Precondition { source, .. }) if code.starts_with("Lease") => {
                Error::NotSupported { source }
            }
            (_, Error::Precondition { path, source }) if is_create => {
                Error::AlreadyExists { path, source }
            }
            (_, error) => error,
        }
    }
}

/// Returns the account, credentials and endpoint that Azure's clients find. `AZURE_STORAGE_CONNECTION_STRING` alone
/// is enough. Otherwise `AZURE_STORAGE_ACCOUNT_NAME`, `AZURE_STORAGE_ACCOUNT_KEY`, `AZURE_STORAGE_SAS_KEY` and the
/// like. With `AZURE_STORAGE_USE_EMULATOR=true` they are Azurite's, at the URL in `AZURITE_BLOB_STORAGE_URL` if set.
///
/// # Errors
/// If the connection string is invalid.
pub fn builder_from_env() -> Result<MicrosoftAzureBuilder> {
    match std::env::var("AZURE_STORAGE_CONNECTION_STRING") {
        Ok(text) if !text.is_empty() => connect(&text),
        _ => Ok(MicrosoftAzureBuilder::from_env()),
    }
}

fn connect(string: &str) -> Result<MicrosoftAzureBuilder> {
    let settings = connection::settings(string).map_err(|text| Error::Generic {
        store: "MicrosoftAzure",
        source: text.into(),
    })?;
    let new = MicrosoftAzureBuilder::new();
    Ok(settings
        .into_iter()
        .fold(new, |builder, (key, value)| builder.with_config(key, value)))
}

#[async_trait]
impl Origin for AzureStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            chunk_rule: session::RULE,
            knows_uploads: false,
            version_deletes: VersionDeletes::ByStore,
            keeps_marks: true,
            ..Capabilities::of("azure")
        }
    }

    fn durable_address(&self) -> Option<String> {
        Some(self.address())
    }

    fn cache_identity(&self) -> Option<String> {
        Some(self.identity())
    }

    async fn create_upload(&self, _path: &Path, options: PutMultipartOptions) -> Result<String> {
        Ok(BlockUpload::begin(&options.attributes).id())
    }

    async fn put_part(
        &self,
        path: &Path,
        upload: &str,
        number: u16,
        length: u64,
        body: PartBody,
    ) -> Result<String> {
        let upload = BlockUpload::parse(path, upload)?;
        let e_tag = upload::part_tag();
        let block = upload
            .block(number, &e_tag)
            .ok_or_else(|| self.client.http.generic("a part's tag is malformed"))?;
        let query = [("comp", "block"), ("blockid", &*block)];
        let request = self
            .request(Method::PUT, path, &query, &[], length)
            .await?
            .part(path, length, body);
        let response = self.client.http.send(request).await?;
        match response.status.is_success() {
            true => Ok(e_tag),
            false => Err(self.refused("send part of", path, &response, false)),
        }
    }

    async fn complete_upload(
        &self,
        path: &Path,
        upload: &str,
        parts: &[UploadedPart],
        CompleteOptions { mode, .. }: CompleteOptions,
    ) -> Result<PutResult> {
        let upload = BlockUpload::parse(path, upload)?;
        let blocks: Option<Vec<String>> = parts
            .iter()
            .map(|part| upload.block(part.number, &part.e_tag))
            .collect();
        let (Some(blocks), Some(first)) = (blocks, parts.first()) else {
            return Err(match parts.first() {
                Some(part) => invalid_part(path, part),
                None => self.client.http.generic("an upload has no part"),
            });
        };
        let is_create = matches!(mode, PutMode::Create);
        let mut headers = upload.headers();
        headers.extend(condition(&mode)?);
        let body = Bytes::from(block_list(&blocks));
        let query = [("comp", "blocklist")];
        let request = self
            .request(Method::PUT, path, &query, &headers, body.len() as u64)
            .await?;
        let response = self.client.http.send(request.body(vec![body])).await?;
        match response.status {
            status if status.is_success() => Ok(committed(&response).into()),
            StatusCode::BAD_REQUEST if upload::error_code(&response) == "InvalidBlockList" => {
                Err(invalid_part(path, first))
            }
            _ => Err(self.refused("complete upload of", path, &response, is_create)),
        }
    }

    /// Lists the uncommitted blocks of the blob, whose ids name the upload, the part's number and its tag.
    async fn uploaded_parts(
        &self,
        path: &Path,
        upload: &str,
        after: u16,
        max: usize,
    ) -> Result<ListedParts> {
        let upload = BlockUpload::parse(path, upload)?;
        let query = [("comp", "blocklist"), ("blocklisttype", "all")];
        let request = self.request(Method::GET, path, &query, &[], 0).await?;
        let request = request.max_response_bytes(MAX_BLOCK_LIST_BYTES);
        let response = self.client.http.send(request).await?;
        let code = upload::error_code(&response);
        if response.status == StatusCode::NOT_FOUND && code != "ContainerNotFound" {
            return Ok(ListedParts::default());
        }
        if !response.status.is_success() {
            return Err(self.refused("list parts of", path, &response, false));
        }
        let failed = |error| {
            let text = format!("list parts of {path}: {error}");
            self.client.http.generic(text)
        };
        let lists = session::BlockLists::parse(&response.body).map_err(failed)?;
        let parts = lists.parts(|id| upload.part_of(id));
        Ok(ListedParts::page(parts, after, max, false))
    }

    /// Azure has no such request: the blocks are removed by the next commit to the blob, or after a week.
    async fn abort_upload(&self, path: &Path, upload: &str) -> Result<()> {
        BlockUpload::parse(path, upload).map(|_| ())
    }

    async fn delete_if(&self, path: &Path, condition: &DeleteCondition) -> Result<()> {
        self.delete_matching(path, condition).await
    }

    async fn open_session(
        &self,
        path: &Path,
        options: &SessionOptions,
    ) -> Result<Option<Box<dyn UploadSession>>> {
        Ok(Some(Box::new(self.open(path, options)?)))
    }

    async fn resume_session(
        &self,
        path: &Path,
        options: &SessionOptions,
        token: &SessionToken,
    ) -> Result<Option<Box<dyn UploadSession>>> {
        Ok(Some(Box::new(self.take_over(path, options, token)?)))
    }
}

/// Name of this kind of store in errors.
const STORE: &str = "MicrosoftAzure";

/// Returns the blob of a commit that succeeded.
fn committed(response: &Response) -> Finished {
    Finished {
        e_tag: response.header("etag").map(str::to_owned),
        version: response.header("x-ms-version-id").map(str::to_owned),
        ..Finished::default()
    }
}

/// Returns the header that makes a commit conditional.
fn condition(mode: &PutMode) -> Result<Option<(HeaderName, String)>> {
    match mode {
        PutMode::Overwrite => Ok(None),
        PutMode::Create => Ok(Some((IF_NONE_MATCH, "*".to_owned()))),
        PutMode::Update(version) => match &version.e_tag {
            Some(e_tag) => Ok(Some((IF_MATCH, e_tag.clone()))),
            None => Err(Error::Generic {
                store: STORE,
                source: "an ETag is needed to replace conditionally".into(),
            }),
        },
    }
}
