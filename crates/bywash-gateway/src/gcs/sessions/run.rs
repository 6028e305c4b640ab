//! The bytes of one request of a session.

use std::sync::Arc;

use bytes::Bytes;
use bywash::{Share, Upload};
use futures::StreamExt;
use http::StatusCode;

use super::super::body::BodyStream;
use super::super::error::{GcsError, GcsResult};
use super::super::insert::StatedHashes;
use super::range::{ContentRange, other_length};
use super::record::Header;
use super::session_locks::SessionLock;
use super::{OpenSession, SessionState, Sessions, failed, joined, no_memory};
use crate::digest::{Algorithm, Hasher};
use crate::errors::OperationContext;
use crate::limits::{MAX_LIVE_CHUNK_BYTES, MAX_SESSION_CHUNK_MEMORY_DIVISOR};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

/// Min bytes of a part that each store takes.
const MIN_PART_BYTES: u64 = 5 << 20;
/// Min bytes of a chunk that the engine is given.
const MIN_CHUNK_BYTES: u64 = 256 << 10;

/// A request that adds to a session, or ends it.
pub(crate) struct Addition {
    pub(crate) id: String,
    pub(crate) range: ContentRange,
    pub(crate) stated: StatedHashes,
    pub(crate) body: BodyStream,
    pub(crate) url: String,
}

/// The part of a body that the session does not have.
struct Missing {
    /// Bytes at its beginning that the session has.
    skip: u64,
    /// Bytes that the request announces; `None` if its end is the end of the object.
    length: Option<u64>,
    /// Whether the object ends with it.
    is_last: bool,
}

/// How the reading of a body ended.
enum BodyEnd {
    Whole,
    /// The client left, or a newer request came.
    Broken(GcsError),
}

impl Sessions {
    /// Adds the bytes of a request to its session.
    pub(super) async fn add(self: Arc<Self>, mut request: Addition) -> GcsResult<SessionState> {
        let mut lock = self.locks.enter(&request.id).await;
        let mut session = match self.load(&request.id).await {
            Ok(Ok(session)) => session,
            Err(error) if error.status() == StatusCode::GONE => {
                // It can never be continued.
                self.files.remove(&request.id).await?;
                return Err(error);
            }
            Err(error) => return Err(error),
            Ok(Err(resource)) => {
                drop(lock);
                drain(&mut request.body).await;
                return Ok(SessionState::Finished(resource));
            }
        };
        let range = request.range.within(session.header.length);
        let missing = match range.and_then(|range| missing(range, session.upload.position())) {
            Ok(Some(missing)) => missing,
            other => {
                let length = session.upload.position();
                self.keep(request.id, session);
                drop(lock);
                if other.is_ok() {
                    drain(&mut request.body).await;
                }
                return other.map(|_| SessionState::Open(length));
            }
        };
        let is_last = missing.is_last;
        let announced = session.header.length;
        session.header.length = announced.or(request.range.total());
        let end = self
            .take(&mut session, &mut request, missing, &mut lock)
            .await;
        match end {
            Ok(BodyEnd::Whole) if is_last => {
                let length = session.upload.position();
                match announced.filter(|announced| *announced != length) {
                    None => self.finish(request, session).await,
                    // A body without a length has another one.
                    Some(announced) => {
                        self.persist(request.id, session).await?;
                        Err(other_length(length, announced))
                    }
                }
            }
            Ok(BodyEnd::Whole) => {
                let length = self.persist(request.id, session).await?;
                Ok(SessionState::Open(length))
            }
            Ok(BodyEnd::Broken(error)) => {
                // Bytes that arrived need not be sent again.
                self.persist(request.id, session).await?;
                Err(error)
            }
            Err(error) => Err(self.rescue(&request.id, session, error).await),
        }
    }

    /// Writes the bytes that the session does not have.
    async fn take(
        &self,
        session: &mut OpenSession,
        request: &mut Addition,
        missing: Missing,
        lock: &mut SessionLock<'_>,
    ) -> GcsResult<BodyEnd> {
        let begin = session.upload.position();
        // Folders and memory take chunks of any length.
        let bucket = self.engine.bucket(&session.header.bucket);
        let takes_any = bucket.is_some_and(|bucket| bucket.takes_late_attributes());
        if begin == 0 && !missing.is_last && takes_any {
            fit_chunk(&mut session.upload, missing.length);
        }
        if begin > 0 || !missing.is_last {
            let memory = self.engine.budget().limit();
            let max = memory / MAX_SESSION_CHUNK_MEMORY_DIVISOR;
            session.upload.shorten_chunks(max.max(MIN_PART_BYTES));
        }
        let mut digest = Algorithm::Crc32c.hasher();
        let end = read(session, request, missing, lock, &mut digest).await;
        let taken = session.upload.position() - begin;
        let digest = BASE64_STANDARD.encode(digest.finish());
        let header = &mut session.header;
        header.crc32c = joined(&header.crc32c, begin, &digest, taken);
        end
    }

    /// Sends the bytes of a session that its store takes, and writes the rest to its file. Returns
    /// the number of its bytes.
    async fn persist(&self, id: String, mut session: OpenSession) -> GcsResult<u64> {
        if let Err(error) = session.upload.settle().await {
            let Header { bucket, key, .. } = &session.header;
            let doing = OperationContext::new("continue the upload of", bucket, key);
            let error = failed(doing, &error);
            return Err(self.rescue(&id, session, error).await);
        }
        let acknowledged = session.upload.acknowledged();
        session.restored = session.restored.filter(|(end, _)| acknowledged < *end);
        match self.save(&id, &mut session).await {
            Ok(length) => {
                self.keep(id, session);
                Ok(length)
            }
            Err(error) => {
                abandon(session).await;
                Err(error)
            }
        }
    }

    /// Writes the session to its file, with all bytes that its store does not have. Returns the number of its bytes.
    async fn save(&self, id: &str, session: &mut OpenSession) -> GcsResult<u64> {
        let upload = &session.upload;
        let length = upload.position();
        // The token and its file in memory.
        let bytes = 2 * (length - upload.acknowledged()) + MIN_CHUNK_BYTES;
        let charge = self.engine.try_reserve(Share::Upload, bytes);
        let _charge = charge.ok_or_else(no_memory)?;
        let token = upload.capture();
        self.files.replace(id, &session.header, &token).await?;
        session.is_recorded = token.session().is_some();
        Ok(length)
    }

    /// Keeps the state of a session after a failed request: the request may have opened the store's
    /// session, which no file names yet. A session that its store has lost is removed. Returns the
    /// error.
    pub(super) async fn rescue(
        &self,
        id: &str,
        mut session: OpenSession,
        error: GcsError,
    ) -> GcsError {
        if error.status() == StatusCode::GONE {
            self.discard(id, session).await;
            return error;
        }
        if let Err(unsaved) = self.save(id, &mut session).await {
            tracing::debug!(error = ?unsaved, "the state of a session was not written");
            abandon(session).await;
        }
        error
    }
}

/// Aborts the store's session if no file names it: the session continues from its file.
async fn abandon(mut session: OpenSession) {
    if !session.is_recorded
        && let Err(error) = session.upload.abort().await
    {
        tracing::debug!(%error, "a session of the store was left open");
    }
}

/// Returns the bytes that a request adds; `None` if it only asks for the status.
///
/// # Errors
/// If bytes between the end of the session and the start of the request are missing.
fn missing(range: ContentRange, length: u64) -> GcsResult<Option<Missing>> {
    match range {
        ContentRange::Status { total } if total == Some(length) => Ok(Some(Missing {
            skip: 0,
            length: Some(0),
            is_last: true,
        })),
        ContentRange::Status { .. } => Ok(None),
        ContentRange::Chunk { first, .. } if first > length => Err(GcsError::gap(first, length)),
        ContentRange::Chunk { first, end, total } => {
            let is_last = total == Some(end);
            // Bytes that the session has are not taken again.
            if end <= length && !(is_last && end == length) {
                return Ok(None);
            }
            Ok(Some(Missing {
                skip: length - first,
                length: Some(end - first),
                is_last,
            }))
        }
        ContentRange::Whole { length: whole } => Ok(Some(Missing {
            skip: length,
            length: whole,
            is_last: true,
        })),
    }
}

/// Reads a body up to its end.
async fn read(
    session: &mut OpenSession,
    request: &mut Addition,
    missing: Missing,
    lock: &mut SessionLock<'_>,
    digest: &mut Hasher,
) -> GcsResult<BodyEnd> {
    let Missing {
        mut skip, length, ..
    } = missing;
    let mut left = length;
    loop {
        let piece = tokio::select! {
            biased;
            () = lock.overtaken() => {
                let message = "A newer request of this session came; ask for its status.";
                return Ok(BodyEnd::Broken(GcsError::unavailable(message)));
            }
            piece = request.body.next() => piece,
        };
        let mut piece: Bytes = match piece {
            None if left.is_none_or(|left| left == 0) && skip == 0 => return Ok(BodyEnd::Whole),
            None => {
                let message =
                    "The body ended before its announced end; ask for the status of the session.";
                return Ok(BodyEnd::Broken(GcsError::invalid(message)));
            }
            Some(Ok(piece)) => piece,
            Some(Err(error)) => {
                let error = GcsError::new(StatusCode::BAD_REQUEST, "invalid", error.to_string());
                return Ok(BodyEnd::Broken(error));
            }
        };
        if let Some(left) = &mut left {
            *left = left
                .checked_sub(piece.len() as u64)
                .ok_or_else(|| GcsError::invalid("The body is longer than its Content-Range."))?;
        }
        let skipped = skip.min(piece.len() as u64);
        skip -= skipped;
        piece = piece.split_off(skipped as usize);
        if piece.is_empty() {
            continue;
        }
        digest.update(&piece);
        let header = &mut session.header;
        if let Some(md5) = &mut header.md5 {
            md5.update(&piece);
        }
        let doing = OperationContext::new("write a chunk of", &header.bucket, &header.key);
        let written = session.upload.write(piece).await;
        written.map_err(|error| failed(doing, &error))?;
    }
}

/// Discards bytes that a session has already: a client may read no response before it has sent them.
async fn drain(body: &mut BodyStream) {
    while let Some(Ok(_)) = body.next().await {}
}

/// Cuts the upload as its client does: then no bytes wait between two chunks.
fn fit_chunk(upload: &mut Upload, length: Option<u64>) {
    let Some(length) = length.filter(|length| *length >= MIN_CHUNK_BYTES) else {
        return;
    };
    let chunk = length / length.div_ceil(MAX_LIVE_CHUNK_BYTES);
    // A store that does not allow it keeps the chunks of the engine.
    if let Err(error) = upload.set_chunk(chunk) {
        tracing::debug!(%error, "chunks of an upload keep their length");
    }
}
