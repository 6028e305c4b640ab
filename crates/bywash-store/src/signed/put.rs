//! Objects by one PUT of a signed URL: from memory if they are small, and otherwise as their bytes come.
//!
//! The body of a longer object is one request, which the chunks of the upload feed one after another. So an upload needs
//! a few chunks of memory for any length of the object, but nothing can be sent again: if the request fails, the upload
//! does.

use std::fmt;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use http::header::{CONTENT_TYPE, HeaderName, IF_MATCH, IF_NONE_MATCH};
use http::{HeaderMap, HeaderValue, Method};
use object_store::path::Path;
use object_store::{Attributes, PutMode, PutOptions, PutPayload, PutResult, Result};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::address::SignedUrl;
use super::error::{STORE, misuse};
use crate::digest::{ContentDigest, RunningDigest, pieces_md5, stated_by_put};
use crate::error::OriginError;
use crate::http_client::{HttpClient, Request, Response};
use crate::limits::MAX_PART_BYTES;
use crate::session::{
    CompleteRequest, Finished, PartReceipt, SessionOptions, SessionPart, SessionStatus,
    SessionToken, StoredRange, UploadSession,
};
use crate::whole_put::{compare, refused};
use crate::{gcs, s3};

/// Client for one signed PUT.
#[derive(Debug, Clone)]
pub(super) struct SignedPut {
    pub(super) http: HttpClient,
    pub(super) url: SignedUrl,
}

impl SignedPut {
    /// Returns the headers of the request: those for which the URL was signed, and content headers.
    ///
    /// # Errors
    /// Names each header that was signed and is not known, and each of the store's own that was not signed: the store
    /// would refuse either without naming it.
    fn headers(&self, object: &Path, attributes: &Attributes, mode: &PutMode) -> Result<HeaderMap> {
        let is_google = self.url.is_google();
        let mut headers = if is_google {
            gcs::attribute_headers(attributes)
        } else {
            s3::attribute_headers(attributes)
        };
        if self.url.is_version_2() {
            headers.remove(CONTENT_TYPE);
        }
        let condition = match (mode, is_google) {
            (PutMode::Overwrite, _) => None,
            (PutMode::Create, true) => Some(("x-goog-if-generation-match", Some("0".to_owned()))),
            (PutMode::Create, false) => Some((IF_NONE_MATCH.as_str(), Some("*".to_owned()))),
            (PutMode::Update(version), true) => {
                Some(("x-goog-if-generation-match", version.version.clone()))
            }
            (PutMode::Update(version), false) => Some((IF_MATCH.as_str(), version.e_tag.clone())),
        };
        if let Some((name, value)) = condition {
            let value = value.and_then(|value| HeaderValue::from_str(&value).ok());
            let value = value
                .ok_or_else(|| misuse(object, "its condition cannot be sent to this address"))?;
            headers.insert(HeaderName::from_static(name), value);
        }
        headers.extend(self.url.headers().clone());
        let signed = self.url.signed_headers();
        let implied = ["host", "content-length", "content-md5"];
        let missing = signed
            .iter()
            .filter(|name| !implied.contains(&&***name) && !headers.contains_key(&***name));
        let missing: Vec<&str> = missing.map(String::as_str).collect();
        if !missing.is_empty() {
            let names = missing.join(", ");
            let text = format!("its address is signed for headers that are not given: {names}");
            return Err(misuse(object, &text));
        }
        let own = |name: &str| name.starts_with("x-amz-") || name.starts_with("x-goog-");
        let stray = headers.keys().map(HeaderName::as_str).filter(|name| {
            own(name) && !self.url.is_version_2() && !signed.iter().any(|known| known == name)
        });
        let stray: Vec<&str> = stray.collect();
        if !stray.is_empty() {
            let names = stray.join(", ");
            let text = format!("its address is not signed for these headers: {names}");
            return Err(misuse(object, &text));
        }
        Ok(headers)
    }

    fn host(&self) -> &str {
        self.url.url().host_str().unwrap_or_default()
    }

    /// Stores an object that is in memory.
    pub(super) async fn put(
        &self,
        object: &Path,
        payload: PutPayload,
        options: &PutOptions,
    ) -> Result<PutResult> {
        let pieces: Vec<Bytes> = payload.into_iter().collect();
        let mut headers = self.headers(object, &options.attributes, &options.mode)?;
        if !self.url.is_version_2()
            && let Ok(md5) = HeaderValue::from_str(&pieces_md5(&pieces))
        {
            headers.insert(HeaderName::from_static("content-md5"), md5);
        }
        let request = Request::new(Method::PUT)
            .headers(headers)
            .body(pieces.clone());
        let response = self.http.send(self.url.url().clone(), request).await?;
        if !response.status.is_success() {
            return Err(refused(STORE, object, &response, &options.mode));
        }
        compare(self.host(), object, &response, &pieces)?;
        Ok(stored(&response).into())
    }

    /// Opens the stream of a longer object. Sends no request yet.
    pub(super) fn open(&self, object: &Path, options: &SessionOptions) -> Result<PutStream> {
        let length = options.length.ok_or_else(|| {
            misuse(
                object,
                "one PUT announces its length, which is not known; copy a file, or have parts signed: bywash presign --parts",
            )
        })?;
        if length > MAX_PART_BYTES && !self.url.is_google() {
            let text = format!(
                "S3 takes at most {MAX_PART_BYTES} bytes by one PUT, and these are {length}; have parts signed: bywash presign \
                 --parts"
            );
            return Err(misuse(object, &text));
        }
        let headers = self.headers(object, &options.attributes, &options.mode)?;
        Ok(PutStream {
            put: self.clone(),
            object: object.clone(),
            headers,
            length,
            mode: options.mode.clone(),
            state: Mutex::new(StreamState {
                body: None,
                begun: false,
                taken: 0,
                crc64: RunningDigest::like(&ContentDigest::Crc64Nvme(0)),
            }),
            request: tokio::sync::Mutex::new(None),
        })
    }
}

fn stored(response: &Response) -> Finished {
    let header = |name| response.header(name).map(str::to_owned);
    Finished {
        e_tag: header("etag"),
        version: header("x-amz-version-id").or_else(|| header("x-goog-generation")),
        ..Finished::default()
    }
}

/// The request of an object whose bytes are still to come.
pub(super) struct PutStream {
    put: SignedPut,
    object: Path,
    headers: HeaderMap,
    /// Bytes of the object.
    length: u64,
    mode: PutMode,
    state: Mutex<StreamState>,
    /// The request in flight; `None` before its first byte, and once its response was taken.
    request: tokio::sync::Mutex<Option<JoinHandle<Result<Response>>>>,
}

struct StreamState {
    /// Feeds the request's body.
    body: Option<mpsc::Sender<Bytes>>,
    begun: bool,
    /// Bytes that the request has.
    taken: u64,
    crc64: RunningDigest,
}

impl fmt::Debug for PutStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PutStream({} <redacted>)", self.put.url)
    }
}

impl PutStream {
    /// Begins the request, unless it has begun. Returns the sender of its body, unless that has ended.
    async fn begin(&self) -> Option<mpsc::Sender<Bytes>> {
        let mut request = self.request.lock().await;
        let mut state = self.state.lock();
        if !state.begun {
            state.begun = true;
            let (sender, receiver) = mpsc::channel(1);
            state.body = Some(sender);
            let body = futures::stream::unfold(receiver, async |mut receiver| {
                let piece = receiver.recv().await?;
                Some((Ok(piece), receiver))
            });
            let sent = Request::new(Method::PUT)
                .headers(self.headers.clone())
                .part(&self.object, self.length, body.boxed());
            let (http, url) = (self.put.http.clone(), self.put.url.url().clone());
            *request = Some(tokio::spawn(async move { http.send(url, sent).await }));
        }
        state.body.clone()
    }

    /// Feeds the part of these pieces that the request does not have. Cancel-safe.
    async fn feed(&self, offset: u64, pieces: &[Bytes]) -> Result<()> {
        let mut at = offset;
        for piece in pieces {
            let end = at + piece.len() as u64;
            let taken = self.state.lock().taken;
            if end > taken {
                let rest = piece.slice(taken.saturating_sub(at) as usize..);
                let Some(body) = self.begin().await else {
                    return Err(self.failed().await);
                };
                let Ok(room) = body.reserve().await else {
                    return Err(self.failed().await);
                };
                let mut state = self.state.lock();
                state.crc64.update(&rest);
                state.taken = end;
                room.send(rest);
            }
            at = end;
        }
        Ok(())
    }

    /// Waits for the response. Cancel-safe; the response is returned once.
    async fn response(&self) -> Result<Response> {
        let mut request = self.request.lock().await;
        let Some(task) = request.as_mut() else {
            return Err(self.not_resumable("the request has ended"));
        };
        let joined = task.await;
        *request = None;
        self.state.lock().body = None;
        joined
            .unwrap_or_else(|source| Err(object_store::Error::JoinError { source }))
            .map_err(|error| self.not_resumable(&error.to_string()))
    }

    /// Returns why the request ended before it had all bytes.
    async fn failed(&self) -> object_store::Error {
        match self.response().await {
            Err(error) => error,
            Ok(response) if response.status.is_success() => {
                self.not_resumable("the store's response came before the last byte")
            }
            Ok(response) => self.refused(&response),
        }
    }

    fn refused(&self, response: &Response) -> object_store::Error {
        let error = refused(STORE, &self.object, response, &self.mode);
        // A failure that another attempt would repair, if there could be one.
        if response.status.is_server_error() || matches!(response.status.as_u16(), 408 | 429) {
            self.not_resumable(&error.to_string())
        } else {
            error
        }
    }

    fn not_resumable(&self, reason: &str) -> object_store::Error {
        let text = format!(
            "{reason}; an object that one PUT stores cannot be resumed: copy it again, or have parts signed: bywash presign --parts"
        );
        misuse(&self.object, &text)
    }
}

#[async_trait]
impl UploadSession for PutStream {
    fn token(&self) -> SessionToken {
        SessionToken(String::new())
    }

    fn can_be_continued(&self) -> bool {
        false
    }

    async fn put(&self, part: SessionPart) -> Result<PartReceipt> {
        let chunk = part.into_chunk()?;
        self.feed(chunk.offset, &chunk.pieces).await?;
        Ok(PartReceipt::to(chunk.range().end))
    }

    /// Returns the bytes that the request has: they are at the store once it has responded.
    async fn status(&self) -> Result<SessionStatus> {
        let ended = {
            let request = self.request.lock().await;
            request.as_ref().map(JoinHandle::is_finished)
        };
        let (taken, begun) = {
            let state = self.state.lock();
            (state.taken, state.begun)
        };
        match (begun, ended) {
            (true, Some(true) | None) => Err(self.failed().await),
            _ if taken == 0 => Ok(SessionStatus::Open(Vec::new())),
            _ => Ok(SessionStatus::Open(vec![StoredRange {
                range: 0..taken,
                digest: None,
            }])),
        }
    }

    async fn finish(&self, ending: &CompleteRequest) -> Result<Finished> {
        if let Some(tail) = &ending.tail {
            self.feed(tail.offset, &tail.pieces).await?;
        }
        self.begin().await;
        self.state.lock().body = None;
        let response = self.response().await?;
        if !response.status.is_success() {
            return Err(self.refused(&response));
        }
        let stated = stated_by_put(self.put.host(), &response.headers);
        let sent = self.state.lock().crc64.clone().finish();
        match stated {
            Some(ContentDigest::Crc64Nvme(_)) if stated != Some(sent) => {
                Err(OriginError::upload_damaged(
                    &self.object,
                    format!("the store has an object with another digest, and {sent} was sent"),
                ))
            }
            Some(ContentDigest::Crc32c(crc)) => Ok(Finished {
                crc32c: Some(crc),
                ..stored(&response)
            }),
            _ => Ok(stored(&response)),
        }
    }

    async fn abort(&self) -> Result<()> {
        self.state.lock().body = None;
        if let Some(task) = self.request.lock().await.take() {
            task.abort();
        }
        Ok(())
    }
}
