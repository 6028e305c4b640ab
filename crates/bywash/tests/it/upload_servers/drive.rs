//! A minimal correct client of a session: one chunk at a time, and after any failure query, compare, rewind.

use bytes::Bytes;
use bywash::origin::{Chunk, CompleteRequest, Finished, SessionStatus, UploadSession};
use bywash::{OriginError, StatusError};
use bywash_sim::server::objects::crc32c;
use object_store::{Attributes, Error, Result};

use crate::numbered_parts::SendChunk;

/// Maximum failures of one upload.
const MAX_FAILURES: u32 = 50;

/// Result of an upload.
#[derive(Debug)]
pub(crate) struct Driven {
    pub(crate) finished: Finished,
    /// Bytes that were sent more than once.
    pub(crate) resent: u64,
}

/// Returns whether the store should be queried and the upload continued.
pub(crate) fn may_pass(error: &Error) -> bool {
    let status = StatusError::find(error).map(|found| found.status.as_u16());
    let passing = match OriginError::find(error) {
        None => true,
        Some(found) => matches!(found, OriginError::BadResponse { .. }),
    };
    matches!(error, Error::Generic { .. })
        && passing
        && status.is_none_or(|status| [408, 429, 500, 502, 503, 504].contains(&status))
}

/// Uploads `bytes` in chunks of `chunk` bytes; the last is sent with the completion.
pub(crate) async fn drive(
    session: &dyn UploadSession,
    bytes: &Bytes,
    chunk: usize,
) -> Result<Driven> {
    let mut at = 0_usize;
    let mut furthest = 0_usize;
    let mut resent = 0_u64;
    let mut failures = 0;
    loop {
        let end = (at / chunk + 1) * chunk;
        let last = end >= bytes.len();
        let piece = bytes.slice(at..end.min(bytes.len()));
        resent += furthest.saturating_sub(at).min(piece.len()) as u64;
        furthest = furthest.max(at + piece.len());
        let one = Chunk {
            index: (at / chunk) as u64,
            offset: at as u64,
            crc32c: crc32c(&piece),
            pieces: vec![piece],
        };
        let error = if last {
            let tail = (at < bytes.len()).then_some(one);
            let ending = CompleteRequest {
                attributes: Attributes::new(),
                parts: None,
                digest: None,
                length: bytes.len() as u64,
                crc32c: crc32c(bytes),
                tail,
            };
            match session.finish(&ending).await {
                Ok(finished) => return Ok(Driven { finished, resent }),
                Err(error) => error,
            }
        } else {
            match session.send(&one).await {
                Ok(kept) => {
                    at = usize::try_from(kept).unwrap();
                    continue;
                }
                Err(error) => error,
            }
        };
        failures += 1;
        if !may_pass(&error) || failures > MAX_FAILURES {
            return Err(error);
        }
        match status(session, &mut failures).await? {
            SessionStatus::Open(kept) => {
                at = kept
                    .first()
                    .map_or(0, |kept| usize::try_from(kept.range.end).unwrap());
                if at > furthest {
                    return Err(damaged("more is kept than was sent"));
                }
            }
            SessionStatus::Finished(finished) => return Ok(Driven { finished, resent }),
            SessionStatus::Gone => return Err(damaged("the session is gone")),
        }
    }
}

async fn status(session: &dyn UploadSession, failures: &mut u32) -> Result<SessionStatus> {
    loop {
        match session.status().await {
            Err(error) if may_pass(&error) && *failures < MAX_FAILURES => *failures += 1,
            result => return result,
        }
    }
}

fn damaged(detail: &str) -> Error {
    OriginError::UploadDamaged {
        object: "a".to_owned(),
        detail: detail.to_owned(),
    }
    .into()
}
