//! Opening, taking over and signing of sessions.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use object_store::path::Path;
use object_store::signer::{SignedUrlOptions, Signer};
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, Result, UpdateVersion};
use url::Url;

use super::GcsStore;
use super::client::{self, GcsSession, STORE, generic};
use super::session::{SignedStart, Start};
use crate::error::precondition_error;
use crate::http_client::HttpClient;
use crate::odd_keys::check;
use crate::session::{Finished, SessionOptions, SessionToken, UploadSession};

impl GcsStore {
    fn endpoint(&self) -> Result<Url> {
        let endpoint = &self.client.endpoint;
        let url = endpoint.parse();
        url.map_err(|error| generic(format!("the endpoint {endpoint}: {error}")))
    }

    /// Returns length and checksum of an object, which object_store's HEAD by the XML API leaves out.
    pub(super) async fn head_object(&self, path: &Path) -> Result<Option<Finished>> {
        check(path)?;
        let key = self.full_path(path);
        let bearer = self.client.bearer().await?;
        let place = (&self.endpoint()?, self.client.bucket.as_str(), key.as_ref());
        client::head_object(&self.client.http, place, bearer.as_deref()).await
    }

    pub(super) async fn open(&self, path: &Path, options: &SessionOptions) -> Result<GcsSession> {
        let client = &self.client;
        check(path)?;
        let key = self.full_path(path);
        let bearer = self.client.bearer().await?;
        let if_generation = match &options.mode {
            PutMode::Overwrite => None,
            PutMode::Create => Some("0".to_owned()),
            PutMode::Update(version) => Some(generation(&client.objects, &key, version).await?),
        };
        let start = Start {
            bucket: &client.bucket,
            key: key.as_ref(),
            if_generation: if_generation.as_deref(),
            attributes: &options.attributes,
            length: options.length,
        };
        GcsSession::open(
            &client.http,
            &self.endpoint()?,
            bearer.as_deref(),
            &start,
            options.stall,
        )
        .await
    }

    pub(super) fn take_over(
        &self,
        path: &Path,
        options: &SessionOptions,
        token: &SessionToken,
    ) -> Result<GcsSession> {
        check(path)?;
        let key = self.full_path(path);
        let create = matches!(options.mode, PutMode::Create);
        let http = &self.client.http;
        GcsSession::resume(http, token, key.as_ref(), create, options.stall)
    }

    /// Returns a URL with which one upload of `path` may be opened within `validity` (at most 7 days), by
    /// [`open_signed_session`] and with exactly these headers: a content type or a precondition, for instance.
    ///
    /// # Errors
    /// If the credentials cannot sign.
    pub async fn sign_upload(
        &self,
        path: &Path,
        validity: Duration,
        headers: &HeaderMap,
    ) -> Result<Url> {
        check(path)?;
        let resumable = HeaderName::from_static("x-goog-resumable");
        let start = HeaderValue::from_static("start");
        let mut options = SignedUrlOptions::new().with_signed_header(resumable, start);
        for (name, value) in headers {
            options = options.with_signed_header(name.clone(), value.clone());
        }
        let objects = &self.client.objects;
        objects
            .signed_url_opts(Method::POST, &self.full_path(path), validity, &options)
            .await
    }
}

/// Opens the upload for which `url` was signed, without credentials. `headers` are those for which it was signed,
/// except `host` and `x-goog-resumable`.
///
/// # Errors
/// `Generic`, with the name of each header that is missing or was not signed; otherwise as any request.
pub async fn open_signed_session(url: &Url, headers: HeaderMap) -> Result<Box<dyn UploadSession>> {
    let start = SignedStart::new(url, headers)
        .map_err(|text| generic(format!("start upload of {}: {text}", url.path())))?;
    let http = HttpClient::new(STORE)?;
    let session =
        GcsSession::open_signed(&http, url, start, SessionOptions::default().stall).await?;
    Ok(Box::new(session))
}

/// Returns the generation to replace, as Google's conditions require. If only the ETag is known, looks up the
/// generation that has it.
pub(super) async fn generation(
    objects: &impl ObjectStore,
    key: &Path,
    version: &UpdateVersion,
) -> Result<String> {
    if let Some(generation) = &version.version {
        return Ok(generation.clone());
    }
    if version.e_tag.is_none() {
        let text = format!("{key}: an ETag or a generation is needed to replace conditionally");
        return Err(generic(text));
    }
    let another = |text: &str| precondition_error(key, text);
    let found = match objects.head(key).await {
        Err(Error::NotFound { path, source }) => return Err(Error::Precondition { path, source }),
        found => found?,
    };
    if found.e_tag != version.e_tag {
        return Err(another("the object has another ETag"));
    }
    found
        .version
        .ok_or_else(|| another("the store names no generation"))
}
