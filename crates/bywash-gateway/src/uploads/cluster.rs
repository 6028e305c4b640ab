//! Uploads of a cluster: any node continues them, by the state in their ids, the origin's list of parts, and the shared records.

use std::sync::Arc;
use std::time::Duration;

use bywash::cluster_uploads::{
    SharedPosition, SharedUpload, SharedUploadName, SharedUploads, SharedUploadsError, UploadSeal,
};
use bywash::{Bucket, ListedPart};
use chrono::{DateTime, Utc};
use object_store::Error as StoreError;
use object_store::path::Path;
use s3s::{S3Error, S3Result};
use serde::{Deserialize, Serialize};

use super::{ListedUpload, Part, Upload, UploadName};
use crate::digest::Algorithm;
use crate::errors::{OperationContext, from_store, no_such_upload, slow_down};

/// State of multipart uploads that the nodes of a cluster share. A cheap handle.
#[derive(Debug, Clone)]
pub struct ClusterUploads {
    /// Seals the ids that clients get, the same at all nodes.
    pub seal: Arc<dyn UploadSeal>,
    /// The records.
    pub shared: Arc<dyn SharedUploads>,
    /// Max time between two searches for records of uploads that the origin has forgotten; each takes half of it at least.
    pub sweep_every: Duration,
}

/// State in an id. Times are nanoseconds since 1970.
#[derive(Debug, Serialize, Deserialize)]
struct SealedState {
    #[serde(rename = "o")]
    origin: String,
    #[serde(rename = "t")]
    initiated: i64,
    #[serde(rename = "a", default, skip_serializing_if = "Option::is_none")]
    algorithm: Option<String>,
    #[serde(rename = "f", default, skip_serializing_if = "std::ops::Not::not")]
    full_object: bool,
    #[serde(rename = "m", default, skip_serializing_if = "Option::is_none")]
    mark: Option<String>,
}

/// An upload, from its id.
#[derive(Debug)]
pub(crate) struct SealedUpload {
    /// The origin's id.
    pub(crate) origin: String,
    /// Without parts.
    pub(crate) upload: Upload,
    pub(crate) name: UploadName,
}

impl SealedUpload {
    /// Its record at `bucket`.
    pub(crate) fn record(&self, bucket: &Bucket) -> SharedUpload {
        record(bucket, &self.name, &self.upload)
    }

    pub(crate) fn shared_name(&self) -> SharedUploadName<'_> {
        let UploadName { bucket, key, id } = &self.name;
        SharedUploadName { bucket, key, id }
    }
}

fn record(bucket: &Bucket, name: &UploadName, upload: &Upload) -> SharedUpload {
    SharedUpload {
        bucket: name.bucket.clone(),
        key: name.key.clone(),
        id: name.id.clone(),
        initiated: upload.initiated,
        algorithm: upload.algorithm.map(|found| found.name().to_owned()),
        origin: bucket.origin_digest(),
    }
}

/// A part of the origin's list. `initiated` is its time where the origin states none.
pub(crate) fn part_of(listed: ListedPart, initiated: DateTime<Utc>) -> Part {
    Part {
        e_tag: listed.e_tag,
        md5: None,
        size: listed.size,
        checksum: None,
        modified: listed.modified.unwrap_or(initiated),
    }
}

/// The error of a request that needs a record.
pub(crate) fn not_recorded(doing: OperationContext<'_>, error: &SharedUploadsError) -> S3Error {
    let OperationContext {
        operation,
        bucket,
        key,
    } = doing;
    slow_down(format!("{operation} {bucket}/{key}: {error}; try again."))
}

impl ClusterUploads {
    /// Returns the upload with this id; the same error for a forged id and for one of another object.
    pub(crate) fn open(&self, name: UploadName) -> S3Result<SealedUpload> {
        let opened = || {
            let state = self.seal.open(&name.bucket, &name.key, &name.id)?;
            let state: SealedState = serde_json::from_slice(&state).ok()?;
            let algorithm = match &state.algorithm {
                None => None,
                Some(algorithm) => Some(Algorithm::by_name(algorithm)?),
            };
            let initiated = DateTime::from_timestamp_nanos(state.initiated);
            let upload = Upload::new(initiated, algorithm, state.full_object, state.mark);
            Some((state.origin, upload))
        };
        let (origin, upload) = opened().ok_or_else(|| no_such_upload(&name.id))?;
        Ok(SealedUpload {
            origin,
            upload,
            name,
        })
    }

    /// Records an upload that the origin has begun with the id `origin`, and returns the id for its
    /// client. Without the records the upload continues where the origin knows its uploads: it is
    /// not listed then.
    pub(super) async fn begin(
        &self,
        bucket: &Bucket,
        doing: OperationContext<'_>,
        origin: &str,
        upload: &Upload,
    ) -> S3Result<String> {
        let state = SealedState {
            origin: origin.to_owned(),
            initiated: upload.initiated.timestamp_nanos_opt().unwrap_or_default(),
            algorithm: upload.algorithm.map(|found| found.name().to_owned()),
            full_object: upload.full_object,
            mark: upload.mark.clone(),
        };
        // Texts and numbers always serialise.
        let state = serde_json::to_vec(&state).unwrap_or_default();
        let id = self.seal.seal(doing.bucket, doing.key, &state);
        let name = UploadName::of(doing, id);
        match self.shared.begun(&record(bucket, &name, upload)).await {
            Ok(()) => {}
            Err(error @ SharedUploadsError::Unavailable(_)) if bucket.knows_uploads() => {
                tracing::warn!(bucket = name.bucket, key = name.key, %error, "a multipart upload is not listed");
            }
            Err(error) => return Err(not_recorded(doing, &error)),
        }
        Ok(name.id)
    }

    /// Aborts an upload at the origin, and removes its record.
    pub(super) async fn abort(
        &self,
        bucket: &Bucket,
        path: &Path,
        id: String,
        doing: OperationContext<'_>,
    ) -> S3Result<()> {
        let sealed = self.open(UploadName::of(doing, id))?;
        let found = match bucket.abort_upload(path, &sealed.origin).await {
            Ok(()) => true,
            Err(StoreError::NotFound { .. }) => false,
            Err(error) => return Err(from_store(doing, &error)),
        };
        let recorded = match self.shared.ended(sealed.shared_name()).await {
            Ok(recorded) => recorded,
            // Where the record is the only trace of an upload, its end must be recorded.
            Err(error) if !bucket.knows_uploads() => return Err(not_recorded(doing, &error)),
            Err(error) => {
                let key = &sealed.name.key;
                tracing::warn!(key, %error, "an aborted multipart upload stays listed");
                false
            }
        };
        let known = found && bucket.knows_uploads();
        if known || recorded {
            Ok(())
        } else {
            Err(no_such_upload(&sealed.name.id))
        }
    }

    /// Returns at most `max` parts with numbers above `after`, and whether more follow.
    pub(crate) async fn parts_after(
        &self,
        bucket: &Bucket,
        path: &Path,
        sealed: &SealedUpload,
        (after, max): (u16, usize),
        doing: OperationContext<'_>,
    ) -> S3Result<(Vec<(u16, Part)>, bool)> {
        let mut parts: Vec<(u16, Part)> = Vec::new();
        let mut after = after;
        let mut more = true;
        while more && parts.len() < max {
            let page = bucket.uploaded_parts(path, &sealed.origin, after, max - parts.len());
            let page = page.await.map_err(|error| match error {
                StoreError::NotFound { .. } => no_such_upload(&sealed.name.id),
                error => from_store(doing, &error),
            })?;
            more = page.more;
            for listed in page.parts {
                after = listed.number;
                // A store that keeps a part next to its replacement lists both.
                parts.retain(|(number, _)| *number != listed.number);
                parts.push((listed.number, part_of(listed, sealed.upload.initiated)));
            }
        }
        Ok((parts, more))
    }

    /// Returns at most `max` open uploads of a bucket, in the order of their keys.
    pub(crate) async fn list(
        &self,
        bucket: &str,
        from: SharedPosition<'_>,
        max: usize,
    ) -> Result<Vec<ListedUpload>, SharedUploadsError> {
        let listed = self.shared.list(bucket, from, max).await?;
        let uploads = listed.into_iter().map(|open| open.upload);
        let uploads = uploads.map(|open| ListedUpload {
            initiated: open.initiated,
            algorithm: open.algorithm.as_deref().and_then(Algorithm::by_name),
            // It is in the id of the upload alone.
            checksum_kind: None,
            name: UploadName {
                bucket: open.bucket,
                key: open.key,
                id: open.id,
            },
        });
        Ok(uploads.collect())
    }
}
