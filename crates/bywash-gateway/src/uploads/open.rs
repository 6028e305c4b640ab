//! Open uploads for the admin page, from the memory of the endpoint: no file is read. An abort of
//! one.

use std::cmp::Reverse;
use std::sync::{Arc, OnceLock, Weak};

use bywash::cluster_uploads::SharedPosition;
use bywash::{Bucket, Engine};
use chrono::{DateTime, Utc};
use object_store::Error as StoreError;
use object_store::path::Path;
use s3s::{S3Error, S3Result};

use super::{ClusterUploads, OpenUpload, UploadName, Uploads};
use crate::errors::{OperationContext, from_store, no_such_bucket};
use crate::keys::path_of;
use crate::limits::MAX_SHOWN_UPLOADS;

/// The reason for which an upload was not aborted, in a sentence.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct AbortError(String);

impl From<S3Error> for AbortError {
    fn from(error: S3Error) -> Self {
        let message = error.message().map(str::to_owned);
        Self(message.unwrap_or_else(|| error.code().as_str().to_owned()))
    }
}

/// The open multipart uploads of an endpoint, empty until the endpoint serves. A cheap handle.
#[derive(Debug, Clone, Default)]
pub struct OpenUploads(Arc<OnceLock<Weak<Uploads>>>);

impl OpenUploads {
    /// Shows the uploads of an endpoint. Only the first call has an effect.
    pub(crate) fn show(&self, uploads: &Arc<Uploads>) {
        // A second endpoint with the same configuration is not shown.
        let _ = self.0.set(Arc::downgrade(uploads));
    }

    /// The uploads that began last, at most `max`, the newest first, and the number of all.
    #[must_use]
    pub fn newest(&self, max: usize) -> (Vec<OpenUpload>, usize) {
        let uploads = self.0.get().and_then(Weak::upgrade);
        uploads.map_or_else(Default::default, |uploads| uploads.newest(max))
    }

    /// Number of uploads that began before `time`.
    #[must_use]
    pub fn begun_before(&self, time: DateTime<Utc>) -> usize {
        let uploads = self.0.get().and_then(Weak::upgrade);
        uploads.map_or(0, |uploads| {
            let open = uploads.open.lock();
            open.values()
                .filter(|upload| upload.initiated < time)
                .count()
        })
    }
}

/// An open upload that the nodes of a cluster share.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClusterUpload {
    /// Bucket of the object.
    pub bucket: String,
    /// Key of the object.
    pub key: String,
    /// The client's upload id.
    pub id: String,
    /// The origin's upload id.
    pub origin_id: String,
    /// Start time.
    pub initiated: DateTime<Utc>,
}

impl OpenUploads {
    /// Returns the open uploads of a cluster in the buckets of `engine`, at most [`MAX_SHOWN_UPLOADS`], and whether these are all. `None`
    /// outside a cluster.
    ///
    /// # Errors
    /// If the records of the cluster are not available.
    pub async fn of_cluster(
        &self,
        engine: &Engine,
    ) -> Option<Result<(Vec<ClusterUpload>, bool), AbortError>> {
        let uploads = self.0.get().and_then(Weak::upgrade)?;
        Some(Self::list(uploads.cluster()?, engine).await)
    }

    async fn list(
        cluster: &ClusterUploads,
        engine: &Engine,
    ) -> Result<(Vec<ClusterUpload>, bool), AbortError> {
        let mut found = Vec::new();
        for bucket in engine.buckets() {
            // One more than are shown, which shows that there are more.
            let max = MAX_SHOWN_UPLOADS + 1 - found.len();
            let listed = cluster.list(&bucket.name, SharedPosition::Key(""), max);
            let listed = listed.await;
            for open in listed.map_err(|error| AbortError(error.to_string()))? {
                // A record of another cluster key names no upload of this one.
                if let Ok(sealed) = cluster.open(open.name) {
                    found.push(ClusterUpload {
                        origin_id: sealed.origin,
                        initiated: sealed.upload.initiated,
                        bucket: sealed.name.bucket,
                        key: sealed.name.key,
                        id: sealed.name.id,
                    });
                }
            }
            if found.len() > MAX_SHOWN_UPLOADS {
                found.truncate(MAX_SHOWN_UPLOADS);
                return Ok((found, false));
            }
        }
        Ok((found, true))
    }

    /// Aborts the upload `id` of an object, as a client's AbortMultipartUpload does: its parts are deleted at the origin.
    ///
    /// # Errors
    /// If there is no such upload, it is being completed, or the origin fails.
    pub async fn abort(
        &self,
        engine: &Engine,
        bucket: &str,
        key: &str,
        id: &str,
    ) -> Result<(), AbortError> {
        let doing = OperationContext::new("abort upload of", bucket, key);
        let open = engine
            .bucket(bucket)
            .ok_or_else(|| no_such_bucket(bucket))?;
        let path = path_of(key)?;
        let Some(uploads) = self.0.get().and_then(Weak::upgrade) else {
            return Err(AbortError("The endpoint does not serve.".to_owned()));
        };
        let aborted = uploads.abort(&open, &path, id.to_owned(), doing);
        Ok(aborted.await?)
    }
}

impl Uploads {
    /// Aborts an upload at the origin, and removes it.
    pub(crate) async fn abort(
        self: &Arc<Self>,
        bucket: &Bucket,
        path: &Path,
        id: String,
        doing: OperationContext<'_>,
    ) -> S3Result<()> {
        if let Some(cluster) = self.cluster() {
            return cluster.abort(bucket, path, id, doing).await;
        }
        let name = UploadName::of(doing, id);
        self.check_open(&name)?;
        match bucket.abort_upload(path, &name.id).await {
            Ok(()) | Err(StoreError::NotFound { .. }) => self.remove(&name).await,
            Err(error) => Err(from_store(doing, &error)),
        }
    }

    fn newest(&self, max: usize) -> (Vec<OpenUpload>, usize) {
        let open = self.open.lock();
        let mut newest: Vec<_> = open.iter().collect();
        let total = newest.len();
        newest.sort_unstable_by_key(|(_, upload)| Reverse(upload.initiated));
        newest.truncate(max);
        let newest: Vec<_> = newest
            .into_iter()
            .map(|(name, upload)| (name.clone(), upload.initiated, Arc::clone(&upload.parts)))
            .collect();
        drop(open);
        let shown = newest
            .into_iter()
            .map(|(name, initiated, parts)| OpenUpload {
                id: name.id,
                bucket: name.bucket,
                key: name.key,
                initiated,
                parts: parts.len(),
                bytes: parts.values().map(|part| part.size).sum(),
            });
        (shown.collect(), total)
    }
}
