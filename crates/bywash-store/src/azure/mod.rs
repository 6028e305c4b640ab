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
use http::header::{CONTENT_LENGTH, HeaderName, IF_MATCH, IF_NONE_MATCH};
use object_store::azure::{AzureAuthorizer, AzureConfigKey, MicrosoftAzure, MicrosoftAzureBuilder};
use object_store::client::{HttpRequest, HttpRequestBody};
use object_store::path::Path;
use object_store::{Error, PutMode, Result};
use url::Url;

use self::address::Address;
use super::access::Access;
use super::cloud::{Cloud, client_options, no_retries};
use super::http_client::{HttpClient, Request, Response};
use super::interface::{Capabilities, DeleteCondition, Origin, StoreIdentity, VersionDeletes};
use super::options::OriginOptions;
use crate::error::generic_error;
use crate::session::{Finished, NewSession, SessionOptions, SessionToken};

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
    /// Settings of the builder that only object_store's own request has.
    special: bool,
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
            special,
        };
        let objects = Arc::new(client.objects.clone());
        let name = format!("az://{container}");
        let store = Self::new(&name, endpoint, objects, prefix, client);
        Ok(store.read_with(|of| *of = access))
    }

    /// See [`AzureClient::refused`].
    fn refused(&self, operation: &str, path: &Path, response: &Response, is_create: bool) -> Error {
        self.client.refused(operation, path, response, is_create)
    }
}

impl AzureClient {
    /// Sends a request for a blob, authorized as the settings allow.
    async fn authorize(&self, key: &Path, mut request: Request) -> Result<Response> {
        let address = self.address.blob(key, &request.pairs());
        let (headers, length) = (std::mem::take(&mut request.headers), request.length());
        let mut signed = HttpRequest::new(HttpRequestBody::empty());
        *signed.method_mut() = request.method.clone();
        *signed.uri_mut() = address
            .as_str()
            .parse()
            .map_err(|error: http::uri::InvalidUri| self.http.generic(error))?;
        *signed.headers_mut() = headers;
        signed.headers_mut().insert(CONTENT_LENGTH, length.into());
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
        self.http.send(url, request.headers(signed.headers)).await
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
    let settings =
        connection::settings(string).map_err(|text| generic_error("MicrosoftAzure", text))?;
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

    fn identity(&self) -> Option<StoreIdentity> {
        Some(self.names())
    }

    async fn delete_if(&self, path: &Path, condition: &DeleteCondition) -> Result<()> {
        self.delete_matching(path, condition).await
    }

    async fn open_session(&self, path: &Path, options: &SessionOptions) -> Result<NewSession> {
        Ok(Box::new(self.open(path, options)?))
    }

    async fn resume_session(
        &self,
        path: &Path,
        options: &SessionOptions,
        token: &SessionToken,
    ) -> Result<NewSession> {
        Ok(Box::new(self.take_over(path, options, token)?))
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
            None => Err(generic_error(
                STORE,
                "an ETag is needed to replace conditionally",
            )),
        },
    }
}
