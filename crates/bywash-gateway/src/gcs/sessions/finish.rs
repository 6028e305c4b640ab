//! The end of a session: its object becomes visible, and its file says so.

use bywash::Bucket;
use object_store::Attributes;
use object_store::path::Path;

use super::super::condition::is_unmet;
use super::super::error::{GcsError, GcsResult};
use super::super::read::head;
use super::super::resource::ObjectResource;
use super::run::Addition;
use super::{OpenSession, SessionState, Sessions, is_over, mark_of};
use crate::digest::{Algorithm, Checksum};
use crate::errors::{OperationContext, from_store, no_such_bucket};
use crate::keys::path_of;
use crate::meta::{keep_checksum, upload_mark};

impl Sessions {
    /// Completes the object of a session that has all of its bytes.
    pub(super) async fn finish(
        &self,
        request: Addition,
        mut session: OpenSession,
    ) -> GcsResult<SessionState> {
        let header = session.header.clone();
        let doing = OperationContext::new("finish the upload of", &header.bucket, &header.key);
        let bucket = self.engine.bucket(doing.bucket);
        let bucket = bucket.ok_or_else(|| no_such_bucket(doing.bucket))?;
        let path = path_of(doing.key)?;
        let stated = [&request.hash, &header.expected_crc32c];
        if stated
            .into_iter()
            .flatten()
            .any(|stated| *stated != header.crc32c)
        {
            self.discard(&request.id, session).await;
            return Err(GcsError::invalid(format!(
                "{}/{}: the bytes have the crc32c {}, which is not the stated one; nothing was stored, and the session is over.",
                doing.bucket, doing.key, header.crc32c
            )));
        }
        let mut late = Attributes::new();
        let checksum = Checksum {
            algorithm: Algorithm::Crc32c,
            value: header.crc32c.clone(),
        };
        keep_checksum(&mut late, &checksum);
        session.upload.add_attributes(&late);
        if let Err(error) = session.upload.finish().await {
            if is_unmet(&error) {
                let own =
                    header.conditional && self.is_own(&bucket, &path, &request.id, doing).await?;
                if !own {
                    self.discard(&request.id, session).await;
                    return Err(from_store(doing, &error).into());
                }
            } else if is_over(&error) {
                self.discard(&request.id, session).await;
                return Err(GcsError::gone(error.to_string()));
            } else {
                // The client sends the end again: the file has what was acknowledged.
                return Err(from_store(doing, &error).into());
            }
        }
        let found = head(&bucket, &path, doing).await?;
        let resource = ObjectResource::read(&bucket, doing.key, &found, &request.endpoint);
        let resource = resource.with_crc32c(Some(&header.crc32c));
        let resource = serde_json::to_vec(&resource);
        let resource = resource.map_err(|error| GcsError::unavailable(error.to_string()))?;
        if let Err(error) = self.files.finish(&request.id, &resource).await {
            // The object is there all the same.
            tracing::warn!(?error, "the end of a session could not be recorded");
        }
        Ok(SessionState::Finished(resource))
    }

    /// Whether the object is that of an earlier end of this session, whose response was lost.
    async fn is_own(
        &self,
        bucket: &Bucket,
        path: &Path,
        id: &str,
        doing: OperationContext<'_>,
    ) -> GcsResult<bool> {
        let found = head(bucket, path, doing).await?;
        Ok(upload_mark(&found.attributes) == Some(mark_of(id).as_str()))
    }

    /// Aborts a session that cannot become an object, and forgets it.
    async fn discard(&self, id: &str, mut session: OpenSession) {
        if let Err(error) = session.upload.abort().await {
            tracing::debug!(%error, "a session that failed was not aborted");
        }
        if let Err(error) = self.files.remove(id).await {
            tracing::warn!(?error, "a session that failed was not removed");
        }
    }
}
