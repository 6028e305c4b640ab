//! Copies: copyTo, and rewriteTo, which is done by its first call.

use bywash::origin::{AttributeRewrite, kept_client_etag};
use bywash::{Bucket, PutStreamOptions};
use http::Response;
use object_store::path::Path;
use object_store::{Attribute, Attributes, GetOptions, GetResult, PutMode, PutResult, TagSet};
use s3s::Body;
use serde_json::json;

use super::body::{document, kept};
use super::condition::{WriteCondition, named};
use super::endpoint::{Endpoint, GcsRequest};
use super::error::{GcsError, GcsResult};
use super::generation::{Conditions, VersionNumbers};
use super::insert::body_of;
use super::metadata::GivenMetadata;
use super::read::{head, head_written};
use super::resource::{self, ObjectResource};
use crate::copying::{
    Attempt, Guard, Replaced, is_replaced, is_unmet, lacks_conditions, turn_onto_itself, version_of,
};
use crate::digest::{Algorithm, Checksum};
use crate::errors::{OperationContext, from_store, no_such_bucket};
use crate::limits::{MAX_COPY_ATTEMPTS, MAX_JSON_BYTES};
use crate::meta::{
    encode_metadata_for, is_ours, keep_checksum, keep_e_tag, kept_checksum, refuse_text_for,
};
use crate::passing::PassingDigests;

/// A copy that was made.
pub(crate) struct Copied {
    pub(crate) bucket: Bucket,
    pub(crate) found: GetResult,
}

pub(crate) async fn copy(
    endpoint: &Endpoint,
    request: &mut GcsRequest,
) -> GcsResult<Response<Body>> {
    let given = given(request).await?;
    let copied = run(endpoint, request, given).await?;
    resource::document(&described(endpoint, request, &copied))
}

fn described(endpoint: &Endpoint, request: &GcsRequest, copied: &Copied) -> ObjectResource {
    let url = endpoint.url(&request.parts);
    let target = request.route.target.as_ref();
    let key = target.map_or("", |(_, object)| object);
    ObjectResource::read(&copied.bucket, key, &copied.found, &url)
}

/// Reads the metadata that a request has for the copy.
async fn given(request: &mut GcsRequest) -> GcsResult<GivenMetadata> {
    let body = body_of(request);
    let doing = request.doing("copy from");
    let _charge = request
        .documents
        .charge_document(MAX_JSON_BYTES, doing)
        .await?;
    GivenMetadata::parse(&document(body).await?)
}

pub(crate) async fn rewrite(
    endpoint: &Endpoint,
    request: &mut GcsRequest,
) -> GcsResult<Response<Body>> {
    if request.query.get("rewriteToken").is_some() {
        return Err(GcsError::invalid(
            "This endpoint gave no such rewriteToken: the first call of a rewrite does all of it.",
        ));
    }
    let given = given(request).await?;
    let copied = run(endpoint, request, given).await?;
    let size = copied.found.meta.size;
    let found = described(endpoint, request, &copied);
    resource::document(&json!({
        "kind": "storage#rewriteResponse",
        "totalBytesRewritten": size.to_string(),
        "objectSize": size.to_string(),
        "done": true,
        "resource": found,
    }))
}

/// Copies the current version of the source; once more if it is replaced during the copy.
pub(crate) async fn run(
    endpoint: &Endpoint,
    request: &mut GcsRequest,
    given: GivenMetadata,
) -> GcsResult<Copied> {
    let from = request.doing("copy from");
    let (to_bucket, to_object) = request
        .route
        .target
        .as_ref()
        .ok_or_else(|| no_such_bucket(""))?;
    let to = OperationContext::new("copy to", to_bucket, to_object);
    let copying = Copying {
        md5: endpoint.wants_md5(&endpoint.bucket(to.bucket)?),
        source: endpoint.stored_object(from.bucket, from.key)?,
        target: endpoint.object(to.bucket, to.key)?,
        of_source: Conditions::of_source(&request.query)?,
        of_target: Conditions::of(&request.query)?,
        given,
        from,
        to,
    };
    let turn = turn_onto_itself(&copying.source, &copying.target).await;
    let (mut attempts, mut guard) = (0..MAX_COPY_ATTEMPTS, Guard::Condition);
    let written = loop {
        match copying.attempt(guard).await? {
            Attempt::Done(written) => break written,
            Attempt::NoConditions => guard = Guard::LastLook,
            Attempt::Replaced => {
                if attempts.next().is_none() {
                    return Err(GcsError::unavailable(format!(
                        "{}: the source was replaced during each of {MAX_COPY_ATTEMPTS} attempts; try again.",
                        named(from)
                    )));
                }
            }
        }
    };
    drop(turn);
    let (bucket, path) = &copying.target;
    let found = head_written(bucket, path, written.e_tag.as_deref(), to).await?;
    Ok(Copied {
        bucket: bucket.clone(),
        found,
    })
}

struct Copying<'a> {
    source: (Bucket, Path),
    target: (Bucket, Path),
    of_source: Conditions,
    of_target: Conditions,
    /// Metadata of the copy, in place of the source's.
    given: GivenMetadata,
    /// Whether the MD5 of the bytes becomes the copy's ETag.
    md5: bool,
    from: OperationContext<'a>,
    to: OperationContext<'a>,
}

impl Copying<'_> {
    /// Copies the current version of the source. `guard`: of a copy onto itself.
    async fn attempt(&self, guard: Guard) -> GcsResult<Attempt<PutResult>> {
        let (from, from_path) = &self.source;
        let (bucket, path) = &self.target;
        let found = head(from, from_path, self.from).await?;
        let current = VersionNumbers::of(from, &found);
        self.of_source.check_write(current, &named(self.from))?;
        let condition = WriteCondition::find(bucket, path, &self.of_target, self.to).await?;
        let onto_itself = bucket.is_same_object(path, from, from_path);
        let guard = Some(guard).filter(|_| onto_itself && condition.mode == PutMode::Overwrite);
        if guard.is_some()
            && let Some(rewrite) = self.rewrite(&found)?
        {
            // Only the attributes change, where the store can.
            match bucket.rewrite_in_place(path, &rewrite).await {
                Ok(Some(done)) => return Ok(Attempt::Done(done)),
                Ok(None) => {}
                Err(error) if is_replaced(&error) => return Ok(Attempt::Replaced),
                Err(error) => return Err(from_store(self.to, &error).into()),
            }
        }
        let (size, e_tag) = (found.meta.size, found.meta.e_tag.clone());
        let tags = TagSet::default();
        let memory = bucket.copy_memory(path, size, &tags).await;
        let memory = memory.map_err(|error| from_store(self.to, &error))?;
        let options = GetOptions {
            if_match: e_tag,
            ..GetOptions::default()
        };
        let read = match from.get_for_copy(from_path, options, memory.reads()).await {
            Ok(read) => read,
            Err(error) if is_replaced(&error) => return Ok(Attempt::Replaced),
            Err(error) => return Err(from_store(self.from, &error).into()),
        };
        if !self.of_source.is_empty() {
            // Without ETags the origin compared nothing.
            let current = VersionNumbers::of(from, &read);
            self.of_source.check_write(current, &named(self.from))?;
        }
        let (mut attributes, known) = self.attributes(&read);
        refuse_text_for(bucket, &attributes)?;
        encode_metadata_for(bucket, &mut attributes)?;
        let md5 = self.md5 && !known;
        let digests = PassingDigests::new(md5, Some(Algorithm::Crc32c));
        let passed = digests.clone();
        let (meta, length) = (read.meta.clone(), read.meta.size);
        let body = digests.of(read.into_stream());
        let (mode, body) = match guard {
            Some(guard) => guard.apply(bucket, path, &meta, body),
            None => (condition.mode.clone(), body),
        };
        let put = PutStreamOptions {
            mode,
            attributes,
            tags,
            late_attributes: Some(Box::new(move || kept(&passed.finish(), md5))),
            length: Some(length),
            memory: Some(memory),
        };
        let replaced = Replaced::default();
        match bucket.put_stream(path, put, replaced.watch(body)).await {
            Ok(written) => Ok(Attempt::Done(written)),
            Err(_) if replaced.is_seen() => Ok(Attempt::Replaced),
            Err(error) if guard.is_some() && is_unmet(&error) => Ok(Attempt::Replaced),
            Err(error) if guard == Some(Guard::Condition) && lacks_conditions(&error) => {
                Ok(Attempt::NoConditions)
            }
            Err(error) => Err(condition.error(self.to, &error)),
        }
    }

    /// Returns the change of an object that is copied onto itself; `None` if digests have to be computed of its bytes.
    fn rewrite(&self, found: &GetResult) -> GcsResult<Option<AttributeRewrite>> {
        let bucket = &self.target.0;
        let (mut attributes, known) = self.attributes(found);
        let checksum = kept_checksum(&found.attributes);
        let checksum = checksum.filter(Checksum::is_crc32c_of_all);
        let Some(checksum) = checksum.filter(|_| known || !self.md5) else {
            return Ok(None);
        };
        keep_checksum(&mut attributes, &checksum);
        refuse_text_for(bucket, &attributes)?;
        encode_metadata_for(bucket, &mut attributes)?;
        Ok(Some(AttributeRewrite {
            version: version_of(&found.meta),
            size: found.meta.size,
            attributes,
            tags: TagSet::default(),
        }))
    }

    /// The attributes of the copy, and whether the MD5 of its bytes is among them.
    fn attributes(&self, read: &GetResult) -> (Attributes, bool) {
        let is_reserved =
            |attribute: &Attribute| matches!(attribute, Attribute::Metadata(name) if is_ours(name));
        let mut attributes = self.given.attributes.clone();
        if !self.given.is_given {
            // Digests are computed again; ACL, tags and parts of the source are not the copy's.
            let own = read
                .attributes
                .iter()
                .filter(|(name, _)| !is_reserved(name));
            own.for_each(|(name, value)| {
                attributes.insert(name.clone(), value.clone());
            });
        }
        let known = read.meta.e_tag.as_deref().and_then(kept_client_etag);
        let known = known.filter(|_| self.md5);
        if let Some(known) = known {
            keep_e_tag(&mut attributes, known.to_owned());
        }
        (attributes, known.is_some())
    }
}
