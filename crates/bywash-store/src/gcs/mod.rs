//! The `gs://` origin: object_store's client, which uses Google's XML API, plus that API's multipart uploads.

mod client;
mod delete;
mod odd;
mod put;
mod session;
#[cfg(any(test, fuzzing))]
pub(crate) use session::fuzz;
mod sessions;
mod text_put;

use std::sync::Arc;

use async_trait::async_trait;
use http::{HeaderMap, Method};
use object_store::client::StaticCredentialProvider;
use object_store::gcp::{
    GcpCredential, GoogleCloudStorage, GoogleCloudStorageBuilder, GoogleConfigKey,
};
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{PutMode, PutResult, Result};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use url::Url;

use super::access::Access;
use super::cloud::{Cloud, CloudClient, client_options, no_retries};
use super::http_client::{HttpClient, Request, Response};
use super::interface::{
    Capabilities, CompleteOptions, DeleteCondition, ListedParts, Origin, PartBody, StoreIdentity,
    TextHeaders, UploadedPart, VersionDeletes,
};
use super::odd_keys::check;
use super::omissions::Omissions;
use super::options::OriginOptions;
use super::page::{ListPage, Objects};
use super::parts::{PartStore, PartsSession};
use super::xml_uploads::XmlUploads;
use crate::error::not_supported_error;
use crate::session::{Finished, NewSession, SessionOptions, SessionToken};

pub(crate) use client::GcsSession;
pub(crate) use put::attribute_headers;
pub(crate) use session::{RULE, SignedStart};
pub use sessions::open_signed_session;

/// Endpoint of Google's API.
const GOOGLE: &str = "https://storage.googleapis.com";

/// Settings that only prove the name of the credentials, see [`account_name`].
const PROOFS: [&str; 3] = [
    "google_service_account",
    "google_service_account_key",
    "google_application_credentials",
];

/// A bucket of Google Cloud Storage, or of a server with its protocols.
pub type GcsStore = Cloud<GcsClient>;

/// Client for the uploads of a [`GcsStore`].
#[derive(Debug, Clone)]
pub struct GcsClient {
    objects: GoogleCloudStorage,
    http: HttpClient,
    bucket: String,
    /// Scheme, host and port, without a slash at the end.
    endpoint: String,
    /// No credentials are used.
    anonymous: bool,
    /// The server heeds conditions of a DELETE.
    version_deletes: VersionDeletes,
}

impl GcsStore {
    /// Opens `bucket` with the credentials of the environment (`GOOGLE_APPLICATION_CREDENTIALS`,
    /// `GOOGLE_SERVICE_ACCOUNT`, ..., the login of `gcloud`, instance metadata last). At the server of
    /// `STORAGE_EMULATOR_HOST` it uses none. Sends no request.
    pub fn from_env(bucket: &str, prefix: &Path) -> Result<Self> {
        let mut builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket);
        if let Some(host) = std::env::var("STORAGE_EMULATOR_HOST")
            .ok()
            .filter(|host| !host.is_empty())
        {
            builder = builder
                .with_base_url(&emulator(&host))
                .with_skip_signature(true);
        }
        let conditional_delete = std::env::var(delete::VARIABLE).ok();
        Self::from_builder(builder, bucket, prefix)?
            .with_conditional_delete(conditional_delete.as_deref())
    }

    /// Opens `bucket` with these settings, or with the environment's if there are none. Sends no request.
    ///
    /// # Errors
    /// If a setting is not valid, or GCS does not have it.
    pub fn with_options(bucket: &str, prefix: &Path, options: &OriginOptions) -> Result<Self> {
        if options.is_empty() {
            return Self::from_env(bucket, prefix);
        }
        let (conditional_delete, options) = options.split_off(&delete::SETTING);
        let mut builder = GoogleCloudStorageBuilder::new();
        let settings = options.keys::<GoogleConfigKey>("gcs")?;
        for (key, value) in &settings {
            builder = builder.with_config(*key, value);
        }
        let store = Self::from_builder(builder.with_bucket_name(bucket), bucket, prefix)?;
        store
            .read_with(|access| access.add_all_but(&PROOFS, &settings))
            .with_conditional_delete(conditional_delete.as_deref())
    }

    /// Opens `bucket` with `builder`'s settings, except retries and time limits, which are the engine's.
    pub fn from_builder(
        builder: GoogleCloudStorageBuilder,
        bucket: &str,
        prefix: &Path,
    ) -> Result<Self> {
        let endpoint = base_url(&builder).unwrap_or_else(|| GOOGLE.to_owned());
        let anonymous = builder.get_config_value(&GoogleConfigKey::SkipSignature);
        let anonymous = anonymous.as_deref() == Some("true");
        let mut access = Access::default();
        access.add("anonymous", anonymous.to_string().as_bytes());
        access.add("account", account_name(&builder).as_bytes());
        let builder = if anonymous {
            // object_store 0.14.2 requests credentials for puts all the same, so they get an empty one.
            builder.with_credentials(Arc::new(StaticCredentialProvider::new(GcpCredential {
                bearer: String::new(),
            })))
        } else {
            builder
        };
        let http = HttpClient::new(client::STORE)?;
        let objects = builder
            .with_client_options(client_options())
            .with_http_connector(http.connector())
            .with_retry(no_retries())
            .build()?;
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        let client = GcsClient {
            objects,
            http,
            bucket: bucket.to_owned(),
            version_deletes: if delete::is_google(&endpoint) {
                VersionDeletes::ByStore
            } else {
                VersionDeletes::ByLook
            },
            endpoint: endpoint.clone(),
            anonymous,
        };
        let address = format!("gs://{bucket}");
        let objects = Arc::new(client.objects.clone());
        let store = Self::new(&address, endpoint, objects, prefix, client);
        Ok(store.read_with(|of| *of = access))
    }
}

impl GcsClient {
    /// Returns `None` where no credentials are needed.
    async fn bearer(&self) -> Result<Option<String>> {
        if self.anonymous {
            return Ok(None);
        }
        let credential = self.objects.credentials().get_credential().await?;
        Ok(Some(credential.bearer.clone()).filter(|bearer| !bearer.is_empty()))
    }

    /// Returns the URL of a key in the XML API.
    fn url(&self, key: &str) -> Result<Url> {
        let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let (bucket, key) = (encoded(&self.bucket), encoded(key));
        let address = format!("{}/{bucket}/{key}", self.endpoint);
        Url::parse(&address).map_err(|error| self.http.generic(error))
    }
}

/// Returns the endpoint of the settings, or of the service account, as object_store finds it.
fn base_url(builder: &GoogleCloudStorageBuilder) -> Option<String> {
    let account = || {
        let account: serde_json::Value = serde_json::from_str(&service_account(builder)?).ok()?;
        account["gcs_base_url"].as_str().map(str::to_owned)
    };
    let set = builder.get_config_value(&GoogleConfigKey::BaseUrl);
    set.or_else(account)
}

fn service_account(builder: &GoogleCloudStorageBuilder) -> Option<String> {
    let set = builder.get_config_value(&GoogleConfigKey::ServiceAccountKey);
    set.or_else(|| file_of(builder, GoogleConfigKey::ServiceAccount))
}

fn file_of(builder: &GoogleCloudStorageBuilder, key: GoogleConfigKey) -> Option<String> {
    std::fs::read_to_string(builder.get_config_value(&key)?).ok()
}

/// Returns the name of the credentials in the settings: the address of a service account, else the credentials as they are. Empty if
/// the machine gives them.
fn account_name(builder: &GoogleCloudStorageBuilder) -> String {
    if let Some(token) = builder.get_config_value(&GoogleConfigKey::BearerToken) {
        return token;
    }
    let other = || file_of(builder, GoogleConfigKey::ApplicationCredentials);
    let Some(credentials) = service_account(builder).or_else(other) else {
        return String::new();
    };
    let parsed: serde_json::Value = serde_json::from_str(&credentials).unwrap_or_default();
    let email = parsed["client_email"].as_str().unwrap_or_default();
    if email.is_empty() {
        credentials
    } else {
        email.to_owned()
    }
}

/// Returns the URL in `STORAGE_EMULATOR_HOST`, which may lack a scheme.
fn emulator(host: &str) -> String {
    match host.split_once("://") {
        Some(_) => host.trim_end_matches('/').to_owned(),
        None => format!("http://{host}"),
    }
}

#[async_trait]
impl Origin for GcsStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            chunk_rule: session::RULE,
            version_deletes: self.client.version_deletes,
            reads_odd_keys: self.client.reads_odd(),
            keeps_marks: true,
            // The XML API, which alone has numbered parts, takes ASCII.
            text_headers: TextHeaders::WholeObjects,
            ..Capabilities::of("gcs")
        }
    }

    fn identity(&self) -> Option<StoreIdentity> {
        Some(self.names())
    }

    async fn list_page(&self, prefix: &str, after: Option<&str>, max: usize) -> Result<ListPage> {
        self.page_of(&self.client.objects, prefix, after, max).await
    }

    fn list_noting(
        &self,
        prefix: Option<&Path>,
        after: Option<&Path>,
        omissions: &Omissions,
    ) -> Objects {
        self.by_pages(&self.client.objects, prefix, after, omissions)
    }

    async fn delete_if(&self, path: &Path, condition: &DeleteCondition) -> Result<()> {
        self.delete_matching(path, condition).await
    }

    async fn stat(&self, path: &Path) -> Result<Option<Finished>> {
        self.head_object(path).await
    }

    /// Parts that a client numbers go by the XML API, everything else by sessions of the JSON API; tags are not kept.
    async fn open_session(&self, path: &Path, options: &SessionOptions) -> Result<NewSession> {
        if !options.numbered {
            return Ok(Box::new(self.open(path, options).await?));
        }
        check(path)?;
        let (key, client) = (self.full_path(path), &self.client.objects);
        let create = options.attributes.clone().into();
        let id = client.create_multipart_opts(&key, create).await?;
        Ok(PartsSession::begun(self.clone(), path, options, id))
    }

    async fn resume_session(
        &self,
        path: &Path,
        options: &SessionOptions,
        token: &SessionToken,
    ) -> Result<NewSession> {
        if !options.numbered {
            return Ok(Box::new(self.take_over(path, options, token)?));
        }
        PartsSession::resume(self.clone(), path, options, token)
    }
}

/// Uploads by the XML API.
#[async_trait]
impl PartStore for GcsStore {
    async fn put_part(
        &self,
        path: &Path,
        upload: &str,
        number: u16,
        length: u64,
        body: PartBody,
    ) -> Result<String> {
        let part = Request::new(Method::PUT).part(path, length, body);
        self.send_part(path, upload, number.into(), part).await
    }

    async fn uploaded_parts(
        &self,
        path: &Path,
        upload: &str,
        after: u16,
        max: usize,
    ) -> Result<ListedParts> {
        self.list_parts(path, upload, after, max).await
    }

    async fn complete_upload(
        &self,
        path: &Path,
        upload: &str,
        parts: &[UploadedPart],
        CompleteOptions { mode, .. }: CompleteOptions,
    ) -> Result<PutResult> {
        // Google documents no condition for it, so one would not be enforced.
        if !matches!(mode, PutMode::Overwrite) {
            return Err(not_supported_error(
                "Google's multipart uploads take no condition; upload in one request, or without the condition",
            ));
        }
        let sent = self.complete_parts(path, upload, HeaderMap::new(), parts, false);
        Ok(sent.await?.into())
    }

    async fn abort_upload(&self, path: &Path, upload: &str) -> Result<()> {
        let path = self.full_path(path);
        self.client
            .objects
            .abort_multipart(&path, &upload.to_owned())
            .await
    }
}

impl XmlUploads for GcsStore {
    const STORE: &'static str = client::STORE;

    async fn send_request(&self, path: &Path, request: Request) -> Result<Response> {
        self.send(path, request).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emulator_host_may_lack_a_scheme() {
        assert_eq!(emulator("127.0.0.1:9"), "http://127.0.0.1:9");
        assert_eq!(emulator("https://gcs.local/"), "https://gcs.local");
    }
}
