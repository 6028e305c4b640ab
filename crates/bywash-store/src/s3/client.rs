//! I/O of multipart sessions: sends the requests of `multipart.rs`, and converts its outcomes into the engine's errors.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::Method;
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{Error, PutMode, PutMultipartOptions, Result};
use parking_lot::Mutex;

use super::S3Store;
use super::multipart::{self, Checksums, NO_COPIES, Part, Parts, S3Upload, UploadsPage};
use super::part_urls::PartUrls;
use super::put::Special;
use super::tags::{is_unknown, no_tags, of_client};
use crate::cloud::CloudClient;
use crate::digest::{ContentDigest, crc32c_of_base64, stated_digest};
use crate::error::{OriginError, generic_error};
use crate::http_client::{HttpClient, Request, Response};
use crate::interface::{ListedParts, UploadedPart, lacks};
use crate::limits::MAX_UPLOADS_PAGE_BYTES;
use crate::multipart_xml::{MultipartOutcome, PARTS_PER_PAGE, complete_body};
use crate::odd_keys::check;
use crate::session::{
    Chunk, CompleteRequest, Finished, OpenSession, PartPlace, PartReceipt, PartSource,
    SessionOptions, SessionPart, SessionStatus, SessionToken, UploadSession,
};
use crate::xml_uploads::XmlUploads;

/// Name of this kind of store in errors.
pub(super) const STORE: &str = "S3";
/// Time for which S3 may join parts without sending a byte.
pub(super) const JOINING: Duration = Duration::from_secs(600);

/// Source of the addresses of a session's requests.
#[derive(Clone)]
enum Signing {
    /// Signed one by one, with the store's credentials.
    Store(S3Store),
    /// Signed ahead.
    Ahead(Arc<PartUrls>, HttpClient),
}

/// A multipart upload.
pub(crate) struct S3Session {
    signing: Signing,
    path: Path,
    upload: S3Upload,
    mode: PutMode,
    /// A client numbers the parts.
    numbered: bool,
    /// Stall limit of a request; `None` if a client numbers the parts, as the caller watches them.
    stall: Option<Duration>,
    state: Arc<Mutex<S3SessionState>>,
}

#[derive(Debug)]
struct S3SessionState {
    /// Parts at the store, as far as known to this process or the previous one.
    parts: Parts,
    /// ETag of the object that the completion in progress would create.
    completing: Option<String>,
}

impl fmt::Debug for S3Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.signing {
            Signing::Store(store) => write!(f, "S3Session({store}/{} <redacted>)", self.path),
            Signing::Ahead(urls, _) => write!(f, "S3Session({} <redacted>)", urls.object),
        }
    }
}

fn generic(text: String) -> Error {
    generic_error(STORE, text)
}

impl S3Store {
    pub(super) async fn open(&self, path: &Path, options: &SessionOptions) -> Result<S3Session> {
        // Fails before the first byte is sent rather than after the last.
        multipart::complete_headers(Checksums::Md5, 0, &options.mode).map_err(generic)?;
        let is_tagged = !options.tags.encoded().is_empty();
        if let Some(special) = self.client.special
            && (options.numbered || is_tagged)
        {
            let id = self.start_special(special, path, options).await?;
            let upload = S3Upload::without_checksums(id);
            return Ok(self.session(path, options, upload, Parts::new()));
        }
        let headers = if options.numbered {
            multipart::attribute_headers(&options.attributes)
        } else {
            multipart::start_headers(&options.attributes)
        };
        let mut request = Request::new(Method::POST)
            .headers(headers)
            .query("uploads", "");
        if is_tagged {
            request = request.text("x-amz-tagging", options.tags.encoded());
        }
        let response = self.send(path, request).await?;
        if is_tagged && is_unknown(response.status) {
            return Err(no_tags());
        }
        let id = multipart::started(&response).ok_or_else(|| {
            let outcome = MultipartOutcome::of_failure(&response);
            outcome.into_error((STORE, "start upload of"), path, &response, false)
        })?;
        let checksums = Checksums::promised(&response);
        let upload = S3Upload { id, checksums };
        Ok(self.session(path, options, upload, Parts::new()))
    }

    /// Starts an upload by object_store's own request, which has the headers of these settings. Returns its id.
    async fn start_special(
        &self,
        special: Special,
        path: &Path,
        options: &SessionOptions,
    ) -> Result<String> {
        check(path)?;
        let mut create = PutMultipartOptions {
            attributes: options.attributes.clone(),
            tags: options.tags.clone(),
            ..PutMultipartOptions::default()
        };
        special.check(&mut create.attributes)?;
        let (key, objects) = (self.full_path(path), &self.client.objects);
        let created = objects.create_multipart_opts(&key, create).await;
        created.map_err(|error| match options.tags.encoded() {
            "" => error,
            _ => of_client(path, error),
        })
    }

    pub(super) fn take_over(
        &self,
        path: &Path,
        options: &SessionOptions,
        token: &SessionToken,
    ) -> Result<S3Session> {
        if options.numbered {
            let upload = S3Upload::without_checksums(token.0.clone());
            return Ok(self.session(path, options, upload, Parts::new()));
        }
        let (upload, parts) = S3Upload::parse(&token.0).ok_or_else(|| {
            generic(format!(
                "resume upload of {path}: the recorded session is not valid; upload it again"
            ))
        })?;
        Ok(self.session(path, options, upload, parts))
    }

    fn session(
        &self,
        path: &Path,
        options: &SessionOptions,
        upload: S3Upload,
        parts: Parts,
    ) -> S3Session {
        S3Session::new(Signing::Store(self.clone()), path, options, upload, parts)
    }

    /// Returns the open uploads below the prefix, of any program. Skips keys that no path of this origin writes.
    pub(super) async fn list_uploads(&self) -> Result<Vec<OpenSession>> {
        let prefix = self.full_path(&Path::ROOT);
        let failed = |reason: &str| generic(format!("list uploads below {self}: {reason}"));
        let (mut sessions, mut marker) = (Vec::new(), None);
        loop {
            let request = Request::new(Method::GET).max_response_bytes(MAX_UPLOADS_PAGE_BYTES);
            let query = multipart::uploads_query(&prefix, marker.as_ref()).into_iter();
            let request = query.fold(request, |request, (name, value)| request.query(name, value));
            let response = self.client.send(&Path::ROOT, request).await?;
            if !response.status.is_success() {
                let outcome = MultipartOutcome::of_failure(&response);
                let operation = (STORE, "list uploads below");
                return Err(outcome.into_error(operation, &prefix, &response, false));
            }
            let page = UploadsPage::parse(&response.body).map_err(|error| failed(&error))?;
            let next = page.next.clone();
            sessions.extend(page.sessions(&prefix));
            match next {
                None => return Ok(sessions),
                // A store that ignores markers would be queried forever.
                next if next == marker => {
                    return Err(failed("the store lists the same uploads again"));
                }
                next => marker = next,
            }
        }
    }

    /// Requests an object's metadata and checksum. S3 sends no checksum with a range.
    async fn head_with_checksum(&self, path: &Path) -> Result<Response> {
        let request = Request::new(Method::HEAD).text("x-amz-checksum-mode", "ENABLED");
        self.send(path, request).await
    }

    /// Returns an object's ETag and the checksum of its content, if the store has one of the whole object.
    pub(super) async fn head_digest(&self, path: &Path) -> Result<Option<(String, ContentDigest)>> {
        let response = self.head_with_checksum(path).await?;
        if !response.status.is_success() {
            return Err(response.error(STORE, "look for the checksum of", path.as_ref(), ""));
        }
        // An ETag that is a digest is known from the responses to reads.
        let digest = stated_digest("", response.status, &response.headers);
        Ok(response.header("etag").map(str::to_owned).zip(digest))
    }

    /// Returns an object's metadata, with its checksum if the store has one of the whole object.
    pub(super) async fn head_object(&self, path: &Path) -> Result<Option<Finished>> {
        found_object(path, &self.head_with_checksum(path).await?)
    }
}

/// Returns the object in the response to a HEAD.
fn found_object(path: &Path, response: &Response) -> Result<Option<Finished>> {
    if response.status == http::StatusCode::NOT_FOUND {
        return Ok(None);
    }
    if !response.status.is_success() {
        return Err(response.error(STORE, "look for", path.as_ref(), ""));
    }
    let header = |name| response.header(name).map(str::to_owned);
    // Required: a server that omits the type may return the checksum of the parts' checksums.
    let whole = response.header("x-amz-checksum-type") == Some("FULL_OBJECT");
    Ok(Some(Finished {
        e_tag: header("etag"),
        version: header("x-amz-version-id"),
        length: header("content-length").and_then(|length| length.parse().ok()),
        crc32c: header("x-amz-checksum-crc32c")
            .filter(|_| whole)
            .and_then(|crc| crc32c_of_base64(&crc)),
    }))
}

impl S3Session {
    fn new(
        signing: Signing,
        path: &Path,
        options: &SessionOptions,
        upload: S3Upload,
        parts: Parts,
    ) -> Self {
        Self {
            signing,
            path: path.clone(),
            upload,
            mode: options.mode.clone(),
            numbered: options.numbered,
            stall: (!options.numbered).then_some(options.stall),
            state: Arc::new(Mutex::new(S3SessionState {
                parts,
                completing: None,
            })),
        }
    }

    /// Returns the session of an upload that was begun elsewhere, by addresses that were signed ahead. `token`: from
    /// an earlier process, which knew parts.
    pub(crate) fn signed_ahead(
        urls: &Arc<PartUrls>,
        http: &HttpClient,
        path: &Path,
        options: &SessionOptions,
        token: Option<&str>,
    ) -> Self {
        let known = token.and_then(S3Upload::parse);
        let (upload, parts) = known.unwrap_or_else(|| {
            // No header of a checksum was signed.
            let upload = S3Upload::without_checksums(urls.upload_id.clone());
            (upload, Parts::new())
        });
        let signing = Signing::Ahead(Arc::clone(urls), http.clone());
        Self::new(signing, path, options, upload, parts)
    }

    /// Sends a request without a body that names only the upload.
    async fn send_about(&self, method: Method) -> Result<Response> {
        let request = Request::new(method).query("uploadId", &*self.upload.id);
        self.send_request(&self.path, request).await
    }

    fn joining(&self) -> Duration {
        match &self.signing {
            Signing::Store(store) => store.client.joining,
            Signing::Ahead(..) => JOINING,
        }
    }

    /// Lists the parts; `None` if the store does not know the upload.
    async fn list(&self) -> Result<Option<Parts>> {
        if let Signing::Ahead(urls, _) = &self.signing
            && urls.list.is_empty()
        {
            return Ok(Some(self.state.lock().parts.clone()));
        }
        let (mut parts, mut marker) = (Parts::new(), "0".to_owned());
        loop {
            let page = self.parts_page(&self.path, &self.upload.id, &marker, PARTS_PER_PAGE);
            let Some(page) = page.await? else {
                return Ok(None);
            };
            let next = match &self.signing {
                Signing::Store(_) => page
                    .next()
                    .filter(|next| **next != *marker)
                    .map(str::to_owned),
                Signing::Ahead(urls, _) => urls.marker_after(&marker),
            };
            parts.extend(page.parts.into_iter().map(|part| (part.number, part)));
            match next {
                Some(next) => marker = next,
                None => break,
            }
        }
        let mut state = self.state.lock();
        for (number, part) in &parts {
            // Acknowledged parts keep their acknowledged ETag, so that a completion detects a change at the store.
            state.parts.entry(*number).or_insert_with(|| part.clone());
        }
        Ok(Some(parts))
    }

    /// Sends a part by a request that has its headers and body. Returns its ETag.
    async fn put_request(
        &self,
        number: u64,
        size: u64,
        place: Option<PartPlace>,
        request: Request,
    ) -> Result<String> {
        // With any response, the old state of the part is no longer valid.
        self.state.lock().parts.remove(&number);
        let checksum = request.headers.get("x-amz-checksum-crc32c").cloned();
        let sent = self.send_part(&self.path, &self.upload.id, number, request);
        let e_tag = sent.await?;
        if place.is_some() {
            let part = Part {
                number,
                size,
                e_tag: e_tag.clone(),
                crc32c: checksum.and_then(|value| Some(value.to_str().ok()?.to_owned())),
                modified: None,
            };
            self.state.lock().parts.insert(number, part);
        }
        Ok(e_tag)
    }

    /// Completes an upload whose parts a client has numbered.
    async fn finish_numbered(&self, parts: &[UploadedPart]) -> Result<Finished> {
        let headers =
            multipart::complete_headers(Checksums::Md5, 0, &self.mode).map_err(generic)?;
        let is_create = matches!(self.mode, PutMode::Create);
        self.complete_parts(&self.path, &self.upload.id, headers, parts, is_create)
            .await
    }

    /// The parts of the completion, known or listed.
    async fn completion(&self, length: u64) -> Result<Vec<Part>> {
        if length == 0 {
            // An upload has at least one part.
            let empty = Chunk {
                index: 0,
                offset: 0,
                pieces: Vec::new(),
                crc32c: 0,
            };
            self.put((&empty).into()).await?;
        }
        let known = multipart::covering(&self.state.lock().parts, length).is_some();
        if !known && self.list().await?.is_none() {
            return Err(self.lost());
        }
        let mut state = self.state.lock();
        let Some(parts) = multipart::covering(&state.parts, length) else {
            let detail = format!("the parts that the store keeps are not the {length} bytes sent");
            return Err(self.damaged(&detail));
        };
        state.completing = multipart::object_e_tag(&parts);
        Ok(parts)
    }

    fn damaged(&self, detail: &str) -> Error {
        OriginError::upload_damaged(&self.path, detail.to_owned())
    }

    fn lost(&self) -> Error {
        OriginError::upload_lost(&self.path)
    }

    /// Looks for the object; `None` also if no address was signed for that.
    pub(crate) async fn stat(&self) -> Result<Option<Finished>> {
        match &self.signing {
            Signing::Store(store) => store.head_object(&self.path).await,
            Signing::Ahead(urls, _) if urls.head.is_none() => Ok(None),
            Signing::Ahead(..) => {
                let sent = self.send_about(Method::HEAD);
                found_object(&self.path, &sent.await?)
            }
        }
    }

    /// Handles a lost upload: if the object has the ETag of our completion, the completion succeeded.
    async fn proven(&self) -> Result<Option<Finished>> {
        let Some(wanted) = self.state.lock().completing.clone() else {
            return Ok(None);
        };
        let found = self.stat().await?;
        Ok(found.filter(|found| found.e_tag.as_ref() == Some(&wanted)))
    }
}

impl XmlUploads for S3Session {
    const STORE: &'static str = STORE;

    async fn send_request(&self, path: &Path, request: Request) -> Result<Response> {
        let request = match self.stall {
            Some(stall) => request.default_stall(stall),
            None => request,
        };
        match &self.signing {
            Signing::Store(store) => store.send(path, request).await,
            Signing::Ahead(urls, http) => {
                let url = urls
                    .url(&request.method, &request.pairs())
                    .map_err(|reason| {
                        Error::from(OriginError::SignedAddress {
                            object: path.to_string(),
                            reason,
                        })
                    })?;
                http.send(url, request).await
            }
        }
    }

    fn refused(
        &self,
        operation: &str,
        path: &Path,
        response: &Response,
        outcome: MultipartOutcome,
    ) -> Error {
        let is_create = matches!(self.mode, PutMode::Create);
        match outcome {
            MultipartOutcome::Gone if !self.numbered => self.lost(),
            outcome => outcome.into_error((STORE, operation), path, response, is_create),
        }
    }
}

#[async_trait]
impl UploadSession for S3Session {
    fn token(&self) -> SessionToken {
        if self.numbered {
            return SessionToken(self.upload.id.clone());
        }
        SessionToken(self.upload.token(&self.state.lock().parts))
    }

    fn may_have_chunks(&self) -> bool {
        matches!(&self.signing, Signing::Ahead(urls, _) if !urls.list.is_empty())
    }

    async fn put(&self, part: SessionPart) -> Result<PartReceipt> {
        let (number, length, place) = (part.number, part.length, part.place);
        let request = Request::new(Method::PUT);
        let request = match part.source {
            PartSource::Pieces(pieces) => {
                // Without a place, the upload has no checksums.
                let crc32c = place.map_or(0, |place| place.crc32c);
                let headers = multipart::part_headers(self.upload.checksums, crc32c, &pieces);
                request.headers(headers).body(pieces)
            }
            PartSource::Stream(body) => request.part(&self.path, length, body),
            PartSource::Copy { e_tag, range } => {
                let Signing::Store(store) = &self.signing else {
                    return Err(lacks(STORE, NO_COPIES));
                };
                let e_tag = store
                    .copy_own_part(&self.path, &self.upload.id, number, &e_tag, range)
                    .await?;
                return Ok(PartReceipt { end: 0, e_tag });
            }
        };
        let e_tag = self.put_request(number, length, place, request).await?;
        let end = place.map_or(0, |place| place.offset + length);
        Ok(PartReceipt { end, e_tag })
    }

    async fn parts(&self, after: u16, max: usize) -> Result<ListedParts> {
        self.list_parts(&self.path, &self.upload.id, after, max)
            .await
    }

    async fn status(&self) -> Result<SessionStatus> {
        if let Some(parts) = self.list().await? {
            return Ok(SessionStatus::Open(multipart::stored_ranges(&parts)));
        }
        Ok(match self.proven().await? {
            Some(finished) => SessionStatus::Finished(finished),
            None => SessionStatus::Gone,
        })
    }

    async fn finish(&self, ending: &CompleteRequest) -> Result<Finished> {
        if let Some(parts) = &ending.parts {
            return self.finish_numbered(parts).await;
        }
        let headers = multipart::complete_headers(self.upload.checksums, ending.crc32c, &self.mode)
            .map_err(generic)?;
        let parts = self.completion(ending.length).await?;
        let body = complete_body(multipart::elements(&parts, self.upload.checksums));
        let request = Request::new(Method::POST)
            .headers(headers)
            .body(vec![body.into()])
            .stall(self.stall.unwrap_or_default() + self.joining());
        let sent = self.complete(&self.path, &self.upload.id, request);
        let (response, outcome) = sent.await?;
        match outcome {
            MultipartOutcome::Finished(finished, crc32c) => {
                let crc32c = crc32c.as_deref().and_then(crc32c_of_base64);
                let is_whole = self.upload.checksums == Checksums::Object;
                Ok(Finished {
                    crc32c: crc32c.filter(|_| is_whole),
                    ..finished
                })
            }
            MultipartOutcome::Gone => self.proven().await?.ok_or_else(|| self.lost()),
            MultipartOutcome::PartMismatch => {
                Err(self.damaged("a part that the store acknowledged is not there any more"))
            }
            MultipartOutcome::Damaged(reason) => Err(self.damaged(&reason)),
            outcome => Err(self.refused("complete upload of", &self.path, &response, outcome)),
        }
    }

    async fn abort(&self) -> Result<()> {
        let response = self.send_about(Method::DELETE).await?;
        if response.status.is_success() {
            return Ok(());
        }
        match MultipartOutcome::of_failure(&response) {
            MultipartOutcome::Gone if !self.numbered => Ok(()),
            outcome => Err(self.refused("abort upload of", &self.path, &response, outcome)),
        }
    }
}
