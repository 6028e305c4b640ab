//! The `az://` origin: object_store's client, plus uploads by blocks in any order.
//!
//! Azure has no uploads, only blocks that a blob does not show before they are committed. So an upload's id is made
//! here, and encodes the headers that the blob gets with the commit. Another commit to the same blob drops its
//! uncommitted blocks; otherwise they expire after a week.

mod address;
mod client;
mod connection;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod names;
mod session;
mod upload;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::header::{ETAG, HeaderName, IF_MATCH, IF_NONE_MATCH};
use http::{HeaderMap, Method};
use object_store::azure::{AzureAuthorizer, MicrosoftAzure, MicrosoftAzureBuilder};
use object_store::client::{HttpRequest, HttpRequestBody};
use object_store::path::Path;
use object_store::{Error, ObjectStore, PutMode, PutMultipartOptions, PutResult, Result};

use self::address::Address;
use self::names::AnyNames;
use self::upload::{BlockUpload, block_list};
use super::cloud::{Cloud, client_options, no_retries};
use super::network::Connector;
use super::requests::{Requests, TextResponse};
use super::{Origin, OriginOptions, PartBody, UploadedPart, invalid_part};
use crate::upload::http::HttpClient;
use crate::upload::{SessionOptions, SessionToken, UploadSession};

/// A container of Azure Blob Storage, or of a server with its protocol.
pub type AzureStore = Cloud<AzureClient>;

/// Client for the uploads of an [`AzureStore`].
#[derive(Debug, Clone)]
pub struct AzureClient {
    objects: MicrosoftAzure,
    requests: Requests,
    sessions: HttpClient,
    address: Address,
}

/// An authorized request.
struct Signed {
    method: Method,
    url: reqwest::Url,
    headers: HeaderMap,
}

impl AzureStore {
    /// Returns the store with another stall limit for upload requests. The default is 20 s.
    #[must_use]
    pub fn with_stall(mut self, stall: Duration) -> Self {
        self.client.sessions = self.client.sessions.with_stall(stall);
        self
    }

    /// Opens `container` with the settings of [`builder_from_env`]. Sends no request.
    pub fn from_env(container: &str, prefix: &Path) -> Result<Self> {
        let builder = builder_from_env()?.with_container_name(container);
        Self::from_builder(builder, container, prefix)
    }

    /// Opens `container` with these settings, or with the environment's if there are none. Sends no request.
    ///
    /// # Errors
    /// Also if Azure has no such setting.
    pub fn with_options(container: &str, prefix: &Path, options: &OriginOptions) -> Result<Self> {
        if options.is_empty() {
            return Self::from_env(container, prefix);
        }
        let (string, options) =
            options.split_off(&["connection_string", "azure_storage_connection_string"]);
        let mut builder =
            string.map_or_else(|| Ok(MicrosoftAzureBuilder::new()), |text| connect(&text))?;
        for (key, value) in options.keys("azure")? {
            builder = builder.with_config(key, value);
        }
        Self::from_builder(builder.with_container_name(container), container, prefix)
    }

    /// Opens `container` with `builder`'s settings, except retries and time limits, which are the engine's.
    pub fn from_builder(
        builder: MicrosoftAzureBuilder,
        container: &str,
        prefix: &Path,
    ) -> Result<Self> {
        let requests = Requests::new("MicrosoftAzure")?;
        let address = Address::of(&builder, container).map_err(|text| requests.generic(text));
        let objects = builder
            .with_client_options(client_options())
            .with_http_connector(Connector::default())
            .with_retry(no_retries())
            .build()?;
        let client = AzureClient {
            objects: objects.clone(),
            requests,
            sessions: HttpClient::new("MicrosoftAzure")?,
            // After the builder's own errors, which are more precise.
            address: address?,
        };
        let objects: Arc<dyn ObjectStore> = Arc::new(AnyNames { objects });
        Ok(Self::new(
            &format!("az://{container}"),
            objects,
            prefix,
            client,
        ))
    }

    /// Authorizes a request for a blob as the settings allow. `length` is the body's, in bytes.
    async fn sign(
        &self,
        method: Method,
        path: &Path,
        query: &[(&str, &str)],
        headers: &[(HeaderName, String)],
        length: u64,
    ) -> Result<Signed> {
        let client = &self.client;
        let url = client.address.blob(&self.full_path(path), query);
        let mut unsigned = http::Request::builder().method(method).uri(url.as_str());
        for (name, value) in headers {
            unsigned = unsigned.header(name, value);
        }
        let mut signed: HttpRequest = unsigned
            .header(http::header::CONTENT_LENGTH, length)
            .body(HttpRequestBody::empty())
            .map_err(|error| client.requests.generic(error))?;
        if client.address.anonymous {
            address::add_version(&mut signed);
        } else {
            let credential = client.objects.credentials().get_credential().await?;
            AzureAuthorizer::new(&credential, &client.address.account)
                .try_authorize(&mut signed)?;
        }
        let (signed, _) = signed.into_parts();
        let url = reqwest::Url::parse(&signed.uri.to_string())
            .map_err(|error| client.requests.generic(error))?;
        Ok(Signed {
            method: signed.method,
            url,
            headers: signed.headers,
        })
    }

    async fn request(
        &self,
        path: &Path,
        query: &[(&str, &str)],
        headers: &[(HeaderName, String)],
        length: u64,
    ) -> Result<reqwest::RequestBuilder> {
        let mut signed = self.sign(Method::PUT, path, query, headers, length).await?;
        // The code that adds the body sets its length; a second header would be a bad request.
        signed.headers.remove(http::header::CONTENT_LENGTH);
        let http = &self.client.requests.http;
        Ok(http
            .request(signed.method, signed.url)
            .headers(signed.headers))
    }

    /// Returns the error for a refused request.
    fn refusal(&self, path: &Path, response: &TextResponse) -> Error {
        let code = upload::error_code(&response.headers, response.body.as_bytes());
        self.client.requests.refusal(path, response.status, &code)
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
    fn kind(&self) -> &'static str {
        "azure"
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
            .ok_or_else(|| self.client.requests.generic("a part's tag is malformed"))?;
        let query = [("comp", "block"), ("blockid", &*block)];
        let request = self.request(path, &query, &[], length).await?;
        let requests = &self.client.requests;
        let response = requests.send_part(request, path, length, body).await?;
        if !response.status.is_success() {
            return Err(self.refusal(path, &response));
        }
        Ok(e_tag)
    }

    async fn complete_upload(
        &self,
        path: &Path,
        upload: &str,
        parts: &[UploadedPart],
        mode: PutMode,
    ) -> Result<PutResult> {
        let upload = BlockUpload::parse(path, upload)?;
        let blocks: Option<Vec<String>> = parts
            .iter()
            .map(|part| upload.block(part.number, &part.e_tag))
            .collect();
        let (Some(blocks), Some(first)) = (blocks, parts.first()) else {
            return Err(match parts.first() {
                Some(part) => invalid_part(path, part),
                None => self.client.requests.generic("an upload has no part"),
            });
        };
        let mut headers = upload.headers();
        let create = matches!(mode, PutMode::Create);
        headers.extend(condition(&self.client.requests, mode)?);
        let body = block_list(&blocks);
        let query = [("comp", "blocklist")];
        let request = self
            .request(path, &query, &headers, body.len() as u64)
            .await?;
        let response = self.client.requests.send(request.body(body)).await?;
        if !response.status.is_success() {
            let code = upload::error_code(&response.headers, response.body.as_bytes());
            return Err(match (&*code, self.refusal(path, &response)) {
                ("InvalidBlockList", _) => invalid_part(path, first),
                ("BlobAlreadyExists", error) => already_exists(path, error),
                (_, Error::Precondition { path, source }) if create => {
                    Error::AlreadyExists { path, source }
                }
                (_, error) => error,
            });
        }
        Ok(PutResult {
            e_tag: response.header(&ETAG),
            version: response.header(&HeaderName::from_static("x-ms-version-id")),
            extensions: object_store::Extensions::new(),
        })
    }

    /// Azure has no such request: the blocks are removed by the next commit to the blob, or after a week.
    async fn abort_upload(&self, path: &Path, upload: &str) -> Result<()> {
        BlockUpload::parse(path, upload).map(|_| ())
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

fn already_exists(path: &Path, error: Error) -> Error {
    Error::AlreadyExists {
        path: path.to_string(),
        source: Box::new(error),
    }
}

/// Returns the header that makes a commit conditional.
fn condition(requests: &Requests, mode: PutMode) -> Result<Option<(HeaderName, String)>> {
    match mode {
        PutMode::Overwrite => Ok(None),
        PutMode::Create => Ok(Some((IF_NONE_MATCH, "*".to_owned()))),
        PutMode::Update(version) => version
            .e_tag
            .map(|e_tag| Some((IF_MATCH, e_tag)))
            .ok_or_else(|| requests.generic("an ETag is needed to replace conditionally")),
    }
}
