//! Resumable sessions.
//!
//! * `record.rs` is what a session's file holds: the upload's token with all bytes that its store does not have, or the
//!   object that it became.
//! * `session_locks.rs` lets one request at a time work on a session; a newer one ends the body of an older one.
//! * `range.rs` parses Content-Range.
//! * `run.rs` adds the bytes of one request.
//! * `finish.rs` completes the object.
//!
//! A response that acknowledges bytes is sent after the file is on disk. So a session continues after a crash with what was
//! acknowledged, over every origin whose uploads can be continued.

mod finish;
mod range;
mod record;
mod run;
mod session_locks;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

use bywash::{Engine, EngineError, Upload, UploadOptions};
use http::header::{LOCATION, RANGE};
use http::{HeaderName, HeaderValue, Method, Response, StatusCode};
use object_store::Attribute;
use parking_lot::Mutex;
use s3s::Body;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use self::range::ContentRange;
use self::record::{Header, Record, SessionFiles};
use self::run::Addition;
use self::session_locks::SessionLocks;
use super::body::document;
use super::condition::WriteCondition;
use super::door::{Door, GcsRequest};
use super::error::{GcsError, GcsResult};
use super::generation::Conditions;
use super::insert::{body_of, name_object, stated_hashes};
use super::metadata::GivenMetadata;
use super::resource::{encoded, json};
use crate::digest::{Algorithm, Checksum, hex};
use crate::errors::{OperationContext, from_store};
use crate::limits::{
    MAX_JSON_BYTES, MAX_LIVE_CHUNK_BYTES, MAX_LIVE_SESSIONS, MAX_LIVE_SESSIONS_MEMORY_DIVISOR,
    MAX_SESSION_AGE, SWEEP_INTERVAL,
};
use crate::meta::{mark_upload, refuse_text_for, text};

/// An open session with its writer.
struct OpenSession {
    header: Header,
    upload: Upload,
}

/// The sessions of a server.
pub(crate) struct Sessions {
    files: SessionFiles,
    engine: Engine,
    locks: SessionLocks,
    /// Writers that wait for the next chunk, the one that waits longest first.
    live: Mutex<VecDeque<(String, OpenSession)>>,
    max_live: usize,
    swept: Mutex<Option<Instant>>,
}

/// How a session stands after a request.
enum SessionState {
    /// Open, with this many bytes.
    Open(u64),
    /// It became an object, with this resource.
    Finished(Vec<u8>),
}

impl Sessions {
    /// Opens the folder, created if missing. Blocks.
    pub(crate) fn open(folder: PathBuf, limit: usize, engine: Engine) -> std::io::Result<Self> {
        let memory = engine.budget().limit();
        let live = memory / MAX_LIVE_SESSIONS_MEMORY_DIVISOR / MAX_LIVE_CHUNK_BYTES;
        Ok(Self {
            files: SessionFiles::open(folder, limit)?,
            engine,
            locks: SessionLocks::default(),
            live: Mutex::default(),
            max_live: usize::try_from(live.min(MAX_LIVE_SESSIONS)).unwrap_or(0),
            swept: Mutex::new(None),
        })
    }

    /// Returns the session with its writer, or the object that it became.
    async fn load(&self, id: &str) -> GcsResult<Result<OpenSession, Vec<u8>>> {
        let waiting = {
            let mut live = self.live.lock();
            let at = live.iter().position(|(found, _)| found == id);
            at.and_then(|at| live.remove(at))
        };
        if let Some((_, session)) = waiting {
            return Ok(Ok(session));
        }
        let (header, token) = match self.files.read(id).await? {
            Record::Finished(resource) => return Ok(Err(resource)),
            Record::Open(header, token) => (header, token),
        };
        let doing = OperationContext::new("continue the upload of", &header.bucket, &header.key);
        let bucket = self.engine.bucket(&header.bucket);
        let bucket = bucket.ok_or_else(|| crate::errors::no_such_bucket(&header.bucket))?;
        let restored = bucket.restore_upload(&token).await;
        let upload = restored.map_err(|error| failed(doing, &error))?;
        Ok(Ok(OpenSession { header, upload }))
    }

    /// Keeps a writer whose bytes are all in its file, for the next chunk. Others are dropped if there are too many.
    fn keep(&self, id: String, session: OpenSession) {
        let mut live = self.live.lock();
        live.push_back((id, session));
        let mut dropped = Vec::new();
        while live.len() > self.max_live {
            dropped.extend(live.pop_front());
        }
        drop(live);
    }

    /// Removes sessions that are older than a week, once an hour at most.
    fn sweep(self: &Arc<Self>) {
        let mut swept = self.swept.lock();
        if swept.is_some_and(|swept| swept.elapsed() < SWEEP_INTERVAL) {
            return;
        }
        *swept = Some(Instant::now());
        drop(swept);
        let sessions = Arc::clone(self);
        tokio::spawn(async move {
            for id in sessions.files.older_than(MAX_SESSION_AGE).await {
                if let Err(error) = sessions.cancel(&id).await {
                    tracing::debug!(?error, "an expired session was not removed");
                }
            }
        });
    }

    /// Aborts a session and forgets it.
    async fn cancel(&self, id: &str) -> GcsResult<()> {
        let _lock = self.locks.enter(id).await;
        if let Ok(mut session) = self.load(id).await? {
            let header = &session.header;
            let doing = OperationContext::new("cancel the upload of", &header.bucket, &header.key);
            let aborted = session.upload.abort().await;
            aborted.map_err(|error| from_store(doing, &error))?;
        }
        self.files.remove(id).await
    }
}

/// Returns a name that nobody can guess: it is the right to write to the session.
fn new_id() -> String {
    hex(&rand::random::<[u8; 32]>())
}

/// Returns what marks the object of a session: it does not reveal the session's name.
fn mark_of(id: &str) -> String {
    hex(&Sha256::digest(id.as_bytes())[..16])
}

/// Starts a session.
pub(crate) async fn start(door: &Door, request: &mut GcsRequest) -> GcsResult<Response<Body>> {
    let body = body_of(request);
    let mut given = {
        let doing = request.doing("begin the upload of");
        let charge = request.documents.all().charge(MAX_JSON_BYTES as u64, doing);
        let _charge = charge.await?;
        GivenMetadata::parse(&document(body).await?)?
    };
    name_object(request, &given)?;
    if given.md5.is_some() {
        return Err(GcsError::not_served(
            "The MD5 of a resumable upload is not computed here; state its crc32c.",
        ));
    }
    let headers = &request.parts.headers;
    if given.attributes.get(&Attribute::ContentType).is_none()
        && let Some(kind) = text(headers, "x-upload-content-type")
    {
        let kind = kind.to_owned();
        given.attributes.insert(Attribute::ContentType, kind.into());
    }
    let doing = request.doing("begin the upload of");
    let (bucket, path) = door.object(doing.bucket, doing.key)?;
    refuse_text_for(&bucket, &given.attributes)?;
    let conditions = Conditions::of(&request.query)?;
    let condition = WriteCondition::find(&bucket, &path, &conditions, doing).await?;
    let id = new_id();
    if !conditions.is_empty() && !mark_upload(&mut given.attributes, &mark_of(&id)) {
        return Err(GcsError::invalid(
            "The metadata leaves no room for the mark of a conditional upload; shorten it.",
        ));
    }
    let options = UploadOptions {
        mode: condition.mode,
        attributes: given.attributes,
        ..UploadOptions::default()
    };
    let upload = bucket.upload(&path, options).await;
    let upload = upload.map_err(|error| from_store(doing, &error))?;
    let header = Header {
        bucket: doing.bucket.to_owned(),
        key: doing.key.to_owned(),
        crc32c: String::new(),
        expected_crc32c: given.crc32c,
        conditional: !conditions.is_empty(),
    };
    door.sessions.sweep();
    door.sessions
        .files
        .create(&id, &header, &upload.capture())
        .await?;
    let location = format!(
        "{}/upload/storage/v1/b/{}/o?uploadType=resumable&name={}&upload_id={id}",
        door.endpoint(&request.parts),
        encoded(doing.bucket),
        encoded(doing.key),
    );
    let mut response = Response::new(Body::empty());
    if let Ok(location) = HeaderValue::try_from(location) {
        response.headers_mut().insert(LOCATION, location);
    }
    Ok(response)
}

/// Serves a request of a session.
pub(crate) async fn serve(door: &Door, request: &mut GcsRequest) -> GcsResult<Response<Body>> {
    let id = request
        .query
        .get("upload_id")
        .unwrap_or_default()
        .to_owned();
    if request.parts.method == Method::DELETE {
        if let Record::Finished(resource) = door.sessions.files.read(&id).await? {
            return Ok(json(resource));
        }
        door.sessions.cancel(&id).await?;
        return Ok(status(499));
    }
    let range = ContentRange::of(&request.parts.headers)?;
    let hash = stated_hashes(request)
        .find(|(algorithm, _)| *algorithm == "crc32c")
        .map(|(_, value)| value.to_owned());
    let addition = Addition {
        id,
        range,
        hash,
        body: body_of(request),
        endpoint: door.endpoint(&request.parts),
    };
    // A task of its own: what arrived is kept when the client leaves.
    let sessions = Arc::clone(&door.sessions);
    let added = tokio::spawn(async move { sessions.add(addition).await }).await;
    let state = added.map_err(|error| GcsError::unavailable(error.to_string()))??;
    Ok(match state {
        SessionState::Finished(resource) => json(resource),
        SessionState::Open(length) => {
            let without_308 = text(&request.parts.headers, "x-guploader-no-308");
            incomplete(
                length,
                without_308.is_some_and(|value| value.eq_ignore_ascii_case("yes")),
            )
        }
    })
}

/// Returns the response about an open session: the bytes that it has. Some clients take a 308 for a redirect.
fn incomplete(length: u64, without_308: bool) -> Response<Body> {
    let mut response = match without_308 {
        false => status(308),
        true => {
            let mut response = status(200);
            let name = HeaderName::from_static("x-http-status-code-override");
            let code = HeaderValue::from_static("308");
            response.headers_mut().insert(name, code);
            response
        }
    };
    if let Some(last) = length.checked_sub(1)
        && let Ok(value) = HeaderValue::try_from(format!("bytes=0-{last}"))
    {
        response.headers_mut().insert(RANGE, value);
    }
    response
}

/// Converts an error of an upload. One whose store has lost it is over.
fn failed(doing: OperationContext<'_>, error: &object_store::Error) -> GcsError {
    match is_over(error) {
        true => GcsError::gone(error.to_string()),
        false => from_store(doing, error).into(),
    }
}

/// Whether the store has lost the upload.
fn is_over(error: &object_store::Error) -> bool {
    matches!(
        EngineError::find(error),
        Some(EngineError::UploadLost { .. } | EngineError::UploadDamaged { .. })
    )
}

fn status(code: u16) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or_default();
    response
}

/// Returns the CRC32C of bytes with `first`, followed by `length` bytes with `second`.
fn joined(first: &str, first_length: u64, second: &str, length: u64) -> String {
    let checksum = |value: &str| Checksum {
        algorithm: Algorithm::Crc32c,
        value: value.to_owned(),
    };
    if first_length == 0 {
        return second.to_owned();
    }
    let (first, second) = (checksum(first), checksum(second));
    let parts = [(Some(&first), first_length), (Some(&second), length)];
    crate::digest::combine(&parts, true).map_or_else(String::new, |joined| joined.value)
}
