//! Signed URLs as origins: the code that writes to a bucket also writes to an address that someone with credentials has signed.
//!
//! | signed for | an upload is | after a failure |
//! |---|---|---|
//! | one PUT (S3, Google) | one request; of more than a chunk, fed as its bytes come | sent again up to one chunk, else an error |
//! | the start of a resumable upload (Google) | a session | resumed at the stored offset |
//! | a blob (Azure's shared access signature) | a PUT, or blocks | blocks are sent again; listed if the signature allows it |
//! | parts of one upload (S3, [`PartUrls`]) | the parts | parts are sent again; listed if an address was signed for it |
//!
//! The token of a session contains the addresses that another process needs, so it is as secret as they are.

mod address;
mod error;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod put;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use futures::StreamExt;
use futures::stream::{self};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use url::{Host, Url};

use self::error::{STORE, explained, misuse, not_supported};
use self::put::SignedPut;
use super::azure::AzureStore;
use super::gcs::{self, GcsSession, SignedStart};
use super::http_client::HttpClient;
use super::interface::{Capabilities, Origin, lacks};
use super::layer::{LayerSession, OriginRequest, Policy};
use super::s3::S3Session;
use super::session::{
    ChunkRule, Finished, NewSession, SessionOptions, SessionToken, UploadSession,
};
use crate::error::generic_error;
use crate::limits::MAX_PART_BYTES;
use crate::page::{Keys, Objects};

pub use self::address::{SignedKind, SignedUrl};
pub use super::s3::PartUrls;

/// Rule for one PUT, whose bytes may be cut anywhere.
const PUT_RULE: ChunkRule = ChunkRule {
    granule: 1,
    min: 1,
    max: MAX_PART_BYTES,
    max_chunks: None,
    parallel: false,
};

/// Addresses that were signed for one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SignedTarget {
    /// One URL.
    Url(SignedUrl),
    /// The URLs of an upload in parts.
    Parts(Arc<PartUrls>),
}

/// Displays the object's address without secrets.
impl fmt::Display for SignedTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(url) => url.fmt(f),
            Self::Parts(urls) => f.write_str(&urls.object),
        }
    }
}

impl SignedTarget {
    /// The object's path, for messages.
    #[must_use]
    pub fn object(&self) -> Path {
        match self {
            Self::Url(url) => url.object(),
            Self::Parts(urls) => {
                let key = urls
                    .object
                    .split_once("://")
                    .map_or(&*urls.object, |(_, key)| key);
                Path::from(key)
            }
        }
    }
}

/// An origin with one object, which can be written by the addresses signed for it, and not be read.
pub struct SignedStore {
    place: Place,
    /// Its address, without secrets.
    name: String,
    expires: Option<DateTime<Utc>>,
}

enum Place {
    Put(SignedPut),
    /// `None`: only sessions that were recorded are continued.
    Resumable(HttpClient, Option<SignedUrl>),
    Blob(Box<AzureStore>, Path, SignedUrl),
    Parts(HttpClient, Arc<PartUrls>),
}

impl fmt::Debug for SignedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SignedStore({} <redacted>)", self.name)
    }
}

impl fmt::Display for SignedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Kinds of tokens: the first word of the first line. The lines that follow are the session's own.
const RESUMABLE: &str = "signed-resumable";
const BLOB: &str = "signed-blob";
const PARTS: &str = "signed-parts";

impl SignedStore {
    /// Opens the signed addresses. Sends no request.
    ///
    /// # Errors
    /// If the URL names no blob.
    pub fn open(target: &SignedTarget) -> Result<Self> {
        let http = HttpClient::new(STORE)?;
        let (place, expires) = match target {
            SignedTarget::Url(url) => {
                let place = match url.kind() {
                    SignedKind::Put => Place::Put(SignedPut {
                        http,
                        url: url.clone(),
                    }),
                    SignedKind::ResumableStart => Place::Resumable(http, Some(url.clone())),
                    SignedKind::Blob => {
                        let (store, blob) = blob(url)?;
                        Place::Blob(Box::new(store), blob, url.clone())
                    }
                };
                (place, url.expires())
            }
            SignedTarget::Parts(urls) => {
                let expires = urls.expires.as_deref();
                let expires = expires.and_then(|time| DateTime::parse_from_rfc3339(time).ok());
                let place = Place::Parts(http, Arc::clone(urls));
                (place, expires.map(|time| time.to_utc()))
            }
        };
        Ok(Self {
            place,
            name: target.to_string(),
            expires,
        })
    }

    /// Opens the address needed to continue a session of this token; `None` if its address was not signed. Sends no request.
    ///
    /// # Errors
    /// If the token cannot be read.
    pub fn recorded(token: &SessionToken) -> Option<Result<Self>> {
        let (kind, detail, _) = split(token)?;
        let target = match kind {
            RESUMABLE => {
                let http = HttpClient::new(STORE);
                return Some(http.map(|http| Self {
                    place: Place::Resumable(http, None),
                    name: "a resumable upload".to_owned(),
                    expires: None,
                }));
            }
            BLOB => {
                let url = Url::parse(detail).ok().and_then(SignedUrl::new);
                url.map(SignedTarget::Url)
            }
            _ => {
                let urls = PartUrls::from_json(detail).ok();
                urls.map(|urls| SignedTarget::Parts(Arc::new(urls)))
            }
        };
        Some(match target {
            Some(target) => Self::open(&target),
            None => Err(generic_error(
                STORE,
                "the recorded session is not valid; upload it again",
            )),
        })
    }
}

/// Splits a token into its kind, the signed address, and the session's own token.
fn split(token: &SessionToken) -> Option<(&'static str, &str, &str)> {
    let (head, inner) = token.0.split_once('\n')?;
    let (kind, detail) = head.split_once(' ').unwrap_or((head, ""));
    let kind = [RESUMABLE, BLOB, PARTS]
        .into_iter()
        .find(|known| *known == kind)?;
    Some((kind, detail, inner))
}

/// Returns whether two recorded sessions are one at the store, so that both end when one does: by addresses of the same upload or blob,
/// whenever they were signed. False for sessions whose address was not signed.
pub fn is_one_session(one: &SessionToken, other: &SessionToken) -> bool {
    let target = |token: &SessionToken| {
        let (kind, detail, _) = split(token)?;
        match kind {
            PARTS => {
                let urls = PartUrls::from_json(detail).ok()?;
                let mut complete = Url::parse(&urls.complete).ok()?;
                // The one that the store uses.
                let id = complete.query_pairs().find(|(name, _)| name == "uploadId");
                let id = id.map_or(urls.upload_id, |(_, id)| id.into_owned());
                complete.set_query(None);
                Some((kind, complete, id))
            }
            BLOB => {
                let mut blob = Url::parse(detail).ok()?;
                blob.set_query(None);
                Some((kind, blob, String::new()))
            }
            _ => None,
        }
    };
    let target_of_one = target(one);
    target_of_one.is_some() && target_of_one == target(other)
}

/// Opens the container of a blob with the URL's signature.
fn blob(url: &SignedUrl) -> Result<(AzureStore, Path)> {
    let no_blob = || {
        let text = format!(
            "{url} names no blob; write https://account.blob.core.windows.net/container/blob?..."
        );
        generic_error(STORE, text)
    };
    let address = url.url();
    let segments: Vec<&str> = address.path_segments().ok_or_else(no_blob)?.collect();
    // Emulators and proxies have the account in the path.
    let host = match address.host() {
        Some(Host::Domain(host)) if host != "localhost" && host.contains('.') => Some(host),
        _ => None,
    };
    let (account, segments) = match (host, &segments[..]) {
        (Some(host), all) => (host.split('.').next().unwrap_or_default(), all),
        (None, [account, rest @ ..]) => (*account, rest),
        (None, []) => return Err(no_blob()),
    };
    let [container, blob @ ..] = segments else {
        return Err(no_blob());
    };
    let blob = Path::from_url_path(blob.join("/")).map_err(|_| no_blob())?;
    if container.is_empty() || blob.is_root() {
        return Err(no_blob());
    }
    let mut endpoint = address.clone();
    endpoint.set_query(None);
    endpoint.set_path(if host.is_some() { "" } else { account });
    let query: Vec<(String, String)> = address
        .query_pairs()
        .map(|(name, value)| (name.into_owned(), value.into_owned()))
        .collect();
    let builder = MicrosoftAzureBuilder::new()
        .with_account(account)
        .with_endpoint(endpoint.to_string())
        .with_container_name(*container)
        .with_sas_authorization(query);
    let store = AzureStore::from_builder(builder, container, &Path::ROOT)?;
    Ok((store, blob))
}

impl SignedStore {
    /// Explains the refusal of an address that is valid no longer.
    fn explained(&self, error: Error) -> Error {
        explained(&self.name, self.expires, error)
    }

    fn signed(
        &self,
        session: impl UploadSession + 'static,
        prefix: String,
    ) -> Box<dyn UploadSession> {
        let policy = SignedSession {
            prefix,
            name: self.name.clone(),
            expires: self.expires,
        };
        Box::new(LayerSession::over(Box::new(session), policy))
    }

    async fn start(
        &self,
        http: &HttpClient,
        url: Option<&SignedUrl>,
        path: &Path,
        options: &SessionOptions,
    ) -> Result<GcsSession> {
        let url = url.ok_or_else(|| misuse(path, "it has no address to begin an upload with"))?;
        let mut headers = gcs::attribute_headers(&options.attributes);
        let condition = match &options.mode {
            PutMode::Overwrite => None,
            PutMode::Create => Some("0".to_owned()),
            PutMode::Update(version) => version.version.clone(),
        };
        if let Some(Ok(generation)) = condition.map(|text| text.parse()) {
            headers.insert("x-goog-if-generation-match", generation);
        } else if options.mode != PutMode::Overwrite {
            return Err(misuse(path, "its condition needs the object's generation"));
        }
        headers.extend(url.headers().clone());
        let start = SignedStart::new(url.url(), headers).map_err(|reason| misuse(path, &reason))?;
        GcsSession::open_signed(http, url.url(), start, options.stall).await
    }
}

/// Refuses uploads that a signed address cannot begin.
fn check_options(options: &SessionOptions) -> Result<()> {
    if options.numbered || !options.tags.encoded().is_empty() {
        return Err(lacks("signed", "uploads in numbered parts"));
    }
    Ok(())
}

#[async_trait]
impl Origin for SignedStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            chunk_rule: match &self.place {
                Place::Put(_) => PUT_RULE,
                Place::Resumable(..) => gcs::RULE,
                Place::Blob(store, ..) => store.capabilities().chunk_rule,
                Place::Parts(_, urls) => urls.rule(),
            },
            needs_session: !matches!(self.place, Place::Put(_) | Place::Blob(..)),
            begins_sessions: !matches!(self.place, Place::Parts(..) | Place::Resumable(_, None)),
            lists: false,
            ..Capabilities::of("signed")
        }
    }

    async fn open_session(&self, path: &Path, options: &SessionOptions) -> Result<NewSession> {
        check_options(options)?;
        Ok(match &self.place {
            Place::Put(put) => self.signed(put.open(path, options)?, String::new()),
            Place::Resumable(http, url) => {
                let started = self.start(http, url.as_ref(), path, options).await;
                let session = started.map_err(|error| self.explained(error))?;
                self.signed(session, format!("{RESUMABLE}\n"))
            }
            Place::Blob(store, blob, url) => {
                let session = store.open(blob, options)?;
                self.signed(session, format!("{BLOB} {}\n", url.url()))
            }
            Place::Parts(http, urls) => {
                let session = S3Session::signed_ahead(urls, http, path, options, None);
                self.signed(session, format!("{PARTS} {}\n", urls.to_json()))
            }
        })
    }

    async fn resume_session(
        &self,
        path: &Path,
        options: &SessionOptions,
        token: &SessionToken,
    ) -> Result<NewSession> {
        check_options(options)?;
        let parts = split(token);
        let invalid = || {
            let reason = "an object that one PUT stores cannot be resumed, nor one that was begun at another address; upload it again";
            misuse(path, reason)
        };
        let (kind, detail, inner) = parts.ok_or_else(invalid)?;
        let own = SessionToken(inner.to_owned());
        Ok(match (&self.place, kind) {
            (Place::Resumable(http, _), RESUMABLE) => {
                let create = options.mode == PutMode::Create;
                let object = path.as_ref();
                let session = GcsSession::resume(http, &own, object, create, options.stall)?;
                self.signed(session, format!("{RESUMABLE}\n"))
            }
            (Place::Blob(store, blob, _), BLOB) => {
                let session = store.take_over(blob, options, &own)?;
                self.signed(session, format!("{BLOB} {detail}\n"))
            }
            (Place::Parts(http, urls), PARTS) => {
                let session = S3Session::signed_ahead(urls, http, path, options, Some(inner));
                self.signed(session, format!("{PARTS} {}\n", urls.to_json()))
            }
            _ => return Err(invalid()),
        })
    }

    async fn stat(&self, path: &Path) -> Result<Option<Finished>> {
        match &self.place {
            Place::Put(_) | Place::Resumable(..) => Ok(None),
            Place::Blob(store, blob, _) => store.stat(blob).await,
            Place::Parts(http, urls) => {
                let options = SessionOptions::default();
                S3Session::signed_ahead(urls, http, path, &options, None)
                    .stat()
                    .await
            }
        }
    }
}

#[async_trait]
impl ObjectStore for SignedStore {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let put = match &self.place {
            Place::Put(put) => put.put(path, payload, &options).await,
            Place::Blob(store, blob, _) => store.put_opts(blob, payload, options).await,
            Place::Resumable(..) | Place::Parts(..) => {
                Err(misuse(path, "its address takes no whole object"))
            }
        };
        put.map_err(|error| self.explained(error))
    }

    async fn get_opts(&self, path: &Path, _: GetOptions) -> Result<GetResult> {
        Err(not_supported("read", path))
    }

    fn list(&self, prefix: Option<&Path>) -> Objects {
        let error = not_supported("listed", prefix.unwrap_or(&Path::ROOT));
        stream::iter([Err(error)]).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        Err(not_supported("listed", prefix.unwrap_or(&Path::ROOT)))
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Err(not_supported("uploaded in numbered parts", path))
    }

    fn delete_stream(&self, paths: Keys) -> Keys {
        paths
            .map(|path| path.and_then(|path| Err(not_supported("deleted", &path))))
            .boxed()
    }

    async fn copy_opts(&self, _: &Path, to: &Path, _: CopyOptions) -> Result<()> {
        Err(not_supported("copied", to))
    }
}

/// The layer of a session, whose token names the signed address too.
#[derive(Debug, Clone)]
struct SignedSession {
    /// Empty if it cannot be continued.
    prefix: String,
    name: String,
    expires: Option<DateTime<Utc>>,
}

impl Policy for SignedSession {
    fn token(&self, token: SessionToken) -> SessionToken {
        SessionToken(format!("{}{}", self.prefix, token.0))
    }

    async fn watch<T: Send>(
        &self,
        _: OriginRequest,
        sent: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        let result = sent.await;
        result.map_err(|error| explained(&self.name, self.expires, error))
    }
}
