//! The I/O of resumable sessions: sends what `session.rs` says, and turns its findings into the engine's errors.

use std::fmt;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_RANGE, CONTENT_TYPE};
use http::{HeaderName, HeaderValue, Method};
use object_store::{Error, Result};
use url::Url;

use super::session::{self, Meaning, RULE, SignedStart, Start, Step};
use crate::EngineError;
use crate::upload::http::{Answer, HttpClient, Request};
use crate::upload::{
    Chunk, ChunkRule, Ending, Finished, Kept, SessionStatus, SessionToken, UploadSession,
};

/// Names this kind of store in errors.
pub(super) const STORE: &str = "GCS";

/// A resumable session. Its address alone is enough to write to it, so it is never shown.
pub(super) struct GcsSession {
    http: HttpClient,
    url: Url,
    /// For messages.
    object: String,
    /// The object must not be there; otherwise a failed precondition is about its generation.
    create: bool,
}

impl fmt::Debug for GcsSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GcsSession({} <redacted>)", self.object)
    }
}

impl GcsSession {
    /// Opens a session by the JSON API; `bearer` is left out where no credentials are asked for.
    pub(super) async fn open(
        http: &HttpClient,
        endpoint: &Url,
        bearer: Option<&str>,
        start: &Start<'_>,
    ) -> Result<Self> {
        let url = start.url(endpoint).ok_or_else(no_base)?;
        let json = HeaderValue::from_static("application/json; charset=UTF-8");
        let mut request = Request::new(Method::POST, url)
            .header(CONTENT_TYPE, json)
            .body(vec![Bytes::from(start.metadata())]);
        if let Some(length) = start.length {
            let name = HeaderName::from_static("x-upload-content-length");
            request = request.header(name, HeaderValue::from(length));
        }
        let answer = http.send(authorised(request, bearer)?).await?;
        let create = start.if_generation == Some("0");
        let url = session::started(&answer, 200, endpoint)
            .ok_or_else(|| not_started(&answer, start.key, create))?;
        Ok(Self {
            http: http.clone(),
            url,
            object: start.key.to_owned(),
            create,
        })
    }

    /// Opens a session by an address that somebody signed for it.
    pub(super) async fn open_signed(
        http: &HttpClient,
        url: &Url,
        start: SignedStart,
    ) -> Result<Self> {
        let object = url.path().to_owned();
        let condition = start.headers.get("x-goog-if-generation-match");
        let create = condition.is_some_and(|value| value == "0");
        let mut request = Request::new(Method::POST, url.clone());
        for (name, value) in &start.headers {
            request = request.header(name.clone(), value.clone());
        }
        let answer = http.send(request).await?;
        let session = session::started(&answer, 201, url)
            .ok_or_else(|| not_started(&answer, &object, create))?;
        Ok(Self {
            http: http.clone(),
            url: session,
            object,
            create,
        })
    }

    /// Takes over a session.
    pub(super) fn resume(
        http: &HttpClient,
        token: &SessionToken,
        object: &str,
        create: bool,
    ) -> Result<Self> {
        // The error of the parser is left out, as it would be about a secret.
        let url = Url::parse(&token.0)
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https"))
            .ok_or_else(|| {
                generic(format!(
                    "resume upload of {object}: what was kept of its session is no address; upload it again"
                ))
            })?;
        Ok(Self {
            http: http.clone(),
            url,
            object: object.to_owned(),
            create,
        })
    }

    async fn ask(&self, step: &Step, body: Vec<Bytes>) -> Result<Meaning> {
        let mut request = Request::new(step.method(), self.url.clone()).body(body);
        if let Some(range) = step.content_range() {
            request = request.header(CONTENT_RANGE, header(&range)?);
        }
        if let Some(hash) = step.hash() {
            request = request.header(HeaderName::from_static("x-goog-hash"), header(&hash)?);
        }
        let answer = self.http.send(request).await?;
        match session::meaning(step, &answer) {
            Meaning::Refused => Err(self.refusal(step, &answer)),
            Meaning::Contradiction(detail) => Err(EngineError::UploadDamaged {
                object: self.object.clone(),
                detail,
            }
            .into()),
            Meaning::Garbled(what) => {
                Err(bad_answer(&self.object, format!("{}: {what}", step.name())))
            }
            meaning => Ok(meaning),
        }
    }

    fn refusal(&self, step: &Step, answer: &Answer) -> Error {
        let mut reason = session::reason(answer);
        for (_, secret) in self.url.query_pairs() {
            if secret.len() > 8 {
                reason = reason.replace(&*secret, "<redacted>");
            }
        }
        refused(answer, step.name(), &self.object, &reason, self.create)
    }

    fn lost(&self) -> Error {
        EngineError::UploadLost {
            object: self.object.clone(),
        }
        .into()
    }
}

/// What the store says of the object at an endpoint, in a bucket, under a key; `None` if there is none.
pub(super) async fn look(
    http: &HttpClient,
    (endpoint, bucket, key): (&Url, &str, &str),
    bearer: Option<&str>,
) -> Result<Option<Finished>> {
    let url = session::object_url(endpoint, bucket, key).ok_or_else(no_base)?;
    let request = authorised(Request::new(Method::GET, url), bearer)?;
    let answer = http.send(request).await?;
    match answer.status.as_u16() {
        200 => session::object(&answer)
            .map(Some)
            .map_err(|what| bad_answer(key, format!("look for it: {what}"))),
        404 => Ok(None),
        _ => {
            let reason = session::reason(&answer);
            Err(answer.error(STORE, "look for", key, &reason))
        }
    }
}

fn authorised(request: Request, bearer: Option<&str>) -> Result<Request> {
    let Some(bearer) = bearer else {
        return Ok(request);
    };
    let mut value = header(&format!("Bearer {bearer}"))?;
    value.set_sensitive(true);
    Ok(request.header(AUTHORIZATION, value))
}

fn no_base() -> Error {
    generic("the endpoint is no address to build on".to_owned())
}

fn not_started(answer: &Answer, object: &str, create: bool) -> Error {
    let reason = if answer.status.is_success() {
        "no address of a session in the answer".to_owned()
    } else {
        session::reason(answer)
    };
    refused(answer, "start upload of", object, &reason, create)
}

fn refused(answer: &Answer, operation: &str, object: &str, reason: &str, create: bool) -> Error {
    match answer.error(STORE, operation, object, reason) {
        Error::Precondition { path, source } if create => Error::AlreadyExists { path, source },
        error => error,
    }
}

fn header(text: &str) -> Result<HeaderValue> {
    HeaderValue::from_str(text).map_err(|error| generic(error.to_string()))
}

/// An answer that may be right the next time.
fn bad_answer(object: &str, detail: String) -> Error {
    EngineError::BadAnswer {
        object: object.to_owned(),
        detail,
    }
    .into()
}

pub(super) fn generic(text: String) -> Error {
    Error::Generic {
        store: STORE,
        source: text.into(),
    }
}

#[async_trait]
impl UploadSession for GcsSession {
    fn rule(&self) -> ChunkRule {
        RULE
    }

    fn token(&self) -> SessionToken {
        SessionToken(self.url.as_str().to_owned())
    }

    async fn send(&self, chunk: &Chunk) -> Result<u64> {
        let step = Step::Append(chunk.range());
        match self.ask(&step, chunk.pieces.clone()).await? {
            Meaning::Keeps(kept) => Ok(kept),
            _ => Err(self.lost()),
        }
    }

    async fn status(&self) -> Result<SessionStatus> {
        Ok(match self.ask(&Step::Query, Vec::new()).await? {
            Meaning::Keeps(0) => SessionStatus::Open(Vec::new()),
            Meaning::Keeps(kept) => SessionStatus::Open(vec![Kept {
                range: 0..kept,
                digest: None,
            }]),
            Meaning::Finished(finished) => SessionStatus::Finished(finished),
            _ => SessionStatus::Gone,
        })
    }

    async fn finish(&self, ending: &Ending) -> Result<Finished> {
        let step = Step::Finish {
            tail: ending.tail.as_ref().map(Chunk::range),
            length: ending.length,
            crc32c: ending.crc32c,
        };
        let body = ending.tail.as_ref().map(|tail| tail.pieces.clone());
        match self.ask(&step, body.unwrap_or_default()).await? {
            Meaning::Finished(finished) => Ok(finished),
            Meaning::Keeps(kept) => {
                let length = ending.length;
                let text = format!(
                    "finish upload: the store keeps {kept} of {length} bytes and has not ended"
                );
                Err(bad_answer(&self.object, text))
            }
            _ => Err(self.lost()),
        }
    }

    async fn abort(&self) -> Result<()> {
        self.ask(&Step::Cancel, Vec::new()).await.map(|_| ())
    }
}
