//! Tags of objects: get, put and delete. In folders and in memory they are attributes; an S3 origin has its own.

use bywash::Bucket;
use bywash::origin::{AttributeRewrite, kept_client_etag};
use object_store::path::Path;
use object_store::{Attributes, GetOptions, GetResult, ObjectStore, TagSet};
use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result};

use crate::copying::{is_replaced, is_unmet, version_of};
use crate::errors::{OperationContext, from_store, not_implemented, slow_down};
use crate::gateway::Gateway;
use crate::limits::MAX_COPY_ATTEMPTS;
use crate::meta::{check_version, keep_e_tag};
use crate::routes::Query;
use crate::tags::{Tags, check_kept};

/// An object that gets other attributes.
pub(super) struct Rewritten<'a> {
    bucket: Bucket,
    path: Path,
    doing: OperationContext<'a>,
}

impl<'a> Rewritten<'a> {
    pub(super) fn new(
        gateway: &Gateway,
        doing: OperationContext<'a>,
        version: Option<&str>,
    ) -> S3Result<Self> {
        let (bucket, path) = gateway.existing(doing)?;
        check_version(version, doing.key)?;
        if bucket.has_tags() {
            let OperationContext {
                operation,
                bucket: name,
                key,
            } = doing;
            return Err(not_implemented(format!(
                "{operation} {name}/{key}: {} origins do not support it here.",
                bucket.origin_kind()
            )));
        }
        check_kept(&bucket)?;
        Ok(Self {
            bucket,
            path,
            doing,
        })
    }

    pub(super) async fn get(&self, head: bool) -> S3Result<GetResult> {
        let options = GetOptions {
            head,
            ..GetOptions::default()
        };
        let found = self.bucket.get_opts(&self.path, options).await;
        found.map_err(|error| from_store(self.doing, &error))
    }

    /// Changes the attributes of the current version; starts over if another writer replaces it.
    pub(super) async fn replace(
        &self,
        change: impl Fn(&Bucket, &mut Attributes) -> S3Result<()>,
    ) -> S3Result<()> {
        let _turn = self.bucket.change_turn(&self.path).await;
        for _ in 0..MAX_COPY_ATTEMPTS {
            if self.attempt(&change).await? {
                return Ok(());
            }
        }
        let OperationContext {
            operation,
            bucket,
            key,
        } = self.doing;
        Err(slow_down(format!(
            "{operation} {bucket}/{key}: the object was replaced during each of {MAX_COPY_ATTEMPTS} attempts; try again"
        )))
    }

    /// Changes the attributes of the current version. Returns false if it was replaced after they were read.
    async fn attempt(
        &self,
        change: impl Fn(&Bucket, &mut Attributes) -> S3Result<()>,
    ) -> S3Result<bool> {
        let found = self.get(true).await?;
        let mut attributes = found.attributes.clone();
        change(&self.bucket, &mut attributes)?;
        if let Some(kept) = found.meta.e_tag.as_deref().and_then(kept_client_etag) {
            keep_e_tag(&mut attributes, kept.to_owned());
        }
        let rewrite = AttributeRewrite {
            version: version_of(&found.meta),
            size: found.meta.size,
            attributes,
            tags: TagSet::default(),
        };
        match self.bucket.replace_attributes(&self.path, rewrite).await {
            Ok(_) => Ok(true),
            Err(error) if is_unmet(&error) || is_replaced(&error) => Ok(false),
            Err(error) => Err(from_store(self.doing, &error)),
        }
    }
}

pub(crate) async fn get(
    gateway: &Gateway,
    request: S3Request<GetObjectTaggingInput>,
) -> S3Result<S3Response<GetObjectTaggingOutput>> {
    let S3Request { input, uri, .. } = request;
    let doing = OperationContext::new("read the tags of", &input.bucket, &input.key);
    let query = Query::new(&uri);
    let version = query.first("versionId");
    let (bucket, path) = gateway.existing(doing)?;
    let tags = if bucket.has_tags() {
        check_version(version, doing.key)?;
        let found = bucket.object_tags(&path).await;
        found.map_err(|error| from_store(doing, &error))?.into()
    } else {
        let object = Rewritten::new(gateway, doing, version)?;
        Tags::kept(&object.get(true).await?.attributes)
    };
    Ok(S3Response::new(GetObjectTaggingOutput {
        tag_set: tags.into_set(),
        version_id: None,
    }))
}

/// Replaces the tags of an object, if they are valid; none deletes them.
async fn set(
    gateway: &Gateway,
    doing: OperationContext<'_>,
    version: Option<&str>,
    tags: S3Result<Tags>,
) -> S3Result<()> {
    let (bucket, path) = gateway.existing(doing)?;
    if bucket.has_tags() {
        check_version(version, doing.key)?;
        // A change of metadata rewrites the object with the tags that were read before.
        let _turn = bucket.change_turn(&path).await;
        let set = bucket.set_object_tags(&path, tags?.into()).await;
        return set.map_err(|error| from_store(doing, &error));
    }
    let object = Rewritten::new(gateway, doing, version)?;
    let tags = tags?;
    object
        .replace(|bucket, attributes| tags.keep(bucket, attributes).map(drop))
        .await
}

pub(crate) async fn put(
    gateway: &Gateway,
    request: S3Request<PutObjectTaggingInput>,
) -> S3Result<S3Response<PutObjectTaggingOutput>> {
    let S3Request { input, uri, .. } = request;
    let doing = OperationContext::new("tag", &input.bucket, &input.key);
    let tags = Tags::from_set(input.tagging.tag_set);
    set(gateway, doing, Query::new(&uri).first("versionId"), tags).await?;
    Ok(S3Response::new(PutObjectTaggingOutput::default()))
}

pub(crate) async fn delete(
    gateway: &Gateway,
    request: S3Request<DeleteObjectTaggingInput>,
) -> S3Result<S3Response<DeleteObjectTaggingOutput>> {
    let S3Request { input, uri, .. } = request;
    let doing = OperationContext::new("delete the tags of", &input.bucket, &input.key);
    let query = Query::new(&uri);
    let version = query.first("versionId");
    set(gateway, doing, version, Ok(Tags::default())).await?;
    Ok(S3Response::new(DeleteObjectTaggingOutput::default()))
}
