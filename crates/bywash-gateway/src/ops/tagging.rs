//! Tags of objects: get, put and delete.

use bywash::origin::kept_client_etag;
use bywash::{Bucket, PutStreamOptions};
use object_store::path::Path;
use object_store::{Attributes, GetOptions, GetResult, ObjectStore, PutMode, UpdateVersion};
use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result};

use crate::errors::{OperationContext, from_store};
use crate::gateway::Gateway;
use crate::meta::{check_version, keep_e_tag};
use crate::tags::{Tags, check_kept};

/// An object that is written anew with other attributes.
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
        let (bucket, path) = gateway.target(doing)?;
        check_version(version, doing.key)?;
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

    /// Writes the object anew with changed attributes, if it was not replaced since it was read.
    pub(super) async fn replace(
        &self,
        change: impl FnOnce(&Bucket, &mut Attributes) -> S3Result<()>,
    ) -> S3Result<()> {
        let found = self.get(false).await?;
        let mut attributes = found.attributes.clone();
        change(&self.bucket, &mut attributes)?;
        if let Some(kept) = found.meta.e_tag.as_deref().and_then(kept_client_etag) {
            keep_e_tag(&mut attributes, kept.to_owned());
        }
        let version = UpdateVersion {
            e_tag: found.meta.e_tag.clone(),
            version: found.meta.version.clone(),
        };
        let options = PutStreamOptions {
            mode: PutMode::Update(version),
            attributes,
            late_attributes: None,
            length: Some(found.meta.size),
        };
        let written = self
            .bucket
            .put_stream(&self.path, options, found.into_stream())
            .await;
        written.map_err(|error| from_store(self.doing, &error))?;
        Ok(())
    }
}

pub(crate) async fn get(
    gateway: &Gateway,
    request: S3Request<GetObjectTaggingInput>,
) -> S3Result<S3Response<GetObjectTaggingOutput>> {
    let input = request.input;
    let doing = OperationContext::new("read the tags of", &input.bucket, &input.key);
    let found = Rewritten::new(gateway, doing, input.version_id.as_deref())?
        .get(true)
        .await?;
    Ok(S3Response::new(GetObjectTaggingOutput {
        tag_set: Tags::kept(&found.attributes).into_set(),
        version_id: None,
    }))
}

pub(crate) async fn put(
    gateway: &Gateway,
    request: S3Request<PutObjectTaggingInput>,
) -> S3Result<S3Response<PutObjectTaggingOutput>> {
    let input = request.input;
    let doing = OperationContext::new("tag", &input.bucket, &input.key);
    let tagged = Rewritten::new(gateway, doing, input.version_id.as_deref())?;
    let tags = Tags::from_set(input.tagging.tag_set)?;
    tagged
        .replace(|bucket, attributes| tags.keep(bucket, attributes))
        .await?;
    Ok(S3Response::new(PutObjectTaggingOutput::default()))
}

pub(crate) async fn delete(
    gateway: &Gateway,
    request: S3Request<DeleteObjectTaggingInput>,
) -> S3Result<S3Response<DeleteObjectTaggingOutput>> {
    let input = request.input;
    let doing = OperationContext::new("delete the tags of", &input.bucket, &input.key);
    let tagged = Rewritten::new(gateway, doing, input.version_id.as_deref())?;
    tagged
        .replace(|bucket, attributes| Tags::default().keep(bucket, attributes))
        .await?;
    Ok(S3Response::new(DeleteObjectTaggingOutput::default()))
}
