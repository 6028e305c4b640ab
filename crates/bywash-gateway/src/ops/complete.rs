//! The end of a multipart upload at the origin, whose answer may be lost.
//!
//! The origin is asked once; who does not learn its answer asks for the completion again, perhaps of the next server. The
//! origin does not know the upload any more then. So it is told at the beginning to keep a mark with the object that no other
//! upload has, and before it is asked it is noted from which parts. An object with the mark, of the parts' size, when no other
//! list of parts was ever asked for, is the one that was asked for.

use bywash::{Bucket, UploadedPart};
use http::HeaderMap;
use object_store::path::Path;
use object_store::{
    Attributes, Error as StoreError, GetOptions, ObjectMeta, ObjectStore, PutMode, PutResult,
};
use s3s::{S3ErrorCode, S3Result};

use super::write::put_mode;
use crate::errors::{Doing, fault, from_store, no_such_upload};
use crate::meta::{bare, upload_mark};
use crate::uploads::{Completion, Upload, attempt};

/// What shows that an object is what the completion of an upload makes.
#[derive(Debug)]
pub(super) struct Proof {
    /// The parts asked for now, by the name of their list.
    attempt: String,
    /// They were asked for before, and nobody was told what came of it.
    again: bool,
    /// The upload's mark, unless other parts were asked for before: then the object may be of those.
    mark: Option<String>,
    size: u64,
    parts: usize,
}

impl Proof {
    pub(super) fn new(upload: &Upload, parts: &[UploadedPart], size: u64) -> Self {
        let attempt = attempt(parts);
        let sole = upload.attempts.iter().all(|other| *other == attempt);
        Self {
            again: upload.attempts.contains(&attempt),
            mark: upload.mark.clone().filter(|_| sole),
            attempt,
            size,
            parts: parts.len(),
        }
    }

    fn holds(&self, meta: &ObjectMeta, attributes: &Attributes) -> bool {
        let parts = meta.e_tag.as_deref().and_then(parts_of);
        self.mark.is_some()
            && upload_mark(attributes) == self.mark.as_deref()
            && meta.size == self.size
            && parts.is_none_or(|parts| parts == self.parts)
    }

    /// The object, if it is there and of this completion.
    async fn find(&self, bucket: &Bucket, path: &Path) -> Result<Option<PutResult>, StoreError> {
        if self.mark.is_none() {
            return Ok(None);
        }
        let head = GetOptions {
            head: true,
            ..GetOptions::default()
        };
        match bucket.get_opts(path, head).await {
            Ok(found) if self.holds(&found.meta, &found.attributes) => Ok(Some(PutResult {
                e_tag: found.meta.e_tag,
                version: found.meta.version,
                extensions: object_store::Extensions::new(),
            })),
            Ok(_) | Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The number of parts in an ETag as S3 makes them of uploads: 32 hexadecimal digits, `-` and that.
fn parts_of(e_tag: &str) -> Option<usize> {
    let (digest, parts) = bare(e_tag).split_once('-')?;
    let is_digest = digest.len() == 32 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
    parts.parse().ok().filter(|_| is_digest)
}

/// A completion that was found to be in order.
pub(super) struct Finishing {
    pub(super) completion: Completion,
    pub(super) proof: Proof,
    pub(super) bucket: Bucket,
    pub(super) path: Path,
    pub(super) id: String,
    pub(super) parts: Vec<UploadedPart>,
}

impl Finishing {
    /// Completes the upload in a task of its own: a client that leaves does not end the origin's work, and the upload must be
    /// forgotten when that succeeds.
    pub(super) async fn run(self, headers: &HeaderMap, doing: Doing<'_>) -> S3Result<PutResult> {
        let failed = |error: StoreError| from_store(doing, &error);
        if self.proof.again
            && let Some(found) = self
                .proof
                .find(&self.bucket, &self.path)
                .await
                .map_err(failed)?
        {
            // Before the request's conditions are looked at: it was they that let the object in. An origin that was stopped
            // between the object and the end of the upload still has the parts.
            match self.bucket.abort_upload(&self.path, &self.id).await {
                Ok(()) | Err(StoreError::NotFound { .. }) => {}
                Err(error) => {
                    tracing::warn!(upload = self.id, %error, "parts of a completed upload stay at the origin");
                }
            }
            self.completion.done().await?;
            return Ok(found);
        }
        let mode = put_mode(&self.bucket, &self.path, headers, doing).await?;
        let id = self.id.clone();
        match tokio::spawn(self.ask(mode)).await {
            Ok(asked) => asked?.map_err(|error| match error {
                StoreError::NotFound { .. } => no_such_upload(&id),
                error => failed(error),
            }),
            Err(error) => Err(fault(S3ErrorCode::InternalError, error.to_string())),
        }
    }

    async fn ask(self, mode: PutMode) -> S3Result<Result<PutResult, StoreError>> {
        let Self {
            completion,
            proof,
            bucket,
            path,
            id,
            parts,
        } = self;
        completion.begin(proof.attempt.clone()).await?;
        let mut result = bucket.complete_upload(&path, &id, &parts, mode).await;
        if matches!(result, Err(StoreError::NotFound { .. })) {
            match proof.find(&bucket, &path).await {
                Ok(Some(found)) => result = Ok(found),
                Ok(None) => {}
                // Not known yet: the upload stays, to be asked for again.
                Err(error) => return Ok(Err(error)),
            }
        }
        if matches!(result, Ok(_) | Err(StoreError::NotFound { .. })) {
            completion.done().await?;
        }
        Ok(result)
    }
}

#[cfg(test)]
mod tests;
