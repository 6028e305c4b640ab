//! Completion of a multipart upload at the origin, whose response may be lost.
//!
//! The completion is sent to the origin once. A client that misses the response repeats its request, possibly to a
//! restarted server, when the origin no longer knows the upload. So the upload gets a unique mark at its start, which
//! the origin stores with the object, and its list of parts is recorded before the completion is sent. An object with
//! this mark and the size of the parts is the result, if no other list of parts was ever sent.

mod cluster;

use bywash::origin::kept_client_etag;
use bywash::{Bucket, CompleteOptions, UploadedPart};
use object_store::path::Path;
use object_store::{
    Attributes, Error as StoreError, GetOptions, ObjectMeta, ObjectStore, PutMode, PutResult,
};
use s3s::dto::CompletedPart;
use s3s::{S3ErrorCode, S3Result};

use crate::digest::{Checksum, e_tag_of_parts};
use crate::errors::{OperationContext, fault, from_store};
use crate::meta::{
    bare, client_e_tag, keep_checksum, keep_e_tag, keep_upload_id, kept_checksum, kept_upload_id,
    upload_mark,
};
use crate::object_parts::ObjectParts;
use crate::uploads::{Completion, Part, Upload, attempt};

pub(crate) use cluster::{ClusterJob, Found};

/// Evidence that an object is the result of this completion.
#[derive(Debug)]
pub(crate) struct CompletionToken {
    /// The requested list of parts, by name.
    attempt: String,
    /// Whether the list was sent before without a known result.
    again: bool,
    /// Mark of the upload. `None` if another list of parts was sent before: the object may be the result of that.
    mark: Option<String>,
    size: u64,
    parts: usize,
}

impl CompletionToken {
    pub(crate) fn new(upload: &Upload, parts: &[UploadedPart], size: u64) -> Self {
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

    /// Returns the object if it exists and is the result of this completion.
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

/// Number of parts from an S3 ETag of an upload: 32 hexadecimal digits, `-`, number.
fn parts_of(e_tag: &str) -> Option<usize> {
    let (digest, parts) = bare(client_e_tag(e_tag)).split_once('-')?;
    let is_digest = digest.len() == 32 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
    parts.parse().ok().filter(|_| is_digest)
}

/// Returns the stored ETag and the checksum of the object that the upload `id` became, if an
/// earlier completion from the same parts succeeded: its client may have missed the response. Where
/// the origin keeps no attributes that are known only at the end, the proof is an ETag that S3
/// computes from the ETags of the named parts: the object has their bytes, and an upload made it.
pub(crate) async fn earlier_result(
    bucket: &Bucket,
    path: &Path,
    id: &str,
    requested: &[CompletedPart],
) -> Option<(String, Option<Checksum>)> {
    let head = GetOptions {
        head: true,
        ..GetOptions::default()
    };
    let found = bucket.get_opts(path, head).await.ok()?;
    let stored = found.meta.e_tag?;
    let of_named = e_tag_of_parts(
        requested
            .iter()
            .map(|part| part.e_tag.as_ref().map(|e_tag| e_tag.value())),
    );
    let same = match kept_upload_id(&found.attributes) {
        Some(kept) if kept != id => false,
        Some(_) => {
            let parts = ObjectParts::kept(&found.attributes, found.meta.size)?;
            let numbers = parts.0.iter().map(|part| i32::from(part.number));
            let named = requested.iter().filter_map(|part| part.part_number);
            let kept = kept_client_etag(&stored);
            numbers.eq(named) && kept.is_none_or(|kept| of_named.as_deref() == Some(kept))
        }
        None => {
            upload_mark(&found.attributes).is_some()
                && of_named.is_some_and(|named| named == bare(client_e_tag(&stored)))
        }
    };
    same.then(|| (stored.clone(), kept_checksum(&found.attributes)))
}

/// Whether a completion is still to be sent.
pub(crate) enum Repeated {
    /// An earlier one made this object.
    Done(PutResult),
    Pending(Box<CompletionJob>),
}

/// The attributes of an object that are known when its upload is completed.
pub(crate) fn late_attributes(
    chosen: &[(UploadedPart, &Part)],
    checksum: Option<&Checksum>,
    id: &str,
) -> Attributes {
    let mut attributes = Attributes::new();
    let md5s = chosen.iter().map(|(_, part)| part.md5.as_deref());
    if let Some(e_tag) = e_tag_of_parts(md5s) {
        keep_e_tag(&mut attributes, e_tag);
    }
    if let Some(checksum) = checksum {
        keep_checksum(&mut attributes, checksum);
    }
    ObjectParts::of(chosen).keep(&mut attributes);
    keep_upload_id(&mut attributes, id);
    attributes
}

/// A validated completion.
pub(crate) struct CompletionJob {
    pub(crate) completion: Completion,
    pub(crate) token: CompletionToken,
    pub(crate) bucket: Bucket,
    pub(crate) path: Path,
    pub(crate) id: String,
    pub(crate) parts: Vec<UploadedPart>,
    /// Attributes known only now.
    pub(crate) attributes: Attributes,
}

impl CompletionJob {
    /// Finds the object that an earlier completion of the same parts made, whose response was lost: before the request's conditions
    /// are checked, which the object itself would fail now.
    ///
    /// # Errors
    /// Errors of the origin.
    pub(crate) async fn repeated(self, doing: OperationContext<'_>) -> S3Result<Repeated> {
        let failed = |error: StoreError| from_store(doing, &error);
        if self.token.again
            && let Some(found) = self
                .token
                .find(&self.bucket, &self.path)
                .await
                .map_err(failed)?
        {
            // If the origin was stopped in between, it still has the parts.
            match self.bucket.abort_upload(&self.path, &self.id).await {
                Ok(()) | Err(StoreError::NotFound { .. }) => {}
                Err(error) => {
                    tracing::warn!(upload = self.id, %error, "parts of a completed upload stay at the origin");
                }
            }
            self.completion.done().await?;
            return Ok(Repeated::Done(found));
        }
        Ok(Repeated::Pending(Box::new(self)))
    }

    /// Completes the upload in a task of its own. If the client leaves, the origin still completes it, and the upload
    /// must then be removed.
    ///
    /// # Errors
    /// Errors of the list of uploads; the inner ones are the origin's, `NotFound` if it has no such
    /// upload.
    pub(crate) async fn run(self, mode: PutMode) -> S3Result<Result<PutResult, StoreError>> {
        let options = CompleteOptions {
            mode,
            attributes: self.attributes.clone(),
            ..CompleteOptions::default()
        };
        let sent = tokio::spawn(self.send(options)).await;
        sent.unwrap_or_else(|error| Err(fault(S3ErrorCode::InternalError, error.to_string())))
    }

    async fn send(self, options: CompleteOptions) -> S3Result<Result<PutResult, StoreError>> {
        let Self {
            completion,
            token,
            bucket,
            path,
            id,
            parts,
            ..
        } = self;
        completion.begin(token.attempt.clone()).await?;
        let mut result = bucket.complete_upload(&path, &id, &parts, options).await;
        if matches!(result, Err(StoreError::NotFound { .. })) {
            match token.find(&bucket, &path).await {
                Ok(Some(found)) => result = Ok(found),
                Ok(None) => {}
                // The outcome is unknown: keep the upload, so that the request can be repeated.
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
