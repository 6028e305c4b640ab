//! The end of a session: its object becomes visible, and its file says so.

use bywash::{Bucket, UploadResult};
use object_store::path::Path;
use object_store::{Attributes, GetResult};
use serde_json::{Value, json};

use super::super::condition::is_unmet;
use super::super::error::{GcsError, GcsResult};
use super::super::read::head;
use super::super::resource::ObjectResource;
use super::record::Header;
use super::run::Addition;
use super::{OpenSession, SessionState, Sessions, failed, mark_of};
use crate::digest::{Algorithm, Checksum};
use crate::errors::{OperationContext, from_store, no_such_bucket};
use crate::keys::path_of;
use crate::meta::{bare, client_e_tag, keep_checksum, kept_checksum, upload_mark};

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
        let put = match session.upload.finish().await {
            Ok(finished) => Some(finished),
            Err(error) if is_unmet(&error) => {
                // An earlier end of this session, whose response was lost, may have made the object.
                if !header.conditional || !self.is_own(&bucket, &path, &request.id, doing).await? {
                    self.discard(&request.id, session).await;
                    return Err(from_store(doing, &error).into());
                }
                None
            }
            Err(error) => {
                // The client sends the end again.
                let error = failed(doing, &error);
                return Err(self.rescue(&request.id, session, error).await);
            }
        };
        // Before anything else: without its record, a repeated end would find no session.
        let known = resource_of(put.as_ref(), &header).to_string();
        self.record(&request.id, known.as_bytes()).await;
        let found = head(&bucket, &path, doing).await;
        let is_own = |found: &GetResult| match &put {
            Some(put) => is_version_of(put, &header, found),
            None => has_mark(found, &request.id),
        };
        let Some(found) = found.ok().filter(is_own) else {
            // Another writer replaced the object since then, or its metadata cannot be read now.
            return Ok(SessionState::Finished(known.into_bytes()));
        };
        let resource = ObjectResource::read(&bucket, doing.key, &found, &request.url);
        let resource = serde_json::to_vec(&resource.with_crc32c(Some(&header.crc32c)));
        let resource = resource.map_err(|error| GcsError::unavailable(error.to_string()))?;
        self.record(&request.id, &resource).await;
        Ok(SessionState::Finished(resource))
    }

    /// Records the object that a session became.
    async fn record(&self, id: &str, resource: &[u8]) {
        if let Err(error) = self.files.finish(id, resource).await {
            // The object is there all the same.
            tracing::warn!(?error, "the end of a session could not be recorded");
        }
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
        Ok(has_mark(&found, id))
    }

    /// Aborts a session that cannot become an object, and forgets it.
    pub(super) async fn discard(&self, id: &str, mut session: OpenSession) {
        if let Err(error) = session.upload.abort().await {
            tracing::debug!(%error, "a session that failed was not aborted");
        }
        if let Err(error) = self.files.remove(id).await {
            tracing::warn!(?error, "a session that failed was not removed");
        }
    }
}

/// Whether a version carries the mark of a session.
fn has_mark(found: &GetResult, id: &str) -> bool {
    upload_mark(&found.attributes) == Some(mark_of(id).as_str())
}

/// Whether a version is the one that an upload made. Without an ETag of the upload, as far as length and checksum show it.
fn is_version_of(put: &UploadResult, header: &Header, found: &GetResult) -> bool {
    if let (Some(made), Some(current)) = (&put.put.e_tag, &found.meta.e_tag) {
        return bare(made) == bare(current);
    }
    let kept = kept_checksum(&found.attributes);
    let kept = kept.filter(|kept| kept.algorithm == Algorithm::Crc32c);
    found.meta.size == put.length && kept.is_none_or(|kept| kept.value == header.crc32c)
}

/// Returns the resource of an object as its upload knows it: without the generation, which depends on the origin's time.
fn resource_of(put: Option<&UploadResult>, header: &Header) -> Value {
    let mut resource = json!({
        "kind": "storage#object",
        "name": header.key,
        "bucket": header.bucket,
        "crc32c": header.crc32c,
    });
    if let Some(put) = put {
        resource["size"] = put.length.to_string().into();
        if let Some(e_tag) = &put.put.e_tag {
            resource["etag"] = bare(client_e_tag(e_tag)).into();
        }
    }
    resource
}
