//! Bodies of requests whose digest is signed.

use futures::{StreamExt, TryStreamExt, stream};
use s3s::S3ErrorCode;
use sha2::{Digest as _, Sha256};
use std::sync::Arc;

use parking_lot::Mutex;

use super::super::body::BodyStream;
use crate::body::RequestContext;

/// The SHA-256 of a body as it was signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SignedPayload([u8; 32]);

impl SignedPayload {
    pub(crate) fn new(digest: [u8; 32]) -> Self {
        Self(digest)
    }

    /// Lets a body fail at its end if it is another one: its reader stores nothing then.
    pub(crate) fn check(self, body: BodyStream, context: &Arc<RequestContext>) -> BodyStream {
        let hasher = Arc::new(Mutex::new(Sha256::new()));
        let (passing, context) = (Arc::clone(&hasher), Arc::clone(context));
        let body = body.inspect_ok(move |piece| passing.lock().update(piece));
        let end = async move {
            let found: [u8; 32] = hasher.lock().clone().finalize().into();
            if found == self.0 {
                Ok(None)
            } else {
                Err(context.note(
                    S3ErrorCode::BadDigest,
                    "The body does not have the signed content-sha256; nothing was stored.",
                ))
            }
        };
        let end = stream::once(end).try_filter_map(|piece| async move { Ok(piece) });
        body.chain(end).boxed()
    }
}
