//! I/O of resumable sessions: sends the requests of `session.rs`, and converts its outcomes into the engine's errors.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_RANGE, CONTENT_TYPE};
use http::{HeaderName, HeaderValue, Method};
use object_store::{Error, Result};
use url::Url;

use super::session::{self, SessionOutcome, SessionRequest, SignedStart, Start, UploadKind};
use crate::error::{OriginError, generic_error};
use crate::http_client::{HttpClient, Request, Response};
use crate::session::{
    Chunk, CompleteRequest, Finished, PartReceipt, SessionPart, SessionStatus, SessionToken,
    StoredRange, UploadSession,
};

/// Name of this kind of store in errors.
pub(super) const STORE: &str = "GCS";

/// A resumable session. Its URL alone allows writing to it, so it is never displayed.
pub(crate) struct GcsSession {
    http: HttpClient,
    url: Url,
    /// The object, for messages.
    object: String,
    /// Create only; otherwise a failed precondition concerns the object's generation.
    create: bool,
    /// Stall limit of a request.
    stall: Duration,
}

impl fmt::Debug for GcsSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GcsSession({} <redacted>)", self.object)
    }
}

impl GcsSession {
    /// Opens a session by the JSON API; `bearer` is omitted where no credentials are needed.
    pub(super) async fn open(
        http: &HttpClient,
        endpoint: &Url,
        bearer: Option<&str>,
        start: &Start<'_>,
        stall: Duration,
    ) -> Result<Self> {
        let url = start
            .url(endpoint, UploadKind::Resumable)
            .ok_or_else(no_base)?;
        let json = HeaderValue::from_static("application/json; charset=UTF-8");
        let mut request = Request::new(Method::POST)
            .header(CONTENT_TYPE, json)
            .body(vec![Bytes::from(start.metadata(None))]);
        if let Some(length) = start.length {
            let name = HeaderName::from_static("x-upload-content-length");
            request = request.header(name, HeaderValue::from(length));
        }
        let response = http.send(url, authorised(request, bearer)?).await?;
        let create = start.if_generation == Some("0");
        let url = session::started(&response, 200, endpoint)
            .ok_or_else(|| not_started(&response, start.key, create))?;
        Ok(Self {
            http: http.clone(),
            url,
            object: start.key.to_owned(),
            create,
            stall,
        })
    }

    /// Opens a session by a signed URL.
    pub(crate) async fn open_signed(
        http: &HttpClient,
        url: &Url,
        start: SignedStart,
        stall: Duration,
    ) -> Result<Self> {
        let object = url.path().to_owned();
        let condition = start.headers.get("x-goog-if-generation-match");
        let create = condition.is_some_and(|value| value == "0");
        let request = Request::new(Method::POST).headers(start.headers);
        let response = http.send(url.clone(), request).await?;
        let session = session::started(&response, 201, url)
            .ok_or_else(|| not_started(&response, &object, create))?;
        Ok(Self {
            http: http.clone(),
            url: session,
            object,
            create,
            stall,
        })
    }

    /// Takes over a session.
    pub(crate) fn resume(
        http: &HttpClient,
        token: &SessionToken,
        object: &str,
        create: bool,
        stall: Duration,
    ) -> Result<Self> {
        // The parser's error is left out, as it could contain a secret.
        let url = Url::parse(&token.0)
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https"))
            .ok_or_else(|| {
                generic(format!(
                    "resume upload of {object}: the recorded session is not valid; upload it again"
                ))
            })?;
        Ok(Self {
            http: http.clone(),
            url,
            object: object.to_owned(),
            create,
            stall,
        })
    }

    async fn send_request(
        &self,
        step: &SessionRequest,
        body: Vec<Bytes>,
    ) -> Result<SessionOutcome> {
        let mut request = Request::new(step.method()).body(body).stall(self.stall);
        if let Some(range) = step.content_range() {
            request = request.text(CONTENT_RANGE, &range);
        }
        if let Some(hash) = step.hash() {
            request = request.text("x-goog-hash", &hash);
        }
        let response = self.http.send(self.url.clone(), request).await?;
        match session::outcome(step, &response) {
            SessionOutcome::Refused => Err(self.refusal(step, &response)),
            SessionOutcome::Contradiction(detail) => {
                Err(OriginError::upload_damaged(&self.object, detail))
            }
            SessionOutcome::Invalid(what) => Err(OriginError::bad_response(
                &self.object,
                format!("{}: {what}", step.name()),
            )),
            outcome => Ok(outcome),
        }
    }

    fn refusal(&self, step: &SessionRequest, response: &Response) -> Error {
        let mut reason = session::reason(response);
        for (_, secret) in self.url.query_pairs() {
            if secret.len() > 8 {
                reason = reason.replace(&*secret, "<redacted>");
            }
        }
        refused(response, step.name(), &self.object, &reason, self.create)
    }

    fn lost(&self) -> Error {
        OriginError::upload_lost(&self.object)
    }
}

/// Returns the metadata of an object of a bucket; `None` if it is absent.
pub(super) async fn head_object(
    http: &HttpClient,
    (endpoint, bucket, key): (&Url, &str, &str),
    bearer: Option<&str>,
) -> Result<Option<Finished>> {
    let url = session::object_url(endpoint, bucket, key).ok_or_else(no_base)?;
    let request = authorised(Request::new(Method::GET), bearer)?;
    let response = http.send(url, request).await?;
    match response.status.as_u16() {
        200 => session::object(&response)
            .map(Some)
            .map_err(|what| OriginError::bad_response(key, format!("look for it: {what}"))),
        404 => Ok(None),
        _ => {
            let reason = session::reason(&response);
            Err(response.error(STORE, "look for", key, &reason))
        }
    }
}

pub(super) fn authorised(request: Request, bearer: Option<&str>) -> Result<Request> {
    let Some(bearer) = bearer else {
        return Ok(request);
    };
    let mut value = header(&format!("Bearer {bearer}"))?;
    value.set_sensitive(true);
    Ok(request.header(AUTHORIZATION, value))
}

pub(super) fn no_base() -> Error {
    generic("the endpoint is no address to build on".to_owned())
}

fn not_started(response: &Response, object: &str, create: bool) -> Error {
    let reason = if response.status.is_success() {
        "no address of a session in the response".to_owned()
    } else {
        session::reason(response)
    };
    refused(response, "start upload of", object, &reason, create)
}

pub(super) fn refused(
    response: &Response,
    operation: &str,
    object: &str,
    reason: &str,
    create: bool,
) -> Error {
    match response.error(STORE, operation, object, reason) {
        Error::Precondition { path, source } if create => Error::AlreadyExists { path, source },
        error => error,
    }
}

fn header(text: &str) -> Result<HeaderValue> {
    HeaderValue::from_str(text).map_err(|error| generic(error.to_string()))
}

pub(super) fn generic(text: String) -> Error {
    generic_error(STORE, text)
}

#[async_trait]
impl UploadSession for GcsSession {
    fn token(&self) -> SessionToken {
        SessionToken(self.url.as_str().to_owned())
    }

    async fn put(&self, part: SessionPart) -> Result<PartReceipt> {
        let chunk = part.into_chunk()?;
        let step = SessionRequest::Append(chunk.range());
        match self.send_request(&step, chunk.pieces).await? {
            SessionOutcome::Stored(end) => Ok(PartReceipt::to(end)),
            _ => Err(self.lost()),
        }
    }

    async fn status(&self) -> Result<SessionStatus> {
        Ok(
            match self
                .send_request(&SessionRequest::Query, Vec::new())
                .await?
            {
                SessionOutcome::Stored(0) => SessionStatus::Open(Vec::new()),
                SessionOutcome::Stored(stored) => SessionStatus::Open(vec![StoredRange {
                    range: 0..stored,
                    digest: None,
                }]),
                SessionOutcome::Finished(finished) => SessionStatus::Finished(finished),
                _ => SessionStatus::Gone,
            },
        )
    }

    async fn finish(&self, ending: &CompleteRequest) -> Result<Finished> {
        let step = SessionRequest::Finish {
            tail: ending.tail.as_ref().map(Chunk::range),
            length: ending.length,
            crc32c: ending.crc32c,
        };
        let body = ending.tail.as_ref().map(|tail| tail.pieces.clone());
        match self.send_request(&step, body.unwrap_or_default()).await? {
            SessionOutcome::Finished(finished) => Ok(finished),
            SessionOutcome::Stored(stored) => {
                let length = ending.length;
                let text = format!(
                    "finish upload: the store keeps {stored} of {length} bytes and has not ended"
                );
                Err(OriginError::bad_response(&self.object, text))
            }
            _ => Err(self.lost()),
        }
    }

    async fn abort(&self) -> Result<()> {
        self.send_request(&SessionRequest::Cancel, Vec::new())
            .await
            .map(|_| ())
    }
}
