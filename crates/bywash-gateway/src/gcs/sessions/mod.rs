//! Resumable sessions.
//!
//! * `home.rs` is the node that has a session.
//! * `record.rs` is the contents of a session's file: the upload's token with all bytes that its
//!   store does not have, or the object that it became.
//! * `finished.rs` is the order of ends, whose records are limited in number; `tokens.rs` lists the
//!   origins' sessions for another program.
//! * `session_locks.rs` lets one request at a time work on a session; a newer one ends the body of an older one.
//! * `range.rs` parses Content-Range.
//! * `run.rs` adds the bytes of one request.
//! * `finish.rs` completes the object.
//! * `cancel.rs` aborts sessions, on request and after a week.
//!
//! A response that acknowledges bytes is sent after the file is on disk. So a session continues
//! after a crash with all acknowledged bytes, over every origin whose uploads can be continued.

mod cancel;
mod finish;
mod finished;
mod home;
mod range;
mod record;
mod run;
mod session_locks;
mod tokens;

pub use self::tokens::{GcsSessionTokens, gcs_session_tokens};

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

use bywash::{Engine, OriginError, Reservation, Share, Upload, UploadOptions};
use http::header::{LOCATION, RANGE};
use http::{HeaderName, HeaderValue, Method, Response, StatusCode};
use object_store::Attribute;
use parking_lot::Mutex;
use s3s::Body;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use self::home::{SessionName, name_of};
use self::range::ContentRange;
use self::record::{FileState, Header, SessionFiles};
use self::run::Addition;
use self::session_locks::SessionLocks;
use super::body::{document, md5_digits};
use super::condition::WriteCondition;
use super::endpoint::{Endpoint, GcsRequest, UPLOAD_ID};
use super::error::{GcsError, GcsResult};
use super::generation::Conditions;
use super::insert::{StatedHashes, body_of, name_object, take_stated_hashes};
use super::metadata::GivenMetadata;
use super::resource::{encoded, json};
use crate::digest::{Algorithm, Checksum, ChecksumKind, ResumableMd5, combine, hex};
use crate::errors::{OperationContext, from_store};
use crate::limits::{
    MAX_FINISHED_SESSIONS, MAX_JSON_BYTES, MAX_LIVE_CHUNK_BYTES, MAX_LIVE_SESSIONS,
    MAX_LIVE_SESSIONS_MEMORY_DIVISOR,
};
use crate::meta::{encode_metadata_for, mark_upload, refuse_text_for, text};

/// An open session with its writer.
struct OpenSession {
    header: Header,
    upload: Upload,
    /// Whether its file names the origin's session, or no such session exists.
    is_recorded: bool,
    /// Charge of the bytes that came from its file, until the origin has all before this offset.
    restored: Option<(u64, Reservation)>,
}

/// The sessions of a server.
pub(crate) struct Sessions {
    files: SessionFiles,
    engine: Engine,
    /// This node, in a cluster.
    node: Option<String>,
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
            files: SessionFiles::open(folder, limit, MAX_FINISHED_SESSIONS)?,
            node: engine.cluster_status().map(|status| status.node),
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
        let charge = match self.files.state(id).await? {
            FileState::Finished => return self.files.read_resource(id).await.map(Err),
            FileState::Open(length) => self.engine.try_reserve(Share::Upload, length),
        };
        let charge = charge.ok_or_else(no_memory)?;
        let (header, token) = self.files.read_open(id).await?;
        let doing = OperationContext::new("continue the upload of", &header.bucket, &header.key);
        let bucket = self.engine.bucket(&header.bucket);
        let bucket = bucket.ok_or_else(|| crate::errors::no_such_bucket(&header.bucket))?;
        let restored = bucket.restore_upload(&token).await;
        let upload = restored.map_err(|error| failed(doing, &error))?;
        Ok(Ok(OpenSession {
            header,
            upload,
            is_recorded: token.session().is_some(),
            restored: Some((token.position(), charge)),
        }))
    }

    /// Keeps a writer that has all bytes in its file, for the next chunk. Others are dropped if there are too many.
    fn keep(&self, id: String, session: OpenSession) {
        let mut live = self.live.lock();
        live.push_back((id, session));
        let mut dropped = Vec::new();
        while live.len() > self.max_live {
            dropped.extend(live.pop_front());
        }
        drop(live);
    }
}

#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_range(headers: &http::HeaderMap) {
    if let Ok(ContentRange::Chunk { first, end, total }) = ContentRange::of(headers) {
        assert!(first < end && total.is_none_or(|total| end <= total));
    }
}

/// A random session id; it is a bearer capability.
fn new_id() -> String {
    hex(&rand::random::<[u8; 32]>())
}

/// Mark of a session's object: it does not reveal the session's name.
fn mark_of(id: &str) -> String {
    hex(&Sha256::digest(id.as_bytes())[..16])
}

/// Starts a session.
pub(crate) async fn start(
    endpoint: &Endpoint,
    request: &mut GcsRequest,
) -> GcsResult<Response<Body>> {
    let body = body_of(request);
    let given = {
        let doing = request.doing("begin the upload of");
        let documents = &request.documents;
        let _charge = documents.charge_document(MAX_JSON_BYTES, doing).await?;
        GivenMetadata::parse(&document(body).await?)?
    };
    begin(endpoint, request, given).await
}

/// Starts a session of an object with this metadata.
pub(crate) async fn begin(
    endpoint: &Endpoint,
    request: &mut GcsRequest,
    mut given: GivenMetadata,
) -> GcsResult<Response<Body>> {
    name_object(request, &given)?;
    take_stated_hashes(request, &mut given)?;
    if let Some(md5) = &given.md5 {
        md5_digits(md5)?;
    }
    let headers = &request.parts.headers;
    if given.attributes.get(&Attribute::ContentType).is_none()
        && let Some(kind) = text(headers, "x-upload-content-type")
    {
        let kind = kind.to_owned();
        given.attributes.insert(Attribute::ContentType, kind.into());
    }
    let announced = text(headers, "x-upload-content-length");
    let announced = announced.and_then(|length| length.trim().parse().ok());
    let doing = request.doing("begin the upload of");
    let (bucket, path) = endpoint.object(doing.bucket, doing.key)?;
    refuse_text_for(&bucket, &given.attributes)?;
    encode_metadata_for(&bucket, &mut given.attributes)?;
    let conditions = Conditions::of(&request.query)?;
    let condition = WriteCondition::find(&bucket, &path, &conditions, doing).await?;
    let id = new_id();
    if !conditions.is_empty() && !mark_upload(&mut given.attributes, &mark_of(&id)) {
        return Err(GcsError::invalid(
            "The metadata leaves no room for the mark of a conditional upload; shorten it.",
        ));
    }
    let computes_md5 = endpoint.computes_md5() || given.md5.is_some();
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
        length: announced,
        crc32c: String::new(),
        expected_crc32c: given.crc32c,
        md5: computes_md5.then(ResumableMd5::default),
        expected_md5: given.md5,
        keeps_md5: endpoint.wants_md5(&bucket),
        conditional: !conditions.is_empty(),
    };
    endpoint.sessions.sweep();
    endpoint
        .sessions
        .files
        .create(&id, &header, &upload.capture())
        .await?;
    let name = name_of(&id, endpoint.sessions.node.as_deref());
    let location = format!(
        "{}/upload/storage/v1/b/{}/o?uploadType=resumable&name={}&upload_id={name}",
        endpoint.url(&request.parts),
        encoded(doing.bucket),
        encoded(doing.key),
    );
    let mut response = Response::new(Body::empty());
    let headers = response.headers_mut();
    if let Ok(location) = HeaderValue::try_from(location) {
        headers.insert(LOCATION, location);
    }
    if let Ok(name) = HeaderValue::try_from(name) {
        headers.insert(UPLOAD_ID, name);
    }
    Ok(response)
}

/// Serves a request of a session.
pub(crate) async fn serve(
    endpoint: &Endpoint,
    request: &mut GcsRequest,
) -> GcsResult<Response<Body>> {
    let name = SessionName::parse(request.query.get("upload_id").unwrap_or_default());
    let sessions = &endpoint.sessions;
    name.check_home(sessions.node.as_deref(), &sessions.engine)?;
    let id = name.id.to_owned();
    if request.parts.method == Method::DELETE {
        // A task of its own: a client that leaves does not end it half-way.
        let sessions = Arc::clone(&endpoint.sessions);
        let cancelled = tokio::spawn(async move { sessions.cancel(&id).await }).await;
        let cancelled = cancelled.map_err(|error| GcsError::unavailable(error.to_string()))??;
        return Ok(cancelled.map_or_else(|| status(499), json));
    }
    let range = ContentRange::of(&request.parts.headers)?;
    request.context.hold_memory();
    let addition = Addition {
        id,
        range,
        stated: StatedHashes::of(request)?,
        body: body_of(request),
        url: endpoint.url(&request.parts),
    };
    // A task of its own: bytes that arrived are kept when the client leaves.
    let sessions = Arc::clone(&endpoint.sessions);
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

/// The response about an open session: the bytes that it has. Some clients take a 308 for a
/// redirect.
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
    if is_over(error) {
        GcsError::gone(error.to_string())
    } else {
        from_store(doing, error).into()
    }
}

/// Whether the store has lost the upload.
fn is_over(error: &object_store::Error) -> bool {
    matches!(
        OriginError::find(error),
        Some(OriginError::UploadLost { .. } | OriginError::UploadDamaged { .. })
    )
}

fn no_memory() -> GcsError {
    GcsError::unavailable("There is no memory for the state of the upload now; try again.")
}

fn status(code: u16) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or_default();
    response
}

/// The CRC32C of bytes with `first`, followed by `length` bytes with `second`.
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
    let joined = combine(&parts, ChecksumKind::FullObject);
    joined.map_or_else(String::new, |joined| joined.value)
}
