//! The end of a session: its object becomes visible, and its file says so.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bywash::{Bucket, UploadResult};
use object_store::path::Path;
use object_store::{Attributes, GetResult};
use serde_json::{Value, json};

use super::super::condition::named;
use super::super::error::{GcsError, GcsResult};
use super::super::insert::StatedHashes;
use super::super::read::head;
use super::super::resource::ObjectResource;
use super::record::Header;
use super::run::Addition;
use super::{OpenSession, SessionState, Sessions, failed, mark_of};
use crate::copying::is_unmet;
use crate::digest::{Algorithm, Checksum, ResumableMd5, hex};
use crate::errors::{OperationContext, from_store, no_such_bucket};
use crate::keys::path_of;
use crate::meta::{bare, client_e_tag, keep_checksum, keep_e_tag, kept_checksum, upload_mark};

/// Digests of all bytes of a session.
struct WholeDigests {
    crc32c: String,
    md5: Option<[u8; 16]>,
}

/// Why the hashes that a client stated refuse the end of its session.
enum HashRefusal {
    /// The session continues: one of the hashes is not known here.
    Repeatable(GcsError),
    /// The bytes are others.
    Final(GcsError),
}

impl WholeDigests {
    fn of(header: &Header) -> Self {
        Self {
            crc32c: header.crc32c.clone(),
            md5: header.md5.as_ref().map(ResumableMd5::digest),
        }
    }

    /// The MD5 in base64.
    fn md5_hash(&self) -> Option<String> {
        self.md5.map(|md5| BASE64_STANDARD.encode(md5))
    }

    /// Compares the hashes that the client stated at the end, or at the start of the session.
    fn check(
        &self,
        stated: &StatedHashes,
        header: &Header,
        doing: OperationContext<'_>,
    ) -> Result<(), HashRefusal> {
        let md5 = self.md5_hash();
        if md5.is_none() && stated.md5.is_some() {
            return Err(HashRefusal::Repeatable(GcsError::invalid(
                "The MD5 of this session is not computed, because the server that began it runs with --etag fast; state it at the \
                 start of a session, or state the crc32c at its end.",
            )));
        }
        let is_other = |stated: &Option<String>, found: Option<&String>| {
            stated.is_some() && stated.as_ref() != found
        };
        if !is_other(&stated.crc32c, Some(&self.crc32c))
            && !is_other(&header.expected_crc32c, Some(&self.crc32c))
            && !is_other(&stated.md5, md5.as_ref())
            && !is_other(&header.expected_md5, md5.as_ref())
        {
            return Ok(());
        }
        let md5 = md5.map_or_else(String::new, |md5| format!(" and the MD5 {md5}"));
        Err(HashRefusal::Final(GcsError::invalid(format!(
            "{}: the bytes have the CRC32C {}{md5}, but the request or the start of the session states another; nothing was \
             stored, and the session is over.",
            named(doing),
            self.crc32c
        ))))
    }

    /// The digests that are kept with the object.
    fn attributes(&self, header: &Header) -> Attributes {
        let mut kept = Attributes::new();
        let checksum = Checksum {
            algorithm: Algorithm::Crc32c,
            value: self.crc32c.clone(),
        };
        keep_checksum(&mut kept, &checksum);
        if let Some(md5) = self.md5.filter(|_| header.keeps_md5) {
            keep_e_tag(&mut kept, hex(&md5));
        }
        kept
    }
}

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
        let digests = WholeDigests::of(&header);
        match digests.check(&request.stated, &header, doing) {
            Ok(()) => {}
            Err(HashRefusal::Repeatable(error)) => {
                return Err(self.rescue(&request.id, session, error).await);
            }
            Err(HashRefusal::Final(error)) => {
                self.discard(&request.id, session).await;
                return Err(error);
            }
        }
        session.upload.add_attributes(&digests.attributes(&header));
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
        let known = resource_of(put.as_ref(), &header, &digests).to_string();
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
        let resource = resource.with_hashes(Some(header.crc32c), digests.md5_hash());
        let resource = serde_json::to_vec(&resource);
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

    /// Whether the object was made by an earlier end of this session, whose response was lost.
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

/// The resource of an object as its upload knows it: without the generation, which depends on the
/// origin's time.
fn resource_of(put: Option<&UploadResult>, header: &Header, digests: &WholeDigests) -> Value {
    let mut resource = json!({
        "kind": "storage#object",
        "name": header.key,
        "bucket": header.bucket,
        "crc32c": header.crc32c,
    });
    if let Some(md5) = digests.md5_hash() {
        resource["md5Hash"] = md5.into();
    }
    if let Some(put) = put {
        resource["size"] = put.length.to_string().into();
        if let Some(e_tag) = &put.put.e_tag {
            resource["etag"] = bare(client_e_tag(e_tag)).into();
        }
    }
    resource
}
