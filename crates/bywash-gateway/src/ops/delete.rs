//! DeleteObject and DeleteObjects.

use bywash::Bucket;
use futures::StreamExt;
use object_store::{Error as StoreError, ObjectStoreExt};
use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use crate::errors::{Doing, fault, from_store, not_implemented};
use crate::gateway::Gateway;
use crate::keys::path_of;
use crate::meta::check_version;

/// The most keys of one DeleteObjects, as in S3.
const KEYS: usize = 1000;
/// Deletes of one request in flight at once.
const IN_FLIGHT: usize = 16;

/// Deletes a key; one that does not exist is deleted already.
async fn delete_key(bucket: &Bucket, key: &str, version: Option<&str>) -> S3Result<()> {
    check_version(version, key)?;
    let path = path_of(key)?;
    let doing = Doing {
        operation: "delete",
        bucket: bucket.name(),
        key,
    };
    match bucket.delete(&path).await {
        Ok(()) | Err(StoreError::NotFound { .. }) => Ok(()),
        Err(error) => Err(from_store(doing, &error)),
    }
}

fn refuse_condition(conditional: bool) -> S3Result<()> {
    if conditional {
        return Err(not_implemented(
            "Conditional deletes are not supported here; delete without a condition.",
        ));
    }
    Ok(())
}

pub(crate) async fn one(
    gateway: &Gateway,
    request: S3Request<DeleteObjectInput>,
) -> S3Result<S3Response<DeleteObjectOutput>> {
    let input = request.input;
    let bucket = gateway.bucket(&input.bucket)?;
    let conditions = [
        input.if_match.is_some(),
        input.if_match_size.is_some(),
        input.if_match_last_modified_time.is_some(),
    ];
    refuse_condition(conditions.contains(&true))?;
    delete_key(&bucket, &input.key, input.version_id.as_deref()).await?;
    Ok(S3Response::new(DeleteObjectOutput {
        version_id: input.version_id,
        ..Default::default()
    }))
}

pub(crate) async fn many(
    gateway: &Gateway,
    request: S3Request<DeleteObjectsInput>,
) -> S3Result<S3Response<DeleteObjectsOutput>> {
    let input = request.input;
    let bucket = gateway.bucket(&input.bucket)?;
    let objects = input.delete.objects;
    if objects.is_empty() || objects.len() > KEYS {
        let message = format!(
            "The request names {} keys; name 1 to {KEYS}.",
            objects.len()
        );
        return Err(fault(S3ErrorCode::MalformedXML, message));
    }
    let outcomes = futures::stream::iter(objects)
        .map(|object| {
            let bucket = &bucket;
            async move {
                let conditions = [
                    object.e_tag.is_some(),
                    object.size.is_some(),
                    object.last_modified_time.is_some(),
                ];
                let result = match refuse_condition(conditions.contains(&true)) {
                    Ok(()) => delete_key(bucket, &object.key, object.version_id.as_deref()).await,
                    refused => refused,
                };
                (object, result)
            }
        })
        .buffered(IN_FLIGHT)
        .collect::<Vec<_>>()
        .await;
    let quiet = input.delete.quiet.unwrap_or(false);
    let (mut deleted, mut errors) = (Vec::new(), Vec::new());
    for (object, result) in outcomes {
        match result {
            Ok(()) if quiet => {}
            Ok(()) => deleted.push(DeletedObject {
                key: Some(object.key),
                version_id: object.version_id,
                ..Default::default()
            }),
            Err(error) => errors.push(entry(object, &error)),
        }
    }
    let (deleted, errors) = (Some(deleted), Some(errors));
    Ok(S3Response::new(DeleteObjectsOutput {
        deleted,
        errors,
        ..Default::default()
    }))
}

fn entry(object: ObjectIdentifier, error: &S3Error) -> Error {
    Error {
        code: Some(error.code().as_str().to_owned()),
        key: Some(object.key),
        message: error.message().map(str::to_owned),
        version_id: object.version_id,
    }
}
